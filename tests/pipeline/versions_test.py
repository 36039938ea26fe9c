"""Versions of weights are those of the papers' update rules."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tfdist.pipeline import schedules
from tfdist.pipeline import versions
from tfdist.pipeline.schedules import StageTask

STAGES = st.integers(1, 6)
UNITS = st.integers(1, 12)


def pairs(schedule, **others):
    """(stage, unit) -> versions of its forward and of its backward."""
    found = versions.weight_versions(schedule, **others)
    assert len(found) == 2 * schedule.num_stages * schedule.num_units
    return {
        (s, u): (
            found[StageTask("forward", s, u)],
            found[StageTask("backward", s, u)],
        )
        for s in range(schedule.num_stages)
        for u in range(schedule.num_units)
    }


def delays(schedule, vertical_sync=False):
    """Updates between a gradient's weights and its own, (K, units) int64."""
    used_by = versions.weight_versions(schedule, vertical_sync)
    found = np.zeros((schedule.num_stages, schedule.num_units), np.int64)
    for stage, tasks in enumerate(schedule.stages):
        updates = 0
        waiting = []
        for task in tasks:
            if task.kind == "backward":
                waiting.append(task.unit)
            elif task.kind == "update":
                for unit in waiting:
                    used = used_by[schedules.StageTask("forward", stage, unit)]
                    found[stage, unit] = updates - used
                updates += 1
                waiting = []
    return found


@given(st.sampled_from(schedules.SYNCHRONOUS), STAGES, UNITS)
def test_flushes_leave_one_version_without_delay(name, stages, units):
    schedule = schedules.make(name, stages, units, batches=3)
    for (_, unit), used in pairs(schedule).items():
        assert used == (unit // units, unit // units)
    assert not delays(schedule).any()
    assert versions.kept_versions(schedule) == (1,) * stages


@given(STAGES, UNITS)
def test_stashing_is_late_by_the_stages_that_follow(stages, units):
    schedule = schedules.make("pipedream", stages, units)
    for (stage, unit), used in pairs(schedule).items():
        version = max(0, unit - (stages - 1 - stage))
        assert used == (version, version)
    expected = [
        [min(unit, stages - 1 - stage) for unit in range(units)]
        for stage in range(stages)
    ]
    np.testing.assert_array_equal(delays(schedule), expected)
    # Warm-up + 1 (Narayanan et al. 2019), less where all is over before the
    # units in flight have as many different versions.
    kept = versions.kept_versions(schedule)
    if units >= 2 * stages - 1:
        assert kept == tuple(stages - stage for stage in range(stages))
    assert all(np.less_equal(kept, schedules.in_flight(schedule)))


@given(STAGES, UNITS)
def test_vertical_sync_has_one_version_for_all_stages(stages, units):
    schedule = schedules.make("pipedream", stages, units)
    for (_, unit), used in pairs(schedule, vertical_sync=True).items():
        assert used == (max(0, unit - stages + 1),) * 2
    np.testing.assert_array_equal(
        delays(schedule, vertical_sync=True),
        np.tile(np.minimum(np.arange(units), stages - 1), (stages, 1)),
    )
    kept = versions.kept_versions(schedule, vertical_sync=True)
    if units >= 2 * stages - 1:
        assert kept == (stages,) * stages


@given(STAGES, st.integers(0, 4), st.integers(1, 5))
def test_2bw_is_late_by_one_batch_and_keeps_two(stages, more, batches):
    schedule = schedules.make("pipedream_2bw", stages, stages + more, batches)
    m = schedule.batch_units
    for (_, unit), used in pairs(schedule).items():
        # Equation of section 3.1, whose units count from 1.
        k = unit + 1
        assert used == (max((k - 1) // m - 1, 0),) * 2
    late = delays(schedule)
    assert not late[:, :m].any()
    assert (late[:, m:] == 1).all()
    kept = versions.kept_versions(schedule)
    assert max(kept) == min(2, batches)


@given(STAGES, UNITS)
def test_recomputation_is_late_forward_alone(stages, units):
    schedule = schedules.make("ftpipe", stages, units)
    for (stage, unit), used in pairs(schedule).items():
        assert used == (max(0, unit - (stages - 1 - stage)), unit)
    assert versions.kept_versions(schedule) == (1,) * stages


def test_blocks_of_one_device_have_the_versions_of_blocks_apart():
    one, other = (
        schedules.make("ftpipe", 4, 6, devices=devices)
        for devices in (None, [0, 1, 0, 1])
    )
    assert pairs(one) == pairs(other)


@given(STAGES, UNITS)
def test_spectrain_predicts_from_the_current_weights(stages, units):
    spectrain, ftpipe = (
        schedules.make(name, stages, units) for name in ("spectrain", "ftpipe")
    )
    assert pairs(spectrain) == pairs(ftpipe)
    assert versions.kept_versions(spectrain) == (1,) * stages


def test_predicted_steps_of_four_gpus():
    # floor(k / 2) + N - k - 1 and floor(k / 2) by hand, N = 4.
    forward, backward = versions.predicted_steps(4)
    assert forward.tolist() == [3, 2, 2, 1]
    assert backward.tolist() == [0, 0, 1, 1]


@given(st.integers(1, 9))
def test_predicted_steps_are_updates_until_the_unit_is_back(stages):
    forward, backward = versions.predicted_steps(stages)
    # A unit in the steady state, and its neighbours, in half-ticks.
    unit = 2 * stages
    back = 2 * stages - 1 + 2 * unit
    for stage in range(stages):
        updates = {v: 2 * stages - 1 - stage + 2 * v for v in range(5 * stages)}
        del updates[unit]  # What others change, not itself.
        begins = stage + 2 * unit
        turns = 2 * stages - 1 - stage + 2 * unit
        assert forward[stage] == sum(
            begins < tick <= back for tick in updates.values()
        )
        assert backward[stage] == sum(
            turns < tick <= back for tick in updates.values()
        )


@laws.settings(max_examples=40)
@given(st.sampled_from(schedules.NAMES), STAGES, UNITS, st.booleans())
def test_no_version_is_used_before_it_is_made(name, stages, units, sync):
    units = max(units, stages)
    sync = sync and name == "pipedream"
    schedule = schedules.make(name, stages, units, batches=2)
    used = versions.weight_versions(schedule, sync)
    for tasks in schedule.stages:
        current = 0
        needed = {}
        for index, task in enumerate(tasks):
            current += task.kind == "update"
            if task.kind != "update":
                assert 0 <= used[task] <= current
                needed[used[task]] = index
        # Versions that are held at each moment, one after the other.
        held, current, most = {0}, 0, 1
        for index, task in enumerate(tasks):
            if task.kind == "update":
                current += 1
                held.add(current)
            held = {
                v for v in held if v == current or needed.get(v, -1) >= index
            }
            most = max(most, len(held))
        kept = versions.kept_versions(schedule, sync)
        assert kept[tasks[0].stage] == most


def test_unknown_rules_are_refused():
    schedule = schedules.make("gpipe", 2, 2)
    own = schedules.PipelineSchedule("own", schedule.orders, schedule.devices)
    with pytest.raises(ValueError, match="whose weights are known.*'own'"):
        versions.weight_versions(own)
    with pytest.raises(ValueError, match="vertical_sync=True for gpipe"):
        versions.weight_versions(schedule, vertical_sync=True)
