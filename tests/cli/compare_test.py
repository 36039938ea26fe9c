"""`tfdist compare` prints, writes and draws what `compare` returns."""

import contextlib
import csv
import dataclasses
import io
import json
import re

import pytest

from tests.cli import own_model_and_data
from tests.simulation.histories import made
from tfdist import simulation
from tfdist.cli import assumed_cluster
from tfdist.cli import compare
from tfdist.cli import model_and_data
from tfdist.cli.main import main
from tfdist.exchange_record import ExchangeRecord
from tfdist.simulation import comparison
from tfdist.simulation.trace import Trace


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Its standard output and its directory, of one run."""
    directory = tmp_path_factory.mktemp("compare")
    own = own_model_and_data.write(directory)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(
            [
                "compare",
                f"--model={own}:model",
                f"--data={own}:pair",
                "--strategies=sync:on_drop=retry",
                "--num_workers=2,4",
                "--batch_size=8",
                "--learning_rates=0.1",
                "--epochs=1",
                "--target=0.5",
                "--slow=0:2",
                "--compute=gamma:0.1:100",
                "--overhead_ms=0",
                f"--output_dir={directory}/out",
            ]
        )
    assert status == 0
    return out.getvalue(), directory / "out"


@pytest.mark.nightly
def test_the_files_hold_every_method_and_size(ran):
    _, directory = ran
    with open(directory / "comparison.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["num_workers"]) for line in lines] == [
        ("one machine", "1"),
        ("sync:on_drop=retry", "2"),
        ("sync:on_drop=retry", "4"),
    ]
    found = json.loads((directory / "comparison.json").read_text())
    assert found["target"] == 0.5
    assert len(found["runs"]) == 3
    assert {run["learning_rate"] for run in found["runs"]} == {0.1}
    for line, row in zip(lines, found["rows"], strict=True):
        assert float(line["final_mean"]) == row["final_mean"]
        finals = [
            run["final_accuracy"]
            for run in found["runs"]
            if run["picked"]
            and (run["method"], run["num_workers"])
            == (row["method"], row["num_workers"])
        ]
        assert finals == [row["final_mean"]]


def test_the_slow_worker_is_not_the_one_machine(ran):
    _, directory = ran
    alone, sync, *_ = json.loads((directory / "comparison.json").read_text())[
        "rows"
    ]
    # Eight steps of a tenth of a second each.
    assert alone["seconds"] == pytest.approx(0.8, rel=0.1)
    # The slow worker has four of twice that.
    assert sync["seconds"] == pytest.approx(0.8, rel=0.1)
    assert sync["speed_up"] == pytest.approx(1.0, rel=0.1)


def test_it_prints_the_rows(ran):
    text, directory = ran
    rows = json.loads((directory / "comparison.json").read_text())["rows"]
    learned, taken = text.split("Until accuracy 0.500 is reached")
    for row in rows:
        start = f"{row['method']} "
        (line,) = (
            line
            for line in learned.splitlines()
            if line.startswith(start)
            and line[len(start) :].split()[0] == str(row["num_workers"])
        )
        assert f"{row['final_mean']:.3f}" in line
        assert f"{row['learning_rate']:g}" in line
    assert f"{rows[1]['utilization'] * 100:.1f} %" in taken
    assert "target 0.500" in learned
    assert f"Results: {directory}" in taken


def test_the_assumed_cluster_stands_above_the_table(ran):
    text = " ".join(ran[0].split())
    assert text.startswith(
        "The cluster: 1 server (--num_servers). A gradient takes "
        "gamma:0.1:100 seconds (given; --compute), with --slow=0:2;"
    )
    assert "exchange 0 ms besides (--overhead_ms)" in text


@pytest.mark.nightly
@pytest.mark.parametrize("compute", [["--compute=constant:0.003"], []])
def test_workers_that_step_by_themselves_take_the_time_of_the_update(
    tmp_path, monkeypatch, compute
):
    def measured(*arguments, **settings):
        return simulation.Measurement(4, [0.003], 0.001, 0.0042, ())

    seconds = {}

    def simulate(model_fn, data, method, *, num_workers, compute, **settings):
        seconds[method.name] = compute.mean(0)
        return made(method.name, num_workers)

    monkeypatch.setattr(compare, "_draw", lambda *arguments: None)
    monkeypatch.setattr(simulation, "measure", measured)
    monkeypatch.setattr(comparison, "simulate", simulate)
    own = own_model_and_data.write(tmp_path)
    methods = ["async", "parameter_averaging:period=4", "gossip"]
    arguments = [f"--strategies={','.join(methods)}", "--batch_size=4"]
    arguments += [f"--model={own}:model", f"--data={own}:pair", *compute]
    arguments += ["--num_workers=2", "--epochs=1", "--learning_rates=0.1"]
    assert main(["compare", *arguments, f"--output_dir={tmp_path}"]) == 0
    alone = 0.004 if compute else 0.0042
    assert list(seconds.values()) == pytest.approx([alone, 0.003, 0.004, 0.004])


@pytest.mark.parametrize(("local_steps", "seconds"), [(1, 0.014), (4, 0.003)])
def test_recorded_local_steps_have_the_updates_in_them(
    tmp_path, monkeypatch, local_steps, seconds
):
    record = ExchangeRecord(
        **dict.fromkeys(
            (field.name for field in dataclasses.fields(ExchangeRecord)), 0
        )
    )
    record = dataclasses.replace(
        record,
        compute_seconds=0.012,
        local_steps=local_steps,
        pulled_by_server=(0,),
    )
    trace = Trace(((record, record),), ("steps-chief-0.jsonl",))
    monkeypatch.setattr(simulation, "read_trace", lambda log_dir: trace)
    monkeypatch.setattr(
        simulation,
        "measure",
        lambda *_, **__: simulation.Measurement(4, [0.003], 0.002, 0.006, ()),
    )
    own = own_model_and_data.write(tmp_path)
    values = compare.define_flags()
    arguments = [f"--model={own}:model", f"--data={own}:pair"]
    values(["compare", f"--trace={tmp_path}", *arguments])
    trained = model_and_data.make(values)
    cluster = assumed_cluster.make(values, trained, 2)
    assert cluster.local_compute.mean(0) == pytest.approx(seconds)
    assert cluster.single_compute.mean(0) == pytest.approx(seconds)


@pytest.mark.nightly
@pytest.mark.parametrize("compute", [[], ["--compute=constant:0.01"]])
def test_it_agrees_with_advise(tmp_path, capsys, monkeypatch, compute):
    measure = simulation.measure

    def measure_as_before(*arguments, **settings):
        """Seconds are the same both times, whatever else the machine does."""
        measured = measure(*arguments, **settings)
        return dataclasses.replace(
            measured,
            compute_seconds=[0.003] * len(measured.compute_seconds),
            update_seconds=0.001,
            step_seconds=0.004,
        )

    monkeypatch.setattr(simulation, "measure", measure_as_before)
    own = own_model_and_data.write(tmp_path)
    trained = [f"--model={own}:model", f"--data={own}:pair", *compute]
    cluster = ["--num_workers=2", "--overhead_ms=20", "--server_ms=0.01"]
    arguments = [*trained, *cluster, "--strategies=sync", "--batch_size=4"]
    assert main(["advise", *arguments, f"--json={tmp_path}/a.json"]) == 0
    assert (
        main(
            ["compare", *arguments, "--epochs=2", "--learning_rates=0.1"]
            + [f"--output_dir={tmp_path}"]
        )
        == 0
    )
    advised = json.loads((tmp_path / "a.json").read_text())
    compared = json.loads((tmp_path / "comparison.json").read_text())
    (prediction,) = advised["predictions"]
    row = compared["rows"][1]
    assert row["method"] == prediction["method"] == "sync"
    # Two workers exchange for 20 ms what takes one machine far less: both
    # say to stay there, of the same cluster.
    assert prediction["speed_up"] < 0.8
    assert row["speed_up"] < 0.8
    assert row["examples_per_second"] == pytest.approx(
        prediction["examples_per_second"], rel=0.2
    )
    # What was measured, not the tenth of a second that is assumed of a task.
    assert row["seconds"] < 1.0


def test_it_draws_what_a_person_wants_to_see(ran):
    _, directory = ran
    names = {path.name for path in directory.glob("*.png")}
    assert names == {
        "accuracy_over_epochs.png",
        "accuracy_over_time.png",
        "gantt_sync_on_drop=retry.png",
        "speed_up.png",
        "staleness.png",
    }
    for name in names:
        assert (directory / name).stat().st_size > 5000


WRONG = {
    "strategy": (["--strategies=sync,sink"], ["--strategies", "'sink'"]),
    "strategies_twice": (
        ["--strategies=sync,sync"],
        ["--strategies=sync,sync", "each once"],
    ),
    "backup": (
        ["--strategies=async,backup_workers:backup_workers=4"],
        ["--strategies", "--num_workers", "num_workers=4"],
    ),
    "workers_word": (
        ["--num_workers=4,x"],
        ["--num_workers=4,x", "separated by commas"],
    ),
    "workers_many": (["--num_workers=99"], ["--num_workers=99", "at most 90"]),
    "rates": (["--learning_rates=0.1,0"], ["=0.1,0", "numbers above 0"]),
    "extra": (["--extra_rates=-1"], ["=-1", "at least 0"]),
    "seeds": (["--seeds=1,-1"], ["--seeds=1,-1", "at least 0"]),
    "target": (["--target=nan"], ["--target=nan", "finite"]),
    "metric": (["--metric=f1"], ["--metric=f1", "accuracy"]),
    "slow": (["--slow=4:2"], ["--slow=4:2", "from 0 to 3"]),
    "schedule": (
        ["--model=OWN:scheduled", "--data=OWN:pair", "--learning_rates=1"],
        ["--learning_rates=1", "schedule"],
    ),
    "one_rate": (["--learning_rate=0.1"], ["learning_rate"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name, tmp_path, capsys):
    arguments, parts = WRONG[name]
    own = str(own_model_and_data.write(tmp_path))
    arguments = [argument.replace("OWN", own) for argument in arguments]
    arguments = [f"--output_dir={tmp_path}", *arguments]
    assert main(["compare", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfdist compare: error: ")
    for part in parts:
        assert part in message


@pytest.mark.nightly
def test_by_default_there_are_rates_to_choose_from(tmp_path, monkeypatch):
    own = own_model_and_data.write(tmp_path)
    given = []

    def compare_nothing(*arguments, learning_rates, **others):
        given.append(learning_rates)
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "compare", compare_nothing)
    models = ("model", "scheduled", "rate_function", "several_optimizers")
    for model in models:
        status = main(
            [
                "compare",
                f"--model={own}:{model}",
                f"--data={own}:pair",
                "--batch_size=4",
                "--strategies=async",
                f"--output_dir={tmp_path}",
            ]
        )
        assert status == 130
    assert given == [[0.025, 0.25 / 3, 0.25], [None], [None], [None]]


def test_help_names_every_flag(capsys):
    assert main(["compare", "--help"]) == 0
    text = capsys.readouterr().out
    flags = compare.define_flags()
    assert len(list(flags)) > 20
    for name in flags:
        assert name == "h" or re.search(rf"--(\[no\])?{name}\b", text)
