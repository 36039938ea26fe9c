"""The variables of a model that workers share."""

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce import programs
import tfdist
from tfdist.all_reduce import variables as variables_lib


class Alternating(keras.Model):
    """Its optimizers are in a list; each step applies both."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False)

    def compile(self, optimizers):
        """Compiles without an optimizer of Keras's own."""
        super().compile(loss=programs.Mean())
        self.optimizers = optimizers

    def call(self, x):
        """Returns the layer's outputs."""
        return self.dense(x)

    def train_step(self, data):
        """Makes one step with each optimizer."""
        for optimizer in self.optimizers:
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=data[1], y_pred=self(data[0]))
            weights = self.trainable_weights
            optimizer.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
        return {"loss": loss}


def test_optimizers_in_a_list_are_shared():
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = Alternating()
        model.compile([keras.optimizers.Adam(), keras.optimizers.SGD()])
    model.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0)
    shared = {id(one) for one in variables_lib.shared_by(model)}
    # Keras has made an optimizer of its own, too.
    assert shared > {
        id(variables_lib.plain(one))
        for owner in (model.dense, *model.optimizers)
        for one in owner.variables
    }


def test_assignments_of_elements_are_heard_of(monkeypatch):
    with tfdist.AllReduceStrategy().scope():
        weight = keras.Variable(np.zeros(2, "float32")).value
    heard = []
    monkeypatch.setattr(weight._engine, "before_assignment", heard.append)
    weight[0:1].assign([4.0])
    weight.scatter_nd_max([[0]], [5.0])
    weight.scatter_nd_min([[1]], [-5.0])
    assert weight.numpy().tolist() == [5.0, -5.0]
    assert [one is weight for one in heard] == [True] * 3
