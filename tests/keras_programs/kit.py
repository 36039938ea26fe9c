"""Parts of programs: models whose gradient is the data, and their weights."""

import pathlib

import keras

from tests.all_reduce.programs import Mean
from tests.all_reduce.programs import batches
from tests.all_reduce.programs import linear
from tests.all_reduce.programs import on
from tests.keras_programs import arithmetic
from tests.multi_process import handshake

__all__ = ["Mean", "on"]


def own(worker, pairs=arithmetic.OWN):
    """A worker's own batches, of one number each.

    Args:
        worker: its number.
        pairs: the numbers of each worker.
    """
    return batches(pairs[worker])


def compiled(strategy, optimizer=None, **settings):
    """A weight that begins with 0, compiled in the strategy's scope."""
    with strategy.scope():
        model = linear(optimizer and optimizer(), **settings)
    wrap = getattr(strategy, "wrap", None)
    return wrap(model, **settings) if wrap else model


def of_layers(strategy, *layers, inputs=(1,), optimizer=None, **settings):
    """A model of layers that callables make, and a weight behind them.

    Args:
        strategy: in whose scope all is made.
        *layers: callables without arguments.
        inputs: shape of an example.
        optimizer: callable, or `None` for SGD of rate 1.
        **settings: of `compile`.
    """
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input(inputs), *(make() for make in layers), zeros()]
        )
        rate_one = keras.optimizers.SGD(1.0)
        model.compile(
            optimizer() if optimizer else rate_one, Mean(), **settings
        )
    return model


def zeros(**settings):
    """A layer of one weight for each input, which begins with 0."""
    return keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", **settings
    )


def weight(strategy, model):
    """The last weight of a model when all workers have pushed all."""
    return numbers(strategy, model.trainable_weights[-1:])[-1]


def numbers(strategy, variables):
    """First numbers of variables when all workers have pushed all.

    Nobody goes on before all have read.
    """
    strategy.barrier()
    found = [float(v.numpy().ravel()[0]) for v in variables]
    meet(strategy)
    return found


_met = {"row": "", "number": 0}


def begin(name):
    """Begins a row: its meetings are counted from one."""
    _met.update(row=name, number=0)


def meet(strategy):
    """Waits until all workers have come here, by files."""
    _met["number"] += 1
    place = f"{_met['row']} {_met['number']}"
    workers = range(strategy.cluster.num_workers)
    pathlib.Path(f"{place} {strategy.cluster.worker_id}").touch()
    for worker in workers:
        handshake.wait_for(f"{place} {worker}")
