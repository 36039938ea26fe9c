"""tfdist itself: a server, and a worker whose steps are all exchange."""

import time


def serve():
    """Runs a parameter server; does not return."""
    import tfdist

    tfdist.AsyncStrategy()


def exchanging_worker(models, learning_rate, gradient):
    """Builds a worker with one optimizer step per model.

    Args:
        models: name -> (number of variables, elements of each).
        learning_rate: of SGD.
        gradient: every element of every gradient.

    Returns:
        A callable `(model, steps)` that takes the steps and gives
        seconds per step and the first element of the first variable.
    """
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.AsyncStrategy()

    def build(number, size):
        with strategy.scope():
            parameters = [
                keras.Variable(tf.zeros([size]), name=f"parameter_{i}")
                for i in range(number)
            ]
            optimizer = keras.optimizers.SGD(learning_rate)
            optimizer.build(parameters)
        # Constant gradients cost nothing to compute; read from variables,
        # they are not folded into the graph.
        gradients = [
            tf.Variable(tf.fill([size], gradient), trainable=False)
            for _ in range(number)
        ]

        def exchange():
            optimizer.apply([g.read_value() for g in gradients], parameters)

        step = tf.function(lambda: strategy.run(exchange))
        return step, parameters[0]

    built = {name: build(*shape) for name, shape in models.items()}

    def measure(model, steps):
        step, parameter = built[model]
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - started) / steps
        return seconds, float(parameter.value[0])

    return measure
