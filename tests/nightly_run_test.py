"""A stage that fails or hangs ends neither the night nor its table."""

import itertools
import json

from tests import nightly_run


def test_a_failure_and_a_hang_are_told_apart(tmp_path):
    # A background job of a shell ignores SIGINT.
    program = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "print('began', flush=True); {}"
    )

    def run(body, minutes):
        arguments = ["-c", program.format(body)]
        return nightly_run.run(arguments, minutes, tmp_path / "log")

    failed = run("print('== 1 failed =='); sys.exit(3)", 1)
    assert (failed.status, failed.last) == (3, "1 failed")
    hung = run("time.sleep(100)", 5 / 60)
    # It is asked to end, and tells where it was.
    assert (hung.status, hung.last) == (None, "KeyboardInterrupt")


def test_every_stage_that_runs_beside_another_is_one():
    side_by_side = [*itertools.chain(*nightly_run._SIDE_BY_SIDE)]
    assert len(set(side_by_side)) == len(side_by_side)
    assert set(nightly_run._STAGES) > set(side_by_side)


def test_the_last_line_names_all_that_failed(capsys):
    outcomes = {
        "one": nightly_run.Outcome(0, 60.0, "3 passed"),
        "two": nightly_run.Outcome(3, 30.0, "1 failed"),
        "three": nightly_run.Outcome(None, 30.0, "began"),
    }
    assert nightly_run.report(outcomes) == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["failed"] == ["two", "three"]
    assert any("too long" in line for line in table)
    del outcomes["two"], outcomes["three"]
    assert nightly_run.report(outcomes) == 0
