"""The loop of a simulated run: trains a model, evaluates it, keeps a record."""

import dataclasses

import keras
import numpy as np
import tqdm

from tfdist import model_optimizers
from tfdist.simulation import data as data_lib
from tfdist.simulation import history as history_lib
from tfdist.simulation.actions import Drop
from tfdist.simulation.actions import Fetch
from tfdist.simulation.actions import LogEntry
from tfdist.simulation.epoch_evaluator import EpochEvaluator
from tfdist.simulation.training import Training


def make_model(model_fn, seed, method, num_workers):
    """The model to be trained.

    Args:
      model_fn: Callable without arguments that returns a compiled
        `keras.Model`.
      seed: Of its initial weights.
      method: The `Method` that it is trained with, resolved.
      num_workers: Number of workers.

    Raises:
      TypeError: It returns no Keras model.
      ValueError: The model cannot be trained here; the message says why.
    """
    keras.utils.set_random_seed(seed)
    model = model_fn()
    check_model(model, method, num_workers)
    return model


def check_model(model, method, num_workers):
    """Refuses a model that a method with servers cannot train.

    Args:
      model: What `model_fn` returned.
      method: A `Method`, resolved.
      num_workers: Number of workers.

    Raises:
      TypeError: It is no Keras model.
      ValueError: With the reason.
    """
    data_lib.check_model(
        model,
        method.synchronization.averages,
        takes_local_steps=method.local_steps is not None,
        may_apply_several=method.needs_order and num_workers > 1,
    )
    data_lib.check_takes_steps(model)
    if method.local_steps is not None:
        with data_lib.refused_as_model():
            model_optimizers.check_adds_updates(
                model.optimizer, type(method.local_steps).__name__
            )
    if method.correction is not None:
        method.correction.check_optimizer(
            method.server_optimizer(model.optimizer)
        )


def train(
    source,
    model,
    data,
    method,
    *,
    num_workers,
    seed,
    push_bytes,
    pull_bytes,
    fetch_bytes=(),
    num_batches,
    validation_data=None,
    evaluate_every=1.0,
    chunk=8,
    progress=False,
    placement=None,
):
    """Trains a model as a source of actions says.

    Args:
      source: Whose `run()` yields `Begin`, `Fetch`, `LogEntry` and `Drop` in
        the order in which they happen, with `jobs`, all `Job`s so far, and
        `now`, seconds: a `Schedule`, or another.
      model: The compiled `keras.Model`.
      data: A `Data`.
      method: A `Method`, resolved.
      num_workers: Number of workers.
      seed: For the `History`.
      push_bytes: Bytes of a push to each server, a list of ints.
      pull_bytes: Bytes of a pull from each server, a list of ints.
      fetch_bytes: Bytes of a fetch between two pushes, as `pull_bytes`.
      num_batches: Batches of all epochs together, for the bar.
      validation_data: As `simulate` takes it.
      evaluate_every: Epochs between two evaluations.
      chunk: Gradients computed in one call at most.
      progress: Whether to show a bar.
      placement: As `Training` takes it.

    Returns:
      A `History`.

    Raises:
      ValueError: `validation_data` is no data.
    """
    validation = None
    if validation_data is not None:
        validation = data_lib.of_validation(validation_data)
    training = Training(model, data, method, num_workers, chunk, placement)
    watch = _Watch(
        model,
        training,
        data.num_batches,
        validation,
        evaluate_every,
        method.synchronization.retries,
    )
    bar = tqdm.tqdm(
        total=num_batches,
        desc=f"{method.name}, {num_workers} workers",
        unit="step",
        disable=not progress,
    )
    with bar:
        for action in training.run(source.run()):
            bar.update(watch.note(action))
            if watch.evaluator.diverged:
                break
        watch.end(source.now)
    return history_lib.History(
        method=method.name,
        num_workers=num_workers,
        num_servers=len(push_bytes),
        seed=seed,
        batch_size=data.batch_size,
        seconds=watch.seconds,
        updates=len(watch.updates),
        evaluations=watch.evaluator.rows,
        jobs=history_lib.jobs_array(_until(source.jobs, watch.seconds)),
        update_seconds=np.array(watch.updates),
        push_bytes=sum(push_bytes),
        pull_bytes=sum(pull_bytes),
        fetched_bytes=watch.fetches * sum(fetch_bytes),
        diverged=watch.evaluator.diverged,
        model=model,
    )


def _until(jobs, seconds):
    """The jobs as they are at a moment: what comes later has been played."""
    for job in jobs:
        if job.pulling > seconds:
            continue
        names = ("began", "computed", "arrived", "decided")
        later = {
            name: None
            for name in names
            if getattr(job, name) is not None and getattr(job, name) > seconds
        }
        if later:
            job = dataclasses.replace(job, **later)
            if job.decided is None:
                job = dataclasses.replace(job, accepted=None)
        yield job


class _Watch:
    """Counts what happens, and evaluates."""

    def __init__(
        self, model, training, num_batches, validation, every, retries
    ):
        self._model = model
        self._training = training
        self._validation = validation
        self._retries = retries
        self.seconds = 0.0
        self.updates = []
        self.fetches = 0
        self.evaluator = EpochEvaluator(num_batches, every, self._measure)
        self._evaluate(0.0)

    def note(self, action):
        """Notes an action that is done; returns the gradients decided."""
        self.seconds = action.time
        self.fetches += isinstance(action, Fetch)
        is_entry = isinstance(action, LogEntry)
        if is_entry and action.count:
            self.updates.append(action.time)
        # One that has died with its worker will be computed again, and so is
        # each that is dropped where workers retry.
        is_decided = (is_entry and action.job is not None) or (
            isinstance(action, Drop)
            and action.job.arrived is not None
            and not self._retries
        )
        gradients = action.job.steps if is_decided else 0
        self.evaluator.count(gradients)
        # An update that is being made is seen when it is made.
        if self.evaluator.is_due and not (is_entry and not action.count):
            self._evaluate(action.time)
        return gradients

    def end(self, seconds):
        """Evaluates once more, unless that has just been done."""
        if not self.evaluator.diverged:
            self.seconds = max(self.seconds, seconds)
            if self.evaluator.is_behind:
                self._evaluate(self.seconds)
        self._training.settle()
        # As `fit` does: averaged weights, where the optimizer has them.
        self._model.optimizer.finalize_variable_values(
            self._model.trainable_variables
        )

    def _evaluate(self, seconds):
        self.evaluator.evaluate(seconds, len(self.updates))

    def _measure(self):
        loss = self._training.settle()
        figures = {}
        if self._validation is not None:
            figures = data_lib.evaluate(self._model, self._validation)
        return loss, figures
