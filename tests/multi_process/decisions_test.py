"""One decision for the cluster, with arithmetic models and real processes.

The weight is minus the sum of all that was applied: what it must be follows
from the values of the workers' batches, see `decision_tasks`.
"""

import pytest

pytestmark = pytest.mark.nightly

VALUES = (1.0, 3.0, 5.0)
ONES = (1.0, 1.0, 1.0)
ASSIGNED = "assigned by chief"
HALVED = ["halved 1", "halved 2"]
# A method, its workers' values, what is tried of it. Where updates take
# gradients of whoever comes first, all are the same. What all workers assign,
# and layers that are frozen, are rows of `tests.keras_programs`.
PROGRAMS = [
    ("async", VALUES, ["kept", ASSIGNED, "stops", "best"]),
    ("sync", VALUES, [*HALVED, ASSIGNED, "stops", "best"]),
    ("backup", ONES, ["kept", ASSIGNED, "stops", "best"]),
    ("softsync", ONES, ["kept", ASSIGNED, "stops", "best"]),
    ("averaging", ONES, ["halved 1", ASSIGNED, "stops", "best"]),
    ("diloco", ONES, ["halved 1", ASSIGNED, "stops", "best"]),
]


def iterations(seen, name):
    """Updates of the trial `name`: all, and by worker those accepted."""
    names = list(seen)
    before = names[: names.index(name)]
    total, counts = seen[name][1:3]
    if before:
        total -= seen[before[-1]][1]
        known = seen[before[-1]][2]
        counts = {worker: n - known[worker] for worker, n in counts.items()}
    return total, [counts[worker] for worker in sorted(counts)]


def check_gradient_by_gradient(seen, values):
    """`Async`: minus the sum of all."""
    assert seen["kept"][0] == -6 * sum(values)
    check_assigned(seen, 100 - 4 * sum(values))
    weight, _, _ = seen["stops"]
    _, accepted = iterations(seen, "stops")
    assert accepted[0] == 3
    assert weight == -sum(
        number * value for number, value in zip(accepted, values, strict=True)
    )


def check_sync(seen, values):
    """Minus the sum of the means, at the chief's rate."""
    mean = sum(values) / len(values)
    for name in HALVED:
        assert seen[name][0] == -3 * mean - 3 * mean / 2
    check_assigned(seen, 100 - 4 * mean)
    # Three steps of all, and one in which the others hear of it.
    others = values[1:]
    assert seen["stops"][0] == -3 * mean - sum(others) / len(others)


def check_updates(seen, values):
    """Each update moves the weight by one, however many it is made of."""
    assert seen["kept"][0] == -iterations(seen, "kept")[0]
    weight, after, _, between = seen[ASSIGNED]
    assert weight == 100 - (after - between)
    assert seen["stops"][0] == -iterations(seen, "stops")[0]


def check_local(seen, values, outer_rate):
    """Means of two local steps each, times the outer rate."""
    others = len(values) - 1
    # The chief's third step is at the old rate, its fourth at the new one;
    # the others hear of it when that round is over. Until then worker 1 trains
    # at the rate of 0.25 that it set after the first exchange.
    second = (1.5 + 2 * 0.25 + 2 * (others - 1)) / len(values)
    moved = 2 + second + 1
    assert seen["halved 1"][0] == pytest.approx(-outer_rate * moved)
    check_assigned(seen, 100 - outer_rate * 4)
    # The chief has made one step in its second round, the others two; each
    # weighs as much as it has seen of the data.
    second = (1 * 1 + 2 * 2 * others) / (1 + 2 * others)
    assert seen["stops"][0] == pytest.approx(-outer_rate * (2 + second))


def check_assigned(seen, expected):
    """The chief's assignment came between what was pushed before and after."""
    assert seen[ASSIGNED][0] == pytest.approx(expected)


CHECKS = {
    "async": check_gradient_by_gradient,
    "sync": check_sync,
    "backup": check_updates,
    "softsync": check_updates,
    "averaging": lambda seen, values: check_local(seen, values, 1.0),
    "diloco": lambda seen, values: check_local(seen, values, 0.5),
}


@pytest.mark.timeout(600)  # Many programs, one after the other.
def test_the_chief_decides_for_all(cluster):
    made = cluster(num_workers=3)
    made.start_servers()
    workers = made.start_workers("decision_tasks:run", programs=PROGRAMS)
    made.finish(timeout=540)

    reports = [worker.report() for worker in workers]
    for method, values, _ in PROGRAMS:
        CHECKS[method](reports[0][method], values)
        best, _ = reports[0][method]["best"]
        for report in reports:
            assert report[method]["best"][1] == best


def test_without_the_chief_each_worker_decides(cluster):
    made = cluster(num_workers=2)
    made.start_servers(lost_after=15.0)
    chief, other = made.start_workers("decision_tasks:decide_alone")
    other.expect("goes on")
    chief.kill()
    made.finish()

    seen = other.report()
    weight, _, counts = seen["each"]
    # Six batches of the chief, and two of the other, one at half the rate.
    assert weight == -6 - 1 - 0.5
    assert sorted(counts.values()) == [2, 6]
    assert seen["after the chief"] >= 5
