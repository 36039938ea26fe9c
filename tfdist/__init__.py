"""Distributed training methods for Keras 3 on TensorFlow.

Importing this package imports neither TensorFlow nor Keras; the first use of
a name does. So the launcher starts fast, and the settings of the runtime are
in the environment before TensorFlow reads them.
"""

import importlib

from tfdist.cluster import environment as _environment
from tfdist.version import __version__

_environment.apply()

# Name -> module that defines it.
_HOMES = {
    "AsyncStrategy": "tfdist.parameter_server.presets",
    "AsyncLocalSGDStrategy": "tfdist.parameter_server.local_presets",
    "BMUFStrategy": "tfdist.parameter_server.local_presets",
    "BackupWorkersStrategy": "tfdist.parameter_server.presets",
    "BoundedStalenessStrategy": "tfdist.parameter_server.presets",
    "DANAStrategy": "tfdist.parameter_server.presets",
    "DCASGDStrategy": "tfdist.parameter_server.presets",
    "DiLoCoStrategy": "tfdist.parameter_server.local_presets",
    "DownpourStrategy": "tfdist.parameter_server.local_presets",
    "ElasticAveragingStrategy": "tfdist.parameter_server.local_presets",
    "ModelFreedError": "tfdist.parameter_server.freeing",
    "ParameterAveragingStrategy": "tfdist.parameter_server.local_presets",
    "ParameterServerStrategy": "tfdist.parameter_server.strategy",
    "PipelineStrategy": "tfdist.pipeline.strategy",
    "SidecarEvaluator": "tfdist.parameter_server.evaluator",
    "SoftSyncStrategy": "tfdist.parameter_server.presets",
}
_MODULES = (
    "averaging",
    "callbacks",
    "cluster",
    "codistillation",
    "correction",
    "datasets",
    "pipeline",
    "placement",
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
