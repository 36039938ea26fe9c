"""The optimizers that a correction fits."""

import keras


def check_is_sgd(owner, optimizer, reason, *, momentum=True):
    """Refuses optimizers other than SGD.

    Args:
      owner: Name of the correction.
      optimizer: A Keras optimizer.
      reason: Why, for the message.
      momentum: Whether it may have momentum.

    Raises:
      ValueError: It is refused.
    """
    if not isinstance(optimizer, keras.optimizers.SGD):
        came = f"{type(optimizer).__name__}"
    elif not momentum and optimizer.momentum:
        came = (
            f"SGD(momentum={optimizer.momentum:g}, "
            f"nesterov={optimizer.nesterov})"
        )
    else:
        return
    allowed = "keras.optimizers.SGD"
    if not momentum:
        allowed += " without momentum"
    raise ValueError(
        f"Argument `optimizer` must be a {allowed} with {owner}, because "
        f"{reason}. Received: optimizer={came}"
    )
