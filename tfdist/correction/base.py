"""The base of staleness corrections."""

import abc
import dataclasses
import enum

import keras
import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist import comparable
from tfdist.synchronization import Synchronization


class Copies(enum.Enum):
    """Place of the parameters that a gradient was computed from.

    SERVER: each server keeps what it last gave to each worker.
    WORKER: the worker has them, and sends them with its gradient.
    """

    SERVER = "server"
    WORKER = "worker"


@dataclasses.dataclass(frozen=True)
class LateGradient:
    """A gradient of one parameter, at the moment at which it is applied.

    Attributes:
      values: The gradient. Of a sparse one the rows, `(n, ...)`.
      indices: Of a sparse one the numbers of the rows, `(n,)` integers, some
        perhaps several times (the gradient is their sum); else None.
      staleness: Updates between the parameters that it was computed from and
        those that it is applied to, scalar int64, 0 or more.
      worker: Number of the worker that computed it, scalar int64.
      parameter: The parameter as it is now, in the shape of `values`: of a
        sparse gradient the rows `indices`. None unless the correction says
        that it needs `copies`.
      pulled: The same of the parameter that it was computed from.
    """

    values: tf.Tensor
    indices: tf.Tensor | None
    staleness: tf.Tensor
    worker: tf.Tensor
    parameter: tf.Tensor | None = None
    pulled: tf.Tensor | None = None

    @property
    def delay(self) -> tf.Tensor:
        """Distance the parameter has moved since, `parameter - pulled`."""
        return self.parameter - self.pulled


class Slots(abc.ABC):
    """State that a correction keeps for one parameter, tensors by name."""

    @abc.abstractmethod
    def read(self, name: str, rows: tf.Tensor | None = None) -> tf.Tensor:
        """The value of a slot.

        Args:
          name: One of the names that `Correction.slots` gives.
          rows: An integer scalar or vector: that row, or those rows, alone.
        """

    @abc.abstractmethod
    def assign(
        self, name: str, value: tf.Tensor, rows: tf.Tensor | None = None
    ) -> None:
        """Sets a slot, or the given rows of it."""


class Correction(comparable.Comparable, abc.ABC):
    """Changes a late gradient before the optimizer sees it.

    Pure TensorFlow over the tensors of one parameter (or of the piece of it
    that a server holds); knows nothing of processes, devices or Keras's
    training loop. Half-precision parameters and their gradients are handed in
    as float32.

    Attributes:
      copies: A `Copies` if it needs the parameters that a gradient was
        computed from, else None.
      remembers_workers: Whether its slots hold something of each worker,
        which `forget` removes when that one is gone.
      uses_lookahead: Whether workers get what `look_ahead` makes of a
        parameter.
      observes: Whether it wants to see what each update did, in `observe`.
      has_momentum: Whether it has a momentum of its own, in the place of the
        optimizer's; then `with_momentum` gives it another one.
      densifies: Whether a corrected sparse gradient is dense.
      on_worker: Whether the workers apply it before they push. Its slots are
        then each worker's own, and of all methods only `slots`, `correct` and
        `check_optimizer` are used; `staleness` is 0 and `worker` is 0.
    """

    copies = None
    remembers_workers = False
    uses_lookahead = False
    observes = False
    has_momentum = False
    densifies = False
    on_worker = False

    def resolve(
        self, synchronization: Synchronization, num_workers: int
    ) -> "Correction":
        """Checks the settings against the rest of the strategy.

        Args:
          synchronization: The `Synchronization`, resolved.
          num_workers: Number of workers at the start.

        Returns:
          The correction with all settings known, this or another instance.

        Raises:
          ValueError: They do not fit together.
        """
        return self

    def check_optimizer(self, optimizer: keras.Optimizer) -> None:
        """Refuses optimizers that it does not fit.

        Args:
          optimizer: The Keras optimizer whose update rule gets the corrected
            gradients.

        Raises:
          ValueError: With the reason.
        """

    def slots(self, shape: list[int], num_workers: int) -> dict[str, list[int]]:
        """Returns the slots of one parameter; all begin with zeros.

        Args:
          shape: Shape of the parameter, a list of ints.
          num_workers: Number of workers.

        Returns:
          A dict of slot name to shape, a list of ints.
        """
        return {}

    @abc.abstractmethod
    def correct(self, late: LateGradient, slots: Slots) -> tf.Tensor:
        """Corrects a gradient.

        Args:
          late: A `LateGradient`.
          slots: The `Slots` of the parameter.

        Returns:
          What the optimizer gets instead of `late.values`, in the same shape;
          with `densifies` in the shape of the parameter.
        """

    def observe(
        self, before: tf.Tensor, after: tf.Tensor, rate: tf.Tensor, slots: Slots
    ) -> None:
        """Called after each update of the parameter.

        Args:
          before: The parameter before the optimizer's rule, a tensor.
          after: The same after it.
          rate: The learning rate of the rule, scalar tensor.
          slots: The `Slots` of the parameter.
        """

    def look_ahead(self, parameter: tf.Tensor, slots: Slots) -> tf.Tensor:
        """Computes the look-ahead that a worker pulls as the parameter.

        Args:
          parameter: Its value, a tensor.
          slots: Its `Slots`.
        """
        return parameter

    def for_workers(
        self, slots: dict[str, np.ndarray], num_workers: int
    ) -> dict[str, np.ndarray]:
        """Converts saved slots to another number of workers.

        Args:
          slots: Dict of slot name to NumPy array, of one parameter.
          num_workers: Number of workers that go on with them.

        Returns:
          Such a dict, of the shapes that `slots` gives.
        """
        return slots

    def forget(self, worker: tf.Tensor, slots: Slots) -> None:
        """Removes what is kept of a worker that is gone.

        Args:
          worker: Its number, scalar int64 tensor.
          slots: The `Slots` of one parameter.
        """


def squarable(tensor):
    """Returns a tensor with smaller numbers where the square is not finite.

    An average of squares would stay infinite for good.
    """
    bound = 0.9 * float(tensor.dtype.max) ** 0.5
    return tf.clip_by_value(tensor, -bound, bound)


def check_has_late_gradients(owner, synchronization, instead=""):
    """Refuses methods with which no gradient is ever late.

    Args:
      owner: Name of the class.
      synchronization: The `Synchronization`.
      instead: What to do instead, for the message.

    Raises:
      ValueError: It is refused.
    """
    if synchronization.is_synchronous:
        raise ValueError(
            f"{owner} is for gradients that are late, and with "
            f"{synchronization!r} none is: leave the correction out{instead}."
        )


def check_backups(owner, backups):
    """Checks that an argument `backups` names one of `Copies`.

    Args:
      owner: Name of the class.
      backups: What was received.

    Raises:
      ValueError: There is no such place.
    """
    allowed = [place.value for place in Copies]
    checks.one_of(f"{owner}: backups", backups, allowed)
