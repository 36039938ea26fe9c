"""Gantt charts of schedules: who computes what when, as text or picture."""

from tfdist.simulation import plots

WIDTH = 80
"""Columns of a chart as text."""

_NARROWEST = 1.5
"""Columns of the shortest task, at least; else the end is cut off."""

_FEWEST = 10  # Columns of a chart beside the names.

_FILL = {"forward": "-", "backward": "="}
_COLORS = {"forward": "#56B4E9", "backward": "#E69F00"}
_MOST_TASKS = 300  # Of a picture.
_SMALLEST_LABEL = 0.012  # Part of the picture's width.


def text(timeline, width=WIDTH):
    """A chart as text, for a terminal.

    A row is a device. A forward is `F0--` and a backward `B0==`, with the
    number of the micro-batch (and before it that of the block, where devices
    have several: `F2.0-`) as far as there is room; the device idles where
    there are dots.

    Args:
      timeline: A `timeline.Timeline`.
      width: Columns, of which some are for the names of the devices.

    Returns:
      Lines of at most `width` characters. Where the shortest task would have
      less than one and a half the end is cut off, as the last line says.

    Raises:
      ValueError: There is no room.
    """
    label = len(f"device {timeline.schedule.num_devices - 1} ")
    columns = width - label
    if columns < _FEWEST:
        raise ValueError(
            f"Argument `width` must be at least {label + _FEWEST}. Received: "
            f"width={width!r}"
        )
    tasks = [s for s in timeline.spans if s.end > s.start]
    shortest = min(span.end - span.start for span in tasks)
    end = min(timeline.makespan, shortest * columns / _NARROWEST)
    scale = columns / end
    rows = [["."] * columns for _ in range(timeline.schedule.num_devices)]
    for span in tasks:
        first, last = (
            min(columns, round(seconds * scale))
            for seconds in (span.start, span.end)
        )
        shown = last - first
        if shown > 0:
            rows[span.device][first:last] = _block(timeline, span.task, shown)
    lines = [
        f"device {device}".ljust(label) + "".join(row)
        for device, row in enumerate(rows)
    ]
    if end < timeline.makespan:
        part = 100 * end / timeline.makespan
        lines.append(f"(the first {part:.0f} % of the time)")
    return "\n".join(lines)


def picture(timeline, path):
    """The same as a picture, of the first 300 tasks or so.

    Args:
      timeline: A `timeline.Timeline`.
      path: Of the file, whose suffix says its format, such as PNG or SVG.

    Returns:
      A `matplotlib.figure.Figure`, None without matplotlib.
    """
    schedule = timeline.schedule
    figure = plots.new_figure(path, 11.0, 1.7 + 0.45 * schedule.num_devices)
    if figure is None:
        return None
    # Milliseconds, unless that is long.
    unit, scale = ("s", 1) if timeline.makespan >= 10 else ("ms", 1e3)
    end, cut = timeline.makespan, ""
    starts = sorted(span.start for span in timeline.spans)
    if len(starts) > _MOST_TASKS:
        end = starts[_MOST_TASKS]
        cut = f" (the first {100 * end / timeline.makespan:.0f} % are shown)"
    ax = plots.gantt_axes(
        figure,
        schedule.num_devices,
        end * scale,
        xlabel=unit,
        ylabel="device",
        title=(
            f"{schedule.name}: {schedule.num_stages} stages, "
            f"{schedule.num_units} micro-batches, bubble "
            f"{100 * timeline.bubble_fraction:.1f} %{cut}"
        ),
    )
    for span in timeline.spans:
        if span.start > end:
            continue
        if span.task.kind == "update":
            ax.vlines(
                span.start * scale,
                span.device - 0.5,
                span.device + 0.5,
                color="black",
                linewidth=1.2,
                zorder=3,
            )
        elif span.end > span.start:
            _draw(ax, timeline, span, scale, end)
    bars = {kind: {"facecolor": color} for kind, color in _COLORS.items()}
    plots.gantt_legend(figure, bars)
    return plots.save(figure, path)


def _block(timeline, task, columns):
    """The characters of one task."""
    name = task.kind[0].upper()
    number = _number(timeline, task)
    if len(name) + len(number) <= columns:
        name += number
    return list(name.ljust(columns, _FILL[task.kind]))


def _number(timeline, task):
    """Returns the label of a task among those of its kind on its device."""
    schedule = timeline.schedule
    if schedule.num_devices < schedule.num_stages:
        return f"{task.stage}.{task.unit}"
    return str(task.unit)


def _draw(ax, timeline, span, scale, end):
    """Draws a task as far as it lies before `end`, of the chart."""
    width = (min(span.end, end) - span.start) * scale
    ax.barh(
        span.device,
        width,
        0.8,
        span.start * scale,
        facecolor=_COLORS[span.task.kind],
        edgecolor="white",
        linewidth=0.6,
    )
    if width >= _SMALLEST_LABEL * end * scale:
        ax.text(
            span.start * scale + width / 2,
            span.device,
            _number(timeline, span.task),
            ha="center",
            va="center",
            fontsize="x-small",
        )
