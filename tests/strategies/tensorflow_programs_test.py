"""What programs written for TensorFlow's own strategies do beside training."""

import pytest
import tensorflow as tf

import tfdist


def gathered(context, value):
    return context.all_gather(value, axis=0)


def reduced(context, value):
    return context.merge_call(
        lambda strategy, x: strategy.reduce("SUM", x, axis=None), (value,)
    )


def reduced_together(context, value):
    return context.merge_call(
        lambda strategy, x: strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.MEAN, [(x, x)]
        ),
        (value,),
    )


@pytest.mark.parametrize("reduction", [gathered, reduced, reduced_together])
@pytest.mark.parametrize(
    "kind", [tfdist.AsyncStrategy, tfdist.AllReduceStrategy]
)
def test_a_worker_reduces_its_own_value_outside_of_steps_only(kind, reduction):
    strategy, value = kind(), tf.ones([1])

    def step():
        return reduction(tf.distribute.get_replica_context(), value)

    strategy.run(step)  # The one worker has all values.
    if kind is tfdist.AllReduceStrategy:
        strategy._engine.collectives.num_workers = 2
    else:
        strategy.extended._config = tfdist.cluster.ClusterConfig(
            {"worker": ["a:1", "b:1"]}, "worker", 0
        )
    with pytest.raises(
        NotImplementedError, match="`all_gather`.*synchronized=False"
    ):
        strategy.run(step)
    assert strategy.reduce("SUM", value, axis=0) == 1.0
    assert strategy.gather(value, axis=0) == [1.0]


@pytest.mark.parametrize(
    "kind", [tfdist.AsyncStrategy, tfdist.AllReduceStrategy]
)
def test_variables_are_arguments_each_for_itself(kind):
    strategy, traces = kind(), []
    with strategy.scope():
        images = [tf.Variable([number]) for number in (0.0, 1.0)]

    @tf.function
    def move(image, change):
        traces.append(None)
        image.assign_sub(change)

    for image in images * 2:
        strategy.run(move, args=(image, tf.constant([0.25])))
    if kind is tfdist.AsyncStrategy:
        strategy.pull()
    assert [float(image[0]) for image in images] == [-0.5, 0.5]
    assert len(traces) == 2


@pytest.mark.parametrize(
    "kind", [tfdist.AsyncStrategy, tfdist.AllReduceStrategy]
)
def test_a_saved_model_is_loaded_in_the_scope(kind, tmp_path):
    saved = tf.Module()
    saved.weight = tf.Variable([2.0, 3.0])
    saved.call = tf.function(
        lambda x: x * saved.weight, [tf.TensorSpec([2], tf.float32)]
    )
    tf.saved_model.save(saved, str(tmp_path))
    with kind().scope():
        loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.weight.numpy().tolist() == [2.0, 3.0]
    assert loaded.call(tf.ones([2])).numpy().tolist() == [2.0, 3.0]
