"""Distributed training methods for Keras 3 on TensorFlow.

Importing this package imports neither TensorFlow nor Keras; the first use of
a name does. So the launcher starts fast. The settings of the runtime are put
into the environment, where TensorFlow reads them when it connects to others.
"""

import importlib

from tfdist.cluster import environment as _environment
from tfdist.version import __version__

_environment.apply_here()

# Name -> module that defines it.
_HOMES = {
    "AllReduceStrategy": "tfdist.strategies.all_reduce",
    "AsyncStrategy": "tfdist.strategies.presets",
    "AsyncLocalSGDStrategy": "tfdist.strategies.local_presets",
    "BMUFStrategy": "tfdist.strategies.local_presets",
    "BackupWorkersStrategy": "tfdist.strategies.presets",
    "BoundedStalenessStrategy": "tfdist.strategies.presets",
    "DANAStrategy": "tfdist.strategies.presets",
    "DCASGDStrategy": "tfdist.strategies.presets",
    "DiLoCoStrategy": "tfdist.strategies.local_presets",
    "DownpourStrategy": "tfdist.strategies.local_presets",
    "ElasticAveragingStrategy": "tfdist.strategies.local_presets",
    "FaultTolerance": "tfdist.strategies.fault_tolerance",
    "GossipStrategy": "tfdist.strategies.gossip",
    "ModelFreedError": "tfdist.runtime.variables.unused_models",
    "ParameterAveragingStrategy": "tfdist.strategies.local_presets",
    "ParameterServerStrategy": "tfdist.strategies.strategy",
    "PeerToPeerStrategy": "tfdist.strategies.peer_to_peer",
    "PipelineStrategy": "tfdist.pipeline.strategy",
    "SandblasterStrategy": "tfdist.strategies.sandblaster",
    "SidecarEvaluator": "tfdist.strategies.evaluator",
    "SoftSyncStrategy": "tfdist.strategies.presets",
    "register": "tfdist.strategies.registry",
}
_MODULES = (
    "averaging",
    "callbacks",
    "cluster",
    "codistillation",
    "compression",
    "correction",
    "datasets",
    "layers",
    "pipeline",
    "placement",
    "sandblaster",
    "simulation",
    "synchronization",
    "testing",
)

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"tfdist.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
