"""Computes what a schedule says: what workers push, updates, evaluations."""

import collections
import itertools

import numpy as np

from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Fetch
from tfdist.simulation.gradient_pushes import GradientPushes
from tfdist.simulation.local_pushes import LocalPushes
from tfdist.simulation.own_corrections import OwnCorrections
from tfdist.simulation.server import VirtualServer


class Training:
    """The numbers of one simulated run.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.
      method: A `Method`, resolved.
      num_workers: Number of workers.
      chunk: Gradients computed in one call at most.
      placement: Number of the server of each trainable variable, a list; for
        actions in which servers give parameters at different moments.
    """

    def __init__(
        self, model, data, method, num_workers, chunk=8, placement=None
    ):
        self._corrections = OwnCorrections(
            method.correction, model.trainable_variables, num_workers
        )
        if method.local_steps is None:
            self._pushes = GradientPushes(
                model, data, self._corrections, num_workers, chunk, placement
            )
        else:
            self._pushes = LocalPushes(model, data, self._corrections, method)
        self._server = VirtualServer(self._pushes, method, num_workers)
        self._losses = []

    def run(self, actions):
        """Does what the schedule says.

        Args:
          actions: Iterable of `Begin`, `Fetch`, `LogEntry` and `Drop`.

        Yields:
          Each of them when it is done.
        """
        actions = iter(actions)
        ahead = collections.deque()
        while True:
            missing = self._pushes.lookahead - len(ahead)
            ahead.extend(itertools.islice(actions, missing))
            if not ahead:
                return
            action = ahead[0]
            if isinstance(action, Begin):
                if action.anew:
                    self._corrections.restart(action.job.worker)
                self._pushes.begin(action, self._server)
            elif isinstance(action, Fetch):
                self._pushes.fetch(action, self._server)
            elif isinstance(action, Drop):
                self._pushes.drop(action.job)
            else:
                self._enter(action, ahead)
            ahead.popleft()
            yield action

    def _enter(self, entry, ahead):
        push = None
        if entry.job is not None:
            push = self._pushes.push(entry.job, ahead)
            self._losses.append(push.losses)
        self._server.carry_out(entry, push)

    def settle(self):
        """Brings the model up to date, for an evaluation.

        Returns:
          The mean loss of the steps since the last call, None if there were
          none.
        """
        self._pushes.settle(self._server)
        losses, self._losses = self._losses, []
        return float(np.mean(np.concatenate(losses))) if losses else None
