"""Composes the `Runtime` of a strategy: which axes it uses, and with what."""

import dataclasses
import functools
from typing import Any

from tfdist.all_reduce import collectives as collectives_lib
from tfdist.all_reduce import consistency
from tfdist.cluster import config as cluster_config
from tfdist.cluster import returns
from tfdist.runtime import runtime
from tfdist.runtime.checkpoint import training_state
from tfdist.runtime.coordination import coordination
from tfdist.runtime.corrections import corrector
from tfdist.runtime.exchange import exchange_markers
from tfdist.runtime.exchange import gradient_counts
from tfdist.runtime.exchange import nonfinite as nonfinite_lib
from tfdist.runtime.exchange import portion_progress
from tfdist.runtime.keras_hooks import chief_decisions
from tfdist.runtime.keras_hooks import evaluations
from tfdist.runtime.keras_hooks import queued_work
from tfdist.runtime.local_steps import local
from tfdist.runtime.local_steps import ring
from tfdist.runtime.local_steps import ring_communication
from tfdist.runtime.local_steps import ring_engine
from tfdist.runtime.local_steps import ring_values
from tfdist.runtime.local_steps import server_communication
from tfdist.runtime.recovery import no_recovery
from tfdist.runtime.recovery import server_loss
from tfdist.runtime.variables import server_functions
from tfdist.runtime.variables import table
from tfdist.runtime.variables import unused_models
from tfdist.saving import files
from tfdist.saving import refusals

_FOREVER_SECONDS = 1e9


@dataclasses.dataclass(frozen=True)
class Connections:
    """Connections of this process to the others.

    Attributes:
      config: The `ClusterConfig`.
      look_up: Callable without arguments that gives it as it is now; or None.
      worker_device: This worker's CPU.
      devices: List of the servers' devices, at least one.
      membership: This process's `Membership`; None without servers.
      peers: The `Peers` of a ring; None outside of one.
    """

    config: cluster_config.ClusterConfig
    look_up: Any
    worker_device: str
    devices: list
    membership: Any
    peers: Any


def compose(
    method,
    resolved,
    connections,
    tolerance,
    *,
    namespace,
    partitioner,
    nonfinite,
    decisions,
    starts_together=False,
    tables=table.NO_TABLES,
    portions_per_worker=None,
):
    """Makes the parts of the axes that a strategy uses.

    Args:
      method: The `Method`, as it was given.
      resolved: The same, resolved for this cluster.
      connections: `Connections`.
      tolerance: A `FaultTolerance`.
      namespace: Prefix of the resources' names, the same on all workers.
      partitioner: See `ParameterStore`.
      nonfinite: One of `nonfinite_log.CHOICES`.
      decisions: One of `chief_decisions.CHOICES`.
      starts_together: See `ChiefDecisions`.
      tables: The `TableSettings`.
      portions_per_worker: Portions of an epoch for each worker, where workers
        take portions instead of shares; else None.

    Returns:
      A `Runtime`.
    """
    config, membership = connections.config, connections.membership
    worker_id = config.worker_id if config.is_worker else 0
    parts = {
        "state": functools.partial(
            training_state.TrainingState,
            num_workers=config.num_workers,
            correction=method.correction,
            local_steps=method.local_steps,
        ),
        "nonfinite": lambda made: nonfinite_lib.Nonfinite(
            made.store, choice=nonfinite, worker=config.task_name
        ),
        "evaluations": lambda made: evaluations.of(
            config, made.local.show_anchor
        ),
        **_axes(resolved, connections, tolerance, worker_id, decisions),
    }
    if config.num_ps:
        parts |= _about_servers(connections, tolerance)
    if connections.peers is not None:
        parts["recovery"] = lambda made: no_recovery.NoRecovery(
            made.store.num_shards,
            collectives_lib.of(connections.peers, tolerance).call,
        )
    if config.num_ps > 1 and config.num_workers > 1:
        parts["marks"] = lambda made: exchange_markers.ExchangeMarkers(
            made.store,
            num_workers=config.num_workers,
            worker_id=worker_id,
        )
    if (
        decisions == "chief"
        and config.num_ps
        and config.is_worker
        and config.num_workers > 1
    ):
        parts["chief_decisions"] = functools.partial(
            chief_decisions.ChiefDecisions,
            starts_together=starts_together,
            membership=membership,
            config=config,
            worker_timeout=tolerance.worker_timeout,
            start_timeout=tolerance.start_timeout,
        )
        if portions_per_worker is not None:
            parts["batch_progress"] = lambda made: (
                portion_progress.PortionProgress(made.store)
            )
            parts["work"] = lambda made: queued_work.QueuedWork(
                made.store,
                made.batch_progress,
                membership,
                config,
                wait=made.wait,
                pull=made.pull,
                portions_per_worker=portions_per_worker,
                worker_timeout=tolerance.worker_timeout,
            )
    if not config.is_chief:
        refusals.refuse_to_open()
    made = runtime.Runtime(
        runtime.Parts(**parts),
        namespace=namespace,
        devices=connections.devices,
        worker_device=connections.worker_device,
        worker_id=worker_id,
        # Without servers each worker holds all there is.
        is_chief=config.is_chief or not resolved.needs_servers,
        timeout=tolerance.start_timeout,
        partitioner=partitioner,
        tables=tables,
        clients=membership and membership.clients,
        files=files.of(config),
    )
    if membership is not None:
        membership.on_beat.append(made.coordination.tick)
        membership.on_beat.append(membership.fits.close_if_over)
        membership.on_beat.append(made.recovery.leave_manifest)
        if config.is_chief and config.num_workers > 1:
            watched = returns.Returns(
                config.worker_names, worker_id, tolerance.worker_timeout
            )
            membership.on_beat.append(
                functools.partial(watched.tick, membership)
            )
    return made


def _axes(method, connections, tolerance, worker_id, decisions):
    """The parts of a method: its correction, local steps and decisions."""
    config, parts = connections.config, {}
    # Who does not train has no gradients that are late.
    trains = config.is_worker or config.is_local
    if method.correction is not None and trains:
        parts["corrector"] = lambda made: corrector.Corrector(
            made.store,
            made.state,
            correction=method.correction,
            num_workers=config.num_workers,
            worker_id=worker_id,
        )
    if method.local_steps is not None:
        parts["local"] = _local(
            method, connections, tolerance, worker_id, decisions
        )
    if not method.needs_order:
        parts["gradient_counts"] = lambda made: gradient_counts.GradientCounts(
            made.store,
            num_workers=config.num_workers,
            # In a ring each counts its own.
            worker_names=dict(enumerate(config.worker_names))
            if method.needs_servers
            else {worker_id: config.task_name},
        )
    if not method.needs_order:
        return parts
    membership = connections.membership
    parts["coordination"] = functools.partial(
        coordination.Coordination,
        method=method.synchronization,
        correction=method.correction,
        worker_names=config.worker_names,
        initial_workers=config.initial_workers,
        worker_id=worker_id,
        worker_timeout=tolerance.worker_timeout,
        start_timeout=tolerance.start_timeout,
        # Whoever is there and sends nothing is waited for, or not.
        idle_timeout=tolerance.stall_timeout
        if tolerance.on_stall == "drop"
        else _FOREVER_SECONDS,
        members_table=membership and membership.tables[0],
    )
    return parts


def _local(method, connections, tolerance, worker_id, decisions):
    """Returns the factory of the part that takes local steps.

    Where no order of decisions is needed they may be exchanged in a ring.
    """
    config, membership = connections.config, connections.membership
    settings = {
        "method": method.local_steps,
        "synchronization": method.synchronization,
        "num_workers": config.num_workers,
        "worker_id": worker_id,
    }

    def communication(made):
        if method.needs_servers:
            return server_communication.ServerCommunication(
                made.store,
                made.coordination,
                method.local_steps,
                method.synchronization,
                has_others=config.num_workers > 1,
            )
        return _ring(made, method, connections, tolerance, decisions)

    if membership is not None:
        settings["build_workers"] = functools.partial(
            membership.tables[0].build_enlisted,
            config.num_workers,
            config.initial_workers,
        )
    return lambda made: local.Local(
        made, communication=communication(made), **settings
    )


def _ring(made, method, connections, tolerance, decisions):
    """Returns the `RingCommunication` of a method that needs no servers."""
    config = connections.config
    sums = collectives_lib.of(connections.peers, tolerance)
    joined = ring.Ring(
        sums,
        made.store,
        weighted=method.local_steps.weighted,
        is_chief=config.is_chief,
        follows_chief=decisions == "chief",
    )
    engine = ring_engine.RingEngine(
        joined,
        ring_values.StoreValues(made.store, made.commit),
        consistency.Consistency(sums, config.worker_names),
        made.journal,
        is_chief=config.is_chief,
    )
    return ring_communication.RingCommunication(joined, engine)


def _about_servers(connections, tolerance):
    """The parts that see to servers, and to what they hold."""
    config, membership = connections.config, connections.membership
    return {
        "unused_models": functools.partial(
            unused_models.UnusedModels,
            config=config,
            membership=membership,
            patience=tolerance.start_timeout,
        ),
        "recovery": functools.partial(
            server_loss.Recovery,
            config=config,
            membership=membership,
            timeout=tolerance.server_timeout,
            look_up=connections.look_up,
            stall_timeout=tolerance.stall_timeout,
            on_stall=tolerance.on_stall,
        ),
        "server_functions": lambda made: server_functions.ServerFunctions(
            made.store, made.recovery
        ),
    }
