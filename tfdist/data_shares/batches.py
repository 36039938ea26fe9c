"""Data sets whose elements are examples, not batches of them."""

import keras


def check(dataset, model):
    """Refuses a data set that lacks its `batch`.

    Known are a scalar, and one dimension less than a built model's input.

    Args:
      dataset: The `tf.data.Dataset` that Keras iterates over.
      model: The `keras.Model`.

    Raises:
      ValueError: Its elements are single examples.
    """
    parts = keras.tree.flatten(_inputs(dataset.element_spec))
    shapes = [getattr(part, "shape", None) for part in parts]
    if any(shape is None or shape.rank is None for shape in shapes):
        return
    expected = _input_shapes(model)
    is_scalar = any(shape.rank == 0 for shape in shapes)
    # Of an unknown size Keras may make the batch, and add a last dimension.
    is_example = len(expected) == len(shapes) and all(
        shape.is_fully_defined()
        and shape.rank == len(whole) - 1
        and _fit(shape.as_list(), whole[1:])
        for shape, whole in zip(shapes, expected, strict=True)
    )
    if is_scalar or (is_example and expected):
        shown = ", ".join(str(tuple(shape.as_list())) for shape in shapes)
        raise ValueError(
            "The data set of `fit`, `evaluate` or `predict` must give batches: "
            "call `dataset.batch(32)`, as Keras ignores `batch_size` for data "
            f"sets. Received: elements with inputs of shape {shown}"
        )


def _inputs(spec):
    """Those of (x, y) and (x, y, sample_weight)."""
    return spec[0] if isinstance(spec, tuple) and spec else spec


def _input_shapes(model):
    """Shapes of a built model's inputs, a list of tuples; [] if not known."""
    inputs = getattr(model, "inputs", None) or []
    return [tuple(one.shape) for one in keras.tree.flatten(inputs)]


def _fit(shape, expected):
    return all(
        None in pair or pair[0] == pair[1]
        for pair in zip(shape, expected, strict=True)
    )
