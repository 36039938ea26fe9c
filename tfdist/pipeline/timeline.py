"""Timeline of a schedule's tasks, for given times of the stages."""

import collections.abc
import dataclasses
import functools
import math
import numbers
from typing import NamedTuple

import numpy as np

from tfdist.pipeline import schedules
from tfdist.placement import timeline as placed


class Span(NamedTuple):
    """Begin and end of a task.

    Attributes:
      task: A `schedules.StageTask`.
      device: Its number.
      start: Seconds.
      end: Seconds.
    """

    task: schedules.StageTask
    device: int
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A schedule that has been executed, see `play`.

    Attributes:
      schedule: The `PipelineSchedule`.
      spans: Of all tasks, a tuple of `Span`s, by device and then by time.
      unit_seconds: Of one micro-batch on one device that holds all stages:
        forward and backward, without recomputation.
      peak_bytes: The most bytes of activations at once on each device,
        (num_devices,) float64, or None where sizes were not given.
    """

    schedule: schedules.PipelineSchedule
    spans: tuple[Span, ...]
    unit_seconds: float
    peak_bytes: np.ndarray | None = None

    @functools.cached_property
    def makespan(self):
        """Seconds from the first task to the end of the last."""
        return max(span.end for span in self.spans)

    @functools.cached_property
    def busy_seconds(self):
        """Seconds that each device computes, (num_devices,) float64."""
        busy = np.zeros(self.schedule.num_devices)
        for span in self.spans:
            busy[span.device] += span.end - span.start
        return busy

    @property
    def bubble_fractions(self):
        """The part of the makespan that each device idles.

        Returns:
          (num_devices,) float64, 0 to 1.
        """
        return 1 - self.busy_seconds / self.makespan

    @property
    def bubble_fraction(self):
        """The part of all devices' time that is idle, 0 to 1.

        For K equal stages without transfers it is (K - 1) / (M + K - 1), M
        being the micro-batches between two flushes (Huang et al. 2019,
        section 2.3).
        """
        return float(np.mean(self.bubble_fractions))

    @property
    def speed_up(self):
        """Times as fast as one device that holds all stages."""
        return self.schedule.num_units * self.unit_seconds / self.makespan

    @property
    def ideal_speed_up(self):
        """The speed-up of stages of equal times without transfers.

        That is M K / (M + K - 1), M being the micro-batches between two
        flushes. Where blocks share devices it is the number of devices.
        Unequal stages can come to a little more: a first stage that is
        longer than the last makes the last wait for less.
        """
        stages = self.schedule.num_stages
        if self.schedule.num_devices < stages:
            return float(self.schedule.num_devices)
        units = self.schedule.num_units
        if self.schedule.name in schedules.SYNCHRONOUS:
            units = self.schedule.batch_units
        return units * stages / (units + stages - 1)


def play(
    schedule,
    forward_seconds,
    backward_seconds=None,
    transfer_seconds=0.0,
    *,
    recompute=False,
    activation_bytes=None,
    boundary_bytes=None,
):
    """Executes a schedule: each task begins as soon as it can.

    A device executes one task at a time, in the order of the schedule. What
    crosses from a stage to the next one or back travels while devices
    compute; what crosses in one direction between two stages goes one after
    the other. Updates take no time.

    Args:
      schedule: A `schedules.PipelineSchedule`.
      forward_seconds: Of one micro-batch at each stage, a number or a
        sequence of K numbers.
      backward_seconds: The same. Default: twice as long as forward, since
        there are two products to a forward's one, for the gradients of the
        inputs and of the weights.
      transfer_seconds: From each stage to the next one and back, a number or
        a sequence of K - 1 numbers. Stages of one device need none.
      recompute: Whether a backward computes its forward again, which then
        keeps nothing but its input.
      activation_bytes: What the backward of one micro-batch needs of its
        forward at each stage, a number or a sequence of K numbers.
      boundary_bytes: Of the inputs of one micro-batch at each stage, the
        same; they are counted with `recompute` alone, else activations
        include them.

    Returns:
      A `Timeline`.

    Raises:
      ValueError: A number is negative or not finite, a sequence has another
        length, all times are 0, or sizes are missing.
    """
    stages = schedule.num_stages
    forward = _per_stage("forward_seconds", forward_seconds, stages)
    if backward_seconds is None:
        backward = [2 * seconds for seconds in forward]
    else:
        backward = _per_stage("backward_seconds", backward_seconds, stages)
    unit_seconds = sum(forward) + sum(backward)
    if not unit_seconds:
        raise ValueError(
            "Argument `forward_seconds` or `backward_seconds` must be above 0 "
            f"somewhere. Received: forward_seconds={forward_seconds!r}, "
            f"backward_seconds={backward_seconds!r}"
        )
    transfer = _per_stage("transfer_seconds", transfer_seconds, stages - 1)
    if recompute:
        backward = [f + b for f, b in zip(forward, backward, strict=True)]
    sizes = _sizes(stages, activation_bytes, boundary_bytes, recompute)
    seconds = {
        "forward": forward,
        "backward": backward,
        "update": [0.0] * stages,
    }
    return Timeline(
        schedule,
        _spans(schedule, seconds, transfer),
        unit_seconds,
        None if sizes is None else _peak_bytes(schedule, *sizes),
    )


def _spans(schedule, seconds, transfer):
    """The `Span`s of all tasks, which have seconds by kind and stage."""
    devices = schedule.devices
    tasks = [task for order in schedule.orders for task in order]
    number = {task: place for place, task in enumerate(tasks)}
    homes = [devices[task.stage] for task in tasks]
    waits, here, there = [], [[] for _ in tasks], [[] for _ in tasks]
    for place, task in enumerate(tasks):
        needed = schedule.dependencies(task)
        waits.append(len(needed))
        for before in needed:
            # What a stage has made itself is there when it ends.
            near = homes[number[before]] == homes[place]
            (here if near else there)[number[before]].append(place)

    def after(place):
        task, consumers = tasks[place], there[place]
        if not consumers:
            return here[place], ()
        cut = min(task.stage, tasks[consumers[0]].stage)
        message = task[:2], transfer[cut], consumers
        return here[place], [message]

    begins, ends, _ = placed.play(
        [seconds[task.kind][task.stage] for task in tasks],
        homes,
        waits,
        range(len(tasks)),
        after,
    )
    return tuple(map(Span, tasks, homes, begins, ends))


def _peak_bytes(schedule, kept, recomputed):
    """The most bytes at once on each device, (num_devices,) float64.

    Args:
      schedule: A `PipelineSchedule`.
      kept: Bytes of each stage from a forward to the end of its backward.
      recomputed: Those that there are during the backward beside these.
    """
    peaks = np.zeros(schedule.num_devices)
    for device, order in enumerate(schedule.orders):
        now = 0.0
        for kind, stage, _ in order:
            if kind == "forward":
                now += kept[stage]
                peaks[device] = max(peaks[device], now)
            elif kind == "backward":
                peaks[device] = max(peaks[device], now + recomputed[stage])
                now -= kept[stage]
    return peaks


def _sizes(stages, activation_bytes, boundary_bytes, recompute):
    """The arguments of `_peak_bytes`, None if there are no sizes."""
    if not recompute:
        if activation_bytes is None:
            return None
        kept = _per_stage("activation_bytes", activation_bytes, stages)
        return kept, [0.0] * stages
    given = [size is not None for size in (activation_bytes, boundary_bytes)]
    if not any(given):
        return None
    if not all(given):
        raise ValueError(
            "Arguments `activation_bytes` and `boundary_bytes` must both be "
            "given with recompute. Received: "
            f"activation_bytes={activation_bytes!r}, "
            f"boundary_bytes={boundary_bytes!r}"
        )
    return (
        _per_stage("boundary_bytes", boundary_bytes, stages),
        _per_stage("activation_bytes", activation_bytes, stages),
    )


def _per_stage(name, value, length):
    """A list of so many floats, of a number or a sequence of numbers."""
    is_number = isinstance(value, numbers.Real)
    is_sequence = isinstance(value, collections.abc.Iterable)
    given = list(value) if is_sequence else [value]
    good = all(
        isinstance(v, numbers.Real)
        and not isinstance(v, bool)
        and 0 <= v < math.inf
        for v in given
    )
    if not good or (not is_number and len(given) != length):
        raise ValueError(
            f"Argument `{name}` must be a number, or {length} numbers, finite "
            f"and at least 0. Received: {name}={value!r}"
        )
    return [float(v) for v in given] * (length if is_number else 1)
