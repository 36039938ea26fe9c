"""All that `make test` leaves out, stage by stage, whatever fails.

    python -m tests.nightly_run [--stages=tests,chaos] [--resume]

Each stage writes its output to a file of its own. The run continues after a
failure, ends with one table and a line of JSON, and exits with 1 if a stage
failed.

Tests that need one process come first, two files at a time, and benchmarks come
last: each of these stages uses all processors and runs alone. In between,
stages with real clusters, which wait half of their time, run beside one process
that computes all the time.

After each stage, its outcome is added to `outcomes.json` beside the outputs,
with the commit; each test that passes, to a file of its stage. A run with
`--resume` keeps what passed on the same commit and runs all the rest, so a run
that was ended after some hours can continue. Files that are changed and not
committed belong to no commit: `--resume` refuses them, and a run with such
files records nothing.
"""

from concurrent import futures
import dataclasses
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
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
_TWO_FILES_AT_A_TIME = ("--numprocesses=2", "--dist=loadfile")
# Stage -> rooms with real processes, which run one test at a time, and the
# bound in minutes. `tests/in_process` has all other tests.
_WITH_PROCESSES = {
    "tests/servers": (("multi_process",), 240),
    "tests/chaos": (("chaos",), 30),
    "tests/without_servers": (
        (
            "all_reduce",
            "averaging/ring_programs_test.py",
            "peers",
            "sandblaster",
        ),
        90,
    ),
    "tests/programs": (
        (
            "benchmarks",
            "callbacks/cluster_monitor_test.py",
            "cli",
            "documents_test.py",
            "examples",
            "newcomer",
        ),
        60,
    ),
}
# Columns of the table of programs; each takes some minutes.
_COLUMNS = (
    "async",
    "bounded_staleness",
    "backup_workers",
    "dc_asgd",
    "dana",
    "downpour",
    "sync",
    "all_reduce",
    "softsync",
    "async_local_sgd",
    "parameter_averaging",
    "bmuf",
    "diloco",
    "parameter_averaging (ring)",
    "bmuf (ring)",
    "diloco (ring)",
    "easgd",
    "inverse_staleness",
    "gap_aware",
    "fasgd",
    "peer_to_peer",
    "gossip",
    "codistillation",
)
_PROGRAMS = {
    f"keras_programs/{column}": (
        ("-m", "tests.keras_programs.main", f"--columns={column}"),
        30,
    )
    for column in _COLUMNS
}
# Name -> arguments of Python, and bound in minutes.
_STAGES = {
    "laws": (
        (
            *_PYTEST,
            *_TWO_FILES_AT_A_TIME,
            "-m",
            "hypothesis and not nightly",
            "tests",
        ),
        60,
    ),
    "tests/in_process": (
        (
            *_PYTEST,
            *_TWO_FILES_AT_A_TIME,
            "-m",
            "nightly",
            "tests",
            *(
                f"--ignore=tests/{room}"
                for rooms, _ in _WITH_PROCESSES.values()
                for room in rooms
            ),
        ),
        120,
    ),
    **{
        name: (
            (*_PYTEST, "-m", "nightly", *(f"tests/{room}" for room in rooms)),
            minutes,
        )
        for name, (rooms, minutes) in _WITH_PROCESSES.items()
    },
    **_PROGRAMS,
    "chaos": (("-m", "tests.chaos.main", "--events=200"), 60),
    "chaos_without_servers": (("-m", "tests.chaos.without_servers"), 60),
    "keras_tests": (("-m", "tests.keras_own.main"), 60),
    **{
        f"benchmarks/{path.stem}": ((str(path), "--quick"), 10)
        for path in sorted(_ROOT.glob("benchmarks/*.py"))
    },
}
_FIRST = ("laws", "tests/in_process")
# Those of one list one after another, beside those of the other list.
_SIDE_BY_SIDE = (
    (*_WITH_PROCESSES, "chaos", "chaos_without_servers"),
    (*_PROGRAMS, "keras_tests"),
)
# What TensorFlow's C++ code logs when processes begin and end.
_OF_TENSORFLOW = re.compile(
    r"[IWEF]\d{4} |WARNING: All log messages before absl::InitializeLog"
)
# Seconds that pytest has to print failures in, when its time is over.
_LAST_SECONDS = 60.0

_WANTED = flags.DEFINE_list(
    "stages",
    ["all"],
    "`all`, or some of these, or what comes before the `/` of some: "
    f"{', '.join(_STAGES)}.",
)
_DIRECTORY = flags.DEFINE_string(
    "directory", "build/nightly", "Directory of the outputs."
)
_RESUME = flags.DEFINE_bool(
    "resume", False, "Keep what has passed on this commit."
)


def stages_of(names):
    """Returns the stages that `--stages` names, in the order of `_STAGES`."""
    return [
        stage
        for stage in _STAGES
        if {"all", stage, stage.partition("/")[0]} & set(names)
    ]


@flags.validator(_WANTED, "must be `all` or name stages")
def _are_known(names):
    return all(name == "all" or stages_of([name]) for name in names)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of one stage.

    Attributes:
        status: exit status, or None if its bound ended it.
        seconds: how long it took.
        last: its last line of output, without TensorFlow's log.
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
    last = next(
        (
            line
            for line in reversed(lines)
            if line.strip() and not _OF_TENSORFLOW.match(line)
        ),
        "",
    )
    return Outcome(status, time.monotonic() - began, last.strip("= "))


def _end(process):
    """Ends a process, which may say first what it has found."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def commit_of(root):
    """Returns the hash of the commit of a work tree.

    It is None if the tree has changes that are not committed, or is none of
    git's.

    Args:
        root: `pathlib.Path` of the tree.
    """

    def git(*arguments):
        return subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )

    try:
        head, status = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except FileNotFoundError:
        return None
    clean = not (head.returncode or status.returncode or status.stdout)
    return head.stdout.strip() if clean else None


class Record:
    """A file with the stages that have passed on one commit.

    Attributes:
        commit: its hash, or None if the work tree has changes.
        passed: by name of a stage, an `Outcome`.
    """

    def __init__(self, path, root):
        """Reads what has passed on the commit of the work tree.

        Args:
            path: `pathlib.Path` of the file.
            root: `pathlib.Path` of the work tree.
        """
        self._path, self._root = path, root
        self._lock = threading.Lock()
        self.commit = commit_of(root)
        self.passed = {}
        if self.commit and path.exists():
            found = json.loads(path.read_text("utf-8"))
            if found["commit"] == self.commit:
                self.passed = {
                    name: Outcome(**fields)
                    for name, fields in found["passed"].items()
                }

    def add(self, name, outcome):
        """Adds an outcome, in place of an earlier one.

        Nothing is written of a stage that may have seen other files than those
        of the commit.
        """
        with self._lock:
            if not self.commit or commit_of(self._root) != self.commit:
                return
            self.passed.pop(name, None)
            if outcome.status == 0:
                self.passed[name] = outcome
            passed = {n: dataclasses.asdict(o) for n, o in self.passed.items()}
            draft = self._path.with_suffix(".draft")
            content = {"commit": self.commit, "passed": passed}
            draft.write_text(json.dumps(content, indent=1), "utf-8")
            draft.rename(self._path)


def kept(record, wanted):
    """Returns what `--resume` keeps: outcomes by name of a stage.

    Args:
        record: a `Record`.
        wanted: names of the stages that are asked for.

    Raises:
        app.UsageError: The work tree has changes.
    """
    if record.commit is None:
        raise app.UsageError(
            "--resume needs a git work tree without changes and new files: "
            "outcomes are those of a commit. See `git status`."
        )
    outcomes = {n: o for n, o in record.passed.items() if n in wanted}
    said = ", ".join(outcomes) or "no stage"
    print(f"Passed before on commit {record.commit}: {said}", flush=True)
    return outcomes


def with_tests_left_out(arguments, commit, log, resume):
    """Returns arguments of Python by which pytest goes on with a stage.

    Args:
        arguments: of a stage.
        commit: as of `Record`; without one nothing is left out.
        log: `pathlib.Path` of the stage's output, beside which the file is of
            tests that have passed.
        resume: whether to keep that file.
    """
    if arguments[: len(_PYTEST)] != _PYTEST or commit is None:
        return arguments
    path = log.with_suffix(f".{commit}.passed")
    if not resume:
        path.unlink(missing_ok=True)
    return (*_PYTEST, f"--passed_before={path}", *arguments[len(_PYTEST) :])


def main(argv):
    """Runs the stages that are asked for."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    # A shell has its background jobs, and what they start, ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = _ROOT / _DIRECTORY.value
    directory.mkdir(parents=True, exist_ok=True)
    record = Record(directory / "outcomes.json", _ROOT)
    wanted = stages_of(_WANTED.value)
    outcomes = kept(record, wanted) if _RESUME.value else {}

    def run_all(names):
        for name in names:
            if name in wanted and name not in outcomes:
                output = directory / f"{name.replace('/', '_')}.log"
                print(f"{name}: {output}", flush=True)
                arguments, minutes = _STAGES[name]
                arguments = with_tests_left_out(
                    arguments, record.commit, output, _RESUME.value
                )
                outcomes[name] = run(arguments, minutes, output)
                if commit_of(_ROOT) != record.commit:
                    # Some may have passed on other files.
                    for path in directory.glob(f"{output.stem}.*.passed"):
                        path.unlink()
                record.add(name, outcomes[name])

    run_all(_FIRST)
    with futures.ThreadPoolExecutor(len(_SIDE_BY_SIDE)) as pool:
        list(pool.map(run_all, _SIDE_BY_SIDE))
    run_all(_STAGES)
    return report({name: outcomes[name] for name in wanted})


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
