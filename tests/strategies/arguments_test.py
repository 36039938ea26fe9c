"""Arguments of public classes: what is taken, and what is refused by name."""

import json

import numpy as np
import pytest

from tfdist import averaging
from tfdist import codistillation
from tfdist import compression
from tfdist import placement
from tfdist import simulation
from tfdist import synchronization
from tfdist.callbacks import ClusterCheckpoint
from tfdist.cluster.config import ClusterConfig
from tfdist.pipeline import stages
from tfdist.simulation.exchange_together import AveragingExchange
from tfdist.strategies import construction
from tfdist.strategies.method import Method

TWO = np.int64(2)


def _portions():
    return construction.portions(Method(), "chief", "queue", TWO)


@pytest.mark.parametrize(
    "make",
    [
        _portions,
        lambda: construction.tables(Method(), TWO, "lazy").from_bytes,
        lambda: Method(local_steps=TWO).local_steps.period,
        lambda: averaging.ParameterAveraging(5, warmup_steps=TWO).warmup_steps,
        lambda: averaging.ElasticAveraging(TWO).period,
        lambda: averaging.AccruedGradients(TWO).n_fetch,
        lambda: averaging.DelayedNesterov(delay=TWO).get_config()["delay"],
        lambda: synchronization.Sync(TWO).backup_workers,
        lambda: synchronization.SoftSync(TWO).s,
        lambda: synchronization.BoundedStaleness(TWO).max_staleness,
        lambda: compression.TopK(momentum=np.float32(0.5)).momentum,
        lambda: compression.Threshold(np.float32(0.5)).tau,
        lambda: codistillation.Group(TWO, np.int64(3)).index,
        lambda: ClusterConfig({}, "worker", TWO * 0).task_index,
        lambda: placement.Pipeline(micro_batches=TWO).micro_batches,
        lambda: simulation.Sandblaster(TWO).portions_per_worker,
        lambda: AveragingExchange(period=TWO).period,
        lambda: stages.count(TWO),
    ],
)
def test_numbers_of_numpy_become_plain_ones(make):
    value = make()
    assert type(value) in (int, float)
    json.dumps(value)


def test_numbers_of_numpy_are_counts_of_a_checkpoint(tmp_path):
    ClusterCheckpoint(tmp_path, save_freq=TWO, keep=TWO)
