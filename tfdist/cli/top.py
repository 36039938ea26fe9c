"""`tfdist top`: the workers of a cluster that runs, again and again."""

from collections.abc import Callable
from collections.abc import Sequence
import json
import os
import sys
import time

from absl import flags

from tfdist.cli import control_socket
from tfdist.cli import usage
from tfdist.cli import user_function
from tfdist.cli import worker_rates
from tfdist.cli.worker_rates import Reading
from tfdist.cluster import tf_config
from tfdist.cluster.step_figures import StepFigures

USAGE = """\
Shows the workers of a running cluster, and how fast they train. It changes
nothing there.

Usage: tfdist top [FLAGS...]

Examples: tfdist top                        # a `tfdist launch` on this machine
          tfdist top --ps=ps0.example:2222  # any cluster, by its first server
          TF_CONFIG=... tfdist top          # the same, by TF_CONFIG

Of a `tfdist launch` the launcher is asked, whatever the method. Of other
clusters the first parameter server is: of a cluster without servers only its
launcher knows.

Steps, and what is derived from them, are those of the worker's process since
it started. A worker that is told to run and says nothing for 5 s is silent.

The exit status is 0, or 130 after Ctrl-C; 1 if the cluster does not answer or
its launcher has ended, 2 for bad usage.
"""

_CLEAR = "\x1b[H\x1b[2J"
# A table for each group of workers.
_Groups = list[list[Reading]]


class NoAnswerError(Exception):
    """The cluster says nothing; the message says why."""


class EndedError(NoAnswerError):
    """The launcher has ended, and will not answer again."""


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    define = usage.Definer(values, __name__)
    define.list(
        "ps",
        None,
        "The addresses of the cluster's parameter servers, host:port, in the "
        "order of TF_CONFIG; the first one is asked.",
    )
    define.integer(
        "pid",
        None,
        "The process id of a `tfdist launch` on this machine; not needed where "
        "one runs.",
    )
    define.float("seconds", 2.0, "Time between two looks.")
    define.bool("once", False, "Look twice, print one table, and end.")
    define.float("timeout", 5.0, "Seconds for an answer of the server.")
    define.bool("help", False, "Show this.", short_name="h")
    return values


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `top`.

    Returns:
        The exit status.

    Raises:
        UsageError: if the arguments are wrong.
    """
    values = define_flags()
    rest = usage.parse(values, argv)
    if usage.shows_help(values, USAGE, __name__):
        return 0
    usage.refuse_arguments(rest)
    usage.check_positive(values, "seconds", "timeout")
    look = _source(values)
    before: list[dict[str, Reading]] | None = None
    while True:
        try:
            groups = look()
        except NoAnswerError as error:
            has_ended = isinstance(error, EndedError)
            if values.once or before is None or has_ended:
                print(f"tfdist top: {error}", file=sys.stderr)
                return 1
            _show(str(error))
        else:
            if before is not None and len(before) == len(groups):
                _show(_text(before, groups))
                if values.once:
                    return 0
            before = [{one.name: one for one in group} for group in groups]
        time.sleep(values.seconds)


def _source(values: flags.FlagValues) -> Callable[[], _Groups]:
    """Returns what reads the state of the cluster that is meant."""
    servers = values.ps or ()
    if values.ps is None and values.pid is None:
        servers = _servers_of_environment()
    if not servers:
        pid = control_socket.only_launcher(values.pid)
        return lambda: _ask_launcher(pid)
    usage.check(values.pid is None, "pid", "not be given with --ps", values.pid)
    for address in servers:
        usage.check(
            address.rpartition(":")[2].isdigit(),
            "ps",
            "be addresses, host:port",
            address,
        )
    # It imports TensorFlow.
    reader = user_function.import_quietly("tfdist.cluster.member_reader")
    return lambda: _ask_server(reader, servers[0], values.timeout)


def _servers_of_environment() -> Sequence[str]:
    try:
        cluster = tf_config.load(os.environ.get("TF_CONFIG", "")).get("cluster")
        if not cluster:
            return ()
        spec = tf_config.check_spec(cluster, tf_config.TF_CONFIG_NAMES)
    except tf_config.ClusterConfigError as error:
        raise usage.UsageError(str(error)) from error
    if "ps" not in spec:
        raise usage.UsageError(
            'TF_CONFIG["cluster"] must have a job "ps", whose first task is '
            "asked: of a cluster without servers only its `tfdist launch` "
            f"knows (--pid). Received: jobs {sorted(spec)}."
        )
    return spec["ps"]


def _ask_launcher(pid: int) -> _Groups:
    try:
        answer = json.loads(control_socket.ask(pid, {"status": True}))
    except control_socket.RefusedError as error:
        if pid in control_socket.launchers():
            raise NoAnswerError(str(error)) from error
        raise EndedError(f"The launcher {pid} has ended.") from error
    return [[_parsed(one) for one in group] for group in answer]


def _parsed(one: dict) -> Reading:
    figures = one.pop("figures")
    return Reading(**one, figures=figures and StepFigures(**figures))


def _ask_server(reader, address: str, timeout: float) -> _Groups:
    try:
        members = reader.read(address, timeout)
    except reader.ReadError as error:
        raise NoAnswerError(
            f"The parameter server at {address} does not answer: {error}"
        ) from error
    # An evaluator makes no steps.
    workers = [m for m in members if not m.name.startswith("/job:evaluator")]
    return [[_of_member(one) for one in workers]]


def _of_member(member) -> Reading:
    """Returns what the row of a worker in the table of members says."""
    job, _, task = member.name.removeprefix("/job:").partition("/task:")
    name, word, figures = f"{job} {task}", member.word, member.figures
    if member.state.name == "UNKNOWN":
        return Reading(name, "not seen yet", False)
    is_alive = member.state.name == "ALIVE"
    state = "runs" if is_alive else f"has {member.state.name.lower()}"
    if is_alive and member.silent_for > worker_rates.SILENT_SECONDS:
        is_alive, state = False, f"silent for {member.silent_for:.0f} s"
    idle = None
    if figures.idle_seconds >= 0:
        idle = member.silent_for + figures.idle_seconds
    return Reading(
        name,
        state,
        is_alive,
        figures,
        member.seen,
        idle,
        **worker_rates.place(word),
    )


def _text(before: Sequence[dict[str, Reading]], groups: _Groups) -> str:
    parts = []
    for number, (then, now) in enumerate(zip(before, groups, strict=True)):
        group = f"group {number}: " if len(groups) > 1 else ""
        parts.append(group + worker_rates.line(then, now))
        parts.append(worker_rates.table(then, now))
    return "\n".join(parts)


def _show(text: str) -> None:
    """Shows a text: on a terminal in the place of the one before."""
    print(f"{_CLEAR if sys.stdout.isatty() else ''}{text}", flush=True)
