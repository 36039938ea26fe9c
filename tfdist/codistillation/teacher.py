"""Teachers: networks whose weights came from elsewhere."""

import tensorflow as tf

from tfdist.codistillation import weights as weights_lib


class Teacher:
    """A stale copy of a peer's model, for inference within training steps.

    It has weights of its own and no layers: those of `architecture` are
    called with these weights in place of theirs, in inference mode, and stay
    as they are. Until weights are installed it is not available.

    Constructed where no `tf.distribute` strategy is in scope: its variables
    are this process's own.

    Args:
      architecture: A built `keras.Model`: the student, or another model with
        the same inputs and outputs.

    Attributes:
      available: Scalar bool `tf.Variable`.
    """

    def __init__(self, architecture):
        self.architecture = architecture
        self.available = tf.Variable(False, trainable=False)
        self._weights = {
            id(variable): tf.Variable(
                tf.zeros(variable.shape, variable.dtype), trainable=False
            )
            for variable in weights_lib.exchanged_variables(architecture)
        }

    def outputs(self, x):
        """What the teacher predicts, built into the step that is traced.

        Args:
          x: A batch, as the model takes it.

        Returns:
          As the model does, with `training=False`.
        """
        outputs, _ = self.architecture.stateless_call(
            self._values(self.architecture.trainable_variables),
            self._values(self.architecture.non_trainable_variables),
            x,
            training=False,
        )
        return outputs

    def _values(self, variables):
        return [
            # Only states of random numbers are missing; inference has none.
            self._weights.get(id(variable), variable.value)
            for variable in variables
        ]

    def install(self, values):
        """Takes new weights, all at once as far as steps can see.

        Args:
          values: Arrays, as in `Checkpoint.weights`.
        """
        for variable, value in zip(self._weights.values(), values, strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        self.available.assign(True)

    def retire(self):
        """Is not available any more."""
        self.available.assign(False)
