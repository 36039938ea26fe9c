"""Public names: what a program may write.

A name that is added or goes is added or goes here, too.
"""

import importlib
import inspect

import pytest
import tensorflow as tf

import tfdist

NAMES = {
    "tfdist": """
        AllReduceStrategy AsyncLocalSGDStrategy AsyncStrategy BMUFStrategy
        BackupWorkersStrategy BoundedStalenessStrategy DANAStrategy
        DCASGDStrategy DiLoCoStrategy DownpourStrategy ElasticAveragingStrategy
        FaultTolerance GossipStrategy ModelFreedError
        ParameterAveragingStrategy ParameterServerStrategy PeerToPeerStrategy
        PipelineStrategy SandblasterStrategy SidecarEvaluator SoftSyncStrategy
        __version__
        averaging callbacks cluster codistillation compression correction
        datasets layers pipeline placement register sandblaster simulation
        synchronization testing
    """,
    "tfdist.averaging": """
        AccruedGradients DelayedNesterov ElasticAveraging LocalSteps
        ParameterAveraging
    """,
    "tfdist.callbacks": "ClusterCheckpoint ClusterMonitor",
    "tfdist.cluster": "ClusterConfig ClusterConfigError Group",
    "tfdist.codistillation": """
        Checkpoint Codistillation CodistillationLoss CodistillationMixin
        Codistilled Exchange Group PeerServers PeerUnavailableError
        SharedDirectory UnusableCheckpointError
    """,
    "tfdist.compression": """
        Cast Codec Int8 Message OneBit PowerSGD Sign Threshold TopK parse
    """,
    "tfdist.correction": """
        Copies Correction DANA DelayCompensation FASGD GapAware
        InverseStaleness LateGradient Slots
    """,
    "tfdist.datasets": "DatasetUnavailableError EMBEDDED MAX_PIXEL load",
    "tfdist.layers": "DynamicEmbedding EmbeddingBag",
    "tfdist.pipeline": "pipeline",
    "tfdist.placement": """
        CostGraph Crossing Devices Edge Mixed Node Partition Pipeline
        RecurrentStack Report Row choose estimate following measure
        mixed_assignment partition place report
    """,
    "tfdist.sandblaster": "Armijo FixedStep LBFGS LineSearch StrongWolfe",
    "tfdist.simulation": """
        Advice Comparison ComputeTime Constant Failure Gamma History LogNormal
        Measurement Method Network Pareto Recorded Sandblaster SlowWorkers
        Sometimes Trace
        advise compare measure read_trace replay simulate timing
    """,
    "tfdist.strategies.registry": """
        describe get load method names register settings split variants
    """,
    "tfdist.synchronization": """
        Async BoundedStaleness SoftSync Sync Synchronization
    """,
    "tfdist.testing": "Straggler",
}
PACKAGES = [f"tfdist.{name}" for name in tfdist._MODULES]
# Of strategies with servers, beyond those of `tf.distribute.Strategy`.
STRATEGY = """
    await_end_of_training barrier bytes_per_server cluster cluster_metrics
    collect commit correction data_shares deregister export_tables flush
    gradient_counts journal layout
    local_steps method own_files portion_counts preempted publish
    publish_metrics pull push_counts recoveries retry_on_server_failure state
    synchronization training_is_over updates_applied updates_pulled
    uses_lookahead wait_for_warm_start
"""


@pytest.mark.parametrize("module", NAMES)
def test_names_are_there(module):
    for name in NAMES[module].split():
        program = {}
        exec(f"from {module} import {name}", program)
        assert program[name] is not None


@pytest.mark.parametrize("module", ["tfdist", *PACKAGES])
def test_there_are_no_others(module):
    names = importlib.import_module(module).__all__
    assert sorted(names) == sorted(NAMES[module].split())


def test_public_modules_are_all_here():
    assert NAMES.keys() >= {"tfdist", *PACKAGES}


def test_methods_of_strategies():
    own = set(dir(tfdist.ParameterServerStrategy))
    own -= set(dir(tf.distribute.Strategy))
    public = {name for name in own if not name.startswith("_")}
    assert public == set(STRATEGY.split())


CALLED = ("__call__", "__init__", "__len__")


def functions_of(name, value):
    """Those of a public name that have a signature, by their full names."""
    if not inspect.isclass(value):
        return {name: value} if inspect.isfunction(value) else {}
    found = {}
    # Those of Keras and TensorFlow have the hints that they have.
    own = [c for c in value.__mro__ if c.__module__.startswith("tfdist.")]
    for cls in reversed(own):
        for attribute, one in vars(cls).items():
            if attribute[0] == "_" and attribute not in CALLED:
                continue
            one = getattr(one, "fget", getattr(one, "func", one))
            one = inspect.unwrap(getattr(one, "__func__", one))
            if inspect.isfunction(one):
                found[f"{name}.{attribute}"] = one
    return found


@pytest.mark.parametrize("module", NAMES)
def test_annotations_are_complete(module):
    bare = []
    for name in NAMES[module].split():
        value = getattr(importlib.import_module(module), name)
        for full, function in functions_of(name, value).items():
            hints = {**function.__annotations__, "self": None, "cls": None}
            if function.__name__ == "__init__":
                hints["return"] = None
            names = [*inspect.signature(function).parameters, "return"]
            bare += [f"{full}: {one}" for one in names if one not in hints]
    assert bare == []


def test_all_kinds_of_functions_are_looked_at():
    strategy = functions_of("S", tfdist.ParameterServerStrategy)
    assert {"S.__init__", "S.barrier", "S.updates_applied"} < strategy.keys()
    placement = tfdist.placement
    assert "G.order" in functions_of("G", placement.CostGraph)
    assert "R.from_config" in functions_of("R", placement.RecurrentStack)
    assert "place" in functions_of("place", placement.place)
