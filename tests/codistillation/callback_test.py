"""When groups exchange, and what they do with it."""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

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
from tfdist import cluster
from tfdist import private_keras
from tfdist.codistillation import Codistillation
from tfdist.codistillation import CodistillationMixin
from tfdist.codistillation import Group
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation.weights import digest
from tfdist.codistillation.weights import snapshot
from tfdist.runtime.variables.variables import ReplicaVariable

layers = keras.layers


@pytest.mark.nightly
def test_exchanges_begin_with_the_end_of_the_burn_in(capsys):
    exchange = ScriptedExchange()
    train(exchange, model=codistilled(build(), 3), exchange_every=4, verbose=1)
    assert "no weights of group 1 came.\n" in capsys.readouterr().out
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


@pytest.mark.nightly
def test_a_chief_publishes_no_weights_of_before_its_first_step(monkeypatch):
    """Started again, it would replace what its group has learnt."""
    with tfdist.AsyncStrategy().scope():
        model = codistilled(build())
    monkeypatch.setattr(cluster.ClusterConfig, "is_local", False)
    exchange = ScriptedExchange([checkpoint(weights())])
    watch = Watch()
    train(exchange, model=model, callbacks=[watch])
    assert [one.step for one in exchange.published] == [1, 5, 10, 12]
    assert watch.steps[0] == 1  # It has asked before.


@pytest.mark.nightly
def test_what_is_published_are_the_parameters_where_workers_look_ahead():
    strategy = tfdist.DANAStrategy(variant="zero")
    with strategy.scope():
        model = codistilled(build())
    exchange = ScriptedExchange()
    train(exchange, model=model)
    strategy.pull()
    for published, parameter in zip(
        exchange.published[-1].weights, snapshot(model.student), strict=True
    ):
        np.testing.assert_array_equal(published, parameter)


@pytest.mark.parametrize("accumulated", [None, 2])
def test_no_server_is_asked_how_many_updates_there_are(
    accumulated, monkeypatch
):
    with tfdist.AsyncStrategy().scope():
        model = codistilled(build())
        model.compile(
            keras.optimizers.SGD(gradient_accumulation_steps=accumulated),
            "sparse_categorical_crossentropy",
        )
        model.optimizer.build(model.trainable_variables)
    counter, _ = private_keras.counter_of(model.optimizer)
    counter.assign(6)
    callback = Codistillation(ScriptedExchange(), group=0, num_groups=2)
    callback.set_model(model)
    reads = []
    monkeypatch.setattr(
        ReplicaVariable, "_before_read", lambda self: reads.append(self)
    )
    assert callback._step() == 6 // (accumulated or 1)
    assert not reads


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


@pytest.mark.nightly
def test_staleness_is_recorded(tmp_path):
    exchange = ScriptedExchange(
        [
            PeerUnavailableError("not yet"),
            checkpoint(weights(), step=3),
            None,
        ]
    )
    watch = Watch()
    callback, logs = train(
        exchange, callbacks=[watch], log_dir=tmp_path / "logs"
    )
    # The teacher counts from the step after it came.
    assert watch.steps == list(range(6, STEPS + 1))
    assert logs["teachers"] == [1.0]
    assert callback.summary["1"]["received"] == 1
    assert callback.summary["1"]["step"] == 3
    assert [known for _, known in exchange.asked][:2] == [None, None]
    assert exchange.asked[2][1].step == 3
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


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strategy",
    [
        tfdist.AsyncStrategy,
        contextlib.nullcontext,
        lambda: tfdist.ParameterAveragingStrategy(period=4),
    ],
    ids=["async", "none", "averaging"],
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
    np.testing.assert_allclose(watch.totals[-1], np.sum(expected), rtol=1e-4)


@pytest.mark.nightly
def test_models_that_are_built_by_their_first_step():
    student = keras.Sequential([layers.Dense(3)])
    exchange = ScriptedExchange([checkpoint(weights())])
    watch = Watch()
    train(exchange, model=codistilled(student), callbacks=[watch])
    assert watch.steps == list(range(2, STEPS + 1))


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_fit_that_fails_leaves_no_teachers():
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise OSError("the data is gone")

    model, watch = codistilled(build()), Watch()
    with pytest.raises(OSError, match="the data is gone"):
        train(
            ScriptedExchange([checkpoint(weights())]),
            model=model,
            callbacks=[Fails()],
        )
    fit(model, [watch])
    assert watch.steps == []


@pytest.mark.nightly
def test_summary_is_printed(capsys):
    exchange = ScriptedExchange([checkpoint(weights(), step=7)])
    train(exchange, verbose=1)
    assert (
        "Codistillation of group 0: weights of group 1 came once, the last "
        "of its step 7.\n"
    ) in capsys.readouterr().out


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
        (
            {"exchange": "somewhere"},
            "`exchange` must be.*Received: exchange='somewhere'",
        ),
        ({"exchange_every": 0}, "exchange_every.*Received: exchange_every=0"),
        (
            {"max_age_seconds": 0},
            "max_age_seconds.*Received: max_age_seconds=0",
        ),
        ({"num_groups": None}, "group=0 needs num_groups"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    given = {"exchange": ScriptedExchange(), "group": 0, "num_groups": 2}
    with pytest.raises(ValueError, match=message):
        Codistillation(**{**given, **arguments})


def test_a_process_that_was_not_told_is_the_only_group(monkeypatch, caplog):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    callback = Codistillation(ScriptedExchange())
    assert (callback.group.index, callback.group.num_groups) == (0, 1)
    assert "To codistil, pass group= and num_groups=" in caplog.text


def test_models_without_the_loss_are_refused():
    model = build()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Codistilled\(model"):
        train(ScriptedExchange(), model=model)


def test_an_optimizer_for_one_loss_is_refused():
    model = codistilled(build())
    model.compile(tfdist.sandblaster.LBFGS(), "mse")
    with pytest.raises(ValueError, match="each new teacher changes it"):
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


@pytest.mark.nightly
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
