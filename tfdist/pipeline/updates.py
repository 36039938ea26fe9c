"""The updates of one stage's weights, each when its own backward is done.

Stages update at different times: while the last one has made t updates, the
first one has made K - 1 fewer. The model's one optimizer serves them all. Its
slots belong to weights, but it has one counter of updates, from which learning
rate schedules and Adam's bias correction are computed; so each stage shows it
its own count.
"""

import keras
import tensorflow as tf

from tfdist import private_keras

# Optimizers with something that all updates of a step share, and what that is.
# Older versions of Keras have the first two alone.
SHARED = {
    getattr(keras.optimizers, name): reason
    for name, reason in (
        ("LossScaleOptimizer", "its scale belongs to all weights"),
        ("Nadam", "its product of momenta belongs to all weights"),
        ("Muon", "it tells weights by names of all of them"),
        (
            "MultiOptimizer",
            "each of its optimizers counts updates of weights of all stages",
        ),
    )
    if hasattr(keras.optimizers, name)
}


def check(optimizer):
    """Refuses an optimizer that must see all weights at once.

    Args:
      optimizer: A `keras.Optimizer`, or None.

    Raises:
      ValueError: It is None, or has a setting that needs the gradients or
        the weights of all stages at one time.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "Argument `optimizer` must be a keras.optimizers.Optimizer: "
            f"compile the model with one. Received: optimizer={optimizer!r}"
        )
    name = type(optimizer).__name__
    for kind, reason in SHARED.items():
        if isinstance(optimizer, kind):
            raise ValueError(
                f"Argument `optimizer` must not be {kind.__name__} in a "
                "pipeline without flushes, where stages update at different "
                f"times: {reason}. Received: optimizer={name}"
            )
    if private_keras.has_step_of_its_own(optimizer):
        raise ValueError(
            "Argument `optimizer` must not have an `apply` or "
            "`apply_gradients` of its own in a pipeline without flushes, where "
            "stages update at different times: each stage's weights would be "
            "updated without those of the others. Received: "
            f"optimizer={name}"
        )
    for setting, neutral, reason in (
        ("global_clipnorm", None, "the norm is that of all gradients"),
        ("gradient_accumulation_steps", None, "use micro_batches"),
        ("use_ema", False, "the averages belong to all weights"),
        ("loss_scale_factor", None, "the loss is not scaled"),
    ):
        value = getattr(optimizer, setting, neutral)
        if value != neutral:
            raise ValueError(
                f"Argument `{setting}` of the optimizer must be {neutral} in "
                "a pipeline without flushes, where stages update at different "
                f"times: {reason}. Received: {setting}={value!r}"
            )


def apply(optimizer, gradients, variables, updates):
    """Updates the weights of one stage, as its own step of the optimizer.

    Args:
      optimizer: A `keras.Optimizer` built with all weights of the model. Its
        `iterations` stay as they are.
      gradients: One per variable, None where there is none.
      variables: Trainable Keras variables.
      updates: How many updates were made of them, an integer tensor [].
    """
    pairs = [
        (g, v)
        for g, v in zip(gradients, variables, strict=True)
        if g is not None
    ]
    if not pairs:
        return
    gradients, variables = zip(*pairs, strict=True)
    # Keras' TensorFlow optimizers assign to the variables of TensorFlow. The
    # scope holds the counter, and what is assigned to variables of Keras: by
    # constraints, and by optimizers of the user's own, also to their slots.
    scope = keras.StatelessScope(
        state_mapping=[(optimizer.iterations, updates)]
    )
    with scope:
        optimizer.apply(gradients, variables)
    for variable in (*variables, *optimizer.variables):
        value = scope.get_current_value(variable)
        if value is not None and variable is not optimizer.iterations:
            variable.value.assign(tf.cast(value, variable.value.dtype))
