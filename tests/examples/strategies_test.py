"""The example with each strategy, on a server and three workers."""

import json
import pathlib

import pytest

from tests.multi_process import scripts
from tfdist import datasets

EXAMPLE = (
    pathlib.Path(__file__).parents[2] / "examples" / "train_image_classifier.py"
)
NUM_WORKERS = 3
# ceil((1437 - 144) / 64) batches, see train_image_classifier_test.py.
BATCH_SIZE, BATCHES = 64, 21
FLAGS = {
    "async": ["--correction=gap_aware", "--backups=worker"],
    "bounded_staleness": ["--max_staleness=1", "--worker_timeout=20"],
    "parameter_averaging": [
        "--period=3",
        "--warmup_steps=1",
        "--average_optimizer_state",
    ],
}
# Of 7 steps of each worker, those after which it exchanges: by its period and
# after the last.
LOCAL_STEPS = {
    "parameter_averaging": [1, 3, 3],
}
SETTINGS = {
    "async": {
        "correction": "gap_aware",
        "backups": "worker",
        "warmup_worker_steps": 0,
    },
    "bounded_staleness": {
        "max_staleness": 1,
        "correction": "none",
        "worker_timeout": 20.0,
    },
    "parameter_averaging": {
        "period": 3,
        "average_optimizer_state": True,
        "warmup_steps": 1,
        "communication": "parameter_server",
        "worker_timeout": 10.0,
    },
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensorflow_datasets")
    datasets.load("digits", data_dir=path)
    return path


def train(directory, flags, num_ps=1):
    """Runs the example to its end; returns all that its tasks printed."""
    jobs = {"ps": num_ps, "worker": NUM_WORKERS}
    return "".join(scripts.run(directory, EXAMPLE, flags, jobs).values())


@pytest.fixture(scope="module", params=FLAGS)
def trained(request, data_dir, tmp_path_factory):
    """The name of a strategy, its summary and the workers' steps."""
    directory = tmp_path_factory.mktemp(request.param)
    flags = [
        f"--strategy={request.param}",
        *FLAGS[request.param],
        f"--batch_size={BATCH_SIZE}",
        "--epochs=1",
        f"--data_dir={data_dir}",
        f"--output_dir={directory}",
    ]
    output = train(directory, flags)
    path = directory / "summary.json"
    assert path.exists(), output
    return request.param, json.loads(path.read_text()), read_steps(directory)


def read_steps(directory):
    """The records of each worker."""
    return [
        [json.loads(line) for line in file.open()]
        for file in sorted(directory.glob("steps-worker-*.jsonl"))
    ]


def test_the_chief_reports_what_became_of_each_gradient(trained):
    strategy, summary, steps = trained
    assert summary["strategy"] == strategy
    assert summary["strategy_flags"] == SETTINGS[strategy]
    assert summary["num_workers"] == len(summary["workers"]) == NUM_WORKERS
    for part in (summary, *summary["workers"]):
        assert part["gradients_pushed"] == (
            part["gradients_accepted"] + part["gradients_dropped"]
        )
        assert part["waited_seconds"] >= 0.0
    # No batch is left out: nobody died, and what is dropped is tried again.
    exchanges = NUM_WORKERS * len(LOCAL_STEPS.get(strategy, range(7)))
    assert summary["gradients_accepted"] == exchanges
    for worker, lines in zip(summary["workers"], steps, strict=True):
        assert worker["gradients_pushed"] == len(lines)
        assert worker["steps"] == sum(line["local_steps"] for line in lines)
        assert worker["gradients_accepted"] == sum(
            line["accepted"] for line in lines
        )
        assert worker["waited_seconds"] == pytest.approx(
            sum(line["wait_seconds"] for line in lines)
        )


def test_updates_are_made_of_as_many_gradients_as_the_method_says(trained):
    strategy, summary, _ = trained
    accepted = summary["gradients_accepted"]
    updates = summary["updates_applied"]
    assert summary["gradients_dropped"] == 0
    if strategy in ("async", "bounded_staleness"):
        assert updates == accepted
    else:
        # One gradient of each worker.
        assert updates == accepted / NUM_WORKERS


def test_bounded_training_is_as_stale_as_allowed(trained):
    strategy, summary, _ = trained
    if strategy == "bounded_staleness":
        # While a worker makes its step, each of the two others can come from
        # one step behind it to one ahead of what it has then finished.
        assert summary["staleness"]["max"] <= 2 * (1 + 1 + 1)


def test_workers_exchange_after_as_many_steps_as_the_period_says(trained):
    strategy, summary, steps = trained
    if strategy not in LOCAL_STEPS:
        return
    assert sum(worker["steps"] for worker in summary["workers"]) == BATCHES
    for lines in steps:
        assert [line["local_steps"] for line in lines] == LOCAL_STEPS[strategy]


def test_workers_without_servers_train_as_well(data_dir, tmp_path):
    flags = [
        "--strategy=parameter_averaging",
        "--period=3",
        "--communication=ring",
        f"--batch_size={BATCH_SIZE}",
        "--epochs=1",
        f"--data_dir={data_dir}",
        f"--output_dir={tmp_path}",
    ]
    train(tmp_path, flags, num_ps=0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["strategy_flags"]["communication"] == "ring"
    assert summary["num_ps"] == 0
    # After 3, 6 and 7 steps.
    assert summary["updates_applied"] == 3
    for lines in read_steps(tmp_path):
        assert [line["local_steps"] for line in lines] == [3, 3, 1]
