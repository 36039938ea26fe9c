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

# Why the weights of a model may be trained ones.
_SET = "they were set since"
_ARE_SET = "_tfdist_weights_are_set"


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


class LeftOutModels:
    """Models whose last call of `fit` this process has left out.

    Args:
      config: The `ClusterConfig`.
      files: The `Files` of this task.
    """

    def __init__(self, config, files):
        self._is_chief = config.is_chief
        self._files = files
        self._written_before = files_lib.WrittenBefore()
        # By model: the number of the call; and a checksum of the weights then,
        # None if there were none yet.
        self._calls = weakref.WeakKeyDictionary()
        self._told = weakref.WeakSet()

    def add(self, model, number):
        """Takes note of a model whose call of a number is left out."""
        dynamic_subclasses.specialize(model, NotesWeights)
        vars(model)[_ARE_SET] = False
        self._calls[model] = number, _checksum(model)

    def see(self, model):
        """Makes a model follow the rule of files, as far as it is trained."""
        files = self._files
        if self._is_chief and model in self._calls:
            files = self._written_before
        if files.is_shared or isinstance(model, models.SavedByChief):
            models.see(model, files)

    def warn(self, model):
        """Called before `evaluate` and `predict`: warns once for a model."""
        if model not in self._calls or model in self._told:
            return
        if self._doubt(model) == _SET:
            return
        self._told.add(model)
        logging.warning(
            "Model %r has not been trained in this process, which has left "
            "out call %d of `fit`: `evaluate` and `predict` use the weights "
            "that it was made with.",
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
        left_out, doubt = self._calls[model][0], self._doubt(model)
        if not doubt:
            raise ProgramError(
                f"Model {model.name!r} must have trained weights for call "
                f"{number + 1} of `fit`, which would lose what was trained "
                f"before: this process has left out call {left_out + 1} of "
                "`fit` with it, and has the weights that it was made with. "
                "Load what was saved after that call before this one "
                "(`model.load_weights`)"
            )
        logging.warning(
            "Call %d of `fit` begins with the weights that model %r has in "
            "this process, which has left out call %d of `fit` with it. "
            "Whether they are trained ones cannot be known here: %s.",
            number + 1,
            model.name,
            left_out + 1,
            doubt,
        )

    def _doubt(self, model):
        """Why a model may have been trained, text; "" if it surely is not."""
        checksum = self._calls[model][1]
        if vars(model)[_ARE_SET]:
            return _SET
        if checksum is None:
            return "it was not built then"
        return "" if checksum == _checksum(model) else _SET

    def remove(self, model):
        """Called when a model takes part in a call of `fit`."""
        if self._calls.pop(model, None) is not None:
            self._told.discard(model)
            self.see(model)


def _checksum(model):
    if not model.built:
        return None
    return whole_data.checksum([v.value.value() for v in model.weights])
