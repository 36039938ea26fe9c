"""Teachers: networks whose weights came from elsewhere."""

import keras
import tensorflow as tf

from tfdist import private_keras
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

    Raises:
      ValueError: A layer goes on from its state of the batch before.

    Attributes:
      available: Scalar bool `tf.Variable`.
    """

    def __init__(self, architecture):
        check_stateless(architecture)
        self.architecture = architecture
        self.available = tf.Variable(False, trainable=False)
        self._weights = [
            (
                variable,
                tf.Variable(
                    tf.zeros(variable.shape, variable.dtype), trainable=False
                ),
            )
            for variable in weights_lib.exchanged_variables(architecture)
        ]

    def outputs(self, x):
        """Builds the teacher's predictions into the step that is traced.

        Args:
          x: A batch, as the model takes it.

        Returns:
          As the model does, with `training=False`.
        """
        with keras.StatelessScope(
            state_mapping=[
                (variable, weight.read_value())
                for variable, weight in self._weights
            ]
        ):
            return self.architecture(x, training=False)

    def install(self, values):
        """Takes new weights, all at once as far as steps can see.

        Args:
          values: Arrays, as in `Checkpoint.weights`.
        """
        for (_, weight), value in zip(self._weights, values, strict=True):
            weight.assign(tf.cast(value, weight.dtype))
        self.available.assign(True)

    def retire(self):
        """Is not available any more."""
        self.available.assign(False)


def check_stateless(layer):
    """Refuses layers that go on from their state of the batch before.

    Args:
      layer: A `keras.Model`, or a layer of it.

    Raises:
      ValueError: It is such a layer, or has one in it.
    """
    if getattr(layer, "stateful", False):
        raise ValueError(
            f"Layer {layer.name!r} is stateful: between batches it has the "
            "state of its own model, and teachers would have the student's. "
            "Use stateful=False."
        )
    for inner in private_keras.sublayers(layer):
        check_stateless(inner)
