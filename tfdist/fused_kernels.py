"""TensorFlow's fused kernels in the place of Keras's update rules.

Keras writes a rule as some ten operations, each of which passes over the whole
variable; a kernel passes over it once. For small variables the call costs more
than the passes, so kernels are for large ones.

A kernel takes the place of a rule that Keras's own class defines, and of no
other: a subclass with a rule of its own keeps it. Only those are here
whose kernel computes Keras's formula. Constants are rounded as the variable's
type: in float32, Adam's 1 - beta_2 = 0.001 is 0.00100005, so that its second
moment differs from Keras's by 5e-5, and a step by half of that.
"""

import inspect
import math

import keras
import tensorflow as tf

from tfdist import private_keras

FROM_BYTES = 1 << 20
"""Variables, or pieces, of so many bytes or more are updated by kernels."""

# Where a subclass has one of these of its own, it has another rule.
_METHODS = ("update_step", "assign", "assign_add", "assign_sub")
# Relative difference of an update that counts as rounding.
_TOLERANCE = 5e-7


def optimizer_of(fn):
    """The Keras optimizer whose update rule `fn` is, or None."""
    try:
        # Outside of strategy.run TensorFlow hands over a wrapper.
        owner = inspect.getclosurevars(inspect.unwrap(fn)).nonlocals.get("self")
    except TypeError:
        return None
    iterations = getattr(owner, "iterations", None)
    return owner if iterations is not None else None


def update(variable, fn, args, kwargs, shape=None):
    """Does `fn(variable, *args, **kwargs)`, by a kernel where there is one.

    Args:
      variable: The TensorFlow variable.
      fn: What Keras gives to `strategy.extended.update`.
      args: Its arguments.
      kwargs: The same.
      shape: Of the part of the variable that is updated; None for all of it.
    """
    shape = variable.shape if shape is None else tf.TensorShape(shape)
    num_bytes = shape.num_elements() * variable.dtype.size
    kernel = None
    if num_bytes >= FROM_BYTES and len(args) == 2 and not kwargs:
        kernel = _kernel_of(variable, fn, args[0])
    if kernel is None:
        return fn(variable, *args, **kwargs)
    kernel(variable, *(tf.cast(arg, variable.dtype) for arg in args))
    return None


def _kernel_of(variable, fn, gradient):
    """Returns a callable of variable, gradient and rate, or None."""
    if not isinstance(gradient, tf.Tensor) or not variable.dtype.is_floating:
        return None
    optimizer = optimizer_of(fn)
    for kind, make in _KERNELS.items():
        if (
            isinstance(optimizer, kind)
            and variable.dtype != _NOT_IN.get(kind)
            and all(
                getattr(type(optimizer), name) is getattr(kind, name)
                for name in _METHODS
            )
        ):
            return make(optimizer)
    return None


def _slot(optimizer, name, variable):
    return private_keras.slot(optimizer, name, variable).value.handle


def _power(optimizer, base, variable):
    """A decay, rounded as by Keras, to the power of the step under way."""
    step = tf.cast(optimizer.iterations + 1, variable.dtype)
    return tf.pow(tf.cast(base, variable.dtype), step)


def _sgd(optimizer):
    def descend(variable, gradient, rate):
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient
        )

    def descend_with_momentum(variable, gradient, rate):
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=_slot(optimizer, "momentums", variable),
            lr=rate,
            grad=gradient,
            # As Keras rounds it, to float32 first.
            momentum=tf.cast(optimizer.momentum, variable.dtype),
            use_nesterov=optimizer.nesterov,
        )

    return descend_with_momentum if optimizer.momentum else descend


def _adam(optimizer):
    def apply(variable, gradient, rate):
        settings = {
            "var": variable.handle,
            "m": _slot(optimizer, "_momentums", variable),
            "v": _slot(optimizer, "_velocities", variable),
            "beta1_power": _power(optimizer, optimizer.beta_1, variable),
            "beta2_power": _power(optimizer, optimizer.beta_2, variable),
            "lr": rate,
            "beta1": tf.constant(optimizer.beta_1, variable.dtype),
            "beta2": tf.constant(optimizer.beta_2, variable.dtype),
            "epsilon": tf.constant(optimizer.epsilon, variable.dtype),
            "grad": gradient,
        }
        if optimizer.amsgrad:
            largest = _slot(optimizer, "_velocity_hats", variable)
            tf.raw_ops.ResourceApplyAdamWithAmsgrad(vhat=largest, **settings)
        else:
            tf.raw_ops.ResourceApplyAdam(**settings)

    return apply


def _adagrad(optimizer):
    # The kernel adds epsilon to the root, Keras to the square. An accumulator
    # never falls below its first value, where they are furthest apart.
    least = optimizer.initial_accumulator_value
    if not _is_rounding(optimizer.epsilon, least):
        return None

    def apply(variable, gradient, rate):
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle,
            accum=_slot(optimizer, "_accumulators", variable),
            lr=rate,
            epsilon=tf.constant(optimizer.epsilon, variable.dtype),
            grad=gradient,
        )

    return apply


def _is_rounding(epsilon, square):
    """Whether sqrt(square + epsilon) is sqrt(square) + epsilon, nearly."""
    root = math.sqrt(square)
    difference = abs(math.sqrt(square + epsilon) - root - epsilon)
    return root > 0 and difference <= _TOLERANCE * root


def _rmsprop(optimizer):
    # The kernel needs a slot that Keras does not keep without momentum.
    if not optimizer.momentum:
        return None

    def apply(variable, gradient, rate):
        settings = {
            "var": variable.handle,
            "ms": _slot(optimizer, "_velocities", variable),
            "mom": _slot(optimizer, "_momentums", variable),
            "lr": rate,
            "rho": tf.constant(optimizer.rho, variable.dtype),
            "momentum": tf.constant(optimizer.momentum, variable.dtype),
            "epsilon": tf.constant(optimizer.epsilon, variable.dtype),
            "grad": gradient,
        }
        if optimizer.centered:
            mean = _slot(optimizer, "_average_gradients", variable)
            tf.raw_ops.ResourceApplyCenteredRMSProp(mg=mean, **settings)
        else:
            tf.raw_ops.ResourceApplyRMSProp(**settings)

    return apply


def _adadelta(optimizer):
    def apply(variable, gradient, rate):
        tf.raw_ops.ResourceApplyAdadelta(
            var=variable.handle,
            accum=_slot(optimizer, "_accumulated_grads", variable),
            accum_update=_slot(optimizer, "_accumulated_delta_vars", variable),
            lr=rate,
            rho=tf.constant(optimizer.rho, variable.dtype),
            epsilon=tf.constant(optimizer.epsilon, variable.dtype),
            grad=gradient,
        )

    return apply


def _adamax(optimizer):
    def apply(variable, gradient, rate):
        tf.raw_ops.ResourceApplyAdaMax(
            var=variable.handle,
            m=_slot(optimizer, "_m", variable),
            v=_slot(optimizer, "_u", variable),
            beta1_power=_power(optimizer, optimizer.beta_1, variable),
            lr=rate,
            beta1=tf.constant(optimizer.beta_1, variable.dtype),
            beta2=tf.constant(optimizer.beta_2, variable.dtype),
            epsilon=tf.constant(optimizer.epsilon, variable.dtype),
            grad=gradient,
        )

    return apply


# AdamW is an Adam: it decays weights by itself.
_KERNELS = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adam: _adam,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.RMSprop: _rmsprop,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.Adamax: _adamax,
}
# TensorFlow has no such kernel, or one that is as Keras's rule but for rounding
# in float32.
_NOT_IN = {
    keras.optimizers.Adamax: tf.bfloat16,
    keras.optimizers.Adagrad: tf.float64,
}
