"""A real cluster whose first worker trains alone for a while."""

import pytest

pytestmark = pytest.mark.nightly

WARM_UP, WORKERS, VALUE = 12, 3, 2.0


@pytest.mark.parametrize(
    ("preset", "arguments", "steps_per_update", "worker_start"),
    [
        ("AsyncStrategy", {}, 1, "staggered"),
        (
            "DownpourStrategy",
            {"n_fetch": 4, "n_push": 4, "outer_optimizer": "sgd"},
            4,
            "together",
        ),
    ],
)
def test_the_first_worker_trains_alone(
    cluster, preset, arguments, steps_per_update, worker_start
):
    made = cluster(num_ps=1, num_workers=WORKERS)
    made.start_servers()
    workers = made.start_workers(
        "warm_start_tasks:train",
        preset=preset,
        arguments=arguments,
        warmup_worker_steps=WARM_UP,
        worker_start=worker_start,
        value=VALUE,
    )
    made.finish()
    first, *others = [worker.report() for worker in workers]
    alone = WARM_UP // steps_per_update
    assert not any(e["staleness"] for e in first["exchanges"][:alone])
    for number, other in enumerate(others, start=1):
        turns = number if worker_start == "staggered" else 1
        assert other["exchanges"][0]["pulled"] >= turns * alone
    # Nobody has been forgotten in the end.
    updates = 3 * alone * WORKERS
    assert [one["updates"] for one in (first, *others)] == [[updates]] * WORKERS
