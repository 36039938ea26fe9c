"""Settings about failures are one object."""

import functools
import json

import pytest

import tfdist
from tfdist import FaultTolerance
from tfdist.strategies import fault_tolerance as lib


def test_it_is_comparable_printable_and_made_again():
    one = FaultTolerance(worker_timeout=30.0, on_stall="fail")
    assert one == FaultTolerance(**one.get_config()) != FaultTolerance()
    assert "worker_timeout=30.0" in repr(one)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        (
            "start_timeout",
            0,
            "`start_timeout` must be a finite number above 0.*=0",
        ),
        ("server_timeout", -1.0, "`server_timeout` must be a finite .*=-1.0"),
        ("stall_timeout", 0.0, "`stall_timeout` must be a finite number"),
        ("snapshot_every", 0.0, "`snapshot_every` must be a finite number"),
        ("worker_timeout", 2.0, "above 2, two heartbeats.*=2.0"),
        ("on_stall", "stop", "one of drop, fail, wait. .*on_stall='stop'"),
        ("on_preemption", "die", "one of exit, note. .*on_preemption='die'"),
        ("snapshot_dir", 3, "must be a path. .*snapshot_dir=3"),
    ],
)
def test_what_is_malformed_is_refused(argument, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        FaultTolerance(**{argument: value})


def test_arguments_of_other_kinds_and_names_are_refused():
    with pytest.raises(TypeError, match="must be a tfdist.FaultTolerance"):
        tfdist.AsyncStrategy(fault_tolerance=9.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'start'"):
        tfdist.AsyncStrategy(start=9.0)


def test_nothing_given_is_the_default():
    assert lib.checked(None) == FaultTolerance()


@pytest.mark.parametrize(
    ("strategy", "given", "message"),
    [
        (tfdist.SoftSyncStrategy, "k", "SoftSyncStrategy got .*'k'.* are: s, "),
        (tfdist.AsyncStrategy, "nonfinit", "Did you mean `nonfinite`"),
        (
            tfdist.SandblasterStrategy,
            "portion_per_worker",
            "Did you mean `portions_per_worker`.* are: cluster_resolver, "
            "portions_per_worker, backup_after, fault_tolerance, seed.$",
        ),
        (
            tfdist.SandblasterStrategy,
            "start_timeout",
            "Write fault_tolerance=tfdist.FaultTolerance.start_timeout=",
        ),
        (
            functools.partial(tfdist.PipelineStrategy, 2),
            "micro_batch",
            "PipelineStrategy got .*Did you mean `micro_batches`.* are: "
            "stages, .*, vertical_sync.$",
        ),
        (
            functools.partial(tfdist.PipelineStrategy, 2),
            "start_timeout",
            "'start_timeout'. Its arguments are",
        ),
    ],
)
def test_a_misspelt_argument_is_answered_with_those_that_there_are(
    strategy, given, message
):
    with pytest.raises(TypeError, match=message):
        strategy(**{given: 2})


def test_the_launchers_place_for_snapshots_counts_unless_one_is_given():
    launched = {"TFDIST_SNAPSHOT_DIR": "run", "TFDIST_SNAPSHOT_EVERY": "7.0"}
    given = tfdist.FaultTolerance(snapshot_dir="own", snapshot_every=9.0)
    found = lib.snapshots_of
    assert found(tfdist.FaultTolerance(), launched) == ("run", 7.0)
    assert found(given, launched) == ("own", 9.0)
    assert found(tfdist.FaultTolerance(), {}) == (None, 30.0)
    # Groups train models of their own.
    group = {"codistillation": {"group": 1, "num_groups": 2}}
    launched["TF_CONFIG"] = json.dumps(group)
    assert found(given, launched) == ("own/group-1", 9.0)
    assert found(tfdist.FaultTolerance(), launched) == ("run", 7.0)
