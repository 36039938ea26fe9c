"""K > 1: what several steps come to is pushed, for an outer optimizer."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from tfdist.simulation.server import Push
from tfdist.simulation.virtual_local_steps import VirtualLocalSteps


class LocalPushes:
    """Workers have weights of their own; servers an optimizer of their own.

    As `GradientPushes`. The steps of a job are taken when it is decided over.

    Args:
      model: The compiled `keras.Model`; servers have copies of its parameters.
      data: A `Data`.
      corrections: The `OwnCorrections`.
      method: A `Method` with local steps, resolved.

    Attributes:
      first_rest: First values of what servers keep beside parameters, by
        number: the model's other variables of real numbers, then slots of the
        inner optimizer that are averaged.
    """

    lookahead = 1

    def __init__(self, model, data, corrections, method):
        self._model = model
        self._size_of = data.size
        self._corrections = corrections
        self._method = method.local_steps
        self._weighs = method.synchronization.averages and self._method.weighted
        self._steps = VirtualLocalSteps(model, data, self._method)
        self.parameters = [
            keras.Variable(value.numpy(), dtype=value.dtype)
            for value in model.trainable_variables
        ]
        self.optimizer = self._method.outer_optimizer()
        self.optimizer.build(self.parameters)
        end = self._steps.num_states
        if self._method.average_optimizer_state:
            end = None
        self.first_rest = {
            place: value
            for place, value in enumerate(self._steps.first[:end])
            if value.dtype.is_floating
        }
        # What each worker has, and who has begun a job: another process in a
        # worker's place has another `Own`.
        self._owns = {}
        self._begun = {}
        self._counted = 0

    def begin(self, begin, server):
        """A worker begins a job; see `Begin`."""
        worker = begin.job.worker
        own, adopts = self._owns.get(worker), begin.job.local.adopts
        if begin.anew or own is None:
            own = self._steps.begin(worker, server.given)
            self._owns[worker], adopts = own, False
        for place, value in server.rest.items():
            own.rest[place] = value
        if adopts:
            self._steps.adopt(own, server.given)
        own.fetched = {}
        self._begun[begin.job.number] = own

    def fetch(self, fetch, server):
        """A worker is given parameters between two pushes."""
        self._begun[fetch.job.number].fetched[fetch.done] = server.given

    def drop(self, job):
        """Discards what a job has computed."""
        own = self._begun.pop(job.number, None)
        # What a living worker did for nothing has still changed its own state.
        if job.arrived is not None and own is self._owns[job.worker]:
            self._take(job, own)

    def push(self, job, ahead):
        """Returns what a job pushes, a `Push`; see `GradientPushes`."""
        own = self._begun.pop(job.number)
        values, losses = self._take(job, own)
        self._counted = max(self._counted, job.local.counted + job.steps)
        return Push(
            values=values,
            pulled=own.anchor,
            losses=losses,
            weight=job.local.examples if self._weighs else 1,
            rest={
                place: own.rest[place]
                for place in self.first_rest
                if place in self._steps.assigned
            },
        )

    def _take(self, job, own):
        """Takes a job's steps; returns what is pushed, and the losses."""
        run, fetched, losses = job.local, own.fetched, []
        sizes = [self._size_of(batch) for batch in run.batches]
        # One call takes the steps until a fetch, or another size of batches.
        firsts = [
            step
            for step in range(job.steps)
            if not step or step in fetched or sizes[step] != sizes[step - 1]
        ]
        for first, end in itertools.pairwise([*firsts, job.steps]):
            if first in fetched:
                own.parameters = own.anchor = fetched[first]
            batches = run.batches[first:end]
            losses.append(self._steps.take(own, run.counted + first, batches))
        pushed = self._steps.pushed(own, run.is_rest)
        pushed = self._corrections.before_push(pushed, job.worker)
        return pushed, np.concatenate(losses)

    def apply(self, pushed):
        """Builds what servers do with what was pushed for an update, a list."""
        rate = keras.ops.convert_to_tensor(self.optimizer.learning_rate)
        constraints = [v.constraint for v in self._model.trainable_variables]
        for parameter, value, constraint in zip(
            self.parameters, pushed, constraints, strict=True
        ):
            variable = parameter.value
            applied = self._method.apply(variable.read_value(), value)
            if applied is None:
                self.optimizer.update_step(
                    value, variable, tf.cast(rate, variable.dtype)
                )
            else:
                variable.assign(applied)
            if constraint is not None:
                parameter.assign(constraint(variable.read_value()))
        self.optimizer.iterations.assign_add(1)

    def settle(self, server):
        """Brings the model up to date."""
        for variable, parameter in zip(
            self._model.trainable_variables, self.parameters, strict=True
        ):
            variable.assign(parameter.value)
        self._steps.settle(server.rest, self._counted)
