"""Whose metrics are added up, and what comes of them."""

import json
import types

import keras
import numpy as np
import pytest

import tfdist
from tfdist import cluster_metrics
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.strategies import training


def model_of(*metrics, units=1):
    """A model whose metrics have seen two examples."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(units)])
    model.compile(loss="mse", metrics=list(metrics))
    x = np.arange(4.0).reshape([2, 2])
    model.compute_metrics(x, x[:, :units], 0.5 * x[:, :units])
    return model


@pytest.fixture(scope="module")
def model():
    return model_of("mae")


def test_states_are_added_up(model):
    mine = cluster_metrics.state(model)
    other = json.loads(json.dumps(mine))
    # Totals and counts, of the loss and of the error.
    other["values"] = [0.0, 0.0, 6.0, 2.0]
    found = cluster_metrics.total(model, [mine, other])
    # (0 + 1) of two examples, and 6 of two.
    assert found["mae"] == pytest.approx(7.0 / 4)
    assert cluster_metrics.state(model) == mine


def test_a_metric_may_have_several_numbers():
    model = model_of(keras.metrics.F1Score(), units=2)
    found = cluster_metrics.total(model, [cluster_metrics.state(model)] * 2)
    assert np.shape(found["f1_score"]) == (2,)
    assert json.loads(json.dumps(found)) == found


class MeanAndCount(keras.metrics.MeanSquaredError):
    """A metric whose result is a dict."""

    def result(self):
        return {"mean": super().result(), "inner": {"count": self.count}}


def test_a_metric_may_have_several_named_results():
    model = model_of(MeanAndCount(name="both"))
    found = cluster_metrics.total(model, [cluster_metrics.state(model)] * 2)
    del found["loss"]
    # Errors of 0 and 1, twice; names as in Keras's logs.
    assert found == {"mean": pytest.approx(0.5), "count": 4.0}


@pytest.mark.parametrize(
    "other",
    [
        lambda model: cluster_metrics.state(model, fit=1),
        lambda model: cluster_metrics.state(model_of("mse"), fit=2),
        lambda model: cluster_metrics.state(
            model_of(keras.metrics.F1Score(name="mae"), units=2), fit=2
        ),
    ],
    ids="fit name shape".split(),
)
def test_what_is_not_the_same_is_left_out(model, other):
    mine, other = cluster_metrics.state(model, fit=2), other(model)
    alone = cluster_metrics.total(model, [mine], fit=2)
    assert alone["mae"] == pytest.approx(0.5)
    assert cluster_metrics.total(model, [mine, other], fit=2) == alone
    assert cluster_metrics.total(model, [other], fit=2) == {}


@pytest.mark.parametrize(
    "make", [tfdist.AsyncStrategy, tfdist.AllReduceStrategy]
)
def test_each_model_has_metrics_of_its_own(make):
    strategy = make()
    with strategy.scope():
        shared = keras.layers.Dense(1, kernel_initializer="zeros")
        models = [
            keras.Sequential([keras.Input([2]), layer])
            for layer in (shared, keras.layers.Dense(1), shared)
        ]
        # The first and the last have the same weights.
        for model in models:
            model.compile("sgd", "mse", metrics=["mae"])
    x = np.zeros([2, 2], "float32")
    for number, model in enumerate(models, 1):
        model.reset_metrics()
        model.compute_metrics(x, x[:, :1], x[:, :1] + number)
        strategy.publish_metrics(model)
    found = [strategy.cluster_metrics(model)["mae"] for model in models]
    assert found == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("state", "silent_for", "counts"),
    [
        (MemberState.ALIVE, 0.0, True),
        (MemberState.ALIVE, 61.0, False),
        (MemberState.FINISHED, 61.0, True),
        (MemberState.FAILED, 0.0, False),
        (MemberState.LEFT, 0.0, False),
    ],
)
def test_workers_that_are_gone_do_not_count(model, state, silent_for, counts):
    own = Member("me", MemberState.ALIVE, 0.0, 0)
    other = Member("other", state, silent_for, 0)
    strategy = training.TrainingMixin()
    strategy._runtime = types.SimpleNamespace(call=lambda function: function())
    strategy._membership = types.SimpleNamespace(
        read=lambda: [own, other], fits=types.SimpleNamespace(number=2)
    )
    strategy.state = types.SimpleNamespace(numbers_of=lambda variables: [])
    mine = cluster_metrics.state(model, fit=2)
    more = {**mine, "values": [0.0, 0.0, 6.0, 2.0]}
    strategy.collect = lambda topic: {"me": mine, "other": more}
    found = strategy.cluster_metrics(model)
    assert found["mae"] == pytest.approx(7.0 / 4 if counts else 0.5)
