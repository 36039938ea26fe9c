"""What programs written for TensorFlow's own strategies do beside training."""

import types

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
        strategy.extended._config = types.SimpleNamespace(num_workers=2)
    with pytest.raises(NotImplementedError, match="`all_gather`.*optimizer"):
        strategy.run(step)
    assert strategy.reduce("SUM", value, axis=0) == 1.0
    assert strategy.gather(value, axis=0) == [1.0]
