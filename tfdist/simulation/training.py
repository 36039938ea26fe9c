"""Computes what a schedule says: gradients, updates, evaluations."""

import collections

import numpy as np
import tensorflow as tf

from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Entry
from tfdist.simulation.gradients import Gradients
from tfdist.simulation.server import VirtualServer

# Sizes in which gradients are computed together, each a trace.
_CHUNKS = (8, 4, 2, 1)


class Training:
    """The numbers of one simulated training.

    Whose gradient comes next is known ahead, so that those which have been
    begun are computed several in one call.

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
        self._gradients = Gradients(model, data)
        self._is_full = data.is_full
        self._server = VirtualServer(
            model.trainable_variables, model.optimizer, method, num_workers
        )
        self._sizes = [size for size in _CHUNKS if size <= max(1, chunk)]
        self._ahead = 2 * self._sizes[0] + 2 * num_workers
        self._placement = placement
        # Of each job that has begun: its parameters, by number.
        self._begun = {}
        # The same of those that have not been given all yet.
        self._beginning = {}
        # (gradients, state, loss) of those that have been computed.
        self._computed = {}
        self._state = [
            tf.identity(v.value) for v in self._gradients.state_variables
        ]
        # The same after the last gradient that was used.
        self._counting_state = self._state
        self._losses = []

    def run(self, actions):
        """Does what the schedule says.

        Args:
          actions: Iterable of `Begin`, `Entry` and `Drop`.

        Yields:
          Each of them when it is done.
        """
        actions = iter(actions)
        ahead = collections.deque()
        while True:
            while len(ahead) < self._ahead:
                action = next(actions, None)
                if action is None:
                    break
                ahead.append(action)
            if not ahead:
                return
            action = ahead[0]
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Drop):
                self._begun.pop(action.job.number, None)
                self._computed.pop(action.job.number, None)
            else:
                self._enter(action, ahead)
            ahead.popleft()
            yield action

    def _begin(self, action):
        number, given = action.job.number, self._server.given
        if action.anew:
            self._server.restart(action.job.worker)
        if action.servers is None:
            self._begun[number] = given
            return
        mine = self._beginning.setdefault(number, [None] * len(given))
        for place, server in enumerate(self._placement):
            if server in action.servers:
                mine[place] = given[place]
        if all(value is not None for value in mine):
            self._begun[number] = self._beginning.pop(number)

    def _enter(self, entry, ahead):
        gradients = pulled = None
        if entry.job is not None:
            number = entry.job.number
            if number not in self._computed:
                self._compute(ahead)
            gradients, state, loss = self._computed.pop(number)
            pulled = self._begun.pop(number)
            gradients = self._server.push(gradients, entry.worker)
            self._losses.append(loss)
            self._counting_state = state
        self._server.carry_out(entry, gradients, pulled)

    def _compute(self, ahead):
        """Computes gradients of the first entries ahead that have begun."""
        jobs = []
        for action in ahead:
            if not isinstance(action, Entry):
                continue
            job = action.job
            if job is None or job.number in self._computed:
                continue
            if job.number not in self._begun or len(jobs) == self._sizes[0]:
                break
            if not self._is_full(job.batch):
                # By itself: each form of a call is traced.
                jobs = jobs or [job]
                break
            jobs.append(job)
        size = next(size for size in self._sizes if size <= len(jobs))
        jobs = jobs[:size]
        results = self._gradients.compute(
            [self._begun[job.number] for job in jobs],
            self._state,
            [job.batch for job in jobs],
        )
        self._state = results[-1][1]
        for job, result in zip(jobs, results, strict=True):
            self._computed[job.number] = result

    def settle(self):
        """Brings the model up to date, for an evaluation.

        Returns:
          The mean loss of the gradients since the last call, None if there
          were none.
        """
        for variable, value in zip(
            self._gradients.state_variables, self._counting_state, strict=True
        ):
            variable.assign(value)
        losses, self._losses = self._losses, []
        return float(np.mean([float(x) for x in losses])) if losses else None
