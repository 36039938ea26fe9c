"""Clusters that train in turns: all workers of a method go on, then wait."""

import contextlib
import time

from harness import children
from harness import gated_worker
from tfdist.cli import local_cluster
from tfdist.cluster import environment

# The process that all are forked from imports NumPy.
_ENVIRONMENT = {
    **environment.RUNTIME_ENVIRONMENT,
    "OPENBLAS_NUM_THREADS": "1",
    # At the end all are killed, and need not say that others have gone.
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# Those that are not of tfdist, and have no server.
_OTHERS = {
    "alone": gated_worker.lone_worker,
    "mwms": gated_worker.mirrored_worker,
}
_WARM_UP_SECONDS = 120.0


class GatedTraining(contextlib.AbstractContextManager):
    """The processes of one method, whose training is held between turns."""

    def __init__(self, method, num_workers, sleeps, seed):
        """Begins to start them.

        Args:
            method: a key of `gated_worker.STRATEGIES`; `mwms`, TensorFlow's
                `MultiWorkerMirroredStrategy`; or `alone`, where each worker
                trains a model of its own.
            num_workers: number of workers; with tfdist, a server as well.
            sleeps: a `gated_worker.Sleeps`.
            seed: of the slow steps.
        """
        self._workers = []
        self._servers = []
        self._ports = local_cluster.LocalCluster(
            {"ps": 0 if method in _OTHERS else 1, "worker": num_workers}
        )
        for task in self._ports.tasks:
            of_worker = (task.index, sleeps, seed)
            if task.job == "ps":
                what = (gated_worker.serve, method)
            elif method in _OTHERS:
                what = (_OTHERS[method], *of_worker)
            else:
                what = (gated_worker.tfdist_worker, method, *of_worker)
            child = children.Child(
                f"{method}: {task.label}",
                *what,
                environ={**_ENVIRONMENT, "TF_CONFIG": task.tf_config},
                forked=True,
            )
            started = self._servers if task.job == "ps" else self._workers
            started.append(child)

    def __exit__(self, *exc_info):
        for child in (*self._workers, *self._servers):
            child.kill()
        self._ports.__exit__(*exc_info)

    def wait_until_built(self):
        """Waits until every worker can train."""
        for worker in self._workers:
            worker.wait_until_built()

    def open(self):
        """Lets all workers go on."""
        self._ask("open")

    def wait_for_steps(self, number):
        """Waits until every worker has made so many steps."""
        deadline = time.monotonic() + _WARM_UP_SECONDS
        while min(steps := self._ask("steps")) < number:
            if time.monotonic() > deadline:
                raise children.ChildError(
                    f"{self._workers[0].name} and others have made {steps} "
                    f"steps in {_WARM_UP_SECONDS:g} s."
                )
            time.sleep(0.1)

    def close(self):
        """Holds each worker before its next step."""
        self._ask("close")

    def turn(self, seconds):
        """Lets all workers go on for some time.

        Args:
            seconds: how long.

        Returns:
            A tuple: begin and end, in seconds since the epoch, and the records
            of all workers between them (see `gated_worker.Training`), in the
            order of time.
        """
        self._ask("read")
        self._ask("open")
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
        self._ask("close")
        records = [r for rows in self._ask("read") for r in rows]
        within = [r for r in records if begin <= r[0] < end]
        return begin, end, sorted(within, key=lambda record: record[0])

    def _ask(self, command):
        for worker in self._workers:
            worker.tell(command)
        return [worker.answer() for worker in self._workers]
