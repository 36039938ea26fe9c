"""Loss scales that are those of the optimizer from the first step on."""

import keras

from tfdist import dynamic_subclasses

_EARLY = "_tfdist_early_variables"


class ScaledFromTheFirstStep:
    """A mixin: a `LossScaleOptimizer` that has its scale before it is built.

    A step that builds the optimizer has scaled its loss before that. Keras then
    takes the initial scale, a number, which stays in the step that is traced,
    while gradients are divided by the variable. Without a strategy TensorFlow
    traces a step again that has made variables; of ours it does not hear.
    """

    def scale_loss(self, loss):
        """As Keras's, but always by the variable."""
        if self.built:
            return super().scale_loss(loss)
        if _EARLY not in vars(self):
            with keras.name_scope(self.name, caller=self):
                counter = self.add_variable(
                    (), "zeros", "int", name="step_counter"
                )
                initial = keras.initializers.Constant(self.initial_scale)
                scale = self.add_variable(
                    (), initial, "float32", name="dynamic_scale"
                )
            # Not by Keras's `__setattr__`, which would track them again.
            vars(self)[_EARLY] = {
                "step_counter": counter,
                "dynamic_scale": scale,
            }
        return keras.ops.multiply(loss, vars(self)[_EARLY]["dynamic_scale"])

    def add_variable(self, *args, name=None, **kwargs):
        """As Keras's, but for what is there before it is built."""
        early = vars(self).get(_EARLY, {})
        if name in early:
            return early[name]
        return super().add_variable(*args, name=name, **kwargs)


def see(optimizer):
    """Has an optimizer that scales losses do so by its variable."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        dynamic_subclasses.specialize(optimizer, ScaledFromTheFirstStep)
