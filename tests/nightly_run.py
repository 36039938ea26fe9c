"""All that `make test` leaves out, stage by stage, whatever fails.

    python -m tests.nightly_run [--stages=tests,chaos]

Each stage writes its output to a file of its own. Clusters wait half of their
time, so that two stages run side by side; benchmarks run alone. The run goes on
after a failure, ends with one table and a line of JSON, and exits with 1 if a
stage failed.
"""

from concurrent import futures
import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import time

from absl import app
from absl import flags

from tfdist import tables

_ROOT = pathlib.Path(__file__).parents[1]
_PYTEST = (
    "-m",
    "pytest",
    "--timeout=900",
    "--durations=50",
    "--hypothesis-profile=nightly",
)
# Name -> arguments of Python, and bound in minutes.
_STAGES = {
    "laws": (
        (
            *_PYTEST,
            "--numprocesses=2",
            "--dist=loadfile",
            "-m",
            "hypothesis and not nightly",
            "tests",
        ),
        60,
    ),
    "tests": ((*_PYTEST, "-m", "nightly", "tests"), 180),
    "keras_programs": (("-m", "tests.keras_programs.main"), 180),
    "chaos": (("-m", "tests.chaos.main", "--events=200"), 60),
    "chaos_without_servers": (("-m", "tests.chaos.without_servers"), 60),
    "keras_tests": (("-m", "tests.keras_own.main"), 60),
    **{
        f"benchmarks/{path.stem}": ((str(path), "--quick"), 10)
        for path in sorted(_ROOT.glob("benchmarks/*.py"))
    },
}
# Those of one list one after another, beside those of the other list.
_SIDE_BY_SIDE = (
    ("tests", "chaos", "chaos_without_servers"),
    ("laws", "keras_programs", "keras_tests"),
)
# Seconds that pytest has to print failures in, when its time is over.
_LAST_SECONDS = 60.0

_WANTED = flags.DEFINE_list(
    "stages", ["all"], f"`all`, or some of {', '.join(_STAGES)}."
)
_DIRECTORY = flags.DEFINE_string(
    "directory", "build/nightly", "Directory of the outputs."
)


@flags.validator(_WANTED, "must be `all` or name stages")
def _are_known(names):
    return set(names) <= {"all", *_STAGES}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of one stage.

    Attributes:
        status: exit status, or None if its bound ended it.
        seconds: how long it took.
        last: its last line of output.
    """

    status: int | None
    seconds: float
    last: str

    def __str__(self):
        if self.status is None:
            return "too long"
        return f"failed, {self.status}" if self.status else "passed"


def run(arguments, minutes, output):
    """Runs one stage.

    Args:
        arguments: of Python.
        minutes: after which it is ended.
        output: `pathlib.Path` of the file for what it prints.

    Returns:
        An `Outcome`.
    """
    began = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            status = None
            _end(process)
    lines = output.read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return Outcome(status, time.monotonic() - began, last.strip("= "))


def _end(process):
    """Ends a process, which may say first what it has found."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(argv):
    """Runs the stages that are asked for."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    # A shell has its background jobs, and what they start, ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = _ROOT / _DIRECTORY.value
    directory.mkdir(parents=True, exist_ok=True)
    wanted = set(_STAGES if "all" in _WANTED.value else _WANTED.value)
    outcomes = {}

    def run_all(names):
        for name in names:
            if name in wanted:
                output = directory / f"{name.replace('/', '_')}.log"
                print(f"{name}: {output}", flush=True)
                outcomes[name] = run(*_STAGES[name], output)

    with futures.ThreadPoolExecutor(len(_SIDE_BY_SIDE)) as pool:
        list(pool.map(run_all, _SIDE_BY_SIDE))
    run_all([name for name in _STAGES if name not in outcomes])
    return report(outcomes)


def report(outcomes):
    """Prints the table and the line of JSON; returns the exit status.

    Args:
        outcomes: by name of a stage, an `Outcome`.
    """
    minutes = {n: round(one.seconds / 60, 1) for n, one in outcomes.items()}
    rows = [
        [name, str(one), str(minutes[name]), one.last[:70]]
        for name, one in outcomes.items()
    ]
    titles = ["stage", "outcome", "minutes", "last line"]
    print("\n" + tables.aligned(titles, rows))
    failed = [name for name, one in outcomes.items() if one.status != 0]
    print(json.dumps({"failed": failed, "minutes": minutes}))
    return int(bool(failed))


if __name__ == "__main__":
    app.run(main)
