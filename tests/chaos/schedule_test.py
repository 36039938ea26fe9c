import pytest

from tests.chaos import schedule
from tests.chaos import trained_alone
from tests.chaos import without_servers

SEEDS = range(20)


def events_of(seed, num_ps=2, num_workers=3):
    return schedule.make(seed, 200, num_ps=num_ps, num_workers=num_workers)


def test_a_seed_says_all():
    assert events_of("1 async") == events_of("1 async")
    assert events_of("1 async") != events_of("2 async")


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_happens_to_what_is_away_and_one_worker_never_is(seed):
    bounds = {schedule.KILL: (0.0, 3.0), schedule.STOP: (1.0, 15.0)}
    back = {}
    before = 0.0
    for event in events_of(seed):
        least, most = bounds[event.kind]
        assert least <= event.seconds <= most
        assert event.time >= before
        before = event.time
        for target in event.targets:
            assert back.get(target, 0.0) <= event.time
            back[target] = event.time + event.seconds
        away = [t for t, at in back.items() if at > event.time]
        assert len(set(event.targets)) == len(event.targets)
        assert sum(job == "worker" for job, _ in event.targets) <= 1
        if event.targets[0][0] == "worker":
            assert sum(job == "worker" for job, _ in away) <= 2


def test_whatever_can_happen_does():
    seen = {
        (event.kind, event.targets)
        for seed in SEEDS
        for event in events_of(seed)
    }
    processes = [("ps", 0), ("ps", 1), *(("worker", k) for k in range(3))]
    targets = [(process,) for process in processes]
    targets.append((("ps", 0), ("ps", 1)))
    assert seen == {
        (kind, target)
        for kind in (schedule.KILL, schedule.STOP)
        for target in targets
    }


def test_one_server_and_two_workers_are_enough():
    for event in events_of(0, num_ps=1, num_workers=2):
        assert set(event.targets) <= {("ps", 0), ("worker", 0), ("worker", 1)}


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_alone_have_a_checkpoint_before_each_event(seed):
    events = without_servers.events_of(seed, "bmuf", 5, num_workers=3)
    assert events == without_servers.events_of(seed, "bmuf", 5, num_workers=3)
    epochs = [epoch for epoch, *_ in events]
    assert epochs == sorted(set(epochs))
    assert set(epochs) <= set(range(1, trained_alone.EPOCHS))
    assert {worker for _, _, worker, _ in events} <= {0, 1, 2}
