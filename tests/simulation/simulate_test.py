"""Models, data and figures of simulated runs."""

import contextlib
import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.multi_process import scripts
from tests.simulation import quadratic
from tfdist import simulation
from tfdist.simulation import Failure

_stream = np.random.default_rng(3)
IMAGES = _stream.standard_normal((64, 6, 6, 1)).astype("float32")
LABELS = _stream.integers(0, 4, 64)
WORDS = _stream.integers(0, 12, (64, 5))
SHORT = {"epochs": 2, "batch_size": 8, "shuffle": False}


def network(optimizer=None, *, dropout=0.0, regularizer=None):
    """A convolutional network with BatchNormalization."""
    layers = keras.layers

    def build():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.Conv2D(3, 3, kernel_regularizer=regularizer),
                layers.BatchNormalization(momentum=0.8),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dropout(dropout),
                layers.Dense(4),
            ]
        )
        made = keras.optimizers.SGD(0.1) if optimizer is None else optimizer()
        model.compile(
            made,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    return build


OPTIMIZERS = {
    "rules, rates and clipping": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.8),
        weight_decay=0.1,
        global_clipnorm=0.05,
    ),
    "averages": lambda: keras.optimizers.SGD(
        0.5, clipnorm=0.05, use_ema=True, ema_overwrite_frequency=3
    ),
}


def same(history, model):
    for one, other in zip(history.model.weights, model.weights, strict=True):
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5, err_msg=one.path
        )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["rules, rates and clipping", "averages"])
def test_one_worker_is_keras_fit_with_regularizers_dropout_and_weights(name):
    build = network(
        OPTIMIZERS[name], dropout=0.5, regularizer=keras.regularizers.L2(0.1)
    )
    weights = np.linspace(0, 2, 64).astype("float32")
    history = simulation.simulate(
        build, (IMAGES, LABELS, weights), num_workers=1, **SHORT
    )
    keras.utils.set_random_seed(0)
    model = build()
    model.fit(
        IMAGES,
        LABELS,
        sample_weight=weights,
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    # All weights: BatchNormalization's statistics are among them.
    same(history, model)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["softsync:s=2", "async"])
def test_embeddings_have_sparse_gradients_that_change_nothing(strategy):
    """As many batches of rows as of one-hot vectors, which are dense."""
    table = _stream.standard_normal((12, 3)).astype("float32")

    def build(sparse):
        def make():
            layers = keras.layers
            stack = (
                [keras.Input((5,), dtype="int32"), layers.Embedding(12, 3)]
                if sparse
                else [keras.Input((5, 12)), layers.Dense(3, use_bias=False)]
            )
            model = keras.Sequential([*stack, layers.Flatten()])
            model.add(layers.Dense(4, kernel_initializer="ones"))
            model.layers[0].set_weights([table])
            model.compile(
                keras.optimizers.SGD(0.3),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            return model

        return make

    rows, dense = (
        simulation.simulate(
            build(sparse),
            (x, LABELS),
            strategy,
            num_workers=2,
            compute=simulation.SlowWorkers(simulation.Constant(1), {1: 1.7}),
            **SHORT,
        )
        for sparse, x in ((True, WORDS), (False, np.eye(12)[WORDS]))
    )
    same(rows, dense.model)
    assert np.any(rows.model.get_weights()[0] != table)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strategy",
    ["dana:variant=zero", "sync"],
)
def test_how_many_gradients_a_call_computes_does_not_matter(strategy):
    one, many = (
        simulation.simulate(
            network(dropout=0.3),
            (IMAGES, LABELS),
            strategy,
            num_workers=4,
            chunk=chunk,
            validation_data=(IMAGES, LABELS),
            **SHORT,
        )
        for chunk in (1, 8)
    )
    same(one, many.model)
    np.testing.assert_array_equal(one.jobs, many.jobs)
    assert [row["epoch"] for row in one.evaluations] == [
        row["epoch"] for row in many.evaluations
    ]


_PROGRAM = """
import hashlib, json, sys
import numpy as np
from tfdist import simulation
from tfdist.simulation import tasks
task = tasks.teacher(640, 64)
history = simulation.simulate(
    task.model_fn(), task.train, "dana:variant=dc", num_workers=5,
    validation_data=task.validation, seed=4,
    compute=simulation.LogNormal(1.0), failures=[
        simulation.Failure(1, 2.2, 3.3)])
weights = b"".join(w.tobytes() for w in history.model.get_weights())
jobs = json.dumps(history.as_dict())
print(hashlib.sha256(weights + jobs.encode()).hexdigest())
"""


@pytest.mark.nightly
def test_two_processes_come_to_the_same_history_to_the_bit(tmp_path):
    here, there = io.StringIO(), tmp_path / "program.py"
    with contextlib.redirect_stdout(here):
        exec(_PROGRAM, {})
    there.write_text(_PROGRAM)
    # Another seed of hashes: its parent is not this process.
    task = scripts.start(tmp_path, there, [])
    assert task.wait(200) == 0, task.output()
    digest = task.output().splitlines()[-1]
    assert digest == here.getvalue().strip()
    assert len(digest) == 64


def run(strategy="async", **settings):
    return simulation.simulate(
        quadratic.model_fn(),
        (quadratic.X, quadratic.Y),
        strategy,
        **{
            "num_workers": 3,
            "epochs": 3,
            "batch_size": quadratic.BATCH,
            **settings,
        },
    )


def test_each_example_is_used_once_in_an_epoch():
    history = run(epochs=2)
    assert sorted(history.jobs["batch"]) == list(range(24))
    data = simulation.data.Data((quadratic.X, quadratic.Y), 4, seed=0)
    for epoch in (0, 1):
        rows = [data.rows(12 * epoch + k) for k in range(12)]
        assert sorted(np.concatenate(rows)) == list(range(48))
    assert np.any(data.rows(0) != data.rows(12))


def test_a_dataset_of_examples_is_the_same_as_arrays():
    dataset = tf.data.Dataset.from_tensor_slices((quadratic.X, quadratic.Y))
    found = simulation.data.Data(dataset, 4).arrays
    for one, other in zip(found, (quadratic.X, quadratic.Y), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.nightly
def test_evaluations_come_every_so_many_epochs_and_at_the_end():
    history = run(
        epochs=3,
        evaluate_every=0.5,
        validation_data=(quadratic.X, quadratic.Y),
    )
    epochs = [row["epoch"] for row in history.evaluations]
    assert epochs == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3])
    for row, before in zip(
        history.evaluations[1:], history.evaluations, strict=False
    ):
        assert row["seconds"] > before["seconds"]
        assert row["updates"] == round(12 * row["epoch"])
    wanted = history.model.evaluate(quadratic.X, quadratic.Y, verbose=0)
    assert history.final("loss") == pytest.approx(wanted, rel=1e-5)


@pytest.mark.nightly
def test_evaluations_of_methods_that_average_come_after_the_update():
    history = run(
        "softsync:s=2", epochs=3, validation_data=(quadratic.X, quadratic.Y)
    )
    found = [(row["epoch"], row["updates"]) for row in history.evaluations]
    assert found == [(k, k * 6) for k in range(4)]


def test_a_batch_that_is_computed_again_counts_once_in_an_epoch():
    history = simulation.simulate(
        quadratic.model_fn(),
        (quadratic.X, quadratic.Y),
        "backup_workers:backup_workers=1:on_drop=retry",
        num_workers=3,
        batch_size=quadratic.BATCH,
        epochs=2,
        compute=simulation.SlowWorkers(simulation.Constant(1.0), {2: 1.75}),
    )
    assert history.summary()["dropped"] > 0
    assert history.evaluations[-1]["epoch"] == 2


def test_training_ends_when_it_has_diverged():
    def build():
        return keras.optimizers.SGD(1e9)

    history = simulation.simulate(
        quadratic.model_fn(build),
        (quadratic.X, quadratic.Y),
        num_workers=3,
        epochs=50,
        batch_size=4,
    )
    assert history.diverged
    assert history.updates < 600
    # What was played ahead of the computing is not part of it.
    assert history.updates == np.count_nonzero(history.jobs["accepted"])
    times = [history.jobs[k] for k in ("pulling", "arrived", "decided")]
    assert max(map(np.nanmax, times)) <= history.seconds


def test_a_gradient_that_dies_counts_once():
    history = run(
        epochs=2,
        compute=simulation.Constant(1.0),
        failures=[Failure(0, 2.5, 4.0)],
        validation_data=(quadratic.X, quadratic.Y),
    )
    assert len(history.jobs) == 25
    assert history.evaluations[-1]["epoch"] == 2.0


def test_no_gradient_is_begun_after_the_time_is_over():
    history = run(epochs=50, max_seconds=2.0)
    assert history.jobs["pulling"].max() < 2.0
    assert 1.9 < history.seconds < 2.5


def test_a_killed_workers_momentum_is_its_own_and_lost():
    """DANA-Slim's momentum dies with the process that has it."""
    compute = simulation.Constant(1.0)
    settings = {"num_workers": 1, "epochs": 1, "compute": compute}
    settings["shuffle"] = False
    history = run(
        "dana:variant=slim", failures=[Failure(0, 2.5, 4.0)], **settings
    )
    weights, v = np.asarray(quadratic.START, "float64"), 0.0
    for batch in range(12):
        if batch == 2:
            v = 0.0
        g = quadratic.gradient(weights, quadratic.rows_of(batch))
        v = 0.9 * v + g
        weights = weights - quadratic.RATE * (0.9 * v + g)
    np.testing.assert_allclose(
        quadratic.weights_of(history), weights, rtol=1e-4
    )


@pytest.mark.nightly
def test_the_figures_can_be_written_and_read(tmp_path):
    history = run(
        "backup_workers:backup_workers=1",
        validation_data=(quadratic.X, quadratic.Y),
    )
    history.write_json(tmp_path / "history.json")
    read = json.loads((tmp_path / "history.json").read_text())
    assert read["updates"] == history.updates
    assert read["dropped"] == int((~history.jobs["accepted"]).sum()) > 0
    assert len(read["jobs"]["worker"]) == len(history.jobs)
    assert read["final_loss"] == history.final("loss")
    history.write_csv(tmp_path / "history.csv")
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert len(lines) == 1 + len(history.evaluations)
    assert lines[0].startswith("method,num_workers,seconds,epoch,updates")


def test_a_strategy_stands_for_its_two_arguments():
    import tfdist

    strategy = tfdist.SoftSyncStrategy(
        n=3, correction=tfdist.correction.InverseStaleness()
    )
    one, other = (
        simulation.methods.as_method(given).resolve(3)
        for given in (strategy, "softsync:n=3:correction=inverse_staleness")
    )
    for part in ("synchronization", "correction", "local_steps"):
        assert repr(getattr(one, part)) == repr(getattr(other, part))
