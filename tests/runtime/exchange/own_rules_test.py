"""Update rules of the user's own that see parts of variables."""

import keras
import tensorflow as tf

from tfdist.runtime.exchange import step
from tfdist.runtime.exchange import table_gradients


def own_rule():
    class Centralized(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            gradient -= keras.ops.mean(gradient)
            super().update_step(gradient, variable, learning_rate)

        def rule(self):
            return lambda variable, gradient: self.update_step(
                gradient, variable, 0.1
            )

    return Centralized()


def test_a_rule_of_ones_own_that_sees_pieces_is_warned_of_once(caplog):
    variable, own = tf.Variable([1.0, 2.0], name="kernel"), own_rule()
    step.check_elementwise(variable, keras.optimizers.SGD())
    assert not caplog.text
    for _ in range(2):
        step.check_elementwise(variable, own)
    assert caplog.text.count("update_step of Centralized is applied to pieces")
    assert caplog.text.count("Centralized") == 1


def test_a_rule_of_ones_own_that_sees_rows_is_warned_of(caplog):
    table, own = tf.Variable([[1.0], [2.0]], name="table"), own_rule()
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))
    table_gradients.checked(table, own.rule(), [slices])
    assert "Centralized is applied to rows of 'table:0'" in caplog.text
