"""The processes of each measured system, started and ended together."""

import contextlib
import json

from harness import children
from harness import tensorflow_ps
from tfdist.cli import local_cluster
from tfdist.cluster import environment


class Cluster(contextlib.AbstractContextManager):
    """Processes that serve, and one that is asked."""

    def __init__(self):
        self._servers = []
        self._asked = None
        self._ports = contextlib.ExitStack()

    def __exit__(self, *exc_info):
        self.close()

    def wait_until_built(self):
        """Waits until the process that works can be asked."""
        self._asked.wait_until_built()

    def ask(self, *question, timeout=120.0):
        """Asks the process that works; see `children.Child.ask`."""
        return self._asked.ask(*question, timeout=timeout)

    def close(self):
        """Ends all processes."""
        if self._asked is not None:
            self._asked.close()
        for server in self._servers:
            server.kill()
        self._ports.close()

    def _tasks(self, **counts):
        held = self._ports.enter_context(local_cluster.LocalCluster(counts))
        return {task.job: task for task in held.tasks}


def environ_of(task):
    """The environment of a task's process, a dict."""
    return {**environment.RUNTIME_ENVIRONMENT, "TF_CONFIG": task.tf_config}


class TfdistCluster(Cluster):
    """One parameter server and one worker of tfdist."""

    def __init__(self, serve, build, *args):
        """Begins to start both.

        Args:
            serve: what the server's process runs.
            build: what builds the worker; see `children.Child`.
            *args: its arguments.
        """
        super().__init__()
        tasks = self._tasks(ps=1, worker=1)
        environ = environ_of(tasks["ps"])
        self._servers.append(
            children.Child("tfdist server", serve, environ=environ)
        )
        environ = environ_of(tasks["worker"])
        self._asked = children.Child(
            "tfdist worker", build, *args, environ=environ
        )


class TensorFlowCluster(Cluster):
    """One server, one worker, one coordinator of TensorFlow's strategy."""

    def __init__(self, *args):
        """Begins to start the server and the worker.

        Args:
            *args: of `tensorflow_ps.coordinator`.
        """
        super().__init__()
        tasks = self._tasks(ps=1, worker=1, chief=1)
        cluster = json.loads(tasks["chief"].tf_config)["cluster"]
        for job in ("ps", "worker"):
            self._servers.append(
                children.Child(
                    f"TensorFlow {job}",
                    tensorflow_ps.serve,
                    cluster,
                    job,
                    environ=environ_of(tasks[job]),
                )
            )
        self._cluster = cluster
        self._ps = environ_of(tasks["ps"])
        self._arguments = args
        self._environ = environ_of(tasks["chief"])

    def restart_server(self, serve):
        """Kills the parameter server and starts it again.

        Args:
            serve: what it runs.
        """
        self._servers[0].kill()
        self._servers[0] = children.Child(
            "TensorFlow ps", serve, self._cluster, "ps", environ=self._ps
        )

    def wait_until_built(self):
        """Starts the coordinator, which expects the servers to be up."""
        for server in self._servers:
            server.wait_until_built()
        self._asked = children.Child(
            "TensorFlow coordinator",
            tensorflow_ps.coordinator,
            *self._arguments,
            environ=self._environ,
        )
        super().wait_until_built()
