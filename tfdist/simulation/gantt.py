"""A Gantt chart of the first steps of a simulated run."""

import numpy as np

from tfdist.simulation import plots

MOST_WORKERS = 16
"""More are not shown."""

# Of a job from `pulling` to `decided`: field in which it ends, label, colour.
_PHASES = (
    ("began", "pull", "#56B4E9"),
    ("computed", "compute", "#0072B2"),
    ("arrived", "push", "#E69F00"),
    ("decided", "wait", "#DDDDDD"),
)
_MANY_UPDATES = 30  # So many are drawn thinner, not to hide the bars.
_DROPPED = {"facecolor": "#777777", "edgecolor": "white", "hatch": "////"}
_LOST = {"facecolor": "white", "edgecolor": "#888888", "hatch": "...."}


def gantt(history, path, steps=6):
    """Draws a Gantt chart of the workers' first steps.

    Args:
      history: A `History`.
      path: Of the PNG.
      steps: Of the fastest worker.

    Returns:
      A `matplotlib.figure.Figure`, None without matplotlib.
    """
    shown = min(history.num_workers, MOST_WORKERS)
    picture = plots.new_figure(path, 11.0, 1.9 + 0.34 * shown)
    if picture is None:
        return None
    jobs = history.jobs[history.jobs["worker"] < shown]
    end = _end(jobs, shown, steps, history.seconds)
    jobs = jobs[jobs["pulling"] < end]
    cut = f" (the first {shown} are shown)" * (shown < history.num_workers)
    workers = "worker" if history.num_workers == 1 else "workers"
    ax = plots.gantt_axes(
        picture,
        shown,
        end,
        xlabel="virtual seconds",
        ylabel="worker",
        title=f"{history.method}, {history.num_workers} {workers}{cut}",
    )
    for worker in range(shown):
        own = jobs[jobs["worker"] == worker]
        for job, until in zip(own, [*own["pulling"][1:], end], strict=True):
            _draw(ax, job, min(until, end))
        # No edges of bars: they would hide short pushes and pulls.
        ax.vlines(
            own["pulling"],
            worker - 0.4,
            worker + 0.4,
            color="white",
            linewidth=0.8,
        )
    updates = history.update_seconds[history.update_seconds <= end]
    width = 0.9 if len(updates) <= _MANY_UPDATES else 0.4
    ax.vlines(
        updates, -0.5, shown - 0.5, color="black", linewidth=width, zorder=3
    )
    plots.gantt_legend(
        picture,
        {
            **{label: {"facecolor": color} for _, label, color in _PHASES},
            "dropped": _DROPPED,
            "lost (died)": _LOST,
        },
    )
    return plots.save(picture, path)


def _end(jobs, shown, steps, seconds):
    """Moment at which the first worker has done so many steps."""
    ends = []
    for worker in range(shown):
        decided = jobs["decided"][jobs["worker"] == worker]
        decided = decided[~np.isnan(decided)]
        if len(decided) >= steps:
            ends.append(decided[steps - 1])
    return float(min(ends)) if ends else seconds or 1.0


def _draw(ax, job, end):
    """Draws a job as far as it lies before `end`, of the chart or its own."""
    begin = job["pulling"]
    for field, _, color in _PHASES:
        until = job[field]
        bar = {
            "facecolor": color,
            "edgecolor": "white",
            "hatch": "" if job["accepted"] else "////",
            "linewidth": 0,
        }
        if np.isnan(until):
            # When its worker died, within this time, is not recorded.
            until, bar = end, _LOST
        width = min(until, end) - begin
        if width > 0:
            ax.barh(job["worker"], width, 0.8, begin, **bar)
        if np.isnan(job[field]):
            return
        begin = until
