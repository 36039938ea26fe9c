"""Gradients that are None: Keras's error and its warning."""

import warnings


def refuse_or_warn(grads, variables):
    """Refuses or warns as Keras does, which sees no gradients that are None.

    Raises:
      ValueError: All are None.
    """
    missing = [
        getattr(variable, "path", variable.name)
        for gradient, variable in zip(grads, variables, strict=True)
        if gradient is None
    ]
    if missing and len(missing) == len(variables):
        raise ValueError("No gradients provided for any variable.")
    if missing:
        warnings.warn(
            f"Gradients do not exist for variables {missing} when minimizing "
            "the loss. If using `model.compile()`, did you forget to provide "
            "a `loss` argument?",
            stacklevel=2,
        )
