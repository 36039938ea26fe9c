"""The workers of a cluster without servers, and which of them are lost."""

import random
import threading

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow


class Roster:
    """The workers, as this one sees them.

    Args:
      config: The `ClusterConfig`.
      name: Prefix of the names of all that a worker has on its server.

    Attributes:
      name: As it was given.
      worker_id: Number of this worker.
      num_workers: Number of all.
      names: Task names, by number.
      places: (address, job, task) by number.
      incarnation: Number that this process has drawn, which its messages have.
      known: Worker -> the incarnation that this worker has met, a dict.
      given_up_by: Number of a worker that has given up this one, or None.
      membership: The `MembershipNote` of this worker; None without a cluster.
      receivers: int64 variable: number of the others that are not lost.
      on_lost: Called without arguments when a worker has been given up.
    """

    def __init__(self, config, name):
        self.name = name
        self.given_up_by = None
        self.membership = None
        self.on_lost = lambda: None
        self.worker_id = config.worker_id
        self.num_workers = config.num_workers
        self.receivers = private_tensorflow.hidden_variable(
            tf.constant(self.num_workers - 1, tf.int64)
        )
        self.names = config.worker_names
        # None of one process without a cluster.
        self.places = []
        for name, address in config.worker_addresses.items():
            job, _, task = name.removeprefix("/job:").partition("/task:")
            self.places.append((address, job, int(task)))
        self.incarnation = random.SystemRandom().randrange(1, 2**31)
        self.known = {self.worker_id: self.incarnation}
        # Workers that have come while the others trained.
        self.joined = set()
        # Those of them that have begun this call of `fit` later than others.
        self.late = set()
        # Whether this worker joins the first ones.
        self.comes_later = False
        self._lost = {}
        self._lock = threading.Lock()

    @property
    def others(self):
        """Numbers of all others, lost or not, a list."""
        every = range(self.num_workers)
        return [worker for worker in every if worker != self.worker_id]

    @property
    def live(self):
        """Numbers of the others that are not lost, a list."""
        return [worker for worker in self.others if worker not in self._lost]

    @property
    def lost(self):
        """Numbers of those that are, a list."""
        return sorted(self._lost)

    @property
    def leader(self):
        """The lowest number of a worker that is not lost."""
        return min([self.worker_id, *self.live])

    def post(self):
        """Tells steps and others who is lost, whenever that has changed."""
        self.receivers.assign(len(self.live))
        if self.membership is not None:
            lost = [k in self._lost for k in range(self.num_workers)]
            self.membership.post(self.incarnation, lost)

    def left_behind(self, worker):
        """The error of this worker, which another one has given up.

        Args:
          worker: Number of the other one.
        """
        return tf.errors.UnavailableError(
            None,
            None,
            f"{self.names[self.worker_id]} was given up by "
            f"{self.names[worker]}, whose updates it lacks: it did not answer "
            "for `worker_timeout`, answered and did not get on for "
            "`stall_timeout`, or took too long to join. The log of "
            f"{self.names[worker]} says which. Where a worker may stand still "
            "for longer: fault_tolerance=tfdist.FaultTolerance("
            "worker_timeout=..., stall_timeout=...), or on_stall='wait'.",
        )

    def is_lost(self, worker):
        """Whether a worker has been given up."""
        return worker in self._lost

    def admit(self, worker, incarnation):
        """Notes that a process of a worker joins the others.

        Args:
          worker: Its number.
          incarnation: Of the process.
        """
        if worker in self.known:
            self.give_up(worker, "it was started again")
        with self._lock:
            self._lost.pop(worker, None)
            self.known[worker] = incarnation
            self.joined.add(worker)
            self.late.add(worker)
            self.post()
        logging.warning("%s joins the training.", self.names[worker])

    def await_later(self, workers):
        """Notes which others are not there, and may join: all else are there.

        Args:
          workers: Their numbers.
        """
        with self._lock:
            self._lost = dict.fromkeys(workers, "it has not joined yet")
            self.post()

    def give_up(self, worker, reason, incarnation=None):
        """Notes that a worker is lost: nobody waits for it any more.

        Args:
          worker: Its number.
          reason: Text for the log.
          incarnation: Of the process that is lost; another one that has
            joined since is not. Default: of any.
        """
        with self._lock:
            if worker in self._lost:
                return
            if incarnation not in (None, self.known.get(worker)):
                return
            self._lost[worker] = reason
            self.post()
        logging.warning(
            "%s is given up (%s): the other workers go on without it.",
            self.names[worker],
            reason,
        )
        self.on_lost()
