"""Scripts as the tasks of a cluster, as `tfdist launch` runs them.

They are forked from a process that has imported TensorFlow, or else the
imports would take most of the time.
"""

import contextlib
import os
import runpy
import sys
import time

from tests.multi_process import real_cluster
from tests.waits import Waited
from tfdist.cli import local_cluster

_POLL_SECONDS = 0.02


def start(directory, script, flags, label="task", **environ):
    """Starts a script in a process of its own.

    Args:
        directory: in which it runs, a `pathlib.Path`.
        script: its path.
        flags: list of what follows it on the command line.
        label: its name.
        **environ: changes of its environment, such as `TF_CONFIG`.

    Returns:
        A `TaskUnderTest`.
    """
    return real_cluster.TaskUnderTest(
        real_cluster.shared_zygote(),
        label,
        directory,
        target="tests.multi_process.scripts:become",
        arguments={"script": str(script), "flags": list(map(str, flags))},
        environ=environ,
    )


def run(
    directory,
    script,
    flags,
    jobs,
    num_groups=1,
    seconds=300.0,
    environ=None,
    initial_workers=None,
):
    """Runs a script as every task of a cluster, until all have exited with 0.

    Args:
        directory: in which they run, a `pathlib.Path`.
        script: its path.
        flags: list of what follows it on the command line.
        jobs: dict from the name of a job to its number of tasks.
        num_groups: number of such clusters, which teach each other.
        seconds: how long they may take.
        environ: dict of changes of their environment.
        initial_workers: how many of the workers are there at first; all if
            it is None.

    Returns:
        What each has printed: a dict from labels such as `worker-0`, or
        `group-1-worker-0`, to strings.
    """
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            local_cluster.LocalCluster(jobs, num_groups, initial_workers)
        )
        tasks = []
        for one in cluster.tasks:
            label = one.label.replace(" ", "-")
            variables = {**(environ or {}), "TF_CONFIG": one.tf_config}
            task = start(directory, script, flags, label, **variables)
            stack.callback(lambda task=task: task.runs() and task.kill())
            tasks.append(task)
        running = tasks
        while running:
            for task in running:
                # The first that fails ends the wait.
                assert task.runs() or task.wait() == 0, task.output()
                if time.monotonic() > end:
                    raise Waited(
                        f"{task.label} runs after {seconds:g} s:\n"
                        f"{task.output()}"
                    )
            running = [task for task in running if task.runs()]
            time.sleep(_POLL_SECONDS)
        return {task.label: task.output() for task in tasks}


def become(script, flags):
    """Goes on as `python script flags` does.

    Args:
        script: its path.
        flags: list of strings.
    """
    sys.path.insert(0, os.path.dirname(script))
    sys.argv = [script, *flags]
    runpy.run_path(script, run_name="__main__")
