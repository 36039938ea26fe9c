"""Runs in which what is sent depends on what is computed.

The size of an encoded update is known when it has been computed. So here, other
than in `schedule`, times and numbers are played together, step by step; the
parameters are one vector.
"""

import collections
import dataclasses
from typing import Any

import keras
import numpy as np
import tqdm

from tfdist import own_random_numbers
from tfdist.event_queue import EventQueue
from tfdist.peers import refusals
from tfdist.simulation import data as data_lib
from tfdist.simulation import history as history_lib
from tfdist.simulation.actions import Job
from tfdist.simulation.epoch_evaluator import EpochEvaluator
from tfdist.simulation.flat_model import FlatModel
from tfdist.simulation.network import Nodes


def simulate(
    model_fn,
    data,
    exchange,
    name,
    *,
    shares,
    num_workers,
    num_batches,
    compute,
    network,
    seed,
    validation_data,
    evaluate_every,
    max_seconds,
    chunk,
    progress,
):
    """Trains a model; see `tfdist.simulation.simulate`.

    Args:
      model_fn: Callable that returns a compiled `keras.Model`.
      data: A `Data`.
      exchange: A `VirtualExchange`.
      name: Of the method, for tables.
      shares: A `Shares`.
      num_workers: Number of workers.
      num_batches: Batches of all epochs together, for the bar.
      compute: A `ComputeTime`.
      network: A `Network`.
      seed: int.
      validation_data: As `simulate` takes it.
      evaluate_every: Epochs between two evaluations.
      max_seconds: Virtual time after which no step is begun, or None.
      chunk: Gradients computed in one call at most.
      progress: Whether to show a bar.

    Returns:
      A `History`.
    """
    keras.utils.set_random_seed(seed)
    model = model_fn()
    check_model(model, exchange)
    flat = FlatModel(model, data, chunk, exchange.clips_means)
    first = flat.first()
    validation = None
    if validation_data is not None:
        validation = data_lib.of_validation(validation_data)

    def evaluate(weights, state):
        if validation is None:
            return {}
        flat.leave(weights, state, first[2])
        return data_lib.evaluate(model, validation)

    bar = tqdm.tqdm(
        total=num_batches,
        desc=f"{name}, {num_workers} workers",
        unit="step",
        disable=not progress,
    )
    with bar:
        run = FlatRun(
            flat,
            data,
            exchange,
            shares=shares,
            num_workers=num_workers,
            compute=compute,
            network=network,
            seed=seed,
            first=first,
            evaluate=evaluate,
            evaluate_every=evaluate_every,
            max_seconds=max_seconds,
            on_step=bar.update,
        )
        history = run.train()
    run.leave()
    return dataclasses.replace(history, model=model, method=name)


def check_model(model, exchange):
    """Refuses what an exchange cannot train, or real workers would not.

    Args:
      model: What `model_fn` returned.
      exchange: A `VirtualExchange`.

    Raises:
      TypeError: It is no Keras model.
      ValueError: With the reason.
    """
    data_lib.check_model(model, takes_local_steps=True)
    data_lib.check_takes_steps(model)
    strategy = exchange.strategy_among_peers
    if strategy is None:
        return
    with data_lib.refused_as_model():
        refusals.check(model.optimizer, model.trainable_variables, strategy)


class FlatRun:
    """A run of workers that take steps and exchange.

    Args:
      model: A `FlatModel`.
      data: The `Data` that it was made with.
      exchange: A `VirtualExchange`.
      shares: A `Shares`.
      num_workers: Number of workers.
      compute: A `ComputeTime`.
      network: A `Network`.
      seed: Of compute times and partners.
      first: What `FlatModel.first` returned.
      evaluate: Callable of the parameters, a vector, and the model's other
        values, a list; returns a dict of figures.
      evaluate_every: Epochs between two evaluations.
      max_seconds: Virtual time after which no step is begun, or None.
      on_step: Callable without arguments, after each step.

    Attributes:
      nodes: The `Nodes`: workers, then the server.
      streams: Random numbers of each worker, for its exchange.
      states: Values of the model's other variables, by worker.
      version: Updates that have been made.
      sent: Encoded updates, their bytes, and their elements that are not zero,
        a list of three.
    """

    def __init__(
        self,
        model,
        data,
        exchange,
        *,
        shares,
        num_workers,
        compute,
        network,
        seed,
        first,
        evaluate,
        evaluate_every=1.0,
        max_seconds=None,
        on_step=lambda: None,
    ):
        self.model = model
        self.num_workers = num_workers
        self.network = network
        self.first = first
        self.nodes = Nodes(network, num_workers, num_servers=1)
        self.streams = [
            np.random.default_rng([seed, worker, 1])
            for worker in range(num_workers)
        ]
        self.states = [
            own_random_numbers.spread_seeds(
                model.model.non_trainable_variables, first[1], worker
            )
            for worker in range(num_workers)
        ]
        self.version = 0
        self.sent = [0, 0, 0]
        self._data = data
        self._shares = shares
        self._compute = compute
        self._seed = seed
        self._compute_streams = [
            np.random.default_rng([seed, worker])
            for worker in range(num_workers)
        ]
        self._max_seconds = max_seconds
        self._on_step = on_step
        self._events = EventQueue()
        self._jobs = []
        self._steps = collections.Counter()
        # By number of the job: what its gradient is computed from; the same
        # that has been computed.
        self._begun, self._computed = {}, {}
        self._updates = []
        # Of the steps since the last evaluation.
        self._losses = []
        self._evaluate = evaluate
        self._evaluator = EpochEvaluator(
            data.num_batches, evaluate_every, self._measure
        )
        self._exchange = exchange
        self._player = exchange.player(self)

    # For exchanges.

    @property
    def now(self):
        """Virtual seconds."""
        return self._events.now

    def at(self, time, event, *arguments):
        """Notes that an event happens at a time."""
        self._events.at(time, event, *arguments)

    def begin(self, worker, weights):
        """A worker takes its next step, or has none left.

        Args:
          worker: Its number.
          weights: `[size]`, what it computes from; nobody changes it.

        Returns:
          Whether there is a step.
        """
        batch = None
        if self._max_seconds is None or self.now < self._max_seconds:
            batch = self._shares.next(worker)
        if batch is None:
            return False
        began = self.now + self.network.overhead_seconds
        job = Job(
            number=len(self._jobs),
            worker=worker,
            step=self._steps[worker],
            batch=batch,
            pulled=self._player.seen(worker),
            pulling=self.now,
            began=began,
        )
        self._jobs.append(job)
        seconds = self._compute.draw(
            worker, job.step, self._compute_streams[worker]
        )
        self._steps[worker] += 1
        self._begun[job.number] = weights, self.states[worker], batch
        self._events.at(began + seconds, self._step, job)
        return True

    def count(self, update):
        """Counts an encoded update."""
        self.sent[0] += 1
        self.sent[1] += update.num_bytes
        self.sent[2] += update.elements

    def codec_state(self, worker):
        """Returns the state of a worker's codec, a dict of tensors."""
        return self._player.codec_states[worker]

    def updated(self):
        """An update of the parameters has been made."""
        self.version += 1
        self._updates.append(self.now)

    def done(self, *jobs, arrived=None):
        """Steps have become part of an update that is made.

        Args:
          *jobs: All `Job`s of the update: it is evaluated when all of them
            have been counted.
          arrived: When it was where it is applied; default: now.
        """
        for job in jobs:
            job.arrived = self.now if arrived is None else arrived
            job.decided = self.now
            job.accepted = True
            if job.staleness is None:
                job.staleness = 0
            self._on_step()
        self._evaluator.count(len(jobs))
        if self._evaluator.is_due:
            self._evaluator.evaluate(self.now, self.version)

    # Its own course.

    def _step(self, job):
        job.computed = self.now
        if job.number not in self._computed:
            numbers = list(self._begun)
            results = self.model.gradients(list(self._begun.values()))
            self._computed.update(zip(numbers, results, strict=True))
            self._begun.clear()
        gradient, state, loss = self._computed.pop(job.number)
        self.states[job.worker] = state
        self._losses.append(loss)
        self._player.step(job, gradient)

    def _measure(self):
        losses, self._losses = self._losses, []
        weights, _ = self._player.center()
        figures = self._evaluate(weights, self.states[0])
        return (float(np.mean(losses)) if losses else None), figures

    def train(self) -> Any:
        """Plays all of it.

        Returns:
          A `History` without a model.
        """
        evaluator = self._evaluator
        with np.errstate(over="ignore", invalid="ignore"):
            evaluator.evaluate(self.now, self.version)
            self._player.start()
            while not evaluator.diverged and self._events.happen():
                pass
            if not evaluator.diverged and (
                self._player.end() or evaluator.is_behind
            ):
                evaluator.evaluate(self.now, self.version)
        number, total, _ = self.sent
        pushed = sum(job.arrived is not None for job in self._jobs)
        out = self.nodes.bytes[: self.num_workers, 0].sum()
        down = self.nodes.bytes[self.num_workers, 0]
        return history_lib.History(
            method=self._exchange.name,
            num_workers=self.num_workers,
            num_servers=self._exchange.num_servers,
            seed=self._seed,
            batch_size=self._data.batch_size,
            seconds=self.now,
            updates=self.version,
            evaluations=evaluator.rows,
            jobs=history_lib.jobs_array(self._jobs),
            update_seconds=np.array(self._updates),
            push_bytes=round(out / max(pushed, 1)),
            pull_bytes=round(down / max(len(self._jobs), 1)),
            update_bytes=total / max(number, 1),
            link_bytes=self.nodes.bytes,
            diverged=evaluator.diverged,
        )

    def leave(self):
        """Leaves what has been trained in the model."""
        weights, slots = self._player.center()
        self.model.leave(weights, self.states[0], slots)
