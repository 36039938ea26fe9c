"""One worker's exchanges, with each correction of late gradients."""

import time

# Name -> what makes the correction; None has no ledger either.
CORRECTIONS = {
    "none": lambda correction: None,
    "InverseStaleness()": lambda c: c.InverseStaleness(),
    "DelayCompensation()": lambda c: c.DelayCompensation(),
    "DelayCompensation(backups='worker')": lambda c: c.DelayCompensation(
        backups="worker"
    ),
    "DelayCompensation(variance_decay=0.95)": lambda c: c.DelayCompensation(
        variance_decay=0.95
    ),
    "GapAware()": lambda c: c.GapAware(),
    "FASGD()": lambda c: c.FASGD(),
    "DANA('slim')": lambda c: c.DANA("slim"),
    "DANA('zero')": lambda c: c.DANA("zero"),
    "DANA('dc')": lambda c: c.DANA("dc"),
}


def worker(variables, size):
    """Builds a worker with one strategy per correction, on one cluster.

    Args:
        variables: number of parameters.
        size: elements of each.

    Returns:
        A callable `(name, steps)` that takes steps and gives the seconds, the
        bytes sent and the bytes received of each.
    """
    import tfdist

    def build(make):
        strategy = tfdist.ParameterServerStrategy(
            correction=make(tfdist.correction)
        )
        return strategy, _step(strategy, variables, size)

    built = {name: build(make) for name, make in CORRECTIONS.items()}

    def measure(name, steps):
        strategy, step = built[name]
        strategy.journal.read_new()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - started) / steps
        exchange = strategy.journal.read_new()[-1]
        return seconds, exchange.bytes_sent, exchange.bytes_received

    return measure


def _step(strategy, variables, size):
    """A function that exchanges constant gradients with SGD."""
    import keras
    import tensorflow as tf

    with strategy.scope():
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

    return tf.function(lambda: strategy.run(exchange))
