"""The picture of a training run: error per epoch, staleness of each worker."""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import pathlib
from typing import Any

from absl import logging

# Colors that color-blind readers can tell apart (Okabe and Ito 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
VALIDATION_COLOR = "#000000"
TEST_COLOR = "#777777"
PERCENT_TICKS = (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
STALENESS_TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Between two labels, as a share of the axes' height.
LABEL_GAP = 0.075


def read_steps(output_dir: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """Reads the records of `ClusterMonitor` that lie in a directory.

    On one machine these are all workers'; on several without a shared
    directory, this worker's own.

    Args:
        output_dir: the monitor's `log_dir`.

    Returns:
        Name of a worker, such as "worker 1", to its exchanges, one dictionary
        for each.
    """
    steps = {}
    for path in sorted(output_dir.glob("steps-*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        name = path.stem.removeprefix("steps-").replace("-", " ")
        # Where the disk was full, the last line may be incomplete.
        whole = [line for line in lines if line.endswith("}")]
        steps[name] = [json.loads(line) for line in whole]
    return {name: records for name, records in steps.items() if records}


def draw(
    history: Mapping[str, Sequence[float]],
    steps: Mapping[str, Sequence[Mapping[str, Any]]],
    summary: Mapping[str, Any],
    path: pathlib.Path,
) -> Any:
    """Draws error per epoch, and staleness over updates, as a PNG.

    Both scales are logarithmic but near 0, so that late epochs can be read
    beside the first ones.

    Args:
        history: Keras's history: metric -> value per epoch.
        steps: see `read_steps`; empty without a cluster.
        summary: the content of `summary.json`.
        path: of the PNG.

    Returns:
        The `matplotlib.figure.Figure`; None without matplotlib or epochs.
    """
    if not history:  # This process came back when training was over.
        return None
    try:
        from matplotlib import figure
    except ImportError:
        logging.warning("No %s: matplotlib is not installed.", path.name)
        return None
    width = 11 if steps else 6.5
    picture = figure.Figure(figsize=(width, 4.5), layout="constrained")
    axes = picture.subplots(1, 2 if steps else 1, squeeze=False)[0]
    _draw_errors(axes[0], history, summary)
    if steps:
        _draw_staleness(axes[1], steps, summary)
    picture.savefig(path, dpi=120)
    return picture


def _draw_errors(ax, history, summary):
    who = "all workers" if "cluster_accuracy" in history else "training"
    training = history.get("cluster_accuracy", history["accuracy"])
    curves = [
        (f"training, {who}" if who != "training" else who, COLORS[2], training),
        ("validation", VALIDATION_COLOR, history["val_accuracy"]),
    ]
    epochs = range(1, len(training) + 1)
    test = 100 * (1 - summary["test_accuracy"])
    labels = [(f"test, at the end: {test:.2g} %", TEST_COLOR, test)]
    shown = [test]
    for name, color, accuracies in curves:
        errors = [100 * (1 - accuracy) for accuracy in accuracies]
        ax.plot(epochs, errors, "o-", color=color, markersize=4)
        labels.append((name, color, errors[-1]))
        shown += errors
    ax.axhline(test, color=TEST_COLOR, linestyle=":")
    ax.set_xlim(0.5, len(training) + 0.5)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(
        xlabel="epoch",
        ylabel="error, % of images",
        title=f"{summary['dataset']}: error per epoch",
    )
    _scale(ax, shown, PERCENT_TICKS)
    _label(ax, labels)


def _draw_staleness(ax, steps, summary):
    """Dots of single gradients, each worker's a little above the others'."""
    labels, shown = [], []
    for number, (name, records) in enumerate(steps.items()):
        color = COLORS[number % len(COLORS)]
        lift = 0.1 * (number - (len(steps) - 1) / 2)
        late = [record["staleness"] for record in records]
        places = [max(0.0, value + lift) for value in late]
        ax.plot(
            [record["version"] for record in records],
            places,
            ".",
            color=color,
            markersize=4,
            alpha=0.6,
        )
        mean = sum(late) / len(late)
        labels.append((f"{name}: mean {mean:.2f}", color, mean))
        shown += places
    ax.margins(x=0.02)
    ax.set(
        xlabel="updates applied",
        ylabel="staleness in updates",
        title=f"{summary['strategy']}: staleness of each gradient",
    )
    _scale(ax, shown, STALENESS_TICKS)
    _label(ax, labels)


def _scale(ax, values, ticks):
    """Shows all values and 0, on a scale that is linear only near 0.

    Args:
        ax: the axes.
        values: what is drawn, at least 0.
        ticks: rising numbers from 0 to choose from.
    """
    least = min((value for value in values if value >= ticks[1]), default=1)
    least = max(tick for tick in ticks if tick <= least)
    ax.set_yscale("symlog", linthresh=least, linscale=0.5)
    top = max(*values, least)
    # A dot on 0 or on the greatest value is whole.
    ax.set_ylim(-0.15 * least, 1.25 * top)
    kept = [tick for tick in ticks if tick == 0 or least <= tick <= 1.25 * top]
    ax.set_yticks(kept, [f"{tick:g}" for tick in kept])
    ax.minorticks_off()
    ax.grid(axis="y", color="#dddddd")


def _label(ax, labels):
    """Writes names beside the axes, at the heights of what they name.

    Args:
        ax: the axes, whose scale is set.
        labels: list of (text, color, y).
    """
    to_share = ax.transScale + ax.transLimits
    heights = [to_share.transform((1, y))[1] for _, _, y in labels]
    order = sorted(range(len(labels)), key=heights.__getitem__)
    below = -LABEL_GAP
    for index in order:
        text, color, _ = labels[index]
        below = max(heights[index], below + LABEL_GAP)
        ax.text(
            1.02,
            below,
            text,
            color=color,
            transform=ax.transAxes,
            verticalalignment="center",
        )
