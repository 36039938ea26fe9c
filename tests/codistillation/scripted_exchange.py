"""An exchange whose peers do what a test says."""

import time

import numpy as np

from tfdist.codistillation import Checkpoint
from tfdist.codistillation import Exchange


def checkpoint(weights, *, group=1, number=1, step=0, **others):
    """A `Checkpoint` taken now."""
    fields = {"time": time.time(), "run": "peer", "initial": "theirs"}
    fields.update(others)
    return Checkpoint(
        group=group,
        number=number,
        step=step,
        weights=tuple(np.asarray(one) for one in weights),
        **fields,
    )


class ScriptedExchange(Exchange):
    """Gives what is in `script`, in order, and then nothing new.

    Attributes:
      published: The checkpoints that came, in order.
      asked: `(peer, newer_than)` of each call of `fetch`, in order.
    """

    def __init__(self, script=()):
        self._script = list(script)
        self.published = []
        self.asked = []

    def bind(self, group, model):
        self.group, self.model = group, model

    def publish(self, checkpoint):
        self.published.append(checkpoint)

    def fetch(self, peer, newer_than):
        self.asked.append((peer, newer_than))
        item = self._script.pop(0) if self._script else None
        if callable(item):
            item = item()
        if isinstance(item, BaseException):
            raise item
        return item
