"""Trainings of one task by virtual workers, with steps in NumPy."""

import numpy as np

from tfdist.simulation import Gamma
from tfdist.simulation import flat_model
from tfdist.simulation import flat_run
from tfdist.simulation.data import Data
from tfdist.simulation.data import Shares

# Of each gradient.
COMPUTE = Gamma(1e-3)


class NumPyModel(flat_model.FlatModel):
    """Steps of plain SGD or Adagrad in NumPy, ten times as fast as TensorFlow.

    Attributes:
        rate: the learning rate.
        own_rate: of the steps that a worker takes by itself, where these are
            others; always plain SGD.
        is_adagrad: whether the rate is divided by the root of the sum of
            squares, which begins at 0, as on the servers of Dean et al.
        scales: root mean square of each gradient.
    """

    def __init__(self, model, data):
        super().__init__(model, data)
        self.rate = self.own_rate = 0.1
        self.is_adagrad = False
        self.scales = []

    def first(self, model=None):
        weights, state, _ = super().first(model)
        return weights, state, [np.zeros_like(weights)] * self.is_adagrad

    def apply(self, weights, slots, gradient):
        if not self.is_adagrad:
            return weights - self.rate * gradient, slots, self.rate
        squares = slots[0] + gradient**2
        step = self.rate * gradient / np.sqrt(np.maximum(squares, 1e-30))
        return weights - step, [squares], self.rate

    def gradients(self, jobs):
        results = super().gradients(jobs)
        self.scales += [np.sqrt(np.mean(g**2)) for g, _, _ in results]
        return results


class VirtualTraining:
    """Runs of one task, whose functions are traced once for each seed.

    Args:
        task: a `decentralized_tasks.Task`.
    """

    def __init__(self, task):
        self._task = task
        self._prepared = {}

    def model(self, seed):
        """The `NumPyModel` of a seed."""
        return self._prepare(seed)[0]

    def _prepare(self, seed):
        if seed not in self._prepared:
            task = self._task
            parts = task.split(seed)
            data = Data(parts[0], task.batch_size, seed=seed)
            model = NumPyModel(task.model(seed), data)
            self._prepared[seed] = model, data, parts[1:]
        return self._prepared[seed]

    def run(self, exchange, workers, network, seed, weights=None, **arguments):
        """Trains once, with the settings that `model` has.

        Args:
            exchange: a `VirtualExchange`.
            workers: their number.
            network: a `Network`.
            seed: of the split of the data, first weights, the order of the
                examples and compute times.
            weights: to begin with, `[size]`; default: those of the seed.
            **arguments: more of `FlatRun`.

        Returns:
            The `FlatRun`; its `History`, whose evaluations have `validation`
            and `test`; and the weights at the end.
        """
        task = self._task
        model, data, parts = self._prepare(seed)
        model.scales.clear()
        first, *others = model.first(task.model(seed))
        last = []

        def evaluate(weights, state):
            last[:] = [weights]
            accuracies = [task.accuracy(weights, *part) for part in parts]
            return dict(zip(("validation", "test"), accuracies, strict=True))

        run = flat_run.FlatRun(
            model,
            data,
            exchange,
            shares=Shares(data.num_batches, task.epochs, workers),
            num_workers=workers,
            compute=COMPUTE,
            network=network,
            seed=seed,
            first=(first if weights is None else weights, *others),
            evaluate=evaluate,
            evaluate_every=1 / task.evaluations,
            **arguments,
        )
        return run, run.train(), last[0]
