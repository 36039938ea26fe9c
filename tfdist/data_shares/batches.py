"""Data sets whose elements are examples, not batches of them."""

import keras

from tfdist import private_keras_building


def check(dataset, model):
    """Refuses a data set that lacks its `batch`.

    Known are a scalar, unless the `train_step` is the user's own, and one
    dimension less than a built model's input.

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
    is_scalar = not private_keras_building.has_own_train_step(model) and any(
        shape.rank == 0 for shape in shapes
    )
    expected = _input_shapes(model)
    pairs = list(zip(shapes, expected, strict=False))
    is_example = (
        bool(expected)
        and len(expected) == len(shapes)
        and all(_is_example(*pair) for pair in pairs)
        # Of one number Keras makes a batch of one example.
        and not all(_is_one_number(*pair) for pair in pairs)
    )
    if is_scalar or is_example:
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


def _is_example(shape, whole):
    # Of an unknown size Keras may make the batch, and add a last dimension.
    return (
        shape.is_fully_defined()
        and shape.rank == len(whole) - 1
        and _fit(shape.as_list(), whole[1:])
    )


def _is_one_number(shape, whole):
    return set(shape.as_list()) == set(whole[1:]) == {1}


def _fit(shape, expected):
    return all(
        None in pair or pair[0] == pair[1]
        for pair in zip(shape, expected, strict=True)
    )
