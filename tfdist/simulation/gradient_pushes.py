"""K = 1: each gradient is pushed, and is a step of the model's optimizer."""

import numpy as np
import tensorflow as tf

from tfdist.simulation.actions import LogEntry
from tfdist.simulation.compiled import Compiled
from tfdist.simulation.gradients import CHUNKS
from tfdist.simulation.gradients import Gradients
from tfdist.simulation.gradients import apply
from tfdist.simulation.server import Push


class GradientPushes:
    """Workers push each gradient; servers step with the model's optimizer.

    Whose gradient comes next is known ahead, so that those which have been
    begun are computed several in one call. What a step does to other variables
    (BatchNormalization's statistics, seeds) is done to the newest values, in
    the order in which the gradients are used, as servers do it.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.
      corrections: The `OwnCorrections`.
      num_workers: Number of workers.
      chunk: Gradients computed in one call at most.
      placement: As `Training` takes it.

    Attributes:
      parameters: What servers hold, a list of `keras.Variable`.
      optimizer: Theirs, built.
      first_rest: First values of what they keep beside: nothing that is pushed.
      lookahead: How many actions `push` is shown.
    """

    first_rest = {}

    def __init__(
        self, model, data, corrections, num_workers, chunk, placement=None
    ):
        self._gradients = Gradients(model, data)
        self._several = Compiled(self._build)
        self._data = data
        self._corrections = corrections
        self._sizes = [size for size in CHUNKS if size <= max(1, chunk)]
        self._placement = placement
        self.parameters = model.trainable_variables
        self.optimizer = model.optimizer
        self.optimizer.build(self.parameters)
        self.lookahead = 2 * self._sizes[0] + 2 * num_workers
        # Of each job that has begun: its parameters, by number.
        self._begun = {}
        # The same of those that have not been given all yet.
        self._beginning = {}
        # (gradients, state, loss) of those that have been computed.
        self._computed = {}
        self._variables = model.non_trainable_variables
        self._state = [tf.identity(v.value) for v in self._variables]
        # The same after the last gradient that was used.
        self._counting_state = self._state

    def begin(self, begin, server):
        """A worker is given parameters; see `Begin`."""
        number, given = begin.job.number, server.given
        if begin.servers is None:
            self._begun[number] = given
            return
        mine = self._beginning.setdefault(number, [None] * len(given))
        for place, holder in enumerate(self._placement):
            if holder in begin.servers:
                mine[place] = given[place]
        if all(value is not None for value in mine):
            self._begun[number] = self._beginning.pop(number)

    def drop(self, job):
        """A gradient is not used."""
        self._begun.pop(job.number, None)
        self._computed.pop(job.number, None)

    def push(self, job, ahead):
        """Returns what a job pushes.

        Args:
          job: The `Job`.
          ahead: The actions from its own on, as far as they are known.

        Returns:
          A `Push`.
        """
        if job.number not in self._computed:
            self._compute(ahead)
        gradients, self._counting_state, loss = self._computed.pop(job.number)
        return Push(
            values=self._corrections.before_push(gradients, job.worker),
            pulled=self._begun.pop(job.number),
            losses=np.array([float(loss)]),
        )

    def _compute(self, ahead):
        """Computes gradients of the first entries ahead that have begun."""
        jobs = []
        for action in ahead:
            if not isinstance(action, LogEntry):
                continue
            job = action.job
            if job is None or job.number in self._computed:
                continue
            if job.number not in self._begun or len(jobs) == self._sizes[0]:
                break
            if not self._data.is_full(job.batch):
                # By itself: each form of a call is traced.
                jobs = jobs or [job]
                break
            jobs.append(job)
        size = next(size for size in self._sizes if size <= len(jobs))
        jobs = jobs[:size]
        rows = [self._data.rows(job.batch) for job in jobs]
        results = self._several(
            [self._begun[job.number] for job in jobs],
            self._state,
            [tf.constant(one, tf.int64) for one in rows],
        )
        self._state = results[-1][1]
        for job, result in zip(jobs, results, strict=True):
            self._computed[job.number] = result

    def _build(self, parameters, state, rows):
        results = []
        for mine, places in zip(parameters, rows, strict=True):
            results.append(self._gradients.build(mine, state, places))
            state = results[-1][1]
        return results

    def apply(self, gradients):
        """Builds what servers do with gradients of an update, a list."""
        apply(self.optimizer, gradients, self.parameters)

    def settle(self, server):
        """Brings the model up to date; its parameters are the server's."""
        for variable, value in zip(
            self._variables, self._counting_state, strict=True
        ):
            variable.assign(value)
