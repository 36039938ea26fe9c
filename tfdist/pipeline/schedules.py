"""The schedules of pipelines: who computes what, in which order.

A model is cut into stages 0 to K - 1. A batch is cut into units, its
micro-batches, which pass through the stages one after the other, forward and
then backward. A schedule is the order of these tasks on each device; it knows
no times, which `timeline.play` adds, and no weights, see `versions`.
"""

import collections
import dataclasses
import functools
import itertools
import numbers
from typing import NamedTuple

from tfdist import checks
from tfdist.placement import chain

SYNCHRONOUS = chain.SYNCHRONOUS
ASYNCHRONOUS = chain.ASYNCHRONOUS
NAMES = chain.SCHEDULES
KINDS = ("forward", "backward", "update")


class StageTask(NamedTuple):
    """A piece of work of one stage.

    Attributes:
      kind: "forward", "backward" or "update".
      stage: From 0, where the inputs come in.
      unit: Number of the micro-batch, from 0; of an update that of the last
        one whose gradient is in it.
    """

    kind: str
    stage: int
    unit: int

    def __str__(self):
        return f"{self.kind}(stage={self.stage}, unit={self.unit})"


@dataclasses.dataclass(frozen=True)
class PipelineSchedule:
    """The order of tasks on each device.

    It is checked to be complete and free of deadlock.

    Attributes:
      name: For titles; if one of `NAMES`, it says which weights tasks use.
      orders: The `StageTask`s of each device, a tuple of tuples, in the order
        in which the device executes them.
      devices: The number of the device of each stage, a tuple of ints.
      batch_units: Micro-batches of one update, an int.

    Raises:
      ValueError: A task is missing, comes twice or is on another device than
        its stage; a gradient is in no update; or tasks wait for each other.
    """

    name: str
    orders: tuple[tuple[StageTask, ...], ...]
    devices: tuple[int, ...]
    batch_units: int = 1

    def __post_init__(self):
        _check_complete(self)
        _check_free_of_deadlock(self)

    @property
    def num_stages(self):
        """Number of stages, K."""
        return len(self.devices)

    @property
    def num_devices(self):
        """Number of devices: K, or less if stages share them."""
        return len(self.orders)

    @functools.cached_property
    def num_units(self):
        """Number of micro-batches that pass through, of all batches."""
        last = self.num_stages - 1
        return sum(task.kind == "forward" for task in self.stages[last])

    @functools.cached_property
    def stages(self):
        """The tasks of each stage in their order, a tuple of K tuples."""
        found = [[] for _ in self.devices]
        for order in self.orders:
            for task in order:
                found[task.stage].append(task)
        return tuple(map(tuple, found))

    def dependencies(self, task):
        """Returns the tasks that have to be done before a task can begin.

        F(s, u) needs F(s - 1, u); B(s, u) needs B(s + 1, u) and F(s, u); an
        update needs the backward of its unit; and each needs what stands
        before it in the order of its device.

        Args:
          task: A `StageTask` of this schedule.

        Returns:
          A list of `StageTask`s.

        Raises:
          ValueError: The task is none of this schedule.
        """
        if task not in self._before:
            raise ValueError(
                f"Argument `task` must be one of this {self.name} schedule. "
                f"Received: task={task}"
            )
        found = inputs(task, self.num_stages)
        before = self._before[task]
        if before is not None and before not in found:
            found.append(before)
        return found

    @functools.cached_property
    def _before(self):
        """Task -> what stands before it on its device, None: nothing."""
        return {
            task: before
            for order in self.orders
            for before, task in itertools.pairwise((None, *order))
        }


def make(name, num_stages, micro_batches, batches=1, devices=None):
    """One of the schedules that are known by name.

    - "gpipe": all forwards, then all backwards in the reverse order of the
      micro-batches, then one update (Huang et al. 2019, figure 2).
    - "1f1b": the same with each backward as early as it can be: stage s does
      min(M, K - s - 1) forwards to warm up, then a forward and a backward in
      turn, then the backwards that are left (PipeDream-Flush, Narayanan et
      al. 2021, section 3.2).
    - "pipedream" (Harlap et al. 2018), "spectrain" (Chen et al. 2018):
      forward and backward in turn without ever emptying the pipeline, and an
      update after each backward. In half-ticks h = 0, 1, 2, ... stage s does
      the forward of unit (h - s) / 2 where h - s is even, otherwise the
      backward of unit (h - (2 K - 1 - s)) / 2, if there is such a unit.
    - "pipedream_2bw": the same with an update after each M-th backward;
      M >= K (Narayanan et al. 2021, section 3.1).
    - "ftpipe": the same as "pipedream", of blocks as stages, of which
      several that are not neighbours may be on one device (Eliad et al.
      2021). Where a half-tick has work for several blocks of one, backward
      comes before forward, which frees memory, then the later block.

    Args:
      name: One of `NAMES`.
      num_stages: Number of stages, or of ftpipe's blocks, K.
      micro_batches: Of one batch, M.
      batches: That follow each other.
      devices: Of "ftpipe" alone: the device of each block, a sequence of K
        ints that are 0 to P - 1, such as [0, 1, 0, 1]. Default: one for each.

    Returns:
      A `PipelineSchedule` of M * batches units.

    Raises:
      ValueError: An argument is none of those.
    """
    checks.one_of("name", name, NAMES)
    num_stages = checks.count("num_stages", num_stages)
    micro_batches = checks.count("micro_batches", micro_batches)
    batches = checks.count("batches", batches)
    if name == "pipedream_2bw" and micro_batches < num_stages:
        raise ValueError(
            "Argument `micro_batches` must be at least the number of stages, "
            f"{num_stages}, with pipedream_2bw, for two versions of weights "
            f"to be enough. Received: micro_batches={micro_batches}"
        )
    if devices is None:
        devices = range(num_stages)
    elif name != "ftpipe":
        raise ValueError(
            "Argument `devices` must be None except for ftpipe: others have "
            f"one device for each stage. Received: devices={devices!r} for "
            f"{name}"
        )
    devices = check_devices(devices, num_stages)
    if name in SYNCHRONOUS:
        order = _gpipe if name == "gpipe" else _one_forward_one_backward
        orders = tuple(
            tuple(
                StageTask(kind, stage, batch * micro_batches + unit)
                for batch in range(batches)
                for kind, unit in (
                    *order(stage, num_stages, micro_batches),
                    ("update", micro_batches - 1),
                )
            )
            for stage in range(num_stages)
        )
        return PipelineSchedule(name, orders, devices, micro_batches)
    batch_units = micro_batches if name == "pipedream_2bw" else 1
    return PipelineSchedule(
        name,
        _half_ticks(devices, micro_batches * batches, batch_units),
        devices,
        batch_units,
    )


def in_flight(schedule):
    """The most micro-batches whose activations each stage holds at once.

    Of M micro-batches "gpipe" holds M everywhere, all others hold
    min(M, K - s) at stage s.

    Args:
      schedule: A `PipelineSchedule`.

    Returns:
      A tuple of K ints: units forwarded and not yet backwarded.
    """
    steps = {"forward": 1, "backward": -1, "update": 0}
    return tuple(
        max(itertools.accumulate(steps[task.kind] for task in tasks))
        for tasks in schedule.stages
    )


def inputs(task, num_stages):
    """The tasks whose results a task needs, a list of `StageTask`s."""
    kind, stage, unit = task
    if kind == "update":
        return [StageTask("backward", stage, unit)]
    if kind == "forward":
        return [StageTask(kind, stage - 1, unit)] if stage else []
    found = [StageTask("forward", stage, unit)]
    if stage + 1 < num_stages:
        found.insert(0, StageTask(kind, stage + 1, unit))
    return found


def check_devices(devices, num_stages):
    """The devices of blocks, as a tuple.

    Raises:
      ValueError: They are not `num_stages` integers from 0 without a gap, or
        neighbours share one: these would better be one block.
    """
    devices = tuple(devices)
    good = (
        len(devices) == num_stages
        and all(isinstance(d, numbers.Integral) for d in devices)
        and set(devices) == set(range(len(set(devices))))
    )
    if not good:
        raise ValueError(
            f"Argument `devices` must be {num_stages} integers, one for each "
            "stage, that are 0 to P - 1 without a gap. Received: "
            f"devices={list(devices)!r}"
        )
    for stage, (one, other) in enumerate(itertools.pairwise(devices)):
        if one == other:
            raise ValueError(
                "Argument `devices` must differ for neighbours, else they are "
                f"one block. Received: device {one} for the blocks {stage} "
                f"and {stage + 1}, of devices={list(devices)!r}"
            )
    return tuple(int(device) for device in devices)


def _gpipe(stage, num_stages, micro_batches):
    """The pairs of kind and unit of one batch, without the update."""
    for unit in range(micro_batches):
        yield "forward", unit
    for unit in reversed(range(micro_batches)):
        yield "backward", unit


def _one_forward_one_backward(stage, num_stages, micro_batches):
    warm_up = min(micro_batches, num_stages - stage - 1)
    for unit in range(warm_up):
        yield "forward", unit
    for unit in range(micro_batches):
        if warm_up + unit < micro_batches:
            yield "forward", warm_up + unit
        yield "backward", unit


def _half_ticks(devices, num_units, batch_units):
    """The orders of asynchronous schedules, tuples of `StageTask`s."""
    num_stages = len(devices)
    orders = [[] for _ in range(max(devices) + 1)]
    # In the order in which blocks of one device take their turns.
    stages = range(num_stages - 1, -1, -1)
    for tick in range(2 * (num_stages + num_units - 1)):
        for stage in stages:
            unit, odd = divmod(tick - (2 * num_stages - 1 - stage), 2)
            if odd or not 0 <= unit < num_units:
                continue
            order = orders[devices[stage]]
            order.append(StageTask("backward", stage, unit))
            if (unit + 1) % batch_units == 0:
                order.append(StageTask("update", stage, unit))
        for stage in stages:
            unit, odd = divmod(tick - stage, 2)
            if not odd and 0 <= unit < num_units:
                orders[devices[stage]].append(StageTask("forward", stage, unit))
    return tuple(map(tuple, orders))


def _check_complete(schedule):
    """Refuses what is missing, twice, or in a wrong place."""

    def refuse(problem):
        raise ValueError(f"orders of the schedule {schedule.name!r}: {problem}")

    devices = schedule.devices
    if not devices or set(devices) != set(range(len(schedule.orders))):
        refuse(
            f"there must be one for each of the devices {devices}. "
            f"Received: {len(schedule.orders)}."
        )
    counts = collections.Counter()
    for device, order in enumerate(schedule.orders):
        for task in order:
            if task.kind not in KINDS:
                refuse(f"kind must be one of {KINDS}. Received: {task}.")
            if not 0 <= task.stage < len(devices):
                refuse(f"there is no such stage: {task}.")
            if devices[task.stage] != device:
                refuse(
                    f"{task} must be on device {devices[task.stage]}. "
                    f"Received: it is on {device}."
                )
            counts[task] += 1
    for task, count in counts.items():
        if count > 1:
            refuse(f"{task} comes {count} times.")
    num_units = schedule.num_units
    if not num_units:
        refuse("there must be a forward of at least one micro-batch.")
    for stage, unit, kind in itertools.product(
        range(len(devices)), range(num_units), KINDS[:2]
    ):
        if StageTask(kind, stage, unit) not in counts:
            refuse(f"{StageTask(kind, stage, unit)} is missing.")
    for task in counts:
        if not 0 <= task.unit < num_units:
            refuse(f"there is no such micro-batch: {task}.")
    for tasks in schedule.stages:
        waiting = None
        for task in tasks:
            if task.kind == "backward":
                waiting = task
            elif task.kind == "update":
                waiting = None
        if waiting is not None:
            refuse(f"there must be an update after {waiting}.")


def _check_free_of_deadlock(schedule):
    """Executes the tasks as soon as they can be; all have to be, then."""
    done = set()
    heads = [collections.deque(order) for order in schedule.orders]
    progress = True
    while progress:
        progress = False
        for head in heads:
            while head and done.issuperset(
                inputs(head[0], schedule.num_stages)
            ):
                done.add(head.popleft())
                progress = True
    stuck = [head[0] for head in heads if head]
    if stuck:
        task = stuck[0]
        missing = [
            str(needed)
            for needed in inputs(task, schedule.num_stages)
            if needed not in done
        ]
        raise ValueError(
            f"orders of the schedule {schedule.name!r}: tasks wait for each "
            f"other for ever (deadlock): {task} needs "
            f"{' and '.join(missing)}, which never begins."
        )
