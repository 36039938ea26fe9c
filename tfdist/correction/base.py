"""What every correction is."""

import abc


class Correction(abc.ABC):
    """Changes a late gradient before it is added to an update.

    Pure TensorFlow over tensors of one server; knows nothing of processes.
    """

    @abc.abstractmethod
    def scale(self, staleness):
        """The factor of a gradient.

        Args:
          staleness: Updates between the parameters that it was computed from
            and those that it is applied to, scalar int64 tensor, 0 or more.

        Returns:
          A scalar float64 tensor.
        """
