"""The summary of each of several calls of `fit`, and of workers that return."""

import keras
import pytest

from tests.callbacks.monitored import compiled_model
from tests.callbacks.monitored import fit
from tests.callbacks.monitored import rows_of
import tfdist
from tfdist.callbacks import ClusterMonitor
from tfdist.runtime.checkpoint.training_state import TrainingState


@pytest.mark.nightly
@pytest.mark.parametrize(
    "synchronization",
    [tfdist.synchronization.Sync(), tfdist.synchronization.Async()],
    ids=repr,
)
def test_a_second_fit_counts_its_own_steps(tmp_path, synchronization):
    strategy = tfdist.ParameterServerStrategy(synchronization=synchronization)
    model = compiled_model(strategy)
    for fits in (1, 2):
        monitor = ClusterMonitor(tmp_path, verbose=0)
        fit(model, monitor, batches=4)
        assert monitor.summary["gradients_pushed"] == 4
        assert monitor.summary["gradients_accepted"] == 4
        assert monitor.summary["gradients_dropped"] == 0
        assert monitor.summary["updates_applied"] == 4 * fits
        rows = rows_of(monitor.jsonl_path)
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        assert rows[0]["version"] == 4 * (fits - 1) + 1


class _Counted:
    """A strategy's servers, which have also counted for another worker."""

    OTHER = "/job:worker/task:1"

    def __init__(self, strategy, monkeypatch, pushed):
        self.pushed, self.report = pushed, None
        self._counts, self._collect = strategy.gradient_counts, strategy.collect
        monkeypatch.setattr(strategy, "gradient_counts", self._all_counts)
        monkeypatch.setattr(strategy, "collect", self._all_reports)

    def push(self, number):
        """It pushes gradients."""
        self.pushed += number

    def _all_counts(self):
        count = {"pushed": self.pushed, "accepted": self.pushed}
        nothing = {"dropped": 0, "staleness": 0}
        return {**self._counts(), self.OTHER: {**count, **nothing}}

    def _all_reports(self, topic):
        found = self._collect(topic)
        if self.report is not None:
            found[self.OTHER] = self.report
        return found


@pytest.fixture
def numbered(monkeypatch):
    """Calls of `fit` have numbers, as on a cluster; one that is set."""
    number = [1]
    monkeypatch.setattr(
        TrainingState, "fit_number", property(lambda _: number[0])
    )
    return number


@pytest.mark.nightly
def test_what_another_worker_did_in_an_earlier_fit_does_not_count(
    monkeypatch, numbered
):
    strategy = tfdist.AsyncStrategy()
    model = compiled_model(strategy)
    fit(model, ClusterMonitor(verbose=0), batches=2)
    ((name, of_first_fit),) = strategy.collect("figures").items()
    counted = _Counted(strategy, monkeypatch, pushed=100)
    # It left its figures, and then left.
    counted.report = of_first_fit
    for numbered[0], pushes in ((2, 0), (3, 1)):
        push = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, n=pushes: counted.push(n)
        )
        monitor = ClusterMonitor(verbose=0)
        fit(model, monitor, push, batches=3)
        assert monitor.summary["gradients_pushed"] == 3 + 3 * pushes
        steps = {w["name"]: w["steps"] for w in monitor.summary["workers"]}
        assert steps == {name: 3, counted.OTHER: 3 * pushes}


@pytest.mark.nightly
def test_a_process_that_is_started_again_counts_from_where_its_fit_began(
    monkeypatch, numbered
):
    strategy = tfdist.AsyncStrategy()
    model = compiled_model(strategy)
    fit(model, ClusterMonitor(verbose=0), batches=2)
    numbered[0] = 2
    fit(model, ClusterMonitor(verbose=0), batches=3)
    # Its next process has made no exchange, and passes the first call.
    monkeypatch.setattr(type(strategy.journal), "count", 0)
    again = ClusterMonitor(verbose=0)
    again.set_model(model)
    numbered[0] = 1
    monkeypatch.setattr(TrainingState, "is_passed", True)
    monkeypatch.setattr(
        TrainingState, "others_have_later_call", lambda self: True
    )
    again.on_train_begin()
    again.on_train_end()
    # All that there is to know is of the second call.
    assert again.summary is None
    numbered[0] = 2
    monkeypatch.setattr(TrainingState, "is_passed", False)
    again.on_train_begin()
    (left,) = strategy.collect("figures").values()
    assert left["counts_before"]["pushed"] == 2
    # In a call of `fit` of which it has left nothing, from now on.
    numbered[0] = 3
    again.on_train_begin()
    (left,) = strategy.collect("figures").values()
    assert left["counts_before"]["pushed"] == 5


@pytest.mark.nightly
def test_a_process_that_passes_a_call_leaves_its_files(tmp_path, monkeypatch):
    strategy = tfdist.AsyncStrategy()
    model = compiled_model(strategy)
    monitor = ClusterMonitor(tmp_path, verbose=0)
    fit(model, monitor, batches=2)
    written = monitor.jsonl_path.read_text()
    assert written.count("\n") == 2
    monkeypatch.setattr(TrainingState, "is_passed", True)
    monkeypatch.setattr(
        TrainingState, "others_have_later_call", lambda self: False
    )
    again = ClusterMonitor(tmp_path, verbose=0)
    again.set_model(model)
    again.on_train_begin()
    again.on_train_end()
    assert monitor.jsonl_path.read_text() == written


@pytest.mark.nightly
def test_without_servers_each_call_of_fit_has_its_own_figures():
    model = compiled_model(tfdist.AllReduceStrategy())
    for batches in (2, 3):
        monitor = ClusterMonitor(verbose=0)
        fit(model, monitor, batches=batches)
        assert monitor.summary["gradients_pushed"] == batches
        (worker,) = monitor.summary["workers"]
        assert worker["steps"] == batches
