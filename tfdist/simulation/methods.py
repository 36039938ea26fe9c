"""Methods in the forms in which `simulate` and its like take them."""

from typing import Any

import tensorflow as tf

from tfdist.averaging import LocalSteps
from tfdist.correction import Correction
from tfdist.simulation import sandblaster
from tfdist.simulation.exchange import VirtualExchange
from tfdist.simulation.exchange_gossip import GossipExchange
from tfdist.simulation.exchange_peers import PeerExchange
from tfdist.strategies import registry
from tfdist.strategies.method import Method
from tfdist.synchronization import Synchronization


def as_exchange(strategy: Any) -> tuple[VirtualExchange | None, str]:
    """Returns the exchange that is meant, and its name.

    Args:
      strategy: As for `simulate`.

    Returns:
      None and "" if it is another method.

    Raises:
      ValueError: It has settings that do not go together, or are not played.
    """
    if isinstance(strategy, VirtualExchange):
        return strategy, strategy.name
    if isinstance(strategy, str):
        strategy = registry.method(strategy)
    strategy = _of_strategy(strategy)
    if isinstance(strategy, Method) and strategy.is_among_peers:
        strategy.resolve(1)  # Refuses settings that do not go together.
        if strategy.warmup_peers is not None:
            raise ValueError(
                "Argument `strategy` must be without `warmup_peers`, which is "
                "not simulated: all workers begin at once. Received: "
                f"warmup_peers={strategy.warmup_peers!r}"
            )
    if isinstance(strategy, Method) and strategy.sends_to_peers:
        return PeerExchange(strategy.compression), strategy.name
    if isinstance(strategy, Method) and strategy.gossips:
        return GossipExchange(), strategy.name
    return None, ""


def as_method(strategy: Any, takes_peers: bool = False) -> Method:
    """Returns the `Method` that is meant.

    Args:
      strategy: A `Method`, a text for `registry.method`, a `Synchronization`,
        a `Correction`, `LocalSteps`, or a strategy of tfdist but
        `SandblasterStrategy` (of its arguments, those of `Method`).
      takes_peers: Whether it may be one of workers that send to each other.

    Raises:
      ValueError: It is a text that names none, or Sandblaster.
      TypeError: It is something else.
    """
    if sandblaster.of(strategy) is not None:
        raise ValueError(
            "Argument `strategy` must be a method with updates from single "
            "gradients. Received: sandblaster, whose iterations take all data "
            "and have no learning rate: `tfdist simulate`, `simulate` and "
            "`timing` play it"
        )
    if isinstance(strategy, str):
        strategy = registry.method(strategy)
    strategy = _of_strategy(strategy)
    if isinstance(strategy, Method):
        if not strategy.needs_servers and not (
            takes_peers and strategy.is_among_peers
        ):
            raise ValueError(
                "Argument `strategy` must be a method with servers. Received: "
                f"communication={strategy.communication!r}"
            )
        return strategy
    if isinstance(strategy, Synchronization):
        return Method(strategy)
    if isinstance(strategy, Correction):
        return Method(correction=strategy)
    if isinstance(strategy, LocalSteps):
        return Method(local_steps=strategy)
    raise TypeError(
        "Argument `strategy` must be a tfdist.simulation.Method, one of "
        f"{', '.join(registry.names())}, a Synchronization, a Correction, "
        "LocalSteps or a strategy of tfdist but SandblasterStrategy. "
        f"Received: strategy={strategy!r}"
    )


def _of_strategy(strategy):
    """Returns the `Method` of a strategy of tfdist, others as they are."""
    if isinstance(strategy, tf.distribute.Strategy):
        return getattr(strategy, "method", strategy)
    return strategy
