"""The public names of `import tfdist`, for editors and type checkers.

At run time these names are imported at their first use; a test holds this file
and `__init__.py` against each other.
"""

from tfdist import averaging as averaging
from tfdist import callbacks as callbacks
from tfdist import cluster as cluster
from tfdist import codistillation as codistillation
from tfdist import compression as compression
from tfdist import correction as correction
from tfdist import datasets as datasets
from tfdist import layers as layers
from tfdist import pipeline as pipeline
from tfdist import placement as placement
from tfdist import sandblaster as sandblaster
from tfdist import simulation as simulation
from tfdist import synchronization as synchronization
from tfdist import testing as testing
from tfdist.pipeline.strategy import PipelineStrategy as PipelineStrategy
from tfdist.runtime.variables.unused_models import (
    ModelFreedError as ModelFreedError,
)
from tfdist.strategies.all_reduce import AllReduceStrategy as AllReduceStrategy
from tfdist.strategies.evaluator import SidecarEvaluator as SidecarEvaluator
from tfdist.strategies.fault_tolerance import FaultTolerance as FaultTolerance
from tfdist.strategies.gossip import GossipStrategy as GossipStrategy
from tfdist.strategies.local_presets import (
    AsyncLocalSGDStrategy as AsyncLocalSGDStrategy,
)
from tfdist.strategies.local_presets import BMUFStrategy as BMUFStrategy
from tfdist.strategies.local_presets import DiLoCoStrategy as DiLoCoStrategy
from tfdist.strategies.local_presets import DownpourStrategy as DownpourStrategy
from tfdist.strategies.local_presets import (
    ElasticAveragingStrategy as ElasticAveragingStrategy,
)
from tfdist.strategies.local_presets import (
    ParameterAveragingStrategy as ParameterAveragingStrategy,
)
from tfdist.strategies.peer_to_peer import (
    PeerToPeerStrategy as PeerToPeerStrategy,
)
from tfdist.strategies.presets import AsyncStrategy as AsyncStrategy
from tfdist.strategies.presets import (
    BackupWorkersStrategy as BackupWorkersStrategy,
)
from tfdist.strategies.presets import (
    BoundedStalenessStrategy as BoundedStalenessStrategy,
)
from tfdist.strategies.presets import DANAStrategy as DANAStrategy
from tfdist.strategies.presets import DCASGDStrategy as DCASGDStrategy
from tfdist.strategies.presets import SoftSyncStrategy as SoftSyncStrategy
from tfdist.strategies.registry import register as register
from tfdist.strategies.sandblaster import (
    SandblasterStrategy as SandblasterStrategy,
)
from tfdist.strategies.strategy import (
    ParameterServerStrategy as ParameterServerStrategy,
)

__version__: str
