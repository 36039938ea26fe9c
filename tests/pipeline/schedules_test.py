"""Schedules hold the orders of the papers, complete and without deadlock."""

import dataclasses
import itertools
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tfdist.pipeline import schedules
from tfdist.pipeline.schedules import StageTask

ANY = st.sampled_from(schedules.NAMES)
SMALL = st.integers(1, 6)


def made(name, stages, micro_batches, batches=1):
    if name == "pipedream_2bw":
        micro_batches = max(micro_batches, stages)
    return schedules.make(name, stages, micro_batches, batches)


def written(tasks):
    """Tasks of a stage as people write them: F0 F1 B0 U0."""
    return " ".join(f"{task.kind[0].upper()}{task.unit}" for task in tasks)


# The orders that the papers draw.


def test_gpipe_goes_back_in_the_reverse_order():
    schedule = schedules.make("gpipe", 2, 3)
    line = "F0 F1 F2 B2 B1 B0 U2"
    assert [written(tasks) for tasks in schedule.stages] == [line, line]


def test_1f1b_warms_up_alternates_and_drains():
    schedule = schedules.make("1f1b", 4, 5)
    assert [written(tasks) for tasks in schedule.stages] == [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 U4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4 U4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 U4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 U4",
    ]


def test_1f1b_warms_up_with_no_more_than_there_is():
    schedule = schedules.make("1f1b", 4, 2)
    assert written(schedule.stages[0]) == "F0 F1 B0 B1 U1"
    assert written(schedule.stages[2]) == "F0 F1 B0 B1 U1"


def test_batches_follow_each_other():
    schedule = schedules.make("1f1b", 2, 2, batches=2)
    assert [written(tasks) for tasks in schedule.stages] == [
        "F0 F1 B0 B1 U1 F2 F3 B2 B3 U3",
        "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3",
    ]
    assert (schedule.num_units, schedule.batch_units) == (4, 2)


def test_pipedream_updates_after_each_backward_and_never_stops():
    schedule = schedules.make("pipedream", 3, 2, batches=2)
    assert [written(tasks) for tasks in schedule.stages] == [
        "F0 F1 F2 B0 U0 F3 B1 U1 B2 U2 B3 U3",
        "F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3",
        "F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3",
    ]


def test_2bw_updates_after_each_batch():
    schedule = schedules.make("pipedream_2bw", 2, 2, batches=2)
    assert [written(tasks) for tasks in schedule.stages] == [
        "F0 F1 B0 F2 B1 U1 F3 B2 B3 U3",
        "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3",
    ]


@given(st.sampled_from(schedules.ASYNCHRONOUS), SMALL, SMALL)
def test_asynchronous_tasks_are_those_of_half_ticks(name, stages, units):
    schedule = made(name, stages, units)
    for stage, tasks in enumerate(schedule.stages):
        ticks = [
            stage + 2 * task.unit
            if task.kind == "forward"
            else 2 * stages - 1 - stage + 2 * task.unit
            for task in tasks
            if task.kind != "update"
        ]
        assert ticks == sorted(set(ticks))


def test_blocks_of_one_device_take_turns():
    # Half-ticks of F at s + 2 u and of B at 7 - s + 2 u. Device 1 has the
    # blocks 1 and 3; at half-ticks 4 and 6 it has work for both.
    schedule = schedules.make("ftpipe", 4, 2, devices=[0, 1, 0, 1])
    told = [
        [f"{task.kind[0].upper()}{task.stage}.{task.unit}" for task in order]
        for order in schedule.orders
    ]
    assert " ".join(told[0]) == (
        "F0.0 F2.0 F0.1 F2.1 B2.0 U2.0 B2.1 U2.1 B0.0 U0.0 B0.1 U0.1"
    )
    assert " ".join(told[1]) == (
        "F1.0 F3.0 F1.1 B3.0 U3.0 F3.1 B3.1 U3.1 B1.0 U1.0 B1.1 U1.1"
    )
    assert (schedule.num_stages, schedule.num_devices) == (4, 2)


def test_blocks_of_one_device_go_back_first():
    # The blocks 0 and 3 share a device; at half-tick 4 it could do B3.0 and
    # F0.2, at 6 B3.1 and F0.3, at 7 B0.0 alone.
    schedule = schedules.make("ftpipe", 4, 4, devices=[0, 1, 2, 0])
    told = [
        f"{task.kind[0].upper()}{task.stage}.{task.unit}"
        for task in schedule.orders[0]
        if task.kind != "update"
    ]
    assert told.index("B3.0") + 1 == told.index("F0.2")
    assert told.index("B3.1") + 1 == told.index("F0.3")


# Laws of all of them.


@laws.settings(max_examples=60)
@given(ANY, SMALL, SMALL, st.integers(1, 3))
def test_dependencies_are_those_of_the_data_and_of_the_order(
    name, stages, micro_batches, batches
):
    schedule = made(name, stages, micro_batches, batches)
    place = {
        task: (device, index)
        for device, order in enumerate(schedule.orders)
        for index, task in enumerate(order)
    }
    for task, (device, index) in place.items():
        stage, unit = task.stage, task.unit
        needed = set()
        if task.kind == "forward" and stage > 0:
            needed.add(StageTask("forward", stage - 1, unit))
        if task.kind == "backward":
            needed.add(StageTask("forward", stage, unit))
            if stage < stages - 1:
                needed.add(StageTask("backward", stage + 1, unit))
        if task.kind == "update":
            needed.add(StageTask("backward", stage, unit))
        if index:
            needed.add(schedule.orders[device][index - 1])
        found = schedule.dependencies(task)
        assert set(found) == needed
        assert len(found) == len(needed)


@laws.settings(max_examples=60)
@given(ANY, SMALL, SMALL, st.integers(1, 3))
def test_in_flight_is_the_papers(name, stages, micro_batches, batches):
    schedule = made(name, stages, micro_batches, batches)
    micro_batches = schedule.num_units // batches
    if name in schedules.ASYNCHRONOUS:
        micro_batches *= batches
    bound = [stages - stage for stage in range(stages)]
    if name == "gpipe":
        bound = [micro_batches] * stages
    assert schedules.in_flight(schedule) == tuple(
        min(micro_batches, most) for most in bound
    )


@laws.settings(max_examples=40)
@given(ANY, SMALL, SMALL, st.integers(1, 3))
def test_every_gradient_is_in_the_update_of_its_batch(
    name, stages, micro_batches, batches
):
    schedule = made(name, stages, micro_batches, batches)
    for tasks in schedule.stages:
        waiting, updates = set(), 0
        for task in tasks:
            if task.kind == "backward":
                waiting.add(task.unit)
            elif task.kind == "update":
                first = updates * schedule.batch_units
                assert waiting == set(
                    range(first, first + schedule.batch_units)
                )
                assert task.unit == max(waiting)
                waiting, updates = set(), updates + 1
        assert not waiting
        assert updates * schedule.batch_units == schedule.num_units


@laws.settings(max_examples=40)
@given(st.data())
def test_blocks_can_share_devices_in_any_way(data):
    blocks = data.draw(st.integers(2, 7))
    devices = [0]
    for _ in range(blocks - 1):
        highest = max(devices) + 1
        devices.append(
            data.draw(
                st.integers(0, highest).filter(lambda d: d != devices[-1])
            )
        )
    # Each order of tasks is checked to be free of deadlock.
    schedule = schedules.make("ftpipe", blocks, 3, devices=devices)
    alone = schedules.make("ftpipe", blocks, 3)
    assert schedule.stages == alone.stages
    assert schedule.devices == tuple(devices)
    assert schedule.num_devices == max(devices) + 1


def test_in_flight_is_the_most_at_any_time():
    kinds = ["forward", "backward", "update"]
    order = [StageTask(kind, 0, 0) for kind in kinds]
    order += [StageTask(kind, 0, unit) for kind in kinds[:2] for unit in (1, 2)]
    order.append(StageTask("update", 0, 2))
    schedule = schedules.PipelineSchedule("own", (tuple(order),), (0,))
    assert schedules.in_flight(schedule) == (2,)


# What is refused.


def broken(change):
    """What is said about a 1F1B whose orders are changed."""
    schedule = schedules.make("1f1b", 2, 2)
    orders = [list(order) for order in schedule.orders]
    change(orders)
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(schedule, orders=tuple(map(tuple, orders)))
    return str(caught.value)


def swap(orders):
    # The last stage waits for unit 1 before it gives back unit 0, which the
    # first one needs before it begins unit 1.
    first = [
        StageTask("forward", 0, 0),
        StageTask("backward", 0, 0),
        StageTask("forward", 0, 1),
        StageTask("backward", 0, 1),
        StageTask("update", 0, 1),
    ]
    orders[0][:] = first
    last = orders[1]
    last[:] = [last[0], last[2], last[1], last[3], last[4]]


BROKEN = {
    "missing": (
        lambda orders: orders[1].remove(StageTask("backward", 1, 0)),
        ["backward(stage=1, unit=0) is missing"],
    ),
    "twice": (
        lambda orders: orders[0].insert(0, StageTask("forward", 0, 1)),
        ["forward(stage=0, unit=1) comes 2 times"],
    ),
    "elsewhere": (
        lambda orders: orders[0].append(orders[1].pop(0)),
        ["forward(stage=1, unit=0) must be on device 1", "it is on 0"],
    ),
    "kind": (
        lambda orders: orders[0].append(StageTask("sideward", 0, 0)),
        ["kind must be one of", "sideward"],
    ),
    "no_update": (
        lambda orders: orders[0].pop(),
        ["update after backward(stage=0, unit=1)"],
    ),
    "empty": (
        lambda orders: [order.clear() for order in orders],
        ["at least one micro-batch"],
    ),
    "deadlock": (
        swap,
        ["deadlock", "needs backward(stage=1, unit=0), which never begins"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_schedule_is_refused(name):
    change, parts = BROKEN[name]
    message = broken(change)
    for part in parts:
        assert part in message


def test_every_pair_of_tasks_swapped_is_refused_or_keeps_dependencies():
    schedule = schedules.make("1f1b", 3, 3)
    refused = 0
    order = schedule.orders[1]
    for i, j in itertools.combinations(range(len(order) - 1), 2):
        changed = list(order)
        changed[i], changed[j] = changed[j], changed[i]
        orders = (schedule.orders[0], tuple(changed), schedule.orders[2])
        try:
            made = dataclasses.replace(schedule, orders=orders)
        except ValueError as error:
            assert "deadlock" in str(error)
            refused += 1
            continue
        # Those that are let through can be executed, in a topological order.
        seen = set()
        left = {t for order in made.orders for t in order}
        while left:
            ready = {t for t in left if seen.issuperset(made.dependencies(t))}
            assert ready
            seen |= ready
            left -= ready
    assert 0 < refused < 15


def test_a_task_of_another_schedule_has_no_dependencies():
    schedule = schedules.make("gpipe", 2, 2)
    with pytest.raises(ValueError, match=r"unit=2\)"):
        schedule.dependencies(StageTask("forward", 0, 2))


WRONG = {
    "name": (("zigzag", 2, 2), {}, "`name` must be one of gpipe, .*'zigzag'"),
    "stages": (
        ("gpipe", 0, 2),
        {},
        "`num_stages` must be .* Received: num_stages=0",
    ),
    "2bw": (
        ("pipedream_2bw", 4, 3),
        {},
        "at least .* 4, .* Received: micro_batches=3",
    ),
    "devices": (("gpipe", 2, 2), {"devices": [0, 1]}, "except for ftpipe"),
    "few": (("ftpipe", 3, 2), {"devices": [0, 1]}, "3 integers"),
    "gap": (("ftpipe", 2, 2), {"devices": [0, 2]}, r"without a gap.*\[0, 2\]"),
    "neighbours": (
        ("ftpipe", 3, 2),
        {"devices": [0, 1, 1]},
        "neighbours.* blocks 1 and 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name):
    arguments, keywords, said = WRONG[name]
    with pytest.raises(ValueError) as caught:
        schedules.make(*arguments, **keywords)
    assert re.search(said, str(caught.value))
