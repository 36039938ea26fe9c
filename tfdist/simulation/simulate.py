"""`simulate`: a run on a cluster that is not there."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Literal

import keras
import numpy as np

from tfdist import checks
from tfdist.simulation import arguments
from tfdist.simulation import data as data_lib
from tfdist.simulation import flat_run
from tfdist.simulation import history as history_lib
from tfdist.simulation import minimization
from tfdist.simulation import sandblaster as sandblaster_lib
from tfdist.simulation import traffic
from tfdist.simulation import training_loop
from tfdist.simulation.actions import Fetch
from tfdist.simulation.actions import LogEntry
from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.history import History
from tfdist.simulation.methods import as_exchange
from tfdist.simulation.methods import as_method
from tfdist.simulation.network import Network
from tfdist.simulation.schedule import Schedule


def simulate(
    model_fn: Callable[[], keras.Model],
    dataset: Any,
    strategy: Any = "async",
    *,
    num_workers: int,
    num_servers: int = 1,
    batch_size: int = 32,
    epochs: int = 1,
    compute: ComputeTime | None = None,
    network: Network | None = None,
    failures: Sequence[Any] = (),
    validation_data: Any = None,
    evaluate_every: float = 1.0,
    shuffle: bool = True,
    work: Literal["shares", "queue"] = "shares",
    portions_per_worker: int = 8,
    seed: int = 0,
    worker_timeout: float = 10.0,
    start_timeout: float = 300.0,
    max_seconds: float | None = None,
    chunk: int = 8,
    progress: bool = False,
) -> History:
    """Trains a model on a virtual cluster, in virtual time.

    The methods are those that real servers run: the same classes decide over
    the same `State` and correct the same gradients. These are real, of the
    real model; only time is drawn from models. Two calls with the same seed
    give the same history, on the same machine to the bit.

    What real servers do beside each other happens at one moment here, when a
    gradient is decided over: who is waiting is given the parameters of that
    moment, and these travel.

    Memory: beside one model and what the method keeps on real servers and
    workers, one copy of the parameters for each version that a worker
    computes from, so for N workers at most N, and up to `chunk` gradients.
    With local steps one more model, and each worker's own weights and
    optimizer state.

    Args:
      model_fn: Callable without arguments that returns a compiled
        `keras.Model` with a standard `train_step`.
      dataset: Training examples in memory, `(x, y)` or `(x, y,
        sample_weight)`, or a finite `tf.data.Dataset` of examples.
      strategy: A `Method`, the text of one (`"softsync:n=1"`), an own
        `Synchronization`, `Correction` or `LocalSteps`, a strategy of tfdist
        but `SandblasterStrategy` (its method alone: give `work` and the like
        here), a `VirtualExchange`, or a `Sandblaster`.
      num_workers: Virtual workers.
      num_servers: Virtual servers; they share the bytes.
      batch_size: Examples of one gradient.
      epochs: Passes over the data, of all workers together; with Sandblaster
        iterations, at most.
      compute: A `ComputeTime`; default: `Gamma(0.1)`.
      network: A `Network`; default: one that takes no time.
      failures: `Failure`s.
      validation_data: As `dataset`; None evaluates nothing.
      evaluate_every: Epochs between two evaluations; the first is of the
        initial model.
      shuffle: Whether each epoch has an order of its own.
      work: "shares": each worker has its own share, as with `fit` on a
        cluster, and stops when that is done. "queue": workers take portions of
        an epoch when they are free, and begin an epoch together, as with
        `AsyncStrategy(work="queue")`.
      portions_per_worker: As of `AsyncStrategy`.
      seed: Of initial weights, the order of examples, and compute times; set
        for this process with `keras.utils.set_random_seed`.
      worker_timeout: Seconds after which nobody waits for a silent worker.
      start_timeout: The same for one that has never begun.
      max_seconds: Virtual seconds after which no gradient is begun.
      chunk: Gradients computed in one call, at most 8. Local steps are those
        of one worker.
      progress: Whether to show a bar.

    Returns:
      A `History`.

    Raises:
      ValueError: An argument does not fit; the message says which.
    """
    num_workers = checks.count("num_workers", num_workers)
    num_servers = checks.count("num_servers", num_servers)
    epochs = checks.count("epochs", epochs)
    checks.positive("evaluate_every", evaluate_every)
    if checks.count("chunk", chunk) > 8:
        raise ValueError(
            f"Argument `chunk` must be from 1 to 8. Received: chunk={chunk!r}"
        )
    if max_seconds is not None:
        checks.positive("max_seconds", max_seconds)
    cluster = arguments.cluster(
        compute, network, failures, seed, worker_timeout, start_timeout
    )
    sandblaster = sandblaster_lib.of(strategy)
    data = data_lib.Data(
        dataset,
        batch_size,
        shuffle=shuffle and sandblaster is None,
        seed=seed,
    )
    if data.num_batches < num_workers:
        raise ValueError(
            "Argument `dataset` must have a batch for each worker. Received: "
            f"{data.num_batches} batches of {batch_size} for "
            f"num_workers={num_workers}"
        )
    if sandblaster is not None:
        arguments.refuse_all_but(
            "sandblaster, which has portions of its own",
            work=(work, "shares"),
        )
        return minimization.simulate(
            model_fn,
            data,
            sandblaster,
            num_workers=num_workers,
            num_servers=num_servers,
            epochs=epochs,
            validation_data=validation_data,
            evaluate_every=evaluate_every,
            max_seconds=max_seconds,
            chunk=chunk,
            progress=progress,
            **arguments.without_start(cluster),
        )
    exchange, name = as_exchange(strategy)
    if exchange is not None:
        arguments.check_exchange(num_servers, failures, work)
        return flat_run.simulate(
            model_fn,
            data,
            exchange,
            name,
            shares=data_lib.Shares(data.num_batches, epochs, num_workers),
            num_workers=num_workers,
            num_batches=data.num_batches * epochs,
            compute=cluster["compute"],
            network=cluster["network"],
            seed=seed,
            validation_data=validation_data,
            evaluate_every=evaluate_every,
            max_seconds=max_seconds,
            chunk=chunk,
            progress=progress,
        )
    method = as_method(strategy).resolve(num_workers)
    shares = arguments.shares(
        data.num_batches, epochs, num_workers, method, work, portions_per_worker
    )
    model = training_loop.make_model(model_fn, seed, method, num_workers)
    push, pull = traffic.of_exchanges(
        model,
        method,
        num_servers,
        traffic.fixed_places(model, data),
        traffic.rows_pushed(model, data),
    )
    fetch = traffic.of_fetches(model, num_servers)
    schedule = Schedule(
        method,
        num_workers,
        shares,
        size_of=data.size,
        push_bytes=push,
        pull_bytes=pull,
        fetch_bytes=fetch,
        **cluster,
        max_seconds=max_seconds,
    )
    return training_loop.train(
        schedule,
        model,
        data,
        method,
        num_workers=num_workers,
        seed=seed,
        push_bytes=push,
        pull_bytes=pull,
        fetch_bytes=fetch,
        num_batches=data.num_batches * epochs,
        validation_data=validation_data,
        evaluate_every=evaluate_every,
        chunk=chunk,
        progress=progress,
    )


def timing(
    strategy: Any,
    *,
    num_workers: int,
    steps: int,
    epochs: int = 1,
    push_bytes: Any = 0,
    pull_bytes: Any = None,
    num_servers: int = 1,
    batch_size: int = 32,
    compute: ComputeTime | None = None,
    network: Network | None = None,
    failures: Sequence[Any] = (),
    dynamic_shares: bool = False,
    work: Literal["shares", "queue"] = "shares",
    portions_per_worker: int = 8,
    seed: int = 0,
    worker_timeout: float = 10.0,
    start_timeout: float = 300.0,
) -> History:
    """The course of a run without computing any gradient.

    Args:
      strategy: As for `simulate`.
      num_workers: Virtual workers.
      steps: Gradients of all workers together in an epoch.
      epochs: Number of epochs; with Sandblaster iterations, of one evaluation
        each.
      push_bytes: Of one gradient, or of what is pushed of several local
        steps. A number, which servers share evenly, or a list of what each
        server gets.
      pull_bytes: Of all that a worker gets; default: the same.
      num_servers: Virtual servers.
      batch_size: Examples of one gradient, for `examples_per_second`.
      compute: A `ComputeTime`; default: `Gamma(0.1)`.
      network: A `Network`; default: one that takes no time.
      failures: `Failure`s.
      dynamic_shares: Whether workers take the next batch that nobody has
        taken, until all are.
      work: As for `simulate`.
      portions_per_worker: As for `simulate`.
      seed: Of compute times.
      worker_timeout: As for `simulate`.
      start_timeout: As for `simulate`.

    Returns:
      A `History` without evaluations.
    """
    num_workers = checks.count("num_workers", num_workers)
    num_servers = checks.count("num_servers", num_servers)
    batch_size = checks.count("batch_size", batch_size)
    steps = checks.count("steps", steps, least=num_workers)
    epochs = checks.count("epochs", epochs)
    cluster = arguments.cluster(
        compute, network, failures, seed, worker_timeout, start_timeout
    )
    sandblaster = sandblaster_lib.of(strategy)
    if sandblaster is not None:
        arguments.refuse_all_but(
            "sandblaster, which has portions of its own",
            dynamic_shares=(dynamic_shares, False),
            work=(work, "shares"),
        )
        return minimization.timing(
            sandblaster,
            num_workers=num_workers,
            steps=steps,
            epochs=epochs,
            num_bytes=arguments.by_server(
                "push_bytes", push_bytes, num_servers
            ),
            batch_size=batch_size,
            **arguments.without_start(cluster),
        )
    method = as_method(strategy).resolve(num_workers)
    pull_bytes = push_bytes if pull_bytes is None else pull_bytes
    push = [
        size * method.copies_per_push
        for size in arguments.by_server("push_bytes", push_bytes, num_servers)
    ]
    pull = arguments.by_server("pull_bytes", pull_bytes, num_servers)
    schedule = Schedule(
        method,
        num_workers,
        arguments.shares(
            steps,
            epochs,
            num_workers,
            method,
            work,
            portions_per_worker,
            dynamic_shares,
        ),
        size_of=lambda batch: batch_size,
        push_bytes=push,
        pull_bytes=pull,
        **cluster,
    )
    updates, fetches = [], 0
    for action in schedule.run():
        fetches += isinstance(action, Fetch)
        if isinstance(action, LogEntry) and action.count:
            updates.append(action.time)
    return history_lib.History(
        method=method.name,
        num_workers=num_workers,
        num_servers=num_servers,
        seed=seed,
        batch_size=batch_size,
        seconds=schedule.now,
        updates=len(updates),
        evaluations=[],
        jobs=history_lib.jobs_array(schedule.jobs),
        update_seconds=np.array(updates),
        push_bytes=int(sum(push)),
        pull_bytes=int(sum(pull)),
        fetched_bytes=int(fetches * sum(pull)),
    )
