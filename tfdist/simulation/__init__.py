"""Virtual workers in virtual time: which method, how many workers?

`simulate` trains a real model on real data with any method of tfdist, on a
cluster that exists only as models of compute time, network and failures;
`timing` plays the cluster alone. The methods are the very classes that run on
real servers.
"""

from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.compute import Constant
from tfdist.simulation.compute import Gamma
from tfdist.simulation.compute import LogNormal
from tfdist.simulation.compute import Pareto
from tfdist.simulation.compute import Recorded
from tfdist.simulation.compute import SlowWorkers
from tfdist.simulation.compute import Sometimes
from tfdist.simulation.history import History
from tfdist.simulation.methods import METHODS
from tfdist.simulation.methods import Method
from tfdist.simulation.network import Network
from tfdist.simulation.schedule import Failure
from tfdist.simulation.simulate import simulate
from tfdist.simulation.simulate import timing

__all__ = [
    "METHODS",
    "ComputeTime",
    "Constant",
    "Failure",
    "Gamma",
    "History",
    "LogNormal",
    "Method",
    "Network",
    "Pareto",
    "Recorded",
    "SlowWorkers",
    "Sometimes",
    "simulate",
    "timing",
]
