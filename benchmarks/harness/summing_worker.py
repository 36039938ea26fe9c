"""Workers that only exchange, through a server or around a ring."""

import time

TOPOLOGIES = ("parameter_server", "ring")


def strategy(topology):
    """The strategy of a topology; on a server it serves and does not return.

    Args:
        topology: one of `TOPOLOGIES`.
    """
    import tfdist

    return tfdist.ParameterAveragingStrategy(1, communication=topology)


def worker(topology, variables, size):
    """Builds a worker that takes part in the updates of all.

    Args:
        topology: one of `TOPOLOGIES`.
        variables: number of parameters.
        size: elements of each.

    Returns:
        A callable `(steps)` that takes steps and gives seconds, bytes sent and
        bytes received of each.
    """
    import keras
    import tensorflow as tf

    chosen = strategy(topology)
    with chosen.scope():
        parameters = [
            keras.Variable(tf.zeros([size]), name=f"parameter_{i}")
            for i in range(variables)
        ]
        optimizer = keras.optimizers.SGD(1e-3)
        optimizer.build(parameters)
    # Constant gradients cost nothing to compute; read from variables, they are
    # not folded into the graph.
    gradients = [
        tf.Variable(tf.fill([size], 1e-3), trainable=False)
        for _ in range(variables)
    ]

    def exchange():
        optimizer.apply([g.read_value() for g in gradients], parameters)

    step = tf.function(lambda: chosen.run(exchange))

    def measure(steps):
        chosen.journal.read_new()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - started) / steps
        last = chosen.journal.read_new()[-1]
        return seconds, last.bytes_sent, last.bytes_received

    return measure
