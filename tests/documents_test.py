"""Programs in the README and the documents run as typed.

Each complete program is a block marked `python`, and runs in processes of its
own: alone as `python train.py`, or on the cluster that the document starts.
"""

import json
import os
import pathlib
import re
import signal
import time
import zipfile

import keras
import pytest

from tests.cli.launched import Launched
from tests.multi_process import scripts
from tests.waits import wait_for_exit

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Ten times what a program takes on two idle processors.
SECONDS = 300
# Documents whose programs run below, each for itself.
OWN = {
    "averaging",
    "checkpoints",
    "codistillation",
    "compression",
    "custom_loops",
    "monitoring",
    "pipelines",
    "placement",
    "simulator",
    "tutorial",
}
# Those whose programs need no cluster and print nothing to look at.
SHORT = [
    "decisions",
    "elasticity",
    "nonfinite",
    "operations",
    "sandblaster",
    "tables",
    "training",
]
# `tests/strategies/own_methods_test.py` trains with the programs of this one.
ELSEWHERE = {"new_method"}


def programs(path):
    """The complete programs of a document, a list of strings."""
    text = path.read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def write(directory, *parts):
    """Writes a program of one or several blocks; returns its path."""
    script = directory / "train.py"
    script.write_text("\n".join(parts))
    return script


def run_alone(directory, script, *arguments, **environ):
    """Runs `python train.py`; returns what it prints."""
    # Of each run, by a name of its own: output is added to that of the name.
    label = f"task-{time.monotonic_ns()}"
    task = scripts.start(directory, script, arguments, label, **environ)
    assert task.wait(SECONDS) == 0, task.output()
    return task.output()


def launch(directory, script, *flags, env=None):
    """Runs `tfdist launch FLAGS train.py`; returns what it shows."""
    with Launched(*flags, script, cwd=directory, env=env) as run:
        wait_for_exit(run.process, SECONDS)
        status, text = run.finish()
    assert status == 0, text
    return text


def with_names(program, *names):
    """A program that prints some of its expressions as JSON when it ends."""
    shown = ", ".join(f"{name!r}: {name}" for name in names)
    return f"{program}\nimport json\nprint('found', json.dumps({{{shown}}}))\n"


def found(text):
    """What `with_names` has printed."""
    return json.loads(re.search(r"(?m)^found (.*)$", text)[1])


def test_programs_of_all_documents_are_run():
    with_programs = {p.stem for p in DOCS.rglob("*.md") if programs(p)}
    assert with_programs == OWN | set(SHORT) | ELSEWHERE


@pytest.mark.smoke
def test_program_of_the_readme_trains_on_a_cluster(tmp_path):
    """Its server ends by itself, with status 0."""
    script = write(tmp_path, programs(ROOT / "README.md")[0])
    flags = ["--num_ps=1", "--num_workers=2", "--grace_seconds=60"]
    environ = {"TFDS_DATA_DIR": str(tmp_path)}
    text = launch(tmp_path, script, *flags, env=environ)
    # 1,437 images in batches of 32 make 45 updates in each of 15 epochs.
    assert "[worker 0] Updates applied: 675;" in text
    assert re.search(r"\[worker 0\] 12/12 .* accuracy: [0-9.]+", text)
    assert "ps 0 is done" in text
    assert "terminating" not in text and "not ended by itself" not in text
    with zipfile.ZipFile(tmp_path / "digits.keras") as saved:
        assert saved.testzip() is None


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHORT)
def test_short_programs_run(tmp_path, name):
    for program in programs(DOCS / f"{name}.md"):
        run_alone(tmp_path, write(tmp_path, program))


@pytest.mark.nightly
def test_program_of_the_simulator_runs(tmp_path):
    program, compressed = programs(DOCS / "simulator.md")
    names = "history.num_workers", "history.summary()['dropped']"
    accuracies = "[e['accuracy'] for e in history.evaluations]"
    program = with_names(program, *names, accuracies)
    script = write(tmp_path, f"{program}\n{compressed}")
    output = run_alone(tmp_path, script)
    # Of 56 kB 1 in 250 elements, and the pulled parameters.
    assert re.search(r"(?m)^1\d\d\.\d+ \d{7}$", output)
    seen = found(output)
    assert seen[names[0]] == 16
    # The worker that died lost one gradient and came back.
    assert seen[names[1]] == 1
    assert seen[accuracies][-1] > seen[accuracies][0]


def test_program_of_compression_runs(capsys):
    (program,) = programs(DOCS / "compression.md")
    exec(compile(program, "docs/compression.md", "exec"), {})
    sent, *_, dense = re.findall(r"\d+", capsys.readouterr().out)
    assert 100 * int(sent) < int(dense) == 40_000


@pytest.mark.nightly
def test_method_of_one_s_own_trains(tmp_path):
    (program,) = programs(DOCS / "averaging.md")
    names = "int(model.optimizer.iterations)", "strategy.updates_applied()"
    loss = "model.evaluate(x, y, verbose=0)"
    script = write(tmp_path, with_names(program, *names, loss))
    seen = found(run_alone(tmp_path, script))
    # 256 / 8 batches in each of 3 epochs; 5 to an update, and a rest of 1.
    assert [seen[name] for name in names] == [96, [20]]
    assert seen[loss] < 0.01


@pytest.mark.nightly
def test_groups_of_the_program_of_codistillation_teach_each_other(tmp_path):
    (program,) = programs(DOCS / "codistillation.md")
    read = "exchange.bytes_read"
    script = write(tmp_path, with_names(program, read))
    bytes_read = []
    for group in range(2):
        told = {"codistillation": {"group": group, "num_groups": 2}}
        variables = {"TF_CONFIG": json.dumps(told)}
        variables["TFDS_DATA_DIR"] = str(tmp_path)
        text = run_alone(tmp_path, script, **variables)
        bytes_read.append(found(text)[read])
    # The second found what the first has left.
    assert bytes_read[0] == 0 < bytes_read[1]
    for group in range(2):
        keras.models.load_model(tmp_path / "runs" / f"model-{group}.keras")


@pytest.mark.nightly
def test_programs_of_checkpoints_run(tmp_path):
    first, own = programs(DOCS / "checkpoints.md")
    script = write(tmp_path, first)
    assert "started with epoch 0" in run_alone(tmp_path, script)
    assert "started with epoch 2" in run_alone(tmp_path, script)
    run_alone(tmp_path, write(tmp_path, own))


@pytest.mark.nightly
def test_programs_of_placement_run(tmp_path):
    homes = "{v.path: v.value.device[-5:] for v in model.variables}"
    parts = programs(DOCS / "placement.md")
    assert len(parts) == 4
    *parts, on_helpers = parts
    text = run_alone(tmp_path, write(tmp_path, with_names(parts[0], homes)))
    assert "--> CPU:2" in text
    device_of = found(text)[homes]
    assert {d for p, d in device_of.items() if "encoder" in p} == {"CPU:1"}
    # The other two blocks go on with the first one.
    text = run_alone(
        tmp_path, write(tmp_path, with_names("".join(parts), homes))
    )
    device_of = found(text)[homes]
    assert {d for p, d in device_of.items() if "low" in p} == {"CPU:1"}
    homes = "{v.path: v.value.device for v in model.variables}"
    text = launch(
        tmp_path,
        write(tmp_path, with_names(on_helpers, homes)),
        "--helpers_per_worker=1",
    )
    outputs = re.findall(r"(?m)\[worker (\d)\] found (.*)$", text)
    assert {number for number, _ in outputs} == {"0", "1"}
    for number, said in outputs:
        at = json.loads(said)[homes]
        home = f"/job:helper/replica:0/task:{number}/device:CPU:0"
        assert {p for p in at if at[p] == home} == {
            p for p in at if "encoder_1" in p
        }


@pytest.mark.nightly
def test_program_of_pipelines_runs(tmp_path):
    (program,) = programs(DOCS / "pipelines.md")
    names = "model.history.history['loss']", "[s.names for s in model.stages]"
    script = write(tmp_path, with_names(program, *names))
    losses, stages = found(run_alone(tmp_path, script)).values()
    assert losses[-1] < 0.8 * losses[0]
    assert stages == [["in"], ["hidden"], ["out"]]


@pytest.mark.nightly
def test_program_of_monitoring_has_an_evaluator(tmp_path):
    (program,) = programs(DOCS / "monitoring.md")
    flags = "--num_ps=1", "--num_workers=2", "--evaluator"
    text = launch(tmp_path, write(tmp_path, program), *flags)
    # 1,024 examples in batches of 16, in each of 5 epochs.
    assert "Updates applied: 320;" in text
    directory = tmp_path / "runs" / "1"
    last = (directory / "eval.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 320
    assert len(list(directory.glob("steps-*.jsonl"))) == 2


@pytest.mark.nightly
def test_custom_loop_trains_alone_and_on_a_cluster(tmp_path):
    (program,) = programs(DOCS / "custom_loops.md")
    script = write(tmp_path, program)
    # 64 batches in each of 3 epochs, whoever takes them.
    assert "updates: [192]" in run_alone(tmp_path, script)
    text = launch(tmp_path, script, "--num_ps=1", "--num_workers=2")
    assert "[worker 0] updates: [192]" in text
    assert float(re.search(r"accuracy: (\S+)", text)[1]) > 0.8
    keras.models.load_model(tmp_path / "custom_loop.keras")


@pytest.mark.nightly
def test_tutorial_does_what_it_says(tmp_path):
    (program,) = programs(DOCS / "tutorial.md")
    script = write(tmp_path, program)
    flags = "--num_ps=1", "--num_workers=2"
    # One process.
    text = run_alone(tmp_path, script)
    assert "epochs done before this run: 0" in text
    assert (tmp_path / "model.keras").exists()
    # Two workers go on where it stopped: 128 updates in each of 10 epochs.
    with Launched(*flags, script, "--", "10", cwd=tmp_path) as run:
        wait_for_exit(run.process, SECONDS)
        status, text = run.finish()
    assert status == 0, text
    assert "[worker 0] epochs done before this run: 5" in text
    assert "Updates applied: 1280;" in text
    # A worker and a server are killed, and then all are stopped.
    arguments = *flags, "--max_restarts=3", script, "--", "100000"
    with Launched(*arguments, cwd=tmp_path) as run:
        server = run.expect(r"ps 0: pid (\d+)")[1]
        worker = run.expect(r"worker 1: pid (\d+)")[1]
        run.expect(r"\[worker 0\] Epoch 12/")
        os.kill(int(worker), signal.SIGKILL)
        run.expect(r"worker 1 was ended by SIGKILL .* restart 1 of 3 in 0.5 s")
        run.expect("/job:worker/task:1 is back after")
        run.expect(r"\[worker 1\] Epoch")
        os.kill(int(server), signal.SIGKILL)
        run.expect("restored /job:ps/task:0, .* s after it was missed")
        run.expect(r"\[worker 0\] Epoch")
        run.process.send_signal(signal.SIGINT)
        status, text = run.finish()
    assert status == 128 + signal.SIGINT, text
    # It goes on where it was.
    reached = max(map(int, re.findall(r"\[worker 0\] Epoch (\d+)/", text)))
    arguments = *flags, script, "--", str(reached + 1)
    with Launched(*arguments, cwd=tmp_path) as run:
        wait_for_exit(run.process, SECONDS)
        status, text = run.finish()
    assert status == 0, text
    (begun,) = set(re.findall(r"\[worker 0\] epochs done .*: (\d+)", text))
    assert 11 <= int(begun) <= reached
