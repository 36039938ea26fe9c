"""`examples/train_image_classifier.py` as a cluster with an evaluator."""

import json
import pathlib

import pytest

from tests.multi_process import scripts

pytestmark = pytest.mark.nightly

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_image_classifier.py"


def test_evaluator_ends_with_what_the_chief_reports(tmp_path):
    output_dir = tmp_path / "output"
    scripts.run(
        tmp_path,
        SCRIPT,
        [
            "--epochs=1",
            "--evaluation_seconds=1",
            "--batch_size=128",
            f"--data_dir={tmp_path}",
            f"--output_dir={output_dir}",
        ],
        {"ps": 1, "worker": 1, "evaluator": 1},
    )
    summary = json.loads((output_dir / "summary.json").read_text())
    lines = (output_dir / "eval.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    # ceil((1437 - 144) / 128) steps, see train_image_classifier_test.py.
    assert last["step"] == summary["updates_applied"] == 11
    assert last["accuracy"] == pytest.approx(summary["test_accuracy"], abs=1e-6)
