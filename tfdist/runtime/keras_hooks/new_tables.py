"""The choice of those of Keras's new variables that are tables."""

import math

from absl import logging
import keras
import tensorflow as tf

from tfdist import dynamic_subclasses
from tfdist import private_keras
from tfdist import private_keras_variables
from tfdist.runtime.variables import dynamic_table
from tfdist.runtime.variables import row_index
from tfdist.runtime.variables import table_values
from tfdist.runtime.variables.variables import Role

_EMBEDDINGS = "embeddings"
# By the end of its name, the setting of an optimizer that makes such state.
_OF_WHOLE_TABLES = {
    "_gradient_accumulator": "gradient_accumulation_steps",
    "_average": "use_ema",
}


def create(store, reference, maker, kwargs):
    """Creates the variable that Keras is making, if it is a table.

    Args:
      store: The `ParameterStore`.
      reference: The variable that it is to be beside, or None.
      maker: See `private_keras_variables.variable_maker`.
      kwargs: What `tf.Variable` takes.

    Returns:
      A `TableVariable`, or None.

    Raises:
      ValueError: It is state of an optimizer that needs whole tables.
    """
    if store.tables.from_bytes is None:
        return None
    if isinstance(maker, keras.optimizers.LossScaleOptimizer):
        dynamic_subclasses.specialize(maker, ChecksRowsAlone)
    if getattr(reference, "role", None) is Role.TABLE:
        return _create_slot(store, reference, kwargs)
    is_of_layer = isinstance(maker, keras.Layer | keras.Variable)
    if not is_of_layer or not kwargs.get("trainable"):
        return None
    making = private_keras_variables.making()
    if making is None:
        return None
    if isinstance(making.initializer, dynamic_table.DynamicRows):
        return _create_dynamic(store, making, kwargs)
    if not _may_be_table(store, making.variable):
        return None
    shape = tuple(making.variable.shape)
    build_values = table_values.by_partition(making.initializer, shape)
    why_not = None
    if not _is_of_embedding(making.variable, maker):
        why_not = (
            "it is not of a keras.layers.Embedding or a subclass. Only these "
            "are known to look up rows, as tables on servers require"
        )
    elif build_values is None:
        why_not = (
            f"{making.initializer!r} makes values as a whole only. Tables on "
            "servers are initialised by Zeros, Ones, Constant, RandomUniform, "
            "RandomNormal, TruncatedNormal or VarianceScaling"
        )
    if why_not is not None:
        logging.warning(
            "%r has a replica on each worker, although it has %d bytes: %s.",
            making.variable.path,
            _num_bytes(making.variable),
            why_not,
        )
        return None
    private_keras.read_by_rows(making.variable)
    return _create(store, None, making.variable, build_values, kwargs)


class ChecksRowsAlone:
    """A mixin: a `LossScaleOptimizer` that looks at rows with gradients only.

    Keras's own makes a tensor as large as the table, and takes ids of dynamic
    tables for numbers of its rows.
    """

    def check_finite(self, grads):
        """As Keras's; absent rows are zeros, which are finite."""
        return super().check_finite(
            [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        )


def _create_slot(store, table, kwargs):
    making = private_keras_variables.making()
    optimizer = private_keras_variables.optimizer_under_way()
    for ending, setting in _OF_WHOLE_TABLES.items():
        is_named = (kwargs.get("name") or "").endswith(ending)
        if is_named and getattr(optimizer, setting, None):
            raise table.refusal(f"{setting} of the optimizer")
    shape = tuple(table.shape)
    build_values = None
    if making is not None and tuple(making.variable.shape) == shape:
        build_values = table_values.by_partition(making.initializer, shape)
    if build_values is None:
        raise table.refusal(
            f"state of an optimizer, {kwargs.get('name')!r}, that is not made "
            "row by row"
        )
    slot = _create(store, table, making.variable, build_values, kwargs)
    if table.is_dynamic:
        table.slots.append(slot)
    return slot


def _create_dynamic(store, making, kwargs):
    """A dynamic table, and the columns of integers beside it."""
    if store.tables.rule != "lazy":
        raise ValueError(
            "Argument `table_rule` of the strategy must be 'lazy' with "
            "tfdist.layers.DynamicEmbedding. Received: "
            f"table_rule={store.tables.rule!r}"
        )
    maker = making.initializer
    table = _create(
        store,
        None,
        making.variable,
        _filled_with(0),
        kwargs,
        rows_maker=maker,
    )
    columns = {"ids": row_index.EMPTY, "updated": 0}
    if maker.admit_after > 1:
        columns["asked"] = 0
    for name, value in columns.items():
        table.columns[name] = store.create_table(
            table,
            shape=(table.shape[0], 1),
            path=f"{table.path}/{name}",
            build_values=_filled_with(value),
            **{**_known(kwargs), "dtype": tf.int64, "trainable": False},
        )
    table.columns["updated"].holds_updates = True
    return table


def _filled_with(value):
    return lambda _, part, dtype: tf.fill(part, tf.constant(value, dtype))


def _create(store, reference, variable, build_values, kwargs, **more):
    return store.create_table(
        reference,
        shape=tuple(variable.shape),
        path=variable.path,
        build_values=build_values,
        **_known(kwargs),
        **more,
    )


def _known(kwargs):
    return {k: kwargs[k] for k in kwargs if k not in ("initial_value", "shape")}


def _may_be_table(store, variable):
    return (
        variable.path.rsplit("/", 1)[-1] == _EMBEDDINGS
        and len(variable.shape) == 2
        and tf.as_dtype(variable.dtype).is_floating
        and _num_bytes(variable) >= store.tables.from_bytes
    )


def _is_of_embedding(variable, maker):
    """Whether a variable that is being made is of an `Embedding`.

    Another layer may read all of a matrix that it calls `embeddings`.
    """
    if isinstance(maker, keras.Layer):
        return isinstance(maker, keras.layers.Embedding)
    # Keras has put it off until the layers around it were traced.
    return any(
        isinstance(layer, keras.layers.Embedding)
        and any(weight is variable for weight in layer.weights)
        for outer in private_keras_variables.layers_under_way()
        for layer in private_keras.with_sublayers(outer)
    )


def _num_bytes(variable):
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
