"""`replay`: the training of a real cluster once more, without it."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist import checks
from tfdist.simulation import data as data_lib
from tfdist.simulation import traffic
from tfdist.simulation import training_loop
from tfdist.simulation.data import Shares
from tfdist.simulation.history import History
from tfdist.simulation.methods import as_method
from tfdist.simulation.placement import Placement
from tfdist.simulation.recorded_schedule import RecordedSchedule
from tfdist.simulation.trace import Trace


def replay(
    model_fn: Callable[[], keras.Model],
    dataset: Any,
    strategy: Any,
    trace: Any,
    *,
    batch_size: int,
    shuffle: bool = False,
    validation_data: Any = None,
    evaluate_every: float = 1.0,
    seed: int = 0,
    chunk: int = 8,
    progress: bool = False,
) -> History:
    """Trains a model as a real cluster did, update by update.

    Gradients arrive in the order of the real run, each computed from
    the versions of the parameters that it was computed from there, and what
    became of it is what becomes of it here, or the trace is refused. So the
    parameters are those of the real run, up to rounding, if model, data
    and initial weights are.

    That takes a run of one call of `fit` over whole epochs, with a
    `ClusterMonitor` on every worker, of data in a fixed order that are shared
    out by batches (arrays with `shuffle=False`, or a `tf.data.Dataset` with
    `AutoShardPolicy.DATA`); no worker that died, no dropout (each worker
    draws masks of its own), no `variable_partitioner`; and, where servers
    apply gradients without a common decision (`AsyncStrategy`), one server.

    What workers do to other variables (BatchNormalization's statistics)
    follows the order of updates. So it does on servers with `AsyncStrategy`
    only: with the other methods, the order in which the statistics of
    gradients came that were decided over close to each other is not known.
    And with corrections that remember workers (DANA's variants zero and dc)
    nobody is forgotten, which differs once a worker has finished.

    Args:
      model_fn: Callable without arguments that returns the compiled
        `keras.Model`; the real one was made in the same way.
      dataset: As `simulate` takes it.
      strategy: As `simulate` takes it: the method of the real run,
        without local steps.
      trace: What `read_trace` returned.
      batch_size: Examples of one gradient.
      shuffle: Whether each epoch has an order of its own, that of `simulate`.
      validation_data: As `simulate` takes it.
      evaluate_every: Epochs between two evaluations.
      seed: Of initial weights; set for this process with
        `keras.utils.set_random_seed`. A strategy with this `seed` and a model
        made first thing in its scope begins with the same.
      chunk: Gradients computed in one call, at most 8.
      progress: Whether to show a bar.

    Returns:
      A `History`; its times are those of the trace, in seconds since each
      worker's training began.

    Raises:
      ValueError: An argument does not fit, or the trace is not complete or
        contradicts the method; the message says which step.
    """
    if not isinstance(trace, Trace):
        raise TypeError(
            "Argument `trace` must be what tfdist.simulation.read_trace "
            f"returns. Received: trace={trace!r}"
        )
    checks.positive("evaluate_every", evaluate_every)
    method = as_method(strategy).resolve(trace.num_workers)
    if method.local_steps is not None:
        raise ValueError(
            "Argument `strategy` must be a method whose workers push after "
            "every step: local steps are not replayed. Received: "
            f"local_steps={method.local_steps!r}"
        )
    _check_every_step_is_pushed(trace)
    # First of all: what is missing explains what else does not fit.
    trace.order()
    _check_order_is_known(method, trace)
    data = data_lib.Data(dataset, batch_size, shuffle=shuffle, seed=seed)
    shares = _shares(method, trace, data)
    placement = Placement(trace.num_servers)
    with placement.watching():
        model = training_loop.make_model(
            model_fn, seed, method, trace.num_workers
        )
    servers, by_variable = {0}, None
    if _asks_servers_apart(trace):
        by_variable = placement.of(model)
        servers = set(by_variable)
    source = RecordedSchedule(method, trace, shares, servers)
    push, pull = traffic.of_exchanges(
        model,
        method,
        trace.num_servers,
        traffic.fixed_places(model, data),
        traffic.rows_pushed(model, data),
    )
    return training_loop.train(
        source,
        model,
        data,
        method,
        num_workers=trace.num_workers,
        seed=seed,
        push_bytes=push,
        pull_bytes=pull,
        num_batches=len(source.jobs),
        validation_data=validation_data,
        evaluate_every=evaluate_every,
        chunk=chunk,
        progress=progress,
        placement=by_variable,
    )


def _check_every_step_is_pushed(trace):
    for worker, steps in enumerate(trace.workers):
        for number, step in enumerate(steps):
            if step.local_steps != 1:
                raise ValueError(
                    f"{trace.where(worker, number)}: local_steps must be 1: "
                    "local steps are not replayed. Received: "
                    f"{step.local_steps}."
                )


def _asks_servers_apart(trace):
    """Whether a worker had parameters of different versions at once."""
    return any(
        len(set(step.pulled_by_server)) > 1
        for steps in trace.workers
        for step in steps
    )


def _check_order_is_known(method, trace):
    """Refuses traces that do not tell in which order servers did all."""
    if trace.is_decided:
        return
    synchronization = method.synchronization
    if synchronization.waits or synchronization.averages:
        raise ValueError(
            f"{trace.where(0, 0)}: arrival must be 0 or more where "
            f"{synchronization!r} decides over gradients. Received: -1, so it "
            "was trained with AsyncStrategy."
        )
    if trace.num_servers > 1:
        raise ValueError(
            f"{trace.where(0, 0)}: pulled_by_server must be of one server: "
            "with AsyncStrategy each applies gradients in an order of its "
            f"own, of which the trace tells that of one. Received: "
            f"{trace.num_servers} servers."
        )


def _shares(method, trace, data):
    """The batches of each worker, if their numbers fit whole epochs."""
    number = trace.num_workers
    if data.num_batches < number:
        raise ValueError(
            "Argument `dataset` must have a batch for each worker. Received: "
            f"{data.num_batches} batches of {data.batch_size} for {number} "
            "workers in the trace"
        )
    epochs = None
    for worker, steps in enumerate(trace.workers):
        done = len(steps)
        if method.synchronization.retries:
            done = sum(step.accepted for step in steps)
        share = len(range(worker, data.num_batches, number))
        epochs = epochs or max(1, round(done / share))
        if done != epochs * share:
            raise ValueError(
                f"{trace.files[worker]}: worker {worker} must have made "
                f"{epochs * share} steps, {share} of the {data.num_batches} "
                f"batches of each of {epochs} epochs. Received: {done}. The "
                "trace must be of whole epochs, and of this dataset and "
                "batch_size."
            )
    return Shares(data.num_batches, epochs, number)
