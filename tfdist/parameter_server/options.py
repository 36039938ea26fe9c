"""The arguments that all strategies with servers have in common, as a type."""

from collections.abc import Callable
import os
from typing import Any
from typing import Literal
from typing import TypedDict

import tensorflow as tf

from tfdist.averaging import LocalSteps
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


class StrategyOptions(TypedDict, total=False):
    """What presets hand on to `ParameterServerStrategy`, which documents it."""

    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None
    synchronization: Synchronization | None
    correction: Correction | None
    local_steps: LocalSteps | int | None
    communication: Literal["parameter_server", "ring"]
    variable_partitioner: Callable[..., Any] | None
    warmup_worker_steps: int
    joining: Literal["at_once", "one_by_one"]
    nonfinite: Literal["drop", "fail", "ignore"]
    start_timeout: float
    worker_timeout: float
    on_preemption: Literal["exit", "note"]
    decisions: Literal["chief", "each"]
    server_timeout: float
    stall_timeout: float
    on_stall: Literal["drop", "fail", "wait"]
    snapshot_dir: str | os.PathLike[str] | None
    snapshot_every: float
    seed: int | None
