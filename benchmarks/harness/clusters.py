"""The processes of a measured cluster, started and ended together."""

import contextlib
import json

from harness import children
from harness import exchanging
from harness import tensorflow_ps
from tfdist.cli import local_cluster
from tfdist.cluster import environment

ENVIRONMENT = {
    **environment.RUNTIME_ENVIRONMENT,
    # The process that others are forked from imports NumPy.
    "OPENBLAS_NUM_THREADS": "1",
    # At the end all are killed, and need not say that others have gone.
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class Cluster(contextlib.AbstractContextManager):
    """Processes that serve, and workers that are asked.

    Attributes:
        tasks: (job, number) -> the task.
        servers: list of `children.Child`.
        workers: the same.
    """

    def __init__(
        self,
        worker,
        serve=(exchanging.serve,),
        *,
        ps=1,
        workers=1,
        forked=False,
        environ=None,
        name="tfdist",
    ):
        """Begins to start all processes.

        Args:
            worker: what builds a worker and its arguments, a tuple; or a
                function of its number that returns one.
            serve: what a server's process runs and its arguments, a tuple.
            ps: number of servers.
            workers: number of workers.
            forked: see `children.Child`.
            environ: more variables of the processes' environment, a dict.
            name: what errors call the cluster.
        """
        self._ports = local_cluster.LocalCluster({"ps": ps, "worker": workers})
        self.tasks = {(t.job, t.index): t for t in self._ports.tasks}
        self._worker = worker if callable(worker) else lambda number: worker
        self._serve = serve
        self._forked = forked
        self._environ = {**ENVIRONMENT, **(environ or {})}
        self._name = name
        self.servers, self.workers = [], []
        for job, number in self.tasks:
            self._of(job).append(self._start(job, number))

    def __exit__(self, *exc_info):
        self.close()

    def _of(self, job):
        return self.servers if job == "ps" else self.workers

    def _start(self, job, number):
        task = self.tasks[job, number]
        return children.Child(
            f"{self._name}: {task.label}",
            *(self._serve if job == "ps" else self._worker(number)),
            environ={**self._environ, "TF_CONFIG": task.tf_config},
            forked=self._forked,
        )

    def restart(self, job, number=0):
        """Kills a process and starts it again.

        Args:
            job: its job.
            number: its number.

        Returns:
            The new `children.Child`.
        """
        self._of(job)[number].kill()
        self._of(job)[number] = self._start(job, number)
        return self._of(job)[number]

    @property
    def pids(self):
        """The ids of all processes, a list."""
        return [child.pid for child in (*self.servers, *self.workers)]

    @property
    def server_pids(self):
        """The ids of all servers' processes, a list."""
        return [child.pid for child in self.servers]

    def wait_until_built(self):
        """Waits until all workers can be asked."""
        children.answers(self.workers)

    def ask(self, *question, timeout=120.0):
        """Asks the first worker; see `children.Child.ask`."""
        return self.workers[0].ask(*question, timeout=timeout)

    def ask_all(self, *question, timeout=120.0):
        """Asks all workers at once; their answers, a list."""
        for worker in self.workers:
            worker.tell(*question)
        return children.answers(self.workers, timeout)

    def close(self):
        """Ends all processes."""
        for child in (*self.workers, *self.servers):
            child.kill()
        self._ports.__exit__(None, None, None)


class TensorFlowCluster(contextlib.AbstractContextManager):
    """Servers, workers and a coordinator of TensorFlow's strategy."""

    def __init__(
        self,
        *args,
        coordinator=tensorflow_ps.coordinator,
        ps=1,
        workers=1,
        forked=False,
    ):
        """Begins to start the servers and the workers.

        Args:
            *args: of `coordinator`.
            coordinator: what builds the coordinator; see `children.Child`.
            ps: number of servers.
            workers: number of workers.
            forked: see `children.Child`.
        """
        self._build = (coordinator, *args)
        self._forked = forked
        self._ports = local_cluster.LocalCluster(
            {"ps": ps, "worker": workers, "chief": 1}
        )
        self._tasks = {(t.job, t.index): t for t in self._ports.tasks}
        self._children = {
            task: self._serve(*task)
            for task in self._tasks
            if task[0] != "chief"
        }

    def __exit__(self, *exc_info):
        for child in reversed(self._children.values()):
            child.kill()
        self._ports.__exit__(*exc_info)

    @property
    def pids(self):
        """The ids of all processes, a list."""
        return [child.pid for child in self._children.values()]

    @property
    def server_pids(self):
        """The ids of all servers' processes, a list."""
        return [
            child.pid
            for (job, _), child in self._children.items()
            if job == "ps"
        ]

    def _start(self, job, number, *build):
        task = self._tasks[job, number]
        return children.Child(
            f"TensorFlow: {task.label}",
            *build,
            environ={**ENVIRONMENT, "TF_CONFIG": task.tf_config},
            forked=self._forked,
        )

    def _serve(self, job, number):
        cluster = json.loads(self._tasks[job, number].tf_config)["cluster"]
        return self._start(
            job, number, tensorflow_ps.serve, cluster, job, number
        )

    def restart_server(self):
        """Kills the first server and starts it again."""
        self._children["ps", 0].kill()
        self._children["ps", 0] = self._serve("ps", 0)

    def wait_until_built(self):
        """Starts the coordinator, which expects the servers to be up."""
        children.answers(list(self._children.values()))
        chief = self._start("chief", 0, *self._build)
        self._children["chief", 0] = chief
        chief.wait_until_built()

    def ask(self, *question, timeout=120.0):
        """Asks the coordinator; see `children.Child.ask`."""
        return self._children["chief", 0].ask(*question, timeout=timeout)

    def ask_all(self, *question, timeout=120.0):
        """Asks the coordinator, who speaks for all workers; a list of one."""
        return [self.ask(*question, timeout=timeout)]
