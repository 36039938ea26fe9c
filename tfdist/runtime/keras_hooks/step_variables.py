"""Variables that eager steps make each time, which servers would have to keep.

Variables on servers are known by their number, and each worker waits until the
chief has made the same. A worker that takes more steps would wait for ever.
"""

import weakref

from tfdist import private_keras_calls
from tfdist.program_error import ProgramError
from tfdist.runtime.variables.variables import Role

# A variable that is made when it is first needed is made in one step.
_MOST_STEPS = 2
# As many functions may be steps by turns.
_MOST_TURNS = 8
_OTHERS = ("keras", "tensorflow", "tfdist")


class StepVariables:
    """Looks at where the eager steps of one strategy make variables."""

    def __init__(self):
        self._step = 0
        # By place: the last step that has made one there, a reference to it,
        # and the number of steps one after the other that have made one of
        # which nothing was left when the next was made.
        self._made = {}

    def begin(self):
        """Called when a step begins."""
        for place, (last, reference, _) in self._made.items():
            if last == self._step and reference() is not None:
                # It is kept.
                self._made[place] = last, reference, 0
        self._step += 1

    def check(self, variable):
        """Refuses a parameter if each step makes one at the same place.

        One that the user's code keeps may be one of several, each made when
        it is first needed.

        Args:
          variable: The `ReplicaVariable` that the user's code has made.

        Raises:
          ProgramError: It does.
        """
        if variable.role is not Role.PARAMETER:
            return
        frame = next(
            frame
            for frame in private_keras_calls.frames()
            if private_keras_calls.module_of(frame).partition(".")[0]
            not in _OTHERS
        )
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        last, former, row = self._made.get(place, (0, lambda: variable, 0))
        if last != self._step:
            is_next = self._step - last <= _MOST_TURNS and former() is None
            row = row + 1 if is_next else 1
        self._made[place] = self._step, weakref.ref(variable), row
        if row > _MOST_STEPS:
            raise ProgramError(
                f"{place} makes a new tf.Variable in each eager step. With "
                "servers, each would stay a parameter of the model. Make it "
                "once, outside of the step; or use a tensor; or, for a value "
                "of this worker's own, tf.Variable(..., trainable=False)."
            )
