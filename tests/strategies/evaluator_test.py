"""A task that evaluates beside the training sees what the trainers made."""

import importlib.util
import json
import pathlib
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.multi_process import scripts
from tests.strategies import twins
import tfdist
from tfdist.cli.local_cluster import LocalCluster
from tfdist.program_error import ProgramError

SCRIPT = pathlib.Path(__file__).with_name("train_beside_evaluator.py")
# 256 examples in batches of 16, three epochs, shared out over the workers.
UPDATES = 3 * 16


def train(mode, directory, num_workers):
    """Runs the script as a cluster with an evaluator; returns its output."""
    jobs = {"ps": 1, "worker": num_workers, "evaluator": 1}
    outputs = scripts.run(directory, SCRIPT, [mode, directory], jobs)
    return outputs["evaluator-0"]


def left_by(directory, name):
    return json.loads((directory / name).read_text())


def rows_of(directory):
    text = (directory / "log" / "eval.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


# A model that is built only by its first batch has no variables to ask for
# when the evaluator starts.
@pytest.mark.nightly
@pytest.mark.parametrize("mode,num_workers", [("unbuilt", 2), ("built", 1)])
def test_last_evaluation_is_the_chief_s(tmp_path, mode, num_workers):
    output = train(mode, tmp_path, num_workers)
    chief = left_by(tmp_path, "worker-0.json")
    evaluator = left_by(tmp_path, "evaluator-0.json")
    assert chief["updates"] == [UPDATES]
    if num_workers == 1:
        # What steps of the evaluator assign is its own.
        assert chief["calls"] == UPDATES
    assert evaluator["metrics"].keys() == {"loss", "accuracy"}
    for name, value in chief["metrics"].items():
        assert evaluator["metrics"][name] == pytest.approx(value, abs=1e-6)

    rows = rows_of(tmp_path)
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)
    assert steps[-1] == UPDATES
    # The chief went on only when the first epoch had been evaluated.
    assert any(0 < step < UPDATES for step in steps)
    times = [row["time"] for row in rows]
    assert times == sorted(times) and times[0] > 0
    last = {name: rows[-1][name] for name in ("loss", "accuracy")}
    assert last == evaluator["metrics"]
    assert f"Evaluation after {UPDATES} updates: accuracy: " in output
    if importlib.util.find_spec("tensorboard"):
        assert scalars(tmp_path / "log" / "evaluator") == {
            f"evaluation/{name}": [(row["step"], row[name]) for row in rows]
            for name in ("loss", "accuracy")
        }


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["built", "unbuilt"])
def test_rows_of_tables_are_those_of_the_servers(tmp_path, mode):
    script = pathlib.Path(__file__).with_name("table_beside_evaluator.py")
    jobs = {"ps": 2, "worker": 2, "evaluator": 1}
    outputs = scripts.run(tmp_path, script, [mode, tmp_path], jobs)
    chief, evaluator = (
        left_by(tmp_path, f"{name}-0.json") for name in ("worker", "evaluator")
    )
    assert evaluator["rows"] == chief["rows"]
    for key in ("metrics", "predicted"):
        twins.assert_same(evaluator[key], chief[key], tolerance=1e-5)
    # It writes no models.
    assert "is left to the chief" in outputs["evaluator-0"]
    assert not (tmp_path / "evaluator-0").exists()
    assert (tmp_path / "worker-0" / "index.json").exists()
    # Nor does the other worker.
    (saved,) = tmp_path.glob("*.keras")
    model = keras.models.load_model(saved)
    (rows,) = (w for w in model.get_weights() if w.shape == (500, 2))
    assert saved.name == "worker-0.keras" and rows.tolist() == chief["rows"]


def scalars(directory):
    """All that TensorBoard would show: tag -> list of (step, value)."""
    found = {}
    (path,) = directory.iterdir()
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            number = float(tf.make_ndarray(value.tensor))
            found.setdefault(value.tag, []).append((event.step, number))
    return found


@pytest.mark.nightly
def test_evaluator_that_comes_after_training_evaluates_once(tmp_path):
    train("late", tmp_path, 1)
    chief = left_by(tmp_path, "worker-0.json")
    evaluator = left_by(tmp_path, "evaluator-0.json")
    assert evaluator["evaluations"] == 1
    for name, value in chief["metrics"].items():
        assert evaluator["metrics"][name] == pytest.approx(value, abs=1e-6)
    assert [row["step"] for row in rows_of(tmp_path)] == [UPDATES]


@pytest.mark.nightly
def test_servers_end_without_an_evaluator_that_never_came(tmp_path):
    tasks = {}
    counts = {"ps": 1, "worker": 1, "evaluator": 1}
    with LocalCluster(counts) as cluster:
        try:
            for task in cluster.tasks:
                if task.job != "evaluator":
                    tasks[task.job] = scripts.start(
                        tmp_path,
                        SCRIPT,
                        ["absent", tmp_path],
                        task.job,
                        TF_CONFIG=task.tf_config,
                    )
            assert tasks["worker"].wait() == 0
            output = tasks["ps"].output
            assert tasks["ps"].wait() == 0, output()
            # Counted from the start of the server, by this script's patience.
            assert "task:0 has not been seen for 15 s" in output()
        finally:
            for task in tasks.values():
                task.send(signal.SIGKILL)


@pytest.fixture(scope="module")
def model():
    """A model in one process, where nobody else trains."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([2]), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile("sgd", "mse", metrics=["mae"])
    return model


X, Y = np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([[1.0], [4.0]])
# Predictions are the sums 3 and 1: errors of 2 and -3.
EXPECTED = {"loss": 6.5, "mae": 2.5}


@pytest.mark.nightly
def test_in_one_process_it_evaluates_once(model, tmp_path, capsys):
    evaluator = tfdist.SidecarEvaluator(model, (X, Y), log_dir=tmp_path)
    assert evaluator.start() == pytest.approx(EXPECTED)
    (line,) = (tmp_path / "eval.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row.pop("step") == 0
    assert row.pop("time") > 0
    assert row == pytest.approx(EXPECTED)
    shown = "Evaluation after 0 updates: loss: 6.5000, mae: 2.5000\n"
    assert capsys.readouterr().out == shown


def test_data_sets_sample_weights_and_steps_reach_evaluate(model, capsys):
    def run(data, **kwargs):
        kwargs["verbose"] = 0
        return tfdist.SidecarEvaluator(model, data, **kwargs).start()

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(1)
    assert run(dataset) == pytest.approx(EXPECTED)
    # The first example alone.
    assert run(dataset, steps=1) == pytest.approx({"loss": 4.0, "mae": 2.0})
    weighted = run((X, Y, np.array([1.0, 0.0])))
    # Keras divides the weighted sum of losses by the number of examples.
    assert weighted["loss"] == pytest.approx(2.0)
    assert capsys.readouterr().out == ""


def test_without_log_dir_nothing_is_written(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tfdist.SidecarEvaluator(model, (X, Y), verbose=0).start()
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_is_a_vector_is_written_as_a_list(tmp_path):
    class PerClass(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="per_class")
            self.total = self.add_weight(shape=[2], initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(keras.ops.ones([2]))

        def result(self):
            return self.total.value

    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(loss="mse", metrics=[PerClass()])
    evaluator = tfdist.SidecarEvaluator(model, (X, Y), log_dir=tmp_path)
    assert evaluator.start()["per_class"] == [1.0, 1.0]
    row = json.loads((tmp_path / "eval.jsonl").read_text())
    assert row["per_class"] == [1.0, 1.0]


@pytest.mark.parametrize("interval", [-1.0, float("nan"), float("inf")])
def test_bad_interval_is_refused(model, interval):
    with pytest.raises(ValueError, match="`interval_seconds` must be a finite"):
        tfdist.SidecarEvaluator(model, (X, Y), interval_seconds=interval)


def test_data_of_too_many_parts_is_refused(model):
    with pytest.raises(ValueError, match="Received: a tuple of 4 parts"):
        tfdist.SidecarEvaluator(model, (X, Y, None, None))


def test_model_without_a_strategy_is_refused():
    plain = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with pytest.raises(ValueError, match="scope of a tfdist strategy"):
        tfdist.SidecarEvaluator(plain, (X, Y))


@pytest.mark.parametrize("way", ["fit", "train_on_batch", "apply"])
def test_an_evaluator_does_not_train(model, monkeypatch, way):
    strategy = model.distribute_strategy
    config = tfdist.cluster.ClusterConfig(
        spec={"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]},
        task_type="evaluator",
        task_index=0,
    )
    monkeypatch.setattr(strategy.extended, "_config", config)
    before = model.get_weights()

    def step():
        if way != "apply":
            return getattr(model, way)(X, Y)
        gradients = [tf.ones_like(v) for v in model.trainable_variables]
        return model.optimizer.apply(gradients)

    with pytest.raises(
        ProgramError, match="/job:evaluator/task:0: .*SidecarEvaluator"
    ):
        step()
    twins.assert_same(model.get_weights(), before, tolerance=0.0)
    assert model.evaluate(X, Y, verbose=0, return_dict=True) == pytest.approx(
        EXPECTED
    )


def test_task_that_trains_is_refused(model, monkeypatch):
    cluster = tfdist.cluster.ClusterConfig(
        spec={"worker": ["a:1", "b:1"], "ps": ["c:1"]},
        task_type="worker",
        task_index=1,
    )
    monkeypatch.setattr(model.distribute_strategy, "_cluster", cluster)
    with pytest.raises(ValueError, match="/job:worker/task:1"):
        tfdist.SidecarEvaluator(model, (X, Y))
