"""Which of Keras's variables become tables on servers."""

import keras
import pytest

import tfdist

ROWS, WIDTH = 1100, 4


def strategy_with_tables():
    """A strategy in one process, with tables."""
    return tfdist.AsyncStrategy(table_bytes=4 * ROWS * WIDTH)


class Positions(keras.Layer):
    """Adds a vector of each position: it reads the whole matrix."""

    def build(self, shape):
        """Makes the matrix."""
        self.vectors = self.add_weight(shape=shape[1:], name="embeddings")
        self.built = True

    def call(self, x):
        """Returns `(batch, ROWS, WIDTH)`."""
        return x + self.vectors


class Items(keras.layers.Embedding):
    """A subclass is an embedding, too."""


class WithPositions(keras.Model):
    """A model of both, whose layers are made when it is first called."""

    def __init__(self):
        super().__init__()
        self.table = Items(ROWS, WIDTH)
        self.positions = Positions()

    def call(self, ids):
        """Returns `(batch, ROWS, WIDTH)`."""
        return self.positions(self.table(ids))


@pytest.mark.parametrize("put_off", [False, True])
def test_only_layers_that_look_up_rows_have_tables(put_off, caplog):
    """Keras puts variables off while it traces a `call`."""
    with strategy_with_tables().scope():
        model = WithPositions()
        if put_off:
            model(keras.Input((ROWS,), dtype="int32"))
        else:
            model.table.build()
            model.positions.build([None, ROWS, WIDTH])
    with pytest.raises(ValueError, match="is a table"):
        model.table.get_weights()
    assert model.positions.get_weights()[0].shape == (ROWS, WIDTH)
    assert "embeddings' has a replica on each worker" in caplog.text


def test_embedding_whose_values_are_made_as_a_whole_has_replicas(caplog):
    strategy = strategy_with_tables()
    with strategy.scope():
        layer = keras.layers.Embedding(
            ROWS, WIDTH, embeddings_initializer="orthogonal"
        )
        layer.build()
    assert layer.get_weights()[0].shape == (ROWS, WIDTH)
    assert "makes values as a whole only" in caplog.text


def test_smaller_embeddings_have_replicas():
    strategy = strategy_with_tables()
    with strategy.scope():
        layer = keras.layers.Embedding(ROWS - 1, WIDTH)
        layer.build()
    assert layer.get_weights()[0].shape == (ROWS - 1, WIDTH)
