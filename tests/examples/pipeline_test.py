"""The example of a pipeline learns to read digits."""

import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "pipeline.py"


def test_pipeline_learns():
    done = subprocess.run(
        [
            sys.executable,
            PROGRAM,
            "--stages=3",
            "--schedule=1f1b",
            "--micro_batches=4",
            "--epochs=3",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    on = "stage 2 on /job:localhost/replica:0/task:0/device:"
    assert f"{on}CPU:2" in done.stdout or f"{on}GPU:2" in done.stdout
    assert float(done.stdout.split("accuracy")[-1]) > 0.9
