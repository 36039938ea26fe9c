"""Whose lines are shown, and which."""

import re

import pytest

from tests.cli.launched import Launched
from tfdist.cli import log_levels
from tfdist.cli.line_assembler import Redrawn
from tfdist.cli.log_levels import Level
from tfdist.cli.shown_output import LineFilter

CHATTER = (
    b"I1122 23:26:33.548475 77 dataset_info.py:711] Load dataset info from /d",
    b"I1122 23:26:33.561557 77 reader.py:262] Creating a tf.data.Dataset "
    b"reading 1 files located in folders: /d.",
    b"WARNING: All log messages before absl::InitializeLog() is called are "
    b"written to STDERR",
    b"I0000 00:00:1795375278.952118   11420 port.cc:153] oneDNN custom "
    b"operations are on.",
    b"2026-11-22 19:20:32.123456: I tensorflow/core/platform/cpu_feature_"
    b"guard.cc:210] This TensorFlow binary is optimized",
    b"E0000 00:00:1795375285.232362   11420 cuda_platform.cc:52] failed call "
    b"to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR "
    b"(303)",
    b"2024-11-22 19:20:32.1: E external/local_xla/xla/stream_executor/cuda/"
    b"cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to",
    b"WARNING:absl:/job:ps/task:0 serves on port 41045 of every network "
    b"interface, without authentication or encryption: keep it in a private "
    b"network.",
    b"WARNING:absl:Variant folder /data/digits/1.0.0 has no dataset_info.json",
    b"Generating train examples...: 0 examples [00:00, ? examples/s]",
    b"Shuffling /data/digits-[0-9]...:   0%|          | 0/360 [00:00<?, ? ",
    b" " * 60,
)
LEVELS = {
    b"INFO:root:x": Level.INFO,
    b"DEBUG:absl:x": Level.INFO,
    b"I1122 19:20:32.123456 77 train.py:12] x": Level.INFO,
    b"I1122 19:20:32.123456 77 reader.py:12] Loading my data": Level.INFO,
    b"2026-11-22 12:00:00,123 - name - INFO - x": Level.INFO,
    b"[INFO] x": Level.INFO,
    b"[2026-11-22 12:00:00] WARNING x": Level.WARNING,
    b"WARNING:tensorflow:5 out of the last 5 calls": Level.WARNING,
    b"W1122 19:20:32.123456 77 train.py:12] x": Level.WARNING,
    b"W0000 00:00:1795375285.2 77 cpu_allocator.cc:83] Allocation": (
        Level.WARNING
    ),
    b"E0000 00:00:1795375285.2 77 cuda_platform.cc:52] failed call to cuInit: "
    b"CUDA_ERROR_NO_DEVICE": Level.ERROR,
    b"CRITICAL:root:x": Level.ERROR,
    b"train.py:3: UserWarning: x": None,
    b"Informal": None,
    b"Epoch 1/2": None,
    b"Generating train examples...: 70 examples [00:05, 14 examples/s]": None,
    b" ": None,
}


@pytest.mark.parametrize("line", CHATTER)
def test_chatter_is_shown_only_if_asked_for(line):
    given = {"is_error": True, "in_traceback": False}
    for shows_all in (True, False):
        assert not LineFilter(shows_all, is_verbose=False).shows(line, **given)
    assert LineFilter(True, is_verbose=True).shows(line, **given)


@pytest.mark.parametrize("line", LEVELS)
def test_lines_of_others_are_told_apart(line):
    level = LEVELS[line]
    assert log_levels.level_of(line) == level
    assert not log_levels.is_chatter(line)
    others = LineFilter(shows_all=False, is_verbose=False)

    def shows(is_error, line=line):
        return others.shows(line, is_error=is_error, in_traceback=False)

    is_bad = level is not None and level >= Level.WARNING
    assert shows(is_error=False) == is_bad
    assert shows(is_error=True) == (is_bad or level is None)
    assert not shows(is_error=True, line=Redrawn(b"50%|##  |"))
    # After SIGTERM of the launcher: what else should it say than that?
    others.is_ending = True
    assert shows(is_error=True) == (level == Level.ERROR)
    assert others.shows(line, is_error=True, in_traceback=True)
    everything = LineFilter(shows_all=True, is_verbose=False)
    assert everything.shows(line, is_error=False, in_traceback=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flags, whole",
    [
        (["--chief"], {"chief 0"}),
        (["--show=ps:0,chief"], {"ps 0", "worker 0"}),
        (["--show=all"], {"ps 0", "worker 0", "worker 1"}),
    ],
)
def test_a_user_says_whose_output_is_shown(script, flags, whole):
    path = script(
        """
        print("progress")
        print("INFO:root:info", file=sys.stderr)
        print("WARNING:root:warning", file=sys.stderr)
        print("unmarked", file=sys.stderr)
        """
    )
    with Launched("--show=chief", *flags, path) as run:
        status, text = run.finish()
    assert status == 0, text

    def who(line):
        return set(re.findall(rf"(?m)^\[(\w+ \d)\] {line}$", text))

    everybody = {"ps 0", "worker 0", "worker 1"} | whole
    assert who("progress") == who("INFO:root:info") == whole
    assert who("WARNING:root:warning") == who("unmarked") == everybody


@pytest.mark.nightly
def test_tracebacks_of_others_are_shown_whole(script):
    path = script(
        """
        if index == 1:
            import traceback
            try:
                int("x")
            except ValueError:
                traceback.print_exc(file=sys.stdout)
            print("goes on")
        """
    )
    with Launched("--show=chief", "--num_ps=0", path) as run:
        status, text = run.finish()
    assert status == 0, text
    shown = re.findall(r"(?m)^\[worker 1\] (.*)$", text)
    assert shown[0] == "Traceback (most recent call last):"
    assert shown[-1].startswith("ValueError: invalid literal for int()")
    assert 'int("x")' in shown[2]


@pytest.mark.nightly
def test_tensorflow_is_quiet_in_launched_tasks(script, tmp_path):
    path = script(
        """
        import tensorflow as tf
        tf.config.list_logical_devices()
        print("ready")
        """
    )
    flags = ["--num_ps=0", "--num_workers=1", f"--log_dir={tmp_path}"]
    with Launched(*flags, path) as run:
        status, text = run.finish()
    assert status == 0, text
    shown = [line for line in text.splitlines() if "[tfdist]" not in line]
    assert shown == ["[worker 0] ready"]
    log = (tmp_path / "worker-0.log").read_bytes().splitlines()
    log.remove(b"ready")
    # There was something to be quiet about.
    assert log and all(map(log_levels.is_chatter, log)), log


@pytest.mark.nightly
def test_warnings_of_others_that_are_told_to_end_are_not_shown(script):
    path = script(
        """
        def leave(number, frame):
            print("WARNING:root:leaving", file=sys.stderr)
            print("ERROR:root:lost", file=sys.stderr, flush=True)
            os._exit(0)
        if index == 1:
            signal.signal(signal.SIGTERM, leave)
            (tmp / "ready").touch()
            forever()
        wait_for("ready")
        sys.exit(1)
        """
    )
    flags = ["--show=chief", "--num_ps=0", "--grace_seconds=0"]
    with Launched(*flags, path) as run:
        status, text = run.finish()
    assert status == 1
    assert "[worker 1] ERROR:root:lost" in text
    assert "leaving" not in text
