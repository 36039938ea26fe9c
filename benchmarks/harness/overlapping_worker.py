"""A worker of tfdist that computes before its exchange, or beside it."""

import time


def build(number, size, matrix, products):
    """Builds the steps.

    Args:
        number: of variables.
        size: elements of each variable.
        matrix: rows and columns of the matrices that stand for the model.
        products: how many of them are multiplied, one after the other.

    Returns:
        A callable `(kind, steps)` that takes the steps and gives seconds per
        step. Kinds: `compute` and `exchange`, each alone; `after`, where the
        gradients need the result of the computation, as in training;
        `beside`, where they do not, as if those of the batch before were sent.
    """
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        parameters = [
            keras.Variable(tf.zeros([size]), name=f"parameter_{i}")
            for i in range(number)
        ]
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(parameters)
    gradients = [
        tf.Variable(tf.fill([size], 2.0**-10), trainable=False)
        for _ in range(number)
    ]
    start = tf.Variable(tf.eye(matrix), trainable=False)
    result = tf.Variable(0.0, trainable=False)

    def compute():
        value = start.read_value()
        for _ in range(products):
            value = tf.matmul(value, value)
        return value[0, 0]

    def apply(needed):
        with tf.control_dependencies(needed):
            values = [tf.identity(g.read_value()) for g in gradients]
        optimizer.apply(values, parameters)

    def after():
        computed = compute()
        apply([computed])
        result.assign(computed)

    def beside():
        apply([])
        result.assign(compute())

    steps = {
        "compute": tf.function(lambda: result.assign(compute())),
        "exchange": tf.function(lambda: strategy.run(lambda: apply([]))),
        "after": tf.function(lambda: strategy.run(after)),
        "beside": tf.function(lambda: strategy.run(beside)),
    }

    def measure(kind, count):
        started = time.perf_counter()
        for _ in range(count):
            steps[kind]()
        float(result)
        return (time.perf_counter() - started) / count

    return measure
