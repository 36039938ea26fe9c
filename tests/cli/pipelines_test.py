"""`tfdist simulate --pipeline` and `tfdist compare --pipelines`."""

import csv
import json
import pathlib
import re

import pytest

from tfdist.cli import compare
from tfdist.cli import pipelines
from tfdist.cli import simulate
from tfdist.cli.main import main
from tfdist.pipeline import schedules

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "pipelines.md"


def ran(capsys, *arguments):
    """What the command prints."""
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_names_are_those_of_the_schedules():
    assert pipelines.NAMES == schedules.NAMES


def test_one_schedule_is_drawn_and_written(tmp_path, capsys):
    text = ran(
        capsys,
        "simulate",
        "--pipeline=1f1b",
        "--stage_times=10:20,10:20",
        "--micro_batches=3",
        f"--output_dir={tmp_path}",
    )
    # Four ticks of 30 ms fill 71 columns, six for 10 ms. Stage 0 waits for
    # unit 0 to come back, at 40 ms.
    chart = text.splitlines()[:2]
    assert chart[0].startswith("device 0 F0----F1----............B0")
    assert chart[1].startswith("device 1 ......F0----B0==========F1")
    written = json.loads((tmp_path / "pipeline.json").read_text())
    assert written["schedule"] == "1f1b"
    assert written["makespan_ms"] == pytest.approx(4 * 30)
    assert written["bubble"] == pytest.approx(1 / 4)
    assert written["bubbles"] == pytest.approx([1 / 4, 1 / 4])
    assert len(written["tasks"]) == 2 * (3 + 3 + 1)
    first = written["tasks"][2]
    assert (first["kind"], first["stage"], first["unit"]) == ("backward", 0, 0)
    assert (first["start_ms"], first["end_ms"]) == pytest.approx((40, 60))
    assert "120.0" in text and "25.0 %" in text
    assert text.strip().endswith(f"Results: {tmp_path}")
    assert (tmp_path / "pipeline.png").stat().st_size > 5000


def test_backward_is_twice_forward_unless_it_is_given(tmp_path, capsys):
    for times, expected in (("10", 30), ("10:5", 15), ("0:5", 5)):
        ran(
            capsys,
            "simulate",
            "--pipeline=gpipe",
            f"--stage_times={times}",
            "--micro_batches=1",
            f"--output_dir={tmp_path}",
        )
        written = json.loads((tmp_path / "pipeline.json").read_text())
        assert written["makespan_ms"] == pytest.approx(expected)


@pytest.mark.nightly
def test_every_flag_does_something(tmp_path, capsys):
    def makespan(*arguments):
        ran(
            capsys,
            "simulate",
            "--pipeline=ftpipe",
            "--stage_times=10:10,10:10,10:10",
            f"--output_dir={tmp_path}",
            *arguments,
        )
        return json.loads((tmp_path / "pipeline.json").read_text())

    one = "--micro_batches=1"
    assert makespan(one)["makespan_ms"] == pytest.approx(60)
    assert makespan(one, "--batches=2")["makespan_ms"] == pytest.approx(80)
    assert makespan("--micro_batches=2")["makespan_ms"] == pytest.approx(80)
    assert makespan(one, "--transfer_ms=1")["makespan_ms"] == pytest.approx(64)
    two = makespan(one, "--transfer_ms=1,2")
    assert two["makespan_ms"] == pytest.approx(66)
    assert makespan(one, "--recompute")["makespan_ms"] == pytest.approx(90)
    assert makespan("--stage_devices=0,1,0")["devices"] == 2
    assert "peak_mb" not in two
    assert makespan("--activation_mb=7")["peak_mb"] == pytest.approx(21)
    small = makespan(
        "--recompute", "--activation_mb=7,8,9", "--boundary_mb=0.5"
    )
    # Three, two and one inputs, and the activations of one unit.
    assert small["peak_mb"] == pytest.approx(max(8.5, 9, 9.5))


def test_schedules_are_compared_in_a_table(tmp_path, capsys):
    text = ran(
        capsys,
        "compare",
        "--pipelines=gpipe,1f1b,pipedream",
        "--stage_times=10,10",
        "--micro_batches=3",
        "--batches=2",
        f"--output_dir={tmp_path}",
    )
    rows = json.loads((tmp_path / "pipelines.json").read_text())["rows"]
    by_name = {row["schedule"]: row for row in rows}
    assert list(by_name) == ["gpipe", "1f1b", "pipedream"]
    # Two flushes of (3 + 1) ticks; 6 + 1 ticks without.
    assert by_name["gpipe"]["makespan_ms"] == pytest.approx(240)
    assert by_name["1f1b"]["makespan_ms"] == pytest.approx(240)
    assert by_name["pipedream"]["makespan_ms"] == pytest.approx(210)
    assert [row["in_flight"] for row in rows] == [3, 2, 2]
    assert [row["weight_versions"] for row in rows] == [1, 1, 2]
    with open(tmp_path / "pipelines.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["bubble"]) for line in lines] == pytest.approx(
        [1 / 4, 1 / 4, 1 / 7]
    )
    for row in rows:
        (line,) = (
            line
            for line in text.splitlines()
            if line.startswith(f"{row['schedule']} ")
        )
        assert f" {row['makespan_ms']:.1f} " in line
        assert f" {100 * row['bubble']:.1f} %" in line
        assert (tmp_path / f"pipeline_{row['schedule']}.png").exists()


WRONG = {
    "name": (["--pipeline=zigzag"], ["zigzag", "1f1b"]),
    "no_times": (["--pipeline=1f1b"], ["--pipeline=1f1b", "--stage_times"]),
    "no_pipeline": (["--stage_times=1"], ["--stage_times=1", "--pipeline"]),
    "training": (
        ["--pipeline=1f1b", "--stage_times=1", "--num_workers=2"],
        ["--num_workers=2", "not be given beside --pipeline"],
    ),
    "word": (["--pipeline=1f1b", "--stage_times=a"], ["=a", "milliseconds"]),
    "zero": (["--pipeline=1f1b", "--stage_times=1,0"], ["=1,0"]),
    "micro_batches": (
        ["--pipeline=1f1b", "--stage_times=1", "--micro_batches=0"],
        ["--micro_batches=0", "at least 1"],
    ),
    "2bw": (
        [
            "--pipeline=pipedream_2bw",
            "--stage_times=1,1,1",
            "--micro_batches=2",
        ],
        ["--micro_batches", "at least", "3", "Received: micro_batches=2"],
    ),
    "transfer": (
        ["--pipeline=1f1b", "--stage_times=1,1,1", "--transfer_ms=1,1,1"],
        ["--transfer_ms=1,1,1", "one number or 2"],
    ),
    "devices_of_others": (
        ["--pipeline=1f1b", "--stage_times=1,1", "--stage_devices=0,1"],
        ["--stage_devices=0,1", "ftpipe alone"],
    ),
    "devices_few": (
        ["--pipeline=ftpipe", "--stage_times=1,1", "--stage_devices=0"],
        ["--stage_devices", "2 integers"],
    ),
    "activation": (
        ["--pipeline=1f1b", "--stage_times=1,1", "--activation_mb=1,1,1"],
        ["--activation_mb=1,1,1", "one number or 2"],
    ),
    "activation_alone": (
        [
            "--pipeline=1f1b",
            "--stage_times=1",
            "--recompute",
            "--activation_mb=1",
        ],
        ["--activation_mb=1", "--boundary_mb"],
    ),
    "output_dir": (
        ["--pipeline=1f1b", "--stage_times=1", "--output_dir=FILE/a"],
        ["--output_dir", "directory"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name, tmp_path, capsys):
    arguments, parts = WRONG[name]
    file = tmp_path / "file"
    file.write_text("")
    arguments = [a.replace("FILE", str(file)) for a in arguments]
    if name != "output_dir":
        arguments.append(f"--output_dir={tmp_path / 'out'}")
    assert main(["simulate", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfdist simulate: error: ")
    for part in parts:
        assert part in message
    # Nothing is written before all is known to be right.
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", ["gpipe,gpipe", "gpipe,zigzag", ""])
def test_wrong_names_are_refused(names, tmp_path, capsys):
    arguments = ["--stage_times=1", f"--output_dir={tmp_path}"]
    assert main(["compare", f"--pipelines={names}", *arguments]) == 2
    message = capsys.readouterr().err
    assert f"--pipelines={names}" in message
    assert "each once" in message


def test_help_names_the_flags_and_their_defaults():
    for command in (simulate, compare):
        values = command.define_flags()
        text = pipelines.listing(values)
        for name in ("stage_times", "micro_batches", "recompute"):
            assert name in text
    assert simulate.define_flags()["batches"].default == 1
    assert compare.define_flags()["batches"].default == 10


@pytest.mark.nightly
def test_commands_of_the_document_print_what_it_shows(tmp_path, capsys):
    document = DOCS.read_text("utf-8")
    shown = re.findall(
        r"^    tfdist (\w+ --pipeline.*)\n((?:(?:    .*)?\n)*)",
        document.replace("\\\n", ""),
        re.MULTILINE,
    )
    assert len(shown) >= 2
    for command, expected in shown:
        arguments = [*command.split(), f"--output_dir={tmp_path}"]
        text = ran(capsys, *arguments).partition("Results:")[0]
        lines = [line.strip() for line in expected.splitlines()]
        assert len(lines) >= 4
        found = [line.strip() for line in text.splitlines()]
        for line in filter(None, lines):
            assert line in found, command
