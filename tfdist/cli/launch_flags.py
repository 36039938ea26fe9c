"""Flags of `tfdist launch`, what they mean together, and its command."""

from collections.abc import Sequence
import math
import pathlib
import re
import sys

from absl import flags

from tfdist.cli import isolation
from tfdist.cli import usage

USAGE = """\
Runs a script as every task of a cluster on this machine, with TF_CONFIG set,
or as every task of several such clusters, the groups of a codistillation.

Usage: tfdist launch [FLAGS...] SCRIPT [--] [ARGUMENTS OF THE SCRIPT...]
       tfdist launch [FLAGS...] --module=MODULE -- [ARGUMENTS...]

Example: tfdist launch --num_ps=1 --num_workers=2 train.py -- --epochs=3

Shown is what the chief writes, and the warnings and errors of all tasks: of
other tasks tracebacks, standard error but for lines marked INFO or DEBUG and
progress bars, and what standard output marks as a warning or an error. All
output is in files, which the last line of a run that fails names, with the
task that failed first, its error, and the place in your code.

A task that dies is started again, --max_restarts times. Workers of a method
that does not wait (AsyncStrategy) go on meanwhile. Those of one that waits
for all (Sync without backup workers) go on when the worker is back or has been
silent for `worker_timeout` (10 s). Workers without servers (AllReduceStrategy)
all begin again, from their checkpoint.

One Ctrl-C ends all tasks after their step: the chief's ClusterCheckpoint saves,
servers end last. Workers without servers end at once. A second one, half a
second later or more, ends all at once.

The exit status is 0 when all tasks succeed, else that of the first task that
failed (128 + n where signal n ended it), 128 + n when signal n ended the
launcher, 124 when --timeout is over, 2 for bad usage.
"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    define = usage.Definer(values, __name__)
    define.integer(
        "num_ps",
        1,
        "Parameter servers; 0 for one worker, or for several with "
        "AllReduceStrategy, PeerToPeerStrategy, GossipStrategy, or "
        'communication="ring".',
    )
    define.integer("num_workers", 2, "Workers, not counting the chief.")
    define.integer(
        "max_workers",
        None,
        "Workers that there may be at most, where `tfdist scale` adds some "
        "while the cluster runs; default: --num_workers.",
    )
    define.bool(
        "chief",
        False,
        "Start a chief as well. Without one, worker 0 is the chief.",
    )
    define.bool("evaluator", False, "Start an evaluator.")
    define.integer(
        "helpers_per_worker",
        0,
        "Helpers of each worker, the chief included: tasks that hold layers of "
        'its model, on devices such as "helper:0/CPU:0".',
    )
    define.integer(
        "num_groups",
        1,
        "Groups that codistil: with more than one, each is a cluster of its "
        "own, of all these tasks, which goes on when another one fails.",
    )
    define.string(
        "module",
        None,
        "Run this module, as `python -m` does, instead of a script.",
        short_name="m",
    )
    define.string(
        "log_dir",
        None,
        "A directory for the output of each task as a file (worker-0.log, "
        "or group-1-worker-0.log where there are groups). Default: a "
        "temporary one, which stays when the run fails.",
    )
    define.string(
        "show",
        "chief",
        "Whose output is shown beside everybody's warnings and errors: "
        "chief, all, or tasks, as worker:1 or chief,ps:0.",
    )
    define.bool(
        "verbose",
        False,
        "Show also what TensorFlow's C++ libraries say about themselves; so "
        "does TF_CPP_MIN_LOG_LEVEL=0 or 1, by which they say more.",
    )
    define.integer(
        "max_restarts",
        3,
        "How often each task that fails is started again: after half a "
        "second, and after twice as long each further time. After its last "
        "restart the others go on without a worker that is not the chief, if "
        "parameters are on servers; without the chief, a server or a helper "
        "the run ends. Mistakes of the program (a TypeError, a ValueError, a "
        "failed import) are not started again.",
    )
    define.bool(
        "fail_fast",
        False,
        "Start nothing again: the first task that fails ends the run.",
    )
    define.float(
        "snapshot_seconds",
        10.0,
        "Parameter servers write what they hold (parameters, optimizer state) "
        "to a temporary directory, so often where there is anything new, and "
        "at most a twentieth of the time; the last two are kept until the run "
        "ends. One that dies goes on from its last. 0 for none. Where the "
        "program has a snapshot_dir, that counts.",
    )
    define.float(
        "grace_seconds",
        10.0,
        "How long tasks may end by themselves after the first failure, and "
        "servers after the end of the training.",
    )
    define.float(
        "terminate_seconds",
        15.0,
        "How long tasks have between SIGTERM and SIGKILL. Workers get it "
        "first, and end after their step; servers when these have ended, or "
        "after three quarters of that time.",
    )
    define.float(
        "leave_seconds",
        30.0,
        "How long a worker that `tfdist scale` takes away has between SIGTERM "
        "and SIGKILL.",
    )
    define.float("timeout", 0.0, "Seconds for the whole run; 0 for no limit.")
    define.float(
        "status_seconds",
        None,
        "How often a line says how the workers get on: who runs, steps per "
        "second, staleness, bytes, who waits; 0 for never. Default: 10 on a "
        "terminal, else 0.",
    )
    define.multi_string(
        "env",
        [],
        "NAME=VALUE for the environment of every task; may be repeated.",
    )
    define.enum(
        "isolate",
        "auto",
        isolation.WAYS,
        "How other machines are kept from the tasks' ports, which TensorFlow "
        "opens to everybody: auto, by a rule of the firewall where the "
        "launcher may make one, else there is a warning; always, by a "
        "network of the cluster's own, in which the tasks have no other "
        "network either; never, not at all.",
    )
    define.string(
        "color",
        "auto",
        "Colours: always, never, or auto (on a terminal, unless NO_COLOR is "
        "set).",
    )
    define.bool("help", False, "Show this.", short_name="h")
    return values


def check_flags(values: flags.FlagValues) -> None:
    """Refuses values that mean nothing, alone or together."""
    for name in (
        "num_ps",
        "num_workers",
        "helpers_per_worker",
        "max_restarts",
    ):
        usage.check(
            values[name].value >= 0, name, "be at least 0", values[name].value
        )
    usage.check(
        values.num_groups >= 1, "num_groups", "be at least 1", values.num_groups
    )
    seconds = (
        "grace_seconds",
        "terminate_seconds",
        "leave_seconds",
        "snapshot_seconds",
        "status_seconds",
        "timeout",
    )
    for name in seconds:
        value = values[name].value
        usage.check(
            value is None or math.isfinite(value) and value >= 0,
            name,
            "be at least 0",
            value,
        )
    usage.check(
        values.color in ("auto", "always", "never"),
        "color",
        "be auto, always or never",
        values.color,
    )
    workers = values.num_workers + values.chief
    usage.check(
        workers >= 1,
        "num_workers",
        "be at least 1 unless there is a --chief",
        values.num_workers,
    )
    capacity = values.max_workers
    usage.check(
        capacity is None or capacity >= values.num_workers,
        "max_workers",
        f"be at least --num_workers={values.num_workers}",
        capacity,
    )
    usage.check(
        capacity is None or capacity == values.num_workers or values.num_ps,
        "max_workers",
        "be --num_workers without parameter servers: nobody can join then",
        capacity,
    )
    usage.check(
        values.num_ps >= 1 or not values.evaluator,
        "num_ps",
        "be at least 1 with --evaluator, which reads the parameters from "
        "the servers",
        values.num_ps,
    )
    helpers = values.helpers_per_worker
    usage.check(
        not helpers or values.num_ps and not values.evaluator,
        "helpers_per_worker",
        "be 0 without parameter servers, and with an evaluator, which has no "
        "helpers for its model",
        helpers,
    )
    usage.check(
        not helpers or capacity in (None, values.num_workers),
        "helpers_per_worker",
        "be 0 with --max_workers: workers that join later have none",
        helpers,
    )


def command(values: flags.FlagValues, rest: Sequence[str]) -> list[str]:
    """Returns the command that every task runs."""
    if values.module is not None:
        parts = values.module.split(".")
        usage.check(
            all(part.isidentifier() for part in parts),
            "module",
            "be the name of a module, as package.module",
            values.module,
        )
        return [sys.executable, "-m", values.module, *rest]
    if not rest:
        raise usage.UsageError(
            "SCRIPT is missing: name the script to run, or a module by "
            "--module."
        )
    script, arguments = rest[0], list(rest[1:])
    if not pathlib.Path(script).is_file():
        problem = (
            "is a directory"
            if pathlib.Path(script).is_dir()
            else ("does not exist")
        )
        raise usage.UsageError(
            f"SCRIPT must be a file. Received: {script!r}, which {problem}."
        )
    if "--" in arguments:
        before = arguments[: arguments.index("--")]
        if before:
            raise usage.UsageError(
                "Nothing may stand between SCRIPT and `--`: flags of the "
                "launcher go before SCRIPT, arguments of the script after "
                f"`--`. Received: {' '.join(before)}."
            )
        arguments = arguments[1:]
    else:
        _refuse_own_flags(values, script, arguments)
    return [sys.executable, script, *arguments]


def _refuse_own_flags(
    values: flags.FlagValues, script: str, arguments: Sequence[str]
) -> None:
    """Refuses what may be meant for the launcher, or for the script."""
    for argument in arguments:
        name = argument.split("=")[0]
        plain = name.lstrip("-")
        own = plain in values or plain.removeprefix("no") in values
        if name.startswith("-") and own:
            raise usage.UsageError(
                f"{name} after SCRIPT is a flag of the launcher as well. Put "
                f"it before SCRIPT, or, if it is meant for the script, "
                f"write `{pathlib.Path(script).name} -- {argument}`."
            )


def extra_environment(assignments: Sequence[str]) -> dict[str, str]:
    """Returns what `--env` says."""
    extra = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        usage.check(
            bool(equals) and _VARIABLE.fullmatch(name) is not None,
            "env",
            "be NAME=VALUE",
            assignment,
        )
        usage.check(
            name != "TF_CONFIG",
            "env",
            "not set TF_CONFIG, which the launcher sets for each task",
            assignment,
        )
        extra[name] = value
    return extra
