"""How a worker goes on when parameter servers have died and come back.

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

from tfdist.cluster import connection
from tfdist.cluster import incarnation
from tfdist.cluster import members
from tfdist.cluster import snapshots
from tfdist.cluster import waiting
from tfdist.cluster.gate import gate
from tfdist.parameter_server import restoring
from tfdist.parameter_server import settling
from tfdist.parameter_server import watchdog

# Seconds for a server to say which life it is in.
_PROBE_SECONDS = 3.0
# Seconds for other workers to say what they hold, after this one has.
_GATHER_SECONDS = 2.0
# Seconds after which the next best worker restores instead.
_STAGGER_SECONDS = 3.0
_POLL_SECONDS = 0.1
# Seconds for other threads of this process to end their calls.
_GATE_SECONDS = 30.0
# Calls that fail while all servers are there and in the life that is known:
# so often in a row within so many seconds, they are not about servers.
_HICCUPS = 5
_HICCUP_SECONDS = 60.0
_TRANSIENT = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


@dataclasses.dataclass(frozen=True)
class Event:
    """One recovery.

    Attributes:
      time: Seconds since the epoch at its end.
      seconds: From the failed call to its end.
      servers: Names of the servers that had lost what they held; empty if
        there was but a break in the connection.
      restored_by_this_worker: Of those, the ones that this worker restored.
    """

    time: float
    seconds: float
    servers: tuple
    restored_by_this_worker: tuple


class Recovery:
    """Makes calls of one strategy to servers, over the deaths of these.

    Args:
      store: The `ParameterStore`.
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
    """

    def __init__(
        self,
        store,
        config,
        membership,
        *,
        timeout,
        look_up=None,
        stall_timeout=600.0,
        on_stall="drop",
    ):
        self._store = store
        self._config = config
        self._membership = membership
        self._timeout = float("inf") if on_stall == "wait" else timeout
        self._restorer = restoring.Restorer(
            store, store.synchronizer, config.num_workers
        )
        self._settling = settling.Settling(store, config.ps_names)
        self._look_up = look_up
        self._addresses = dict(
            zip(config.ps_names, config.ps_addresses, strict=True)
        )
        self._active = threading.local()
        self._watchdog = watchdog.Watchdog(
            config.task_name,
            lambda: (store.journal.begun, store.journal.exchanges),
            self._describe_wait,
            timeout=stall_timeout,
            fails=on_stall == "fail",
        )
        self._hiccups = []
        self.events = []
        self.incarnations = [None] * config.num_ps
        names = members.names_of(config)
        self._row = names.index(config.task_name)
        self._manifests = [
            snapshots.Manifest(device, len(names)) for device in store.devices
        ]
        # By server: its life, and how much it has been told of.
        self._told = {}
        self._wait_for_servers(time.monotonic(), note=self._note)

    def _note(self, incarnations):
        self.incarnations = incarnations

    def wait_until_settled(self, is_chief, timeout):
        """See `Settling.wait`."""
        return self._settling.wait(is_chief, timeout)

    def leave_manifest(self):
        """Tells each server what to keep in snapshots; with each heartbeat."""
        known = dict(self._store.known)
        for shard, manifest in enumerate(self._manifests):
            variables = {
                name: dtype.name
                for (holder, name), dtype in known.items()
                if holder == shard and "/recovery/" not in name
            }
            state = (self.incarnations[shard], len(variables))
            if self._told.get(shard) == state:
                continue
            group = {
                "lock": self._store.name_of("lock"),
                "counter": self._store.name_of("version"),
                "variables": variables,
            }
            manifest.write(self._row, [group])
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
        if gate.is_inside or getattr(self._active, "now", False):
            return function(*args)  # Whoever calls this handles errors.
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
        """What a call may be waiting for, a str."""
        silent = [
            f"{name} at {address}"
            for (name, address), life in zip(
                self._addresses.items(), self._probe_all(), strict=True
            )
            if life is None
        ]
        if silent:
            return f"Parameter servers that do not answer: {', '.join(silent)}."
        if self._store.coordination is not None:
            slow = self._store.coordination.waited_for()
            if slow:
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
        began = time.monotonic()
        self._active.now = True
        try:
            self._recover(error, began)
        finally:
            self._active.now = False

    def _recover(self, error, began):
        # Workers that lost the same server do not all come back at once.
        time.sleep(random.uniform(0.0, _POLL_SECONDS))
        lost, mine = set(), set()
        first = True
        while True:
            now = self._wait_for_servers(began, error=error)
            new = {
                k
                for k, (a, b) in enumerate(
                    zip(self.incarnations, now, strict=True)
                )
                if a != b
            }
            if first and not new:
                self._check_hiccups(error)
            first = False
            try:
                self._connect(now, began)
                lost |= new
                here = [True] * self._config.num_workers
                for shard in sorted(new):
                    done, here = self._restore(shard, began)
                    self._settling.settle(shard)
                    if done:
                        mine.add(shard)
                if self._store.coordination is not None:
                    self._store.coordination.renew(now, here)
                self.incarnations = now
                self._refresh()
                break
            except tf.errors.OpError as again:
                self._check_time(began, again)
                logging.warning(
                    "Recovery begins again (%s).", type(again).__name__
                )
                time.sleep(random.uniform(0.5, 1.5))
        names = self._config.ps_names
        event = Event(
            time=time.time(),
            seconds=time.monotonic() - began,
            servers=tuple(names[k] for k in sorted(lost)),
            restored_by_this_worker=tuple(names[k] for k in sorted(mine)),
        )
        self.events.append(event)
        logging.warning(
            "%s goes on after %.1f s%s.",
            self._config.task_name,
            event.seconds,
            f" without {', '.join(event.servers)}" if lost else "",
        )

    def _check_hiccups(self, error):
        """Raises `error` if servers cannot be what it is about."""
        now = time.monotonic()
        self._hiccups = [t for t in self._hiccups if now - t < _HICCUP_SECONDS]
        self._hiccups.append(now)
        if not isinstance(error, _TRANSIENT) or len(self._hiccups) > _HICCUPS:
            raise error

    def _check_time(self, began, error):
        if time.monotonic() - began > self._timeout:
            raise TimeoutError(
                f"Gave up after {self._timeout:g} s of recovery from the loss "
                f"of a server: {error.message}"
            ) from error

    def _wait_for_servers(self, began, note=None, error=None):
        """Waits until all servers answer; returns their incarnations."""
        found = [None] * len(self._addresses)

        def all_answer():
            if None in found:
                self._find_addresses()
            for k, address in enumerate(self._addresses.values()):
                found[k] = incarnation.read(
                    address, k, _PROBE_SECONDS, self._config.rpc_layer
                )
            return None not in found

        def missing():
            return ", ".join(
                f"parameter server {name} at {address}"
                for (name, address), number in zip(
                    self._addresses.items(), found, strict=True
                )
                if number is None
            )

        if not all_answer() and error is not None:
            logging.warning(
                "No answer from %s (%s). Waiting for it to come back.",
                missing(),
                type(error).__name__,
            )
        left = self._timeout - (time.monotonic() - began)
        waiting.wait_until(
            all_answer,
            what=lambda: f"{missing()} to come back",
            timeout=left,
            hint="Is it running? A server that is started again at the same "
            "address is found by all workers.",
        )
        if note is not None:
            note(list(found))
        return list(found)

    def _find_addresses(self):
        """Asks where the servers are now."""
        if self._look_up is None:
            return
        config = self._look_up()
        addresses = config.ps_addresses
        if len(addresses) != self._config.num_ps:
            raise ValueError(
                "The cluster resolver must go on giving "
                f"{self._config.num_ps} parameter servers while training "
                f"runs, came: {len(addresses)}."
            )
        if addresses != self._config.ps_addresses:
            logging.warning(
                "The parameter servers are at %s now.", ", ".join(addresses)
            )
            self._config = config
            self._addresses = dict(zip(config.ps_names, addresses, strict=True))

    def _connect(self, incarnations, began):
        """Connects to servers that are new, and enters their tables."""
        with gate.alone(_GATE_SECONDS):
            connection.reconnect(self._config)
            while True:
                try:
                    self._membership.enter_again()
                    return
                except tf.errors.OpError as error:
                    # It answers before it is ready, or has died again.
                    self._check_time(began, error)
                    time.sleep(_POLL_SECONDS)
                    if self._probe_all() != incarnations:
                        raise

    def _probe_all(self):
        return [
            incarnation.read(address, k, _PROBE_SECONDS, self._config.rpc_layer)
            for k, address in enumerate(self._addresses.values())
        ]

    def _restore(self, shard, began):
        """Sees to it that a server holds the newest that any worker has.

        Returns:
          Whether it was this worker that restored it; and a list of bool,
          which workers are there.
        """
        store, config = self._store, self._config
        takes_part = config.is_worker and store.synchronizer.committed > 0
        name = config.ps_names[shard]
        started = time.monotonic()
        while True:
            offers = self._restorer.offer(shard, takes_part)
            best = max(offers.versions)
            waited = time.monotonic() - started
            here = [version > 0 for version in offers.versions]
            if offers.held and offers.held >= best:
                return False, here
            mine = offers.versions[store.worker_id] if takes_part else 0
            all_there = all(offers.versions)
            rank = sum(
                (v, -k) > (mine, -store.worker_id)
                for k, v in enumerate(offers.versions)
            )
            due = rank * _STAGGER_SECONDS
            if not all_there:
                due += _GATHER_SECONDS
            if mine and waited >= due:
                break
            if not best and waited > _GATHER_SECONDS:
                # Nobody has anything: the chief gives first values again.
                return False, here
            if waited > self._timeout:
                raise TimeoutError(
                    f"Gave up after {waited:.0f} s waiting for a worker that "
                    f"restores {name}."
                )
            time.sleep(_POLL_SECONDS)
        if store.local is not None:
            store.local.show_anchor()
        restored = self._restorer.restore(shard)
        if restored.done:
            self._report(name, restored, time.monotonic() - began)
        return restored.done, here

    def _report(self, name, restored, seconds):
        slots = ""
        if restored.kept:
            slots += f"; {restored.kept} of its other variables (optimizer "
            slots += f"state) are from its snapshot of update {restored.before}"
        if restored.stale:
            slots += f"; {restored.stale} of its other variables (optimizer "
            slots += "state) begin anew, for want of a snapshot"
        logging.warning(
            "%s restored %s, %.1f s after it was missed: parameters from this "
            "worker's replicas, as of update %d%s. Updates that no worker had "
            "pulled yet are lost.",
            self._config.task_name,
            name,
            seconds,
            restored.version,
            slots,
        )

    def _refresh(self):
        store = self._store
        if store.local is not None:
            store.local.drop_unpushed()
        store.synchronizer.pull_all()
        if store.local is not None:
            store.local.after_pull()


def _name_of(function):
    """What a call is called in the log."""
    name = getattr(function, "__qualname__", None)
    return name or getattr(function, "name", None) or type(function).__name__
