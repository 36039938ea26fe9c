"""The programs that a newcomer writes first do what the documents promise."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cli.launched import Launched
from tests.multi_process import scripts
from tests.waits import wait_for_exit

pytestmark = pytest.mark.nightly

PROGRAMS = pathlib.Path(__file__).parent / "programs"
# Ten times what a program takes on two idle processors.
SECONDS = 300


def launch(directory, program, *flags):
    """Runs `tfdist launch`; all tasks have to end with 0.

    Args:
        directory: in which it runs, a `pathlib.Path`.
        program: name of a file of `PROGRAMS`.
        *flags: of the launcher.

    Returns:
        All that it shows, a string.
    """
    with Launched(*flags, PROGRAMS / program, cwd=directory) as run:
        wait_for_exit(run.process, SECONDS)
        status, text = run.finish()
    assert status == 0, text
    return text


def run_alone(directory, program):
    """As `python program`; returns what it prints."""
    task = scripts.start(directory, PROGRAMS / program, [])
    assert task.wait(SECONDS) == 0, task.output()
    return task.output()


def losses(text, prefix=""):
    """Those of the lines of progress that begin with it, a list of floats."""
    shown = rf"(?m)^{prefix}\d+/\d+ - .*?- loss: ([\d.e+-]+)"
    return [float(loss) for loss in re.findall(shown, text)]


def labelled(examples):
    """The data that the programs train on."""
    x = np.random.default_rng(0).normal(size=(examples, 4)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int32")


def test_first_program_trains(tmp_path):
    flags = "--num_ps=1", "--num_workers=2"
    text = launch(tmp_path, "first_program.py", *flags)
    # 512 examples in batches of 16, in each of 5 epochs.
    assert f"[worker 0] updates: [{512 // 16 * 5}]" in text, text
    *of_epochs, evaluated = losses(text, r"\[worker 0\] ")
    assert len(of_epochs) == 5
    assert evaluated < of_epochs[0]
    # The file holds what was evaluated.
    model = keras.models.load_model(tmp_path / "first.keras")
    loss, _ = model.evaluate(*labelled(512), verbose=0)
    assert loss == pytest.approx(evaluated, abs=1e-3)


def test_backup_workers_train_on_records(tmp_path):
    run_alone(tmp_path, "write_records.py")
    program = PROGRAMS / "backup_workers.py"
    output = scripts.run(
        tmp_path, program, [], {"ps": 1, "worker": 3}, seconds=SECONDS
    )
    text = output["worker-0"]
    # Six files of 64 records in batches of 16, in each of 4 epochs.
    gradients = 6 * 64 // 16 * 4
    updates, pushed, dropped = map(
        int,
        re.search(
            r"applied: (\d+); .* pushed: (\d+), dropped: (\d+)", text
        ).groups(),
    )
    assert pushed == gradients
    # Of three workers two make an update; when others have ended, one.
    assert (pushed - dropped) / 2 <= updates <= pushed - dropped
    table = re.findall(r"^worker \d +(\d+) +(\d+) +(\d+) ", text, re.M)
    counts = np.array(table, int)
    # Each had two files to itself.
    assert counts[:, 0].tolist() == [gradients // 3] * 3
    assert counts[:, 1:].sum(axis=0).tolist() == [pushed - dropped, dropped]
    assert curve(tmp_path / "runs" / "train", "epoch_loss") == [0, 1, 2, 3]
    assert curve(tmp_path / "runs" / "validation", "epoch_loss") == [0, 1, 2, 3]
    assert len(list((tmp_path / "runs").glob("steps-worker-*.jsonl"))) == 3
    best = keras.models.load_model(tmp_path / "best.keras")
    _, accuracy = best.evaluate(*labelled(512), verbose=0)
    assert accuracy > 0.8


def curve(directory, tag):
    """The steps of a curve that TensorBoard shows."""
    (file,) = directory.glob("events.*")
    return [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
        if value.tag == tag
    ]


def test_groups_codistil(tmp_path):
    flags = "--num_groups=2", "--num_ps=1", "--num_workers=1"
    text = launch(tmp_path, "codistillation.py", *flags)
    taught = []
    for group in range(2):
        # 512 examples of each group in batches of 16, in each of 6 epochs.
        label = rf"(?m)^\[group {group} worker 0\] "
        assert re.search(rf"{label}Updates applied: {512 // 16 * 6};", text)
        taught += re.findall(rf"{label}Codistillation .* came (once|\d)", text)
        student = keras.models.load_model(tmp_path / f"student-{group}.keras")
        _, accuracy = student.evaluate(*labelled(1024), verbose=0)
        assert accuracy > 0.7
    # One may be done before the other one has begun to teach, not both.
    assert taught


def test_data_made_before_the_strategy_is_refused(tmp_path):
    script = tmp_path / "early.py"
    script.write_text(
        "import tfdist\nimport keras\nimport tensorflow as tf\n"
        "data = tf.data.Dataset.from_tensors((tf.ones([2, 1]), tf.ones([2])))\n"
        "strategy = tfdist.AsyncStrategy()\n"
        "with strategy.scope():\n"
        "    model = keras.Sequential(\n"
        "        [keras.Input([1]), keras.layers.Dense(1)]\n"
        "    )\n"
        "    model.compile('sgd', 'mse')\n"
        "model.fit(data)\n"
    )
    with Launched("--num_ps=1", "--num_workers=1", script) as run:
        wait_for_exit(run.process, SECONDS)
        status, text = run.finish()
    assert status == 1
    assert "must be made after the strategy" in text.splitlines()[-1]
