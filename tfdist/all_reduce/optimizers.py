"""Keras optimizers whose step is one of all workers."""

import weakref

import keras

from tfdist import dynamic_subclasses
from tfdist import model_optimizers
from tfdist import private_keras

_ENGINE = "_tfdist_engine"


class AllReducedOptimizer:
    """A mixin: an optimizer that applies the mean gradients of all workers.

    Gradients are reduced before all that `apply`, or an `apply_gradients` of
    the user's own, does: accumulation, clipping and loss scales see the means,
    the same on all workers. Where an optimizer leaves its step to another that
    it holds, the step is that one's: its counter, slots and loss scale count.
    """

    def apply(self, grads, trainable_variables=None):
        """As Keras's; in a step of the strategy, of the mean gradients."""
        engine = vars(self)[_ENGINE]()
        if engine is None or engine.is_applying:
            return super().apply(grads, trainable_variables)
        return engine.step_of(self).apply(
            self, list(grads), trainable_variables
        )

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """The same; Keras's own does nothing but call `apply`."""
        engine = vars(self)[_ENGINE]()
        if (
            engine is None
            or engine.is_applying
            or not engine.updates_alike
            or not _has_own_apply_gradients(self)
        ):
            return super().apply_gradients(grads_and_vars, *args, **kwargs)
        if args or kwargs:
            raise NotImplementedError(
                f"`apply_gradients` of optimizer {self.name!r} takes gradients "
                "and variables alone in a step of AllReduceStrategy: workers "
                "without a batch take the same step. Keep the others in "
                "variables of it that are alike on all workers. Received: "
                f"{[*args, *kwargs]}"
            )
        grads, variables = zip(*grads_and_vars, strict=True)
        engine.step_of(self).apply(self, grads, variables, by_pairs=True)
        return self.iterations


def see(optimizer, engine):
    """Makes an optimizer one whose step is one of all workers."""
    dynamic_subclasses.specialize(optimizer, AllReducedOptimizer)
    # Not by Keras's `__setattr__`: its `__init__` may still be under way.
    vars(optimizer)[_ENGINE] = weakref.ref(engine)


def _has_own_apply_gradients(optimizer):
    # Not `type`, which is a specialized class.
    stock = keras.optimizers.Optimizer.apply_gradients
    is_own = optimizer.__class__.apply_gradients is not stock
    return is_own and not model_optimizers.holds_others(optimizer)


def apply(optimizer, gradients, variables, by_pairs=False):
    """Takes Keras's step.

    A `MultiOptimizer` takes the gradients of all variables that it trains,
    None where there is none.

    Args:
      optimizer: The Keras optimizer.
      gradients: List of tensors.
      variables: Keras variables that they are of, in the same order.
      by_pairs: Whether it is `apply_gradients` that takes it, not `apply`.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if hasattr(inner, "optimizers"):
        found = {
            id(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }
        trained = private_keras.trained_by(optimizer)
        # Keras refuses those of `variables` that it does not train.
        by_id = {id(v): v for v in [*trained, *variables]}
        variables = list(by_id.values())
        gradients = [found.get(key) for key in by_id]
    if by_pairs:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    else:
        optimizer.apply(gradients, variables)
