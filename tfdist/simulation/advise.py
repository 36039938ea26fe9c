"""`advise`: what each method would give on a cluster, and which to take."""

from collections.abc import Sequence
import dataclasses
import itertools
import numbers
import textwrap
from typing import Any

import tqdm

from tfdist import checks
from tfdist import tables
from tfdist.simulation import learning as learning_lib
from tfdist.simulation import verdict as verdict_lib
from tfdist.simulation.codec_costs import CodecCost
from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.measurement import Measurement
from tfdist.simulation.methods import as_method
from tfdist.simulation.network import Network
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.prediction import predict
from tfdist.strategies import registry

OVERHEAD_SECONDS = 0.002
"""Seconds that a real exchange takes a worker beside the network and the
update, in TensorFlow: what `benchmarks/step_overhead.py` measured."""

# Fewer leave too little after the beginning, which is not counted.
_LEAST_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Advice:
    """Predictions for methods on a cluster, and what to do.

    Attributes:
      measurement: The `Measurement` that it is made of.
      predictions: List of `Prediction`.
      recommended: One of them; None to stay on one machine.
      remedies: List of `Remedy`: what would make a cluster worth it, or the
        recommended one faster.
      verdict: List of texts.
      cluster: The `prediction.Cluster` of the predictions.
      methods: Dict of their methods' names to `Method`s.
      min_speed_up: What a cluster has to give.
      learning: The `Comparison` of what was trained, or None.
    """

    measurement: Measurement
    predictions: list
    recommended: object
    remedies: list
    verdict: list
    cluster: Cluster
    methods: dict
    min_speed_up: float
    learning: object = None

    def with_learning(self, comparison: Any) -> "Advice":
        """Returns this advice with what training has shown.

        Args:
          comparison: The `Comparison` that `learning.learn` returns.
        """
        learned = learning_lib.sentence(comparison, self.min_speed_up)
        return dataclasses.replace(
            self,
            learning=comparison,
            verdict=[
                learned if text == learning_lib.UNKNOWN else text
                for text in self.verdict
            ],
        )

    def table(self) -> str:
        """Predictions and verdict for a person, a text of several lines."""
        rows = [
            [
                *(show(prediction) for show in _COLUMNS.values()),
                "recommended" if prediction is self.recommended else "",
            ]
            for prediction in self.predictions
        ]
        texts = [self._measured(), *self.verdict]
        measured, *verdict = [textwrap.fill(text, 79) for text in texts]
        trained = [self.learning.table()] if self.learning else []
        return "\n\n".join(
            [
                measured,
                tables.aligned([*_COLUMNS, ""], rows),
                *trained,
                *verdict,
            ]
        )

    def _measured(self):
        measured = self.measurement
        return (
            f"One machine, batch of {measured.batch_size}: a gradient "
            f"{1e3 * measured.compute:.3g} ms, an update "
            f"{1e3 * measured.update_seconds:.3g} ms, a step of plain Keras "
            f"{1e3 * measured.step_seconds:.3g} ms, so "
            f"{measured.examples_per_second:,.0f} examples/s."
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {
            "measurement": self.measurement.as_dict(),
            "predictions": [p.as_dict() for p in self.predictions],
            "recommended": self.recommended and self.recommended.as_dict(),
            "remedies": [dataclasses.asdict(r) for r in self.remedies],
            "verdict": list(self.verdict),
            "learning": self.learning and self.learning.as_dict(),
        }


def advise(
    measurement: Measurement,
    *,
    num_workers: int | Sequence[int] = (2, 4, 8, 16),
    num_servers: int = 1,
    network: Network | None = None,
    compute: Any = None,
    strategies: Sequence[Any] | None = None,
    overhead_seconds: float = OVERHEAD_SECONDS,
    steps: int = 60,
    min_speed_up: float = verdict_lib.MIN_SPEED_UP,
    seed: int = 0,
    one_machine_seconds: float | None = None,
    codec_cost: CodecCost | None = None,
    progress: bool = False,
) -> Advice:
    """Plays methods on clusters, and recommends one or none, by speed alone.

    Rates are those while all workers train. One machine has no network and no
    server, and nobody is slow. The rules of the recommendation are those of
    `tfdist.simulation.verdict`.

    As the simulator has it, each server works on each update for
    `network.server_seconds`; that it adds the gradients of an update up before
    is not counted. And whole parameters are pulled: a real `AsyncStrategy`
    pulls only what changed of large embeddings.

    Args:
      measurement: A `Measurement`, of `measure`.
      num_workers: Virtual workers, an int or several.
      num_servers: Virtual servers; variables are spread over them as over
        real ones.
      network: A `Network`; default: one that takes no time. Where its
        `server_seconds` is 0, the measured update stands for it, shared out
        over the servers.
      compute: A `ComputeTime`; default: a `Recorded` of what was measured. Or
        a callable that is given that and returns a `ComputeTime`, with which
        what is measured and what is assumed go together: `lambda measured:
        measured + Sometimes(Constant(1.0), 0.05)`.
      strategies: What `simulate` takes, several, without local steps; default:
        all synchronizations of the registry, as corrections take no time.
        "backup_workers" without settings tries 1 to a quarter of the workers,
        and keeps the number that gives the most examples per second; less
        than four workers have none.
      overhead_seconds: That a real exchange takes a worker beside the network
        and the update.
      steps: Gradients of each worker that are played.
      min_speed_up: Times the rate of one machine that a cluster has to give.
      seed: Of compute times.
      one_machine_seconds: A training step of one machine. Default: what was
        measured; where `compute` is a `ComputeTime`, so that workers are other
        machines, the least of the workers' means and the measured update.
      codec_cost: A `CodecCost` of the model's size, for a sentence that says
        on which network compression would pay.
      progress: Whether to show a bar.

    Returns:
      An `Advice`.

    Raises:
      TypeError: An argument is of another kind.
      ValueError: An argument does not fit; the message says which.
    """
    if not isinstance(measurement, Measurement):
        raise TypeError(
            "Argument `measurement` must be a tfdist.simulation.Measurement. "
            f"Received: measurement={measurement!r}"
        )
    several = num_workers
    if isinstance(num_workers, numbers.Number):
        several = [num_workers]
    several = sorted({checks.count("num_workers", n) for n in several})
    num_servers = checks.count("num_servers", num_servers)
    steps = checks.count("steps", steps, least=_LEAST_STEPS)
    if strategies is None:
        strategies = registry.names("synchronization")
    strategies = list(strategies)
    for name, values in (("num_workers", several), ("strategies", strategies)):
        if not values:
            raise ValueError(
                f"Argument `{name}` must not be empty. Received: "
                f"{name}={values!r}"
            )
    checks.positive("min_speed_up", min_speed_up)
    checks.not_negative("overhead_seconds", overhead_seconds)
    network = checks.kind("network", network, Network, Network())
    if not (
        compute is None or isinstance(compute, ComputeTime) or callable(compute)
    ):
        raise TypeError(
            "Argument `compute` must be a tfdist.simulation.ComputeTime or a "
            f"callable that returns one. Received: compute={compute!r}"
        )
    if isinstance(compute, ComputeTime):
        mean = min(map(compute.mean, range(max(several))))
        if not mean > 0:
            raise ValueError(
                "Argument `compute` must take each worker time: a mean above "
                f"0. Received: compute={compute!r}"
            )
        measurement = dataclasses.replace(
            measurement,
            compute_seconds=(mean,),
            step_seconds=mean + measurement.update_seconds,
        )
    if one_machine_seconds is not None:
        checks.positive("one_machine_seconds", one_machine_seconds)
        measurement = dataclasses.replace(
            measurement, step_seconds=one_machine_seconds
        )
    cluster = Cluster(
        num_servers,
        network,
        compute,
        overhead_seconds,
        steps,
        seed,
    )
    predictions, methods = [], {}
    pairs = list(itertools.product(several, strategies))
    # Time goes with the number of workers.
    bar = tqdm.tqdm(
        total=sum(number for number, _ in pairs),
        desc="Simulating the cluster",
        bar_format="{desc}: {percentage:3.0f} %|{bar}| {elapsed}",
        disable=not progress,
    )
    with bar:
        for number, strategy in pairs:
            options = [as_method(o) for o in _options(strategy, number)]
            played = [predict(measurement, o, number, cluster) for o in options]
            methods.update({option.name: option for option in options})
            if played:
                predictions.append(max(played, key=lambda p: p.speed_up))
            bar.update(number)
    if not predictions:
        raise ValueError(
            f"Argument `strategies` must have one that num_workers={several} "
            f"can train with. Received: strategies={strategies}"
        )
    case = verdict_lib.decided(
        verdict_lib.Case(
            measurement, cluster, predictions, methods, min_speed_up
        )
    )
    verdict = verdict_lib.sentences(case)
    if case.chosen is not None:
        verdict.append(learning_lib.UNKNOWN)
    if codec_cost is not None:
        verdict.append(codec_cost.sentence(network.bandwidth_gbps))
    return Advice(
        measurement=measurement,
        predictions=predictions,
        recommended=case.chosen,
        remedies=case.remedies,
        verdict=verdict,
        cluster=cluster,
        methods=methods,
        min_speed_up=min_speed_up,
    )


def _options(strategy, num_workers):
    """The methods of which the fastest is meant."""
    if not isinstance(strategy, str):
        return [strategy]
    return registry.variants(strategy, num_workers)


_COLUMNS = {
    "method": lambda p: p.method,
    "workers": lambda p: str(p.num_workers),
    "examples/s": lambda p: tables.amount(p.examples_per_second),
    "speed-up": lambda p: tables.number(p.speed_up, 2),
    "updates/s": lambda p: tables.amount(p.updates_per_second),
    "staleness": lambda p: tables.number(p.staleness_mean, 2),
    "staleness p95": lambda p: tables.number(p.staleness_p95, 1),
    "compute": lambda p: tables.percent(p.computing, 0),
    "waiting": lambda p: tables.percent(p.waiting, 0),
    "communication": lambda p: tables.percent(p.communicating, 0),
    "dropped": lambda p: tables.percent(p.dropped, 0),
    "Gbit/s per direction": lambda p: tables.amount(p.server_gbps),
    "bound by": lambda p: p.bound,
}
"""Heading -> what stands below; Gbit/s are those of the busiest server."""
