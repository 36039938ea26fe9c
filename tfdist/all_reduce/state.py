"""The state of a run, read on one worker and put back on all."""

import contextlib
import io
import re

import numpy as np
import tensorflow as tf

from tfdist import null_methods
from tfdist import saved_state
from tfdist.all_reduce.variables import Kind

# Names of the state of a codec, which had a number in earlier versions.
_OF_CODEC = re.compile(r"tfdist/.*/lane\d+/\d+/")


class AllReduceState(tf.train.experimental.PythonState):
    """Reads the state of one strategy, and puts one back.

    Can be part of a `tf.train.Checkpoint`: there it is what Keras does not
    know of, the random streams and the number of updates.

    Args:
      engine: The `Engine`.
    """

    def __init__(self, engine):
        super().__init__()
        self._engine = engine
        # Arrays that were put back last, for variables that come later, and
        # signatures of all variables that were there.
        self._saved, self._signatures = {}, []

    def read(self, everything=True):
        """Reads the state; what belongs to one worker is this worker's.

        Args:
          everything: Whether variables of models and their optimizers are
            part of it; else only what Keras does not know of.

        Returns:
          A `SavedState`.
        """
        found = dict(self._variables())
        arrays = {
            f"variable/{number}": variable.numpy()
            for number, variable in found.items()
            if everything or variable.is_seed
        }
        for name, variable in self._engine.named.items():
            arrays[name] = variable.numpy()
        header = {
            "updates": self._engine.journal.updates,
            "num_workers": self._engine.config.num_workers,
            "variables": [
                _signature(found[k]) if k in found else None
                for k in range(len(self._engine.variables))
            ],
        }
        return saved_state.SavedState(header, {**self._saved, **arrays})

    def loading(self):
        """See `TrainingState.loading`; no server knows better."""
        return contextlib.nullcontext()

    def restore(self, saved):
        """Puts a state back, now and as variables come to be.

        Each worker takes all of it but what belongs to the worker that has
        saved it: of that the chief takes all, others the seeds, each for a
        random stream of its own.

        Args:
          saved: A `SavedState`.

        Raises:
          ModelMismatchError: It is of other variables.
        """
        arrays, known = dict(saved.arrays), saved.header["variables"]
        _refuse_numbered(known)
        for number, variable in self._variables():
            there = known[number] if number < len(known) else None
            mine = _signature(variable)
            if there is not None and there[1:] != mine[1:]:
                raise saved_state.ModelMismatchError(
                    "The saved state is of another model or optimizer. First "
                    f"difference, variable number {number}: here {mine}; "
                    f"saved {there}."
                )
        if saved.is_partial:
            # What lanes of other models have yet to take.
            left = self._saved.items()
            left = {k: v for k, v in left if k.startswith("codec/")}
            arrays = {**left, **arrays}
        self._saved, self._signatures = arrays, known
        self._engine.journal.set_updates(saved.header["updates"])
        for number, variable in self._variables():
            self._put(f"variable/{number}", variable)
        for name, variable in self._engine.named.items():
            self._put(name, variable)

    def variable_was_made(self, variable):
        """Called when a variable has been made.

        Raises:
          ModelMismatchError: The saved state has another one in its place.
        """
        if variable.saved_as is not None:
            self._put(variable.saved_as, variable)
            return
        number = len(self._engine.variables) - 1
        if f"variable/{number}" in self._saved:
            there, mine = self._signatures[number], _signature(variable)
            if there is not None and there[1:] != mine[1:]:
                raise saved_state.ModelMismatchError(
                    f"Variable number {number} of this process is {mine}; in "
                    f"the checkpoint that was restored it is {there}. The run "
                    "that saved it has made variables in its steps: build "
                    "metrics and further optimizers before `fit`."
                )
        self._put(f"variable/{number}", variable)

    def _put(self, name, variable):
        value = self._saved.pop(name, None)
        is_chief = self._engine.is_chief
        if value is None:
            return
        there, mine = [value.dtype.name, [*value.shape]], _signature(variable)
        if variable.saved_as is not None and there != mine[1:]:
            raise saved_state.ModelMismatchError(
                f"The state of a codec is {mine}; in the checkpoint that was "
                f"restored it is {there}, that of another codec or of one with "
                "other settings."
            )
        if variable.kind is Kind.OWN and not (is_chief or variable.is_seed):
            if not variable.is_accumulator:
                return
            value = np.zeros_like(value)
        if not is_chief:
            value = variable.at_begin_of_update(value)
        with self._engine.applying():
            variable.assign(tf.constant(value, variable.dtype))
        if variable.is_seed:
            variable.spread_seed(self._engine.config.worker_id)

    def end_fit(self, model):
        """See `TrainingState.end_fit`; a codec's state comes with a step."""

    def numbers_of(self, variables):
        """Positions of variables in the order of creation, ints or None."""
        numbers = {id(v): number for number, v in self._variables()}
        return [numbers.get(id(variable)) for variable in variables]

    def arrays_of(self, variables, optimizers):
        """Names of the arrays of variables, and of codecs of optimizers."""
        numbers = self.numbers_of(variables)
        names = [f"variable/{k}" for k in numbers if k is not None]
        return [*names, *self._engine.names_of(optimizers)]

    # Of a call of `fit`, for callbacks: none here has a number that all workers
    # know, or is over elsewhere.
    fit_number, is_passed, takes_no_step = 0, False, False
    look_again = null_methods.nothing

    def await_readers(self):
        """See `TrainingState.await_readers`; one death has ended all."""
        fits = self._engine.fits
        if self._engine.updates_alike and not (
            fits.is_running or fits.is_ending
        ):
            self._engine.barrier()

    def _variables(self):
        for number, reference in enumerate(self._engine.variables):
            if (variable := reference()) is not None:
                yield number, variable

    # As part of a `tf.train.Checkpoint`.

    def serialize(self):
        """Returns the state that Keras does not know of, bytes."""
        file = io.BytesIO()
        saved_state.write(self.read(everything=False), file)
        return file.getvalue()

    def deserialize(self, string_value):
        """Puts back what `serialize` gave.

        Args:
          string_value: Bytes.
        """
        self.restore(saved_state.read(io.BytesIO(string_value)))


def _refuse_numbered(signatures):
    """Refuses a state in which that of a codec has the number of a variable.

    Raises:
      ModelMismatchError: Other variables may have other numbers there.
    """
    names = [one[0] for one in signatures if one is not None]
    numbered = [name for name in names if _OF_CODEC.match(name)]
    if numbered:
        raise saved_state.ModelMismatchError(
            "The state of a codec must be saved by its name. Received: "
            f"{numbered[0]!r} has the number of a variable, as in checkpoints "
            "of earlier versions of tfdist, which this one cannot resume."
        )


def _signature(variable):
    """Name, type and shape of a variable, a list for JSON."""
    name = variable.name.split(":")[0]
    return [name, variable.dtype.name, variable.shape.as_list()]
