"""The columns: one for each registered method, and those without servers.

Settings are such that the outcome of a linear program follows from arithmetic:
outer optimizers are SGD of rate 1, momenta and lambdas 0. Rules with other
settings are tested against oracles elsewhere.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from tests.keras_programs import groups
import tfdist
from tfdist.strategies import registry

PERIOD = 2
"""Steps between two exchanges of the methods with local steps."""

KINDS = {
    "sum": "each gradient is an update",
    "mean": "an update is the mean of one gradient per worker",
    "half": "each gradient is applied on arrival, with weight 1/2",
    "local": "the workers' weights are averaged every two local steps",
    "alone": "each group trains alone",
    "sent": "each worker makes its own updates, and all workers apply them",
    "pairs": "each worker makes its own updates; then all take the mean",
    "loose": "weights depend on timing; only counts and signs are checked",
}


@dataclasses.dataclass(frozen=True)
class Column:
    """A method with settings.

    Attributes:
      name: Name in the table.
      kind: One of `KINDS`.
      make: Callable of the strategy's arguments that makes it.
      num_ps: Number of servers.
      code: What a user writes, for the document.
      rows: Names of the only rows that mean something; None for all.
    """

    name: str
    kind: str
    make: Callable[..., Any]
    num_ps: int
    code: str
    rows: frozenset | None = None

    def has(self, row):
        """Whether a row means something under the method, by its name."""
        return self.rows is None or row in self.rows


def _registered(name, kind, settings=""):
    text = f"{name}:{settings}" if settings else name

    def make(**arguments):
        method = registry.method(text)
        return tfdist.ParameterServerStrategy(
            synchronization=method.synchronization,
            correction=method.correction,
            local_steps=method.local_steps,
            **arguments,
        )

    return Column(name, kind, make, 1, text)


def _ring(name, settings):
    text = f"{name}:{settings}"

    def make(**arguments):
        method = registry.method(text)
        return tfdist.ParameterServerStrategy(
            synchronization=method.synchronization,
            local_steps=method.local_steps,
            communication="ring",
            **arguments,
        )

    return Column(
        f"{name} (ring)", "local", make, 0, f"{text}:communication=ring"
    )


# Programs of one compiled model whose data nobody shares out.
_OF_ONE_MODEL = """
one_fit two_fits three_epochs uneven_data compiled_again another_optimizer
loop_of_train_on_batch several_steps_per_execution part_of_an_execution
eager_steps compiled_steps later_epochs validated_every_second_epoch evaluated
adam adamw nadam momentum rmsprop adagrad adadelta adamax ftrl lion lamb
adafactor amsgrad muon schedule clipped decayed scaled_loss own_scalar own_rule
averaged overwritten accumulated accumulated_over_fits count_of_steps
weights_swapped_for_validation averages_swapped_for_validation
averages_swapped_at_epochs first_step_refused another_rate_refused interrupted
"""
_K = f"period={PERIOD}"
_PLAIN_BLOCKS = "block_momentum=0:reset_momentum=false"
_PLAIN_OUTER = f"{_K}:outer_learning_rate=1:outer_momentum=0"
_ALL = (
    _registered("async", "sum"),
    _registered("bounded_staleness", "sum", "max_staleness=1"),
    _registered("backup_workers", "sum", "on_drop=retry"),
    _registered("dc_asgd", "sum", "lambda_0=0"),
    _registered("dana", "sum", "variant=zero:momentum=0"),
    _registered("downpour", "sum", "outer_optimizer=sgd:outer_learning_rate=1"),
    _registered("sync", "mean"),
    Column(
        "all_reduce",
        "mean",
        tfdist.AllReduceStrategy,
        0,
        "AllReduceStrategy()",
    ),
    _registered("softsync", "half", "s=2"),
    _registered("async_local_sgd", "half", f"{_PLAIN_OUTER}:dynamic=false"),
    _registered("parameter_averaging", "local", _K),
    _registered("bmuf", "local", f"{_K}:{_PLAIN_BLOCKS}"),
    _registered("diloco", "local", _PLAIN_OUTER),
    _ring("parameter_averaging", _K),
    _ring("bmuf", f"{_K}:{_PLAIN_BLOCKS}"),
    _ring("diloco", _PLAIN_OUTER),
    _registered("easgd", "loose", _K),
    _registered("inverse_staleness", "loose"),
    _registered("gap_aware", "loose"),
    _registered("fasgd", "loose"),
    Column(
        "peer_to_peer",
        "sent",
        tfdist.PeerToPeerStrategy,
        0,
        "PeerToPeerStrategy()",
    ),
    Column(
        "gossip",
        "pairs",
        tfdist.GossipStrategy,
        0,
        "GossipStrategy()",
    ),
    Column(
        "codistillation",
        "alone",
        groups.Groups,
        0,
        "codistillation.Codistilled(model, burn_in_steps=...)",
        frozenset(_OF_ONE_MODEL.split()),
    ),
)
COLUMNS = {column.name: column for column in _ALL}

LOCAL_STEPS = (
    "async_local_sgd",
    "downpour",
    "easgd",
    *(column.name for column in _ALL if column.kind == "local"),
)
"""Methods whose workers have weights of their own between exchanges."""

AVERAGING = ("backup_workers", "sync", "softsync", *LOCAL_STEPS)
"""Methods of whose updates several steps or gradients are part."""

RINGS = tuple(name for name in COLUMNS if name.endswith("(ring)"))
