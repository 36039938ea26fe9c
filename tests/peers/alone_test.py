"""One process: plain Keras without compression, Strom's rule with it."""

import gc
import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.all_reduce import programs as all_reduce_programs
from tests.peers import programs
import tfdist
from tfdist import cluster
from tfdist.all_reduce import collectives
from tfdist.all_reduce import tail
from tfdist.all_reduce.consistency import Moment
from tfdist.peers import engine as engine_lib
from tfdist.peers import joining
from tfdist.peers import roster as roster_lib

TAU = 2.0**-4


def weights_after(model, steps):
    """The weights after each step with the gradients of worker 0."""
    x, y = (np.float32(factor)[None] for factor in programs._factors(0))
    found = []
    for _ in range(steps):
        model.train_on_batch(x, y)
        found.append(model.get_weights()[0].ravel())
    return found


@pytest.mark.nightly
def test_without_compression_it_is_keras_to_the_bit():
    plain, *others = (
        weights_after(
            programs.model_of(
                strategy, lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01)
            ),
            5,
        )
        for strategy in (
            tf.distribute.get_strategy(),
            tfdist.PeerToPeerStrategy(),
            tfdist.GossipStrategy(),
        )
    )
    for found in others:
        np.testing.assert_array_equal(found, plain)


@pytest.mark.nightly
def test_with_a_threshold_it_is_strom_s_rule():
    strategy = tfdist.PeerToPeerStrategy(tfdist.compression.Threshold(TAU))
    model = programs.model_of(
        strategy, lambda: keras.optimizers.SGD(programs.RATE, momentum=0.5)
    )
    found = weights_after(model, 4)
    model.optimizer.learning_rate = programs.RATE / 2
    found += weights_after(model, 4)
    # All numbers are exact in float32.
    gradient = programs.gradient(0).ravel()
    velocity, w, residual = (np.zeros(gradient.size) for _ in range(3))
    expected = []
    for step in range(8):
        rate = programs.RATE / (1 if step < 4 else 2)
        velocity = 0.5 * velocity - rate * gradient
        # The rate is in the update, and not in what is kept back.
        total = residual - velocity / rate
        decoded = TAU * (1.0 * (total > TAU) - (total < -TAU))
        residual = total - decoded
        w = w - rate * decoded
        expected.append(w)
    np.testing.assert_array_equal(found, expected)
    assert programs.residual(strategy) == residual.tolist()


def test_a_step_at_rate_zero_is_sent_whole_and_leaves_the_residual():
    rates = [0.01, 0.0, 0.01]
    strategy = tfdist.PeerToPeerStrategy("top_k(ratio=0.5,dense_below=0)")
    with strategy.scope():
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
            [0, 1], rates
        )
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
        variable = keras.Variable([0.0, 0.0])
    gradient = np.array([1.0, 0.9])
    velocity, w, residual = np.zeros([3, 2])
    for rate in rates:
        strategy.run(
            optimizer.apply, ([tf.constant(gradient, "float32")], [variable])
        )
        velocity = 0.9 * velocity - rate * gradient
        if rate:
            total = residual - velocity / rate
            # The larger element goes, the other one stays.
            sent = np.where(total == total.max(), total, 0.0)
            w, residual = w - rate * sent, total - sent
        else:
            w = w + velocity
        np.testing.assert_allclose(variable.value, w, rtol=1e-5)
    assert w[1] == pytest.approx(-0.0081 - 0.02529)


@pytest.mark.parametrize("is_chief", [True, False])
def test_only_the_chief_takes_up_accumulated_gradients(is_chief):
    strategy = tfdist.PeerToPeerStrategy()
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
        variable = keras.Variable([0.5])

    def found():
        (accumulator,) = optimizer._accumulated_gradients
        return [float(x) for x in (variable[0], accumulator[0])]

    def step():
        strategy.run(optimizer.apply, ([tf.ones([1])], [variable]))

    for _ in range(5):
        step()
    assert found() == [-0.5, 2.0]
    saved = strategy.state.read()
    step()
    step()
    assert found() == [-1.5, 1.0]
    strategy._engine.is_chief = is_chief
    strategy.state.restore(saved)
    assert found() == [-0.5, 2.0 if is_chief else 0.0]
    assert optimizer.variables[0] == (5 if is_chief else 3)


def test_nobody_waits_for_updates_of_a_freed_optimizer_and_they_count():
    strategy = tfdist.PeerToPeerStrategy()
    engine = strategy._engine

    kept = all_reduce_programs.one_step(strategy)
    first = engine.channels[0].name
    # As if others were there.
    engine.channels[0]._own.assign([8, 0])
    assert engine._lacks(0, {first: 8})
    del kept
    all_reduce_programs.one_step(strategy)
    gc.collect()
    assert [one.name for one in engine.channels] != [first]
    assert len(engine.channels) == 1
    assert not engine._lacks(0, {first: 8})
    # One that is yet to be made here.
    assert engine._lacks(0, {first: 8, "lane2/0": 1})
    assert strategy.update_counts()["sent"] == 8


def test_the_argument_is_a_codec_or_its_text():
    codec = tfdist.compression.Threshold(0.5)
    assert tfdist.PeerToPeerStrategy(codec).compression is codec
    text = "threshold(tau=0.5)"
    assert tfdist.PeerToPeerStrategy(text).compression == codec
    with pytest.raises(TypeError, match="`compression` must be"):
        tfdist.PeerToPeerStrategy(0.5)
    with pytest.raises(ValueError, match="compression"):
        tfdist.PeerToPeerStrategy("zip")


@pytest.mark.parametrize("name", ["warmup_peers", "warmup_updates"])
def test_numbers_of_the_warm_up_are_counts(name):
    with pytest.raises(ValueError, match=name):
        tfdist.PeerToPeerStrategy(**{name: 0})


def test_more_workers_than_can_all_send_to_each_other_are_refused(monkeypatch):
    addresses = [f"localhost:{port}" for port in range(1, 18)]
    config = {
        "cluster": {"worker": addresses},
        "task": {"type": "worker", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="at most 16 workers.*17 workers"):
        tfdist.PeerToPeerStrategy()


class Meetings(collectives.NoCollectives):
    """Counts meetings, at which this worker is alone."""

    number = 1

    def gather(self, row, name):
        self.number += 1
        return super().gather(row, name)

    def post(self, **said):
        pass

    def flush(self, receive, is_flushed):
        pass

    def finish(self, sent, receive, lacks, seconds=None):
        pass


class FirstWorkers(Meetings):
    """Those that have met when they are asked for the second time."""

    number = 0
    asked = 0

    def status_of(self, worker):
        self.asked += 1
        return {"done": int(self.asked > 1), "joins": False}


@pytest.mark.parametrize("name", ["PeerToPeerStrategy", "GossipStrategy"])
@pytest.mark.parametrize("comes_later", [True, False])
def test_who_joins_in_fit_meets_nobody_in_a_barrier_before(
    name, comes_later, monkeypatch
):
    """It waits there until the first workers have met."""
    monkeypatch.setattr(joining, "_POLL_SECONDS", 0.001)
    strategy = getattr(tfdist, name)()
    engine = strategy._engine
    met = FirstWorkers()
    met.asked = 0 if comes_later else 1
    engine.collectives = engine.consistency._collectives = met
    engine.roster = types.SimpleNamespace(
        worker_id=2,
        others=[1],
        live=[1],
        late=set(),
        comes_later=comes_later,
        given_up_by=None,
    )
    engine.admission = types.SimpleNamespace(look=lambda: None)
    engine._mean = types.SimpleNamespace(take=lambda vectors: None)
    strategy.barrier()
    assert met.number == 0
    assert met.asked > 1


def test_others_may_join_the_first_fit_after_a_barrier():
    strategy = tfdist.PeerToPeerStrategy()
    model = programs.model_of(strategy)
    engine = strategy._engine
    met, posted = Meetings(), {}
    met.post = lambda **said: posted.update(said)
    engine.collectives = engine.consistency._collectives = met
    engine.roster = types.SimpleNamespace(
        others=[1], given_up_by=None, late=set(), live=[1], worker_id=0
    )
    engine.admission = types.SimpleNamespace(look=lambda: None)
    for closed in (False, True):
        strategy.barrier()
        assert posted["closed"] == closed
        assert posted["updates"] == 3 * closed
        engine.adopt_model(Moment.FIT, model)
        engine.journal.set_updates(3)


@pytest.mark.parametrize("name", ["PeerToPeerStrategy", "GossipStrategy"])
def test_a_call_of_fit_that_was_stopped_leaves_the_one_around_it(name):
    strategy = getattr(tfdist, name)()
    model = programs.model_of(strategy)
    engine = strategy._engine
    engine.collectives = engine.consistency._collectives = Meetings()
    engine.roster = types.SimpleNamespace(
        others=[1], given_up_by=None, late=set()
    )
    engine.admission = types.SimpleNamespace(look=lambda: None)
    engine._look = lambda: None
    for moment, told in (
        (Moment.FIT, tail.TRAINS),
        (Moment.FIT, tail.TRAINS),
        (None, tail.STOPS),
        (Moment.AFTER_FIT, tail.TRAINS),
        (None, tail.STOPS),
    ):
        if moment is None:
            engine.told.assign(engine.fit_number)
        else:
            engine.adopt_model(moment, model)
        assert engine.read_told()[1] == told


@pytest.mark.parametrize("name", ["PeerToPeerStrategy", "GossipStrategy"])
def test_who_has_joined_is_not_stopped_early_in_later_calls_of_fit(name):
    strategy = getattr(tfdist, name)()
    model = programs.model_of(strategy)
    weights_after(model, 1)
    engine = strategy._engine
    stopped = []
    (channel,) = engine.channels
    channel.transport = types.SimpleNamespace(
        stop=lambda number, workers: stopped.append(set(workers)),
        check_threads=lambda: None,
    )
    engine.collectives = engine.consistency._collectives = Meetings()
    engine.admission = types.SimpleNamespace(look=lambda: None)
    addresses = [f"localhost:{port}" for port in range(1, 4)]
    config = cluster.ClusterConfig({"worker": addresses}, "worker", 0)
    engine.roster = roster_lib.Roster(config, "test")
    for joins in (True, False):
        engine.adopt_model(Moment.FIT, model)
        if joins:
            engine.roster.admit(1, 5)
            # A callback trains another model in between.
            engine.adopt_model(Moment.FIT, model)
            engine.adopt_model(Moment.AFTER_FIT, model)
        engine._is_over = True
        engine.stop_joiners()
    assert stopped == [{1}, set()]


@pytest.mark.nightly
def test_weights_that_code_sets_are_known_however_it_sets_them(tmp_path):
    strategy = tfdist.PeerToPeerStrategy()
    model = programs.model_of(strategy)
    weights_after(model, 1)
    (weights,) = model.trainable_variables
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    halve = tf.function(lambda: weights.assign(0.5 * weights))
    check = strategy._engine.check_of_epochs
    for set_weights in (
        lambda: weights.assign(weights + 1.0),
        halve,
        halve,  # This time it is not traced.
        lambda: checkpoint.read(path),
    ):
        check.begin_all()
        weights_after(model, 1)
        assert not check.has_written
        set_weights()
        assert check.has_written
    # As other workers do, whose values it has.
    x, y = (np.float32(factor)[None] for factor in programs._factors(0))
    model.evaluate(x, y, verbose=0)
    check.begin_all()
    with strategy._engine.applying():
        halve_again = tf.function(lambda: weights.assign(0.5 * weights))
        halve_again()
    assert not check.has_written


def _several():
    pick = keras.optimizers.OptimizerMap(keras.optimizers.SGD())
    return keras.optimizers.MultiOptimizer(pick)


# The steps of most of them would undo other workers' updates.
REFUSED = {
    "Ftrl": keras.optimizers.Ftrl,
    "ScheduleFreeAdamW": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.ScheduleFreeAdamW()
    ),
    "use_ema": lambda: keras.optimizers.SGD(use_ema=True),
    "MultiOptimizer": lambda: keras.optimizers.LossScaleOptimizer(_several()),
    "overwrite_with_gradient": keras.optimizers.SGD,
}


@pytest.mark.parametrize("named", REFUSED)
def test_steps_that_others_cannot_follow_are_refused(named):
    strategy = tfdist.PeerToPeerStrategy()
    with strategy.scope():
        optimizer = REFUSED[named]()
        variable = keras.Variable([1.0])
    variable.overwrite_with_gradient = named == "overwrite_with_gradient"
    with pytest.raises(NotImplementedError, match=f"PeerToPeer.*{named}"):
        strategy.run(optimizer.apply, ([tf.ones([1])], [variable]))


def test_what_comes_for_lanes_of_other_steps_is_taken_once_a_second(
    monkeypatch,
):
    clock, receipts = [10.0], []
    monkeypatch.setattr(
        engine_lib, "time", types.SimpleNamespace(monotonic=lambda: clock[0])
    )
    lanes = [types.SimpleNamespace(receive=lambda: receipts.append(clock[0]))]
    monkeypatch.setattr(engine_lib.PeerEngine, "lanes", lanes)
    one = object.__new__(engine_lib.PeerEngine)
    one._next_receipt = 0.0
    # It is in the steps of the only one.
    one._receive_beside()
    assert not receipts
    lanes *= 2
    for passed in 1.0, 0.5, 0.4, 0.1:
        clock[0] += passed
        one._receive_beside()
    assert receipts == [11.0, 11.0, 12.0, 12.0]


@pytest.mark.parametrize(
    "strategy",
    nightly.also([tfdist.PeerToPeerStrategy], [tfdist.GossipStrategy]),
)
def test_the_rate_that_follows_the_chiefs_is_the_one_that_is_used(
    monkeypatch, strategy
):
    """Of an optimizer of the user's own that of the one that it holds."""
    strategy, found = strategy(), []
    engine = strategy._engine
    make_channel = engine.make_channel

    def make(name, group, rate):
        found.append(rate)
        return make_channel(name, group, rate)

    monkeypatch.setattr(engine, "make_channel", make)
    with strategy.scope():
        fast = keras.optimizers.SGD(0.5)
        model = all_reduce_programs.linear(all_reduce_programs.Wrapper(fast))
    model.fit(all_reduce_programs.batches([1.0]), verbose=0)
    assert found == [fast.learning_rate.value]
