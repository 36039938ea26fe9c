"""`tfdist doctor`: checks a cluster before a run, or beside one."""

from collections.abc import Sequence
import functools
import json
import math
import os
import pathlib
import signal
import sys
from typing import Any

from absl import flags

from tfdist.cli import connectivity
from tfdist.cli import diagnosis
from tfdist.cli import json_file
from tfdist.cli import usage
from tfdist.cli import user_function
from tfdist.cluster import tf_config
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.config import ClusterConfigError

USAGE = """\
Checks the cluster of a TF_CONFIG, as this machine sees it: do names resolve,
are ports open, do the same versions run everywhere, do clocks agree, how fast
is the network. Servers may be in the middle of a run; it goes on.

Usage: tfdist doctor [FLAGS...]

Examples: tfdist doctor                        # the cluster of TF_CONFIG
          tfdist doctor --tf_config=job.json
          tfdist doctor --serve_seconds=600    # on the machines to be checked

The exit status is 0 where nothing is wrong, 1 where something is, 2 for bad
usage or a malformed TF_CONFIG.
"""

# What a thread may take longer than what it calls should.
_MARGIN_SECONDS = 2.0


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    define = usage.Definer(values, __name__)
    define.string(
        "tf_config",
        None,
        "What to check: JSON as in TF_CONFIG, or a file with it; without a "
        '"task" the cluster is looked at from outside. Default: the '
        "environment variable TF_CONFIG.",
    )
    define.float("timeout", 5.0, "Seconds for each task, about.")
    define.float(
        "bandwidth_mb",
        16.0,
        "Megabytes of the tensors that are sent to measure the bandwidth; "
        "smaller ones where these would take too long.",
    )
    define.float(
        "max_clock_seconds",
        1.0,
        "Seconds that a clock may differ from the one here.",
    )
    define.float(
        "serve_seconds",
        0.0,
        "Check nothing, but serve at this task's address for so long, or "
        "until Ctrl-C: then it can be checked from elsewhere.",
    )
    define.string(
        "json", None, "A file for all figures, as JSON; - for stdout."
    )
    define.bool("help", False, "Show this.", short_name="h")
    return values


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `doctor`.

    Returns:
        The exit status.

    Raises:
        UsageError: if the arguments, or `TF_CONFIG`, are wrong.
    """
    values = define_flags()
    rest = usage.parse(values, argv)
    if usage.shows_help(values, USAGE, __name__):
        return 0
    usage.refuse_arguments(rest)
    _check_flags(values)
    try:
        config, has_task = _read(values.tf_config)
    except ClusterConfigError as error:
        raise usage.UsageError(str(error)) from error
    if values.serve_seconds:
        return _serve(config, has_task, values.serve_seconds)
    rows = _rows(config, has_task)
    here = _look(rows, config, values)
    wrong, notes = diagnosis.findings(rows, values.max_clock_seconds)
    figures = diagnosis.as_dict(rows, wrong, notes, here)
    if values.json == "-":
        print(json.dumps(figures, indent=2))
    else:
        if here:
            versions = ", ".join(f"{k} {v}" for k, v in here.items())
            print(f"Here: {versions}.\n")
        print(f"{diagnosis.table(rows)}\n")
        print(diagnosis.summary(wrong, notes))
        if values.json is not None:
            json_file.write(values.json, figures)
    return 1 if wrong else 0


def _check_flags(values: flags.FlagValues) -> None:
    usage.check_positive(values, "timeout", "bandwidth_mb", "max_clock_seconds")
    # Of TensorFlow's messages, which hold two gigabytes at most.
    value = values.bandwidth_mb
    usage.check(value <= 1000, "bandwidth_mb", "be at most 1000", value)
    value = values.serve_seconds
    usage.check(
        math.isfinite(value) and value >= 0,
        "serve_seconds",
        "be at least 0",
        value,
    )
    json_file.check(None if values.json == "-" else values.json)


def _read(given: str | None) -> tuple[ClusterConfig, bool]:
    """Returns the cluster, and whether it says which task this is."""
    text = os.environ.get("TF_CONFIG", "") if given is None else given
    if given is not None and not given.lstrip().startswith("{"):
        try:
            text = pathlib.Path(given).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise usage.UsageError(
                "Flag --tf_config must be JSON or a file that can be read. "
                f"Received: --tf_config={given}: {reason}."
            ) from error
    content = tf_config.load(text)
    if not content.get("cluster"):
        raise usage.UsageError(
            "There is no cluster to check: set TF_CONFIG, or give "
            f"--tf_config. Received: {tf_config.shown(text)}."
        )
    if "task" in content:
        config = ClusterConfig.from_tf_config(
            {"TF_CONFIG": text}, needs_servers=False
        )
        return config, True
    names = tf_config.TF_CONFIG_NAMES
    spec = tf_config.check_spec(content["cluster"], names)
    number = tf_config.check_initial_workers(
        content.get("initial_workers"), spec, names
    )
    job = "chief" if "chief" in spec else "worker"
    return ClusterConfig(spec, job, 0, number), False


def _rows(
    config: ClusterConfig, has_task: bool
) -> list[diagnosis.TaskDiagnosis]:
    """Returns a row for each task, servers first."""
    own = (config.task_type, config.task_index) if has_task else None
    jobs = sorted(config.spec, key=lambda job: job != "ps")
    return [
        diagnosis.TaskDiagnosis(job, index, address, is_own=(job, index) == own)
        for job in jobs
        for index, address in enumerate(config.spec[job])
    ]


def _look(
    rows: Sequence[diagnosis.TaskDiagnosis],
    config: ClusterConfig,
    values: flags.FlagValues,
) -> dict[str, str]:
    """Fills the rows in.

    Returns:
        The versions here; empty where there was nothing to compare.
    """
    timeout = values.timeout
    late = connectivity.Reach(
        error=f"its name did not resolve within {timeout + _MARGIN_SECONDS:g} s"
    )
    found = connectivity.within(
        timeout + _MARGIN_SECONDS,
        [
            functools.partial(connectivity.reach, row.address, timeout)
            for row in rows
        ],
        late,
    )
    for row, reached in zip(rows, found, strict=True):
        if isinstance(reached, Exception):
            reached = connectivity.Reach(error=str(reached))
        row.reach = reached
    opened = [row for row in rows if row.reach.port == connectivity.Port.OPEN]
    if not opened:
        return {}  # It would take seconds to import TensorFlow.
    probe = user_function.import_quietly("tfdist.cluster.probe")
    versions = user_function.import_quietly("tfdist.cluster.versions")
    # One after the other: together they would share the bandwidth.
    for row in opened:
        _measure(row, config, probe, versions, values)
    return versions.own()


def _measure(
    row: diagnosis.TaskDiagnosis,
    config: ClusterConfig,
    probe: Any,
    versions: Any,
    values: flags.FlagValues,
) -> None:
    timeout = values.timeout
    measure = functools.partial(
        probe.measure,
        row.address,
        row.job,
        row.index,
        timeout=timeout,
        size=int(values.bandwidth_mb * 1e6),
    )
    late = probe.ProbeError(f"no answer within {timeout:g} s")
    (result,) = connectivity.within(timeout + _MARGIN_SECONDS, [measure], late)
    if isinstance(result, probe.ProbeError):
        row.error = str(result)
    elif isinstance(result, Exception):
        raise result
    else:
        row.measured = result
        told = result.versions
        if told:
            row.different = versions.differences(told)
            row.is_other_cluster = versions.is_of_another_cluster(told, config)


def _serve(config: ClusterConfig, has_task: bool, seconds: float) -> int:
    if not has_task or config.address is None:
        raise usage.UsageError(
            'Flag --serve_seconds needs TF_CONFIG["task"], and its address '
            "in the cluster: where to serve."
        )
    # Here, because it imports TensorFlow; and with what that writes, because
    # importing it quietly would start a runtime without a server.
    from tfdist.cluster import bare_server

    # A platform ends it by SIGTERM, a person by Ctrl-C: both are fine.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        bare_server.serve(config, seconds)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        print(f"tfdist doctor: {error}", file=sys.stderr)
        return 1
    return 0
