"""What is found out from the last words of programs that really failed."""

import os
import pathlib
import subprocess
import sys
import textwrap
import types

import pytest
import tensorflow as tf

from tests import nightly
from tests import waits
from tfdist.cli import failure
from tfdist.cli import run_report

# What a program does -> its error and place; {} is its file.
FAILURES = {
    "exception": (
        """
        def load(shard):
            raise RuntimeError(f"bad shard {shard}")
        load(17)
        """,
        "RuntimeError: bad shard 17 ({}:3, in load)",
    ),
    "in a library": (
        """
        import json
        json.loads("{")
        """,
        "json.decoder.JSONDecodeError: Expecting property name enclosed in "
        "double quotes: line 1 column 2 (char 1) ({}:3, in <module>)",
    ),
    "chained": (
        """
        try:
            {}["key"]
        except KeyError:
            raise ValueError("no key")
        """,
        "ValueError: no key ({}:5, in <module>)",
    ),
    "group": (
        """
        def fail():
            raise ValueError("in a task")
        try:
            fail()
        except ValueError as error:
            raise ExceptionGroup("several", [error])
        """,
        "ValueError: in a task ({}:3, in fail)",
    ),
    "several lines": (
        'raise ValueError("Exception encountered when calling Sequential."'
        '"call().\\n\\nInput 0 is wrong.\\n\\nArguments: none")',
        "ValueError: Exception encountered when calling Sequential.call(). "
        "Input 0 is wrong. ({}:1, in <module>)",
    ),
    "in a tf.function": (
        """
        import tensorflow as tf
        @tf.function
        def step(shard):
            if shard:
                raise RuntimeError(f"bad shard {shard}")
        step(17)
        """,
        "RuntimeError: bad shard 17 ({}:6, in step)",
    ),
    "of its own class in a tf.function": (
        """
        import tensorflow as tf
        class ShardError(Exception):
            pass
        @tf.function
        def step(shard):
            if shard:
                raise ShardError(f"bad shard {shard}")
        step(17)
        """,
        "ShardError: bad shard 17 ({}:8, in step)",
    ),
    "logs afterwards": (
        """
        import atexit, sys
        atexit.register(print, "WARNING:absl:late", file=sys.stderr)
        raise RuntimeError("early")
        """,
        "RuntimeError: early ({}:4, in <module>)",
    ),
    "errors that end nothing": (
        """
        import atexit, ctypes, threading
        class Late:
            def __del__(self):
                try:
                    {}["key"]
                except KeyError:
                    raise ValueError("in __del__")
        late = Late()
        def fail():
            raise TypeError("in a thread")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        atexit.register(fail)
        atexit.register(ctypes.CFUNCTYPE(None)(fail))
        raise OSError("no space")
        """,
        "OSError: no space ({}:17, in <module>)",
    ),
    "an error after one of a thread": (
        """
        import threading
        def fail():
            raise TypeError("in a thread")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        fail()
        """,
        "TypeError: in a thread ({}:4, in fail)",
    ),
    "own status": (
        """
        import sys, traceback
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
            sys.exit(3)
        """,
        "ZeroDivisionError: division by zero ({}:4, in <module>)",
    ),
    "another error before": (
        """
        import sys, traceback
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
        print("ERROR:root:gave up", file=sys.stderr)
        sys.exit(3)
        """,
        "its last line was: ERROR:root:gave up",
    ),
    "message": ("raise SystemExit('no data')", "its last line was: no data"),
    "status alone": ("raise SystemExit(3)", None),
    "fault": (
        """
        import ctypes
        def read():
            ctypes.string_at(0)
        read()
        """,
        "Fatal Python error: Segmentation fault ({}:4, in read)",
    ),
    "stacks before": (
        """
        import faulthandler
        def look():
            faulthandler.dump_traceback()
        look()
        def fail():
            raise ValueError("later")
        fail()
        """,
        "ValueError: later ({}:7, in fail)",
    ),
    "check of C++": (
        """
        import os, sys, threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        print(
            "F0000 00:00:1795375278.952118 77 a.cc:12] Check failed: x == y",
            file=sys.stderr,
        )
        os.abort()
        """,
        "a.cc:12] Check failed: x == y ({}:8, in <module>)",
    ),
    "kill": (
        """
        import os, signal, traceback
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        None,
    ),
}
# Another start would not help: what a program does -> its error and place.
IMPORTS = {
    "syntax": ("def f(:\n    pass", "SyntaxError: invalid syntax ({}:1)"),
    "syntax elsewhere": ("import broken", "SyntaxError: '(' was never closed "),
    "no module": (
        "import no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module' "
        "({}:1, in <module>)",
    ),
    "no name": ("from json import nothing", "ImportError: cannot import name"),
}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Places are relative to the working directory."""
    monkeypatch.chdir(tmp_path)


# They import TensorFlow.
SLOW = ["in a tf.function", "of its own class in a tf.function"]


def cause_of(program, *arguments):
    pathlib.Path("broken.py").write_text("print(\n")
    pathlib.Path("program.py").write_text(textwrap.dedent(program))
    done = waits.run(
        [sys.executable, *(arguments or ["program.py"])],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    status = done.returncode
    reader = failure.ErrorReader()
    for line in done.stderr.splitlines():
        reader.read(line)
    return reader.cause(status if status >= 0 else 128 - status)


@pytest.mark.parametrize(
    "name",
    nightly.also([name for name in FAILURES if name not in SLOW], SLOW),
)
def test_the_error_and_its_place_are_found(name):
    if name == "group" and sys.version_info < (3, 11):
        pytest.skip("exception groups are there from Python 3.11 on")
    program, expected = FAILURES[name]
    cause = cause_of(program)
    if expected is None:
        assert cause is None
        return
    assert str(cause) == expected.replace("{}", "program.py")


@pytest.mark.parametrize("name", IMPORTS)
def test_what_cannot_be_imported_is_final(name):
    program, expected = IMPORTS[name]
    cause = cause_of(program)
    assert str(cause).startswith(expected.replace("{}", "program.py"))
    assert cause.is_final


@pytest.mark.parametrize(
    "statement, is_final",
    [
        ("None.learn", True),
        ("int('x')", True),
        ("open('no/such/file')", False),
        ("raise RuntimeError('too hot')", False),
    ],
)
def test_mistakes_of_the_program_are_final(statement, is_final):
    assert cause_of(statement).is_final == is_final


@pytest.mark.parametrize(
    "statement", nightly.also(["tf.function(stop)()"], ["stop()"])
)
def test_what_tfdist_refuses_is_final(statement):
    cause = cause_of(f"""
        import tensorflow as tf
        from tfdist.program_error import ProgramError
        def stop():
            if True:
                raise ProgramError("not so")
        {statement}
        """)
    assert cause.error.endswith("ProgramError: not so")
    assert cause.place == "program.py:6, in stop"
    assert cause.is_final


def test_a_module_that_is_not_there_is_final():
    cause = cause_of("", "-m", "no_such_module")
    assert str(cause) == "ImportError: No module named no_such_module"
    assert cause.is_final


def test_lines_of_errors_are_told_from_others():
    reader = failure.ErrorReader()
    lines = [
        (b"Epoch 1/2", False),
        (b"Traceback (most recent call last):", True),
        (b'  File "a.py", line 1, in <module>', True),
        (b"    1 / 0", True),
        (b"ZeroDivisionError: division by zero", True),
        (b"INFO:root:goes on", False),
    ]
    for line, is_part in lines:
        assert reader.read(line) == is_part, line


def test_marks_below_a_line_of_source_are_no_error():
    reader = failure.ErrorReader()
    for line in (
        b"Traceback (most recent call last):",
        b'  File "a.py", line 1, in <module>',
        b"    load(17)",
        # So it was seen of Python 3.11, and for no simple program.
        b"^^^^^^^^",
        b'  File "a.py", line 2, in load',
        b"    shards[17] + 1",
        b"    ~~~~~~^^^^",
        b"IndexError: list index out of range",
    ):
        assert reader.read(line), line
    assert reader.cause(1).error == "IndexError: list index out of range"


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_an_error_of_long_ago_was_caught(monkeypatch, seconds, logs):
    """One that ends a program may be followed by what others log then."""
    times = [0.0]
    monkeypatch.setattr(failure.time, "monotonic", lambda: times[0])
    reader = failure.ErrorReader()
    for line in (
        b"Traceback (most recent call last):",
        b'  File "train.py", line 7, in <module>',
        b"ValueError: no such shard",
    ):
        reader.read(line)
    if logs:
        reader.read(b"W0101 10:00:00.000000    1 data.py:5] Goes on.")
    times[0] = seconds
    reader.read(b"lost the mount")
    cause = reader.cause(1)
    if seconds:
        assert cause.error == "its last line was: lost the mount"
        assert not cause.is_final
    else:
        assert cause.error == "ValueError: no such shard"


def test_an_error_is_placed_though_the_directory_is_gone(tmp_path, monkeypatch):
    """A cleanup or a new checkout may remove that of the launcher."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    reader = failure.ErrorReader()
    for line in (
        b"Traceback (most recent call last):",
        b'  File "/tmp/train.py", line 7, in load',
        b"OSError: no space",
    ):
        reader.read(line)
    assert reader.cause(1).place == "/tmp/train.py:7, in load"


def test_what_is_no_utf_8_ends_no_launcher():
    reader = failure.ErrorReader()
    for line in (
        b"Traceback (most recent call last):",
        b'  File "caf\xe9.py", line 1, in caf\xe9',
        b"OSError: caf\xe9",
    ):
        reader.read(line)
    lines = []
    err = types.SimpleNamespace(write_line=lambda *line: lines.append(line))
    run_report.RunReport(err).fail(1, str(reader.cause(1)))
    expected = "OSError: caf\ufffd (caf\udce9.py:1, in caf\ufffd)"
    assert lines == [
        ("tfdist", None, expected.encode("utf-8", "surrogateescape"))
    ]
    assert failure.message_of(OSError("caf\udce9")) == "caf?"


def test_files_that_autograph_generates_are_not_the_users():
    generated = tf.autograph.to_graph(lambda: 1).__code__.co_filename
    assert not failure._is_own(generated)
    assert failure._is_own("/tmp/train.py")


def test_a_long_message_is_cut():
    reader = failure.ErrorReader()
    reader.read(b"Traceback (most recent call last):")
    reader.read(b"ValueError: " + b"x" * 1000)
    assert len(str(reader.cause(1))) == 300
    assert str(reader.cause(1)).endswith("x ...")


@pytest.mark.parametrize(
    ("message", "is_of_another"),
    [
        (
            "/job:worker/task:1 at localhost:1 is gone: training without "
            "servers cannot go on without it.",
            True,
        ),
        (
            "Workers /job:worker/task:0 listen, and do not answer as workers "
            "of this cluster do.",
            True,
        ),
        (
            "Helper /job:helper/task:0 at localhost:1 is gone, and a worker "
            "cannot go on without its helper. /job:worker/task:0 ends.",
            True,
        ),
        ("The server at localhost:1 is gone.", False),
    ],
)
def test_the_failure_of_another_worker_is_known(message, is_of_another):
    reader = failure.ErrorReader()
    for line in (
        b"Traceback (most recent call last):",
        b'  File "train.py", line 1, in <module>',
        b"RuntimeError: " + message.encode(),
    ):
        reader.read(line)
    assert reader.cause(1).is_of_another == is_of_another
