"""A third party's methods, registered from its own modules, are everywhere."""

import contextlib
import io
import json
import pathlib

import pytest

from tests.cli import own_model_and_data
from tests.multi_process import scripts
from tests.strategies import registered
from tfdist import datasets
from tfdist.cli.main import main

TOYS = pathlib.Path(__file__).parent / "toys"
EXAMPLE = (
    pathlib.Path(__file__).parents[2] / "examples" / "train_image_classifier.py"
)
NUM_WORKERS = 3
MODULES = {
    "growing_softsync": "growing_softsync.py",
    "decayed": "decayed.py",
    "lookahead": "lookahead.py",
}


@pytest.fixture(autouse=True)
def as_before():
    """Forgets what a test has registered."""
    with registered.forgotten():
        yield


def run(command, tmp_path, *arguments):
    """Runs a command on a small problem; returns its output."""
    own = own_model_and_data.write(tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(
            [
                command,
                f"--model={own}:model",
                f"--data={own}:pair",
                "--batch_size=8",
                "--compute=constant:0.1",
                *arguments,
            ]
        )
    assert status == 0
    return out.getvalue()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("text", "gradients", "updates"),
    [
        # Of 64 examples in batches of 8: 1, 1, 2, 2, and 2 are left over.
        ("growing_softsync:every=2:most=3", 8, 4),
        ("decayed:half_life=2", 8, 8),
        # Two periods of two steps of each of two workers.
        ("lookahead:period=2", 4, 2),
    ],
)
def test_it_is_simulated(tmp_path, text, gradients, updates):
    module = TOYS / MODULES[text.split(":")[0]]
    run(
        "simulate",
        tmp_path,
        f"--method_module={module}",
        f"--strategy={text}",
        "--num_workers=2",
        "--epochs=1",
        f"--output_dir={tmp_path}/out",
    )
    history = json.loads((tmp_path / "out" / "history.json").read_text())
    assert history["method"] == text
    assert history["gradients"] == gradients
    assert history["updates"] == updates


@pytest.mark.nightly
def test_they_are_compared_beside_tfdist_s_own_and_as_parts_of_them(tmp_path):
    strategies = [
        "async",
        "growing_softsync:most=2",
        "async:correction=decayed(half_life=2,scale=0.5)",
        "lookahead:synchronization=growing_softsync(most=2)",
    ]
    run(
        "compare",
        tmp_path,
        *(f"--method_module={TOYS / name}" for name in MODULES.values()),
        f"--strategies={','.join(strategies)}",
        "--num_workers=2",
        "--learning_rates=0.1",
        "--epochs=1",
        f"--output_dir={tmp_path}/out",
    )
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    methods = [row["method"] for row in found["rows"]]
    assert methods == ["one machine", *strategies]


@pytest.mark.nightly
def test_advise_plays_a_synchronization_of_one_s_own_by_default(tmp_path):
    module = TOYS / MODULES["growing_softsync"]
    text = run(
        "advise", tmp_path, f"--method_module={module}", "--num_workers=2,4"
    )
    assert "growing_softsync" in text


def test_a_module_that_is_not_there_is_refused_by_its_flag(capsys):
    assert main(["simulate", "--method_module=no_such_module"]) == 2
    error = capsys.readouterr().err
    assert "--method_module=no_such_module" in error
    assert "FILE.py or package.module" in error


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensorflow_datasets")
    datasets.load("digits", data_dir=path)
    return path


# Three epochs of ceil((1437 - 144) / 64) = 21 batches, see tests/examples.
# Strategy -> gradients accepted, updates, whether it learns.
ON_A_CLUSTER = {
    "growing_softsync:every=1:most=2": (63, 32, True),  # 1 and 31 of 2.
    # The correction makes all gradients 0, on the servers.
    "decayed:scale=0": (63, 63, False),
    # Of 21 steps of each worker after every third.
    "lookahead:period=3": (21, 7, True),
}


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ON_A_CLUSTER)
def test_it_trains_on_a_real_cluster(strategy, data_dir, tmp_path):
    name = "decayed" if "decayed" in strategy else strategy.split(":")[0]
    flags = [
        f"--method_module={TOYS / MODULES[name]}",
        f"--strategy={strategy}",
        f"--data_dir={data_dir}",
        f"--output_dir={tmp_path}",
        "--batch_size=64",
        "--epochs=3",
        "--learning_rate=0.003",
    ]
    scripts.run(tmp_path, EXAMPLE, flags, {"ps": 1, "worker": NUM_WORKERS})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["strategy"] == strategy.split(":")[0]
    accepted, updates, learns = ON_A_CLUSTER[strategy]
    assert summary["gradients_accepted"] == accepted
    assert summary["updates_applied"] == updates
    # One of ten digits is guessed: 0.1, with an error of 0.016. How late
    # gradients are, and so how much they count, is up to the machine.
    if learns:
        assert summary["test_accuracy"] > 0.4
    else:
        assert summary["test_accuracy"] < 0.2
