"""A worker whose steps are all exchange, for each choice of `nonfinite`."""

import time

CHOICES = ("ignore", "drop", "fail")


def worker(models):
    """Builds a worker with a strategy for each choice.

    Args:
        models: name -> (number of variables, elements of each).

    Returns:
        A callable `(model, choice, steps)` that takes the steps and gives
        seconds per step.
    """
    import keras
    import tensorflow as tf

    import tfdist

    def build(choice, number, size):
        strategy = tfdist.AsyncStrategy(nonfinite=choice)
        with strategy.scope():
            parameters = [
                keras.Variable(tf.zeros([size]), name=f"parameter_{i}")
                for i in range(number)
            ]
            optimizer = keras.optimizers.SGD(0.5)
            optimizer.build(parameters)
        # Constant gradients cost nothing to compute; read from variables,
        # they are not folded into the graph.
        gradients = [
            tf.Variable(tf.fill([size], 2.0**-10), trainable=False)
            for _ in range(number)
        ]

        def exchange():
            optimizer.apply([g.read_value() for g in gradients], parameters)

        return tf.function(lambda: strategy.run(exchange))

    built = {
        (name, choice): build(choice, *shape)
        for name, shape in models.items()
        for choice in CHOICES
    }

    def measure(model, choice, steps):
        started = time.perf_counter()
        for _ in range(steps):
            built[model, choice]()
        return (time.perf_counter() - started) / steps

    return measure
