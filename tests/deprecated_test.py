"""Old spellings work for one release, and say what to write instead.

All of them are here, so that the next release removes them in one go.
"""

import contextlib

import pytest
import tensorflow as tf

import tfdist
from tfdist import correction
from tfdist import deprecated
from tfdist import simulation
from tfdist.strategies import registry
from tfdist.synchronization import Async

METHODS = {
    "settle": "barrier",
    "leave": "deregister",
    "refresh": "pull",
    "resilient": "retry_on_server_failure",
}
FAILURES = {
    "start_timeout": 9.0,
    "worker_timeout": 9.0,
    "server_timeout": 9.0,
    "stall_timeout": 9.0,
    "on_stall": "fail",
    "on_preemption": "note",
    "snapshot_dir": "snapshots",
    "snapshot_every": 9.0,
}


@contextlib.contextmanager
def warns(new):
    """Expects one warning that names the new spelling, about a line here."""
    with pytest.warns(DeprecationWarning, match=new) as caught:
        yield
    (one,) = caught
    assert one.filename == __file__


@pytest.fixture(scope="module")
def strategy():
    return tfdist.AsyncStrategy()


@pytest.mark.parametrize("old", METHODS)
def test_methods_of_strategies(old, strategy):
    new = METHODS[old]
    with warns(rf"`{old}` .*: write `{new}`"):
        method = getattr(strategy, old)
    assert method == getattr(strategy, new)
    with warns(new):
        assert getattr(tfdist.AsyncStrategy, old) is not None


def test_an_old_method_is_called(strategy):
    with warns("retry_on_server_failure"):
        step = strategy.resilient(tf.function(lambda: tf.constant(3)))
    assert int(step()) == 3


def test_attribute_of_strategies(strategy):
    with warns("uses_lookahead"):
        assert strategy.looks_ahead is False


@pytest.mark.parametrize(
    ("old", "new"), [("at_once", "together"), ("one_by_one", "staggered")]
)
@pytest.mark.parametrize(
    "make", [tfdist.AsyncStrategy, tfdist.ParameterServerStrategy]
)
def test_how_workers_start(make, old, new):
    with warns(f"`joining='{old}'` .*: write `worker_start='{new}'`"):
        strategy = make(warmup_worker_steps=2, joining=old)
    assert strategy._warm_start._worker_start.value == new


def test_an_old_argument_with_no_such_value_is_refused():
    with (
        warns("worker_start='later'"),
        pytest.raises(ValueError, match="must be one of together, staggered"),
    ):
        tfdist.AsyncStrategy(joining="later")


@pytest.mark.parametrize(
    "make", [tfdist.AsyncStrategy, tfdist.BoundedStalenessStrategy]
)
@pytest.mark.parametrize("name", FAILURES)
def test_arguments_about_failures(make, name):
    value = FAILURES[name]
    with warns(rf"tfdist.FaultTolerance\({name}={value!r}\)"):
        strategy = make(**{name: value})
    if name == "start_timeout":
        assert strategy._start_timeout == value


def test_the_list_of_methods():
    with warns("registry.names"):
        methods = simulation.METHODS
    assert tuple(methods) == registry.names()


class Theirs(correction.Correction):
    """A correction written for the release before."""

    def correct(self, late, slots):
        return late.values


def test_an_attribute_that_the_class_of_a_correction_defines():
    with warns("`looks_ahead` .*: write `uses_lookahead`"):

        class Ahead(Theirs):
            looks_ahead = True

    class MoreAhead(Ahead):
        pass

    assert Ahead.uses_lookahead and Ahead().uses_lookahead
    assert MoreAhead().uses_lookahead and not Theirs().uses_lookahead
    with warns("uses_lookahead"):
        assert Ahead().looks_ahead
    with warns("uses_lookahead"):
        assert Ahead.looks_ahead


def test_a_property_that_the_class_of_a_correction_defines():
    with warns("uses_lookahead"):

        class Ahead(Theirs):
            @property
            def looks_ahead(self):
                return True

    assert Ahead().uses_lookahead


def test_an_attribute_that_a_correction_sets():
    class Ahead(Theirs):
        def __init__(self):
            self.looks_ahead = True

    with warns("uses_lookahead"):
        ahead = Ahead()
    assert ahead.uses_lookahead
    assert simulation.Method(Async(), ahead).correction.uses_lookahead


def test_new_spellings_do_not_warn(recwarn):
    class Ahead(Theirs):
        uses_lookahead = True

    assert Ahead().uses_lookahead
    tfdist.AsyncStrategy(worker_start="staggered").barrier()
    assert not [w for w in recwarn if w.category is DeprecationWarning]


def test_a_warning_without_calls_in_between_is_about_the_callers_line():
    with warns("write that"):
        deprecated.warn("write that")
