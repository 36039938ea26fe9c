"""Pipelines in `tfdist simulate` and `tfdist compare`.

A schedule of a pipeline is played with given times of the stages: nothing is
trained, so the flags of models, data and clusters do not go with these.
"""

from collections.abc import Sequence
import csv
import json
import math
import pathlib
from typing import Any

from absl import flags

from tfdist.cli import simulation_flags
from tfdist.cli import usage
from tfdist.cli import user_function

NAMES = (
    "gpipe",
    "1f1b",
    "pipedream",
    "pipedream_2bw",
    "spectrain",
    "ftpipe",
)
"""The names in `tfdist.pipeline.schedules`, known without TensorFlow."""

_SHARED = ("help", "output_dir")


def define_flags(values: flags.FlagValues, many: bool) -> None:
    """Defines the flags of pipelines.

    Args:
        values: of the sub-command.
        many: whether it compares schedules, or shows one.
    """
    define = usage.Definer(values, __name__)
    listed = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
    if many:
        define.list(
            "pipelines",
            None,
            "Compare schedules of a pipeline instead of methods: "
            f"{listed}, separated by commas. Needs --stage_times.",
        )
    else:
        define.enum(
            "pipeline",
            None,
            NAMES,
            "Play this schedule of a pipeline instead of a method. Needs "
            "--stage_times.",
        )
    define.list(
        "stage_times",
        None,
        "Milliseconds that a micro-batch takes at each stage, separated by "
        "commas: FORWARD or FORWARD:BACKWARD; backward alone is twice as "
        "long. The stages of ftpipe are its blocks.",
    )
    define.integer("micro_batches", 8, "Micro-batches of one batch.")
    define.integer(
        "batches",
        10 if many else 1,
        "Number of consecutive batches. Use several to see the benefit of "
        "asynchronous schedules.",
    )
    define.list(
        "transfer_ms",
        ["0"],
        "Milliseconds from a stage to the next one and back: one number, or "
        "one for each pair of neighbours, separated by commas.",
    )
    define.list(
        "stage_devices",
        None,
        "Of ftpipe: the device of each block, separated by commas, as in "
        "0,1,0,1. Default: a device for each.",
    )
    define.bool(
        "recompute",
        False,
        "Each backward computes its forward again, instead of keeping all "
        "activations.",
    )
    define.list(
        "activation_mb",
        None,
        "Megabytes of activations of a micro-batch at each stage, which its "
        "backward needs: one number, or one for each stage.",
    )
    define.list(
        "boundary_mb",
        None,
        "Megabytes of each stage's input per micro-batch. With --recompute, "
        "only these are kept.",
    )


def is_asked_for(values: flags.FlagValues) -> bool:
    """Whether the flags are about pipelines.

    Raises:
        UsageError: if some are, and others are about a run.
    """
    own = {flag.name for flag in values.flags_by_module_dict()[__name__]}
    (main,) = own & {"pipeline", "pipelines"}
    present = [name for name in values if values[name].present]
    if values[main].value is None:
        for name in present:
            usage.check(
                name not in own,
                name,
                f"be given together with --{main}",
                _received(values, name),
            )
        return False
    for name in present:
        usage.check(
            name in own or name in _SHARED,
            name,
            f"not be given beside --{main}, which trains nothing",
            _received(values, name),
        )
    usage.check(
        values.stage_times is not None,
        main,
        "be given together with --stage_times",
        _received(values, main),
    )
    return True


def listing(values: flags.FlagValues) -> str:
    """Returns the help of the flags of pipelines."""
    return f"Flags of pipelines:\n{usage.listing(values, __name__)}"


def show(values: flags.FlagValues) -> None:
    """Plays one schedule, prints it and writes it.

    Args:
        values: parsed flags of `tfdist simulate`.

    Raises:
        UsageError: if a flag is wrong.
    """
    (line,) = _play("pipeline", [values.pipeline], values)
    output_dir = simulation_flags.make_output_dir(values)

    from tfdist.pipeline import gantt
    from tfdist.pipeline import tables

    figures = tables.figures(line)
    print(f"{gantt.text(line)}\n")
    print(f"{tables.of_devices(line)}\n")
    print(tables.of_figures([figures]))
    _write_json(output_dir / "pipeline.json", figures | _spans(line))
    gantt.picture(line, output_dir / "pipeline.png")
    print(f"\nResults: {output_dir}")


def compare(values: flags.FlagValues) -> None:
    """Plays several schedules, prints a table and writes them.

    Args:
        values: parsed flags of `tfdist compare`.

    Raises:
        UsageError: if a flag is wrong.
    """
    names = values.pipelines
    usage.check(
        0 < len(names) == len(set(names)) and set(names) <= set(NAMES),
        "pipelines",
        f"be some of {', '.join(NAMES)}, each once",
        ",".join(names),
    )
    lines = _play("pipelines", names, values)
    output_dir = simulation_flags.make_output_dir(values)

    from tfdist.pipeline import gantt
    from tfdist.pipeline import tables

    rows = [tables.figures(line) for line in lines]
    print(tables.of_figures(rows))
    _write_json(output_dir / "pipelines.json", {"rows": rows})
    path = output_dir / "pipelines.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    for name, line in zip(names, lines, strict=True):
        gantt.picture(line, output_dir / f"pipeline_{name}.png")
    print(f"\nResults: {output_dir}")


def _play(
    flag: str, names: Sequence[str], values: flags.FlagValues
) -> list[Any]:
    """Returns the `Timeline` of each schedule.

    Args:
        flag: name of the flag that they come from.
        names: of the schedules.
        values: parsed flags.
    """
    settings = _settings(values)
    devices = _devices(names, values)
    user_function.import_quietly("tfdist.simulation")
    from tfdist.pipeline import schedules
    from tfdist.pipeline import timeline

    lines = []
    for name in names:
        try:
            schedule = schedules.make(
                name,
                len(values.stage_times),
                values.micro_batches,
                values.batches,
                devices if name == "ftpipe" else None,
            )
        except ValueError as error:
            fault = "stage_devices" if name == "ftpipe" else "micro_batches"
            raise usage.UsageError(
                f"Flag --{fault} must fit --{flag} and --stage_times: {error}"
            ) from error
        lines.append(timeline.play(schedule, **settings))
    return lines


def _devices(
    names: Sequence[str], values: flags.FlagValues
) -> list[int] | None:
    """The devices of ftpipe's blocks."""
    texts = values.stage_devices
    if texts is None:
        return None
    usage.check(
        "ftpipe" in names,
        "stage_devices",
        "be given for ftpipe alone",
        ",".join(texts),
    )
    usage.check(
        all(text.isdecimal() for text in texts),
        "stage_devices",
        "be numbers of devices from 0, separated by commas",
        ",".join(texts),
    )
    return [int(text) for text in texts]


def _settings(values: flags.FlagValues) -> dict[str, Any]:
    """The keyword arguments of `timeline.play`; seconds and bytes."""
    forward, backward = [], []
    received = ",".join(values.stage_times)
    for text in values.stage_times:
        first, colon, second = text.partition(":")
        times = [_number(first)]
        times.append(_number(second) if colon else 2 * times[0])
        usage.check(
            all(0 <= time < math.inf for time in times) and sum(times) > 0,
            "stage_times",
            "be milliseconds FORWARD or FORWARD:BACKWARD of at least one "
            "stage, separated by commas",
            received,
        )
        forward.append(times[0] / 1e3)
        backward.append(times[1] / 1e3)
    usage.check(
        bool(forward), "stage_times", "have at least one stage", received
    )
    for name in ("micro_batches", "batches"):
        value = values[name].value
        usage.check(value >= 1, name, "be at least 1", value)
    stages = len(forward)
    settings = {
        "forward_seconds": forward,
        "backward_seconds": backward,
        "transfer_seconds": _sizes(values, "transfer_ms", stages - 1, 1e-3),
        "recompute": values.recompute,
    }
    for name, argument in (
        ("activation_mb", "activation_bytes"),
        ("boundary_mb", "boundary_bytes"),
    ):
        if values[name].value is not None:
            settings[argument] = _sizes(values, name, stages, 1e6)
    activations, boundaries = (
        name in settings for name in ("activation_bytes", "boundary_bytes")
    )
    usage.check(
        not boundaries or (values.recompute and activations),
        "boundary_mb",
        "be given together with --recompute and --activation_mb",
        _received(values, "boundary_mb"),
    )
    usage.check(
        boundaries or not (values.recompute and activations),
        "activation_mb",
        "with --recompute be given together with --boundary_mb",
        _received(values, "activation_mb"),
    )
    return settings


def _sizes(
    values: flags.FlagValues, name: str, number: int, factor: float
) -> float | list[float]:
    """One number for all, or a list of so many, times `factor`."""
    texts = values[name].value
    found = [_number(text) for text in texts]
    usage.check(
        all(0 <= value < math.inf for value in found)
        and len(found) in (1, number),
        name,
        f"be one number or {number}, of at least 0, separated by commas",
        ",".join(texts),
    )
    scaled = [value * factor for value in found]
    return scaled[0] if len(scaled) == 1 else scaled


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _spans(line: Any) -> dict[str, Any]:
    return {
        "bubbles": line.bubble_fractions.tolist(),
        "tasks": [
            {
                "kind": span.task.kind,
                "stage": span.task.stage,
                "unit": span.task.unit,
                "device": span.device,
                "start_ms": 1e3 * span.start,
                "end_ms": 1e3 * span.end,
            }
            for span in line.spans
        ],
    }


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")


def _received(values: flags.FlagValues, name: str) -> str:
    value = values[name].value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)
