"""The virtual cluster that flags describe."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
import pathlib
from typing import Any

from absl import flags

from tfdist.cli import usage
from tfdist.cli import user_function

# Of the delays of stragglers; the first is the default.
_EXTRAS = ("constant", "lognormal", "pareto", "gamma")


@dataclasses.dataclass(frozen=True)
class VirtualCluster:
    """A virtual cluster, without the number of its workers.

    Attributes:
        num_servers: servers.
        compute: a `ComputeTime`.
        undisturbed: the `ComputeTime` of a worker that no flag names, for
            one machine alone; of recorded workers that of the fastest.
        network: a `Network`.
        failures: `Failure`s.
        worker_timeout: seconds.
    """

    num_servers: int
    compute: Any
    undisturbed: Any
    network: Any
    failures: tuple[Any, ...]
    worker_timeout: float

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `simulate` and of `timing`."""
        names = ("num_servers", "compute", "network", "failures")
        return {
            **{name: getattr(self, name) for name in names},
            "worker_timeout": self.worker_timeout,
        }


def make(
    values: flags.FlagValues,
    num_workers: int | Sequence[int],
    base: Any = None,
) -> VirtualCluster:
    """Returns the cluster.

    Args:
        values: flags that `check` accepts.
        num_workers: the number of workers, or all that are simulated.
        base: the `ComputeTime` of a gradient where it was measured; `None`
            for that of `--compute` or `--trace`.

    Raises:
        UsageError: if a flag does not fit, or names a worker that is not
            there.
    """
    counts = [num_workers] if isinstance(num_workers, int) else num_workers
    specs = check(values)
    _check_workers(values, specs, min(counts))
    simulation = user_function.import_quietly("tfdist.simulation")
    if base is None:
        base = _base_compute(values, simulation)
    tail = []
    if specs["tail"]:
        probability, seconds = specs["tail"]
        extra = simulation.Constant(seconds)
        tail = [simulation.Sometimes(extra, probability)]
    undisturbed = sum(tail, _fastest(base, max(counts), simulation))
    if specs["slow"]:
        base = simulation.SlowWorkers(base, dict(specs["slow"]))
    compute = sum(tail, base)
    for worker, seconds, distribution in specs["straggler"]:
        extra = _extra(simulation, distribution, seconds)
        compute += simulation.Sometimes(extra, workers=[worker])
    failures = tuple(
        simulation.Failure(*failure) for failure in specs["failure"]
    )
    try:
        simulation.failures.check(failures, min(counts))
    except ValueError as error:
        raise usage.UsageError(f"Flag --failure: {error}") from error
    bandwidth = values.bandwidth_gbps
    return VirtualCluster(
        num_servers=values.num_servers,
        compute=compute,
        undisturbed=undisturbed,
        network=simulation.Network(
            latency_seconds=values.latency_ms / 1e3,
            bandwidth_gbps=math.inf if bandwidth is None else bandwidth,
            server_bandwidth_gbps=values.server_bandwidth_gbps,
            server_seconds=values.server_ms / 1e3,
        ),
        failures=failures,
        worker_timeout=values.worker_timeout,
    )


def _fastest(base: Any, num_workers: int, simulation: Any) -> Any:
    """Returns the times of the fastest worker where workers were recorded."""
    if not isinstance(base, simulation.Recorded):
        return base
    fastest = min(range(num_workers), key=base.mean)
    return simulation.Recorded([base.seconds[fastest % len(base.seconds)]])


def check(values: flags.FlagValues) -> dict[str, Any]:
    """Refuses what can be seen to be wrong without TensorFlow.

    Args:
        values: parsed flags.

    Returns:
        Name of a flag that has parts -> what it says, parsed.

    Raises:
        UsageError: if a flag has another form.
    """
    usage.check(
        values.trace is None or not values["compute"].present,
        "compute",
        "not be given beside --trace, which says the same",
        values.compute,
    )
    usage.check(
        values.trace is None or pathlib.Path(values.trace).is_dir(),
        "trace",
        "be a directory with the records of a ClusterMonitor",
        values.trace,
    )
    specs = {
        "straggler": [_straggler(text) for text in values.straggler],
        "slow": [_slow(text) for text in values.slow],
        "failure": [_failure(text) for text in values.failure],
        "tail": None if values.tail is None else _tail(values.tail),
    }
    named = [worker for worker, _ in specs["slow"]]
    for number, worker in enumerate(named):
        usage.check(
            worker not in named[:number],
            "slow",
            f"name worker {worker} once",
            values.slow[number],
        )
    return specs


def _check_workers(
    values: flags.FlagValues, specs: dict[str, Any], least: int
) -> None:
    for flag in ("straggler", "slow"):
        for text, (worker, *_) in zip(
            values[flag].value, specs[flag], strict=True
        ):
            usage.check(
                worker < least,
                flag,
                f"name a worker from 0 to {least - 1}, as there are {least}",
                text,
            )


def _straggler(text: str) -> tuple[int, float, str]:
    allowed = (
        "be WORKER:SECONDS or WORKER:SECONDS:DISTRIBUTION, with "
        f"{', '.join(_EXTRAS)}, such as 1:0.5:lognormal"
    )
    parts = text.split(":")
    good = len(parts) in (2, 3) and parts[2:] in [[], *([d] for d in _EXTRAS)]
    usage.check(good, "straggler", allowed, text)
    worker, seconds = _worker_and_numbers("straggler", parts[:2], allowed, text)
    return worker, seconds, (parts[2:] or _EXTRAS)[0]


def _slow(text: str) -> tuple[int, float]:
    allowed = "be WORKER:FACTOR with a factor of at least 0, such as 0:3"
    parts = text.split(":")
    usage.check(len(parts) == 2, "slow", allowed, text)
    return _worker_and_numbers("slow", parts, allowed, text)


def _failure(text: str) -> tuple[float, ...]:
    allowed = (
        "be WORKER:AT or WORKER:AT:UNTIL in seconds, UNTIL later than AT, "
        "such as 1:30:60"
    )
    parts = text.split(":")
    usage.check(len(parts) in (2, 3), "failure", allowed, text)
    worker, *times = _worker_and_numbers("failure", parts, allowed, text)
    usage.check(sorted(set(times)) == times, "failure", allowed, text)
    return worker, *times


def _tail(text: str) -> tuple[float, float]:
    allowed = (
        "be PROBABILITY:SECONDS with a probability from 0 to 1, such as 0.05:1"
    )
    parts = text.split(":")
    usage.check(len(parts) == 2, "tail", allowed, text)
    probability, seconds = (
        _number("tail", part, float, allowed, text) for part in parts
    )
    usage.check(probability <= 1, "tail", allowed, text)
    return probability, seconds


def _worker_and_numbers(
    flag: str, parts: Sequence[str], allowed: str, text: str
) -> tuple[Any, ...]:
    worker, *rest = parts
    return (
        _number(flag, worker, int, allowed, text),
        *(_number(flag, part, float, allowed, text) for part in rest),
    )


def _number(
    flag: str, part: str, kind: Callable[[str], Any], allowed: str, text: str
) -> Any:
    try:
        value = kind(part)
    except ValueError:
        value = -1
    usage.check(math.isfinite(value) and value >= 0, flag, allowed, text)
    return value


def _base_compute(values: flags.FlagValues, simulation: Any) -> Any:
    if values.trace is not None:
        try:
            return simulation.read_trace(values.trace).compute()
        except (OSError, ValueError) as error:
            raise usage.UsageError(
                "Flag --trace must be a directory with the records of a "
                f"ClusterMonitor. Received: --trace={values.trace}: {error}"
            ) from error
    try:
        return simulation.compute.parse(values.compute)
    except ValueError as error:
        raise usage.UsageError(
            f"Flag --compute={values.compute}: {error}"
        ) from error


def _extra(simulation: Any, distribution: str, seconds: float) -> Any:
    """The distribution of a straggler's delay."""
    if distribution == "lognormal":
        # The shape of tfdist.testing.Straggler, whose tail is longer than
        # that of whole steps.
        return simulation.LogNormal(seconds, sigma=1.0)
    kinds = {
        "constant": simulation.Constant,
        "pareto": simulation.Pareto,
        "gamma": simulation.Gamma,
    }
    return kinds[distribution](seconds)
