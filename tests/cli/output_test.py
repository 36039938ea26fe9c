"""Streams that nobody reads any more, or whose disk is full."""

import os
import signal
import subprocess
import sys

import pytest

from tests import waits
from tests.cli.launched import ROOT
from tests.cli.launched import Launched
from tests.cli.launched import assert_gone
from tests.waits import wait_for_exit
from tfdist.cli import output

# Far more than a stream keeps for a slow reader.
MUCH = b"x" * 1_000_000


def test_a_full_disk_costs_lines_and_is_said_once():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = output.OutputStream(descriptor, "never")
    notes = []
    for _ in range(3):
        stream.write_line("worker 0", None, b"a line")
        notes.append(stream.flush())
        assert not stream.is_pending and not stream.is_broken
    os.close(descriptor)
    assert notes == [
        "lines of standard error are lost: No space left on device",
        None,
        None,
    ]


def test_a_stream_that_nobody_reads_keeps_nothing():
    """Else the launcher would never sleep, and read no task any more."""
    reader, writer = os.pipe()
    stream = output.OutputStream(writer, "never")
    os.close(reader)
    stream.write_line("worker 0", None, b"a line")
    stream.flush()
    assert stream.is_broken
    stream.write_line("worker 0", None, MUCH)
    os.close(writer)
    assert not stream.is_pending and not stream.is_full


@pytest.mark.nightly
@pytest.mark.parametrize("is_error_full", [False, True])
def test_a_full_disk_does_not_end_the_run(script, is_error_full):
    path = script(
        """
        for _ in range(10):
            print("a line", flush=True)
        (tmp / "trained").touch()
        """
    )
    flags = ["--num_ps=0", "--num_workers=1"]
    with open("/dev/full", "wb") as full:
        done = waits.run(
            [sys.executable, "-m", "tfdist", "launch", *flags, path],
            stdout=full,
            stderr=full if is_error_full else subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 0, done.stderr
    assert (path.parent / "trained").exists()
    if not is_error_full:
        text = done.stderr.decode()
        assert text.count("lines of standard output are lost: No space") == 1
        assert "worker 0 is done" in text


@pytest.mark.nightly
def test_a_task_that_prints_much_can_end_when_nobody_reads(script):
    """Were it not read, it could not write its last words, and end."""
    path = script(
        """
        def leave(*_):
            os.write(1, b"last words\\n" * 100_000)
            (tmp / "left").touch()
            os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        while True:
            print("more" * 1000)
        """
    )
    reader, writer = os.pipe()
    flags = ["--num_ps=0", "--num_workers=1", "--terminate_seconds=1000"]
    with Launched(*flags, path, stdout=writer) as run:
        os.close(writer)
        while b"moremore" not in os.read(reader, 1 << 16):
            pass
        everything = run.descendants()
        os.close(reader)
        assert wait_for_exit(run.process) == 128 + signal.SIGPIPE
        assert_gone(everything)
    assert (path.parent / "left").exists()
