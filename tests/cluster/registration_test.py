"""The state that a worker's process leaves when it ends."""

import threading
import types

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster import ClusterConfigError
from tfdist.cluster import fit_progress
from tfdist.cluster import member_table
from tfdist.cluster import membership as membership_lib
from tfdist.cluster import preemption
from tfdist.cluster import registration

FINISHED, FAILED, LEFT = (
    member_table.MemberState.FINISHED,
    member_table.MemberState.FAILED,
    member_table.MemberState.LEFT,
)


class Membership(membership_lib.Membership):
    """One without servers."""

    def __init__(self):
        self.fits = fit_progress.Fits()
        self._arrivals = 0
        self.said = []

    def leave(self, state):
        self.said.append(state)


def fit(membership, ends):
    """Stands for a call of `fit`, the first; an exception ends it if not."""
    fits = membership.fits
    fits.watch(types.SimpleNamespace(has_ended=False, is_over=lambda: True), 1)
    fits.tell(reached=fit_progress.begun(1))
    if ends:
        fits.tell(reached=fit_progress.ended(1))
        fits.close()


@pytest.fixture
def membership():
    return Membership()


def left_state(membership):
    """The state that is left at the end of the process."""
    registration._leave(membership)
    (state,) = membership.said
    return state


def test_an_evaluator_that_the_cluster_does_not_list_is_refused():
    config = ClusterConfig(
        spec={"worker": ["a:1"], "ps": ["c:1"]},
        task_type="evaluator",
        task_index=0,
    )
    with pytest.raises(ClusterConfigError, match="must list the evaluator"):
        registration.join(config, [], 1.0)


class StandIn:
    """A membership that talks to nobody."""

    is_foreign = False

    def __init__(self, config, devices=()):
        del devices
        self.addresses = config.ps_addresses

    def wait_until_entered(self, timeout, mend):
        pass

    def reconnected(self, config):
        self.addresses = config.ps_addresses


@pytest.fixture
def compared(monkeypatch):
    """Clusters whose servers `join` has compared with this process."""
    made = []
    monkeypatch.setattr(registration, "_memberships", {})
    monkeypatch.setattr(registration, "_checked", set())
    monkeypatch.setattr(
        registration,
        "atexit",
        types.SimpleNamespace(register=lambda *arguments: None),
    )
    monkeypatch.setattr(membership_lib, "Membership", StandIn)
    monkeypatch.setattr(registration.versions, "compare", made.append)
    return made


def test_a_process_keeps_its_membership_where_servers_have_moved(compared):
    """A second one would take the first one's row for a dead process's."""
    before, after = (
        ClusterConfig(
            spec={"worker": ["a:1"], "ps": [address]},
            task_type="worker",
            task_index=0,
        )
        for address in ("c:1", "d:1")
    )
    membership = registration.join(before, [], 1.0)
    assert registration.join(after, [], 1.0) is membership
    assert membership.addresses == ("d:1",)
    registration.join(after, [], 1.0)
    assert compared == [before, after]


@pytest.mark.usefixtures("compared")
def test_a_script_that_survives_a_refusal_is_refused_again(monkeypatch):
    config = ClusterConfig(
        spec={"worker": ["a:1"], "ps": ["c:1"]},
        task_type="worker",
        task_index=0,
    )
    made = []

    def make(config, devices):
        made.append(StandIn(config))
        made[-1].is_foreign = True
        return made[-1]

    monkeypatch.setattr(membership_lib, "Membership", make)
    for _ in range(2):
        with pytest.raises(ClusterConfigError, match="another version"):
            registration.join(config, [], 1.0)
    # Whose threads go on.
    assert len(made) == 1
    made[0].is_foreign = False
    assert registration.join(config, [], 1.0) is made[0]


@pytest.mark.parametrize("ends, state", [(True, FINISHED), (False, FAILED)])
def test_a_worker_whose_fit_was_ended_by_an_exception_has_failed(
    membership, ends, state
):
    """It has printed the exception, say, and called `sys.exit(1)`."""
    fit(membership, ends)
    assert left_state(membership) == state


@pytest.mark.parametrize("asks, state", [(True, LEFT), (False, FINISHED)])
def test_a_worker_leaves_if_its_script_has_heard_of_the_notice(
    membership, monkeypatch, asks, state
):
    """One that has trained to the end has finished, notice or not."""
    received = threading.Event()
    received.set()
    monkeypatch.setattr(preemption, "_received", received)
    monkeypatch.setattr(preemption, "_settings", preemption._Settings())
    if asks:
        preemption.tell_script()
    fit(membership, ends=True)
    assert left_state(membership) == state


def test_a_worker_that_has_gone_on_after_an_exception_has_finished(membership):
    fit(membership, ends=False)
    membership.arrive()
    assert left_state(membership) == FINISHED
