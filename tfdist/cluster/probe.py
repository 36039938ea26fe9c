"""Measures the way to a task's server, from outside of its cluster.

Sessions do it (`tfdist.cluster.sessions`), so neither this process nor the
server becomes a part of anything, and a server in the middle of a run may
be measured, too.
"""

import dataclasses
import statistics
import time

import numpy as np
import tensorflow as tf

from tfdist.cluster import sessions
from tfdist.cluster import versions

_PINGS = 11
# How long one transfer may take of the time that is given for all.
_TRANSFER_SHARE = 0.2
_FIRST_BYTES = 1 << 20
_TRANSFERS = 3


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """Versions, clock and speed of a server, as measured.

    Attributes:
      versions: Dict of what it says that it runs (`tfdist.cluster.versions`);
        empty where it says nothing.
      clock_seconds: How far its clock is ahead of the one here.
      round_trip_seconds: Median of a message there and back.
      bytes_to: Bytes per second that arrive there, of one large tensor.
      bytes_from: Bytes per second that arrive here.
    """

    versions: dict
    clock_seconds: float
    round_trip_seconds: float
    bytes_to: float
    bytes_from: float


class ProbeError(Exception):
    """Something else than a server answers; the message says what."""


def measure(address, job, task, *, timeout, size):
    """Measures one server.

    Args:
      address: Its `host:port`.
      job: Its job.
      task: Its index in the job.
      timeout: Seconds for all of it. Who must not wait longer whatever
        happens calls this in a thread.
      size: Bytes of the largest tensor that is sent each way; less where it
        would take too long.

    Returns:
      A `ProbeResult`.

    Raises:
      ProbeError: It is no server of TensorFlow, that of another task, or
        does not answer in time.
    """
    deadline = sessions.Deadline(timeout)
    graph, parts = _build(job, task)
    try:
        session = sessions.open_session(address, job, task, graph, deadline)
        try:
            _check_who_answers(session, job, task)
            return _measure(session, parts, deadline, size)
        finally:
            session.close()
    except ConnectionRefusedError as error:
        raise ProbeError("nobody listens there any more") from error
    except tf.errors.DeadlineExceededError as error:
        raise ProbeError(f"no answer within {timeout:g} s") from error
    except tf.errors.OpError as error:
        raise ProbeError(
            "no answer of a server of TensorFlow: "
            f"{type(error).__name__}: {sessions.reason(error)}"
        ) from error


def _build(job, task):
    with (
        tf.Graph().as_default() as graph,
        tf.device(f"/job:{job}/task:{task}/device:CPU:0"),
    ):
        sent = tf.compat.v1.placeholder(tf.uint8, [None])
        length = tf.compat.v1.placeholder(tf.int32, [])
        parts = {
            "clock": tf.timestamp(),
            "versions": versions.build_read(),
            "sent": sent,
            "arrived": tf.size(sent),
            "length": length,
            "fetched": tf.fill([length], tf.constant(1, tf.uint8)),
        }
    return graph, parts


def _check_who_answers(session, job, task):
    expected = f"/job:{job}/replica:0/task:{task}/"
    names = [device.name for device in session.list_devices()]
    if not any(name.startswith(expected) for name in names):
        there = sorted({name.partition("/device:")[0] for name in names})
        raise ProbeError(
            "the server there is "
            f"{', '.join(there).replace('/replica:0', '')}, by its own "
            "TF_CONFIG"
        )


def _measure(session, parts, deadline, size):
    try:
        text = sessions.run(session, parts["versions"], deadline)
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
        text = b"{}"
    pings = [_ping(session, parts["clock"], deadline) for _ in range(_PINGS)]

    def send(number):
        sessions.run(
            session,
            parts["arrived"],
            deadline,
            {parts["sent"]: np.ones([number], np.uint8)},
        )

    def fetch(number):
        sessions.run(
            session, parts["fetched"], deadline, {parts["length"]: number}
        )

    return ProbeResult(
        versions=versions.parse(text),
        # The fastest answer leaves the least room for error.
        clock_seconds=min(pings)[1],
        round_trip_seconds=statistics.median(seconds for seconds, _ in pings),
        bytes_to=_rate(send, size, deadline.seconds),
        bytes_from=_rate(fetch, size, deadline.seconds),
    )


def _ping(session, clock, deadline):
    """Seconds there and back, and how far the clock there is ahead."""
    began = time.time()
    start = time.perf_counter()
    there = sessions.run(session, clock, deadline)
    seconds = time.perf_counter() - start
    return seconds, there - (began + seconds / 2)


def _rate(transfer, size, seconds):
    """Bytes per second of the best of some transfers of at most `size`."""

    def timed(number):
        start = time.perf_counter()
        transfer(number)
        return number / (time.perf_counter() - start)

    first = timed(min(size, _FIRST_BYTES))
    number = int(min(size, first * seconds * _TRANSFER_SHARE / _TRANSFERS))
    if number <= _FIRST_BYTES:
        return first
    return max(timed(number) for _ in range(_TRANSFERS))
