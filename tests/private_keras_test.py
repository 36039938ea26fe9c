"""Canaries: the private names of Keras are there, and mean what they did.

One for each name of `tfdist.private_keras`. Where one fails, Keras has
changed: what tfdist does with the name is in its docstring.
"""

import keras
from keras.src.backend.common import global_state
import numpy as np
import pytest
import tensorflow as tf

from tests import private_names
import tfdist
from tfdist import private_keras


def model_of_two():
    return keras.Sequential(
        [
            keras.Input([3], name="x"),
            keras.layers.Dense(2, name="a"),
            keras.layers.Dense(1, name="b"),
        ]
    )


def test_every_name_has_a_canary():
    assert not private_names.without_a_canary(private_keras, __file__)


def test_a_keras_without_a_name_is_refused():
    private_keras.require(keras.Sequential(), "layers")
    with pytest.raises(RuntimeError, match="Sequential has no .*`no_name`"):
        private_keras.require(keras.Sequential(), "layers", "no_name")


def test_parts_of_a_layer_are_found_in_order():
    model = model_of_two()
    wrapped = keras.layers.TimeDistributed(keras.layers.Dense(1))
    assert private_keras.sublayers(wrapped) == [wrapped.layer]
    nested = keras.Sequential([wrapped])
    assert private_keras.with_sublayers(nested)[0] is nested
    assert wrapped.layer in private_keras.with_sublayers(nested)
    found = [x.name for x in private_keras.sublayers(model)]
    assert [x for x in found if x in "ab"] == ["a", "b"]


def test_a_generator_of_unseeded_draws_is_made_in_the_scope_that_needs_it():
    keras.random.normal([1])
    before = global_state.get_global_attribute("global_seed_generator")
    assert before is not None  # Else another name has it.
    strategy = tfdist.AllReduceStrategy()
    private_keras.make_seed_generator_in(strategy)
    with strategy.scope():
        keras.random.normal([1])
    made = global_state.get_global_attribute("global_seed_generator")
    assert made is not before
    assert strategy.extended.variable_created_in_scope(made.state.value)
    private_keras.make_seed_generator_in(strategy)
    assert global_state.get_global_attribute("global_seed_generator") is made
    keras.utils.set_random_seed(0)


def test_a_model_s_own_metrics_are_not_those_that_it_is_compiled_with():
    model = model_of_two()
    model.own = keras.metrics.Mean()
    model.compile("sgd", "mse", metrics=["mae"])
    assert private_keras.own_metrics(model) == [model.own]
    # Keras leaves them out of a model around it.
    assert model.own not in keras.Sequential([model]).metrics


@pytest.mark.parametrize("is_scaled", [False, True])
def test_updates_are_counted_by_a_variable(is_scaled):
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    if is_scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    counter, batches = private_keras.counter_of(optimizer)
    counter.assign(5)
    assert int(optimizer.iterations) == 5 // batches == 2
    counter, batches = private_keras.counter_of(keras.optimizers.SGD())
    assert (int(counter), batches) == (0, 1)


def test_a_variable_moves_with_its_value():
    variable = keras.Variable(np.arange(3.0))
    before = variable.value
    private_keras.move_variable(variable, "/device:CPU:1")
    assert variable.value is not before
    assert variable.value.device.endswith("CPU:1")
    np.testing.assert_array_equal(variable.numpy(), [0.0, 1.0, 2.0])


def test_a_variable_without_the_attribute_is_not_left_where_it_was():
    with pytest.raises(RuntimeError, match="has no attribute `_value`"):
        private_keras.move_variable(object(), "/device:CPU:1")


def test_fit_begins_with_the_epoch_that_it_is_told():
    model = model_of_two()
    model.compile("sgd", "mse")
    seen = []

    class Told(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            assert private_keras.epoch_set_on(self.model) is None
            private_keras.set_initial_epoch(self.model, 2)
            assert private_keras.epoch_set_on(self.model) == 2

        def on_epoch_begin(self, epoch, logs=None):
            seen.append(epoch)

    x, y = np.ones([2, 3]), np.ones([2, 1])
    model.fit(x, y, epochs=4, callbacks=[Told()], verbose=0)
    assert seen == [2, 3]


def test_an_epoch_that_nobody_would_read_is_not_set():
    with pytest.raises(RuntimeError, match="has no attribute `_initial_epoch`"):
        private_keras.set_initial_epoch(object(), 2)


def test_a_functional_model_is_its_calls():
    x = keras.Input([3])
    a, b = keras.layers.Dense(2), keras.layers.Dense(1)
    model = keras.Model(x, b(a(x)))
    calls = private_keras.calls_of(model)
    assert [operation for operation, *_ in calls] == [a, b]
    values = {id(x): tf.ones([2, 3])}
    for operation, fill_in, inputs, outputs in calls:
        assert all(id(tensor) in values for tensor in inputs)
        arguments, named = fill_in(values)
        values[id(outputs[0])] = operation(*arguments, **named)
    np.testing.assert_allclose(
        values[id(model.outputs[0])], model(tf.ones([2, 3])), rtol=1e-6
    )


def test_an_optimizer_knows_the_strategy_that_it_was_made_under():
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    for scope in strategy, tf.distribute.get_strategy():
        with scope.scope():
            optimizer = keras.optimizers.Adam()
        assert private_keras.strategy_of_optimizer(optimizer) is scope


def test_a_model_without_a_strategy_has_none():
    assert private_keras.strategy_of(model_of_two()) is None
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    with strategy.scope():
        assert private_keras.strategy_of(model_of_two()) is strategy


@pytest.mark.parametrize("several", [False, True])
def test_an_optimizer_knows_variables_that_have_moved(several):
    optimizer = keras.optimizers.SGD(0.5, momentum=0.5, weight_decay=0.5)
    moved, decayed = keras.Variable([1.0, 2.0]), keras.Variable([1.0])
    optimizer.exclude_from_weight_decay(var_list=[moved])
    outer = optimizer
    if several:
        outer = keras.optimizers.MultiOptimizer(lambda _: optimizer)
    outer.build([moved, decayed])
    private_keras.move_variable(moved, "/device:CPU:1")
    outer.apply([tf.ones([2]), tf.zeros([1])], [moved, decayed])
    # 1 - 0.5 x 1 and 2 - 0.5 x 1, and 1 - 0.5 x 0.5 x 1.
    np.testing.assert_allclose(moved.numpy(), [0.5, 1.5])
    np.testing.assert_allclose(decayed.numpy(), [0.75])


def test_the_loss_has_a_metric_that_is_no_one_elses():
    model = model_of_two()
    model.compile("sgd", "mse")
    assert private_keras.loss_tracker(model) is model.metrics[0]
    with pytest.raises(RuntimeError, match="_loss_tracker"):
        private_keras.loss_tracker(object())


def test_losses_of_outputs_have_metrics_of_their_own():
    inputs = keras.Input((1,))
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in "ab"]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", ["mse", "mse"])
    assert private_keras.output_loss_trackers(model) == []
    model.evaluate(tf.ones((2, 1)), [tf.ones((2, 1))] * 2, verbose=0)
    found = private_keras.output_loss_trackers(model)
    assert [tracker.name for tracker in found] == ["a_loss", "b_loss"]
    assert [float(tracker.count) for tracker in found] == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="_compile_loss"):
        private_keras.output_loss_trackers(object())


def test_gradients_are_reduced_where_ours_says():
    seen = []

    class Asked(keras.optimizers.SGD):
        def _all_reduce_sum_gradients(self, grads_and_vars):
            seen.append(len(grads_and_vars))
            return super()._all_reduce_sum_gradients(grads_and_vars)

    class Ours(private_keras.OptimizerOfOneReplica, keras.optimizers.SGD):
        pass

    variable = keras.Variable([1.0, 2.0])
    Asked(1.0).apply([tf.ones([2])], [variable])
    assert seen == [1]
    Ours(1.0).apply([tf.ones([2])], [variable])
    np.testing.assert_allclose(variable.numpy(), [-1.0, 0.0])


SLOTS = [
    (keras.optimizers.SGD(momentum=0.9), "momentums"),
    (keras.optimizers.RMSprop(momentum=0.9), "_momentums"),
    (keras.optimizers.Adam(), "_momentums"),
    (keras.optimizers.Adam(), "_velocities"),
    (keras.optimizers.Adam(amsgrad=True), "_velocity_hats"),
    (keras.optimizers.Adamax(), "_m"),
    (keras.optimizers.Adamax(), "_u"),
    (keras.optimizers.Lion(), "_momentums"),
]


@pytest.mark.parametrize("optimizer, name", SLOTS)
def test_slots_that_predictions_need_are_found(optimizer, name):
    variables = [keras.Variable([1.0]), keras.Variable([1.0, 2.0])]
    optimizer.build(variables)
    found = private_keras.slot(optimizer, name, variables[1])
    assert found.shape == (2,)
    assert any(found is variable for variable in optimizer.variables)


def test_averages_of_weights_are_found():
    variables = [keras.Variable([1.0]), keras.Variable([1.0, 2.0])]
    with_them = keras.optimizers.Adam(use_ema=True)
    with_them.build(variables)
    averages = private_keras.averages_of(with_them)
    assert [average.shape for average in averages] == [(1,), (2,)]
    assert all("average" in average.path for average in averages)
    without = keras.optimizers.Adam()
    without.build(variables)
    assert private_keras.averages_of(without) == []
    without.use_ema = True
    with pytest.raises(RuntimeError, match="_model_variables_moving_average"):
        private_keras.averages_of(without)


def test_masks_travel_with_tensors():
    layer = keras.layers.Masking()
    output = layer(tf.constant([[[1.0], [0.0]]]))
    np.testing.assert_array_equal(
        private_keras.mask_of(output), [[True, False]]
    )
    assert private_keras.mask_of(tf.ones([1])) is None


def test_losses_read_the_logits_that_travel_with_an_output():
    # So sure that the rounded probability of class 0 is 0, its logarithm not.
    logits = tf.constant([[0.0, 200.0]])
    output = keras.activations.softmax(logits)
    np.testing.assert_array_equal(private_keras.logits_of(output), logits)
    copy = tf.identity(output)
    assert private_keras.logits_of(copy) is None
    private_keras.set_logits(copy, logits)
    loss = keras.losses.sparse_categorical_crossentropy(np.array([0]), copy)
    np.testing.assert_allclose(loss, [200.0], rtol=1e-6)


@pytest.mark.parametrize("functional", [False, True])
def test_inputs_and_outputs_of_models_are_flat(functional):
    if functional:
        a, b = keras.Input([2], name="a"), keras.Input([3], name="b")
        model = keras.Model({"b": b, "a": a}, {"y": a, "z": b})
        x = {"a": np.ones([4, 2]), "b": np.ones([4, 3])}
        widths = [tensor.shape[-1] for tensor in model.inputs]
    else:
        model, x, widths = model_of_two(), np.ones([4, 3]), [3]
    tensors = private_keras.flat_inputs(model, x)
    assert [tensor.shape[-1] for tensor in tensors] == widths
    outputs = [tf.ones(t.shape[1:]) * k for k, t in enumerate(model.outputs)]
    packed = private_keras.pack_outputs(model, outputs)
    if functional:
        assert list(packed) == ["y", "z"]
    else:
        assert packed is outputs[0]


def test_a_schedule_of_a_learning_rate_is_found():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer = keras.optimizers.Adam(schedule)
    assert private_keras.learning_rate_schedule(optimizer) is schedule
    assert private_keras.learning_rate_schedule(keras.optimizers.SGD()) is None
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert private_keras.learning_rate_schedule(scaled) is None


def test_a_function_as_a_learning_rate_is_found():
    found = [
        private_keras.has_rate_function(keras.optimizers.SGD(rate))
        for rate in (
            lambda: 0.5,
            0.5,
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        )
    ]
    assert found == [True, False, False]


@pytest.mark.parametrize(
    ("name", "expected"), [("Adam", False), ("SGD", False), ("Nadam", True)]
)
def test_optimizers_that_do_more_than_update_each_weight_are_told(
    name, expected
):
    optimizer = getattr(keras.optimizers, name)(0.1)
    assert private_keras.has_step_of_its_own(optimizer) == expected
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    before = [v.numpy() for v in optimizer.variables]
    optimizer.update_step(tf.ones([1]), variable, 0.1)
    by_rule = [v.numpy() for v in optimizer.variables]
    for value, first in zip(optimizer.variables, before, strict=True):
        value.assign(first)
    optimizer.apply([tf.ones([1])])
    # All but the number of steps.
    differ = [
        bool(np.any(v.numpy() != other))
        for v, other in zip(optimizer.variables, by_rule, strict=True)
        if v is not optimizer.iterations
    ]
    assert any(differ) == expected


@pytest.mark.parametrize("scaled", [False, True])
def test_trained_variables_of_an_optimizer_are_found(scaled):
    optimizer = keras.optimizers.SGD(0.25)
    variable = keras.Variable([1.0, 2.0])
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build([variable])
    (found,) = private_keras.trained_by(optimizer)
    assert found is variable


class Rows(type(tf.Variable(0.0))):
    """A TensorFlow variable that can be read by rows alone."""

    def sparse_read(self, indices, name=None):
        del name
        return tf.fill([*indices.shape, 2], 7.0)

    def _read_variable_op(self, no_copy=False):
        raise ValueError("a use of all values")


def test_take_asks_a_variable_that_is_read_by_rows_for_rows():
    layer = keras.layers.Embedding(5, 2)
    layer.build()
    variable = layer.embeddings
    private_keras.read_by_rows(variable)
    assert type(variable) is not keras.Variable
    assert isinstance(variable, keras.Variable)
    assert variable.__class__ is keras.Variable
    variable._value = Rows(tf.zeros([5, 2]))
    ids = np.array([[1, -1]])
    assert np.all(layer(ids) == 7)
    assert np.all(tf.function(layer)(ids) == 7)
    ragged = tf.ragged.constant([[1, -1], [2]])
    assert layer(ragged).to_list() == [[[7, 7], [7, 7]], [[7, 7]]]
    assert np.all(layer(ragged.to_sparse()) == 7)
    # `take` counts negative ids from the end: it asks for the shape.
    np.testing.assert_array_equal(tf.shape(variable), [5, 2])
    with pytest.raises(ValueError, match="a use of all values"):
        keras.ops.matmul(variable, np.ones((2, 1)))
    with pytest.raises(ValueError, match="a use of all values"):
        tf.convert_to_tensor(variable, tf.float32)


def test_shapes_of_other_variables_are_what_they_were():
    np.testing.assert_array_equal(tf.shape(keras.Variable([1.0, 2.0])), [2])
    with pytest.raises((ValueError, TypeError)):
        tf.shape(object())
