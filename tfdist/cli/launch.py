"""`tfdist launch`: a cluster of processes on this machine."""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import shutil
import tempfile

from tfdist.cli import capacity
from tfdist.cli import gpus
from tfdist.cli import isolation
from tfdist.cli import launch_flags
from tfdist.cli import output
from tfdist.cli import shown_output
from tfdist.cli import usage
from tfdist.cli.limits import Limits
from tfdist.cli.local_cluster import LocalCluster
from tfdist.cli.local_cluster import LocalTask
from tfdist.cli.run_report import RunReport
from tfdist.cli.shown_output import LineFilter
from tfdist.cli.supervisor import Supervisor
from tfdist.cli.task import Task
from tfdist.cluster import environment
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.groups import Group

_LAUNCHED_ENVIRONMENT = {
    # Output shows when it is written, not when a buffer is full.
    "PYTHONUNBUFFERED": "1",
    # Where a signal ends Python, it says where it was (`failure.py`).
    "PYTHONFAULTHANDLER": "1",
    # The tasks share this machine's accelerators; by default the first
    # process takes all of their memory.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
# Jobs that tell how they train, and those that are told when training is over.
_TRAIN = ("chief", "worker")
_OUTLAST = ("ps", "helper", "evaluator")
# Between two lines about the workers, on a terminal.
_STATUS_SECONDS = 10.0


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `launch`.

    Returns:
        The exit status.

    Raises:
        UsageError: if the arguments are wrong.
    """
    values = launch_flags.define_flags()
    rest = usage.parse(values, argv)
    if usage.shows_help(values, launch_flags.USAGE, launch_flags.__name__):
        return 0
    launch_flags.check_flags(values)
    command = launch_flags.command(values, rest)
    extra = launch_flags.extra_environment(values.env)
    max_workers = values.max_workers
    initial_workers = None
    if max_workers is None:
        max_workers = values.num_workers
    elif max_workers > values.num_workers:
        initial_workers = values.num_workers + values.chief
    counts = {
        "ps": values.num_ps,
        "helper": values.helpers_per_worker * (max_workers + values.chief),
        "chief": int(values.chief),
        "worker": max_workers,
        "evaluator": int(values.evaluator),
    }
    limits = Limits(
        max_restarts=0 if values.fail_fast else values.max_restarts,
        fail_fast=values.fail_fast,
        grace_seconds=values.grace_seconds,
        terminate_seconds=values.terminate_seconds,
        leave_seconds=values.leave_seconds,
        min_workers=int(not values.chief),
        timeout=values.timeout,
    )
    capacity.check(counts, values.num_groups)
    show = values.show.split(",")
    shown_output.check(show, counts)
    cpp_level = {**os.environ, **extra}["TF_CPP_MIN_LOG_LEVEL"]
    is_verbose = values.verbose or cpp_level in ("0", "1")
    if values.log_dir is not None:
        usage.make_directory("log_dir", values.log_dir)
    isolation.leave_network(values.isolate)
    out, err = output.open_streams(values.color)
    report = RunReport(err)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(counts, values.num_groups, initial_workers)
        )
        stack.enter_context(
            isolation.keep_others_out(
                values.isolate, cluster.listeners, report.say
            )
        )
        log_dir = values.log_dir or output.temporary_log_dir(report.say)
        told = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="tfdist-status-", ignore_cleanup_errors=True
            )
        )
        snapshots = None
        if values.snapshot_seconds and values.num_ps:
            snapshots = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="tfdist-snapshots-", ignore_cleanup_errors=True
                )
            )
        of_tasks = gpus.environments(
            os.environ, extra, cluster.tasks, values.num_workers, report
        )
        groups: list[list[Task]] = [[] for _ in range(values.num_groups)]
        for number, task in enumerate(cluster.tasks):
            environ = _environment(os.environ, extra, task.tf_config)
            environ.update(of_tasks.get(task.label, {}))
            if snapshots is not None:
                environ[environment.SNAPSHOT_DIR] = os.path.join(
                    snapshots, f"group-{task.group or 0}"
                )
                environ[environment.SNAPSHOT_EVERY] = str(
                    values.snapshot_seconds
                )
            ClusterConfig.from_tf_config(environ, needs_servers=False)
            Group.from_tf_config(environ)
            groups[task.group or 0].append(
                Task(
                    task.label,
                    task.address,
                    command,
                    environ,
                    is_server=task.job in ("ps", "helper"),
                    is_evaluator=task.job == "evaluator",
                    worker=task.index if task.job == "worker" else None,
                    is_wanted=(
                        task.job != "worker" or task.index < values.num_workers
                    ),
                    color=output.COLORS[number % len(output.COLORS)],
                    log_dir=log_dir,
                    status_path=_own_file(told, task, _TRAIN),
                    end_path=_own_file(told, task, _OUTLAST),
                    line_filter=LineFilter(
                        shown_output.includes(show, task, values.chief),
                        is_verbose,
                    ),
                )
            )
        seconds = values.status_seconds
        if seconds is None:
            seconds = _STATUS_SECONDS if os.isatty(err.fileno()) else 0.0
        status = Supervisor(groups, out, err, limits, log_dir, seconds).run()
        if not status and log_dir and not values.log_dir:
            shutil.rmtree(log_dir, ignore_errors=True)
        return status


def _own_file(
    directory: str, task: LocalTask, jobs: Sequence[str]
) -> str | None:
    """Returns the path of a task's own file; `None` for jobs not in `jobs`."""
    if task.job not in jobs:
        return None
    return os.path.join(directory, task.label.replace(" ", "-"))


def _environment(
    environ: Mapping[str, str], extra: Mapping[str, str], tf_config: str
) -> dict[str, str]:
    """Returns the environment of one task."""
    result = {**environ, **extra, "TF_CONFIG": tf_config}
    for name, value in _LAUNCHED_ENVIRONMENT.items():
        result.setdefault(name, value)
    environment.apply(result)
    return result
