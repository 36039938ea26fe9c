"""Pictures show what they say, with axes that say it."""

import sys

import numpy as np
import pytest

from tests.simulation.histories import made
from tfdist import simulation
from tfdist.simulation import gantt
from tfdist.simulation import plots
from tfdist.simulation.results import ONE_MACHINE


@pytest.fixture(scope="module")
def compared():
    runs = {(ONE_MACHINE, 1): {0.1: [made(ONE_MACHINE, 1, seconds=8.0)]}}
    for number, method in enumerate(("sync", "async")):
        for count in (2, 4):
            runs[method, count] = {
                0.1: [
                    made(
                        method,
                        count,
                        values=(0.1, 0.4 + 0.1 * seed, 0.9),
                        seconds=8.0 / count,
                        staleness=number * (count - 1),
                        seed=seed,
                    )
                    for seed in (0, 1)
                ]
            }
    return simulation.Comparison(runs)


def is_png(path):
    data = path.read_bytes()
    width = int.from_bytes(data[16:20], "big")
    return data[:8] == b"\x89PNG\r\n\x1a\n" and 400 < width < 4000


def labels(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("draw", "label", "end"),
    [
        (plots.accuracy_over_epochs, "epochs (all workers)", (1.0, 1.0)),
        (plots.accuracy_over_time, "virtual seconds", (4.0, 2.0)),
    ],
)
def test_courses(draw, label, end, compared, tmp_path):
    path = tmp_path / "p.png"
    picture = draw(compared, path)
    assert is_png(path)
    assert [ax.get_title() for ax in picture.axes] == ["2 workers", "4 workers"]
    assert picture.axes[0].get_ylabel() == "validation accuracy"
    assert labels(picture) == ["sync", "async", ONE_MACHINE]
    for ax, last in zip(picture.axes, end, strict=True):
        assert ax.get_xlabel() == label
        sync, other, alone = ax.lines
        np.testing.assert_allclose(sync.get_ydata(), [0.1, 0.45, 0.9])
        np.testing.assert_allclose(sync.get_xdata(), [0, last / 2, last])
        assert sync.get_color() != other.get_color()
        # It goes on for longer, and is not shown there.
        assert alone.get_xdata()[-1] == last
        # A band of the seeds: 0.45 with the deviation of 0.4 and 0.5.
        vertices = ax.collections[0].get_paths()[0].vertices
        middle = vertices[np.isclose(vertices[:, 0], last / 2)][:, 1]
        deviation = np.std([0.4, 0.5], ddof=1)
        assert middle.max() == pytest.approx(0.45 + deviation)
        assert middle.min() == pytest.approx(0.45 - deviation)


def test_the_legend_covers_no_data(compared, tmp_path):
    picture = plots.accuracy_over_epochs(compared, tmp_path / "p.png")
    legend = picture.legends[0].get_window_extent()
    assert not any(
        legend.overlaps(ax.get_window_extent()) for ax in picture.axes
    )


def test_a_history_alone_is_a_line(tmp_path):
    picture = plots.accuracy_over_epochs(made(), tmp_path / "p.png")
    (ax,) = picture.axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.1, 0.5, 0.9])
    assert not ax.collections


def test_staleness(compared, tmp_path):
    path = tmp_path / "p.png"
    picture = plots.staleness_histogram(compared, path)
    assert is_png(path)
    assert len(picture.axes) == 4
    last = picture.axes[-1]
    assert last.get_title() == "async, 4 workers\nmean 3.00, at most 3"
    assert last.get_xlabel() == "staleness (updates)"
    assert picture.axes[0].get_ylabel() == "% of gradients"
    heights = {round(p.get_x() + 0.5): p.get_height() for p in last.patches}
    assert heights == {0: 0, 1: 0, 2: 0, 3: 100}


def test_staleness_is_in_bars_of_whole_updates(tmp_path):
    histories = [made(staleness=s, seed=s) for s in (0, 90, 199)]
    picture = plots.staleness_histogram(histories, tmp_path / "p.png")
    widths = {patch.get_width() for patch in picture.axes[0].patches}
    assert widths == {5}
    heights = [patch.get_height() for patch in picture.axes[0].patches]
    assert sum(heights) == pytest.approx(100)


def test_speed_up(compared, tmp_path):
    path = tmp_path / "p.png"
    picture = plots.speed_up(compared, path)
    assert is_png(path)
    assert labels(picture) == ["ideal", "sync", "async"]
    rows = {(r["method"], r["num_workers"]): r for r in compared.rows()}
    for ax, name in zip(
        picture.axes, ("speed_up", "speed_up_to_target"), strict=True
    ):
        assert ax.get_xlabel() == "workers"
        ideal, sync, _ = ax.lines
        assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2, 4]
        assert list(sync.get_xdata()) == [2, 4]
        assert list(sync.get_ydata()) == [
            rows["sync", 2][name],
            rows["sync", 4][name],
        ]
    assert "accuracy 0.855" in picture.axes[1].get_title()


def bars(picture):
    """(worker, begin, end, colour, whether hatched) of each bar."""
    return [
        (
            round(p.get_y() + 0.4),
            p.get_x(),
            p.get_x() + p.get_width(),
            p.get_facecolor(),
            bool(p.get_hatch()),
        )
        for p in picture.axes[0].patches
    ]


def test_gantt(tmp_path):
    path = tmp_path / "p.png"
    history = made(num_workers=3, seconds=4.0, steps=4, dropped=1)
    picture = gantt.gantt(history, path, steps=2)
    assert is_png(path)
    (ax,) = picture.axes
    assert ax.get_title() == "async, 3 workers"
    assert ax.get_xlabel() == "virtual seconds"
    assert ax.get_xlim() == (0, 2.0)
    found = bars(picture)
    assert len(found) == 3 * 2 * 4
    assert {worker for worker, *_ in found} == {0, 1, 2}
    hatched = [bar for bar in found if bar[-1]]
    assert {bar[0] for bar in hatched} == {0}
    assert max(bar[2] for bar in hatched) == 1.0
    first = sorted(bar for bar in found if bar[0] == 1)[:4]
    assert [bar[1] for bar in first] == [0, 0.25, 0.5, 0.75]
    assert len({bar[3] for bar in first}) == 4
    names = ["pull", "compute", "push", "wait"]
    assert labels(picture)[:4] == names
    handles = picture.legends[0].get_patches()
    assert [h.get_facecolor() for h in handles[:4]] == [b[3] for b in first]
    # Updates at 1 s and at 2 s.
    updates = ax.collections[-1].get_segments()
    assert [segment[0][0] for segment in updates] == [1.0, 2.0]


def test_gantt_of_many_says_that_it_is_cut(tmp_path):
    picture = gantt.gantt(made(num_workers=20), tmp_path / "p.png")
    assert "20 workers (the first 16 are shown)" in picture.axes[0].get_title()
    assert {worker for worker, *_ in bars(picture)} == set(range(16))


def test_gantt_shows_what_the_dead_have_left(tmp_path):
    history = simulation.timing(
        "async",
        num_workers=2,
        steps=8,
        compute=simulation.Constant(1.0),
        failures=[simulation.Failure(1, 1.5, 2.5)],
    )
    picture = gantt.gantt(history, tmp_path / "p.png", steps=4)
    lost = [bar[:3] for bar in bars(picture) if bar[0] == 1 and bar[-1]]
    assert lost == [(1, 1.0, 2.5)]
    assert "lost (died)" in labels(picture)


def test_without_matplotlib_there_is_a_warning(tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(
        plots.logging, "warning", lambda text, *a: warnings.append(text % a)
    )
    path = tmp_path / "gantt.png"
    assert gantt.gantt(made(), path) is None
    for draw in (
        plots.accuracy_over_epochs,
        plots.accuracy_over_time,
        plots.staleness_histogram,
    ):
        assert draw(made(), path) is None
    assert len(warnings) == 4
    for warning in warnings:
        assert warning.startswith("No gantt.png: matplotlib is not installed")
        assert "tfdist[plots]" in warning
    assert not path.exists()
