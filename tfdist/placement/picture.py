"""A report of a placement as text: a table, and what goes where."""

from tfdist import tables
from tfdist.placement import devices as devices_lib

_WIDTH = 28
_BOXES = 6


def draw(report):
    """The table and the picture of a `Report`.

    Args:
      report: A `tfdist.placement.Report`.

    Returns:
      Text of several lines.
    """
    return "\n".join([_table(report), "", *_boxes(report)])


def _table(report):
    titles = ["layer", "kind", "operations on", "variables on"]
    titles += ["ops", "parameters", "memory", "output"]
    rows = [
        [
            row.path or ("(model)" if row.kind[0] != "(" else tables.NONE),
            row.kind,
            _names(row.devices),
            _names(row.variable_devices),
            f"{row.operations:,}",
            f"{row.parameters:,}",
            size(row.memory),
            size(row.output),
        ]
        for row in report.rows
    ]
    if any(row.seconds is not None for row in report.rows):
        titles.append("ms")
        for cells, row in zip(rows, report.rows, strict=True):
            cells.append(tables.number(row.seconds and 1e3 * row.seconds, 2))
    what = "a training step" if report.training else "the forward pass"
    return (
        f"{what} with a batch of {report.batch_size}, as traced\n\n"
        + tables.aligned(titles, rows, left=4)
    )


def _names(devices):
    if not devices:
        return tables.NONE
    return ", ".join(devices_lib.short(device) for device in devices)


def _boxes(report):
    """Each device with its layers, and the arrows between devices."""
    layers = {}
    for row in report.rows:
        if row.devices and row.path:
            layers.setdefault(row.devices[0], []).append(row.path)
    lines = []
    for device in sorted(layers):
        names = layers[device]
        shown = names[:_BOXES]
        if len(names) > _BOXES:
            shown.append(f"... {len(names) - _BOXES} more")
        title = f" {devices_lib.short(device)} "
        width = max(_WIDTH, len(title) + 2, *(len(n) + 2 for n in shown))
        lines.append("+" + title.center(width, "-") + "+")
        lines += [f"| {name}".ljust(width + 1) + "|" for name in shown]
        lines.append("+" + "-" * width + "+")
        lines += [
            f"    --> {devices_lib.short(crossing.target)}: "
            f"{crossing.tensors} tensors, {size(crossing.bytes)}"
            for crossing in report.crossings
            if crossing.source == device
        ]
    return lines


def size(count):
    """Bytes as one would say them: "512 B", "1.5 KiB", "3.0 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
