"""`tfdist simulate` prints and writes what `simulate` returns."""

import contextlib
import csv
import io
import json
import re
import sys

import pytest

from tests import waits
from tests.cli import own_model_and_data
from tfdist import simulation
from tfdist.cli import simulate
from tfdist.cli.main import main


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Its standard output and its directory, of one run."""
    directory = tmp_path_factory.mktemp("simulate")
    own = own_model_and_data.write(directory)
    arguments = [
        f"--model={own}:model",
        f"--data={own}:pair",
        "--strategy=dc_asgd",
        "--num_workers=2",
        "--batch_size=8",
        "--epochs=2",
        "--slow=0:2",
        "--latency_ms=5",
        "--compute=gamma:0.1:100",
        "--overhead_ms=0",
        "--server_ms=1",
        "--seed=3",
        f"--output_dir={directory}/out",
    ]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["simulate", *arguments]) == 0
    return out.getvalue(), directory


@pytest.mark.nightly
def test_the_files_hold_the_training(ran):
    _, directory = ran
    history = json.loads((directory / "out" / "history.json").read_text())
    assert history["method"] == "dc_asgd"
    assert (history["num_workers"], history["seed"]) == (2, 3)
    assert history["gradients"] == len(history["jobs"]["worker"]) == 16
    with open(directory / "out" / "evaluations.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(history["evaluations"]) >= 5
    assert float(lines[-1]["accuracy"]) == history["final_accuracy"]
    names = {path.name for path in (directory / "out").glob("*.png")}
    assert names == {
        "accuracy_over_epochs.png",
        "accuracy_over_time.png",
        "gantt.png",
        "staleness.png",
    }
    for name in names:
        assert (directory / "out" / name).stat().st_size > 5000


def test_it_prints_the_figures_and_the_evaluations(ran):
    text, directory = ran
    history = json.loads((directory / "out" / "history.json").read_text())
    assumed, table, *_ = text.split("\n\n")
    assert assumed.startswith("The cluster: 1 server")
    figures = dict(line.rsplit("  ", 1) for line in table.splitlines()[2:])
    figures = {k.strip(): v.strip() for k, v in figures.items()}
    assert figures["gradients"] == "16"
    assert figures["updates"] == str(history["updates"])
    assert figures["staleness mean"] == f"{history['staleness_mean']:.2f}"
    assert figures["staleness p95"] == f"{history['staleness_p95']:.1f}"
    share = f"{100 * history['utilization']:.1f} %"
    assert figures["compute, share of time"] == share
    last = text.strip().splitlines()[-3].split()
    assert last[0] == f"{history['evaluations'][-1]['epoch']:.2f}"
    assert f"{history['final_accuracy']:.4f}" in last
    assert f"Results: {directory}/out" in text


@pytest.mark.nightly
def test_nothing_else_is_written(tmp_path):
    program = "from tfdist.cli.main import main; raise SystemExit(main())"
    result = waits.run(
        [sys.executable, "-c", program, *own_arguments(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.nightly
def test_it_is_what_simulate_does(ran):
    _, directory = ran
    written = json.loads((directory / "out" / "history.json").read_text())
    names = {}
    exec((directory / "own.py").read_text(), names)
    train, validation = names["pair"]()
    history = simulation.simulate(
        names["model"],
        train,
        "dc_asgd",
        num_workers=2,
        batch_size=8,
        epochs=2,
        evaluate_every=0.5,
        validation_data=validation,
        compute=simulation.SlowWorkers(simulation.Gamma(0.1), {0: 2.0}),
        network=simulation.Network(latency_seconds=0.005, server_seconds=0.001),
        seed=3,
    )
    assert written["evaluations"] == history.evaluations


def own_arguments(directory, *arguments):
    own = own_model_and_data.write(directory)
    return [
        "simulate",
        f"--model={own}:model",
        f"--data={own}:pair",
        "--num_workers=2",
        "--batch_size=8",
        "--compute=constant:0.1",
        f"--output_dir={directory}/out",
        *arguments,
    ]


@pytest.mark.nightly
def test_sandblaster_shows_its_evaluations(tmp_path, capsys):
    arguments = own_arguments(
        tmp_path,
        "--strategy=sandblaster:portions_per_worker=2",
        "--epochs=2",
        "--slow=1:2",
    )
    assert main(arguments) == 0
    out = capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "history.json").read_text())
    assert written["method"] == "sandblaster:portions_per_worker=2"
    assert written["updates"] == 2
    number = written["data_evaluations"]
    assert sum(written["portions"]) == 4 * number
    assert re.search(rf"evaluations over all data +{number}\n", out)
    assert re.search(r"portions of a worker, least +\d+\n", out)
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert "staleness.png" not in names and "gantt.png" in names


@pytest.mark.nightly
def test_a_queue_gives_a_slow_worker_less(tmp_path):
    arguments = own_arguments(tmp_path, "--slow=1:7", "--epochs=1")
    assert main([*arguments, "--work=queue", "--portions_per_worker=2"]) == 0
    written = json.loads((tmp_path / "out" / "history.json").read_text())
    # Eight batches in portions of 2, 2, 1, 1, 1 and 1.
    assert sorted(written["jobs"]["batch"]) == list(range(8))
    assert written["jobs"]["worker"].count(1) == 2


@pytest.mark.nightly
def test_progress_is_shown_if_asked_for(tmp_path, capsys):
    own = own_model_and_data.write(tmp_path)
    arguments = [f"--model={own}:model", f"--data={own}:pair", "--progress"]
    arguments += ["--num_workers=2", "--epochs=1", f"--output_dir={tmp_path}"]
    assert main(["simulate", *arguments]) == 0
    assert "async, 2 workers: 100%" in capsys.readouterr().err


WRONG = {
    "argument": (["train.py"], ["flags alone", "train.py"]),
    "workers": (["--num_workers=0"], ["--num_workers=0", "at least 1"]),
    "output_dir": (["--output_dir=FILE/a"], ["--output_dir", "directory"]),
    "output_dir without files": (
        ["--output_dir=/proc"],
        ["--output_dir=/proc", "where files can be made"],
    ),
    "slow": (["--slow=4:2"], ["--slow=4:2", "from 0 to 3"]),
    "strategy": (["--strategy=sink"], ["--strategy", "'sink'"]),
    "servers": (
        ["--strategy=peer_to_peer", "--num_servers=2"],
        ["--num_servers", "peer_to_peer"],
    ),
    "work of gossip": (
        ["--strategy=gossip", "--work=queue"],
        ["--work", "gossip", "work='queue'"],
    ),
    "portions alone": (
        ["--portions_per_worker=3"],
        ["--portions_per_worker", "--work=queue"],
    ),
    "sandblaster": (
        ["--strategy=sandblaster:memory=3"],
        ["--strategy", "'memory'"],
    ),
    "its rate": (
        ["--strategy=sandblaster", "--learning_rate=0.1"],
        ["--learning_rate", "sandblaster"],
    ),
    "backup": (
        ["--strategy=backup_workers", "--num_workers=1"],
        ["--strategy", "--num_workers"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name, tmp_path, capsys):
    arguments, parts = WRONG[name]
    file = tmp_path / "file"
    file.write_text("")
    arguments = [a.replace("FILE", str(file)) for a in arguments]
    if not name.startswith("output_dir"):
        arguments.append(f"--output_dir={tmp_path}")
    assert main(["simulate", *arguments[::-1]]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfdist simulate: error: ")
    for part in parts:
        assert part in message


def test_help_names_every_flag(capsys):
    assert main(["simulate", "--help"]) == 0
    text = capsys.readouterr().out
    flags = simulate.define_flags()
    assert len(list(flags)) > 20
    for name in flags:
        assert name == "h" or re.search(rf"--(\[no\])?{name}\b", text)
