"""Charts show every task where it is."""

import textwrap

import pytest

from tfdist.pipeline import gantt
from tfdist.pipeline import schedules
from tfdist.pipeline import tables
from tfdist.pipeline import timeline

LABEL = len("device 0 ")


def played(name, stages, micro_batches, *seconds, devices=None, **others):
    schedule = schedules.make(name, stages, micro_batches, devices=devices)
    return timeline.play(schedule, *seconds, **others)


def drawn(text):
    return textwrap.dedent(text).strip()


def test_gpipe_as_it_is_drawn_by_hand():
    # Six ticks of a second, four columns each.
    line = played("gpipe", 2, 2, 1.0, 1.0)
    assert gantt.text(line, LABEL + 24) == drawn("""
        device 0 F0--F1--........B1==B0==
        device 1 ....F0--F1--B1==B0==....
    """)


def test_1f1b_as_it_is_drawn_by_hand():
    # Forward one tick, backward two; three columns each.
    line = played("1f1b", 2, 2, 1.0, 2.0)
    assert gantt.text(line, LABEL + 27) == drawn("""
        device 0 F0-F1-......B0====...B1====
        device 1 ...F0-B0====F1-B1====......
    """)


def test_numbers_that_have_no_room_are_left_out():
    line = played("gpipe", 1, 11, 1.0, 1.0)
    # Two columns for each task: room for F9 and not for F10.
    assert gantt.text(line, LABEL + 44) == drawn("""
        device 0 F0F1F2F3F4F5F6F7F8F9F-B=B9B8B7B6B5B4B3B2B1B0
    """)


def test_blocks_that_share_a_device_are_told_apart():
    line = played("ftpipe", 3, 1, 1.0, 1.0, devices=[0, 1, 0])
    assert gantt.text(line, LABEL + 30) == drawn("""
        device 0 F0.0-.....F2.0-B2.0=.....B0.0=
        device 1 .....F1.0-..........B1.0=.....
    """)


def test_what_has_no_room_at_the_end_is_cut_off_and_said():
    line = played("gpipe", 1, 100, 1.0, 1.0)
    # 30 columns have room for 20 tasks of one and a half, of 200.
    chart, said = gantt.text(line, LABEL + 30).splitlines()
    assert said == "(the first 10 % of the time)"
    assert len(chart) == LABEL + 30
    assert chart.count("F") == 20


def test_tasks_that_take_no_time_are_not_drawn():
    line = played("gpipe", 2, 2, [0.0, 1.0], [0.0, 1.0])
    assert gantt.text(line, LABEL + 16).splitlines()[0] == (
        "device 0 " + "." * 16
    )


def test_a_chart_needs_room():
    with pytest.raises(ValueError, match="at least 19. Received: width=18"):
        gantt.text(played("gpipe", 1, 1, 1.0), 18)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_has_a_bar_for_each_task(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    line = played("1f1b", 3, 4, 0.1, 0.2)
    path = tmp_path / f"pipeline.{suffix}"
    figure = gantt.picture(line, path)
    (ax,) = figure.axes
    bars = {
        (round(bar.get_x()), round(bar.get_width()), round(bar.get_y() + 0.4))
        for bar in ax.patches
    }
    # Milliseconds.
    assert bars == {
        (
            round(1e3 * span.start),
            round(1e3 * (span.end - span.start)),
            span.device,
        )
        for span in line.spans
        if span.task.kind != "update"
    }
    assert len(bars) == 2 * 3 * 4
    numbers = sorted(text.get_text() for text in ax.texts)
    assert numbers == sorted(str(unit) for unit in range(4) for _ in range(6))
    assert len(ax.collections) == 3  # Updates.
    assert "bubble 33.3 %" in ax.get_title()
    assert path.stat().st_size > 5000


def test_a_picture_of_much_is_one_of_the_beginning(tmp_path):
    pytest.importorskip("matplotlib")
    line = played("pipedream", 2, 150, 0.1, 0.1)
    figure = gantt.picture(line, tmp_path / "pipeline.png")
    (ax,) = figure.axes
    # Six tasks in each fifth of a second, updates included.
    end = ax.get_xlim()[1]
    assert end == pytest.approx(10, abs=0.5)
    assert f"the first {100 * end / line.makespan:.0f} % are" in ax.get_title()
    assert len(ax.patches) < 210
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) <= end


# Tables.


def test_figures_are_those_of_the_formulas():
    line = played("1f1b", 2, 3, 0.01, 0.02, activation_bytes=5e6)
    assert tables.figures(line) == pytest.approx(
        {
            "schedule": "1f1b",
            "devices": 2,
            "makespan_ms": 120.0,
            "speed_up": 6 / 4,
            "of_ideal": 1.0,
            "bubble": 1 / 4,
            "in_flight": 2,
            "weight_versions": 1,
            "peak_mb": 10.0,
        }
    )


def test_tables_say_what_the_figures_are():
    rows = [
        tables.figures(played(name, 2, 3, [0.01, 0.02]))
        for name in ("gpipe", "pipedream")
    ]
    lines = tables.of_figures(rows).splitlines()
    assert len(lines) == 4
    # 1 and 2 hundredths forward, 2 and 4 backward; the last stage is never
    # idle but for the first forward and the last backward: 1 + 3 * 6 + 2.
    told = f"{27 / 21:.2f} {27 / 21 / 1.5:.1%} {1 - 27 / 42:.1%}"
    told = f"gpipe 2 210.0 {told} 3 1".replace("%", " %")
    assert lines[2].split() == told.split()
    assert lines[3].split()[0] == "pipedream"
    assert lines[3].split()[-2:] == ["2", "2"]


def test_table_of_devices_has_their_stages():
    line = played(
        "ftpipe", 3, 6, 1.0, devices=[0, 1, 0], activation_bytes=[1e6, 1e7, 1e8]
    )
    titles, _, first, second = tables.of_devices(line).splitlines()
    assert titles.split()[-2:] == ["peak", "MB"]
    # 6 units of 3 s in two blocks and one.
    assert first.split()[:4] == ["0", "0", "2", "36000.0"]
    assert first.split()[-3:] == ["3", "1", "103.0"]
    assert second.split()[:3] == ["1", "1", "18000.0"]
    assert second.split()[-2:] == ["2", "20.0"]
    assert f"{100 * (1 - 36 / line.makespan):.1f} %" in first
