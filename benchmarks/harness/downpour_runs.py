"""Runs of Downpour SGD and of Sandblaster, and the choice of their rates."""

import dataclasses
import operator
import time

import numpy as np

from harness import decentralized_runs
from harness import downpour_exchange
from harness import rate_search
from harness import virtual_training
from tfdist import simulation

# Of each message.
NETWORK = simulation.Network(latency_seconds=5e-5)
# Passes of Sandblaster over the data, times those of the other methods.
MORE_PASSES = 5
# Gradients of the warm start, as a share of all others.
WARM_SHARE = 0.05
# Exponents of rates far from the first guess: a climb that begins at a rate
# with which nothing is learned ends beside it.
SCANNED = (-6, -3, 3)
# Validation accuracy that a rate may lose and still counts as one that works.
TOLERATED = 0.05

late = decentralized_runs.late
FACTOR = rate_search.FACTOR


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the comparison.

    Attributes:
        optimizer: of the server, "sgd" or "adagrad"; None: Sandblaster.
        is_warm: whether one worker trains alone first.
        n_fetch: steps between two fetches.
        n_push: steps between two pushes.
    """

    optimizer: str | None
    is_warm: bool = False
    n_fetch: int = 1
    n_push: int = 1


PLAIN = "Downpour, SGD"
METHODS = {
    PLAIN: Method("sgd"),
    "Downpour, SGD, warm start": Method("sgd", is_warm=True),
    "Downpour, Adagrad": Method("adagrad"),
    "Downpour, Adagrad, warm start": Method("adagrad", is_warm=True),
    "Sandblaster": Method(None),
    "Sandblaster, warm start": Method(None, is_warm=True),
}
PERIODS = ((4, 1), (1, 4), (2, 2), (4, 4), (8, 8))
SWEEPS = {
    f"{name}, n_fetch={n_fetch}, n_push={n_push}": dataclasses.replace(
        METHODS[name], n_fetch=n_fetch, n_push=n_push
    )
    for name in (PLAIN, "Downpour, Adagrad")
    for n_fetch, n_push in PERIODS
}
ALL = {**METHODS, **SWEEPS}


class Laboratory:
    """Runs of one task.

    Args:
        task: a `decentralized_tasks.Task`.
    """

    def __init__(self, task):
        self._task = task
        self._training = virtual_training.VirtualTraining(task)
        self._warm = {}

    def run(self, name, workers, rate, seed, *, own_rate, warm_rate):
        """Trains once.

        Args:
            name: of `ALL`.
            workers: their number.
            rate: the server's learning rate.
            seed: of the split of the data, first weights, the order of the
                examples and compute times.
            own_rate: of the steps that a worker takes by itself.
            warm_rate: of plain SGD by one worker.

        Returns:
            A dict that JSON can hold.
        """
        method = ALL[name]
        began, weights = 0.0, None
        if method.is_warm:
            if (seed, warm_rate) not in self._warm:
                self._warm[seed, warm_rate] = self._warm_start(seed, warm_rate)
            began, weights = self._warm[seed, warm_rate]
        begin = time.perf_counter()
        if method.optimizer is None:
            history = self._minimize(workers, seed, weights)
        else:
            _, history = self._train(
                method, workers, (rate, own_rate), seed, weights
            )
        staleness = history.staleness
        return {
            "task": self._task.name,
            "method": name,
            "workers": workers,
            "rate": rate,
            "seed": seed,
            "curve": [
                [
                    round(row["epoch"], 4),
                    round(began + row["seconds"], 6),
                    # Sandblaster has no rate that would have to be chosen.
                    round(row.get("validation", row.get("accuracy")), 5),
                    round(row.get("test", row.get("accuracy")), 5),
                ]
                for row in history.evaluations
            ],
            "diverged": history.diverged,
            "seconds": began + history.seconds,
            "staleness": float(np.mean(staleness)) if len(staleness) else 0.0,
            "bytes": history.total_bytes,
            "took": time.perf_counter() - begin,
        }

    def _warm_start(self, seed, rate):
        """Virtual seconds of one worker, and the weights after them."""
        task = self._task
        steps = task.sizes[0] // task.batch_size * task.epochs
        weights, history = self._train(
            METHODS[PLAIN],
            1,
            (rate, rate),
            seed,
            max_seconds=WARM_SHARE * steps * virtual_training.COMPUTE.seconds,
        )
        return history.seconds, weights

    def _train(self, method, workers, rates, seed, weights=None, **arguments):
        """Returns the weights at the end, and the `History`."""
        model = self._training.model(seed)
        model.rate, model.own_rate = rates
        model.is_adagrad = method.optimizer == "adagrad"
        exchange = downpour_exchange.DownpourExchange(
            n_fetch=method.n_fetch, n_push=method.n_push
        )
        _, history, weights = self._training.run(
            exchange, workers, NETWORK, seed, weights, **arguments
        )
        return weights, history

    def _minimize(self, workers, seed, weights):
        task = self._task
        train, _, test = task.split(seed)

        def build():
            model = task.model(seed)
            if weights is not None:
                ends = np.cumsum([value.size for value in model.get_weights()])
                parts = np.split(weights, ends[:-1])
                for variable, part in zip(model.variables, parts, strict=True):
                    variable.assign(part.reshape(variable.shape))
            model.compile("sgd", model.loss, metrics=["accuracy"])
            return model

        return simulation.simulate(
            build,
            train,
            "sandblaster",
            num_workers=workers,
            batch_size=task.batch_size,
            epochs=MORE_PASSES * task.epochs,
            compute=virtual_training.COMPUTE,
            network=NETWORK,
            validation_data=test,
            evaluate_every=1.0,
            seed=seed,
        )


def seconds_to(run, target):
    """Virtual seconds until a test accuracy, None if it was not reached."""
    for _, seconds, _, accuracy in run["curve"]:
        if accuracy >= target:
            return seconds
    return None


class Results:
    """All runs, each a line of a file, with the best rate of each method.

    Args:
        path: of the file, which may exist.
        is_quick: whether one seed and the first rate are enough.

    Attributes:
        search: the `RateSearch`, by (task, method, workers).
    """

    def __init__(self, path, is_quick=False):
        self._is_quick = is_quick
        self._laboratories = {}
        self.search = rate_search.RateSearch(
            path,
            operator.itemgetter("task", "method", "workers"),
            lambda run: late(run, "validation"),
        )

    def train(self, task, name, workers):
        """Looks for the best rate, and trains with it on all seeds.

        Then it tries higher rates until one does not work.

        Args:
            task: a `decentralized_tasks.Task`.
            name: of `ALL`.
            workers: their number.
        """
        method = ALL[name]
        key = task.name, name, workers
        others = {}
        if method.is_warm:
            others["warm_rate"] = self._rate(task, 1)
        if max(method.n_fetch, method.n_push) > 1:
            # With plain SGD both have the same one.
            others["own_rate"] = (
                None if method.optimizer == "sgd" else self._rate(task, workers)
            )
        search = self.search

        def run(rate, seed):
            laboratory = self._laboratories.setdefault(
                task.name, Laboratory(task)
            )
            own_rate = others.get("own_rate") or rate
            return laboratory.run(
                name,
                workers,
                rate,
                seed,
                own_rate=own_rate,
                warm_rate=others.get("warm_rate"),
            )

        if self._is_quick or method.optimizer is None:
            seeds = rate_search.SEEDS[: 1 if self._is_quick else None]
            search.need(key, self._guess(key), seeds, run)
            return
        search.tune(key, self._guess(key), run, SCANNED)
        exponent = search.best(key)
        while self._works(key, exponent):
            exponent += 1
            search.need(key, exponent, rate_search.TUNED_SEEDS, run)

    def _rate(self, task, workers):
        """The best rate of plain SGD."""
        key = task.name, PLAIN, workers
        if key not in self.search.runs:
            self.train(task, PLAIN, workers)
        return rate_search.rate_of(self.search.best(key))

    def _works(self, key, exponent):
        runs = self.search.runs[key]

        def value(exponent):
            seeds = rate_search.TUNED_SEEDS
            return np.mean(
                [late(runs[exponent][seed], "validation") for seed in seeds]
            )

        return value(exponent) >= value(self.search.best(key)) - TOLERATED

    def highest(self, key):
        """The highest rate that works, over the best one."""
        best = exponent = self.search.best(key)
        while exponent + 1 in self.search.runs[key] and self._works(
            key, exponent + 1
        ):
            exponent += 1
        return FACTOR ** (exponent - best)

    def _guess(self, key):
        """The exponent to begin with: the best one of what is alike."""
        task, name, workers = key
        method = ALL[name]
        if method.optimizer is None:
            return 0
        for other in ALL:
            alike = task, other, workers
            if (
                ALL[other].optimizer == method.optimizer
                and alike in self.search.runs
            ):
                exponent = self.search.best(alike)
                # Gradients are late by as many times as many others.
                period = max(method.n_fetch, method.n_push)
                if method.optimizer == "sgd" and other == PLAIN:
                    exponent -= round(np.log(period) / np.log(FACTOR))
                return exponent
        rate = {"digits": 0.1, "text": 0.4}[task]
        if method.optimizer == "adagrad":
            return rate_search.exponent_of(0.1 * rate)
        return rate_search.exponent_of(rate * min(1, 4 / workers))
