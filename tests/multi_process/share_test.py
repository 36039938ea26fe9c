"""What each worker trains on in `fit` is exact, whatever the data is."""

import pytest

from tests.multi_process import share_tasks
from tests.multi_process.real_cluster import ClusterUnderTest

pytestmark = pytest.mark.nightly

SECONDS = 240.0
# What the method has no part in is tried with one.
OF_ASYNC = ("PyDataset", "threads", "threads and steps", "arrays")
# Methods have no part in what is shared out. They differ in who waits, and in
# whether a batch comes again. Data under all methods: `tests.keras_programs`.
CASES = [("Async", 2), ("Async", 3), ("Sync", 3), ("backup workers", 2)]


def shares(name, workers):
    """Returns what each worker is to train on, by hand."""
    steps = share_tasks.STEPS
    if name == "first file longer":
        # Half of them in the first epoch, and the first worker goes on.
        half = [*range(1, steps // 2 + 1)]
        return [
            [*range(1, steps + 1)] if k == 0 else half for k in range(workers)
        ]
    if "file" in name:
        # One has the numbers, over again in each of two epochs.
        full = 0 if name == "first file" else workers - 1
        numbers = [*range(1, steps + 1)] * 2
        return [numbers if k == full else [] for k in range(workers)]
    epochs = 2 if name == "threads" else 1
    # Batch k, which is k + 1, to worker k mod N.
    return [
        [*range(k + 1, steps * workers + 1, workers)] * epochs
        for k in range(workers)
    ]


def rounds(sequences):
    """Returns the means of what workers have, one after the other."""
    longest = max(map(len, sequences))
    taken = [[s[k] for s in sequences if k < len(s)] for k in range(longest)]
    return [sum(one) / len(one) for one in taken]


def change(method, sequences):
    """Returns what becomes of the weight.

    Args:
        method: of training.
        sequences: of gradients, by worker.
    """
    if method == "Sync":
        # The mean of the gradients of those that have any.
        return -sum(rounds(sequences))
    # Each update takes one gradient: the backup workers and one are as many as
    # workers; dropped ones are computed again.
    return -sum(map(sum, sequences))


@pytest.mark.parametrize(("method", "workers"), CASES)
def test_every_batch_is_trained_on_once(zygote, tmp_path, method, workers):
    with ClusterUnderTest(zygote, tmp_path, num_workers=workers) as cluster:
        cluster.start_servers()
        names = [
            name
            for name in share_tasks.PROGRAMS
            if method == "Async" or name not in OF_ASYNC
        ]
        if workers == 2:
            # The chief, which has the first values, begins without data.
            names.remove("last file")
            names.insert(0, "last file")
        tasks = cluster.start_workers(
            "share_tasks:train", method=method, workers=workers, programs=names
        )
        cluster.finish(timeout=SECONDS)
        reports = [task.report()["results"] for task in tasks]
        outputs = [task.output() for task in tasks]
    weight = 0.0
    for name in names:
        expected = shares(name, workers)
        seen = [report[name]["seen"] for report in reports]
        if method == "backup workers":
            # Some have been computed again and again.
            seen = [sorted({*one}) for one in seen]
            assert seen == [sorted({*one}) for one in expected], name
        else:
            assert seen == expected, name
        weight += change(method, expected)
        for report in reports:
            assert report[name]["weight"] == pytest.approx(weight, rel=1e-5), (
                name
            )
            # Of an input of one.
            assert report[name]["loss"] == report[name]["weight"], name
    for worker, output in enumerate(outputs):
        # In both epochs where the file is empty; in the second one of the
        # generator, and of the shorter files.
        files = (
            not shares(n, workers)[worker] for n in ("first file", "last file")
        )
        expected = 2 * sum(files) + 1 + (worker > 0)
        assert output.count("no data for this worker") == expected
