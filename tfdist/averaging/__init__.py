"""Local steps of workers between two exchanges with the servers."""

from tfdist.averaging.accrued_gradients import AccruedGradients
from tfdist.averaging.base import LocalSteps
from tfdist.averaging.delayed_nesterov import DelayedNesterov
from tfdist.averaging.elastic_averaging import ElasticAveraging
from tfdist.averaging.parameter_averaging import ParameterAveraging

__all__ = [
    "AccruedGradients",
    "DelayedNesterov",
    "ElasticAveraging",
    "LocalSteps",
    "ParameterAveraging",
]
