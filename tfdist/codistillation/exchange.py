"""Checkpoints that groups exchange, and the interface of an exchange."""

import abc
import dataclasses
from typing import Any

import keras
import numpy as np

from tfdist.cluster.groups import Group


class UnusableCheckpointError(ValueError):
    """A peer's checkpoint that is damaged, foreign or does not fit."""


class PeerUnavailableError(RuntimeError):
    """A peer cannot be asked now: it has not begun, or is not reachable."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model's weights, as one group had them at one moment.

    Attributes:
      group: Number of the group.
      number: Of this checkpoint among those of its group: of two, the one
        with the greater number is the newer one, over all lives of the group.
      step: Updates of the group's optimizer that are in the weights.
      time: When they were taken, in seconds since the epoch.
      run: Names the life of the group that published it: another one after a
        restart.
      initial: Digest of the weights with which this life of the group began,
        a string; two groups with the same one began alike.
      weights: Tuple of `np.ndarray`: those of `exchanged_variables`, in their
        order. None where an exchange does not need them.
      architecture: A `keras.Model` with variables like `weights`, where the
        group may have another one than this; None where it has the same.
    """

    group: int
    number: int
    step: int
    time: float
    run: str
    initial: str
    weights: tuple[np.ndarray, ...] | None = None
    architecture: Any = None


class Exchange(abc.ABC):
    """Carries checkpoints between groups.

    All but `bind` is called in a thread of its own, one call at a time: it
    may take long, and may raise. Whatever it raises, training goes on.
    """

    needs_weights = True
    """Whether `publish` wants the weights; else it only tells of them."""

    same_architecture = True
    """Whether no checkpoint has an `architecture`."""

    @abc.abstractmethod
    def bind(self, group: Group, model: keras.Model) -> None:
        """Prepares for a run; called once per `fit`, before its steps.

        Args:
          group: The `Group` of this process.
          model: The `keras.Model` that is trained, built.

        Raises:
          ValueError: The exchange does not suit this group or model.
        """

    @abc.abstractmethod
    def publish(self, checkpoint: Checkpoint) -> None:
        """Makes `checkpoint` the newest one of this group.

        Called on the chief of a group. The `number` that came is replaced:
        the exchange numbers what it carries.
        """

    @abc.abstractmethod
    def fetch(
        self, peer: int, newer_than: Checkpoint | None
    ) -> Checkpoint | None:
        """The newest usable checkpoint of another group.

        Args:
          peer: Number of the group.
          newer_than: The `Checkpoint` that this process has of it, or None.

        Returns:
          A `Checkpoint`, or None if there is none that is newer.

        Raises:
          PeerUnavailableError: The peer has nothing yet or does not answer.
          UnusableCheckpointError: What is new cannot be used.
        """

    def close(self) -> None:  # noqa: B027
        """Ends what `bind` began."""
