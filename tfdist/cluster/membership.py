"""A worker's rows in the tables of members, kept fresh by a heartbeat.

The heartbeat also keeps the connection in use, so that a stopped peer is
noticed. A server that was started again hears it at once: the main thread may
be busy for minutes, in a callback or an evaluation, before it needs the server
and connects to it.
"""

import dataclasses
import functools
import os
import threading
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.cluster import fit_progress
from tfdist.cluster import former_processes
from tfdist.cluster import member_table
from tfdist.cluster import server_client
from tfdist.cluster import sessions
from tfdist.cluster import step_figures
from tfdist.cluster import versions
from tfdist.cluster import waiting

# Between attempts to enter the table of a server that has none yet.
_RETRY_SECONDS = 0.1
_MEND_SECONDS = 3.0
# Each member keeps the first server's table with every beat, where it has no
# more rows than this; else more seldom, for the sake of the server.
_ROWS_PER_BEAT = 16
# How long a worker that ends waits for a heartbeat that is under way: since
# the server's last answer, and at least for the second.
_ANSWER_SECONDS = 10.0
_LAST_WAIT_SECONDS = 2.0


class Membership:
    """This worker's rows in the tables of all servers, kept fresh.

    One thread per server, so that one that hangs does not make this worker
    look dead to the others.

    Args:
      config: The `ClusterConfig` of this task.
      devices: The servers' devices.

    Attributes:
      row: Number of this worker's row.
      clients: A `ServerClient` for each server.
      tables: A `MemberTable` for each, for the main thread to read.
      former: This worker's row of before its first beat, a `Member`: of the
        last of the earlier processes that have come furthest, or never seen.
        None until then. See `find_former`.
      is_foreign: Whether the first server's table is that of another cluster
        or version. Nothing is written there.
      on_beat: Functions that are called after each beat at the first server,
        in its thread: of servers they use `clients` alone.
    """

    def __init__(self, config, devices):
        names = member_table.names_of(config)
        self.row = names.index(config.task_name)
        self.tables = [
            member_table.MemberTable(device, names) for device in devices
        ]
        cluster = versions.checksum(config)
        self.clients = [
            server_client.ServerClient(address, task, cluster)
            for task, address in enumerate(config.ps_addresses)
        ]
        # Of each server, what sets this worker's row there: for the main
        # thread, and for the heartbeat.
        self._writes, self._beats = (
            [self._make_write(k, any_life) for k in range(len(devices))]
            for any_life in (False, True)
        )
        table, first = self.tables[0], self.clients[0]
        self._look = first.function(table.build_rows, [])
        self._look_at_former = first.function(
            functools.partial(table.build_rows, member_table.FORMER_NAME), []
        )
        # The first server's table for its next life: see `_keep`.
        self._look_to_keep = first.function(table.build_rows, [], True)
        # For the main thread, and for the heartbeat.
        self._put_back, self._put_back_early = (
            first.function(
                table.build_put_back, table.put_back_signature(), any_life
            )
            for any_life in (False, True)
        )
        # The life of the first server, its rows and its time, as seen last.
        self._kept = None
        self._beats_to_keep = 0
        self.former = None
        self.is_foreign = False
        self._arrivals = self._barriers = 0
        self.fits = fit_progress.Fits()
        self._meter = step_figures.StepMeter()
        # By server: so that nothing older is written after what is newer.
        self._writing = [threading.Lock() for _ in self.tables]
        # Servers that have moved, and whose beats wait for where they were.
        self._behind = set()
        self._began = self._looked = time.monotonic()
        self._initial_workers = config.initial_workers
        # Not of a generator that a script may seed; never 0.
        self._life = 1.0 + int.from_bytes(os.urandom(6), "big")
        # By row of the first server's table, for `read`: the last `Member`,
        # and since when there has been none.
        self._known, self._missed = {}, {}
        # By server: when it last answered.
        self._answered = [self._began for _ in self.tables]
        self.on_beat = []
        self._stop = threading.Event()
        # By server; set once this worker is in its table.
        self._entered = {name: threading.Event() for name in config.ps_names}
        self._threads = [
            threading.Thread(target=self._beat, args=arguments, daemon=True)
            for arguments in enumerate(self._entered.values())
        ]
        for thread in self._threads:
            thread.start()

    def _make_write(self, server, any_life):
        def build(values):
            self.tables[server].build_write(self.row, values)

        return self.clients[server].function(
            build,
            [tf.TensorSpec([member_table.WRITTEN], tf.float64)],
            any_life,
        )

    def _beat(self, server, entered):
        while not self._stop.is_set():
            if self._write(server, entered.is_set()):
                entered.set()
                if not server:
                    self._call(self._keep)
            self._behind.discard(server)
            if not server:
                self._call_on_beat()
            self._stop.wait(
                member_table.HEARTBEAT_SECONDS
                if entered.is_set()
                else _RETRY_SECONDS
            )

    def _put(self, server, state, any_life=False):
        with self._writing[server]:
            self._put_in_turn(server, state, any_life)

    def _put_in_turn(self, server, state, any_life):
        """Writes this worker's row; whoever calls it holds the lock."""
        if state == member_table.MemberState.ALIVE and self._stop.is_set():
            return  # The last word has been left.
        age = time.monotonic() - self._began
        own = [
            float(state),
            float(self._arrivals),
            age,
            self._life,
            float(self._barriers),
        ]
        figures = self._meter.figures.pack()
        write = (self._beats if any_life else self._writes)[server]
        write(np.array([*own, *self.fits.pack(), *figures]))
        self._answered[server] = time.monotonic()

    def _call_on_beat(self):
        for function in list(self.on_beat):
            self._call(function)

    def _call(self, function):
        try:
            function()
        except tf.errors.OpError:
            pass  # As in `_write`.
        except Exception:
            # The heartbeat goes on, or this worker would look dead.
            logging.exception("A task of the heartbeat has failed.")

    def _write(self, server, has_entered):
        try:
            if not server and self.former is None:
                self._look_first()
            # For its first row it waits until the main thread has connected.
            alive = member_table.MemberState.ALIVE
            self._put(server, alive, any_life=has_entered)
        except tf.errors.OpError:
            # The server is away; the training step says so if it needs it.
            # The next beat tries again.
            return False
        return True

    def _look_first(self):
        try:
            former = self.look()[self.row]
            self._looked = time.monotonic()
            if former.life:
                rows = self._look_at_former()
                # It is seldom called.
                self._look_at_former.close()
                before = self.tables[0].members(*rows)[self.row]
                former = max(former, before, key=lambda m: m.word.reached)
            self.former = former
        except (ValueError, tf.errors.InvalidArgumentError):
            # It has rows of other workers, or other columns.
            self.is_foreign = True
            self._stop.set()
            for entered in self._entered.values():
                entered.set()

    def find_former(self):
        """Looks for this worker's earlier process once more.

        The first server may have been started again as well; see
        `former_processes`.
        """
        unknown = member_table.MemberState.UNKNOWN
        if self.former is None or self.former.state is not unknown:
            return
        found = former_processes.find(
            self.tables[0], self.read, self._initial_workers, self._looked
        )
        former = found[self.row]
        # Not this process, which has been there when the server died.
        if former.life != self._life:
            self.former = former

    def _keep(self):
        """Keeps the first server's table, for its next life; with a heartbeat.

        A server that was started again is told of members that it may not have
        heard of: of who has left, and of where those are to go on that were
        lost with it. At once: their next processes are about to look, and the
        main thread may be busy.
        """
        self._beats_to_keep -= 1
        if self._beats_to_keep > 0:
            return
        rows, now = self._look_to_keep()
        life = self._look_to_keep.life
        if self._kept is None or self._kept[0] != life:
            _, *known = self._kept or (life, np.zeros_like(rows), now)
            self._put_back_early(self.row, *known)
            # It is seldom called.
            self._put_back_early.close()
            rows, now = self._look_to_keep()
        self._kept = life, rows, now
        self._beats_to_keep = 1 + (len(rows) - 1) // _ROWS_PER_BEAT

    def told(self):
        """Returns the `Word` that this worker tells of its training."""
        return self.fits.word

    def was_abandoned(self):
        """Whether an exception has ended the last `fit`, as far as is known.

        Not if this worker has waited for the others since.
        """
        self.fits.close_if_over()
        return self.fits.is_abandoned

    def tell_figures(self, meter):
        """Tells the figures of a `StepMeter` with each heartbeat from now."""
        if self._meter is not meter:
            self._meter = meter
            self.on_beat.append(meter.read)

    def wait_until_entered(self, timeout, mend):
        """Waits until this worker is in the tables of all servers.

        A server answers before it has made its table, and would not hear of
        a worker that had finished by then.

        Args:
          timeout: Seconds.
          mend: Callable without arguments that reconnects; called now and
            then until this worker is in.

        Raises:
          TimeoutError: A server has no table; the message names it.
        """
        mended = time.monotonic()

        def absent():
            return [n for n, e in self._entered.items() if not e.is_set()]

        def entered():
            nonlocal mended
            if absent() and time.monotonic() - mended > _MEND_SECONDS:
                mend()
                mended = time.monotonic()
            return not absent()

        waiting.wait_until(
            entered,
            what=lambda: f"parameter server {', '.join(absent())} to be ready",
            timeout=timeout,
            hint=(
                "Does it run this program? A `tf.distribute.Server` of another "
                "one does not do what strategies of tfdist ask for."
            ),
        )

    @property
    def addresses(self):
        """Of servers, as threads talk to them: a tuple of `host:port`."""
        return tuple(client.address for client in self.clients)

    def reconnected(self, config, lives=None):
        """This process has reconnected; threads may talk to servers.

        Args:
          config: The `ClusterConfig` as it is now.
          lives: The servers' incarnations, None for those that they are in.
        """
        lives = lives or [None] * len(self.clients)
        for server, (client, address, life) in enumerate(
            zip(self.clients, config.ps_addresses, lives, strict=True)
        ):
            if client.address != address:
                # A heartbeat may be waiting for who is there no more.
                if self._writing[server].locked():
                    self._behind.add(server)
                self._writing[server] = threading.Lock()
            client.reconnected(address, life)

    def enter_again(self):
        """Enters this worker into all tables, one after the other.

        A first server that was started again is told of others, see `_keep`.

        Raises:
          tf.errors.OpError: A server is not there, or not ready yet.
        """
        if self._kept is not None and self._kept[0] != self.clients[0].life:
            # Before anybody decides over who takes part.
            self._put_back(self.row, *self._kept[1:])
            self._put_back.close()
        for server in range(len(self.clients)):
            self._put(server, member_table.MemberState.ALIVE)

    def leave(self, state):
        """Stops the heartbeat and leaves `state` as the last word.

        Servers that answered last are told first. One that is gone does not
        delay the end of the process, nor one that has hung for long by more
        than `_LAST_WAIT_SECONDS`. One that has moved is told where it is now,
        though a heartbeat may still wait for where it was.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        now = time.monotonic()
        answered = list(self._answered)
        for server in sorted(
            range(len(answered)), key=answered.__getitem__, reverse=True
        ):
            end = max(
                answered[server] + _ANSWER_SECONDS, now + _LAST_WAIT_SECONDS
            )
            left = max(0.1, end - time.monotonic())
            if not sessions.listens(self.clients[server].address, left):
                continue
            turn = self._writing[server]
            if not turn.acquire(timeout=max(0.0, end - time.monotonic())):
                continue
            try:
                self._put_in_turn(server, state, any_life=True)
                self.clients[server].close()
            except tf.errors.OpError:
                pass
            finally:
                turn.release()
            if server not in self._behind:
                # A thread that is in TensorFlow is not to be torn from it.
                left = max(0.0, end - time.monotonic())
                self._threads[server].join(timeout=left)

    def is_awaited_by(self, member):
        """Whether another worker has come to where it waits for this one.

        Args:
          member: The `Member` of the other one.
        """
        return (
            member.arrivals > self._arrivals or member.barriers > self._barriers
        )

    def count_along(self, member):
        """Takes it that this worker has come to all places of another one.

        Args:
          member: Its `Member`.
        """
        self._arrivals = max(self._arrivals, member.arrivals)
        self._barriers = max(self._barriers, member.barriers)

    def call_barrier(self):
        """This worker's script has called `barrier`; `tell` the others.

        Returns:
          How many times it has.
        """
        self._barriers += 1
        self._goes_on()
        return self._barriers

    def arrive(self):
        """This worker has come to an end of training; `tell` the others.

        Returns:
          How many times it has.
        """
        self._arrivals += 1
        self._goes_on()
        return self._arrivals

    def _goes_on(self):
        """Whatever has ended the last `fit`, the script has gone on."""
        self.fits.close_if_over()
        self.fits.is_abandoned = False

    def tell(self):
        """Writes this worker's row in the first server's table at once."""
        self._put(0, member_table.MemberState.ALIVE)

    def look(self):
        """The same as `read`, for threads; raises `tf.errors.OpError`."""
        return self.tables[0].members(*self._look())

    def read(self):
        """The first server's table, a list of `Member`.

        A server that was started again may not have heard of a member yet,
        which is not one that has never been there: it is as it was last known
        here, and silent since it was missed.
        """
        return [
            self._as_known(row, member)
            for row, member in enumerate(self.tables[0].read())
        ]

    def _as_known(self, row, member):
        if member.state is not member_table.MemberState.UNKNOWN:
            self._known[row] = member
            self._missed.pop(row, None)
            return member
        if row not in self._known:
            return member
        now = time.monotonic()
        silent_for = now - self._missed.setdefault(row, now)
        return dataclasses.replace(self._known[row], silent_for=silent_for)
