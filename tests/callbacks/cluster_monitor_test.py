"""What the monitor writes, prints and knows, alone and on a cluster."""

import dataclasses
import importlib.util
import json
import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks import leave_early
from tests.callbacks import train_with_monitor as script
from tests.callbacks.monitored import compiled_model
from tests.callbacks.monitored import fit
from tests.callbacks.monitored import rows_of
from tests.callbacks.monitored import updates_of
from tests.multi_process import scripts
import tfdist
from tfdist.callbacks import ClusterMonitor
from tfdist.callbacks import cluster_monitor
from tfdist.cluster import ClusterConfig
from tfdist.cluster import preemption
from tfdist.runtime.exchange import journal as journal_lib
from tfdist.runtime.exchange.journal import ExchangeRecord

FIELDS = {field.name for field in dataclasses.fields(ExchangeRecord)}
# Those whose means say something.
FIGURES = FIELDS - {"time", "version", "pulled", "arrival", "pulled_by_server"}


@pytest.fixture(scope="module")
def model():
    """A model that tests of one process train in turns."""
    return compiled_model(tfdist.AsyncStrategy())


def scalars(directory):
    """All events below `directory`: tag -> list of (step, value)."""
    found = {}
    (path,) = directory.iterdir()
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            number = float(tf.make_ndarray(value.tensor))
            found.setdefault(value.tag, []).append((event.step, number))
    return found


class Evaluates(keras.callbacks.Callback):
    """Evaluates the model on other data at the end of an epoch."""

    def on_epoch_end(self, epoch, logs=None):
        x = np.full([2, 2], 9.0, np.float32)
        self.model.evaluate(x, x[:, :1], verbose=0)


class TrainsAnother(keras.callbacks.Callback):
    """Trains another model with the same metrics at the end of an epoch."""

    def on_epoch_end(self, epoch, logs=None):
        other = compiled_model(self.model.distribute_strategy)
        fit(other, ClusterMonitor(verbose=0), batches=2)


@pytest.mark.nightly
@pytest.mark.parametrize("callback", [Evaluates, TrainsAnother])
def test_metrics_are_those_of_training_whatever_a_callback_does(
    model, callback
):
    monitor = ClusterMonitor(verbose=0)
    history = fit(model, callback(), monitor, batches=2)
    assert history["cluster_loss"] == pytest.approx(history["loss"])


@pytest.mark.nightly
def test_a_metric_with_several_numbers_does_not_end_training():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=[keras.metrics.F1Score()])
    monitor, x = ClusterMonitor(verbose=0), np.eye(2, dtype=np.float32)
    history = model.fit(x, x, epochs=2, callbacks=[monitor], verbose=2).history
    for own, all_of in zip(
        history["f1_score"], history["cluster_f1_score"], strict=True
    ):
        np.testing.assert_allclose(all_of, own)
    assert json.dumps(monitor.summary["metrics"])


class OwnLogs(keras.Sequential):
    """Reports losses of its own, and leaves that of `compile` as it is."""

    def train_step(self, data):
        super().train_step(data)
        self.reset_metrics()
        return {"cycle_loss": tf.ones([]), "mae": self.metrics[1].result()}


@pytest.mark.nightly
def test_a_metric_that_steps_do_not_report_is_not_shown():
    """Nothing may have updated it; `EarlyStopping` would watch a zero."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = OwnLogs([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    monitor = ClusterMonitor(verbose=0)
    history = fit(model, monitor, batches=2)
    assert {"cycle_loss", "cluster_mae"} <= history.keys()
    assert "cluster_loss" not in history
    assert monitor.summary["metrics"].keys() == {"mae"}


def test_every_step_is_a_line(model, tmp_path):
    monitor = ClusterMonitor(tmp_path / "new" / "dir", every_batches=3)
    before = updates_of(model)
    history = fit(model, monitor, batches=7, epochs=2)
    # One worker's metrics of the cluster are its own.
    for name in ("loss", "mae"):
        assert history[f"cluster_{name}"] == pytest.approx(history[name])
    assert monitor.jsonl_path.name == "steps-worker-0.jsonl"
    rows = rows_of(monitor.jsonl_path)
    assert [row["step"] for row in rows] == list(range(1, 15))
    versions = [row["version"] - before for row in rows]
    assert versions == list(range(1, 15))
    for row in rows:
        assert row.keys() == {"step"} | FIELDS
        assert row["staleness"] == 0
        assert row["pulled"] == row["version"] - 1
        assert row["pulled_by_server"] == [row["pulled"]]
        assert row["arrival"] == -1
        assert row["exchange_seconds"] >= 0
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    # Seconds since training began, not since the epoch.
    assert 0 < times[0] < times[-1] < 120.0


def test_steps_of_an_earlier_training_with_more_workers_are_removed(
    model, tmp_path
):
    for task in ("worker-0", "worker-3", "worker-12", "chief-0"):
        (tmp_path / f"steps-{task}.jsonl").write_text("{}\n")
    notes = tmp_path / "steps-to-take.jsonl"
    notes.write_text("{}\n")
    monitor = ClusterMonitor(tmp_path, verbose=0)
    fit(model, monitor, batches=2)
    found = set(tmp_path.glob("*.jsonl"))
    assert found == {monitor.jsonl_path, notes}
    assert len(rows_of(monitor.jsonl_path)) == 2


def test_steps_of_a_worker_that_may_join_stay(tmp_path):
    """It may have joined before the chief was started again."""
    addresses = [f"localhost:{port}" for port in (1, 2, 3)]
    config = ClusterConfig.from_tf_config(
        {
            "TF_CONFIG": json.dumps(
                {
                    "cluster": {"ps": ["localhost:4"], "worker": addresses},
                    "task": {"type": "worker", "index": 0},
                    "initial_workers": 2,
                }
            )
        }
    )
    for index in range(4):
        (tmp_path / f"steps-worker-{index}.jsonl").touch()
    cluster_monitor._remove_steps_of_others(tmp_path, config.worker_names)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"steps-worker-{index}.jsonl" for index in range(3)]


def test_a_worker_that_got_sigterm_leaves_its_figures_and_trains_on(
    model, monkeypatch
):
    """With `on_preemption="note"` only a script that looks leaves early."""
    monkeypatch.setattr(preemption, "_received", threading.Event())
    monkeypatch.setattr(preemption._settings, "is_leaving", False)
    published, publish = [], model.distribute_strategy.publish
    monkeypatch.setattr(
        model.distribute_strategy,
        "publish",
        lambda topic, content: (
            published.append(topic),
            publish(topic, content),
        ),
    )
    preemption._received.set()
    fit(model, ClusterMonitor(verbose=0), batches=2)
    # When it began, at once, after the epoch and at the end.
    assert published.count("figures") == 4
    assert not preemption.is_leaving()


def test_lines_are_written_while_it_trains(model, tmp_path):
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(len(rows_of(monitor.jsonl_path)))

    monitor = ClusterMonitor(tmp_path, every_batches=2)
    fit(model, monitor, Look(), batches=5)
    assert seen == [0, 2, 2, 4, 4]
    assert len(rows_of(monitor.jsonl_path)) == 5


def test_no_exchange_is_lost_between_two_writes(model, tmp_path, monkeypatch):
    # Of the rows of the ring only the number is looked at.
    for kept, every, lost in ((4, 2, 0), (3, 6, 3)):
        monkeypatch.setattr(journal_lib, "CAPACITY", kept)
        monkeypatch.setattr(cluster_monitor, "_MOST_EXCHANGES", every)
        monitor = ClusterMonitor(tmp_path, every_batches=10_000, verbose=0)
        fit(model, monitor, batches=6)
        rows = rows_of(monitor.jsonl_path)
        assert [row["step"] for row in rows] == list(range(lost + 1, 7))


@pytest.mark.nightly
def test_batches_that_come_several_at_a_time_are_written(tmp_path):
    model, seen = compiled_model(tfdist.AsyncStrategy()), []
    with model.distribute_strategy.scope():
        model.compile("sgd", "mse", steps_per_execution=3)

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(len(rows_of(monitor.jsonl_path)))

    monitor = ClusterMonitor(tmp_path, every_batches=4, verbose=0)
    fit(model, monitor, Look(), batches=12)
    assert seen == [0, 6, 6, 12]


def test_events_are_means_over_every_so_many_batches(model, tmp_path):
    monitor = ClusterMonitor(tmp_path, every_batches=2)
    before = updates_of(model)
    fit(model, monitor, batches=5)
    rows = rows_of(monitor.jsonl_path)
    events = scalars(tmp_path / "cluster" / "worker-0")
    assert events.keys() == {f"cluster/{name}" for name in FIGURES}
    for name in FIGURES:
        values = [row[name] for row in rows]
        # Written after the second, the fourth and the last batch.
        means = [np.mean(v) for v in (values[:2], values[2:4], values[4:])]
        written = events[f"cluster/{name}"]
        assert [step - before for step, _ in written] == [2, 4, 5]
        np.testing.assert_allclose([v for _, v in written], means, rtol=1e-5)


def test_without_tensorboard_the_lines_are_written_all_the_same(
    model, tmp_path, monkeypatch
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: (
            None if name == "tensorboard" else find_spec(name, *rest)
        ),
    )
    monitor = ClusterMonitor(tmp_path)
    fit(model, monitor, batches=3)
    assert len(rows_of(monitor.jsonl_path)) == 3
    assert list(tmp_path.iterdir()) == [monitor.jsonl_path]


def test_without_a_directory_a_summary_is_all(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monitor = ClusterMonitor()
    fit(model, monitor, batches=3)
    assert monitor.jsonl_path is None
    updates = updates_of(model)
    assert monitor.summary["updates_applied"] == updates
    assert list(tmp_path.iterdir()) == []
    first, *others, last = capsys.readouterr().out.splitlines()
    # One process has nobody to exchange with.
    assert not any("communication" in line for line in others)
    assert first == (
        f"Updates applied: {updates}; gradients pushed: 3, dropped: 0."
    )
    assert last.split()[:3] == ["worker", "0", "3"]
    fit(model, ClusterMonitor(verbose=0), batches=3)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("every", [0, -3])
def test_bad_every_batches_is_refused(every):
    with pytest.raises(
        ValueError, match=f"every_batches.*Received: every_batches={every}"
    ):
        ClusterMonitor(every_batches=every)


@pytest.mark.parametrize(
    "strategy", [None, tf.distribute.OneDeviceStrategy("CPU:0")]
)
def test_model_of_no_strategy_of_ours_is_refused(strategy):
    strategy = strategy or tf.distribute.get_strategy()
    with pytest.raises(ValueError, match="tfdist strategy.*PipelineStrategy"):
        fit(compiled_model(strategy), ClusterMonitor(), batches=1)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What two workers have left.

    Attributes:
        number: of examples.
        output: what the launcher printed.
        workers: what each worker left.
        directory: of the monitor.
    """

    number: int
    outputs: dict
    workers: list
    directory: pathlib.Path

    def errors(self, shift=0.0):
        """Those of the model, which adds up its three inputs."""
        x, y = script.examples(self.number)
        return (x + shift).sum(axis=1, keepdims=True) - y

    @property
    def steps(self):
        """Those of each worker; the first has the odd batch."""
        batches = -(-self.number // script.BATCH_SIZE)
        shares = ((batches + 1) // 2, batches // 2)
        return [script.EPOCHS * share for share in shares]


# Of 11 batches the last has two examples. One worker gets 6 of them, and Keras
# asks the other in vain for its sixth.
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    number = 42
    directory = tmp_path_factory.mktemp("trained")
    outputs = scripts.run(
        directory,
        script.__file__,
        [directory, number],
        {"ps": 1, "worker": 2},
    )
    workers = [
        json.loads((directory / f"worker-{k}.json").read_text())
        for k in range(2)
    ]
    return Trained(number, outputs, workers, directory)


@pytest.mark.nightly
def test_cluster_metrics_are_those_over_all_data(trained):
    errors = trained.errors()
    expected = {
        "loss": np.mean(errors**2),
        "mae": np.mean(np.abs(errors)),
        "rmse": np.sqrt(np.mean(errors**2)),
    }
    chief, _ = trained.workers
    # After the end: while an epoch lasts, the others may be in another.
    assert chief["summary"]["metrics"] == pytest.approx(expected, rel=1e-5)
    assert chief["logs"]["loss"] != pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.nightly
def test_logs_of_every_worker_have_the_cluster_s_metrics(trained):
    for worker in trained.workers:
        names = {name for name in worker["logs"] if name[:4] != "val_"}
        own = {"loss", "mae", "rmse"}
        assert names == own | {f"cluster_{name}" for name in own}


@pytest.mark.nightly
def test_validation_is_over_all_its_data_on_every_worker(trained):
    expected = np.mean(np.abs(trained.errors(shift=1.0)))
    for worker in trained.workers:
        assert worker["logs"]["val_mae"] == pytest.approx(expected)


@pytest.mark.nightly
def test_the_chief_alone_sums_up(trained):
    chief, other = trained.workers
    assert other["summary"] is None
    summary = chief["summary"]
    assert summary["updates_applied"] == sum(trained.steps)
    assert summary["gradients_pushed"] == sum(trained.steps)
    names = [worker["name"] for worker in summary["workers"]]
    assert names == ["/job:worker/task:0", "/job:worker/task:1"]
    assert [w["steps"] for w in summary["workers"]] == trained.steps
    first, second = (trained.outputs[f"worker-{k}"] for k in range(2))
    assert f"Updates applied: {sum(trained.steps)};" in first
    assert "Updates applied" not in second
    assert "Progress and metrics are those of /job:worker/task:0" in first


@pytest.mark.nightly
def test_each_worker_writes_its_own_steps(trained):
    versions = []
    for index, steps in enumerate(trained.steps):
        path = trained.directory / f"steps-worker-{index}.jsonl"
        assert trained.workers[index]["jsonl_path"] == str(path)
        rows = rows_of(path)
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert all(row["bytes_sent"] > 0 for row in rows)
        versions += [row["version"] for row in rows]
    # Each update of the server is one step of one worker.
    assert sorted(versions) == list(range(1, sum(trained.steps) + 1))


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["async", "bounded"])
def test_workers_that_left_are_in_the_summary(tmp_path, method):
    outputs = scripts.run(
        tmp_path,
        leave_early.__file__,
        [tmp_path, method],
        {"ps": 1, "worker": 3},
        initial_workers=2,
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    late = [
        [row["staleness"] for row in rows_of(path)]
        for path in sorted(tmp_path.glob("steps-worker-*.jsonl"))
    ]
    workers = summary["workers"]
    assert [len(steps) for steps in late] == [leave_early.BATCHES, 2, 2]
    assert [worker["steps"] for worker in workers] == list(map(len, late))
    assert late[1][-1] == leave_early.LATE_BY
    for worker, steps in zip(workers, late, strict=True):
        assert worker["staleness_mean"] == pytest.approx(np.mean(steps))
    everything = np.concatenate(late)
    assert summary["staleness"]["mean"] == pytest.approx(everything.mean())
    # Who was told to leave could say how long that took; who just ended, not.
    assert [w["seconds"] > 0 for w in workers] == [True, False, True]
    said = {
        "async": "its part of the data, which 2 workers share;",
        "bounded": "the data that it is given (sharding is off);",
    }[method]
    assert f"those of /job:worker/task:0 on {said}" in outputs["worker-0"]


class LateWorker(keras.callbacks.Callback):
    """Makes the replica what it is where others have gone on meanwhile."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.model.layers[0].kernel.value.assign_replica(tf.zeros([2, 1]))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(bool(np.any(self.model.get_weights()[0])))


@pytest.mark.nightly
def test_each_epoch_begins_with_the_newest_parameters(model):
    late = LateWorker()
    fit(model, ClusterMonitor(verbose=0), late, batches=1, epochs=3)
    assert late.seen == [True] * 3
