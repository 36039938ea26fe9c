"""Models of calls of `fit` that a restarted process leaves out.

They keep the weights that they were made with, which nobody is to take for
those that the process before has trained.
"""

import weakref

from absl import logging

from tfdist import dynamic_subclasses
from tfdist.program_error import ProgramError
from tfdist.sandblaster import whole_data
from tfdist.saving import files as files_lib
from tfdist.saving import models

# Of a model: whether its weights were set since a call with it was left out,
# and a checksum of those that it had in that call, None until it is built.
_ARE_SET = "_tfdist_weights_are_set"
_HELD = "_tfdist_weights_left_out"


class NotesWeights:
    """A mixin: a model that notes that its weights were set.

    They may be as they were before: those that each fold begins with.
    """

    def set_weights(self, weights):
        """As Keras's."""
        super().set_weights(weights)
        vars(self)[_ARE_SET] = True

    def load_weights(self, *args, **kwargs):
        """As Keras's."""
        result = super().load_weights(*args, **kwargs)
        vars(self)[_ARE_SET] = True
        return result

    def make_train_function(self, *args, **kwargs):
        """As Keras's; the call of `fit` that is left out has built it."""
        result = super().make_train_function(*args, **kwargs)
        if vars(self)[_HELD] is None:
            vars(self)[_HELD] = _checksum(self)
        return result


class LeftOutModels:
    """Models whose last call of `fit` this process has left out.

    Args:
      config: The `ClusterConfig`.
      files: The `Files` of this task.
    """

    def __init__(self, config, files):
        self._is_chief = config.is_chief
        self._files = files
        # By model: the number of the call; and the `Files` until one with it
        # takes part.
        self._calls = weakref.WeakKeyDictionary()
        self._told = weakref.WeakSet()

    def add(self, model, number):
        """Takes note of a model whose call of a number is left out."""
        dynamic_subclasses.specialize(model, NotesWeights)
        vars(model).update({_ARE_SET: False, _HELD: _checksum(model)})
        reference = weakref.ref(model)
        files = self._files
        if self._is_chief:
            files = files_lib.WrittenBefore(
                files, lambda: _is_as_left_out(reference())
            )
        self._calls[model] = number, files

    def see(self, model):
        """Makes a model follow the rule of files, as far as it is trained."""
        _, files = self._calls.get(model, (None, self._files))
        if files.is_shared or isinstance(model, models.SavedByChief):
            models.see(model, files)

    def warn(self, model):
        """Called before `evaluate` and `predict`: warns once for a model."""
        if model not in self._calls or model in self._told:
            return
        if not _is_as_left_out(model):
            return
        self._told.add(model)
        logging.warning(
            "Model %r has the weights that it had before call %d of `fit`, "
            "which this process has left out: `evaluate` and `predict` use "
            "them.",
            model.name,
            self._calls[model][0] + 1,
        )

    def check(self, model, number):
        """Called before a call of `fit` that begins with the weights here.

        Args:
          model: The `keras.Model`.
          number: Of the call.

        Raises:
          ProgramError: They are untrained, for sure.
        """
        if model not in self._calls:
            return
        left_out, _ = self._calls[model]
        if _is_as_left_out(model):
            raise ProgramError(
                f"Model {model.name!r} must have trained weights for call "
                f"{number + 1} of `fit`, which would lose what was trained "
                f"before: this process has left out call {left_out + 1} of "
                "`fit` with it, and has the weights from before that call. "
                "Load what was saved after it (`model.load_weights`). If call "
                f"{number + 1} is to begin with the weights that are there, "
                "say so: `model.set_weights(model.get_weights())`"
            )
        logging.warning(
            "Call %d of `fit` begins with the weights that model %r has in "
            "this process, which has left out call %d of `fit` with it. "
            "Whether they are trained ones cannot be known here: they were "
            "set since.",
            number + 1,
            model.name,
            left_out + 1,
        )

    def remove(self, model):
        """Called when a model takes part in a call of `fit`."""
        if self._calls.pop(model, None) is not None:
            self._told.discard(model)
            self.see(model)


def _is_as_left_out(model):
    """Whether a model surely has the weights of the call that is left out.

    Others train its layers, too, and not all that sets weights is noted.
    """
    state = vars(model)
    return not state[_ARE_SET] and state[_HELD] == _checksum(model)


def _checksum(model):
    if not model.built:
        return None
    return whole_data.checksum([v.value.value() for v in model.weights])
