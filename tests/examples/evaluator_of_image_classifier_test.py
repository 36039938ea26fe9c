"""`examples/train_image_classifier.py` as a cluster with an evaluator."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_image_classifier.py"
SECONDS = 150


def test_evaluator_ends_with_what_the_chief_reports(tmp_path):
    output_dir = tmp_path / "output"
    command = [sys.executable, "-m", "tfdist", "launch", "--num_workers=1"]
    command += ["--evaluator", f"--timeout={SECONDS}", str(SCRIPT), "--"]
    command += ["--epochs=1", "--evaluation_seconds=1", "--batch_size=128"]
    command += [f"--data_dir={tmp_path}", f"--output_dir={output_dir}"]
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS + 30,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    summary = json.loads((output_dir / "summary.json").read_text())
    lines = (output_dir / "eval.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    # ceil((1437 - 144) / 128) steps, see train_image_classifier_test.py.
    assert last["step"] == summary["updates_applied"] == 11
    assert last["accuracy"] == pytest.approx(summary["test_accuracy"], abs=1e-6)
