"""When groups exchange, what they do with it, and what never stops them."""

import contextlib
import json
import logging
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.codistillation.scripted_exchange import ScriptedExchange
from tests.codistillation.scripted_exchange import checkpoint
import tfdist
from tfdist.codistillation import Codistillation
from tfdist.codistillation import CodistillationLoss
from tfdist.codistillation import CodistillationMixin
from tfdist.codistillation import Codistilled
from tfdist.codistillation import Group
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation import UnusableCheckpointError
from tfdist.codistillation import callback as callback_lib
from tfdist.codistillation.weights import digest
from tfdist.codistillation.weights import snapshot

layers = keras.layers
STEPS = 12


def build(seed=1, units=3):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((2,)), layers.Dense(units)])


def codistilled(student, burn_in_steps=0):
    model = Codistilled(
        student,
        burn_in_steps=burn_in_steps,
        loss=CodistillationLoss("mean_squared_logits", from_logits=True),
    )
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def train(exchange, *, model=None, callbacks=(), group=0, **kwargs):
    """Trains for `STEPS` steps; returns the callback and the logs."""
    arguments = {"exchange_every": 5, "background": False, "verbose": 0}
    arguments.update(kwargs)
    callback = Codistillation(exchange, group=group, num_groups=2, **arguments)
    logs = fit(model or codistilled(build()), [*callbacks, callback])
    return callback, logs


def fit(model, callbacks):
    """Trains for `STEPS` steps; returns the history."""
    stream = np.random.default_rng(0)
    x = stream.standard_normal((STEPS * 2, 2)).astype("float32")
    y = stream.integers(0, 3, len(x))
    return model.fit(
        x, y, batch_size=2, shuffle=False, verbose=0, callbacks=callbacks
    ).history


def weights(seed=2):
    return snapshot(build(seed))


class Watch(keras.callbacks.Callback):
    """Notes after each step what has been added to the loss."""

    def __init__(self):
        super().__init__()
        self.totals = []

    def on_train_batch_end(self, batch, logs=None):
        del logs
        tracker = self.model._codistillation_tracker
        self.totals.append(float(tracker.total))

    @property
    def steps(self):
        """Steps, from 1, to whose loss something was added."""
        return [
            step
            for step, moved in enumerate(np.diff([0.0, *self.totals]), 1)
            if moved > 0
        ]


def test_exchanges_begin_with_the_end_of_the_burn_in():
    exchange = ScriptedExchange()
    train(exchange, model=codistilled(build(), 3), exchange_every=4)
    # And once more at the end, for peers that train on.
    assert [one.step for one in exchange.published] == [3, 7, 11, 12]
    assert [peer for peer, _ in exchange.asked] == [1] * 4


def test_what_is_published_is_the_student_at_that_step():
    seen = {}

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen[batch + 1] = snapshot(self.model.student)

    exchange = ScriptedExchange()
    student = build()
    begin = snapshot(student)
    train(exchange, model=codistilled(student), callbacks=[Keep()])
    assert [one.step for one in exchange.published] == [0, 5, 10, 12]
    seen[0] = begin
    for published in exchange.published:
        assert published.group == 0
        assert published.initial == digest(begin)
        for ours, theirs in zip(
            published.weights, seen[published.step], strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_teacher_counts_from_the_step_after_it_came():
    exchange = ScriptedExchange([None, checkpoint(weights(), step=77)])
    watch = Watch()
    callback, logs = train(exchange, callbacks=[watch])
    assert watch.steps == list(range(6, STEPS + 1))
    assert logs["teachers"] == [1.0]
    assert callback.summary["1"]["received"] == 1
    assert callback.summary["1"]["step"] == 77
    assert [known for _, known in exchange.asked][:2] == [None, None]
    assert exchange.asked[2][1].step == 77


def test_newest_teacher_replaces_the_one_before():
    near, far = build(1), build(2)
    given = [
        checkpoint(snapshot(model), number=number)
        for number, model in enumerate((far, near), 1)
    ]
    student = build(1)
    model = codistilled(student)
    model.optimizer.learning_rate = 0.0
    watch = Watch()
    train(ScriptedExchange(given), model=model, callbacks=[watch])
    # The second has the student's own weights: nothing to learn from it.
    assert watch.steps == [1, 2, 3, 4, 5]


def test_staleness_is_recorded(tmp_path):
    exchange = ScriptedExchange(
        [
            PeerUnavailableError("not yet"),
            checkpoint(weights(), step=3),
            None,
        ]
    )
    callback, logs = train(exchange, log_dir=tmp_path / "logs")
    found = [
        {key: record[key] for key in record if key not in ("time", "run")}
        for record in callback.records
    ]
    age = found[1].pop("age_seconds")
    assert 0 <= age < 60
    assert found == [
        {"step": 0, "peer": 1, "problem": "not yet"},
        {"step": 5, "peer": 1, "teacher_step": 3},
        {"step": 10, "peer": 1, "problem": None},
        {"step": 12, "peer": 1, "problem": None},
    ]
    assert age <= logs["teacher_age_seconds"][0]
    path = tmp_path / "logs" / "codistillation-0-worker-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == callback.records


@pytest.mark.parametrize(
    "bad",
    [
        UnusableCheckpointError("it is damaged"),
        OSError("the disk is gone"),
        checkpoint([np.full((2, 3), np.nan), np.zeros(3)]),
        checkpoint(snapshot(build(2, units=4))),
        checkpoint(weights()[:1]),
        checkpoint([one.astype("datetime64[s]") for one in weights()]),
        PeerUnavailableError("no answer"),
    ],
    ids=[
        "damaged",
        "error",
        "not finite",
        "shape",
        "number",
        "dtype",
        "unavailable",
    ],
)
def test_training_goes_on_with_the_teacher_before(bad, caplog):
    exchange = ScriptedExchange([checkpoint(weights(), step=3), bad])
    watch = Watch()
    with caplog.at_level(logging.WARNING, logger="absl"):
        callback, _ = train(exchange, callbacks=[watch])
    assert watch.steps == list(range(1, STEPS + 1))
    assert callback.summary["1"]["received"] == 1
    assert callback.summary["1"]["step"] == 3
    problem = callback.records[1]["problem"]
    assert problem
    unusable = not isinstance(bad, (PeerUnavailableError, OSError))
    assert callback.summary["1"]["skipped"] == unusable
    assert (f"not used: {problem}" in caplog.text) == unusable


def test_problem_says_what_differs():
    bad = checkpoint(snapshot(build(2, units=4)))
    callback, _ = train(ScriptedExchange([bad]))
    problem = callback.records[0]["problem"]
    assert "shape (2, 4)" in problem
    assert "(2, 3)" in problem
    assert "whole_models=True" in problem


def test_what_does_not_fit_is_told_and_read_once(caplog):
    bad = checkpoint(snapshot(build(2, units=4)), number=4)
    exchange = ScriptedExchange([bad])
    with caplog.at_level(logging.WARNING, logger="absl"):
        callback, _ = train(exchange)
    assert caplog.text.count("another architecture") == 1
    assert callback.summary["1"]["skipped"] == 1
    known = [known and known.number for _, known in exchange.asked]
    assert known == [None, 4, 4, 4]


def test_training_goes_on_when_nothing_can_be_published(caplog):
    exchange = ScriptedExchange()
    exchange.publish = lambda checkpoint: (_ for _ in ()).throw(
        OSError("no space left")
    )
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(exchange)
    assert "step 5 could not be published: OSError: no space" in caplog.text


def test_weights_that_are_not_finite_are_not_published(caplog):
    student = build()
    student.layers[0].bias.assign([np.nan, 0, 0])
    exchange = ScriptedExchange()
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(exchange, model=codistilled(student))
    assert exchange.published == []
    assert "not finite" in caplog.text


def test_an_exchange_that_hangs_stops_nobody(monkeypatch, caplog):
    monkeypatch.setattr(callback_lib, "_LAST_SECONDS", 0.1)
    hung, go_on = threading.Event(), threading.Event()

    def hang():
        hung.set()
        go_on.wait()

    class UntilItHangs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                assert hung.wait(60)

    exchange = ScriptedExchange([checkpoint(weights(), step=3), hang])
    watch = Watch()
    with caplog.at_level(logging.WARNING, logger="absl"):
        callback, _ = train(
            exchange, background=True, callbacks=[watch, UntilItHangs()]
        )
    assert len(watch.totals) == STEPS
    assert watch.steps[-1] == STEPS
    assert callback.summary["1"]["received"] == 1
    assert "The exchange before that of step 10 has not ended" in caplog.text
    assert "has not ended within" in caplog.text
    go_on.set()


def test_what_was_due_is_made_up_for_when_the_thread_is_free():
    go_on = threading.Event()

    class LetItGoOn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 6:
                go_on.set()
                callback._pending.result(60)

    exchange = ScriptedExchange([lambda: go_on.wait(60) and None])
    callback = Codistillation(
        exchange, group=0, num_groups=2, exchange_every=5, verbose=0
    )
    # It finds what is done before the next step, or after that one.
    fit(codistilled(build()), [LetItGoOn(), callback])
    first, second, *_ = [one.step for one in exchange.published]
    assert first == 0
    assert second == 7


def test_in_the_background_a_missing_peer_is_looked_for_often(monkeypatch):
    monkeypatch.setattr(callback_lib, "_LOOK_SECONDS", 0.0)
    came = threading.Event()

    def come():
        came.set()
        return checkpoint(weights())

    class UntilItCame(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == STEPS - 3:
                assert came.wait(60)
            elif batch == STEPS - 2 and callback._pending is not None:
                callback._pending.result(60)

    watch = Watch()
    exchange = ScriptedExchange([PeerUnavailableError("not yet"), come])
    callback = Codistillation(
        exchange, group=0, num_groups=2, exchange_every=1000, verbose=0
    )
    fit(codistilled(build()), [watch, UntilItCame(), callback])
    assert watch.steps[-1] == STEPS
    # Looking is not publishing.
    assert [one.step for one in exchange.published] == [0, STEPS]


def test_old_teachers_retire_until_a_newer_one_comes():
    old = checkpoint(weights(2), number=1, time=0.0)
    young = checkpoint(weights(3), number=2)
    watch = Watch()
    callback, logs = train(
        ScriptedExchange([old, young]),
        callbacks=[watch],
        max_age_seconds=1000.0,
    )
    assert watch.steps == list(range(6, STEPS + 1))
    assert callback.summary["1"]["received"] == 2
    assert logs["teachers"] == [1.0]


def test_silent_peers_are_reported(caplog):
    exchange = ScriptedExchange([checkpoint(weights(), step=3)])
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(exchange, exchange_every=1)
    told = [m for m in caplog.messages if "nothing new" in m]
    assert len(told) == 1
    assert "Group 1 has published nothing new for 10 exchanges" in told[0]
    assert "its weights of step 3" in told[0]


@pytest.mark.parametrize("seconds", [200, 0])
def test_weights_of_an_earlier_training_are_reported(seconds, caplog):
    taken = time.time() - seconds
    exchange = ScriptedExchange([checkpoint(weights(), step=7, time=taken)])
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(exchange)
    told = "first weights of group 1 are of its step 7, and were taken 20"
    assert (told in caplog.text) == bool(seconds)


@pytest.mark.parametrize("alike", [True, False])
def test_groups_that_began_alike_are_reported(alike, caplog):
    initial = digest(snapshot(build())) if alike else "other"
    exchange = ScriptedExchange([checkpoint(weights(), initial=initial)])
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(exchange)
    assert ("began with the same weights" in caplog.text) == alike


@pytest.mark.parametrize(
    "strategy",
    [
        contextlib.nullcontext,
        tfdist.AsyncStrategy,
        lambda: tfdist.ParameterAveragingStrategy(period=4),
    ],
    ids=["none", "async", "averaging"],
)
def test_other_architectures_are_taken_in_the_midst_of_training(strategy):
    keras.utils.set_random_seed(7)
    deep, deeper = (
        keras.Sequential(
            [
                keras.Input((2,)),
                *(layers.Dense(4) for _ in range(n)),
                layers.Dense(3),
            ]
        )
        for n in (1, 2)
    )
    flat = keras.Sequential([keras.Input((2,)), layers.Dense(5)])
    # Nothing is asked for before a step shows what has to fit.
    exchange = ScriptedExchange(
        checkpoint(snapshot(m), architecture=m, number=n)
        for n, m in enumerate((deep, deeper, flat), 1)
    )
    exchange.same_architecture = False
    watch = Watch()
    strategy = strategy()
    with getattr(strategy, "scope", contextlib.nullcontext)():
        student = build()
        model = codistilled(student)
    model.optimizer.learning_rate = 0.0
    callback, _ = train(
        exchange, model=model, exchange_every=3, callbacks=[watch]
    )
    assert watch.steps == list(range(4, STEPS + 1))
    assert [r.get("problem") for r in callback.records[1:3]] == [None, None]
    assert "gives outputs of shape (2, 5)" in callback.records[3]["problem"]
    x = np.random.default_rng(0).standard_normal((STEPS * 2, 2))
    x = x.astype("float32")

    def psi(peer):
        theirs, ours = peer.predict(x, verbose=0), student.predict(x, verbose=0)
        return ((theirs - ours) ** 2).mean(-1)

    expected = [*psi(deep)[6:12], *psi(deeper)[12:]]
    np.testing.assert_allclose(
        watch.totals[-1],
        np.mean(np.reshape(expected, (-1, 2)), 1).sum(),
        rtol=1e-4,
    )


def test_models_that_are_built_by_their_first_step():
    student = keras.Sequential([layers.Dense(3)])
    exchange = ScriptedExchange([checkpoint(weights())])
    watch = Watch()
    train(exchange, model=codistilled(student), callbacks=[watch])
    assert watch.steps == list(range(2, STEPS + 1))


def test_one_fit_after_the_other():
    model = codistilled(build(), burn_in_steps=STEPS)
    watch = Watch()
    # The first ends with a question, the second begins with one.
    exchange = ScriptedExchange([None, checkpoint(weights())])
    train(exchange, model=model, callbacks=[watch])
    assert watch.steps == []
    train(exchange, model=model, callbacks=[watch])
    # Without the callback it is a plain model again.
    fit(model, [watch])
    assert watch.steps == list(range(STEPS + 1, 2 * STEPS + 1))


def test_summary_is_printed(capsys):
    exchange = ScriptedExchange([checkpoint(weights(), step=7)])
    train(exchange, verbose=1)
    assert (
        "Codistillation of group 0: weights of group 1 came 1 times, the last "
        "of its step 7.\n"
    ) in capsys.readouterr().out
    train(ScriptedExchange(), verbose=1)
    assert "no weights of group 1 came.\n" in capsys.readouterr().out


def test_which_group_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps({"codistillation": {"group": 2, "num_groups": 3}}),
    )
    callback = Codistillation(ScriptedExchange())
    assert (callback.group.index, callback.group.num_groups) == (2, 3)
    with pytest.raises(ValueError, match="num_groups is 4, and 3"):
        Codistillation(ScriptedExchange(), num_groups=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exchange": "somewhere"}, "exchange must be.*came: 'somewhere'"),
        ({"exchange_every": 0}, "exchange_every.*came: 0"),
        ({"exchange_every": 1.5}, "exchange_every.*came: 1.5"),
        ({"max_age_seconds": 0}, "max_age_seconds.*came: 0"),
        ({"num_groups": None}, "group=0 needs num_groups"),
        ({"group": None, "num_groups": None}, "Which group this is"),
        ({"group": 2}, "index.*Received: 2"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    given = {"exchange": ScriptedExchange(), "group": 0, "num_groups": 2}
    with pytest.raises(ValueError, match=message):
        Codistillation(**{**given, **arguments})


def test_models_without_the_loss_are_refused():
    model = build()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Codistilled\(model"):
        train(ScriptedExchange(), model=model)


def test_mixins_that_are_not_configured_are_refused():
    class Forgotten(CodistillationMixin, keras.Sequential):
        pass

    model = Forgotten([keras.Input((2,)), layers.Dense(3)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="call configure_codistillation"):
        train(ScriptedExchange(), model=model)


def test_steps_that_compute_no_loss_for_training_are_refused():
    class Alone(CodistillationMixin, keras.Sequential):
        def train_step(self, data):
            self.optimizer.apply(
                [tf.zeros_like(v) for v in self.trainable_variables],
                self.trainable_variables,
            )
            return {"own": tf.zeros([])}

    model = Alone([keras.Input((2,)), layers.Dense(3)])
    model.configure_codistillation(burn_in_steps=0)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="never calls self.compute_loss"):
        train(ScriptedExchange(), model=model)


def test_several_peers_are_asked_each_for_itself():
    exchange = ScriptedExchange(
        [checkpoint(weights(2), group=0), PeerUnavailableError("dead")]
    )
    callback = Codistillation(
        exchange,
        group=Group(1, 3),
        exchange_every=100,
        background=False,
        verbose=0,
    )
    model = codistilled(build())
    fit(model, [callback])
    assert [peer for peer, _ in exchange.asked[:2]] == [0, 2]
    assert callback.summary["0"]["received"] == 1
    assert callback.summary["2"]["received"] == 0
