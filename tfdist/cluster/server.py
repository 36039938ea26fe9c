"""The life of a `ps` task: it serves until training is over."""

import os
import signal
import time

from absl import logging

from tfdist.cluster import connection
from tfdist.cluster import environment
from tfdist.cluster import gpus
from tfdist.cluster import member_table
from tfdist.cluster import orphaned_sessions
from tfdist.cluster import preemption
from tfdist.cluster import snapshot_lock
from tfdist.cluster import snapshot_slots
from tfdist.cluster import snapshots
from tfdist.cluster import termination
from tfdist.cluster import versions

_POLL_SECONDS = 0.25
# Workers were seen to take leave of TensorFlow within 0.7 to 1.5 s.
_FAREWELL_SECONDS = 1.2
# Helpers are to see in the table that their workers have finished.
_FAREWELL_TO_HELPERS_SECONDS = 4.0
# What workers that get SIGTERM at the same moment may take for their last step.
_LAST_STEP_SECONDS = 2.0
# A look at the table that comes later than that after the last one: the process
# was suspended, or the clock set, and has not heard its workers.
_PAUSE_SECONDS = 5.0
# Workers show that they live every second.
_SILENT_SECONDS = 3.0
_TERMINATED_STATUS = 128 + signal.SIGTERM


def serve(
    config,
    *,
    start_timeout,
    snapshot_dir=None,
    snapshot_every=30.0,
    writes_on_command=False,
):
    """Runs TensorFlow's server until all workers have finished.

    The process is its own server's first client: a bare server whose first
    clients come at the same moment dies of a segmentation fault in a good
    part of all starts.

    Args:
      config: The `ClusterConfig` of a `ps` task.
      start_timeout: Seconds within which the first worker has to appear, and
        for which the server waits when all have vanished unfinished.
      snapshot_dir: Directory for snapshots; None for none.
      snapshot_every: Seconds between two snapshots.
      writes_on_command: Whether a worker says when all servers write
        (`SnapshotSlots`), instead of each by itself (`Snapshots`).

    Returns:
      The exit status of the process: 0 when training has finished, 143 when
      SIGTERM has ended it before, 1 when there was no worker to wait for.

    Raises:
      ClusterConfigError: Another server keeps its snapshots where this one
        would.
    """
    preemption.install(exits=False)
    environment.apply_to_server(os.environ)
    gpus.hide(config)
    connection.start_alone(config)
    versions.leave(config)
    device = f"/job:ps/replica:0/task:{config.task_index}/device:CPU:0"
    names = member_table.names_of(config)
    kept = None
    if snapshot_dir is not None and writes_on_command:
        kept = snapshot_slots.SnapshotSlots(
            snapshot_dir,
            device,
            task=config.task_index,
            num_servers=config.num_ps,
            every=snapshot_every,
        )
    elif snapshot_dir is not None:
        kept = snapshots.Snapshots(
            snapshot_dir,
            device,
            task=config.task_index,
            num_servers=config.num_ps,
            num_members=len(names),
            num_workers=config.num_workers,
            every=snapshot_every,
        )
    if kept is not None:
        lock = snapshot_lock.hold(kept.directory, config.task_name)
        kept.restore()
    table = member_table.MemberTable(device, names)
    # Now workers begin to talk to this server.
    table.create()
    if kept is not None:
        kept.start()
    connection.warn_of_port(config)
    status = _wait_for_end(config, table, start_timeout)
    if kept is not None and status == 0:
        kept.finish()
        if lock is not None:
            snapshot_lock.remove(kept.directory)
    if kept is not None and status == _TERMINATED_STATUS:
        # For its next life: nothing that it has applied is lost.
        kept.write()
    return status


def _wait_for_end(config, table, timeout):
    started = time.monotonic()
    looked = started, time.time()
    left = orphaned_sessions.Remnants(config.address)
    while True:
        time.sleep(_POLL_SECONDS)
        rows = table.read()
        before, looked = looked, (time.monotonic(), time.time())
        # The clock by which workers were heard goes on while a machine sleeps.
        passed = [b - a for a, b in zip(before, looked, strict=True)]
        if max(passed) > _PAUSE_SECONDS:
            table.excuse(max(passed))
            started += passed[0]
            rows = table.read()
        left.look(rows)
        says = termination.launcher_says()
        try:
            over = says or termination.is_over(
                rows,
                known_for=looked[0] - started,
                patience=timeout,
                lost_after=member_table.LOST_AFTER_SECONDS,
                with_evaluators=True,
                initial_workers=config.initial_workers,
            )
        except TimeoutError as error:
            logging.error("%s: %s", config.task_name, error)
            return 1
        # Until SIGTERM a launcher's no outweighs the table.
        if over and (says is not False or preemption.received()):
            break
        if preemption.received():
            return _end_early(config, table)
    lost = termination.lost(rows, config.initial_workers)
    if lost and not says:
        logging.warning(
            "%s: the others have finished, and %s not been seen for %g s: "
            "training is over.",
            config.task_name,
            f"{', '.join(lost)} ha{'s' if len(lost) == 1 else 've'}",
            member_table.LOST_AFTER_SECONDS,
        )
    else:
        logging.info("%s: training is over.", config.task_name)
    # A worker that takes leave of its runtime would wait some seconds for a
    # server that has gone before it. A launcher has seen all of them end.
    if not says:
        has_helpers = "helper" in config.spec
        time.sleep(
            _FAREWELL_TO_HELPERS_SECONDS if has_helpers else _FAREWELL_SECONDS
        )
    return 0


def _end_early(config, table):
    """Ends a server that got SIGTERM before training was over.

    Returns:
      The exit status, that of a process that SIGTERM has killed: what has
      started the server is to start it again.
    """
    end = time.monotonic() + _LAST_STEP_SECONDS
    while (some_train := _some_train(table)) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    if some_train:
        logging.warning(
            "%s got SIGTERM before training was over: it ends, and workers "
            "wait for it to come back.",
            config.task_name,
        )
    return _TERMINATED_STATUS


def _some_train(table):
    """Whether there are workers that would miss this server."""
    return any(
        m.state == member_table.MemberState.ALIVE
        and m.silent_for < _SILENT_SECONDS
        for m in table.read()
    )
