"""Softsync against the paper's formulas, with and without its correction.

Zhang et al. 2016 (papers.md 3a): with lambda learners and splitting parameter
n, the server updates once c = floor(lambda / n) gradients of any learners have
come; the timestamp i counts updates, a gradient of timestamp j has staleness
tau = i - j:

  theta_{i+1} = theta_i - rate / c * sum of alpha(tau_l) * gradient_l
  alpha(tau) = alpha0 / tau, and alpha0 for tau = 0
"""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests.synchronization import virtual_scripts
from tests.synchronization.virtual_run import Run
from tests.synchronization.virtual_server import RATE
from tests.synchronization.virtual_server import SIZE
from tfdist.correction import InverseStaleness
from tfdist.synchronization import Async
from tfdist.synchronization import SoftSync

# Workers and gradients per update.
CASES = [(1, 1), (1, 3), (2, 2), (3, 1), (4, 3), (5, 5), (6, 4), (6, 9)]


class ZhangOracle:
    """The server of n-softsync."""

    def __init__(self, num_workers, number, alpha=lambda tau: 1.0):
        self._number = number
        self._alpha = alpha
        self._received = []
        self.parameters = np.zeros(SIZE)
        self.version = 0
        self.waiting = set()  # Nobody, ever.
        self.dropped = [0] * num_workers

    def receive(self, worker, gradient, version):
        del worker
        alpha = self._alpha(self.version - version)
        self._received.append(alpha * gradient)
        if len(self._received) == self._number:
            mean = sum(self._received) / self._number
            self.parameters = self.parameters - RATE * mean
            self.version += 1
            self._received = []

    def begin_anew(self, workers):
        del workers
        self._received = []

    def lose(self, worker):
        """What has come has come."""


def check_updates(number):
    """What to watch: each update is of `number` gradients, as they came.

    A run that begins when everybody was gone begins with an empty update.
    """

    def check(run):
        arrived = list(run.gradients.values())
        updates = run.observer.updates
        counted = []
        for begin, end in itertools.pairwise([0, *run.begins, len(arrived)]):
            counted += arrived[begin : end - (end - begin) % number]
        assert len(updates) * number == len(counted)
        assert [g for update in updates for g in update.gradients] == counted
        for version, update in enumerate(updates):
            assert update.lateness == [
                version - gradient.pulled for gradient in update.gradients
            ]

    return check


@pytest.mark.nightly
@laws.settings(max_examples=12, nightly=500)
@given(case=st.sampled_from(CASES), script=virtual_scripts.scripts())
def test_parameters_are_those_of_the_paper(case, script):
    run = Run(
        SoftSync(case[1]),
        case[0],
        oracle=ZhangOracle(*case),
        watch=check_updates(case[1]),
    )
    run.play(script).drain()


def test_what_a_run_leaves_is_no_part_of_the_next():
    """The weights may have been set in between."""
    run = Run(SoftSync(2), 2, watch=check_updates(2))
    run.play([("advance", 0)] * 3)
    assert run.cluster.read().in_round == 1
    # While somebody is there, it is the same run.
    run.play([("leave", 0), ("advance", 0)])
    assert run.cluster.read().version == 2
    run.play([("advance", 0), ("leave", 0), ("begin", 0), ("advance", 0)])
    state = run.cluster.read()
    assert (state.version, state.in_round) == (2, 1)
    run.play([("advance", 0)])
    assert run.cluster.read().version == 3


@pytest.mark.nightly
@laws.settings(max_examples=6, nightly=200)
@given(
    case=st.sampled_from(CASES),
    factor=st.sampled_from([1.0, 0.3]),
    script=virtual_scripts.scripts(max_size=30),
)
def test_late_gradients_count_less_if_asked_for(case, factor, script):
    correction = InverseStaleness(factor)
    run = Run(
        SoftSync(case[1]),
        case[0],
        oracle=ZhangOracle(
            *case, alpha=lambda tau: factor / tau if tau > 0 else factor
        ),
        scale=lambda tau: correction.scale(tf.constant(tau, tf.int64)).numpy(),
    )
    run.play(script).drain()


@laws.settings(max_examples=5, nightly=150)
@given(case=st.sampled_from(CASES), script=virtual_scripts.scripts())
def test_updates_are_as_they_came_where_servers_lag(case, script):
    run = Run(
        SoftSync(case[1]),
        case[0],
        num_servers=2,
        watch=check_updates(case[1]),
        allows=virtual_scripts.one_kill_each,
    )
    run.play(script).drain()


@pytest.mark.nightly
@laws.settings(max_examples=5, nightly=150)
@given(num_workers=st.sampled_from([1, 3, 4]), script=virtual_scripts.scripts())
def test_of_one_gradient_is_asynchronous(num_workers, script):
    states = []
    for method in (SoftSync(1), Async()):
        run = Run(
            method,
            num_workers,
            watch=lambda run: states[-1].append(run.cluster.read()),
        )
        states.append([])
        run.play(script)
    for ours, theirs in zip(*states, strict=True):
        for name, value in vars(ours).items():
            np.testing.assert_array_equal(value, getattr(theirs, name), name)


@pytest.mark.parametrize(
    ("num_workers", "n", "s"),
    # By hand: s = floor(num_workers / n).
    [(1, 1, 1), (4, 1, 4), (5, 2, 2), (6, 4, 1), (7, 2, 3), (30, 15, 2)],
)
def test_splitting_parameter_is_the_papers(num_workers, n, s):
    resolved = SoftSync(n=n).resolve(num_workers)
    assert resolved.s == s
    assert resolved.averages == (s > 1)


def test_s_may_be_more_than_the_workers():
    assert SoftSync(5).resolve(2).s == 5


def test_not_both_of_s_and_n_are_given():
    with pytest.raises(ValueError) as error:
        SoftSync(s=1, n=2)
    assert str(error.value) == (
        "Arguments `s` (gradients per update) and `n` (splitting parameter) of "
        "SoftSync must not both be given. Received: s=1, n=2"
    )


def test_by_default_an_update_has_as_many_gradients_as_there_are_workers():
    assert SoftSync().resolve(3).s == 3


@pytest.mark.parametrize("name", ["s", "n"])
@pytest.mark.parametrize("value", [0, -2, 1.5, "2", False])
def test_numbers_must_be_counts(name, value):
    with pytest.raises(ValueError) as error:
        SoftSync(**{name: value})
    assert str(error.value) == (
        f"Argument `{name}` of SoftSync must be an integer of at least 1. "
        f"Received: {name}={value!r}"
    )


def test_cluster_cannot_be_split_into_more_than_there_are():
    with pytest.raises(ValueError) as error:
        SoftSync(n=4).resolve(3)
    assert str(error.value) == (
        "Argument `n` of SoftSync must be at most the number of workers, 3. "
        "Received: n=4"
    )


def test_repr_tells_methods_apart():
    assert repr(SoftSync(3)) == "SoftSync(s=3)"
    assert repr(SoftSync(n=3)) == "SoftSync(n=3)"
