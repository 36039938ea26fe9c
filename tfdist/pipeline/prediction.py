"""SpecTrain's prediction: what the weights will be some updates from now.

The gradients of the next updates are not known, but an optimizer with
momentum knows about where they go: it has a smoothed gradient v. SpecTrain
(Chen, Yang and Cheng 2018, arXiv:1809.02839, equation 4) takes

    W(t + s) = W(t) - s * eta * v(t - 1)

for the weights after s further updates. In general that is s times the step
that the optimizer would take if the gradient went on as it is on average:

- SGD: Keras' momentum is m = gamma * m - eta * g, of which eta * v is -m, so
  W + s * m, with Nesterov's momentum as well.
- RMSprop with momentum: W - s * m.
- Adam and AdamW, after t updates: W - s * eta * sqrt(1 - beta_2^t) /
  (1 - beta_1^t) * m / (sqrt(v) + epsilon), the step that Keras would take.
  XPipe (Guan et al. 2019) is the same but for where epsilon is added.
- Adamax: W - s * eta * m / (1 - beta_1^t) / (u + epsilon).
- Lion: W - s * eta * sign(m).

Weight decay is left out: it is a small part of a step. Before the first
update all of these are W itself.
"""

import keras
import tensorflow as tf

from tfdist import private_keras


def check(optimizer):
    """Refuses an optimizer without a smoothed gradient.

    Args:
      optimizer: A `keras.Optimizer`.

    Raises:
      ValueError: It has no momentum, or is of a kind with no known rule.
    """
    if _rule(optimizer) is None:
        raise ValueError(
            "optimizer must have a smoothed gradient for the schedule "
            "'spectrain', from which the weights are predicted: SGD or "
            "RMSprop with momentum above 0, Adam, AdamW, Adamax or Lion. "
            f"Received: {type(optimizer).__name__}"
            + (
                f" with momentum={optimizer.momentum}."
                if hasattr(optimizer, "momentum")
                else "."
            )
        )


def predict(optimizer, variables, updates_ahead, updates):
    """The weights that there will be after some further updates.

    Args:
      optimizer: A built `keras.Optimizer` that `check` lets pass.
      variables: Trainable Keras variables that it was built with.
      updates_ahead: By how many updates, s, an int. With 0 the weights stay
        exactly as they are.
      updates: How many updates were made of these variables, t, an integer
        tensor [].

    Returns:
      A list of tensors of the variables' shapes and dtypes. The variables
      keep their values.
    """
    weights = [tf.convert_to_tensor(v.value) for v in variables]
    if not updates_ahead:
        return weights
    rule = _rule(optimizer)
    scope = keras.StatelessScope(
        state_mapping=[(optimizer.iterations, updates)]
    )
    with scope:
        rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
    found = []
    for variable, weight in zip(variables, weights, strict=True):

        def slot(name, variable=variable, dtype=weight.dtype):
            value = private_keras.slot(optimizer, name, variable)
            return tf.cast(value.value, dtype)

        step = rule(
            optimizer,
            slot,
            tf.cast(rate, weight.dtype),
            tf.cast(updates, weight.dtype),
        )
        found.append(weight + updates_ahead * step)
    return found


def _rule(optimizer):
    """A function of (optimizer, slot, rate, updates) to a step, or None."""
    for kind, rule in (
        (keras.optimizers.SGD, _sgd),
        (keras.optimizers.RMSprop, _rmsprop),
        (keras.optimizers.Adamax, _adamax),
        (keras.optimizers.Lion, _lion),
        (keras.optimizers.Adam, _adam),
    ):
        if isinstance(optimizer, kind):
            without = rule in (_sgd, _rmsprop) and not optimizer.momentum
            return None if without else rule
    return None


def _sgd(optimizer, slot, rate, updates):
    return slot("momentums")


def _rmsprop(optimizer, slot, rate, updates):
    return -slot("_momentums")


def _adam(optimizer, slot, rate, updates):
    second = "_velocity_hats" if optimizer.amsgrad else "_velocities"
    rate *= tf.sqrt(_bias(optimizer.beta_2, updates))
    rate /= _bias(optimizer.beta_1, updates)
    return (
        -rate * slot("_momentums") / (tf.sqrt(slot(second)) + optimizer.epsilon)
    )


def _adamax(optimizer, slot, rate, updates):
    mean = slot("_m") / _bias(optimizer.beta_1, updates)
    return -rate * mean / (slot("_u") + optimizer.epsilon)


def _lion(optimizer, slot, rate, updates):
    return -rate * tf.sign(slot("_momentums"))


def _bias(beta, updates):
    """Returns 1 - beta^t, the bias of a moving mean that started at 0."""
    # Before the first update, when the mean is 0, it would be 0 too.
    return 1 - tf.pow(tf.cast(beta, updates.dtype), tf.maximum(updates, 1))
