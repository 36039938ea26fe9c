"""The example of tables finds the structure that its data has."""

import pathlib
import re

import pytest

from tests.multi_process import scripts

pytestmark = pytest.mark.nightly

PROGRAM = pathlib.Path(__file__).parents[2] / "examples/train_recommender.py"
FLAGS = (
    "--users=20000",
    "--items=20000",
    "--width=16",
    "--examples=40000",
    "--epochs=4",
    "--table_mb=1",
)


@pytest.mark.parametrize("strategy", ["async", "sync"])
def test_workers_with_tables_find_the_hidden_structure(tmp_path, strategy):
    flags = (*FLAGS, f"--strategy={strategy}")
    outputs = scripts.run(tmp_path, PROGRAM, flags, {"ps": 2, "worker": 2})
    chief = outputs["worker-0"]
    found = [float(x) for x in re.findall(r"val_auc: ([\d.]+)", chief)]
    (best,) = re.findall(r"probabilities themselves: ([\d.]+)", chief)
    # A coin has 0.5; one process comes to 0.71.
    assert 0.62 < max(found) < float(best)


def test_workers_without_servers_train_to_the_end(tmp_path):
    flags = (
        "--users=200",
        "--items=200",
        "--examples=2000",
        "--epochs=1",
        "--table_mb=0",
        "--strategy=peer_to_peer",
    )
    outputs = scripts.run(tmp_path, PROGRAM, flags, {"worker": 2})
    assert "probabilities themselves" in outputs["worker-0"]
    assert "on each server" not in outputs["worker-0"]
