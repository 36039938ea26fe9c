"""Pictures of simulated runs.

Each function writes a PNG and returns the `matplotlib.figure.Figure`; where
matplotlib is not installed it warns, writes nothing and returns None.
"""

import itertools
import pathlib

from absl import logging
import numpy as np

from tfdist.simulation import curves
from tfdist.simulation.results import ONE_MACHINE
from tfdist.simulation.results import Comparison

# Told apart by people who see colours in another way (Okabe and Ito 2008,
# "Color universal design"); without their yellow, too bright for thin lines.
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
)
_MARKERS = "osD^vXP*"
_DASHES = ("-", "--", "-.", ":")
_ALONE = {"color": "#777777", "linestyle": ":", "marker": ""}
_MOST_MARKERS = 30
_MOST_BARS = 40
_DPI = 120


def new_figure(path, width, height):
    """A `Figure`, None (and a warning) without matplotlib.

    Args:
      path: Of the PNG that it is for.
      width: Inches.
      height: Inches.
    """
    try:
        from matplotlib import figure
    except ImportError:
        logging.warning(
            "No %s: matplotlib is not installed (pip install 'tfdist[plots]').",
            pathlib.Path(path).name,
        )
        return None
    return figure.Figure(figsize=(width, height), layout="constrained")


def save(picture, path):
    """Writes a `Figure` to a PNG, and returns it."""
    picture.savefig(path, dpi=_DPI)
    return picture


def gantt_axes(picture, num_rows, end, **texts):
    """The axes of a Gantt chart, the first row at the top.

    Args:
      picture: A `Figure`.
      num_rows: Of workers or devices.
      end: Of the time that is shown.
      **texts: Of `Axes.set`: xlabel, ylabel, title.
    """
    ax = picture.subplots()
    ax.set_xlim(0, end)
    ax.set_ylim(num_rows - 0.5, -0.5)
    ax.set_yticks(range(num_rows))
    ax.set(**texts)
    return ax


def gantt_legend(picture, bars):
    """The legend of a Gantt chart, whose updates are black lines.

    Args:
      picture: A `Figure`.
      bars: Dict of a label to how such bars are drawn, a dict.
    """
    from matplotlib import lines
    from matplotlib import patches

    handles = [
        patches.Patch(label=name, **style) for name, style in bars.items()
    ]
    handles.append(lines.Line2D([], [], color="black", label="update"))
    picture.legend(
        handles=handles, loc="outside lower center", ncols=len(handles)
    )


def accuracy_over_epochs(source, path, metric=None):
    """The metric over passes over the data, of all workers together.

    Args:
      source: A `Comparison`, a `History`, or a list of these (several of one
        method and number of workers are seeds of one run).
      path: Of the PNG.
      metric: Default: that of the comparison, else `curves.default_metric`.
    """
    return _courses(source, path, metric, "epoch", "epochs (all workers)")


def accuracy_over_time(source, path, metric=None):
    """The same over virtual time."""
    return _courses(source, path, metric, "seconds", "virtual seconds")


def staleness_histogram(source, path):
    """Histogram of the staleness of gradients that count.

    Args:
      source: As for `accuracy_over_epochs`.
      path: Of the PNG.
    """
    groups = _groups(source, alone=False)
    methods = list(dict.fromkeys(method for method, _ in groups))
    counts = sorted({count for _, count in groups})
    picture = new_figure(
        path, max(5.0, 3.4 * len(counts) + 0.6), 1.8 * len(methods) + 1.2
    )
    if picture is None:
        return None
    axes = picture.subplots(
        len(methods), len(counts), squeeze=False, sharex="col"
    )
    most = dict.fromkeys(counts, 3)
    for (_, count), histories in groups.items():
        for history in histories:
            if len(history.staleness):
                shown = np.percentile(history.staleness, 99)
                most[count] = max(most[count], int(np.ceil(shown)))
    colors = dict(zip(methods, itertools.cycle(COLORS)))
    for (row, method), (column, count) in itertools.product(
        enumerate(methods), enumerate(counts)
    ):
        ax = axes[row, column]
        if (method, count) not in groups:
            ax.set_axis_off()
            continue
        histories = groups[method, count]
        staleness = np.concatenate([h.staleness for h in histories])
        _histogram(ax, staleness, most[count], colors[method])
        figures = "no gradient counts"
        if len(staleness):
            figures = f"mean {staleness.mean():.2f}, at most {staleness.max()}"
        ax.set_title(
            f"{method}, {_workers(count)}\n{figures}", fontsize="medium"
        )
        if column == 0:
            ax.set_ylabel("% of gradients")
        if row == len(methods) - 1:
            ax.set_xlabel("staleness (updates)")
    picture.suptitle(
        "Staleness of the gradients that count\n(up to 1 % lie outside)"
    )
    return save(picture, path)


def _histogram(ax, staleness, most, color):
    # Whole numbers of updates in each bar.
    width = -(-(most + 1) // _MOST_BARS)
    edges = np.arange(0, most + 1 + width, width) - 0.5
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.get_major_locator().set_params(integer=True)
    if not len(staleness):
        return
    shares = 100 * np.histogram(staleness, edges)[0] / len(staleness)
    ax.bar(
        edges[:-1], shares, width, align="edge", color=color, edgecolor="white"
    )
    ax.axvline(staleness.mean(), color="black", linestyle="--", linewidth=1)


def speed_up(comparison, path):
    """Examples per second, and the time to the target, over workers.

    Both as multiples of one machine; without that there are no lines.

    Args:
      comparison: A `Comparison`.
      path: Of the PNG.
    """
    picture = new_figure(path, 10.5, 4.6)
    if picture is None:
        return None
    rows = [r for r in comparison.rows() if r["method"] != ONE_MACHINE]
    first, second = picture.subplots(1, 2)
    _lines(first, comparison, rows, "speed_up")
    _lines(second, comparison, rows, "speed_up_to_target")
    first.set(ylabel="times one machine", title="examples per second")
    second.set(ylabel="times one machine")
    if comparison.target is not None:
        second.set_title(
            f"speed to {comparison.metric} {comparison.target:.3f}\n"
            "(no point: did not get there)"
        )
    _legend(picture)
    picture.suptitle("Speed-up over one machine")
    return save(picture, path)


def _lines(ax, comparison, rows, name):
    """Draws a figure of the rows over workers, a line for each method."""
    counts = sorted({1, *comparison.num_workers})
    ax.plot(counts, counts, color="#777777", linestyle=":", label="ideal")
    for number, method in enumerate(comparison.methods):
        points = sorted(
            (row["num_workers"], row[name])
            for row in rows
            if row["method"] == method and row[name] is not None
        )
        ax.plot(
            [count for count, _ in points],
            [value for _, value in points],
            label=method,
            # Several may do the same: who is below is seen at the edges.
            linewidth=1.2 + 2.8 * (1 - number / len(comparison.methods)),
            markersize=5 + 5 * (1 - number / len(comparison.methods)),
            **_style(number),
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlabel("workers")
    ax.grid(alpha=0.3)


def _courses(source, path, metric, axis, label):
    groups = _groups(source)
    if metric is None:
        metric = (
            source.metric
            if isinstance(source, Comparison)
            else curves.default_metric(
                [h for hs in groups.values() for h in hs]
            )
        )
    methods = list(dict.fromkeys(m for m, _ in groups if m != ONE_MACHINE))
    counts = sorted({n for method, n in groups if method != ONE_MACHINE})
    picture = new_figure(path, 4.6 * len(counts) + 2.2, 4.4)
    if picture is None:
        return None
    panels = picture.subplots(1, len(counts), squeeze=False, sharey=True)[0]
    for ax, count in zip(panels, counts, strict=True):
        shown = [(m, n) for m, n in groups if n == count and m != ONE_MACHINE]
        longest = 0.0
        for method, _ in shown:
            style = _style(methods.index(method))
            longest = max(
                longest,
                _course(ax, groups[method, count], metric, axis, method, style),
            )
        alone = groups.get((ONE_MACHINE, 1))
        if alone is not None:
            # It takes much longer: those that are compared have the room.
            _course(ax, alone, metric, axis, ONE_MACHINE, _ALONE, longest)
        ax.set_xlim(left=0)
        ax.set(xlabel=label, title=_workers(count))
        ax.grid(alpha=0.3)
    panels[0].set_ylabel(_validation(metric))
    _legend(picture)
    return save(picture, path)


def _course(ax, histories, metric, axis, label, style, end=None):
    """Draws one line and its band up to `end`; returns where it ends."""
    x, mean, deviation = curves.mean_curve(histories, metric, axis)
    if not len(x):
        return 0.0
    if end and x[-1] > end:
        cut = np.append(x[x < end], end)
        mean, deviation = (np.interp(cut, x, y) for y in (mean, deviation))
        x = cut
    style = dict(style)
    if len(x) > _MOST_MARKERS:
        style["markevery"] = len(x) // _MOST_MARKERS + 1
    ax.plot(x, mean, label=label, markersize=4, **style)
    if len(histories) > 1:
        ax.fill_between(
            x,
            mean - deviation,
            mean + deviation,
            color=style["color"],
            alpha=0.18,
            linewidth=0,
        )
    return float(x[-1])


def _style(number):
    """Colour, marker and dashes of the line of that number."""
    turn, place = divmod(number, len(COLORS))
    return {
        "color": COLORS[place],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[turn % len(_DASHES)],
    }


def _legend(picture):
    """One legend for all panels, beside them."""
    handles = {}
    for ax in picture.axes:
        lines, labels = ax.get_legend_handles_labels()
        handles = {**dict(zip(labels, lines, strict=True)), **handles}
    picture.legend(handles.values(), handles.keys(), loc="outside right upper")


def _groups(source, alone=True):
    """Dict of (method, number of workers) to a list of `History`."""
    if isinstance(source, Comparison):
        return {
            key: source.histories(*key)
            for key in source.keys
            if alone or key[0] != ONE_MACHINE
        }
    histories = source if isinstance(source, (list, tuple)) else [source]
    groups = {}
    for history in histories:
        key = history.method, history.num_workers
        groups.setdefault(key, []).append(history)
    return groups


def _workers(count):
    return "1 worker" if count == 1 else f"{count} workers"


def _validation(metric):
    return "training loss" if metric == "train_loss" else f"validation {metric}"
