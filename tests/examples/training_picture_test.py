"""The picture of a training run shows every dot, and whose it is."""

import json
import pathlib
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

WORKERS = ("worker 0", "worker 1")
ERRORS = [0.9, 0.3, 0.1, 0.05, 0.02, 0.01, 0.005, 0.0]
STALENESS = {"worker 0": [0, 1, 1, 2], "worker 1": [113, 1, 0, 1]}


@pytest.fixture(scope="module")
def training_picture():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import training_picture
    finally:
        sys.path.remove(str(EXAMPLES))
    return training_picture


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory):
    """Records of two workers as `ClusterMonitor` writes them."""
    directory = tmp_path_factory.mktemp("run")
    for name, late in STALENESS.items():
        rows = [
            {"step": step, "version": 2 * step, "staleness": value}
            for step, value in enumerate(late, start=1)
        ]
        path = directory / f"steps-{name.replace(' ', '-')}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "steps-worker-2.jsonl").write_text("")  # Has not begun.
    return directory


@pytest.fixture(scope="module")
def drawn(training_picture, output_dir):
    pytest.importorskip("matplotlib")
    accuracy = [1 - error for error in ERRORS]
    picture = training_picture.draw(
        {
            "accuracy": [0.0] * len(ERRORS),
            "cluster_accuracy": accuracy,
            "val_accuracy": accuracy,
        },
        training_picture.read_steps(output_dir),
        {"dataset": "digits", "strategy": "async", "test_accuracy": 0.97},
        output_dir / "training.png",
    )
    assert (output_dir / "training.png").stat().st_size > 5000
    return picture


def places(ax, line):
    """Where a line's points are, as shares of the axes."""
    to_share = ax.transScale + ax.transLimits
    return to_share.transform(line.get_xydata())


def test_records_of_all_workers_are_read(training_picture, output_dir):
    steps = training_picture.read_steps(output_dir)
    found = {
        name: [record["staleness"] for record in records]
        for name, records in steps.items()
    }
    assert found == STALENESS


def test_each_worker_has_its_colour_and_its_name_beside_it(drawn):
    ax = drawn.axes[1]
    colors = [line.get_color() for line in ax.lines]
    assert len(set(colors)) == len(WORKERS)
    names = {text.get_color(): text.get_text() for text in ax.texts}
    assert [names[color] for color in colors] == [
        "worker 0: mean 1.00",
        "worker 1: mean 28.75",
    ]


def test_no_dot_is_cut_by_the_frame(drawn):
    for ax in drawn.axes:
        width, height = ax.get_window_extent().size
        for line in ax.lines:
            if line.get_linestyle() == ":":
                continue  # From side to side.
            radius = line.get_markersize() / 2 * drawn.dpi / 72
            for x, y in places(ax, line):
                assert radius < x * width < width - radius
                assert radius < y * height < height - radius


def test_late_epochs_can_be_told_apart(drawn):
    """From 90 % to 2, 1, 0.5 and 0 %: each a twentieth of the height away."""
    ax = drawn.axes[0]
    heights = places(ax, ax.lines[0])[:, 1]
    assert min(heights[:-1] - heights[1:]) > 0.05


def test_labels_are_apart(drawn):
    for ax in drawn.axes:
        heights = sorted(text.get_position()[1] for text in ax.texts)
        apart = [b - a for a, b in zip(heights, heights[1:], strict=False)]
        assert min(apart) > 0.07


def test_one_process_has_no_staleness(training_picture, tmp_path):
    pytest.importorskip("matplotlib")
    picture = training_picture.draw(
        {"accuracy": [0.5], "val_accuracy": [1.0]},
        {},
        {"dataset": "digits", "strategy": "none", "test_accuracy": 1.0},
        tmp_path / "training.png",
    )
    (ax,) = picture.axes
    names = {text.get_text() for text in ax.texts}
    assert names == {"training", "validation", "test, at the end: 0 %"}
