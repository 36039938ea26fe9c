"""What never stops a group: peers that are late, damaged, silent or hang."""

import logging
import re
import threading
import time

import keras
import numpy as np
import pytest

from tests.codistillation.exchanging import STEPS
from tests.codistillation.exchanging import Watch
from tests.codistillation.exchanging import build
from tests.codistillation.exchanging import codistilled
from tests.codistillation.exchanging import fit
from tests.codistillation.exchanging import train
from tests.codistillation.exchanging import weights
from tests.codistillation.scripted_exchange import ScriptedExchange
from tests.codistillation.scripted_exchange import checkpoint
import tfdist
from tfdist.codistillation import Codistillation
from tfdist.codistillation import Codistilled
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation import UnusableCheckpointError
from tfdist.codistillation import callback as callback_lib
from tfdist.codistillation.weights import digest
from tfdist.codistillation.weights import snapshot

UNUSABLE = (
    UnusableCheckpointError("it is damaged"),
    checkpoint([np.full((2, 3), np.nan), np.zeros(3)], number=3),
    checkpoint(snapshot(build(2, units=4)), number=4),
    checkpoint(weights()[:1], number=5),
    checkpoint([one.astype("datetime64[s]") for one in weights()], number=6),
)


@pytest.mark.nightly
def test_training_goes_on_with_the_teacher_before(caplog):
    good = checkpoint(weights(), step=3)
    absent = OSError("the disk is gone"), PeerUnavailableError("no answer")
    watch = Watch()
    with caplog.at_level(logging.WARNING, logger="absl"):
        callback, _ = train(
            ScriptedExchange([good, *UNUSABLE, *absent]),
            callbacks=[watch],
            exchange_every=1,
        )
    assert watch.steps == list(range(1, STEPS + 1))
    assert callback.summary["1"]["received"] == 1
    assert callback.summary["1"]["step"] == 3
    assert callback.summary["1"]["skipped"] == len(UNUSABLE)
    problems = [record["problem"] for record in callback.records[1:8]]
    assert all(problems)
    told = [f"not used: {problem}" in caplog.text for problem in problems]
    assert told == [True] * len(UNUSABLE) + [False] * len(absent)
    # That a peer is not there yet is no fault.
    assert f"asked again: {problems[5]}" in caplog.text
    assert f"asked again: {problems[6]}" not in caplog.text
    # Of another shape it says what differs.
    assert "shape (2, 4)" in problems[2] and "(2, 3)" in problems[2]
    assert "whole_models=True" in problems[2]


def test_what_was_refused_is_no_newer_than_what_came_after_it():
    """Though its group took it by a clock that was ahead."""
    bad = snapshot(build(2, units=4))
    exchange = ScriptedExchange(
        [
            checkpoint(bad, number=4, time=time.time() + 3600),
            checkpoint(weights(), number=5),
        ]
    )
    train(exchange)
    known = [known and known.number for _, known in exchange.asked]
    assert known == [None, 4, 5, 5]


@pytest.mark.nightly
def test_each_that_was_refused_counts_though_why_is_told_once(caplog):
    bad = snapshot(build(2, units=4))
    exchange = ScriptedExchange([checkpoint(bad, number=n) for n in (4, 5)])
    with caplog.at_level(logging.WARNING, logger="absl"):
        callback, _ = train(exchange)
    assert callback.summary["1"]["skipped"] == 2
    assert len(re.findall("another architecture", caplog.text)) == 1


def stateful():
    model = build()
    model.layers[0].stateful = True
    return model


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "is_whole", "message"),
    [
        (build(2, units=4), False, "another architecture"),
        (stateful(), True, "Layer 'dense.*' is stateful"),
    ],
)
def test_what_does_not_fit_is_told_and_read_once(
    model, is_whole, message, caplog
):
    bad = checkpoint(
        snapshot(model), number=4, architecture=model if is_whole else None
    )
    exchange = ScriptedExchange([bad])
    with caplog.at_level(logging.WARNING, logger="absl"):
        callback, _ = train(exchange)
    assert len(re.findall(message, caplog.text)) == 1
    assert callback.summary["1"]["skipped"] == 1
    known = [known and known.number for _, known in exchange.asked]
    assert known == [None, 4, 4, 4]


def test_models_that_no_peer_could_use_are_refused():
    exchange = ScriptedExchange()
    exchange.same_architecture = False
    with pytest.raises(ValueError, match="'dense.*' is stateful"):
        train(exchange, model=codistilled(stateful()))


def test_tables_are_refused_before_anything_is_made_of_them():
    with tfdist.AsyncStrategy(table_bytes=1).scope():
        student = keras.Sequential(
            [
                keras.Input((1,), dtype="int32"),
                keras.layers.Embedding(4, 2, name="items"),
            ]
        )
        model = Codistilled(student, burn_in_steps=1)
        model.compile("sgd", "mse")
    exchange = ScriptedExchange([])
    exchange.bind = None
    callback = Codistillation(exchange, group=0, num_groups=2)
    with pytest.raises(ValueError, match=r"items/embeddings.*whole weights"):
        model.fit(np.ones([2, 1]), np.ones([2, 2]), callbacks=[callback])


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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_while_one_peer_is_missing_the_others_are_not_asked_more(monkeypatch):
    monkeypatch.setattr(callback_lib, "_LOOK_SECONDS", 0.0)
    looked = threading.Event()

    def not_there():
        looked.set()
        return PeerUnavailableError("not yet")

    class UntilItLooked(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0 and callback._pending is not None:
                callback._pending.result(60)
            elif batch == 3:
                assert looked.wait(60)

    first = checkpoint(weights(), group=0)
    exchange = ScriptedExchange(
        [first, PeerUnavailableError("not yet"), not_there]
    )
    callback = Codistillation(
        exchange, group=1, num_groups=3, exchange_every=1000, verbose=0
    )
    fit(codistilled(build()), [UntilItLooked(), callback])
    asked = [peer for peer, _ in exchange.asked]
    assert asked[:2] == asked[-2:] == [0, 2]
    assert set(asked[2:-2]) == {2}
    # Two exchanges; what has looked in vain is no record.
    assert [record["peer"] for record in callback.records] == [0, 2, 0, 2]


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


@pytest.mark.nightly
def test_silent_peers_are_reported(caplog):
    exchange = ScriptedExchange([checkpoint(weights(), step=3)])
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(exchange, exchange_every=1)
    told = [m for m in caplog.messages if "nothing new" in m]
    assert len(told) == 1
    assert "Group 1 has published nothing new for 10 exchanges" in told[0]
    assert "its weights of step 3" in told[0]


@pytest.mark.nightly
@pytest.mark.parametrize("is_suspect", [True, False])
def test_weights_of_an_earlier_training_or_alike_are_reported(
    is_suspect, caplog
):
    given = checkpoint(
        weights(),
        step=7,
        time=time.time() - 200 * is_suspect,
        initial=digest(snapshot(build())) if is_suspect else "other",
    )
    with caplog.at_level(logging.WARNING, logger="absl"):
        train(ScriptedExchange([given]))
    for told in (
        "first weights of group 1 are of its step 7, and were written 20",
        "began with the same weights",
    ):
        assert (told in caplog.text) == is_suspect
