"""Optimizers and variables that workers which send to each other refuse."""

from tfdist import model_optimizers


def check(optimizer, variables, strategy):
    """Refuses what would not be the same on all workers, or what is lost.

    Args:
      optimizer: A Keras optimizer.
      variables: Keras variables that it trains.
      strategy: Name of the strategy, for messages.

    Raises:
      NotImplementedError: The optimizer or a variable is not supported.
    """
    # Of one that scales the loss, the one that takes the steps.
    one = getattr(optimizer, "inner_optimizer", optimizer)
    # A `MultiOptimizer`, which older versions of Keras do not have.
    if hasattr(one, "optimizers"):
        raise NotImplementedError(
            f"With {strategy} an optimizer must have one learning rate, "
            "which is sent with what it does: use a single optimizer, or "
            "several that each take a step of their own. Received: "
            f"{one.name!r} of class {type(one).__name__}."
        )
    if getattr(one, "use_ema", False):
        raise NotImplementedError(
            f"With {strategy} other workers change weights as well, of "
            "which an average of the weights that replaces them knows "
            "nothing: use optimizers without `use_ema`. Received: "
            f"{one.name!r} with use_ema=True."
        )
    model_optimizers.check_adds_updates(one, strategy)
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise NotImplementedError(
                f"With {strategy} other workers change weights as well, and "
                "a variable that its gradient overwrites (of float8 layers) "
                f"loses what they send. Received: {variable.path!r} with "
                "overwrite_with_gradient=True."
            )
        constraint = getattr(variable, "constraint", None)
        if constraint is not None:
            raise NotImplementedError(
                f"With {strategy} other workers change weights as well, after "
                "which a constraint does not hold. Received: "
                f"{variable.path!r} with constraint="
                f"{type(constraint).__name__}."
            )
