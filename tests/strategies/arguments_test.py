"""Arguments of public classes: what is taken, and what is refused by name."""

import json

import keras
import numpy as np
import pytest

import tfdist
from tfdist import averaging
from tfdist import codistillation
from tfdist import compression
from tfdist import placement
from tfdist import sandblaster
from tfdist import simulation
from tfdist import synchronization
from tfdist.callbacks import ClusterCheckpoint
from tfdist.callbacks import ClusterMonitor
from tfdist.cluster.config import ClusterConfig
from tfdist.pipeline import stages
from tfdist.pipeline.pipelined import PipelineOptions
from tfdist.simulation.exchange_together import AveragingExchange
from tfdist.strategies import construction
from tfdist.strategies import registry
from tfdist.strategies.method import Method

TWO = np.int64(2)


def evaluator(**settings):
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    return tfdist.SidecarEvaluator(model, np.ones([2, 1]), **settings)


def codistilled(**settings):
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    return codistillation.Codistilled(model, **{"burn_in_steps": 1, **settings})


def teaching(**settings):
    exchange = codistillation.SharedDirectory("nowhere")
    return codistillation.Codistillation(
        exchange, group=0, num_groups=2, **settings
    )


def load(**settings):
    return tfdist.datasets.load("digits", **settings)


def failure(**settings):
    return simulation.Failure(**{"worker": 0, "at": 1.0, **settings})


def compare(**settings):
    settings = {"num_workers": [2], **settings}
    return simulation.compare(None, None, ["async"], batch_size=2, **settings)


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


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (tfdist.FaultTolerance, "start_timeout", ["30", None, True, NAN, INF]),
        (tfdist.FaultTolerance, "worker_timeout", ["30", None, True, NAN]),
        (tfdist.FaultTolerance, "snapshot_dir", [5, ""]),
        (ClusterMonitor, "every_batches", [NAN, 2.5, "50", None, True]),
        (ClusterMonitor, "log_dir", [5]),
        (ClusterCheckpoint, "directory", [5, None, ""]),
        (evaluator, "interval_seconds", ["10", None, NAN]),
        (evaluator, "steps", ["2", 0]),
        (evaluator, "log_dir", [5]),
        (codistillation.CodistillationLoss, "temperature", ["1", None, True]),
        (codistilled, "burn_in_steps", [None, "5", NAN]),
        (codistilled, "weight", ["1", None, NAN]),
        (teaching, "exchange_every", [None, "5", NAN]),
        (teaching, "max_age_seconds", ["60", True]),
        (teaching, "log_dir", [5]),
        (codistillation.PeerServers, "timeout", ["10", None, INF]),
        (codistillation.SharedDirectory, "path", [5, None, ""]),
        (load, "network_timeout", ["20", None, NAN]),
        (failure, "worker", ["0", None]),
        (failure, "at", ["1", None]),
        (failure, "until", ["2", NAN]),
        (sandblaster.StrongWolfe, "decrease", ["1", None]),
        (sandblaster.StrongWolfe, "max_evaluations", ["2", 2.5]),
        (sandblaster.Armijo, "decrease", ["1", None]),
        (compare, "num_workers", [4, None]),
        (compare, "seeds", [0]),
        (compare, "learning_rates", [0.1]),
    ],
)
def test_values_of_other_types_are_refused_by_name(make, name, values):
    for value in values:
        with pytest.raises(ValueError) as error:
            make(**{name: value})
        assert f"Argument `{name}`" in str(error.value)
        assert f"Received: {name}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "bmuf:nesterov=no",
        "bmuf:reset_momentum=no",
        "bmuf:block_momentum=x",
        "parameter_averaging:average_optimizer_state=no",
        "async_local_sgd:dynamic=off",
        "fasgd:bias_correction=off",
        "diloco:outer_momentum=none",
        "async_local_sgd:outer_momentum=none",
        "downpour:outer_optimizer=none",
        "downpour:outer_optimizer=nope",
    ],
)
def test_settings_in_texts_are_refused_by_name(text):
    name = text.replace("=", ":").split(":")[1]
    with pytest.raises(ValueError, match=f"Argument `{name}` of .* Received"):
        registry.method(text)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (compression.TopK, "nesterov"),
        (compression.TopK, "masking"),
        (compression.TopK, "entropy"),
        (compression.Threshold, "entropy"),
        (compression.Sign, "error_feedback"),
        (averaging.ParameterAveraging, "reset_momentum"),
        (placement.Pipeline, "recompute"),
        (PipelineOptions, "vertical_sync"),
        (PipelineOptions, "recompute"),
        (codistillation.CodistillationLoss, "from_logits"),
        (sandblaster.LBFGS, "damping"),
    ],
)
def test_words_are_no_truth_values(make, name):
    for value in ("no", None, 0, np.array([True, False])):
        with pytest.raises(ValueError, match=f"`{name}`.* must be True or Fa"):
            make(**{name: value})
    make(**{name: np.False_})


def test_delayed_nesterov_needs_a_momentum():
    with pytest.raises(ValueError, match="`momentum` of .*=None"):
        averaging.DelayedNesterov(momentum=None)


@pytest.mark.parametrize("seed", ["1", -1, 2**32, 1.0, True])
@pytest.mark.parametrize(
    "strategy",
    [
        tfdist.AsyncStrategy,
        tfdist.AllReduceStrategy,
        tfdist.SandblasterStrategy,
    ],
)
def test_a_seed_is_refused_before_the_cluster_is_asked_for(
    strategy, seed, monkeypatch
):
    monkeypatch.setattr(construction, "cluster", pytest.fail)
    with pytest.raises(ValueError, match="Argument `seed` must be an integer"):
        strategy(seed=seed)


@pytest.mark.parametrize("made", [keras.optimizers.SGD, lambda _: None])
def test_no_class_and_not_none_is_an_outer_optimizer(made):
    with pytest.raises(ValueError, match="`outer_optimizer` of .* Received"):
        tfdist.DiLoCoStrategy(outer_optimizer=made)
