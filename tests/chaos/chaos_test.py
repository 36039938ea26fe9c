"""A short run of chaos without snapshots.

`make chaos` makes long ones with snapshots, which are a stage of
`make nightly`, too.
"""

import pytest

from tests.chaos import driver

EVENTS = 4
# A schedule that kills and stops both servers and workers.
SEED = 3


@pytest.mark.nightly
def test_workers_restore_all_after_random_deaths_and_stops(cluster):
    made = cluster(num_ps=2, num_workers=2)
    chaos = driver.Chaos(made, "elastic", num_ps=2, snapshot_every=0.0)
    outcome = chaos.run(SEED, EVENTS)
    assert outcome.events == EVENTS
    assert not any(task.runs() for task in made.tasks)
