"""The table in which each server keeps who is there, who has finished.

It lives in a variable of the server's own; workers write their row
(`tfdist.cluster.membership`), the server reads it to know when training is
over.
"""

import dataclasses
import enum

import tensorflow as tf

from tfdist.cluster import fit_progress
from tfdist.cluster import step_figures

_NAME = "tfdist/members"
# Of the same form: rows that a server had before it was started again; and of
# each member the process that came furthest of those that others have followed.
FORMER_NAME = "tfdist/former_members"
# Of each member, the process that has put back what it knew of such rows.
_TOLD_NAME = "tfdist/told_members"
# State, seen, arrivals, entered, life, barriers; what it tells of its training;
# its figures.
_OWN_COLUMNS = 6
_SEEN, _ENTERED, _LIFE, _BARRIERS = 1, 3, 4, 5
_REACHED = _OWN_COLUMNS + fit_progress.REACHED
_WORD_END = _OWN_COLUMNS + fit_progress.SIZE
_COLUMNS = _WORD_END + step_figures.SIZE
# How many numbers `MemberTable.build_write` takes.
WRITTEN = _COLUMNS - 1
HEARTBEAT_SECONDS = 1.0
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
      arrivals: How many times it has come to an end of training, where
        workers wait for each other.
      life: A number that its process alone has; 0 for never.
      word: What it tells of its training, a `fit_progress.Word`.
      figures: Those of its steps, a `step_figures.StepFigures`.
      seen: When its last sign of life came, seconds since the epoch by the
        server's clock; 0 for never.
      barriers: How many times its script has called `barrier`.
    """

    name: str
    state: MemberState
    silent_for: float
    arrivals: int
    life: float = 0.0
    word: fit_progress.Word = fit_progress.Word()
    figures: step_figures.StepFigures = step_figures.StepFigures()
    seen: float = 0.0
    barriers: int = 0


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
        self._read_former = tf.function(
            self._build_read_former, autograph=False
        )
        self._excuse = tf.function(self._build_excuse, autograph=False)

    def create(self):
        """Makes an empty table; the server calls it before all else."""
        self._create()

    def read(self):
        """The rows, a list of `Member`."""
        return self.members(*(tensor.numpy() for tensor in self._read()))

    def read_former(self):
        """Looks for rows of before the server was started again.

        Returns:
          The rows that members have put back, as `read`; and of each member
          whether it has put back what it knew, a list of bool.
        """
        rows, now, has_told = (t.numpy() for t in self._read_former())
        return self.members(rows, now), has_told.tolist()

    def excuse(self, seconds):
        """Takes a pause of the server's out of the members' silence.

        Args:
          seconds: Length of the pause, which ends now.
        """
        self._excuse(tf.constant(seconds, tf.float64))

    def members(self, rows, now):
        """The rows that `build_rows` has read, a list of `Member`."""
        return parse(self._names, rows, now)

    def build_write(self, index, values):
        """Builds, in the scope's device: a member has been seen now.

        What the table has of an earlier process of the member is kept among
        former rows, if no process before has come further: the next one may
        end before it comes to where this one was.

        Args:
          index: Number of its row.
          values: Its `MemberState`, its arrivals (see `Member`), the seconds
            since its process entered, a number that its process alone has,
            its calls of `barrier`, its `Word` and its `StepFigures`, packed, a
            float64 tensor.
        """
        now = tf.timestamp()
        before, life = self._build_all()[index], values[3]
        # Somebody may set the clock meanwhile.
        entered = tf.where(
            tf.equal(before[_LIFE], life), before[_ENTERED], now - values[2]
        )
        own = tf.stack([values[0], now, values[1], entered, life])
        row = tf.concat([own, values[4:]], 0)
        furthest = self._build_all(FORMER_NAME)[index, _REACHED]
        stays = tf.not_equal(before[_LIFE], life)
        stays &= before[_REACHED] >= tf.maximum(furthest, 1.0)
        kept = tf.raw_ops.ResourceScatterUpdate(
            resource=self._handle(FORMER_NAME),
            # None: what is put back meanwhile lasts.
            indices=tf.boolean_mask([index], [stays]),
            updates=tf.boolean_mask([before], [stays]),
        )
        # Last: whoever follows looks here first.
        with tf.control_dependencies([kept]):
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._handle(), indices=[index], updates=[row]
            )

    def put_back_signature(self):
        """The signature of `build_put_back`, a list of `tf.TensorSpec`."""
        return [
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([len(self._names), _COLUMNS], tf.float64),
            tf.TensorSpec([], tf.float64),
        ]

    def build_put_back(self, index, rows, then):
        """Builds, in the scope's device: rows of before its server died.

        They count where a member has not been heard of since. Of one that has
        been, which may be another process, `read_former` tells. The time from
        then to now is nobody's silence.

        Args:
          index: Number of the row of the member that tells.
          rows: What `build_rows` had read, a float64 matrix; zeros for nothing.
          then: The time on the server with it.
        """
        known = rows[:, 0] > 0.0
        later = tf.where(known, tf.timestamp() - then, 0.0)
        rows += later[:, None] * tf.one_hot(_SEEN, _COLUMNS, dtype=tf.float64)
        life, done = self._build_all()[index, _LIFE], []
        for name in (_NAME, FORMER_NAME):
            lacking = known & tf.equal(self._build_all(name)[:, 0], 0.0)
            indices = tf.where(lacking)[:, 0]
            done.append(
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self._handle(name),
                    indices=indices,
                    updates=tf.gather(rows, indices),
                )
            )
        with tf.control_dependencies(done):
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._told(), indices=[index], updates=[life]
            )

    def build_rows(self, name=_NAME):
        """Builds, in the scope's device, what `members` needs.

        Args:
          name: Of the server's variable.

        Returns:
          A list of the rows, a float64 matrix, and the time on the server.
        """
        return [self._build_all(name), tf.timestamp()]

    def build_word(self, index):
        """Builds the reading of a row's `Word`, in the scope's device.

        Args:
          index: Number of the row.

        Returns:
          A float64 vector of `fit_progress.SIZE`, packed.
        """
        return self._build_all()[index, _OWN_COLUMNS:_WORD_END]

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
        rows = self._build_all()[:number]
        state = rows[:, 0]
        ended = state >= float(MemberState.FINISHED)
        return (
            rows[:, 1],
            rows[:, _ENTERED],
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
        state = self._build_all()[:number, 0]
        unseen = tf.equal(state, float(MemberState.UNKNOWN))
        absent = unseen & (tf.range(number) >= initial_workers)
        gone = absent | tf.equal(state, float(MemberState.LEFT))
        enlisted = tf.reduce_sum(tf.cast(~gone, tf.float64))
        return tf.maximum(enlisted, 1.0)

    def _build_all(self, name=_NAME):
        rows = tf.raw_ops.ReadVariableOp(
            resource=self._handle(name), dtype=tf.float64
        )
        return tf.reshape(rows, [len(self._names), _COLUMNS])

    def _handle(self, name=_NAME):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.float64,
            shape=[len(self._names), _COLUMNS],
            shared_name=name,
        )

    def _told(self):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.float64, shape=[len(self._names)], shared_name=_TOLD_NAME
        )

    def _build_create(self):
        empty = tf.zeros([len(self._names), _COLUMNS], tf.float64)
        with tf.device(self._device):
            before = [
                tf.raw_ops.AssignVariableOp(
                    resource=self._handle(FORMER_NAME), value=empty
                ),
                tf.raw_ops.AssignVariableOp(
                    resource=self._told(), value=empty[:, 0]
                ),
            ]
            # Last: whoever finds this one finds the others, too.
            with tf.control_dependencies(before):
                tf.raw_ops.AssignVariableOp(
                    resource=self._handle(), value=empty
                )

    def _build_excuse(self, seconds):
        with tf.device(self._device):
            rows, now = self.build_rows()
            seen = rows[:, _SEEN]
            # Not beyond now: some may have been heard of again.
            later = tf.minimum(seconds, tf.maximum(now - seen, 0.0))
            later = tf.where(seen > 0.0, later, tf.zeros_like(seen))
            # Added, as members write their rows meanwhile.
            tf.raw_ops.AssignAddVariableOp(
                resource=self._handle(),
                value=later[:, None]
                * tf.one_hot(_SEEN, _COLUMNS, dtype=tf.float64),
            )

    def _build_read(self):
        with tf.device(self._device):
            rows, now = self.build_rows()
        # Copied to the caller: no eager tensor may live on a server.
        with tf.device(_here()):
            return tf.identity(rows), now + 0.0

    def _build_read_former(self):
        with tf.device(self._device):
            told = tf.raw_ops.ReadVariableOp(
                resource=self._told(), dtype=tf.float64
            )
            has_told = tf.equal(told, self._build_all()[:, _LIFE])
            # After it: what they have told is there.
            with tf.control_dependencies([has_told]):
                rows, now = self.build_rows(FORMER_NAME)
        with tf.device(_here()):
            return tf.identity(rows), now + 0.0, tf.identity(has_told)


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
            float(row[_LIFE]),
            fit_progress.Word.unpack(row[_OWN_COLUMNS:_WORD_END]),
            step_figures.StepFigures.unpack(row[_WORD_END:]),
            float(row[1]),
            int(row[_BARRIERS]),
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
