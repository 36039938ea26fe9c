"""Computes what a schedule says where workers take local steps."""

import dataclasses

import numpy as np

from tfdist.simulation.actions import Begin
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Fetch
from tfdist.simulation.local_server import LocalServer
from tfdist.simulation.local_steps import LocalSteps
from tfdist.simulation.local_steps import Own


@dataclasses.dataclass
class _Begun:
    """A job that has begun.

    Attributes:
      own: What its worker has; another process in its place has another.
      given: What the servers gave it, None if it goes on from its own.
      rest: What is kept beside parameters, as it was given.
      fetched: List of pairs: steps done before, and what was fetched then.
    """

    own: Own
    given: list | None
    rest: list
    fetched: list = dataclasses.field(default_factory=list)


class LocalTraining:
    """The numbers of one simulated training with local steps.

    The steps of a job are taken when it is decided over.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.
      method: A `Method` with local steps, resolved.
      num_workers: Number of workers.
    """

    def __init__(self, model, data, method, num_workers):
        self._model = model
        self._size_of = data.size
        self._averages_slots = method.local_steps.average_optimizer_state
        self._steps = LocalSteps(model, data, method.local_steps)
        rest = self._steps.first_state
        self._num_states = len(rest)
        if self._averages_slots:
            rest += self._steps.first_slots
        self._floats = {
            place for place, value in enumerate(rest) if value.dtype.is_floating
        }
        self._server = LocalServer(
            model.trainable_variables, rest, method, num_workers
        )
        self._owns = {}
        self._begun = {}
        self._losses = []
        self._counted = 0

    def run(self, actions):
        """Does what the schedule says.

        Args:
          actions: Iterable of `Begin`, `Fetch`, `Entry` and `Drop`.

        Yields:
          Each of them when it is done.
        """
        for action in actions:
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Fetch):
                begun = self._begun[action.job.number]
                begun.fetched.append((action.done, self._server.given))
            elif isinstance(action, Drop):
                self._drop(action.job)
            else:
                self._enter(action)
            yield action

    def _begin(self, action):
        job, worker = action.job, action.job.worker
        if action.anew:
            self._server.restart(worker)
        given = self._server.given if job.local.adopts else None
        if action.anew or worker not in self._owns:
            self._owns[worker] = self._steps.begin(worker, given)
            given = None
        self._begun[job.number] = _Begun(
            self._owns[worker], given, list(self._server.rest)
        )

    def _drop(self, job):
        begun = self._begun.pop(job.number, None)
        # What a living worker did for nothing has still changed its own state.
        if job.arrived is not None and begun.own is self._owns[job.worker]:
            self._compute(job, begun)

    def _enter(self, entry):
        job = entry.job
        if job is None:
            self._server.carry_out(entry, None, None)
            return
        begun = self._begun.pop(job.number)
        pushed, losses = self._compute(job, begun)
        self._losses.append(losses)
        self._counted = max(self._counted, job.local.counted + job.steps)
        own = begun.own
        rest = {
            place: own.state[place]
            for place in sorted(self._steps.assigned & self._floats)
        }
        if self._averages_slots:
            for place, value in enumerate(own.slots, self._num_states):
                if place in self._floats:
                    rest[place] = value
        self._server.carry_out(entry, pushed, own.anchor, rest)

    def _compute(self, job, begun):
        """Takes a job's steps; returns what is pushed, and the losses."""
        own, run = begun.own, job.local
        for place in self._floats:
            if place < self._num_states:
                own.state[place] = begun.rest[place]
            else:
                own.slots[place - self._num_states] = begun.rest[place]
        if begun.given is not None:
            self._steps.adopt(own, begun.given)
        fetched = dict(begun.fetched)
        losses = []
        first = 0
        while first < job.steps:
            if first in fetched:
                own.parameters = own.anchor = fetched[first]
            end = self._end(run.batches, first, fetched)
            taken = self._steps.take(
                own, run.counted + first, run.batches[first:end]
            )
            losses.append(taken)
            first = end
        pushed = self._steps.pushed(own, run.is_rest)
        pushed = self._server.push(pushed, job.worker)
        return pushed, np.concatenate(losses)

    def _end(self, batches, first, fetched):
        """Until where steps are taken in one call."""
        end = first + 1
        size = self._size_of(batches[first])
        while end < len(batches) and end not in fetched:
            if self._size_of(batches[end]) != size:
                break
            end += 1
        return end

    def settle(self):
        """Brings the model up to date, for an evaluation.

        Returns:
          The mean loss of the steps since the last call, None if there were
          none.
        """
        model, rest = self._model, self._server.rest
        for variable, value in zip(
            model.trainable_variables, self._server.parameters, strict=True
        ):
            variable.assign(value)
        for place, variable in enumerate(model.non_trainable_variables):
            if place in self._floats:
                variable.assign(rest[place])
        slots = self._steps.first_slots
        if self._averages_slots:
            slots = rest[self._num_states :]
        self._steps.settle(slots, self._counted)
        losses, self._losses = self._losses, []
        return float(np.mean(np.concatenate(losses))) if losses else None
