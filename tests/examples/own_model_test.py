"""The example of a model of one's own trains in the simulator."""

import json
import pathlib

import pytest

from tfdist.cli import main

pytestmark = pytest.mark.nightly

FILE = pathlib.Path(__file__).parents[2] / "examples" / "own_model.py"


def test_simulate_trains_it(tmp_path):
    status = main.main(
        [
            "simulate",
            f"--model={FILE}:build",
            f"--data={FILE}:load",
            "--num_workers=4",
            "--epochs=4",
            f"--output_dir={tmp_path}",
        ]
    )
    assert status == 0
    history = json.loads((tmp_path / "history.json").read_text())
    assert history["gradients"] == 4 * 45
    assert history["final_accuracy"] > 0.8
