"""Callbacks that save or show models with tables, seen when `fit` begins.

What they cannot do is refused before anything is trained, if the model is built
by then. Keras may build it before the first step, or within it.
"""

import keras

from tfdist import own_callbacks
from tfdist.runtime.variables.variables import Role


class LateCheck:
    """Repeats `check` around the first training step of a call of `fit`.

    Args:
      model: The `keras.Model`.
      store: The `ParameterStore`.
      callbacks: What `fit` was given.
    """

    def __init__(self, model, store, callbacks):
        self._of = model, store
        self._callbacks = callbacks

    def call(self, call_in_fit, function, *args):
        """Calls a training step."""
        if self._callbacks is None:
            return call_in_fit(function, *args)
        # The model keeps this longer than Keras keeps them.
        callbacks, self._callbacks = self._callbacks, None
        check(tables_of(*self._of), callbacks)
        result = call_in_fit(function, *args)
        check(tables_of(*self._of), callbacks)
        return result


def tables_of(model, store):
    """Returns the tables of a `keras.Model`, a list of `TableVariable`.

    Args:
      model: The model. What it has not made yet is not among them.
      store: The `ParameterStore`.
    """
    if store.tables.from_bytes is None:
        return []
    variables = (getattr(v, "value", None) for v in model.variables)
    return [v for v in variables if getattr(v, "role", None) is Role.TABLE]


def check(tables, callbacks):
    """Refuses callbacks that could not save, restore or show a table.

    Args:
      tables: Those of the model.
      callbacks: What `fit` was given.

    Raises:
      ValueError: There is one.
    """
    if not tables:
        return
    largest = max(tables, key=lambda table: table.num_bytes)
    for callback in own_callbacks.listed(callbacks):
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise largest.refusal_to_save(
                f"the callback {name}, which could not restore its rows"
            )
        unfit = next((t for t in tables if not t.fits_file), None)
        if unfit is not None and (
            isinstance(callback, keras.callbacks.ModelCheckpoint)
            or (
                isinstance(callback, keras.callbacks.TensorBoard)
                and callback.embeddings_freq
            )
        ):
            raise unfit.refusal_to_save(f"the callback {name}")
        if (
            isinstance(callback, keras.callbacks.TensorBoard)
            and callback.histogram_freq
        ):
            raise largest.refusal(
                f"the callback {name} with histogram_freq="
                f"{callback.histogram_freq!r}, which reads all its values"
            )
        if (
            isinstance(callback, keras.callbacks.EarlyStopping)
            and callback.restore_best_weights
        ):
            raise largest.refusal(
                f"the callback {name} with restore_best_weights=True, which "
                "reads and sets all its values"
            )
