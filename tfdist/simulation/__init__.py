"""Virtual workers in virtual time: which method, how many workers?

`simulate` trains a real model on real data with any method of tfdist, on a
cluster that exists only as models of compute time, network and failures;
`timing` plays the cluster alone. `replay` trains the model as a real cluster
did. `measure` and `advise` say what each method would give on a cluster. The
methods are the very classes that run on real servers.
"""

from tfdist.simulation.advise import Advice
from tfdist.simulation.advise import advise
from tfdist.simulation.comparison import compare
from tfdist.simulation.compute import ComputeTime
from tfdist.simulation.compute import Constant
from tfdist.simulation.compute import Gamma
from tfdist.simulation.compute import LogNormal
from tfdist.simulation.compute import Pareto
from tfdist.simulation.compute import Recorded
from tfdist.simulation.compute import SlowWorkers
from tfdist.simulation.compute import Sometimes
from tfdist.simulation.failures import Failure
from tfdist.simulation.history import History
from tfdist.simulation.measurement import Measurement
from tfdist.simulation.measurement import measure
from tfdist.simulation.network import Network
from tfdist.simulation.results import Comparison
from tfdist.simulation.sandblaster import Sandblaster
from tfdist.simulation.simulate import simulate
from tfdist.simulation.simulate import timing
from tfdist.simulation.trace import Trace
from tfdist.simulation.trace import read_trace
from tfdist.simulation.trace_replay import replay
from tfdist.strategies.method import Method

__all__ = [
    "Advice",
    "Comparison",
    "ComputeTime",
    "Constant",
    "Failure",
    "Gamma",
    "History",
    "LogNormal",
    "Measurement",
    "Method",
    "Network",
    "Pareto",
    "Recorded",
    "Sandblaster",
    "SlowWorkers",
    "Sometimes",
    "Trace",
    "advise",
    "compare",
    "measure",
    "read_trace",
    "replay",
    "simulate",
    "timing",
]
