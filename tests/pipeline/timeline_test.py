"""Times of schedules are those of the papers' formulas."""

import itertools

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tfdist.pipeline import schedules
from tfdist.pipeline import timeline

UPTO8 = list(itertools.product((1, 2, 3, 8), (1, 2, 5, 8)))
SECONDS = st.floats(0.1, 10)


def played(name, stages, micro_batches, *seconds, batches=1, **others):
    schedule = schedules.make(name, stages, micro_batches, batches)
    return timeline.play(schedule, *seconds, **others)


# Formulas.


@pytest.mark.parametrize("name", schedules.SYNCHRONOUS)
def test_equal_stages_have_the_makespan_and_the_bubble_of_the_formula(name):
    f, b = 2.0, 3.0
    for stages, micro_batches in UPTO8:
        line = played(name, stages, micro_batches, f, b)
        ticks = micro_batches + stages - 1
        assert line.makespan == ticks * (f + b)
        assert line.bubble_fraction == pytest.approx((stages - 1) / ticks)
        np.testing.assert_allclose(
            line.bubble_fractions, (stages - 1) / ticks, atol=1e-12
        )
        np.testing.assert_array_equal(
            line.busy_seconds, micro_batches * (f + b)
        )
        ideal = micro_batches * stages / ticks
        assert line.speed_up == pytest.approx(ideal)
        assert line.ideal_speed_up == pytest.approx(ideal)


def test_1f1b_takes_the_time_of_gpipe_and_less_memory():
    for stages, micro_batches in UPTO8:
        gpipe, other = (
            played(name, stages, micro_batches, 1.0, 2.0, activation_bytes=10.0)
            for name in ("gpipe", "1f1b")
        )
        assert gpipe.makespan == other.makespan
        np.testing.assert_array_equal(gpipe.peak_bytes, 10 * micro_batches)
        np.testing.assert_array_equal(
            other.peak_bytes,
            [10 * min(micro_batches, stages - s) for s in range(stages)],
        )


@pytest.mark.parametrize(
    "name", ["pipedream", "pipedream_2bw", "spectrain", "ftpipe"]
)
def test_without_flushes_the_bubble_goes_to_zero(name):
    bubbles = []
    for batches in (1, 4, 64):
        line = played(name, 4, 4, 1.0, 2.0, batches=batches)
        # All units fill and drain the pipeline once.
        ticks = 4 * batches + 3
        assert line.makespan == ticks * 3.0
        assert line.bubble_fraction == pytest.approx(3 / ticks)
        assert line.ideal_speed_up == pytest.approx(16 * batches / ticks)
        bubbles.append(line.bubble_fraction)
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[-1] < 0.012


@laws.settings(max_examples=25)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5))
@example([(1.0, 8.0), (8.0, 1.0), (1.0, 1.0), (1.0, 1.0)])
def test_the_slowest_stage_sets_the_pace_without_flushes(pairs):
    forward, backward = zip(*pairs, strict=True)
    long = played("pipedream", len(pairs), 40, forward, backward)
    slowest = max(f + b for f, b in pairs)
    # No schedule is faster than its slowest device.
    assert long.makespan >= 40 * slowest * (1 - 1e-9)
    # Of n stages, s can begin the forward of unit u after u slowest stages and
    # the forwards before it, and its backward right after its forward of unit
    # u + n - 1 - s: this keeps to the order, and waits for nothing.
    assert long.makespan <= (39 + len(pairs)) * slowest * (1 + 1e-9)


# Laws of all schedules and times.


@st.composite
def cases(draw):
    name = draw(st.sampled_from(schedules.NAMES))
    stages = draw(st.integers(1, 5))
    units = draw(st.integers(stages, 7))
    devices = None
    if name == "ftpipe" and stages > 2 and draw(st.booleans()):
        devices = [s % 2 for s in range(stages)]
    batches = draw(st.integers(1, 2))
    per_stage = st.lists(SECONDS, min_size=stages, max_size=stages)
    transfer = st.lists(SECONDS, min_size=stages - 1, max_size=stages - 1)
    return (
        schedules.make(name, stages, units, batches, devices),
        draw(per_stage),
        draw(per_stage),
        draw(transfer),
    )


@laws.settings(max_examples=60)
@given(cases())
def test_nothing_begins_before_what_it_needs_nor_later_than_it_can(case):
    schedule, forward, backward, transfer = case
    line = timeline.play(schedule, forward, backward, transfer)
    seconds = {"forward": forward, "backward": backward}
    by_task = {span.task: span for span in line.spans}
    assert len(by_task) == len(line.spans)
    assert set(by_task) == {t for order in schedule.orders for t in order}
    # When each link between two stages has brought each unit, from the
    # definition: one after the other, in the order of its sender.
    brought = {}
    for stage, tasks in enumerate(schedule.stages):
        for kind, step in (("forward", 1), ("backward", -1)):
            to = stage + step
            if not 0 <= to < schedule.num_stages:
                continue
            own = schedule.devices[to] == schedule.devices[stage]
            free = 0.0
            for task in tasks:
                if task.kind == kind:
                    end = by_task[task].end
                    if not own:
                        free = max(free, end) + transfer[min(stage, to)]
                        end = free
                    brought[task] = end
    for task, span in by_task.items():
        if task.kind == "update":
            assert span.end == span.start
        else:
            took = seconds[task.kind][task.stage]
            assert span.end == pytest.approx(span.start + took)
        assert span.device == schedule.devices[task.stage]
        bounds = [0.0]
        for before in schedule.dependencies(task):
            same = before.stage == task.stage or (
                schedule.devices[before.stage] == span.device
            )
            bounds.append(by_task[before].end if same else brought[before])
        assert span.start == pytest.approx(max(bounds))


@laws.settings(max_examples=40)
@given(cases())
def test_devices_do_all_the_work_and_one_task_at_a_time(case):
    schedule, forward, backward, transfer = case
    line = timeline.play(schedule, forward, backward, transfer)
    work = np.zeros(schedule.num_devices)
    for stage, device in enumerate(schedule.devices):
        work[device] += forward[stage] + backward[stage]
    np.testing.assert_allclose(line.busy_seconds, work * schedule.num_units)
    for device in range(schedule.num_devices):
        own = [span for span in line.spans if span.device == device]
        for one, other in itertools.pairwise(own):
            assert one.end <= other.start
    # Shares of one whole: no device does more than all of the time.
    assert np.all(line.bubble_fractions >= -1e-12)
    assert line.bubble_fraction == pytest.approx(
        1
        - schedule.num_units
        * (sum(forward) + sum(backward))
        / (schedule.num_devices * line.makespan)
    )
    assert line.speed_up == pytest.approx(
        schedule.num_devices * (1 - line.bubble_fraction)
    )


def test_times_by_hand():
    # Stage 0: F 1 s, B 2 s; stage 1: F 3 s, B 4 s; half a second between.
    line = played("1f1b", 2, 2, [1, 3], [2, 4], 0.5)
    told = {
        (span.task.kind[0], span.task.stage, span.task.unit): (
            span.start,
            span.end,
        )
        for span in line.spans
        if span.task.kind != "update"
    }
    assert told == {
        ("f", 0, 0): (0, 1),
        ("f", 0, 1): (1, 2),
        ("f", 1, 0): (1.5, 4.5),
        ("b", 1, 0): (4.5, 8.5),
        ("f", 1, 1): (8.5, 11.5),
        ("b", 0, 0): (9, 11),
        ("b", 1, 1): (11.5, 15.5),
        ("b", 0, 1): (16, 18),
    }
    assert line.makespan == 18
    assert line.speed_up == pytest.approx(20 / 18)
    np.testing.assert_allclose(line.bubble_fractions, [12 / 18, 4 / 18])


def test_what_stays_on_a_device_needs_no_link():
    order = [
        schedules.StageTask(kind, stage, 0)
        for kind, stages in (("forward", (0, 1, 2)), ("backward", (2, 1, 0)))
        for stage in stages
    ]
    updates = [schedules.StageTask("update", stage, 0) for stage in range(3)]
    schedule = schedules.PipelineSchedule(
        "own",
        (
            tuple(t for t in [*order, *updates] if t.stage < 2),
            tuple(t for t in [*order, *updates] if t.stage == 2),
        ),
        devices=(0, 0, 1),
    )
    line = timeline.play(schedule, 1.0, 1.0, [5.0, 7.0])
    assert line.makespan == 6 + 2 * 7


def test_blocks_of_a_device_that_are_apart_need_links():
    schedule = schedules.make("ftpipe", 3, 1, devices=[0, 1, 0])
    line = timeline.play(schedule, 1.0, 1.0, [5.0, 7.0])
    assert line.makespan == 6 + 2 * (5 + 7)
    assert line.ideal_speed_up == 2.0


def test_unequal_blocks_on_shared_devices_can_be_balanced():
    # Two devices: 5 s and 5 s where blocks are mixed, 6 s and 4 s as stages.
    blocks = [3.0, 3.0, 2.0, 2.0]
    mixed, straight = (
        timeline.play(schedule, seconds)
        for schedule, seconds in (
            (
                schedules.make("ftpipe", 4, 200, devices=[0, 1, 0, 1]),
                blocks,
            ),
            (schedules.make("ftpipe", 2, 200), [6.0, 4.0]),
        )
    )
    assert straight.speed_up == pytest.approx(10 / 6, rel=0.02)
    assert mixed.speed_up == pytest.approx(2, rel=0.02)


# Recomputation and memory.


def test_recomputation_makes_backward_longer_by_a_forward():
    line = played("gpipe", 3, 4, 1.0, 2.0, recompute=True)
    assert line.makespan == 6 * (1 + 3)
    # The idle part stays, the useful part is less: 3/4 of the time.
    assert line.bubble_fraction == pytest.approx(2 / 6)
    assert line.speed_up == pytest.approx(12 / 6 * 3 / 4)
    assert line.ideal_speed_up == pytest.approx(12 / 6)


def test_recomputation_keeps_boundaries_alone():
    line = played(
        "gpipe",
        2,
        8,
        1.0,
        recompute=True,
        activation_bytes=[100, 200],
        boundary_bytes=[1, 2],
    )
    # Eight inputs, and all activations of the one that goes back.
    np.testing.assert_array_equal(line.peak_bytes, [8 + 100, 16 + 200])


def test_blocks_of_one_device_share_its_memory():
    schedule = schedules.make("ftpipe", 3, 6, devices=[0, 1, 0])
    line = timeline.play(schedule, 1.0, activation_bytes=[1, 10, 100])
    # At half-tick 4 block 2 begins unit 1 and then block 0 unit 2, none of
    # whose units has come back.
    np.testing.assert_array_equal(line.peak_bytes, [100 + 3, 20])


def test_sizes_that_are_not_given_are_not_made_up():
    assert played("gpipe", 2, 2, 1.0).peak_bytes is None
    assert played("gpipe", 2, 2, 1.0, recompute=True).peak_bytes is None


WRONG = {
    "few": (([1.0],), {}, "`forward_seconds` .* 2 numbers"),
    "negative": ((-1.0,), {}, "forward_seconds.* Received: .*=-1.0"),
    "inf": ((float("inf"),), {}, "`forward_seconds` .*inf"),
    "backward": ((1.0, [1, 2, 3]), {}, "backward_seconds"),
    "nothing": ((0.0,), {}, "above 0"),
    "bytes": ((1.0,), {"activation_bytes": -1}, "activation_bytes"),
    "boundary": (
        (1.0,),
        {"recompute": True, "activation_bytes": 1},
        "both be given",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name):
    arguments, keywords, said = WRONG[name]
    schedule = schedules.make("gpipe", 2, 2)
    with pytest.raises(ValueError, match=said):
        timeline.play(schedule, *arguments, **keywords)
