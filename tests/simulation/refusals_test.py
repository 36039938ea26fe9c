"""What cannot be simulated is refused, with the argument's name."""

import keras
import pytest
import tensorflow as tf

from tests.simulation import quadratic
from tests.simulation.comparison_test import small_data
from tests.simulation.comparison_test import small_model
from tfdist import simulation
from tfdist.correction import DANA
from tfdist.sandblaster import LBFGS
from tfdist.simulation import comparison
from tfdist.strategies import registry


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def _own_step():
    inputs = keras.Input((quadratic.SIZE,))
    model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def _uncompiled():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def _unbuilt():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _accumulating():
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_fn": _own_step}, "train_step"),
        ({"model_fn": _uncompiled}, "compile"),
        ({"model_fn": _unbuilt}, "keras.Input"),
        (
            {"model_fn": quadratic.model_fn(_accumulating)},
            "gradient_accumulation_steps",
        ),
        ({"dataset": (quadratic.X, quadratic.Y[:-1])}, "dataset"),
        (
            {"dataset": tf.data.Dataset.range(9).repeat()},
            "`dataset` must be finite",
        ),
        ({"batch_size": 16, "num_workers": 4}, "a batch for each worker"),
        ({"chunk": 9}, "chunk"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"validation_data": [1]}, "validation_data"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"strategy": "dana:variant=fast"}, "variant"),
        (
            {
                "strategy": "dana",
                "model_fn": quadratic.model_fn(
                    lambda: keras.optimizers.SGD(0.1, momentum=0.9)
                ),
            },
            "momentum",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(arguments, message):
    arguments = {
        "model_fn": quadratic.model_fn(),
        "dataset": (quadratic.X, quadratic.Y),
        "num_workers": 3,
        "batch_size": 4,
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        simulation.simulate(
            arguments.pop("model_fn"), arguments.pop("dataset"), **arguments
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [("strategy", 3), ("compute", 0.1), ("network", 10), ("model_fn", int)],
)
def test_other_types_are_refused_by_name(name, value):
    arguments = {"model_fn": quadratic.model_fn(), name: value}
    with pytest.raises(TypeError, match=name):
        simulation.simulate(
            arguments.pop("model_fn"),
            (quadratic.X, quadratic.Y),
            num_workers=2,
            batch_size=4,
            **arguments,
        )


def _constrained():
    model = keras.Sequential(
        [
            keras.Input((quadratic.SIZE,)),
            keras.layers.Dense(1, kernel_constraint="non_neg"),
        ]
    )
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("strategy", ["peer_to_peer", "gossip"])
@pytest.mark.parametrize(
    ("model_fn", "message"),
    [
        (_constrained, "kernel' with constraint=NonNeg"),
        (quadratic.model_fn(keras.optimizers.Ftrl), "of class Ftrl"),
    ],
)
def test_what_peers_refuse_is_refused_here(strategy, model_fn, message):
    assert_refused(model_fn, strategy, message)


def assert_refused(model_fn, strategy, message):
    with pytest.raises(ValueError, match=message):
        simulation.simulate(
            model_fn,
            (quadratic.X, quadratic.Y),
            strategy,
            num_workers=2,
            batch_size=4,
        )


def test_what_local_steps_refuse_is_refused_here():
    assert_refused(
        quadratic.model_fn(keras.optimizers.Ftrl),
        "parameter_averaging",
        "ParameterAveraging .*of class Ftrl",
    )


@pytest.mark.parametrize("strategy", ["async", "easgd", "peer_to_peer"])
def test_only_sandblaster_takes_lbfgs(strategy):
    model = quadratic.model_fn(LBFGS)()
    with pytest.raises(ValueError, match="use the method sandblaster"):
        comparison.check_fits(registry.method(strategy), 2, model)


@pytest.mark.parametrize("strategy", ["sync", "softsync:n=1"])
def test_what_servers_refuse_is_refused_here(strategy):
    def averaged():
        return keras.optimizers.SGD(0.1, use_ema=True)

    models = {
        "refuse use_ema: .* Use async, or": quadratic.model_fn(averaged),
        "constraints of .*kernel": _constrained,
        "a MultiOptimizer: .* bounded_staleness": quadratic.model_fn(_parts),
    }
    for message, model_fn in models.items():
        assert_refused(model_fn, strategy, message)


def _parts():
    one = keras.optimizers.SGD(0.1)
    return keras.optimizers.MultiOptimizer(lambda _: one)


@pytest.mark.parametrize(
    ("method", "num_workers", "is_refused"),
    [
        ("bounded_staleness", 2, True),
        ("bounded_staleness", 1, False),
        ("dc_asgd", 2, True),
        ("async", 2, False),
        # It corrects on the workers.
        ("dana:variant=slim", 2, False),
    ],
)
def test_averages_of_weights_need_to_see_each_update(
    method, num_workers, is_refused
):
    model = quadratic.model_fn(lambda: keras.optimizers.SGD(use_ema=True))()
    method = registry.method(method)
    if not is_refused:
        comparison.check_fits(method, num_workers, model)
        return
    with pytest.raises(ValueError, match="several updates .*Use async, or"):
        comparison.check_fits(method, num_workers, model)


def _constrained_softmax(learning_rate=None, momentum=0.0):
    """What `compare` takes as `model_fn_of`."""

    def model_fn():
        model = small_model(learning_rate, momentum)()
        model.trainable_variables[0].constraint = keras.constraints.NonNeg()
        return model

    return model_fn


WRONG = {
    "twice": ({"strategies": ["sync", "sync"]}, "each once"),
    "no_workers": (
        {"num_workers": []},
        "`num_workers` must be a list of at least one",
    ),
    "too_many": ({"num_workers": [9]}, "8 batches of 8 for num_workers=9"),
    "backup": (
        {"strategies": ["async", "backup_workers:backup_workers=2"]},
        "'backup_workers:backup_workers=2' does not fit num_workers=2",
    ),
    "optimizer": (
        {
            "strategies": [DANA()],
            "model_fn_of": lambda *_: small_model(0.1, 0.5),
        },
        "does not fit the model",
    ),
    "constraints": (
        {"strategies": ["async", "sync"], "model_fn_of": _constrained_softmax},
        "'sync' does not fit the model: Methods whose updates are means",
    ),
    "peers": (
        {
            "strategies": ["async", "peer_to_peer"],
            "model_fn_of": _constrained_softmax,
        },
        "'peer_to_peer' does not fit the model: Argument `model_fn`",
    ),
    "warmup": (
        {"strategies": ["async", "peer_to_peer:warmup_peers=1"]},
        "must be without `warmup_peers`",
    ),
    "rates": (
        {"learning_rates": [0.1, 0.0]},
        "`learning_rates` must be a finite number above 0",
    ),
    "servers": (
        {"strategies": ["async", "peer_to_peer"], "num_servers": 2},
        "`num_servers` must be 1 with peer_to_peer",
    ),
    "work": (
        {"strategies": ["async", "sync"], "work": "queue"},
        "`work` must be",
    ),
    "failures": (
        {"failures": [simulation.Failure(0, 0.3), simulation.Failure(0, 0.5)]},
        "`failures` must have a worker back",
    ),
    "seed": ({"seed": 1}, "compare takes seed as a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_before_any_training(name, monkeypatch):
    arguments, message = WRONG[name]
    arguments = {
        "model_fn_of": small_model,
        "dataset": small_data(64),
        "strategies": ["async"],
        "num_workers": [2],
        "batch_size": 8,
        **arguments,
    }
    monkeypatch.setattr(comparison, "simulate", pytest.fail)
    with pytest.raises(ValueError) as caught:
        simulation.compare(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("metric", "nope", ValueError),
        ("network", 3.0, TypeError),
        ("failures", [simulation.Failure(7, 1.0)], ValueError),
    ],
)
def test_nothing_is_trained_if_an_argument_does_not_fit(name, value, error):
    built = []

    def model_fn_of(*settings):
        build = small_model(*settings)

        def model_fn():
            model = build()
            built.append(model)
            return model

        return model_fn

    with pytest.raises(error, match=name):
        simulation.compare(
            model_fn_of,
            small_data(64),
            ["async"],
            [2],
            batch_size=8,
            validation_data=small_data(40),
            **{name: value},
        )
    assert all(int(model.optimizer.iterations) == 0 for model in built)
