"""Predictions and cases made by hand."""

from tfdist.simulation import Measurement
from tfdist.simulation import verdict
from tfdist.simulation.measurement import Variable
from tfdist.simulation.prediction import BOUNDS
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.prediction import Prediction
from tfdist.strategies import registry

BACKUP = "backup_workers:backup_workers=2"


def row(method, speed_up, **changes):
    """A prediction for 8 workers, of those figures that are looked at."""
    synchronous = method in ("sync", BACKUP)
    figures = {
        "num_workers": 8,
        "staleness_mean": 0.0 if synchronous else 7.0,
        "staleness_p95": 9.0,
        "dropped": 0.25 if method == BACKUP else 0.0,
        "waiting": 0.6,
        "bound": "compute",
        **changes,
    }
    return Prediction(
        method=method,
        examples_per_second=100.0 * speed_up,
        speed_up=speed_up,
        updates_per_second=1.0,
        computing=0.4,
        communicating=0.0,
        server_gbps=0.0,
        parts={**dict.fromkeys(BOUNDS, 0.0), figures["bound"]: 0.01},
        **figures,
    )


def case(*rows, chosen=0, **settings):
    """A case in which one of the rows is recommended, or None."""
    measurement = Measurement(100, [1.0], 0.0, 1.0, [Variable((250_000,))])
    return verdict.Case(
        measurement=measurement,
        cluster=Cluster(),
        predictions=list(rows),
        methods={r.method: registry.method(r.method) for r in rows},
        chosen=None if chosen is None else rows[chosen],
        **settings,
    )
