"""Figures of schedules that have been played, as text for a person."""

from tfdist import tables
from tfdist.pipeline import schedules
from tfdist.pipeline import versions

# Name of a figure -> title of its column, and its form.
_COLUMNS = {
    "schedule": ("schedule", "{}"),
    "devices": ("devices", "{}"),
    "makespan_ms": ("makespan ms", "{:.1f}"),
    "speed_up": ("speed-up", "{:.2f}"),
    "of_ideal": ("of ideal", "{:.1%}"),
    "bubble": ("bubble", "{:.1%}"),
    "in_flight": ("in flight", "{}"),
    "weight_versions": ("versions", "{}"),
    "peak_mb": ("peak MB", "{:.1f}"),
}


def figures(timeline):
    """Returns the figures of a schedule, for one row of a table.

    Args:
      timeline: A `timeline.Timeline` of a schedule that is known by name.

    Returns:
      A dict: schedule (its name), devices, makespan_ms, speed_up over one
      device, of_ideal (the part of `ideal_speed_up`), bubble (0 to 1),
      in_flight and weight_versions (the most that a stage holds), and
      peak_mb of the fullest device where sizes are known.
    """
    schedule = timeline.schedule
    found = {
        "schedule": schedule.name,
        "devices": schedule.num_devices,
        "makespan_ms": 1e3 * timeline.makespan,
        "speed_up": timeline.speed_up,
        "of_ideal": timeline.speed_up / timeline.ideal_speed_up,
        "bubble": timeline.bubble_fraction,
        "in_flight": max(schedules.in_flight(schedule)),
        "weight_versions": max(versions.kept_versions(schedule)),
    }
    if timeline.peak_bytes is not None:
        found["peak_mb"] = float(max(timeline.peak_bytes)) / 1e6
    return found


def of_figures(rows):
    """A table of what `figures` returns, of one or several schedules."""
    forms = [_COLUMNS[name] for name in rows[0]]
    return tables.aligned(
        [title for title, _ in forms],
        [
            [
                form.format(value).replace("%", " %")
                for (_, form), value in zip(forms, row.values(), strict=True)
            ]
            for row in rows
        ],
    )


def of_devices(timeline):
    """A table with a row for each device of a schedule."""
    schedule = timeline.schedule
    in_flight = schedules.in_flight(schedule)
    titles = ["device", "stages", "busy ms", "bubble", "in flight"]
    has_bytes = timeline.peak_bytes is not None
    rows = []
    for device in range(schedule.num_devices):
        stages = [
            stage for stage, d in enumerate(schedule.devices) if d == device
        ]
        row = [
            str(device),
            " ".join(map(str, stages)),
            f"{1e3 * timeline.busy_seconds[device]:.1f}",
            # Rounding errors of no bubble at all are not negative ones.
            tables.percent(max(0, timeline.bubble_fractions[device])),
            " ".join(str(in_flight[stage]) for stage in stages),
        ]
        if has_bytes:
            row.append(f"{timeline.peak_bytes[device] / 1e6:.1f}")
        rows.append(row)
    return tables.aligned(titles + ["peak MB"] * has_bytes, rows)
