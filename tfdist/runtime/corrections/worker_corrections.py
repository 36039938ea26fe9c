"""Corrections of gradients that a worker makes itself, before a push."""

import tensorflow as tf

from tfdist.runtime.corrections import saved_slots
from tfdist.runtime.corrections.parameter_correction import ParameterCorrection
from tfdist.runtime.corrections.slots import PendingSlots
from tfdist.runtime.corrections.slots import WorkerSlots
from tfdist.runtime.corrections.slots import dtype_of


class WorkerCorrections:
    """Gives a `Correction` what it keeps on this worker.

    Args:
      store: The `ParameterStore`.
      state: The `TrainingState`, which may have some of it.
      correction: The `Correction`.
      num_workers: Number of workers.
    """

    def __init__(self, store, state, correction, num_workers):
        self._store = store
        self._state = state
        self._correction = correction
        self._num_workers = num_workers
        # By step counter and variable.
        self._kept = {}

    def variables(self):
        """Returns this worker's slots, a dict of name to variable."""
        return {
            _key(counter, ordinal, name): variable
            for (counter, ordinal), slots in self._kept.items()
            for name, variable in slots.variables.items()
        }

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        for key in list(self._kept):
            if ordinals & set(key):
                del self._kept[key]

    def correct(self, gradient, variable, counter):
        """Builds the correction of one gradient.

        Args:
          gradient: A tensor, or `tf.IndexedSlices`.
          variable: Its variable.
          counter: The step counter of the optimizer.

        Returns:
          The corrected one; and the `PendingSlots` to settle when it is known
          whether the update is made.
        """
        slots = PendingSlots(self._slots(counter, variable))
        one = ParameterCorrection(self._correction, slots)
        return one.correct(gradient, shape=variable.shape), slots

    def _slots(self, counter, variable):
        key = (counter.ordinal, variable.ordinal)
        if key not in self._kept:
            shapes = self._correction.slots(
                variable.shape.as_list(), self._num_workers
            )
            dtype = dtype_of(variable)

            def first(name, shape):
                saved = self._state.slot_of_worker(_key(*key, name))
                if saved is None:
                    return tf.zeros(shape, dtype)
                return tf.constant(saved, dtype)

            self._kept[key] = WorkerSlots(
                {
                    name: self._store.worker_variable(
                        lambda name=name, shape=shape: first(name, shape),
                        f"correction_{name}",
                    )
                    for name, shape in shapes.items()
                }
            )
        return self._kept[key]


def _key(counter, ordinal, name):
    return f"{saved_slots.ON_WORKER}{counter}/{ordinal}/{name}"
