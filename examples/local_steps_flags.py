"""Flags of the strategies that take local steps between two exchanges.

Part of `strategy_flags.py`, which scripts import.
"""

import math
from typing import Any

from absl import flags
import keras

import tfdist
from tfdist import synchronization

FLAGS = flags.FLAGS

SYNCHRONIZATIONS = {
    "async": synchronization.Async,
    "sync": synchronization.Sync,
}


def given(*names: str) -> dict[str, Any]:
    """What the flags say; the rest is left to the strategy's own defaults.

    Args:
        *names: of flags that are arguments of a strategy as well.
    """
    return {
        name: FLAGS[name].value
        for name in names
        if not FLAGS[name].using_default_value
    }


def _outer_rate(default: float) -> float:
    rate = FLAGS.outer_learning_rate
    return default if rate is None else rate


def _diloco(**common: Any) -> tfdist.DiLoCoStrategy:
    return tfdist.DiLoCoStrategy(
        outer_optimizer=keras.optimizers.SGD(
            _outer_rate(0.7), FLAGS.outer_momentum, nesterov=True
        ),
        **given("period", "warmup_steps"),
        **common,
    )


def _downpour(**common: Any) -> tfdist.DownpourStrategy:
    return tfdist.DownpourStrategy(
        # As in the paper: each sum of squares begins at 0.
        outer_optimizer=keras.optimizers.Adagrad(
            _outer_rate(0.01),
            initial_accumulator_value=0.0,
            epsilon=1e-10,
        ),
        **given("n_fetch", "n_push"),
        **common,
    )


# Name -> what makes the strategy, of the arguments that several have.
STRATEGIES = {
    "parameter_averaging": lambda **common: tfdist.ParameterAveragingStrategy(
        **given("period", "average_optimizer_state", "warmup_steps"), **common
    ),
    "bmuf": lambda **common: tfdist.BMUFStrategy(
        **given("period", "block_momentum", "warmup_steps"), **common
    ),
    "diloco": _diloco,
    "async_local_sgd": lambda **common: tfdist.AsyncLocalSGDStrategy(
        outer_optimizer=lambda num_workers: tfdist.averaging.DelayedNesterov(
            _outer_rate(0.7), FLAGS.outer_momentum, delay=num_workers
        ),
        **given("period", "warmup_steps"),
        **common,
    ),
    "easgd": lambda **common: tfdist.ElasticAveragingStrategy(
        synchronization=SYNCHRONIZATIONS[FLAGS.easgd_synchronization](),
        **given("period", "moving_rate"),
        **common,
    ),
    "downpour": _downpour,
}
AVERAGING = ("parameter_averaging", "bmuf", "diloco", "async_local_sgd")
# Flag -> the strategies that it says something about.
FITS = {
    "period": (*AVERAGING, "easgd"),
    "average_optimizer_state": ("parameter_averaging",),
    "warmup_steps": AVERAGING,
    "block_momentum": ("bmuf",),
    "outer_learning_rate": ("diloco", "async_local_sgd", "downpour"),
    "outer_momentum": ("diloco", "async_local_sgd"),
    "moving_rate": ("easgd",),
    "easgd_synchronization": ("easgd",),
    "n_fetch": ("downpour",),
    "n_push": ("downpour",),
}

flags.DEFINE_integer(
    "period",
    None,
    "Local steps between two exchanges. Default: 10; of bmuf and "
    "async_local_sgd 50, of diloco 500.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "average_optimizer_state",
    False,
    "Whether the optimizer's slots are averaged along with the weights.",
)
flags.DEFINE_integer(
    "warmup_steps",
    0,
    "Local steps during which the period is 1.",
    lower_bound=0,
)
flags.DEFINE_float(
    "block_momentum",
    None,
    "Momentum of the blocks' mean changes. Default: 1 - 1 / workers.",
)
flags.DEFINE_float(
    "outer_learning_rate",
    None,
    "Rate of the servers' optimizer. Default: 0.7; of downpour, whose servers "
    "have Adagrad, 0.01.",
)
flags.DEFINE_float(
    "outer_momentum", 0.9, "Nesterov's momentum of the servers' optimizer."
)
flags.DEFINE_float(
    "moving_rate",
    0.9,
    "How far all workers together move the centre per exchange, of their mean "
    "distance from it.",
)
flags.DEFINE_enum(
    "easgd_synchronization",
    "async",
    list(SYNCHRONIZATIONS),
    "Whether each worker moves the centre for itself, or all at once.",
)
flags.DEFINE_integer(
    "n_fetch", 1, "Local steps between two fetches.", lower_bound=1
)
flags.DEFINE_integer(
    "n_push", 1, "Local steps between two pushes.", lower_bound=1
)
for _name in ("outer_learning_rate", "moving_rate"):
    flags.register_validator(
        _name,
        lambda value: value is None or 0 < value < math.inf,
        message="must be a positive, finite number.",
    )
for _name in ("block_momentum", "outer_momentum"):
    flags.register_validator(
        _name,
        lambda value: value is None or 0 <= value < 1,
        message="must be a number of at least 0 and less than 1.",
    )
