"""A `fit` that ends by an exception has ended, for the others, too.

Each of two workers catches it and calls `fit` again, as one does in a
notebook. Nobody waits for what is over: that took ten minutes each time.
"""

import pytest

from tests.multi_process import interrupted_fit_tasks

pytestmark = pytest.mark.nightly

METHODS = ["sync", "averaging", "async"]
# Steps of each worker.
STEPS = {
    "interrupted_twice": 4,
    "ends_at_once": 3,
}


def test_the_next_call_begins_at_once_and_all_steps_count(cluster):
    made = cluster(num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "interrupted_fit_tasks:run", methods=METHODS, programs=list(STEPS)
    )
    made.finish()
    values = interrupted_fit_tasks.VALUES
    for method in METHODS:
        seen = workers[0].report()[method]
        update = sum(values) if method == "async" else sum(values) / len(values)
        for name, steps in STEPS.items():
            assert seen[name][0] == -steps * update, (method, name)
    for worker in workers:
        assert "Gave up" not in worker.output()


def test_the_end_of_a_call_goes_on_without_who_was_interrupted(cluster):
    """And the next one is of all, whatever waited at the end of the first."""
    made = cluster(num_workers=2)
    made.start_servers()
    first, second = interrupted_fit_tasks.VALUES
    # The one that was interrupted has made one step in its first call.
    expected = {
        "interrupted_with_averages": 6 * first + 3 * second,
        "compiled_without_averages_since": 6 * first + 3 * second,
        "interrupted_beside_figures": 6 * first + 3 * second,
        "chief_interrupted_beside_figures": 3 * first + 6 * second,
    }
    workers = made.start_workers(
        "interrupted_fit_tasks:run",
        methods=["async"],
        programs=list(expected),
    )
    made.finish()
    for worker in workers:
        seen = worker.report()["async"]
        assert {
            name: -weight for name, (weight, *_) in seen.items()
        } == expected
        assert "Gave up" not in worker.output()
