"""Distributed training methods for Keras 3 on TensorFlow."""

from tfdist.cluster import environment as _environment

_environment.apply()

# pylint: disable=wrong-import-position
from tfdist.parameter_server.strategy import AsyncStrategy  # noqa: E402
from tfdist.parameter_server.strategy import (  # noqa: E402
    ParameterServerStrategy,
)
from tfdist.version import __version__  # noqa: E402

__all__ = ["AsyncStrategy", "ParameterServerStrategy", "__version__"]
