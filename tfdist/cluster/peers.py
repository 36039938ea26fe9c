"""A worker's connection to the other workers, where there are no servers.

`tf.distribute.MultiWorkerMirroredStrategy` would set up collectives as well,
with the public API alone. But with TensorFlow 2.21 it waits for a worker that
is missing for ever (10 minutes were tried), and its coordination service makes
the process ignore SIGTERM. So the server is started without that service,
each worker waits until the others listen, and looks after them by itself.
"""

import atexit
import threading
import time
import weakref

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist import quiet
from tfdist.cluster import collective_sums
from tfdist.cluster import connection
from tfdist.cluster import versions

_BEAT_SECONDS = 1.0
# For one question. While it waits for the answer no other thread of this
# process runs Python: TensorFlow keeps the interpreter's lock.
_ASKING_SECONDS = 1.0
# What a worker that ends has just sent is to arrive.
_FAREWELL_SECONDS = 0.3
_START_KEY = 1

# A process starts its server once.
_joined = {}


def join(config, timeout, worker_timeout):
    """Connects this worker to all others.

    Args:
      config: The `ClusterConfig`, of workers alone.
      timeout: Seconds to wait for workers that are not up yet.
      worker_timeout: Seconds after which a worker that does not answer is
        taken for dead.

    Returns:
      The `Peers`, the same for each call with the same cluster.

    Raises:
      ClusterConfigError: This process is part of another cluster already.
      OSError: This process's own server does not start.
      TimeoutError: A worker could not be reached; the message names it.
    """
    if config not in _joined:
        if _joined:
            (other,) = _joined
            raise connection.another_cluster(config, other)
        peers = Peers(config)
        peers.start(timeout)
        peers.look_after(worker_timeout)
        _joined[config] = peers
        # What is registered later, such as a last exchange, runs before.
        atexit.register(peers.leave)
    return _joined[config]


class Peers:
    """The workers of a cluster without servers, as a ring.

    Args:
      config: The `ClusterConfig`.

    Attributes:
      watching: Weak set of objects with sums over the workers. At each
        heartbeat their `look` is called, which returns whether one of their
        sums is under way.
    """

    def __init__(self, config):
        self._config = config
        self._addresses = config.worker_addresses
        del self._addresses[config.task_name]
        self.num_workers = config.num_workers
        self.worker_id = config.worker_id
        self._stop = threading.Event()
        self._thread = None
        self._worker_timeout = None
        # The message about a worker that is gone.
        self._lost = None
        self._lost_is_known = threading.Event()
        # Whether a collective has failed: one of them is gone.
        self._has_failed = False
        self.watching = weakref.WeakSet()

    @property
    def has_lost(self):
        """Whether a worker is known to be gone."""
        return self._lost is not None

    def start(self, timeout):
        """Starts this process's server and waits for the others; see `join`."""
        config = self._config
        definition = tf.train.ServerDef(
            cluster=tf.train.ClusterSpec(
                {job: list(a) for job, a in config.spec.items()}
            ).as_cluster_def(),
            job_name=config.task_type,
            task_index=config.task_index,
            protocol="grpc",
            default_session_config=tf.compat.v1.ConfigProto(
                device_filters=[config.task_name]
            ),
        )
        experimental = definition.default_session_config.experimental
        experimental.collective_group_leader = _full_name(
            config.worker_names[0]
        )
        with quiet.quietly():
            private_tensorflow.enable_collectives(definition)
            connection.start_runtime(config)
        versions.leave(config)
        self.device = tf.config.list_logical_devices("CPU")[0].name
        connection.warn_of_port(config)
        connection.wait_for_listeners("worker", self._addresses, timeout)
        meet = tf.function(
            lambda: collective_sums.build(
                tf.zeros([1]),
                device=self.device,
                num_workers=self.num_workers,
                key=_START_KEY,
                seconds=timeout,
            ),
            autograph=False,
        )
        try:
            meet()
        except tf.errors.OpError as error:
            names = ", ".join(
                f"{name} at {address}"
                for name, address in self._addresses.items()
            )
            raise TimeoutError(
                f"Workers {names} listen, and do not answer as workers of "
                "this cluster do. Do all have the same TF_CONFIG but for "
                f'"task"? ({error.message.splitlines()[0]})'
            ) from error

    def look_after(self, worker_timeout):
        """Keeps asking all others whether they are there.

        Long waits go on only on connections that are in use; and where one
        worker is gone, the collectives of all have to end with an error.

        Args:
          worker_timeout: See `join`.
        """
        self._worker_timeout = worker_timeout
        self._thread = threading.Thread(
            target=self._beat, args=(worker_timeout,), daemon=True
        )
        self._thread.start()

    def _beat(self, worker_timeout):
        answered = dict.fromkeys(self._addresses, time.monotonic())
        most = min(_ASKING_SECONDS, worker_timeout)
        while not self._stop.wait(_BEAT_SECONDS):
            for name, address in self._addresses.items():
                # After a failure the main thread waits for the answer.
                failed = self._has_failed
                seconds = worker_timeout if failed else most
                try:
                    private_tensorflow.check_peer(_full_name(name), seconds)
                    answered[name] = time.monotonic()
                except tf.errors.OpError as error:
                    silent = time.monotonic() - answered[name]
                    back = isinstance(error, tf.errors.FailedPreconditionError)
                    if self._stop.is_set():
                        return
                    gone = failed or silent > worker_timeout
                    if back or gone:
                        what = "was started again" if back else "is gone"
                        self._lost = (
                            f"{name} at {address} {what}: training without "
                            "servers cannot go on without it. Start all "
                            "workers again, from a checkpoint."
                        )
                        self._lost_is_known.set()
                        self._end_sums()
                        return
            self._look()

    def _end_sums(self):
        # Not before a sum waits: after training a worker may well go on alone,
        # and TensorFlow logs as an error that it can have no more sums.
        while not self._look():
            if self._stop.wait(_BEAT_SECONDS):
                return
        private_tensorflow.abort_collectives(tf.errors.UNAVAILABLE, self._lost)

    def _look(self):
        """Returns whether a sum is under way, or may be."""
        # Whatever an error means for sums: the heartbeats go on.
        try:
            under_way = [one.look() for one in list(self.watching)]
            return any(under_way)
        except Exception:
            logging.exception("Looking after sums that take long has failed.")
            return True

    def lost_worker(self):
        """Waits until it is known whether a worker is gone.

        Called when a collective has failed, which may be seen before the
        next heartbeat.

        Returns:
          A message that names the worker; None if all answer.
        """
        self._has_failed = True
        self._lost_is_known.wait(self._worker_timeout + 2 * _BEAT_SECONDS)
        self._has_failed = False
        return self._lost

    def leave(self):
        """Stops looking after the others, when this process ends."""
        self._stop.set()
        time.sleep(_FAREWELL_SECONDS)
        self._thread.join(5.0)


def _full_name(task_name):
    """`/job:worker/task:0` as TensorFlow's collectives have it."""
    return task_name.replace("/task:", "/replica:0/task:")
