"""Real courses that the simulator's own clusters do not have."""

import keras
import numpy as np
import pytest

from tests import nightly
from tfdist import simulation
from tfdist.runtime.exchange.journal import ExchangeRecord
from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import LogEntry
from tfdist.simulation.data import Shares
from tfdist.simulation.methods import as_method
from tfdist.simulation.placement import Placement
from tfdist.simulation.recorded_schedule import RecordedSchedule


def step(arrival, pulled, staleness, by_server=None, accepted=True):
    return ExchangeRecord(
        time=float(arrival),
        version=0,
        pulled=pulled,
        arrival=arrival,
        staleness=staleness,
        accepted=accepted,
        compute_seconds=0.0,
        exchange_seconds=0.0,
        wait_seconds=0.0,
        bytes_sent=0,
        bytes_received=0,
        local_steps=1,
        nonfinite=False,
        pulled_by_server=by_server or (pulled,),
    )


def trace_of(*workers):
    files = [f"steps-worker-{w}.jsonl" for w in range(len(workers))]
    return simulation.Trace(tuple(map(tuple, workers)), tuple(files))


def course(method, *workers):
    """Plays it; returns the arrivals in the order of their updates."""
    trace = trace_of(*workers)
    shares = Shares(sum(map(len, workers)), 1, len(workers), dynamic=True)
    method = as_method(method).resolve(len(workers))
    played = RecordedSchedule(method, trace, shares, {0})
    in_flight = set()
    for action in played.run():
        if isinstance(action, Begin):
            in_flight.add(action.job.number)
            # So no more versions of the parameters are kept.
            assert len(in_flight) <= len(workers)
        elif isinstance(action, LogEntry) and action.job is not None:
            in_flight.remove(action.job.number)
    assert not in_flight
    return [
        action.job.number
        for action in played.run()
        if isinstance(action, LogEntry) and action.job is not None
    ]


def bounded(third_of_0, second_of_1, third_pulled=4):
    """Three workers, at most a step apart; worker 2 has a single step.

    Worker 0 waits with its third step, for both others.

    Args:
      third_of_0: Staleness of that step, which arrives before
      second_of_1: the other one, of which this is the staleness.
      third_pulled: What the third step is computed from.
    """
    return course(
        "bounded_staleness:max_staleness=1",
        [step(0, 0, 0), step(3, 1, 2), step(4, third_pulled, third_of_0)],
        [step(1, 0, 1), step(5, 2, second_of_1)],
        [step(2, 0, 2)],
    )


def test_who_has_finished_leaves_before_somebody_is_released():
    # Worker 2 has left: who waits for worker 1 alone goes before it.
    assert bounded(third_of_0=0, second_of_1=3) == [0, 1, 2, 3, 4, 5]


def test_who_has_finished_leaves_after_somebody_was_released():
    # It has not: worker 1 goes on at once, worker 0 when it has left.
    assert bounded(third_of_0=1, second_of_1=2) == [0, 1, 2, 3, 5, 4]


@pytest.mark.parametrize("late", [(0, 2), (1, 3), (2, 2)])
def test_when_somebody_leaves_does_not_explain_everything(late):
    with pytest.raises(ValueError, match=r"worker-[01].jsonl, worker [01], st"):
        bounded(*late)


def test_a_version_that_is_not_there_yet_is_refused():
    message = "worker 0, step 3: pulled .* at most 4. Received: 5"
    with pytest.raises(ValueError, match=message):
        bounded(third_of_0=0, second_of_1=3, third_pulled=5)


def test_the_last_to_wait_is_released_by_those_who_have_left():
    def end(accepted):
        return course(
            "sync",
            [step(0, 0, 0), step(2, 1, 0, accepted=accepted)],
            [step(1, 0, 0)],
        )

    assert end(accepted=True) == [0, 1, 2]
    with pytest.raises(ValueError, match="step 2: .*accepted=True and stalen"):
        end(accepted=False)


def test_who_waits_for_ever_is_named():
    # Worker 1 has a second step to come, of which worker 0 knows nothing.
    with pytest.raises(ValueError, match="worker 0, step 2, is not decided o"):
        course(
            "bounded_staleness:max_staleness=0",
            [step(0, 0, 0), step(2, 2, 0), step(3, 3, 0)],
            [step(1, 0, 1), step(4, 2, 2)],
        )


# Servers that were asked at different moments.

BATCH, RATE = 3, 0.1
_stream = np.random.default_rng(1)
X = _stream.normal(size=[4 * BATCH, 2]).astype("float32")
Y = _stream.normal(size=[4 * BATCH, 1]).astype("float32")


def linear_model():
    """A kernel, on the first of two servers, and a bias, on the other."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


@pytest.mark.parametrize(
    "method",
    nightly.also(["dc_asgd:lambda_0=2.0:variance_decay=none"], ["async"]),
)
def test_servers_give_parameters_of_different_versions(method):
    trace = trace_of(
        [step(0, 0, 0, (0, 0)), step(2, 1, 1, (1, 2))],
        [step(1, 0, 1, (0, 0)), step(3, 2, 1, (3, 2))],
    )
    history = simulation.replay(
        linear_model, (X, Y), method, trace, batch_size=BATCH, seed=2
    )
    keras.utils.set_random_seed(2)
    kernel, bias = (w.astype("float64") for w in linear_model().get_weights())
    strength = 0.0 if method == "async" else 2.0
    versions = [(kernel[:, 0], bias)]
    # Batches as workers 0 and 1 have them, in the order of arrivals.
    for batch, (old, other) in enumerate([(0, 0), (0, 0), (1, 2), (3, 2)]):
        rows = slice(batch * BATCH, (batch + 1) * BATCH)
        x, y = X[rows], Y[rows, 0]
        kernel, bias = versions[old][0], versions[other][1]
        error = 2 / BATCH * (x @ kernel + bias - y)
        gradients = x.T @ error, np.array([error.sum()])
        versions.append(
            tuple(
                now - RATE * (g + strength * g * g * (now - then))
                for now, then, g in zip(
                    versions[-1], (kernel, bias), gradients, strict=True
                )
            )
        )
    kernel, bias = history.model.get_weights()
    np.testing.assert_allclose(kernel[:, 0], versions[-1][0], rtol=1e-5)
    np.testing.assert_allclose(bias, versions[-1][1], rtol=1e-5)


def test_variables_are_placed_in_the_order_in_which_they_are_made():
    placement = Placement(2)
    with placement.watching():
        model = linear_model()
    assert placement.of(model) == [0, 1]

    # An optimizer that is there first has its counter on the first server.
    placement = Placement(2)
    with placement.watching():
        optimizer = keras.optimizers.Adam()
        model = linear_model()
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
    assert placement.of(model) == [1, 0]


def test_a_model_that_was_there_before_cannot_be_placed():
    model = linear_model()
    trace = trace_of([step(0, 0, 0, (0, 0)), step(1, 0, 1, (0, 1))])
    with pytest.raises(ValueError, match="`model_fn` must make the variables"):
        simulation.replay(
            lambda: model, (X, Y), "async", trace, batch_size=2 * BATCH
        )
