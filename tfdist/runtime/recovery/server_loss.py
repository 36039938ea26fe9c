"""Recovery of a worker whose parameter servers died and came back.

A call that fails because of a server (a training step, a pull, ...) is made
again once all servers are there. Those that were started again are given back
what they held by the worker whose replicas are the newest; see `restoring`.
"""

import dataclasses
import random
import threading
import time

from absl import logging
import tensorflow as tf

from tfdist.cluster import manifests
from tfdist.cluster import member_table
from tfdist.cluster import reconnection
from tfdist.cluster import server_discovery
from tfdist.runtime.recovery import election
from tfdist.runtime.recovery import restoring
from tfdist.runtime.recovery import server_readiness
from tfdist.runtime.recovery import stall_watchdog
from tfdist.runtime.variables import traced_calls

_POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Event(reconnection.ServerReturn):
    """One recovery, and what was restored.

    Attributes:
      restored_by_this_worker: Of those, the ones that this worker restored.
      lost_by_rows: For a model with tables, by name of such a server: of the
        updates that it counts, the least and the most that are lost in a row
        of a table there.
      dropped_local_steps: How many local steps this worker had not sent, or
        was sending, and has dropped.
    """

    restored_by_this_worker: tuple
    lost_by_rows: dict = dataclasses.field(default_factory=dict)
    dropped_local_steps: int = 0


class Recovery:
    """Makes calls of one strategy to servers, over the deaths of these.

    Args:
      runtime: The `Runtime`.
      config: The `ClusterConfig` of a worker or an evaluator.
      membership: This process's `Membership`.
      timeout: Seconds to wait for servers that are gone.
      look_up: Callable without arguments that gives the `ClusterConfig` as it
        is now, where servers may come back at other addresses; or None.
      stall_timeout: Seconds without progress after which the log says so.
      on_stall: "wait" to wait for servers for ever; "fail" to end the process
        when there is no progress; else "drop".

    Attributes:
      events: List of `Event`, one for each recovery so far.
      on_first_lost: Functions that are called where the first server was
        started again, before workers meet there.
    """

    # There are servers, and they may be lost.
    is_needed = True

    def __init__(
        self,
        runtime,
        config,
        membership,
        *,
        timeout,
        look_up=None,
        stall_timeout=600.0,
        on_stall="drop",
    ):
        self._runtime = runtime
        self._store = store = runtime.store
        self._whereabouts = server_discovery.ServerDiscovery(config, look_up)
        self._membership = membership
        self._timeout = float("inf") if on_stall == "wait" else timeout
        self._election = election.Election(
            store.worker_id,
            runtime.local,
            runtime.synchronizer,
            restoring.Restorer(
                store,
                runtime.gradient_counts,
                runtime.synchronizer,
                config.num_workers,
            ),
            config,
            self._timeout,
        )
        self._settling = server_readiness.ServerReadiness(
            store, config.ps_names
        )
        self._traced = traced_calls.Traced(store)
        self._active = threading.local()
        self._watchdog = stall_watchdog.Watchdog(
            config.task_name,
            lambda: (runtime.journal.begun, runtime.journal.exchanges),
            self._describe_wait,
            timeout=stall_timeout,
            fails=on_stall == "fail",
        )
        self._reconnection = reconnection.Reconnection(
            self._whereabouts, membership, self._timeout, config.task_name
        )
        self.events = []
        self.on_first_lost = []
        names = member_table.names_of(config)
        # By server, what tells it what to keep in snapshots.
        self._manifests = [
            self._make_manifest(manifests.Manifest(device, len(names)), client)
            for device, client in zip(
                store.devices, membership.clients, strict=True
            )
        ]
        # By server: its life, and what it has been told of.
        self._told = {}

    @property
    def incarnations(self):
        """Numbers of the servers' processes, a list of int."""
        return self._reconnection.lives

    @property
    def config(self):
        """The `ClusterConfig` with the servers' addresses as known now."""
        return self._whereabouts.config

    def wait_until_settled(self, is_chief, timeout):
        """See `ServerReadiness.wait`."""
        membership = self._membership

        def others():
            rows = self._store.call(membership.read)
            return [m for k, m in enumerate(rows) if k != membership.row]

        # Where a cluster begins, others may have begun before its chief.
        asks = is_chief and self._has_come_back()
        return self._settling.wait(is_chief, timeout, others if asks else list)

    def _has_come_back(self):
        """Whether a process before this one was there."""
        self._store.call(self._membership.find_former)
        unknown = member_table.MemberState.UNKNOWN
        former = self._membership.former
        return former is not None and former.state is not unknown

    def _make_manifest(self, manifest, client):
        def build(text):
            manifest.build_write(self._membership.row, text)

        return client.function(build, [tf.TensorSpec([], tf.string)])

    def leave_manifest(self):
        """Tells each server what to keep in snapshots; with each heartbeat."""
        known = dict(self._store.known)
        for shard, manifest in enumerate(self._manifests):
            variables = {
                name: dtype.name
                for (holder, name), dtype in known.items()
                if holder == shard and "/recovery/" not in name
            }
            tables = {
                name: flag
                for name, flag in self._store.tables_on(shard).items()
                if name in variables
            }
            variables.update(dict.fromkeys(tables.values(), "bool"))
            state = (self.incarnations[shard], variables, tables)
            if self._told.get(shard) == state:
                continue
            group = {
                "lock": self._store.name_of("lock"),
                "counter": self._store.name_of("version"),
                "variables": variables,
                "tables": tables,
            }
            with manifests.own_groups(self._store.devices[shard]) as groups:
                groups[group["lock"]] = group
                manifest(manifests.text_of(list(groups.values())))
            # It is seldom called.
            manifest.close()
            self._told[shard] = state

    def call(self, function, *args):
        """Calls a function that talks to servers, again if need be.

        Args:
          function: Callable that may be called several times.
          *args: For it.

        Returns:
          What it returns.

        Raises:
          TimeoutError: A server is gone for too long; the message names it.
        """
        if getattr(self._active, "now", False):
            return function(*args)  # Whoever calls this handles errors.
        if self._runtime.coordination.is_behind:
            self.recover(
                tf.errors.UnavailableError(
                    None, None, "Servers have lost what they held."
                )
            )
        while True:
            before = self._watchdog.begin(_name_of(function))
            try:
                return function(*args)
            except tf.errors.OutOfRangeError:
                raise  # The end of the data.
            except tf.errors.OpError as error:
                failed = error
            finally:
                self._watchdog.end(before)
            self.recover(failed)

    def _describe_wait(self):
        """Describes what a call may be waiting for, a str."""
        silent = self._whereabouts.silent(self._whereabouts.lives())
        if silent:
            return f"Parameter servers that do not answer: {', '.join(silent)}."
        if slow := self._runtime.coordination.waited_for():
            return f"Waiting for the gradients of {', '.join(slow)}."
        return "All parameter servers answer."

    def recover(self, error):
        """Waits for all servers, and gives back what they have lost.

        Args:
          error: The `tf.errors.OpError` of the call that has failed.

        Raises:
          TimeoutError: A server is gone for too long; the message names it.
          tf.errors.OpError: The error, if it has nothing to do with servers.
        """
        self._active.now = True
        try:
            self._recover(error)
        finally:
            self._active.now = False

    def _recover(self, error):
        # Workers that lost the same server do not all come back at once.
        time.sleep(random.uniform(0.0, _POLL_SECONDS))
        began = time.monotonic()
        mine, by_rows, dropped = set(), {}, []

        def put_back(shards, now):
            here = [True] * self._whereabouts.config.num_workers
            if 0 in shards:
                for function in self.on_first_lost:
                    function()
            for shard in sorted(shards):
                done, here = self._election.restore(shard, began)
                # Else there is nobody that was there before.
                self._settling.settle(shard, is_restored=any(here))
                by_rows[shard] = self._election.lost_by_rows(shard)
                if done:
                    mine.add(shard)
            if shards:
                self._runtime.unused_models.free_again(
                    shards, {k for k in shards if self._settling.snapshot_of(k)}
                )
            self._runtime.coordination.renew(now, here)
            self._reconnection.lives = now
            if by_rows:
                self._settle_marks()
            self._refresh(dropped)

        done = self._reconnection.recover(error, put_back)
        names = self._whereabouts.config.ps_names
        if any(dropped):
            logging.warning(
                "%s drops %d local steps that servers have not got, or not all "
                "servers.",
                self._whereabouts.config.task_name,
                sum(dropped),
            )
        self.events.append(
            Event(
                **dataclasses.asdict(done),
                restored_by_this_worker=tuple(names[k] for k in sorted(mine)),
                lost_by_rows={
                    names[k]: found
                    for k, found in by_rows.items()
                    if found is not None
                },
                dropped_local_steps=sum(dropped),
            )
        )

    def _settle_marks(self):
        marks = self._runtime.marks
        # An evaluator leaves none.
        if self._whereabouts.config.is_worker:
            marks.settle()
        # The failed call may read those of workers that do not come back.
        marks.prepare(self._traced)

    def _refresh(self, dropped):
        """Takes over what servers hold.

        Also after a mere break: the step that has failed may be half done,
        here and on servers.

        Args:
          dropped: List, to which is added how many local steps are gone.
        """
        dropped.append(self._runtime.local.drop_unpushed())
        self._runtime.synchronizer.pull_committed()
        self._runtime.local.after_pull()


def _name_of(function):
    """Returns the name of a function for the log."""
    name = getattr(function, "__qualname__", None)
    return name or getattr(function, "name", None) or type(function).__name__
