"""Update rules of tables with `table_rule="lazy"`, against their formulas.

Each rule is written for the rows of a batch alone: all others, and their
slots, stay as they are. Gradients of one id are summed before the rule.
"""

import keras
import numpy as np
import pytest

from tests import nightly
from tests.strategies.tables_test import ROWS
from tests.strategies.tables_test import WIDTH
from tests.strategies.tables_test import strategy_with_tables

STEPS, BATCH, IDS = 6, 8, 5
# float32 knows 1 - 0.999 of Adam to 6e-5: less than 1e-6 of a step.
RATE = 0.01


class Rule:
    """Of rows `w` with summed gradients `g`, at step `t` from 1."""

    first = 0.0

    def __init__(self):
        """Makes slots for all rows."""
        self.s, self.v = np.full((2, ROWS, WIDTH), self.first)


class Sgd(Rule):
    """w <- w - a g."""

    made = keras.optimizers.SGD

    def change(self, ids, g, t):
        """Returns the rows' change."""
        return -RATE * g


class Momentum(Rule):
    """s <- 0.9 s - a g; w <- w + s (Keras's form)."""

    @staticmethod
    def made(rate):
        """Makes Keras's."""
        return keras.optimizers.SGD(rate, momentum=0.9)

    def change(self, ids, g, t):
        """Returns the rows' change."""
        self.s[ids] = 0.9 * self.s[ids] - RATE * g
        return self.s[ids]


class Adagrad(Rule):
    """s <- s + g^2; w <- w - a g / sqrt(s + e) (Duchi et al. 2011)."""

    made = keras.optimizers.Adagrad
    first = 0.1

    def change(self, ids, g, t):
        """Returns the rows' change."""
        self.s[ids] += g**2
        return -RATE * g / np.sqrt(self.s[ids] + 1e-7)


class RMSprop(Rule):
    """s <- 0.9 s + 0.1 g^2; w <- w - a g / sqrt(s + e) (Tieleman 2012)."""

    made = keras.optimizers.RMSprop

    def change(self, ids, g, t):
        """Returns the rows' change."""
        self.s[ids] = 0.9 * self.s[ids] + 0.1 * g**2
        return -RATE * g / np.sqrt(self.s[ids] + 1e-7)


class Adam(Rule):
    """Kingma and Ba 2014, the form before section 2.1."""

    made = keras.optimizers.Adam

    def change(self, ids, g, t):
        """Returns the rows' change."""
        self.s[ids] = 0.9 * self.s[ids] + 0.1 * g
        self.v[ids] = 0.999 * self.v[ids] + 0.001 * g**2
        size = RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return -size * self.s[ids] / (np.sqrt(self.v[ids]) + 1e-7)


class Averaged(keras.optimizers.Optimizer):
    """A user's own optimizer, which moves weights by averages of gradients."""

    def build(self, variables):
        """Makes the averages."""
        if self.built:
            return
        super().build(variables)
        self.averages = [
            self.add_variable_from_reference(v, name="moving_average")
            for v in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        """Averages, and moves."""
        average = self.averages[self._get_variable_index(variable)]
        self.assign(average, 0.9 * average + 0.1 * gradient)
        self.assign_sub(variable, learning_rate * average)


class MovingAverage(Rule):
    """s <- 0.9 s + 0.1 g; w <- w - a s."""

    made = Averaged

    def change(self, ids, g, t):
        """Returns the rows' change."""
        self.s[ids] = 0.9 * self.s[ids] + 0.1 * g
        return -RATE * self.s[ids]


class RecordedRows(keras.callbacks.Callback):
    """Keeps all rows after each batch."""

    def __init__(self, table):
        """Knows the table."""
        super().__init__()
        self._table = table
        self.rows = []

    def on_train_batch_end(self, batch, logs=None):
        """Looks all rows up."""
        del batch, logs
        ids = np.arange(ROWS)
        rows = keras.ops.take(self._table.embeddings, ids, axis=0)
        self.rows.append(np.asarray(rows, np.float64))


def examples():
    """Ids, some in many steps and twice in some, and gradients of each."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 60, (STEPS * BATCH, IDS)) * 18
    # Multiples of an eighth, so that sums are exact.
    gradients = random.integers(-8, 9, (*ids.shape, WIDTH)) / 8
    return ids.astype("int32"), gradients.astype("float32")


@pytest.mark.parametrize(
    "kind",
    nightly.also([Adagrad], [MovingAverage, Adam, Sgd, Momentum, RMSprop]),
)
def test_rows_of_a_batch_move_by_the_rule_and_no_other(kind):
    strategy = strategy_with_tables()
    with strategy.scope():
        table = keras.layers.Embedding(ROWS, WIDTH)
        model = keras.Sequential([keras.Input((IDS,), dtype="int32"), table])
        model.compile(
            kind.made(RATE),
            # The mean over a batch is the sum of all.
            lambda y_true, y_pred: (
                BATCH * keras.ops.sum(y_true * y_pred, axis=(1, 2))
            ),
        )
    recorded = RecordedRows(table)
    rows = np.asarray(table(np.arange(ROWS)), np.float64)
    x, y = examples()
    model.fit(
        x,
        y,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[recorded],
    )
    rule, twice = kind(), 0
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        ids, where = np.unique(x[batch], return_inverse=True)
        summed = np.zeros((len(ids), WIDTH))
        np.add.at(summed, where.ravel(), y[batch].reshape(-1, WIDTH))
        twice += x[batch].size - len(ids)
        rows[ids] += rule.change(ids, summed, step + 1)
        np.testing.assert_allclose(
            recorded.rows[step], rows, rtol=1e-6, atol=1e-6
        )
    assert twice > STEPS


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("clip", "moved"),
    [({"clipnorm": 1.0}, 2 / 8**0.5), ({"clipvalue": 0.25}, 0.5)],
)
def test_gradients_are_clipped_before_those_of_two_calls_are_added(clip, moved):
    """Each call's gradient of the row is 1 in each element."""
    with strategy_with_tables().scope():
        table = keras.layers.Embedding(ROWS, WIDTH, "zeros")
        inputs = [keras.Input((1,), dtype="int32") for _ in range(2)]
        rows = keras.layers.Concatenate()([table(one) for one in inputs])
        model = keras.Model(inputs, rows)
        model.compile(
            keras.optimizers.SGD(1.0, **clip),
            lambda _, found: keras.ops.sum(found, axis=(1, 2)),
        )
    assert WIDTH == 4
    model.train_on_batch([np.array([[5]])] * 2, np.zeros([1]))
    np.testing.assert_allclose(table(np.array([5])), [WIDTH * [-moved]], 1e-6)
