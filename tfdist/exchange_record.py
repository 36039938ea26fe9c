"""The record of one exchange between workers, whatever carries it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExchangeRecord:
    """One exchange of one optimizer step.

    Attributes:
      time: Seconds since the epoch, when the fresh parameters had arrived.
      version: Updates that the first server had applied by then.
      pulled: Updates that were in this worker's replicas when its gradients
        were computed: of the first server. Where a ledger decides over
        gradients, of this optimizer, and the fewest over the servers.
      arrival: Number of this gradient among all that have arrived at the
        ledger, from 0; -1 where there is none (plain `Async`).
      staleness: Updates that others had applied between this worker's pull
        and the application of its gradients; the largest over the servers.
        Without a ledger, a pull of any of several optimizers counts.
      accepted: Whether the gradients are part of an update; dropped else.
      compute_seconds: From the end of the exchange before to this one's
        beginning: input, forward, backward; and what callbacks and
        validation have done in between. Zero for the first.
      exchange_seconds: From gradients ready to fresh parameters here, without
        the wait.
      wait_seconds: From the gradients' arrival to their turn on the server,
        with what the method of synchronization makes them wait for. Where
        gradients go around a ring, that is part of `exchange_seconds`.
      bytes_sent: Payload sent to all servers.
      bytes_received: Payload received from all servers.
      local_steps: Optimizer steps of this worker since the exchange before, 1
        where each step is exchanged.
      nonfinite: Whether the gradients were dropped because something of what
        was pushed was NaN or Inf.
      pulled_by_server: As `pulled`, of each server: all are asked at once,
        and one may have been asked an update later than another.
    """

    time: float
    version: int
    pulled: int
    arrival: int
    staleness: int
    accepted: bool
    compute_seconds: float
    exchange_seconds: float
    wait_seconds: float
    bytes_sent: int
    bytes_received: int
    local_steps: int
    nonfinite: bool
    pulled_by_server: tuple
