"""A short run of chaos; `make chaos` makes long ones."""

import pytest

from tests.chaos import driver

EVENTS = 6
# Schedules that kill and stop both servers and workers.
SEEDS = {"async": 9, "backup": 8, "elastic": 5}


@pytest.mark.parametrize("strategy", SEEDS)
def test_training_survives_random_deaths_and_stops(cluster, strategy):
    made = cluster(num_ps=2, num_workers=2)
    chaos = driver.Chaos(made, strategy, num_ps=2)
    outcome = chaos.run(SEEDS[strategy], EVENTS)
    assert outcome.events == EVENTS
    assert outcome.recoveries
    assert not any(task.runs() for task in made.tasks)
