import json
import pathlib
import sys

import pytest

from tests import waits
from tests.multi_process import network_cut
from tests.multi_process import server_failure_test

pytestmark = pytest.mark.nightly

ROOT = pathlib.Path(__file__).parents[2]


def test_training_goes_on_when_a_cut_network_is_healed(tmp_path):
    ended = waits.run(
        [sys.executable, "-m", "tests.multi_process.network_cut", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        seconds=280.0,
        check=False,
    )
    if ended.returncode == network_cut.REFUSED:
        pytest.skip(f"No network namespace here: {ended.stdout.strip()}.")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    reports = json.loads(ended.stdout.splitlines()[-1])
    # Servers and workers have lived on: nothing is lost but what was sent.
    server_failure_test.check_exact(reports)
    for report in reports:
        assert all(not servers for servers, _ in report["recoveries"])
