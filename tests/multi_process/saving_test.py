"""A program that saves on every worker leaves the chief's files, whole."""

import pytest

from tests.multi_process import saved_files


@pytest.mark.smoke
def test_what_every_worker_saves_is_the_chief_s_and_whole(cluster):
    made = cluster(num_ps=1, num_workers=3)
    made.start_servers()
    workers = made.start_workers("saving_tasks:train_and_save")
    made.finish()
    found = saved_files.check(made.directory, workers[0].report())
    assert not any(found.values()), found
    for worker in workers:
        told = worker.output().count("is left to the chief")
        assert bool(told) == (worker is not workers[0]), worker.output()
