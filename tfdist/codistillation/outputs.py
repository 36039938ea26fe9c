"""Models with several outputs: what is said of each of them."""

from keras import tree


def names_of(y_pred, output_names=None):
    """Returns the names of a model's outputs, as in Keras's `loss=`.

    Args:
      y_pred: Output of the model: a tensor, or a list, tuple or dict of such.
      output_names: The model's own names of its outputs, or None.

    Returns:
      A list of hashable names, one per tensor, in the order of `tree.flatten`.

    Raises:
      ValueError: There are outputs within outputs.
    """
    number = len(tree.flatten(y_pred))
    if isinstance(y_pred, dict):
        names = sorted(y_pred)
        if len(names) != number:
            raise ValueError(
                "Outputs within outputs cannot be codistilled, the model has: "
                f"{tree.map_structure(lambda _: '...', y_pred)}."
            )
        return names
    if output_names and len(output_names) == number:
        return list(output_names)
    return list(range(number))


def spread(value, y_pred, names, what):
    """One value per output.

    Args:
      value: One for all outputs; or a dict by name; or a list or tuple in the
        order of the outputs (of a dict, that of its sorted names, as Keras
        has it).
      y_pred: As in `names_of`.
      names: What that returned.
      what: Name of the argument, for errors.

    Returns:
      A list.

    Raises:
      ValueError: Not each output has a value, or there are others.
    """
    if isinstance(value, dict):
        unknown = set(value) - set(names)
        if unknown:
            raise ValueError(
                f"{what} names outputs that the model does not have: "
                f"{sorted(unknown, key=str)}. It has: {names}."
            )
        return [value.get(name) for name in names]
    if isinstance(value, (list, tuple)):
        if len(value) != len(names):
            raise ValueError(
                f"{what} has {len(value)} entries for {len(names)} outputs: "
                f"{names}."
            )
        return list(value)
    return [value] * len(names)
