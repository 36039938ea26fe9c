"""Sums and means of embeddings: a vector for each bag of ids."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfdist import checks
from tfdist import compiled_parts
from tfdist import private_tensorflow
from tfdist.layers.dynamic_embedding import DynamicEmbedding

_COMBINERS = ("mean", "sum", "sqrtn")


@keras.saving.register_keras_serializable(package="tfdist")
class EmbeddingBag(keras.layers.Layer):
    """Looks up bags of ids, and combines the vectors of each bag to one.

    A bag is a row of the input. With ids i and weights w, which are 1 if none
    are given, and E the embedding, its vector is

        sum: Σ w E[i]    mean: Σ w E[i] / Σ w    sqrtn: Σ w E[i] / √(Σ w²)

    as in `tf.nn.embedding_lookup_sparse`. It is zero if the bag is empty, or
    if the divisor is.

    The embedding may be a table on parameter servers or not. If several
    features share it, give them as a dict: their ids are looked up together.
    (Layers that share it work as well, but Keras does not load their model
    from a file: it makes an embedding for each.)

    ```python
    items = keras.layers.Embedding(1_000_000, 64)
    bag = tfdist.layers.EmbeddingBag(items, "mean")
    seen = tf.ragged.constant([[3, 1, 4], [], [1, 5]])
    bag(seen)  # (3, 64)
    bag({"seen": seen, "bought": seen})["seen"]  # (3, 64)
    ```

    Args:
      embedding: A `keras.layers.Embedding` or a `DynamicEmbedding`. If it has
        `mask_zero=True`, ids 0 have weights of 0.
      combiner: "mean", "sum" or "sqrtn", or a dict with one of these for each
        feature.
      **kwargs: Of `keras.layers.Layer`.

    Input shape: `(batch, n)` or `(batch,)`, dense, ragged or sparse, of
      integers, for a `DynamicEmbedding` also of strings; or a dict of such
      inputs.
    Output shape: `(batch, output_dim)`, dense; or a dict of such outputs.

    Raises:
      ValueError: An argument is not as above.
    """

    def __init__(
        self,
        embedding: keras.layers.Embedding | DynamicEmbedding,
        combiner: str | dict[str, str] = "mean",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # XLA leaves assertions out: a negative id would train row 0.
        self.supports_jit = False
        if not isinstance(embedding, keras.layers.Embedding | DynamicEmbedding):
            raise ValueError(
                checks.refusal(
                    "EmbeddingBag: embedding",
                    "a keras.layers.Embedding or a "
                    "tfdist.layers.DynamicEmbedding",
                    embedding,
                )
            )
        by_name = combiner if isinstance(combiner, dict) else {"": combiner}
        for each in by_name.values():
            checks.one_of("EmbeddingBag: combiner", each, _COMBINERS)
        self.embedding = embedding
        self.combiner = combiner

    def build(
        self, inputs_shape: Any = None, weights_shape: Any = None
    ) -> None:
        """Builds the embedding, if no other layer has."""
        if not self.embedding.built:
            self.embedding.build((None,))

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Looks up and combines.

        Args:
          inputs: Ids, see the class.
          weights: None, or floats of the same shape and kind: dense, ragged
            or sparse, with values in the same places. For a dict of inputs, a
            dict that has some of its keys.

        Returns:
          A tensor `(batch, output_dim)` of the layer's compute dtype, or a
          dict of them.

        Raises:
          ValueError: Types or shapes do not fit; or XLA compiles this call
            without a strategy. It would not check ids and weights. Keras does
            not compile a model that has this layer when `compile` is called.
          tf.errors.InvalidArgumentError: An id of a `keras.layers.Embedding`
            is negative, or weights are in other places than ids.
        """
        if (
            private_tensorflow.is_compiled_by_xla()
            and not tf.distribute.has_strategy()
        ):
            raise ValueError(
                f"The EmbeddingBag {self.name!r} cannot be compiled by XLA, "
                "which would not check its ids. Use jit_compile=False in "
                "model.compile or tf.function."
            )
        if not isinstance(inputs, dict):
            weights = None if weights is None else {"inputs": weights}
            return self.call({"inputs": inputs}, weights)["inputs"]
        weights = weights or {}
        if not isinstance(weights, dict) or not weights.keys() <= inputs.keys():
            raise ValueError(
                checks.refusal(
                    "EmbeddingBag: weights",
                    f"a dict with some of the keys {list(inputs)}",
                    list(weights) if isinstance(weights, dict) else weights,
                )
            )
        with compiled_parts.outside():
            return self._combine(inputs, weights)

    def _combine(self, inputs, weights):
        """Returns the vectors of each feature, by its name."""
        bags = {
            name: self._bags(name, ids, weights.get(name))
            for name, ids in inputs.items()
        }
        ids = [each.ids for each in bags.values()]
        types = {each.dtype for each in ids}
        if len(types) > 1:
            if tf.string in types:
                raise ValueError(
                    checks.refusal(
                        "EmbeddingBag: inputs",
                        "features of integers alone, or of strings alone",
                        {
                            name: each.ids.dtype.name
                            for name, each in bags.items()
                        },
                    )
                )
            ids = [tf.cast(each, tf.int64) for each in ids]
        rows = self.embedding(tf.concat(ids, 0))
        if rows.dtype.size < 4:
            rows = tf.cast(rows, tf.float32)
        parts = tf.split(rows, [tf.size(each) for each in ids])
        return {
            name: tf.cast(
                each.combined(part, self._combiner_of(name)),
                self.compute_dtype,
            )
            for (name, each), part in zip(bags.items(), parts, strict=True)
        }

    def _bags(self, name, inputs, weights):
        """Returns the `_Bags` of a feature."""
        if not isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            inputs = tf.convert_to_tensor(inputs)
        self._check(name, inputs)
        bags = _bags_of(inputs)
        ids = bags.ids
        if isinstance(self.embedding, keras.layers.Embedding):
            ids = self._not_negative(name, ids)
        if weights is not None:
            weights = _weights_of(name, inputs, weights)
        known = self.embedding.compute_mask(ids, None)
        if known is not None:
            dtype = tf.float32 if weights is None else weights.dtype
            known = tf.cast(known, dtype)
            weights = known if weights is None else known * weights
        return dataclasses.replace(bags, ids=ids, weights=weights)

    def _check(self, name, inputs):
        """Refuses a feature whose ids it cannot combine."""
        self._combiner_of(name)
        dtype = tf.as_dtype(inputs.dtype)
        takes_strings = isinstance(self.embedding, DynamicEmbedding)
        allowed = "integers or strings" if takes_strings else "integers"
        if not dtype.is_integer and not (takes_strings and dtype == tf.string):
            raise ValueError(
                checks.refusal(
                    f"EmbeddingBag: {name}",
                    f"{allowed} (begin the model with keras.Input(..., "
                    "dtype='int64'): Keras takes ids for floats)",
                    dtype.name,
                )
            )
        rank = tf.TensorShape(inputs.shape).rank
        if rank not in (None, 1, 2):
            raise ValueError(
                checks.refusal(
                    f"EmbeddingBag: {name}",
                    "of shape (batch, n) or (batch,)",
                    tuple(inputs.shape),
                )
            )

    def _combiner_of(self, name):
        """Returns the combiner of a feature."""
        if not isinstance(self.combiner, dict):
            return self.combiner
        if name not in self.combiner:
            raise ValueError(
                checks.refusal(
                    "EmbeddingBag: inputs",
                    f"a dict with some of the keys {list(self.combiner)} of "
                    "its combiners",
                    name,
                )
            )
        return self.combiner[name]

    def _not_negative(self, name, ids):
        """Returns ids that are checked when they are looked up."""
        checked = tf.debugging.Assert(
            tf.reduce_all(ids >= 0),
            [
                f"Ids of {name!r} of the EmbeddingBag {self.name!r} must be at "
                "least 0. For padding, use mask_zero=True of the Embedding, or "
                "weights of 0. Received:",
                tf.boolean_mask(ids, ids < 0),
            ],
        )
        with tf.control_dependencies([checked] if checked is not None else []):
            return tf.identity(ids)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """Returns shape and type of the output."""
        features = inputs if isinstance(inputs, dict) else {"inputs": inputs}
        outputs = {}
        for name, each in features.items():
            self._check(name, each)
            shape = each.shape[0], self.embedding.output_dim
            outputs[name] = keras.KerasTensor(shape, self.compute_dtype)
        return outputs if isinstance(inputs, dict) else outputs["inputs"]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal layer."""
        return {
            **super().get_config(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
            "combiner": (
                dict(self.combiner)
                if isinstance(self.combiner, dict)
                else self.combiner
            ),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "EmbeddingBag":
        """Makes a layer from what `get_config` returned."""
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})


@dataclasses.dataclass(frozen=True)
class _Bags:
    """The bags of one feature.

    Attributes:
      ids: `(n,)`, of all bags.
      size: Number of bags, an int or a scalar tensor.
      numbers: Of the bag of each id, an integer tensor `(n,)`; None if all
        bags have as many ids, in order.
      weights: Floats `(n,)`, or None.
    """

    ids: tf.Tensor
    size: Any
    numbers: tf.Tensor | None = None
    weights: tf.Tensor | None = None

    def combined(self, rows, combiner):
        """Returns the vectors of the bags, `(size, width)`.

        Args:
          rows: `(n, width)`, of the ids.
          combiner: See `EmbeddingBag`.
        """
        weights = self.weights
        if weights is not None:
            weights = tf.cast(weights, rows.dtype)
            rows *= weights[:, None]
        total = self._summed(rows)
        if combiner == "sum":
            return total
        if weights is None:
            weights = tf.ones_like(rows[:, 0])
        if combiner == "mean":
            return tf.math.divide_no_nan(total, self._summed(weights)[:, None])
        squares = self._summed(tf.square(weights))[:, None]
        # Not of 0, where a root has no gradient: such a total is 0 as well.
        return total * tf.math.rsqrt(tf.where(squares > 0, squares, 1))

    def _summed(self, values):
        if self.numbers is not None:
            return tf.math.unsorted_segment_sum(values, self.numbers, self.size)
        each = tf.shape(values)[0] // tf.maximum(self.size, 1)
        shape = tf.concat([[self.size, each], tf.shape(values)[1:]], 0)
        return tf.reduce_sum(tf.reshape(values, shape), 1)


def _bags_of(inputs):
    """Returns the `_Bags` of a tensor, without weights."""
    if isinstance(inputs, tf.RaggedTensor):
        return _Bags(inputs.values, inputs.nrows(), inputs.value_rowids())
    size = inputs.shape[0]
    if isinstance(inputs, tf.SparseTensor):
        size = inputs.dense_shape[0] if size is None else size
        return _Bags(inputs.values, size, inputs.indices[:, 0])
    size = tf.shape(inputs)[0] if size is None else size
    return _Bags(tf.reshape(inputs, [-1]), size)


def _weights_of(name, inputs, weights):
    """Returns the weights `(n,)` of all ids of a feature.

    Args:
      name: Of the feature.
      inputs: Its ids.
      weights: What was given as their weights.

    Raises:
      ValueError: They are of another kind or shape than the ids.
    """
    if not isinstance(weights, tf.RaggedTensor | tf.SparseTensor):
        weights = tf.convert_to_tensor(weights)
    kinds = [_kind(inputs), _kind(weights)]
    fits = inputs.shape.is_compatible_with(weights.shape)
    if len(set(kinds)) > 1 or not weights.dtype.is_floating or not fits:
        ids, found = (
            f"{kind} {each.shape} {each.dtype.name}"
            for kind, each in zip(kinds, (inputs, weights), strict=True)
        )
        raise ValueError(
            checks.refusal(
                "EmbeddingBag: weights",
                f"floats of the shape and kind of the ids of {name!r}, {ids}",
                found,
            )
        )
    message = f"Weights of {name!r} are not in the same places as its ids."
    if isinstance(inputs, tf.RaggedTensor):
        places, values = (inputs.row_splits, weights.row_splits), weights.values
    elif isinstance(inputs, tf.SparseTensor):
        places, values = (inputs.indices, weights.indices), weights.values
    else:
        return tf.reshape(tf.reshape(weights, tf.shape(inputs)), [-1])
    same = tf.raw_ops.Equal(
        x=places[0], y=places[1], incompatible_shape_error=False
    )
    checked = tf.debugging.Assert(tf.reduce_all(same), [message, *places])
    with tf.control_dependencies([checked] if checked is not None else []):
        return tf.identity(values)


def _kind(tensor):
    if isinstance(tensor, tf.RaggedTensor):
        return "ragged"
    return "sparse" if isinstance(tensor, tf.SparseTensor) else "dense"
