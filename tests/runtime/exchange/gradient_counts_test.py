"""Counts of gradients on a server that gets back what it held before."""

import numpy as np
import tensorflow as tf

from tests.runtime.replicas import one_run


def test_gradients_of_an_earlier_process_are_not_of_this_one():
    runtime, model = one_run.trained()
    strategy = model.distribute_strategy
    counts = strategy.push_counts()
    assert (counts["applied"], counts["lost"]) == ([4], [0])

    @tf.function(autograph=False)
    def put(values):
        runtime.gradient_counts.put(0, [values])

    # Accepted, not finite, staleness, life, accepted in this life: another
    # worker gives the server what it had read before this process began.
    put(tf.constant([32, 1, 5, 7, 30], tf.int64))
    counts = strategy.push_counts()
    assert (counts["applied"], counts["lost"]) == ([0], [4])
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    counts = strategy.push_counts()
    assert (counts["applied"], counts["lost"]) == ([1], [4])
    (total,) = strategy.gradient_counts().values()
    assert total == {
        "pushed": 34,
        "accepted": 33,
        "dropped": 1,
        "nonfinite": 1,
        "staleness": 5,
    }
