"""A short run of chaos; `make chaos` makes long ones."""

import pytest

from tests import nightly
from tests.chaos import driver

pytestmark = pytest.mark.nightly

EVENTS = 4
# Strategy -> seed and seconds between snapshots. The schedules kill and stop
# both servers and workers; without snapshots, workers restore all.
RUNS = {"backup": (8, 1.0), "elastic": (3, 0.0), "table": (3, 1.0)}
SLOW_RUNS = {
    "async": (5, 0.0),
    "softsync": (4, 1.0),
    "diloco": (6, 1.0),
    "dynamic_table": (3, 1.0),
}


@pytest.mark.parametrize("strategy", nightly.also(RUNS, SLOW_RUNS))
def test_training_survives_random_deaths_and_stops(cluster, strategy):
    seed, every = {**RUNS, **SLOW_RUNS}[strategy]
    made = cluster(num_ps=2, num_workers=2)
    chaos = driver.Chaos(made, strategy, num_ps=2, snapshot_every=every)
    outcome = chaos.run(seed, EVENTS)
    assert outcome.events == EVENTS
    assert not any(task.runs() for task in made.tasks)
