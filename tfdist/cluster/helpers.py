"""A worker's helpers: tasks that hold layers of its model.

A worker connects to its helpers as it does to parameter servers, and puts
layers on their devices (`tfdist.placement`). A helper that dies takes a part of
the worker's replica with it, and what refers to that part cannot be mended in
the same process. So the worker ends with an error, and its next process takes
the parameters from the servers.
"""

import atexit
import threading
import time

from tfdist.cluster import incarnation
from tfdist.cluster import sessions
from tfdist.cluster import waiting

# A helper that is silent for longer counts as gone. A step that fails has
# waited for some seconds already.
_SILENT_SECONDS = 10.0
_POLL_SECONDS = 0.2
_BEAT_SECONDS = 1.0
# Longer than a question to a helper that hangs takes.
_END_SECONDS = 30.0

# By name, the incarnations of the helpers that this process is connected to.
_lives = {}


class HelperLostError(RuntimeError):
    """A helper is gone, and with it a part of this worker's replica."""


def addresses(config):
    """Returns a dict of task name to `host:port` of a worker's helpers.

    Args:
      config: The `ClusterConfig`.
    """
    return {_name(task): a for task, a in config.helpers.items()}


def wait(config, timeout):
    """Waits until all helpers of this worker answer, and notes their lives.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.
      timeout: Seconds.

    Raises:
      TimeoutError: One does not; the message names it.
    """
    for task, address in config.helpers.items():
        _lives[_name(task)] = waiting.wait_until(
            lambda task=task, address=address: _life(task, address),
            what=f"helper {_name(task)} at {address} to answer",
            timeout=timeout,
            hint="Is that which listens there this helper?",
        )


def check(config):
    """Checks that all helpers of this worker are there as it knows them.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.

    Raises:
      HelperLostError: One is gone or was started again; the message names it.
    """
    for task, address in config.helpers.items():
        end = time.monotonic() + _SILENT_SECONDS
        while (
            (life := _life(task, address)) is None
            and sessions.listens(address, incarnation.SECONDS)
            and time.monotonic() < end
        ):
            time.sleep(_POLL_SECONDS)
        if life != _lives[_name(task)]:
            what = "is gone" if life is None else "was started again"
            raise HelperLostError(
                f"Helper {_name(task)} at {address} {what}, and a worker "
                f"cannot go on without its helper. {config.task_name} ends. "
                "When both are started again, it continues with the servers' "
                "parameters."
            )


def keep_in_use(config):
    """Keeps the connections to all helpers of this worker in use.

    gRPC closes a connection on which nothing but its own pings travels. A step
    that a helper computes for 20 s would fail.

    Args:
      config: The `ClusterConfig` of a connected worker or evaluator.
    """
    stop = threading.Event()
    threads = [
        threading.Thread(target=_beat, args=(task, address, stop), daemon=True)
        for task, address in config.helpers.items()
    ]
    for thread in threads:
        thread.start()

    def end():
        stop.set()
        # A thread that is in TensorFlow is not to be torn from it.
        for thread in threads:
            thread.join(_END_SECONDS)

    if threads:
        atexit.register(end)


def _beat(task, address, stop):
    while not stop.wait(_BEAT_SECONDS):
        # If it is gone, the next step fails.
        _life(task, address)


def _life(task, address):
    return incarnation.read(address, task, incarnation.SECONDS, job="helper")


def _name(task):
    return f"/job:helper/task:{task}"
