"""A real cluster and the simulator come to the same parameters.

Real processes train; what their monitors have written is replayed, here,
without them. The simulator has to be told nothing but the order in which
gradients came and what each was computed from.
"""

import dataclasses

import keras
import numpy as np
import pytest

from tests.multi_process import agreement_tasks
from tfdist import simulation
from tfdist.simulation import placement

pytestmark = pytest.mark.nightly

WORKERS = 3
TOLERANCE = 1e-5
MOMENTUM = ["SGD", {"learning_rate": 0.03, "momentum": 0.8}]


@dataclasses.dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        strategy: name of it in `tfdist`.
        method: the same for the simulator.
        other: another method.
        num_ps: number of servers.
        arguments: of the strategy.
        model: arguments of `agreement_tasks.build`.
    """

    strategy: str
    method: str
    other: str
    num_ps: int = 2
    arguments: dict = dataclasses.field(default_factory=dict)
    model: dict = dataclasses.field(
        default_factory=lambda: {"optimizer": MOMENTUM}
    )


# The simulator replays other methods in `tests.simulation.trace_replay_test`.
CASES = {
    "softsync": Case(
        "SoftSyncStrategy",
        "softsync:s=2",
        "async",
        arguments={"s": 2},
        model={"optimizer": ["Adam", {"learning_rate": 0.01}]},
    ),
    # On one server: several apply gradients in orders of their own. There
    # the statistics of a batch come in the order of updates, too.
    "async": Case(
        "AsyncStrategy",
        "async",
        "dc_asgd:lambda_0=2.0",
        num_ps=1,
        model={"optimizer": MOMENTUM, "normalized": True},
    ),
    "backup workers": Case(
        "BackupWorkersStrategy",
        "backup_workers:backup_workers=1",
        "sync",
        arguments={"backup_workers": 1},
    ),
}


def train(cluster, case):
    """Trains on a real cluster.

    Returns:
        What each worker reports, and the `Trace`.
    """
    made = cluster(num_ps=case.num_ps, num_workers=WORKERS)
    made.start_servers()
    workers = made.start_workers(
        "agreement_tasks:train",
        strategy=case.strategy,
        arguments=case.arguments,
        **case.model,
    )
    # As far as a bound of three steps lets the others go.
    made.let_the_last_be_late(workers)
    made.finish()
    trace = simulation.read_trace(made.directory / "trace")
    return [worker.report() for worker in workers], trace


def replay(case, trace, method=None):
    """The `History` of the same training in the simulator."""
    return simulation.replay(
        lambda: agreement_tasks.build(**case.model),
        (agreement_tasks.X, agreement_tasks.Y),
        method or case.method,
        trace,
        batch_size=agreement_tasks.BATCH,
        seed=agreement_tasks.SEED,
        chunk=2,
    )


def difference(weights, expected):
    """The largest difference of weights, relative to their sizes."""
    return max(
        np.abs(a - b).max() / np.abs(b).max()
        for a, b in zip(weights, expected, strict=True)
    )


def initial_weights(case):
    """The weights that training begins with."""
    keras.utils.set_random_seed(agreement_tasks.SEED)
    return agreement_tasks.build(**case.model).get_weights()


def servers_of(case):
    """The servers that the simulator takes parameters to be on."""
    placed = placement.Placement(case.num_ps)
    with placed.watching():
        model = agreement_tasks.build(**case.model)
    servers = placed.of(model)
    assert set(servers) == set(range(case.num_ps))
    return servers


def changed(trace, change):
    """A trace in which each step is `change(worker, step)`."""
    return dataclasses.replace(
        trace,
        workers=tuple(
            tuple(change(worker, step) for step in steps)
            for worker, steps in enumerate(trace.workers)
        ),
    )


def with_two_swapped(trace):
    """Two gradients arrive in each other's place.

    They are of different workers and updates. Where a ledger decides, they
    are among the first that arrive, as of these none has to wait: two of
    which one waits may be decided over in the same order again.
    """

    def update_of(place):
        worker, number = order[place]
        step = trace.workers[worker][number]
        return step.pulled + step.staleness if step.accepted else None

    order = trace.order()
    place = next(
        k
        for k in range(0 if trace.is_decided else 30, len(order) - 1)
        if order[k][0] != order[k + 1][0] and update_of(k) != update_of(k + 1)
    )
    workers = [list(steps) for steps in trace.workers]
    for (worker, number), move in ((order[place], 1), (order[place + 1], -1)):
        step = workers[worker][number]
        name = "arrival" if trace.is_decided else "staleness"
        workers[worker][number] = dataclasses.replace(
            step, **{name: getattr(step, name) + move}
        )
    return dataclasses.replace(trace, workers=tuple(map(tuple, workers)))


def never_late(worker, step):
    """A step that was computed from the newest parameters."""
    del worker
    newest = step.pulled + step.staleness
    return dataclasses.replace(
        step,
        pulled=newest,
        pulled_by_server=(newest,) * len(step.pulled_by_server),
        staleness=0,
    )


def is_other(case, trace, expected, method=None):
    """Whether other parameters come out, or it is refused."""
    try:
        weights = replay(case, trace, method).model.get_weights()
    except ValueError:
        return True
    return difference(weights, expected) > 10 * TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_simulator_comes_to_the_parameters_of_a_real_cluster(cluster, name):
    case = CASES[name]
    reports, trace = train(cluster, case)
    steps = [step for one in trace.workers for step in one]
    assert [len(one) for one in trace.workers] == [22, 20, 20]
    if name == "backup workers":
        assert not all(step.accepted for step in steps)
    else:
        assert max(step.staleness for step in steps) > 1
    expected = [np.array(w, "float32") for w in reports[0]["weights"]]
    for report in reports:
        assert report["weights"] == reports[0]["weights"]

    history = replay(case, trace)
    weights = history.model.get_weights()
    assert difference(weights, expected) < TOLERANCE
    assert history.num_servers == case.num_ps
    assert servers_of(case) == reports[0]["servers"]
    for first, last in zip(initial_weights(case), expected, strict=True):
        assert np.abs(first - last).max() > 0.01 * np.abs(last).max()

    # Whose gradient came when, and by which method, is what makes them so.
    assert is_other(case, with_two_swapped(trace), expected)
    assert is_other(case, trace, expected, case.other)
    first, *others = trace.workers
    exchanged = dataclasses.replace(trace, workers=(first, *others[::-1]))
    weights = replay(case, exchanged).model.get_weights()
    assert difference(weights, expected) > 100 * TOLERANCE
    if name != "backup workers":
        fresh = replay(case, changed(trace, never_late)).model.get_weights()
        assert difference(fresh, expected) > 100 * TOLERANCE
