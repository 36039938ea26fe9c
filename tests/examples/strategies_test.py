"""The example with strategies of both kinds: on a server, and without."""

import json
import pathlib

import pytest

from tests.multi_process import scripts
from tfdist import datasets

pytestmark = pytest.mark.nightly

EXAMPLE = (
    pathlib.Path(__file__).parents[2] / "examples" / "train_image_classifier.py"
)
NUM_WORKERS = 3
# ceil((1437 - 144) / 64) batches, see train_image_classifier_test.py.
BATCH_SIZE, BATCHES = 64, 21


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensorflow_datasets")
    datasets.load("digits", data_dir=path)
    return path


def train(directory, data_dir, num_ps, *flags):
    """Runs the example; returns its summary and the workers' records.

    The chief alone reports.
    """
    jobs = {"ps": num_ps, "worker": NUM_WORKERS}
    flags = [*flags, f"--data_dir={data_dir}", f"--output_dir={directory}"]
    flags += [f"--batch_size={BATCH_SIZE}", "--epochs=1"]
    outputs = scripts.run(directory, EXAMPLE, flags, jobs)
    path = directory / "summary.json"
    assert path.exists() and (directory / "training.png").exists(), outputs
    for worker in range(NUM_WORKERS):
        shown = outputs[f"worker-{worker}"]
        for part in ("/step - ", "Test accuracy"):
            assert (part in shown) == (worker == 0), shown
    steps = [
        [json.loads(line) for line in file.open()]
        for file in sorted(directory.glob("steps-worker-*.jsonl"))
    ]
    return json.loads(path.read_text()), steps


def test_on_a_server_the_chief_reports_what_became_of_each_gradient(
    data_dir, tmp_path
):
    summary, steps = train(
        tmp_path,
        data_dir,
        1,
        "--strategy=bounded_staleness:max_staleness=1:"
        "correction=gap_aware(backups=worker)",
        "--worker_timeout=20",
    )
    assert summary["strategy"] == "bounded_staleness"
    assert summary["strategy_flags"] == {
        "max_staleness": 1,
        "correction": "gap_aware(backups=worker)",
        "worker_timeout": 20.0,
    }
    assert summary["num_ps"] == 1
    assert summary["num_workers"] == len(summary["workers"]) == NUM_WORKERS
    for part in (summary, *summary["workers"]):
        assert part["gradients_pushed"] == (
            part["gradients_accepted"] + part["gradients_dropped"]
        )
        assert part["waited_seconds"] >= 0.0
    # No batch is left out: nobody died, and nothing is dropped.
    assert summary["gradients_accepted"] == BATCHES
    assert summary["gradients_dropped"] == 0
    assert summary["updates_applied"] == BATCHES
    for worker, lines in zip(summary["workers"], steps, strict=True):
        assert worker["gradients_pushed"] == len(lines)
        assert worker["steps"] == sum(line["local_steps"] for line in lines)
        assert worker["gradients_accepted"] == sum(
            line["accepted"] for line in lines
        )
        assert worker["waited_seconds"] == pytest.approx(
            sum(line["wait_seconds"] for line in lines)
        )
    # While a worker makes its step, each of the two others can come from one
    # step behind it to one ahead of what it has then finished.
    assert summary["staleness"]["max"] <= 2 * (1 + 1 + 1)


def test_without_servers_workers_exchange_as_the_period_says(
    data_dir, tmp_path
):
    summary, steps = train(
        tmp_path,
        data_dir,
        0,
        "--strategy=parameter_averaging:period=3:warmup_steps=1:"
        "average_optimizer_state=true:communication=ring",
    )
    assert summary["strategy_flags"] == {
        "period": 3,
        "outer_optimizer": None,
        "average_optimizer_state": True,
        "reset_momentum": False,
        "warmup_steps": 1,
        "dynamic": False,
        "synchronization": "sync",
        "communication": "ring",
        "worker_timeout": 10.0,
    }
    assert summary["num_ps"] == 0
    # Of 7 steps of each worker after 1, 4 and 7.
    assert summary["updates_applied"] == 3
    assert len(steps) == NUM_WORKERS
    for lines in steps:
        assert [line["local_steps"] for line in lines] == [1, 3, 3]


# Strategy -> its settings, other flags, and how many gradients make an update,
# at least and at most.
OTHERS = {
    "backup_workers": (
        [":backup_workers=1:on_drop=retry", "--straggler=2:0.05"],
        # One where no more than one worker is left.
        (1, 2),
    ),
    "downpour": ([":n_fetch=2:n_push=3", "--optimizer=sgd"], (1, 1)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", OTHERS)
def test_updates_are_made_of_as_many_gradients_as_the_method_says(
    strategy, data_dir, tmp_path
):
    (settings, *flags), (least, most) = OTHERS[strategy]
    summary, steps = train(
        tmp_path, data_dir, 1, f"--strategy={strategy}{settings}", *flags
    )
    pushes = [3, 3, 1] if strategy == "downpour" else [1] * 7
    accepted = summary["gradients_accepted"]
    # No batch is left out: what is dropped is tried again.
    assert accepted == NUM_WORKERS * len(pushes)
    if strategy == "downpour":
        for lines in steps:
            local = [line["local_steps"] for line in lines if line["accepted"]]
            assert sum(local) == sum(pushes)
    if strategy != "backup_workers":
        assert summary["gradients_dropped"] == 0
    updates = summary["updates_applied"]
    assert accepted / most <= updates <= accepted / least
