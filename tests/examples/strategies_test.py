"""The example with each strategy, on a server and three workers.

Tasks are forked from a process that has imported TensorFlow, or else the
imports of 20 tasks would take most of the time.
"""

import json
import time

import pytest

from tests.multi_process.real_cluster import TaskUnderTest
from tests.multi_process.real_cluster import Zygote
from tfdist import datasets
from tfdist.cli import local_cluster

SECONDS = 90.0
NUM_WORKERS = 3
# ceil((1437 - 144) / 64) batches, see train_image_classifier_test.py.
BATCH_SIZE, BATCHES = 64, 21
FLAGS = {
    "async": ["--correction=gap_aware", "--backups=worker"],
    "backup_workers": [
        "--backup_workers=1",
        "--on_drop=retry",
        "--straggler=2:0.05",
    ],
    "softsync": ["--softsync_s=3"],
    "bounded_staleness": ["--max_staleness=1", "--worker_timeout=20"],
    "dana": ["--dana_variant=dc", "--optimizer=sgd"],
}
SETTINGS = {
    "async": {"correction": "gap_aware", "backups": "worker"},
    "backup_workers": {
        "backup_workers": 1,
        "on_drop": "retry",
        "worker_timeout": 10.0,
    },
    "softsync": {"softsync_s": 3, "correction": "none"},
    "bounded_staleness": {
        "max_staleness": 1,
        "correction": "none",
        "worker_timeout": 20.0,
    },
    "dana": {
        "dana_variant": "dc",
        "dana_momentum": 0.9,
        "lambda_0": None,
        "backups": "server",
    },
}


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as process:
        yield process


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensorflow_datasets")
    datasets.load("digits", data_dir=path)
    return path


def train(zygote, directory, flags):
    """Runs the example to its end; returns all that its tasks printed."""
    jobs = {"ps": 1, "worker": NUM_WORKERS}
    with local_cluster.LocalCluster(jobs) as cluster:
        tasks = [
            TaskUnderTest(
                zygote,
                f"{task.job}-{task.index}",
                directory,
                target="tests.examples.example_task:run",
                arguments={
                    "script": "train_image_classifier.py",
                    "flags": flags,
                },
                environ={"TF_CONFIG": task.tf_config},
            )
            for task in cluster.tasks
        ]
        try:
            end = time.monotonic() + SECONDS
            for task in tasks:
                status = task.wait(max(0.0, end - time.monotonic()))
                assert status == 0, task.output()
        finally:
            for task in tasks:
                if task.runs():
                    task.kill()
    return "".join(task.output() for task in tasks)


@pytest.fixture(scope="module", params=FLAGS)
def trained(request, zygote, data_dir, tmp_path_factory):
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
    output = train(zygote, directory, flags)
    path = directory / "summary.json"
    assert path.exists(), output
    steps = [
        [json.loads(line) for line in file.open()]
        for file in sorted(directory.glob("steps-worker-*.jsonl"))
    ]
    return request.param, json.loads(path.read_text()), steps


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
    assert summary["gradients_accepted"] == BATCHES
    for worker, lines in zip(summary["workers"], steps, strict=True):
        assert worker["gradients_pushed"] == worker["steps"] == len(lines)
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
    if strategy != "backup_workers":
        assert summary["gradients_dropped"] == 0
    if strategy in ("async", "bounded_staleness", "dana"):
        assert updates == accepted
    elif strategy == "softsync":
        # 21 gradients by 3.
        assert updates == 7
    else:
        # Two gradients each, one where no more than one worker is left.
        assert accepted / 2 <= updates <= accepted


def test_bounded_training_is_as_stale_as_allowed(trained):
    strategy, summary, _ = trained
    if strategy == "bounded_staleness":
        # While a worker makes its step, each of the two others can come from
        # one step behind it to one ahead of what it has then finished.
        assert summary["staleness"]["max"] <= 2 * (1 + 1 + 1)
