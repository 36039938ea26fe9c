"""Large variables split over servers train as whole ones do."""

import contextlib
import functools
import json
import re
import sys

from absl import app
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.multi_process import scripts
from tests.strategies import twins
import tfdist
from tfdist.runtime.variables import sharding

partitioners = tf.distribute.experimental.partitioners

OPTIMIZERS = {
    "adamw_clipped": lambda: keras.optimizers.AdamW(
        0.01, weight_decay=0.1, global_clipnorm=0.5, use_ema=True
    ),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "accumulated": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=2
    ),
}


# On servers, too.
ON_SERVERS = ("adamw_clipped", "accumulated")


def train(optimizer, scope, with_model=False):
    """Trains a model with a table and matrices of odd sizes."""
    keras.utils.set_random_seed(5)
    with scope:
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(101, 7),
                keras.layers.Flatten(),
                keras.layers.Dense(11, activation="tanh"),
                keras.layers.Dense(3),
            ]
        )
        model.compile(OPTIMIZERS[optimizer](), "mse")
    random = np.random.default_rng(0)
    x = random.integers(0, 101, (32, 5))
    y = random.normal(size=(32, 3)).astype("float32")
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    found = {
        "loss": [history.history["loss"]],
        "weights": [w.tolist() for w in model.get_weights()],
        "optimizer": [v.numpy().tolist() for v in model.optimizer.variables],
    }
    return (found, model) if with_model else found


@functools.cache
def plain(optimizer):
    """What comes of training without a strategy."""
    return train(optimizer, contextlib.nullcontext())


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        twins.assert_same(
            [np.asarray(value) for value in found[key]],
            [np.asarray(value) for value in values],
        )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "optimizer",
    sorted(OPTIMIZERS),
)
def test_pieces_train_as_the_whole(optimizer):
    strategy = tfdist.AsyncStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(3)
    )
    scope = strategy.scope()
    found, model = train(optimizer, scope, with_model=True)
    _assert_same(found, plain(optimizer))
    # Weights that are set after training reach every piece.
    weights = [w + 1.0 for w in model.get_weights()]
    model.set_weights(weights)
    strategy.pull()
    twins.assert_same(model.get_weights(), weights)


@pytest.fixture(scope="module")
def trained_on_servers(tmp_path_factory):
    """What came of training with pieces on two servers, by optimizer."""
    path = tmp_path_factory.mktemp("pieces") / "found.json"
    outputs = scripts.run(path.parent, __file__, [path], {"ps": 2, "worker": 1})
    told = outputs["worker-0"]
    assert re.search(r"spread over [1-9]\d+ and [1-9]\d+ bytes$", told, re.M)
    return json.loads(path.read_text())


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ON_SERVERS)
def test_pieces_on_servers_train_as_the_whole(optimizer, trained_on_servers):
    _assert_same(trained_on_servers[optimizer], plain(optimizer))


@pytest.mark.parametrize("name", nightly.also(["Lamb"], ["Adafactor", "Muon"]))
def test_optimizers_of_whole_variables_are_refused(name):
    strategy = tfdist.AsyncStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(2)
    )
    with strategy.scope():
        optimizer = getattr(keras.optimizers, name)(0.1)
        model = twins.compiled(twins.perceptron(), optimizer)
    # Muon decays its weights before it updates them.
    refused = (ValueError, RuntimeError)
    with pytest.raises(refused, match=r"variable_partitioner"):
        model.fit(*twins.classification(), verbose=0)


def test_constraint_on_a_piece_is_refused():
    strategy = tfdist.AsyncStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(2)
    )
    with strategy.scope():
        model = twins.perceptron(kernel_constraint="non_neg")
        model = twins.compiled(model)
    with pytest.raises(RuntimeError, match=r"kernel.*variable_partitioner"):
        model.fit(*twins.classification(), verbose=0)


def test_partitioner_must_be_callable():
    with pytest.raises(TypeError, match=r"Received: variable_partitioner=3"):
        tfdist.AsyncStrategy(variable_partitioner=3)


def test_partitioners_of_tensorflow():
    shape, dtype = tf.TensorShape([1024, 64]), tf.float32  # 256 KiB
    for partitioner, expected in (
        (partitioners.MinSizePartitioner(100 << 10, max_shards=8), 3),
        (partitioners.MaxSizePartitioner(100 << 10), 3),
        (partitioners.FixedShardsPartitioner(5), 5),
    ):
        rows = sharding.rows_of_pieces(partitioner, "v", shape, dtype)
        assert len(rows) == expected


def main(argv):
    """Trains with some of the optimizers on the cluster of TF_CONFIG."""
    found = {}
    strategy = tfdist.AsyncStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(3)
    )
    for optimizer in ON_SERVERS:
        found[optimizer] = train(optimizer, strategy.scope())
    first, second = strategy.bytes_per_server
    print("spread over", first, "and", second, "bytes", flush=True)
    with open(argv[1], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    app.run(main, sys.argv)
