"""Variables that eager steps make each time, which servers would have to keep.

Variables on servers are known by their number, and each worker waits until the
chief has made the same. A worker that takes more steps would wait for ever.
"""

import collections

from tfdist import private_keras_calls
from tfdist.runtime.variables.variables import Role

# A variable that is made when it is first needed is made in one step.
_MOST_STEPS = 2
_OTHERS = ("keras", "tensorflow", "tfdist")


class StepVariables:
    """Looks at where the eager steps of one strategy make variables."""

    def __init__(self):
        # Steps by their code, and the code of the last.
        self._steps = collections.Counter()
        self._code = None
        # By code of the step and place: the last step that has made one there,
        # and the number of steps in a row that have.
        self._made = {}

    def begin(self, code):
        """Called when a step begins.

        Args:
          code: Hashable, the same for steps of the same function.
        """
        self._steps[code] += 1
        self._code = code

    def check(self, variable):
        """Refuses a parameter if each step makes one at the same place.

        Args:
          variable: The `ReplicaVariable` that the user's code has made.

        Raises:
          RuntimeError: It does.
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
        key, step = (self._code, place), self._steps[self._code]
        last, row = self._made.get(key, (0, 0))
        if last != step:
            row = row + 1 if last == step - 1 else 1
        self._made[key] = step, row
        if row > _MOST_STEPS:
            raise RuntimeError(
                f"{place} makes a new tf.Variable in each eager step. With "
                "servers, each would stay a parameter of the model. Make it "
                "once, outside of the step; or use a tensor; or, for a value "
                "of this worker's own, tf.Variable(..., trainable=False)."
            )
