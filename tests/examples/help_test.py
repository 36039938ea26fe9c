"""`--help` of the examples shows all flags that their users need."""

import pathlib
import subprocess
import sys

import pytest

from tests import waits

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
STRATEGY = ("--strategy", "--worker_start", "--straggler")
GROUPS = ("--exchange", "--burn_in_steps")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name, flags",
    [
        ("train_image_classifier", STRATEGY + GROUPS),
        ("train_recommender", STRATEGY),
        ("codistill_language_model", STRATEGY + GROUPS),
    ],
)
def test_help_shows_flags_of_other_files(name, flags):
    done = waits.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"],
        stdout=subprocess.PIPE,
        text=True,
    )
    # Commands of two lines stay so.
    assert (" \\\n" in done.stdout) == (flags != STRATEGY)
    for flag in flags:
        assert f"  {flag}: " in done.stdout, flag
