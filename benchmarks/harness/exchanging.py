"""Workers of tfdist whose steps are all exchange: their gradients are constant.

Each `build_...` runs in a worker's process and returns what can be asked; see
`children.Child`.
"""

import time

NONFINITE = ("ignore", "drop", "fail")
TOPOLOGIES = ("parameter_server", "ring")

# Name -> what makes the correction; None has no ledger either.
CORRECTIONS = {
    "none": lambda correction: None,
    "InverseStaleness()": lambda c: c.InverseStaleness(),
    "DelayCompensation(variance_decay=None)": lambda c: c.DelayCompensation(
        variance_decay=None
    ),
    "DelayCompensation(variance_decay=None, backups='worker')": (
        lambda c: c.DelayCompensation(variance_decay=None, backups="worker")
    ),
    "DelayCompensation()": lambda c: c.DelayCompensation(),
    "GapAware()": lambda c: c.GapAware(),
    "FASGD()": lambda c: c.FASGD(),
    "DANA('slim')": lambda c: c.DANA("slim"),
    "DANA('zero')": lambda c: c.DANA("zero"),
    "DANA('dc')": lambda c: c.DANA("dc"),
}


class Exchange:
    """A model of equal variables, its optimizer, and constant gradients.

    Attributes:
        strategy: the strategy.
        parameters: list of `keras.Variable`.
        step: a function of an exchange.
    """

    def __init__(self, strategy, number, size, rate=1e-3, gradient=1e-3):
        """Builds it.

        Args:
            strategy: of tfdist.
            number: of variables.
            size: elements of each.
            rate: of SGD.
            gradient: every element of every gradient.
        """
        import keras
        import tensorflow as tf

        self.strategy = strategy
        with strategy.scope():
            self.parameters = [
                keras.Variable(tf.zeros([size]), name=f"parameter_{i}")
                for i in range(number)
            ]
            self._optimizer = keras.optimizers.SGD(rate)
            self._optimizer.build(self.parameters)
        # Constant gradients cost nothing to compute; read from variables,
        # they are not folded into the graph.
        self._gradients = [
            tf.Variable(tf.fill([size], gradient), trainable=False)
            for _ in range(number)
        ]
        self.step = tf.function(lambda: strategy.run(self.apply))

    def apply(self, needed=()):
        """Applies the gradients, after what they are to wait for."""
        import tensorflow as tf

        values = [gradient.read_value() for gradient in self._gradients]
        if needed:
            with tf.control_dependencies(needed):
                values = [tf.identity(value) for value in values]
        self._optimizer.apply(values, self.parameters)

    def measure(self, steps):
        """Takes steps; seconds, bytes sent and bytes received of each."""
        self.strategy.journal.read_new()
        seconds = timed(self.step, steps)
        last = self.strategy.journal.read_new()[-1]
        return seconds, last.bytes_sent, last.bytes_received


def timed(step, steps):
    """Takes steps; seconds of each."""
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - started) / steps


def serve():
    """Runs a parameter server; does not return."""
    import tfdist

    tfdist.AsyncStrategy()


def build_models(models, learning_rate, gradient):
    """Builds a worker with one optimizer step per model.

    Args:
        models: name -> (number of variables, elements of each).
        learning_rate: of SGD.
        gradient: every element of every gradient.

    Returns:
        A callable `(model, steps)` that takes the steps and gives
        seconds per step and the first element of the first variable.
    """
    import tfdist

    strategy = tfdist.AsyncStrategy()
    built = {
        name: Exchange(strategy, *shape, learning_rate, gradient)
        for name, shape in models.items()
    }

    def measure(model, steps):
        exchange = built[model]
        seconds = timed(exchange.step, steps)
        return seconds, float(exchange.parameters[0].value[0])

    return measure


def build_corrections(variables, size):
    """Builds a worker with one strategy per correction, on one cluster.

    Args:
        variables: number of parameters.
        size: elements of each.

    Returns:
        A callable `(name, steps)`; see `Exchange.measure`.
    """
    import tfdist

    built = {
        name: Exchange(
            tfdist.ParameterServerStrategy(correction=make(tfdist.correction)),
            variables,
            size,
        )
        for name, make in CORRECTIONS.items()
    }
    return lambda name, steps: built[name].measure(steps)


def build_nonfinite(models):
    """Builds a worker with a strategy for each choice of `nonfinite`.

    Args:
        models: name -> (number of variables, elements of each).

    Returns:
        A callable `(model, choice, steps)` that takes the steps and gives
        seconds per step.
    """
    import tfdist

    built = {
        (name, choice): Exchange(
            tfdist.AsyncStrategy(nonfinite=choice), *shape, 0.5, 2.0**-10
        )
        for name, shape in models.items()
        for choice in NONFINITE
    }
    return lambda model, choice, steps: timed(built[model, choice].step, steps)


def averaging(topology):
    """The strategy of a topology; on a server it serves and does not return.

    Args:
        topology: one of `TOPOLOGIES`.
    """
    import tfdist

    return tfdist.ParameterAveragingStrategy(1, communication=topology)


def build_averaging(topology, variables, size):
    """Builds a worker that takes part in the updates of all.

    Args:
        topology: one of `TOPOLOGIES`.
        variables: number of parameters.
        size: elements of each.

    Returns:
        A callable `(steps)`; see `Exchange.measure`.
    """
    return Exchange(averaging(topology), variables, size).measure


def build_overlapping(number, size, matrix, products):
    """Builds a worker that computes before its exchange, or beside it.

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
    import tensorflow as tf

    import tfdist

    strategy = tfdist.AsyncStrategy()
    exchange = Exchange(strategy, number, size, 1.0, 2.0**-10)
    start = tf.Variable(tf.eye(matrix), trainable=False)
    result = tf.Variable(0.0, trainable=False)

    def compute():
        value = start.read_value()
        for _ in range(products):
            value = tf.matmul(value, value)
        return value[0, 0]

    def after():
        computed = compute()
        exchange.apply([computed])
        result.assign(computed)

    def beside():
        exchange.apply()
        result.assign(compute())

    steps = {
        "compute": tf.function(lambda: result.assign(compute())),
        "exchange": exchange.step,
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
