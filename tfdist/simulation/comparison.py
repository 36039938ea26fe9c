"""`compare`: several methods, several numbers of workers, one judgement."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import dataclasses
import gc
import itertools
import numbers
import re
from typing import Any

import keras
import tensorflow as tf
import tqdm

from tfdist import checks
from tfdist.simulation import arguments as arguments_lib
from tfdist.simulation import data as data_lib
from tfdist.simulation import failures as failures_lib
from tfdist.simulation import flat_run
from tfdist.simulation import training_loop
from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.compute import Gamma
from tfdist.simulation.failures import Failure
from tfdist.simulation.methods import as_exchange
from tfdist.simulation.methods import as_method
from tfdist.simulation.network import Network
from tfdist.simulation.results import ONE_MACHINE
from tfdist.simulation.results import Comparison
from tfdist.simulation.simulate import simulate
from tfdist.strategies import construction
from tfdist.strategies import registry


def compare(
    model_fn_of: Callable[[Any, float], Callable[[], keras.Model]],
    dataset: Any,
    strategies: Sequence[Any],
    num_workers: Sequence[int],
    *,
    learning_rates: Sequence[Any] = (None,),
    extra_rates: int = 3,
    momentum: float | None = None,
    seeds: Sequence[int] = (0,),
    single: bool = True,
    single_compute: ComputeTime | None = None,
    local_compute: ComputeTime | None = None,
    metric: str | None = None,
    target: float | None = None,
    at_seconds: float | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    compute: ComputeTime | None = None,
    network: Network | None = None,
    failures: Sequence[Any] = (),
    progress: bool = False,
    **arguments: Any,
) -> Comparison:
    """Trains with every method on every number of virtual workers.

    And with every learning rate and seed. Each method, on each number of
    workers, is judged by the learning rate that suits it best.

    Args:
      model_fn_of: Callable of a learning rate and a momentum that returns the
        `model_fn` of `simulate`, as `tasks.BuiltInTask.model_fn`. It is given
        None for a rate if `learning_rates` has it.
      dataset: As for `simulate`.
      strategies: List of what `simulate` takes, of different names; neither a
        `VirtualExchange` nor a `Sandblaster`.
      num_workers: List of numbers of workers.
      learning_rates: List of numbers above 0, or None for the model's own.
      extra_rates: How many further rates are tried at most for a method on a
        number of workers while its best one is the least or the greatest that
        it was tried with. Each is as far from that as that is from its
        neighbour, as a ratio. With a single rate there are none.
      momentum: Of the optimizer; of DANA where that corrects, the optimizer
        then has none. None: 0, and DANA's own. A text that says
        `dana:momentum=0.5` has the last word.
      seeds: List of ints, each set for this process as by `simulate`.
      single: Whether to train with one worker alone, too, undisturbed by
        network and failures: speed-ups are over that.
      single_compute: Its `ComputeTime`; default: `compute`.
      local_compute: The `ComputeTime` of methods whose workers step with an
        optimizer of their own (local steps, peer_to_peer, gossip), with that
        step; default: `compute`.
      metric: What is judged by; default: `accuracy` if the model has it, else
        its first metric, else its loss. Of losses and errors less is better.
      target: Value of the metric whose time is taken; default: 95 % of the
        best final one of those on clusters.
      at_seconds: Virtual time at which the metric is compared; default: the
        end of the fastest training.
      batch_size: As for `simulate`.
      epochs: As for `simulate`.
      compute: As for `simulate`.
      network: As for `simulate`.
      failures: As for `simulate`.
      progress: Whether to show a bar.
      **arguments: Others of `simulate`.

    Returns:
      A `Comparison`.

    Raises:
      ValueError: An argument does not fit; the message says which. Nothing
        was trained then.
    """
    for name, values in (
        ("num_workers", num_workers),
        ("learning_rates", learning_rates),
        ("seeds", seeds),
    ):
        _check_different(name, values)
    for rate in learning_rates:
        if rate is not None:
            checks.positive("learning_rates", rate)
    for name in ("seed", "strategy"):
        if name in arguments:
            raise ValueError(f"compare takes {name} as a list, not {name}.")
    checks.kind("compute", compute, ComputeTime)
    checks.kind("local_compute", local_compute, ComputeTime)
    checks.kind("network", network, Network)
    failures = checks.several("failures", failures, Failure)
    extra_rates = checks.count("extra_rates", extra_rates, least=0)
    data = data_lib.Data(dataset, batch_size)
    settings = _settings(
        strategies,
        num_workers,
        momentum,
        {"compute": compute, "network": network, "failures": failures},
        compute if local_compute is None else local_compute,
    )
    names = ("num_servers", "work", "portions_per_worker")
    given = {name: arguments[name] for name in names if name in arguments}
    _check_settings(settings, data, model_fn_of, learning_rates[0], given)
    if metric is not None:
        check_metric(
            metric,
            model_fn_of(learning_rates[0], 0.0)(),
            arguments.get("validation_data"),
        )
    if single:
        alone = _Setting(
            dataclasses.replace(as_method("async"), name=ONE_MACHINE),
            1,
            momentum or 0.0,
            {"compute": compute if single_compute is None else single_compute},
        )
        settings.insert(0, alone)
    runs = {setting.key: {} for setting in settings}
    steps = data.num_batches * epochs
    bar = tqdm.tqdm(total=0, unit="step", disable=not progress)

    def train(pairs):
        """Trains with each seed, for pairs of a setting and a rate."""
        end = bar.total
        bar.total += len(pairs) * len(seeds) * steps
        for (setting, rate), seed in itertools.product(pairs, seeds):
            bar.set_description(_description(setting, rate, seed))
            history = simulate(
                model_fn_of(rate, setting.momentum),
                data.arrays,
                setting.method,
                num_workers=setting.num_workers,
                batch_size=batch_size,
                epochs=epochs,
                seed=seed,
                **{
                    **arguments,
                    **setting.cluster,
                    "compute": _Counted(setting.cluster["compute"], bar),
                },
            )
            history = dataclasses.replace(history, model=None)
            runs[setting.key].setdefault(rate, []).append(history)
            # A run may compute more gradients than there are batches
            # (retries), or fewer (it diverged).
            end += steps
            bar.update(end - bar.n)
            # Models and their functions refer to each other in circles.
            gc.collect()

    added = {}
    with bar, _without_warnings():
        train(list(itertools.product(settings, learning_rates)))
        if not all(isinstance(r, numbers.Real) for r in learning_rates):
            extra_rates = 0
        for _ in range(extra_rates):
            so_far = Comparison(runs, metric=metric)
            beyond = {
                key: _beyond(runs[key], so_far.picked[key])
                for key in so_far.at_the_edge()
            }
            if not beyond:
                break
            train([(s, beyond[s.key]) for s in settings if s.key in beyond])
            for key, rate in beyond.items():
                added.setdefault(key, []).append(rate)
    return Comparison(
        runs,
        metric=metric,
        target=target,
        at_seconds=at_seconds,
        added_rates=added,
    )


def with_momentum(strategy, momentum):
    """A method that has the momentum, and what is left for the optimizer.

    Args:
      strategy: What `simulate` takes.
      momentum: A number, None for what the method says.

    Returns:
      A `Method`, not resolved, and a float. DANA takes all of it; unless it
      is that of a text without `momentum=`, it has its own.

    Raises:
      TypeError: It is no method.
      ValueError: It names none, or has settings that are not simulated.
    """
    method = as_method(strategy, takes_peers=True)
    as_exchange(method)  # Refuses what is not simulated.
    if method.correction is None or not method.correction.has_momentum:
        return method, momentum or 0.0
    if momentum is not None and _is_named(method):
        if not re.search(r"\bmomentum=", method.name):
            method = method.with_momentum(float(momentum))
    return method, 0.0


def _is_named(method):
    """Whether a method is what its name, as a text, says."""
    try:
        return registry.method(method.name) == method
    except ValueError:
        return False


def check_fits(method, num_workers, model=None):
    """Refuses a method that does not fit.

    Args:
      method: A `Method`.
      num_workers: Number of workers.
      model: The compiled `keras.Model` that it would train, or None.

    Raises:
      TypeError: `model` is no Keras model.
      ValueError: With the method's name and the reason.
    """
    try:
        resolved = method.resolve(num_workers)
        if model is not None:
            _check_model(model, resolved, num_workers)
    except ValueError as error:
        raise ValueError(
            f"{method.name!r} does not fit num_workers={num_workers}: {error}"
            if model is None
            else f"{method.name!r} does not fit the model: {error}"
        ) from error


def check_arguments(
    method,
    *,
    num_servers=1,
    failures=(),
    work="shares",
    portions_per_worker=8,
):
    """Refuses arguments of `simulate` that do not go with a method.

    Args:
      method: A `Method`.
      num_servers: As for `simulate`.
      failures: As for `simulate`.
      work: As for `simulate`.
      portions_per_worker: As for `simulate`.

    Raises:
      ValueError: With the argument's name and the reason.
    """
    if method.is_among_peers:
        arguments_lib.check_exchange(num_servers, failures, work)
    construction.portions(method, "chief", work, portions_per_worker)


def _check_model(model, method, num_workers):
    """Refuses a model that a method, resolved, cannot train."""
    exchange, _ = as_exchange(method)
    if exchange is not None:
        flat_run.check_model(model, exchange)
        return
    training_loop.check_model(model, method, num_workers)


@dataclasses.dataclass(frozen=True)
class _Setting:
    """A method on so many workers.

    Attributes:
      method: A `Method`.
      num_workers: Number of workers.
      momentum: Of the optimizer.
      cluster: Arguments of `simulate` that describe it.
    """

    method: object
    num_workers: int
    momentum: float
    cluster: dict

    @property
    def key(self):
        return self.method.name, self.num_workers


def _settings(strategies, num_workers, momentum, cluster, local_compute):
    methods = [with_momentum(strategy, momentum) for strategy in strategies]
    _check_different("strategies", [method.name for method, _ in methods])
    return [
        _Setting(
            method,
            count,
            rest,
            {**cluster, "compute": local_compute}
            if method.steps_on_workers
            else cluster,
        )
        for method, rest in methods
        for count in num_workers
    ]


def _check_settings(settings, data, model_fn_of, learning_rate, arguments):
    most = max(setting.num_workers for setting in settings)
    if data.num_batches < most:
        raise ValueError(
            "Argument `dataset` must have a batch for each worker. Received: "
            f"{data.num_batches} batches of {data.batch_size} for "
            f"num_workers={most}"
        )
    for setting in settings:
        count = checks.count("num_workers", setting.num_workers)
        check_fits(setting.method, count)
        failures = setting.cluster["failures"]
        failures_lib.check(failures, count)
        check_arguments(setting.method, failures=failures, **arguments)
    # Once for each method, with the most workers: one alone may be taken.
    models = {}
    settings = sorted(settings, key=lambda s: s.num_workers)
    for setting in {s.method.name: s for s in settings}.values():
        momentum = setting.momentum
        if momentum not in models:
            models[momentum] = model_fn_of(learning_rate, momentum)()
        check_fits(setting.method, setting.num_workers, models[momentum])


def _beyond(rates, edge):
    """The next rate beyond the least or the greatest of several.

    Args:
      rates: Numbers above 0, at least two.
      edge: The least or the greatest of them.

    Returns:
      A float of six significant digits.
    """
    neighbour = min(set(rates) - {edge}, key=lambda rate: abs(rate - edge))
    return float(f"{edge * edge / neighbour:.6g}")


def check_metric(metric, model, validation_data):
    """Refuses a metric that evaluations will not have.

    Args:
      metric: Its name.
      model: A compiled `keras.Model`.
      validation_data: As for `simulate`.

    Raises:
      ValueError: With those that they will have.
    """
    names = ["train_loss"]
    if validation_data is not None:
        data = data_lib.of_validation(validation_data)
        names += data_lib.evaluate(model, data)
    checks.one_of("metric", metric, names)


def _check_different(name, values):
    found = list(values) if isinstance(values, Iterable) else []
    if not found or len(set(found)) < len(found):
        allowed = "a list of at least one value, and each once"
        raise ValueError(checks.refusal(name, allowed, values))


def _description(setting, rate, seed):
    text = f"{setting.method.name}, {setting.num_workers} workers, seed {seed}"
    return text if rate is None else f"{text}, rate {rate:g}"


class _Counted(ComputeTime):
    """Moves a bar with every step that is drawn."""

    def __init__(self, compute, bar):
        self._compute = Gamma(0.1) if compute is None else compute
        self._bar = bar

    def __repr__(self):
        return repr(self._compute)

    def draw(self, worker, step, stream):
        self._bar.update()
        return self._compute.draw(worker, step, stream)

    def mean(self, worker):
        return self._compute.mean(worker)


@contextlib.contextmanager
def _without_warnings():
    """Scope without TensorFlow's advice to define functions but once.

    Every run has a model of its own, so functions of its own.
    """
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
