"""Weights that tasks of an asynchronous pipeline use, and what is kept."""

import dataclasses

import keras

from tfdist.pipeline import versions


@dataclasses.dataclass(frozen=True)
class Rule:
    """Weights that tasks use, and when those are updated.

    Attributes:
      schedule: One of `schedules.ASYNCHRONOUS`.
      depth: Number of stages, K.
      batch_units: Units of one update.
      vertical_sync: See `asynchronous.AsynchronousPipeline`.
    """

    schedule: str
    depth: int
    batch_units: int = 1
    vertical_sync: bool = False

    @property
    def stashes(self):
        """Whether a unit keeps the weights of its forward."""
        return self.schedule == "pipedream"

    @property
    def accumulates(self):
        """Whether the gradients of several units make one update."""
        return self.schedule == "pipedream_2bw"

    def kept(self, stage):
        """Number of versions before the newest that a stage keeps."""
        if self.schedule == "pipedream_2bw":
            return 1
        return stage if self.vertical_sync else 0

    def back(self, kind, stage, number):
        """Updates that the weights of a task are behind the newest.

        Args:
          kind: "forward" or "backward".
          stage: Its stage.
          number: The unit's in its batch.
        """
        if self.schedule == "pipedream_2bw":
            # When the first units of batch t go forward, some of batch t - 1
            # have not come back yet, so the newest version is still t - 1.
            early = number < self.depth - 1 - stage
            return 0 if kind == "forward" and early else 1
        return self.kept(stage)

    def ahead(self, kind, stage):
        """By how many updates weights are predicted, None if they are not."""
        if self.schedule != "spectrain":
            return None
        forward, backward = versions.predicted_steps(self.depth)
        return int((forward if kind == "forward" else backward)[stage])


@dataclasses.dataclass
class Memory:
    """The state of a stage beside its weights.

    Attributes:
      updates: How many updates it has made, an integer tensor [].
      history: Earlier versions of its weights, the newest first, a list of
        lists of tensors.
      sums: Of the gradients of a batch, a list of tensors.
      examples: How many of the batch are in `sums`, a list of one int64
        tensor [], or an empty one.
    """

    updates: object
    history: list
    sums: list
    examples: list

    def flat(self):
        """All of it, a list of tensors."""
        return keras.tree.flatten(
            [self.updates, self.history, self.sums, self.examples]
        )

    def like(self, tensors):
        """The same of other tensors, in the order of `flat`."""
        return Memory(
            *keras.tree.pack_sequence_as(
                [self.updates, self.history, self.sums, self.examples],
                list(tensors),
            )
        )
