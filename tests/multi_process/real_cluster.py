"""A cluster whose tasks a test starts, stops and kills one by one.

Tasks are real processes with real servers on loopback, forked from a zygote.
They tell what they do by lines of output and by files in one directory, and
wait for files that the test makes (`tests.multi_process.handshake`). Every
wait is bounded, and no process outlives the cluster, the zygote or the test.
"""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from tests.waits import SECONDS
from tests.waits import Waited
from tests.waits import wait_until
from tfdist.cli import local_cluster
from tfdist.cluster import environment

_POLL_SECONDS = 0.02
_ROOT = pathlib.Path(__file__).parents[2]


class Zygote(contextlib.AbstractContextManager):
    """The process that forks tasks; see `tests.multi_process.zygote`."""

    def __init__(self):
        environ = {**os.environ, **environment.RUNTIME_ENVIRONMENT}
        environ.pop("TF_CONFIG", None)
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(_ROOT / "tests" / "multi_process" / "zygote.py"),
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        self._changed = threading.Condition()
        self._answers = {}
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.wait_for(None, "ready")

    def __exit__(self, *exc_info):
        # Its tasks are killed by the kernel.
        self._process.kill()
        self._process.wait(SECONDS)

    def fork(self, **request):
        """Starts a task; returns its key and its process id."""
        with self._changed:
            self._number += 1
            key = self._number
        line = json.dumps({"key": key, **request}) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        return key, self.wait_for(key, "pid")

    def wait_for(self, key, what, timeout=SECONDS):
        """Waits for an answer about a task.

        Raises:
            Waited: There is none within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: what in self._answers.get(key, {}), timeout
            ):
                raise Waited(f"no {what} of task {key} in {timeout:g} s")
            return self._answers[key][what]

    def known(self, key, what):
        """Returns an answer about a task that has come, or `None`."""
        with self._changed:
            return self._answers[key].get(what)

    def _read(self):
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._changed:
                self._answers.setdefault(answer.pop("key", None), {}).update(
                    answer
                )
                self._changed.notify_all()


@functools.cache
def shared_zygote():
    """One for all tests of this process; it ends with it."""
    process = Zygote()
    atexit.register(process.__exit__)
    return process


class TaskUnderTest:
    """One process of a cluster, from its start to its end."""

    def __init__(self, zygote, label, directory, **request):
        self._zygote = zygote
        self.label = label
        self._directory = directory
        self._output = directory / f"{label}.log"
        self._output.touch()
        self._read_up_to = 0
        self._key, self.pid = zygote.fork(
            output=str(self._output), directory=str(directory), **request
        )
        self.started = time.monotonic()

    def output(self):
        """All that it has printed so far."""
        return self._output.read_text(errors="replace")

    def report(self):
        """What it has reported with `handshake.report`."""
        path = self._directory / f"{self.label}.json"
        assert path.exists(), f"{self.label} reported nothing:\n{self.output()}"
        return json.loads(path.read_text())

    def wait_for_report(self, timeout=SECONDS):
        """Waits for its report; returns it."""
        path = self._directory / f"{self.label}.json"
        wait_until(
            lambda: path.exists() or not self.runs(),
            lambda: f"{self.label} has reported:\n{self.output()}",
            timeout,
        )
        return self.report()

    def expect(self, pattern, timeout=SECONDS):
        """Waits for output that matches; returns the match.

        Successive calls look at what follows the last match.
        """
        end = time.monotonic() + timeout
        while True:
            over = not self.runs()
            text = self.output()
            if match := re.search(pattern, text[self._read_up_to :]):
                self._read_up_to += match.end()
                return match
            assert not over, f"{self.label} ended without {pattern!r}:\n{text}"
            if time.monotonic() > end:
                raise Waited(
                    f"{self.label}: no {pattern!r} in {timeout:g} s:\n{text}"
                )
            time.sleep(_POLL_SECONDS)

    def steps(self):
        """Steps that it has told of so far (`failure_tasks.TellProgress`)."""
        path = self._directory / f"{self.label}.steps"
        return path.stat().st_size if path.exists() else 0

    def wait_for_steps(self, number, timeout=SECONDS):
        """Waits until it has made `number` steps."""
        self.wait_for_steps_or_end(number, timeout)
        assert self.steps() >= number, (
            f"{self.label} has ended:\n{self.output()}"
        )

    def wait_for_steps_or_end(self, number, timeout=SECONDS):
        """Waits until it has made `number` steps, or has ended."""
        wait_until(
            lambda: self.steps() >= number or not self.runs(),
            lambda: (
                f"{self.label}: {self.steps()} of {number} steps:\n"
                f"{self.output()}"
            ),
            timeout,
        )

    def send(self, number):
        """Sends a signal, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self):
        """Kills it as `kill -9` does, and waits until it is gone."""
        assert self.runs(), f"{self.label} has ended:\n{self.output()}"
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def runs(self):
        """Returns whether it has not ended."""
        return self._zygote.known(self._key, "status") is None

    def wait(self, timeout=SECONDS):
        """Returns its exit status, minus the signal's number if killed."""
        try:
            return self._zygote.wait_for(self._key, "status", timeout)
        except Waited:
            raise Waited(
                f"{self.label} runs after {timeout:g} s:\n{self.output()}"
            ) from None


class ClusterUnderTest(contextlib.AbstractContextManager):
    """A cluster with fixed addresses, and the tasks started so far."""

    def __init__(
        self,
        zygote,
        directory,
        *,
        num_ps=1,
        num_workers=2,
        num_helpers=0,
        initial_workers=None,
    ):
        """Chooses the addresses; starts nothing.

        Args:
            zygote: a `Zygote`.
            directory: an empty `pathlib.Path` of the cluster's own.
            num_ps: number of servers.
            num_workers: number of workers.
            num_helpers: number of helpers of all workers together.
            initial_workers: of them, that are waited for; `None` for all.
        """
        self._zygote = zygote
        self.directory = directory
        self.num_ps = num_ps
        self.num_workers = num_workers
        self._ports = local_cluster.LocalCluster(
            {"ps": num_ps, "helper": num_helpers, "worker": num_workers},
            initial_workers=initial_workers,
        )
        self._more_ports = contextlib.ExitStack()
        self._configs = {(t.job, t.index): t for t in self._ports.tasks}
        self.tasks = []

    def __exit__(self, *exc_info):
        for task in self.tasks:
            task.send(signal.SIGKILL)
        for task in self.tasks:
            task.wait()
        self._ports.__exit__(*exc_info)
        self._more_ports.close()

    def address(self, job, index):
        """The `host:port` of a task."""
        return self._configs[job, index].address

    def another_address(self):
        """A `host:port` that is held for a task until the cluster ends."""
        ports = local_cluster.LocalCluster({"ps": 1})
        self._more_ports.enter_context(ports)
        return ports.tasks[0].address

    def start(self, job, index, target, **arguments):
        """Starts a task.

        Args:
            job: `ps`, `helper` or `worker`.
            index: of the task in its job.
            target: `module:function`, the module in `tests.multi_process`
                or with its full name.
            **arguments: of the function; what JSON can hold.

        Returns:
            A `TaskUnderTest`.
        """
        label = f"{job}-{index}"
        earlier = sum(t.label.split(".")[0] == label for t in self.tasks)
        if earlier:
            label = f"{label}.{earlier}"
        return self._start(label, job, index, {}, target, arguments)

    def start_by_other_ways(self, job, index, others, target, **arguments):
        """Starts a task that reaches others at other addresses.

        Args:
            job: `worker`.
            index: of the task in its job.
            others: job -> the `host:port` of each of its tasks.
            target: as in `start`.
            **arguments: of the function.

        Returns:
            A `TaskUnderTest`.
        """
        label = f"{job}-{index}"
        return self._start(label, job, index, others, target, arguments)

    def start_of_another_cluster(self, job, index, target, **arguments):
        """Starts a task that shares but the servers with this cluster.

        Args:
            job: `worker`.
            index: of the task in its job.
            target: as in `start`.
            **arguments: of the function.

        Returns:
            A `TaskUnderTest`.
        """
        others = {"worker": [self.another_address()]}
        label = f"other-{job}-{index}"
        return self._start(label, job, index, others, target, arguments)

    def _start(self, label, job, index, changes, target, arguments):
        config = json.loads(self._configs[job, index].tf_config)
        config["cluster"].update(changes)
        if not target.startswith("tests."):
            target = f"tests.multi_process.{target}"
        task = TaskUnderTest(
            self._zygote,
            label,
            self.directory,
            target=target,
            arguments=arguments,
            environ={"TF_CONFIG": json.dumps(config), "TASK_LABEL": label},
        )
        self.tasks.append(task)
        return task

    def start_servers(self, **arguments):
        """Starts all servers; returns them."""
        return [
            self.start("ps", index, "tasks:serve", **arguments)
            for job, index in self._configs
            if job == "ps"
        ]

    def start_helpers(self):
        """Starts all helpers; returns them."""
        return [
            self.start("helper", index, "tasks:serve")
            for job, index in self._configs
            if job == "helper"
        ]

    def start_workers(self, target, **arguments):
        """Starts all workers with the same target; returns them."""
        return [
            self.start("worker", index, target, **arguments)
            for job, index in self._configs
            if job == "worker"
        ]

    def servers(self):
        """The servers that have been started."""
        return [t for t in self.tasks if t.label.startswith("ps")]

    def tell(self, name):
        """Makes the file that tasks wait for with `handshake.wait_for`."""
        (self.directory / name).touch()

    def let_the_last_be_late(self, workers, steps=4):
        """Lets workers go on that wait after their first step.

        The last one's second gradient is of parameters from before the
        others' further steps.

        Args:
            workers: that run `tasks.WaitAfterFirstStep` and tell of steps.
            steps: how many the others have made when the last goes on.
        """
        *others, last = workers
        for worker in workers:
            worker.wait_for_steps(1)
        for worker in others:
            self.tell(f"go on {worker.label}")
        for worker in others:
            worker.wait_for_steps(steps)
        self.tell(f"go on {last.label}")

    def finish(self, timeout=SECONDS):
        """Waits until every task has exited with 0, or a test killed it.

        The first that fails ends the wait.
        """
        end = time.monotonic() + timeout
        running = self.tasks
        while running:
            for task in running:
                if task.runs():
                    continue
                status = task.wait()
                assert status in (0, -signal.SIGKILL), (
                    f"{task.label} exited with {status}:\n{task.output()}"
                )
            running = [task for task in running if task.runs()]
            if running and time.monotonic() > end:
                raise Waited(
                    "\n".join(
                        f"{task.label} runs after {timeout:g} s:\n"
                        f"{task.output()}"
                        for task in running
                    )
                )
            time.sleep(_POLL_SECONDS)


def reports_of(
    zygote, tmp_path_factory, task, argument, num_ps, *, num_workers
):
    """The reports of workers that do the same in several ways.

    Args:
        zygote: the fixture.
        tmp_path_factory: pytest's.
        task: what workers run, `module:function`.
        argument: of it, that says in which way.
        num_ps: by way, number of servers.
        num_workers: number of workers.

    Returns:
        By way, a list of reports.
    """
    found = {}
    for way, servers in num_ps.items():
        with ClusterUnderTest(
            zygote,
            tmp_path_factory.mktemp(way),
            num_ps=servers,
            num_workers=num_workers,
        ) as cluster:
            cluster.start_servers()
            workers = cluster.start_workers(task, **{argument: way})
            # For a machine that does other things as well.
            cluster.finish(240.0)
            found[way] = [worker.report() for worker in workers]
    return found
