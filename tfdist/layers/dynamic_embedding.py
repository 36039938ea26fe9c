"""Embeddings of ids that nobody knows before training."""

import math
from typing import Any

import keras
import tensorflow as tf

from tfdist import checks
from tfdist.runtime.variables import dynamic_table
from tfdist.runtime.variables import row_index

_BOUND = 0.05


@keras.saving.register_keras_serializable("tfdist")
class DynamicEmbedding(keras.layers.Layer):
    """Turns ids into vectors; an id gets a row of its own when it is trained.

    The rows are a table on parameter servers. Any int64 but -2^63 is an id; a
    string's hash is. An id gets a row when servers apply the first gradient
    for it. Before that, and in `predict` and `evaluate`, its vector is the
    first value that its row would have: it depends on the id and `seed` alone.

    ```python
    strategy = tfdist.AsyncStrategy(table_bytes=2**26)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((20,), dtype="string"),
                tfdist.layers.DynamicEmbedding(64, capacity=1_000_000),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
    ```

    Args:
      output_dim: Elements of a vector.
      capacity: Ids that the table has room for, at least; its memory is taken
        from the beginning: `output_dim` floats and 16 bytes for each of 1.7
        to 2.9 times as many rows (at least 32,768), and as many floats for
        each optimizer slot.
        When the rows that an id may have are all taken, the row that was not
        updated for the longest time becomes its own, if `evict_after` allows;
        else its gradients are dropped, which `counts` and a warning say.
      initializer: `"uniform"`, of [-0.05, 0.05), or a number.
      admit_after: An id gets a row with the server's update that is the
        `admit_after`-th with it; gradients before are dropped. Ids that hash
        alike are counted together, so that some get their row earlier.
      evict_after: Updates of a server without an id after which another one
        may get its row. None: never.
      seed: int, of the first values.
      mask_zero: Whether id 0, or the empty string, is padding, which layers
        that take a mask leave out, as with `keras.layers.Embedding`. Its row
        is looked up all the same.
      **kwargs: Of `keras.layers.Layer`.

    Input shape: any, dense or ragged, of integers or strings.
    Output shape: that of the input, and `output_dim`.

    Raises:
      ValueError: An argument is not as above.
    """

    def __init__(
        self,
        output_dim: int,
        capacity: int,
        *,
        initializer: str | float = "uniform",
        admit_after: int = 1,
        evict_after: int | None = None,
        seed: int = 0,
        mask_zero: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.output_dim = checks.count("output_dim", output_dim)
        self.capacity = checks.count("capacity", capacity)
        if initializer != "uniform" and not (
            checks.is_number(initializer) and math.isfinite(initializer)
        ):
            raise ValueError(
                checks.refusal(
                    "initializer", '"uniform" or a finite number', initializer
                )
            )
        self.initializer = initializer
        self.admit_after = checks.count("admit_after", admit_after)
        if evict_after is not None:
            evict_after = checks.count("evict_after", evict_after)
        self.evict_after = evict_after
        self.seed = checks.count("seed", seed, 0)
        self.mask_zero = checks.flag("mask_zero", mask_zero)
        self.supports_masking = self.mask_zero
        self.embeddings = None

    def build(self, input_shape: Any = None) -> None:
        """Makes the table on the servers."""
        low, high = -_BOUND, _BOUND
        if self.initializer != "uniform":
            low = high = float(self.initializer)
        self.embeddings = self.add_weight(
            shape=(row_index.rows_for(self.capacity), self.output_dim),
            initializer=dynamic_table.DynamicRows(
                low, high, self.seed, self.admit_after, self.evict_after
            ),
            name="embeddings",
            autocast=False,
        )

    def call(self, inputs: Any) -> tf.Tensor:
        """Looks up.

        Args:
          inputs: Tensor of ids, of any shape, integers or strings, dense or
            ragged.

        Returns:
          Tensor of that shape and `output_dim`, of the layer's compute dtype.
        """
        if isinstance(inputs, tf.RaggedTensor):
            return tf.ragged.map_flat_values(self.call, inputs)
        if isinstance(inputs, tf.SparseTensor):
            raise ValueError(
                checks.refusal(
                    "DynamicEmbedding: inputs",
                    "dense or ragged (tfdist.layers.EmbeddingBag takes sparse "
                    "ids)",
                    "SparseTensor",
                )
            )
        ids = tf.convert_to_tensor(inputs)
        if ids.dtype == tf.string:
            ids = tf.strings.to_hash_bucket_fast(ids, 2**63 - 1)
        elif not ids.dtype.is_integer:
            raise ValueError(
                checks.refusal(
                    "DynamicEmbedding: inputs",
                    "integers or strings (begin the model with "
                    "keras.Input(..., dtype='int64'): Sequential takes ids "
                    "for floats)",
                    ids.dtype.name,
                )
            )
        ids = tf.cast(ids, tf.int64)
        table = self.embeddings.value
        if isinstance(table, tf.Variable):
            rows = table.sparse_read(ids)
        else:
            # Keras looks for shapes before it makes the table.
            rows = tf.gather(table, tf.zeros_like(ids))
        return tf.cast(rows, self.compute_dtype)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns which ids are no padding, None without `mask_zero`."""
        if not self.mask_zero or isinstance(inputs, tf.RaggedTensor):
            return None
        if isinstance(inputs, keras.KerasTensor):
            padding = "" if inputs.dtype == "string" else 0
            return keras.ops.not_equal(inputs, padding)
        ids = tf.convert_to_tensor(inputs)
        return tf.not_equal(ids, tf.zeros([], ids.dtype))

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Returns shape and type of the output."""
        return keras.KerasTensor(
            (*inputs.shape, self.output_dim),
            self.compute_dtype,
            ragged=getattr(inputs, "ragged", False),
        )

    def counts(self) -> list[dict[str, int]]:
        """Returns what the servers hold, a list with a dict for each of them.

        Returns:
          `rows`, those that there are; `used`, those that an id has; and since
          training began, or since the last restart of a server without a
          snapshot: `admitted`, ids that got a row, `evicted`, those that lost
          theirs, and `refused`, gradients that were dropped because an id's
          rows were all taken. All ints. Before the layer is built, the list
          is empty.
        """
        if self.embeddings is None:
            return []
        return self.embeddings.value.counts()

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal layer."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "capacity": self.capacity,
            "initializer": self.initializer,
            "admit_after": self.admit_after,
            "evict_after": self.evict_after,
            "seed": self.seed,
            "mask_zero": self.mask_zero,
        }
