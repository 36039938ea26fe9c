"""The example of a pipeline learns to read digits."""

import pathlib

import pytest

from tests.multi_process import scripts

pytestmark = pytest.mark.nightly

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "pipeline.py"


def test_pipeline_learns(tmp_path):
    flags = ["--stages=3", "--schedule=1f1b", "--micro_batches=4", "--epochs=3"]
    task = scripts.start(tmp_path, PROGRAM, flags)
    assert task.wait(200) == 0, task.output()
    output = task.output()
    on = "stage 2 on /job:localhost/replica:0/task:0/device:"
    assert f"{on}CPU:2" in output or f"{on}GPU:2" in output
    assert float(output.split("accuracy")[-1]) > 0.9
