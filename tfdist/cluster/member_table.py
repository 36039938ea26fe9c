"""The table in which each server keeps who is there, who has finished.

It lives in a variable of the server's own; workers write their row with a
heartbeat, the server reads it to know when training is over. The heartbeat
also keeps the connection in use, so that a stopped peer is noticed.
"""

import dataclasses
import enum
import threading
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.cluster import fit_progress
from tfdist.cluster import server_client
from tfdist.cluster import sessions
from tfdist.cluster import step_figures
from tfdist.cluster import waiting

_NAME = "tfdist/members"
# State, seen, arrivals, entered; what it tells of its training; its figures.
_OWN_COLUMNS = 4
_WORD_END = _OWN_COLUMNS + fit_progress.SIZE
_COLUMNS = _WORD_END + step_figures.SIZE
HEARTBEAT_SECONDS = 1.0
# Between attempts to enter the table of a server that has none yet.
_RETRY_SECONDS = 0.1
_MEND_SECONDS = 3.0
# How long a worker that ends waits for a heartbeat that is under way: since
# the server's last answer, and at least for the second.
_ANSWER_SECONDS = 10.0
_LAST_WAIT_SECONDS = 2.0
# A worker that has not been seen for so long is not waited for. It covers a
# restart of the worker.
LOST_AFTER_SECONDS = 60.0


class MemberState(enum.IntEnum):
    """The state of a member.

    LEFT: its process has ended before its training, because it was told to
      (`preemption`); it may come back.
    """

    UNKNOWN = 0
    ALIVE = 1
    FINISHED = 2
    FAILED = 3
    LEFT = 4


@dataclasses.dataclass(frozen=True)
class Member:
    """One row of the table.

    Attributes:
      name: Task name such as `/job:worker/task:0`.
      state: A `MemberState`.
      silent_for: Seconds since its last sign of life, by the server's clock;
        infinite for never.
      arrivals: How many times it has come to the point where workers wait
        for each other.
      entered: When its process did, seconds since the epoch; 0 for never.
      word: What it tells of its training, a `fit_progress.Word`.
      figures: Those of its steps, a `step_figures.StepFigures`.
      seen: When its last sign of life came, seconds since the epoch by the
        server's clock; 0 for never.
    """

    name: str
    state: MemberState
    silent_for: float
    arrivals: int
    entered: float = 0.0
    word: fit_progress.Word = fit_progress.Word()
    figures: step_figures.StepFigures = step_figures.StepFigures()
    seen: float = 0.0


def names_of(config):
    """Names of all tasks that a server waits for, in the order of rows."""
    evaluators = range(len(config.spec.get("evaluator", ())))
    return config.worker_names + tuple(
        f"/job:evaluator/task:{i}" for i in evaluators
    )


class MemberTable:
    """The table of one server, in graphs built by any process.

    Args:
      device: The server's device.
      names: Tuple from `names_of`.
    """

    def __init__(self, device, names):
        self._device = device
        self._names = names
        self._create = tf.function(self._build_create, autograph=False)
        self._read = tf.function(self._build_read, autograph=False)

    def create(self):
        """Makes an empty table; the server calls it before all else."""
        self._create()

    def read(self):
        """The rows, a list of `Member`."""
        return self.members(*(tensor.numpy() for tensor in self._read()))

    def members(self, rows, now):
        """The rows that `build_rows` has read, a list of `Member`."""
        return parse(self._names, rows, now)

    def build_write(self, index, values):
        """Builds, in the scope's device: a member has been seen now.

        Args:
          index: Number of its row.
          values: Its `MemberState`, its arrivals (see `Member`), the seconds
            since its process entered, its `Word` and its `StepFigures`,
            packed, a float64 tensor.
        """
        now = tf.timestamp()
        own = tf.stack([values[0], now, values[1], now - values[2]])
        row = tf.concat([own, values[3:]], 0)
        tf.raw_ops.ResourceScatterUpdate(
            resource=self._handle(), indices=[index], updates=[row]
        )

    def build_rows(self):
        """Builds, in the scope's device, what `members` needs.

        Returns:
          A list of the rows, a float64 matrix, and the time on the server.
        """
        rows = tf.raw_ops.ReadVariableOp(
            resource=self._handle(), dtype=tf.float64
        )
        rows = tf.reshape(rows, [len(self._names), _COLUMNS])
        return [rows, tf.timestamp()]

    def build_word(self, index):
        """Builds the reading of a row's `Word`, in the scope's device.

        Args:
          index: Number of the row.

        Returns:
          A float64 vector of `fit_progress.SIZE`, packed.
        """
        rows = tf.raw_ops.ReadVariableOp(
            resource=self._handle(), dtype=tf.float64
        )
        rows = tf.reshape(rows, [len(self._names), _COLUMNS])
        return rows[index, _OWN_COLUMNS:_WORD_END]

    def build_attendance(self, number):
        """Builds what is known of the first rows, in the scope's device.

        Args:
          number: How many rows.

        Returns:
          A tuple of vectors: when they were last seen and when their
          processes entered, seconds since the epoch as float64 (0 for never),
          whether their processes have ended, and whether they have left
          before the end of training because they were told to, bool.
        """
        rows = tf.raw_ops.ReadVariableOp(
            resource=self._handle(), dtype=tf.float64
        )
        rows = tf.reshape(rows, [len(self._names), _COLUMNS])[:number]
        state = rows[:, 0]
        ended = state >= float(MemberState.FINISHED)
        return (
            rows[:, 1],
            rows[:, 3],
            ended,
            tf.equal(state, float(MemberState.LEFT)),
        )

    def build_enlisted(self, number, initial_workers):
        """Builds how many workers make up the cluster, in the scope's device.

        Args:
          number: Of the first rows, those of workers.
          initial_workers: How many of them count before they have been seen.

        Returns:
          All but those that have never been there and those that were told to
          leave, at least 1, a scalar float64 tensor.
        """
        rows = tf.raw_ops.ReadVariableOp(
            resource=self._handle(), dtype=tf.float64
        )
        state = tf.reshape(rows, [len(self._names), _COLUMNS])[:number, 0]
        unseen = tf.equal(state, float(MemberState.UNKNOWN))
        absent = unseen & (tf.range(number) >= initial_workers)
        gone = absent | tf.equal(state, float(MemberState.LEFT))
        enlisted = tf.reduce_sum(tf.cast(~gone, tf.float64))
        return tf.maximum(enlisted, 1.0)

    def _handle(self):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.float64,
            shape=[len(self._names), _COLUMNS],
            shared_name=_NAME,
        )

    def _build_create(self):
        with tf.device(self._device):
            tf.raw_ops.AssignVariableOp(
                resource=self._handle(),
                value=tf.zeros([len(self._names), _COLUMNS], tf.float64),
            )

    def _build_read(self):
        with tf.device(self._device):
            rows, now = self.build_rows()
        # Copied to the caller: no eager tensor may live on a server.
        with tf.device(_here()):
            return tf.identity(rows), now + 0.0


def parse(names, rows, now):
    """Parses the rows of a table.

    Args:
      names: Names of the tasks, in the order of rows.
      rows: Array `(len(names), columns)` of a server of this version.
      now: Time on the server.

    Returns:
      A list of `Member`.

    Raises:
      ValueError: The table is not of this version of tfdist.
    """
    if rows.shape != (len(names), _COLUMNS):
        raise ValueError(
            f"Argument `rows` must be {len(names)} rows of {_COLUMNS} numbers. "
            f"Received: shape {rows.shape}"
        )
    return [
        Member(
            name,
            MemberState(int(row[0])),
            now - row[1] if row[1] else float("inf"),
            int(row[2]),
            float(row[3]),
            fit_progress.Word.unpack(row[_OWN_COLUMNS:_WORD_END]),
            step_figures.StepFigures.unpack(row[_WORD_END:]),
            float(row[1]),
        )
        for name, row in zip(names, rows, strict=True)
    ]


def build_read():
    """Builds the reading of a table of unknown size, in the scope's device.

    For who is not part of the cluster; see `parse`.

    Returns:
      The rows, a float64 matrix, and the time on the server.
    """
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.float64, shape=None, shared_name=_NAME
    )
    return tf.raw_ops.ReadVariableOp(
        resource=handle, dtype=tf.float64
    ), tf.timestamp()


def _here():
    return tf.config.list_logical_devices("CPU")[0].name


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
      former: This worker's row of before its first beat, a `Member`: of an
        earlier process, or never seen. None until then.
      on_beat: Functions that are called after each beat at the first server,
        in its thread: they use `clients` alone.
    """

    def __init__(self, config, devices):
        names = names_of(config)
        self.row = names.index(config.task_name)
        self.tables = [MemberTable(device, names) for device in devices]
        self.clients = [
            server_client.ServerClient(address, task)
            for task, address in enumerate(config.ps_addresses)
        ]
        # Of each server, what sets this worker's row there.
        self._writes = [self._make_write(k) for k in range(len(devices))]
        self._look = self.clients[0].function(self.tables[0].build_rows, [])
        self.former = None
        self._arrivals = 0
        self.fits = fit_progress.Fits()
        self._meter = step_figures.StepMeter()
        # By server: so that nothing older is written after what is newer.
        self._writing = [threading.Lock() for _ in self.tables]
        # Servers that have moved, and whose beats wait for where they were.
        self._behind = set()
        self._began = time.monotonic()
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

    def _make_write(self, server):
        def build(values):
            self.tables[server].build_write(self.row, values)

        return self.clients[server].function(
            build,
            [tf.TensorSpec([3 + _COLUMNS - _OWN_COLUMNS], tf.float64)],
        )

    def _beat(self, server, entered):
        while not self._stop.is_set():
            if self._write(server):
                entered.set()
            self._behind.discard(server)
            if not server:
                self._call_on_beat()
            self._stop.wait(
                HEARTBEAT_SECONDS if entered.is_set() else _RETRY_SECONDS
            )

    def _put(self, server, state):
        with self._writing[server]:
            self._put_in_turn(server, state)

    def _put_in_turn(self, server, state):
        """Writes this worker's row; whoever calls it holds the lock."""
        if state == MemberState.ALIVE and self._stop.is_set():
            return  # The last word has been left.
        age = time.monotonic() - self._began
        own = [float(state), float(self._arrivals), age]
        figures = self._meter.figures.pack()
        self._writes[server](np.array([*own, *self.fits.pack(), *figures]))
        self._answered[server] = time.monotonic()

    def _call_on_beat(self):
        for function in list(self.on_beat):
            try:
                function()
            except tf.errors.OpError:
                pass  # As in `_write`.
            except Exception:
                # The heartbeat goes on, or this worker would look dead.
                logging.exception("A task of the heartbeat has failed.")

    def _write(self, server):
        try:
            if not server and self.former is None:
                self.former = self.look()[self.row]
            self._put(server, MemberState.ALIVE)
        except tf.errors.OpError:
            # The server is away; the training step says so if it needs it.
            # The next beat tries again.
            return False
        return True

    def told(self):
        """Returns the `Word` that this worker tells of its training."""
        return self.fits.word

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
        )

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

        Raises:
          tf.errors.OpError: A server is not there, or not ready yet.
        """
        for server in range(len(self.clients)):
            self._put(server, MemberState.ALIVE)

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
                self._put_in_turn(server, state)
                self.clients[server].close()
            except tf.errors.OpError:
                pass
            finally:
                turn.release()
            if server not in self._behind:
                # A thread that is in TensorFlow is not to be torn from it.
                left = max(0.0, end - time.monotonic())
                self._threads[server].join(timeout=left)

    @property
    def arrivals(self):
        """Number of times that this worker has come to the meeting point."""
        return self._arrivals

    def arrive(self):
        """This worker has come to the meeting point; `tell` the others.

        Returns:
          How many times it has.
        """
        self._arrivals += 1
        return self._arrivals

    def tell(self):
        """Writes this worker's row in the first server's table at once."""
        self._put(0, MemberState.ALIVE)

    def look(self):
        """The same as `read`, for threads; raises `tf.errors.OpError`."""
        return self.tables[0].members(*self._look())

    def read(self):
        """The first server's table, a list of `Member`."""
        return self.tables[0].read()
