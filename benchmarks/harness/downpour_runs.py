"""Runs of Downpour SGD and of Sandblaster, and the choice of their rates."""

import dataclasses
import operator
import time

import keras
import numpy as np

from harness import rate_search
from tfdist import simulation

# Seconds of one gradient, and of a message.
COMPUTE, LATENCY = 1e-3, 5e-5
# Passes of Sandblaster over the data, times those of the other methods.
MORE_PASSES = 5
# Gradients of the warm start, as a share of all others.
WARM_SHARE = 0.05
# Validation accuracy that a rate may lose and still counts as one that works.
TOLERATED = 0.05


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the comparison.

    Attributes:
        strategy: text for `simulate`, with `{rate}`.
        is_warm: whether one worker trains alone first.
        guess: the rate to begin with, times the task's; None without a rate.
        falls: whether the rate to begin with falls with the workers.
    """

    strategy: str
    is_warm: bool = False
    guess: float | None = 1.0
    falls: bool = True


_SGD = "downpour:outer_optimizer=sgd:outer_learning_rate={rate}"
_ADAGRAD = "downpour:outer_optimizer=adagrad:outer_learning_rate={rate}"
METHODS = {
    "Downpour, SGD": Method(_SGD),
    "Downpour, SGD, warm start": Method(_SGD, is_warm=True),
    "Downpour, Adagrad": Method(_ADAGRAD, guess=0.1, falls=False),
    "Downpour, Adagrad, warm start": Method(
        _ADAGRAD, is_warm=True, guess=0.1, falls=False
    ),
    "Sandblaster": Method("sandblaster", guess=None),
    "Sandblaster, warm start": Method("sandblaster", is_warm=True, guess=None),
}
# n_fetch, n_push.
PERIODS = ((1, 1), (4, 1), (1, 4), (2, 2), (4, 4), (8, 8))
SWEEPS = {
    f"Downpour, {name}, n_fetch={n_fetch}, n_push={n_push}": Method(
        f"{METHODS[f'Downpour, {name}'].strategy}"
        f":n_fetch={n_fetch}:n_push={n_push}",
        guess=METHODS[f"Downpour, {name}"].guess,
        falls=METHODS[f"Downpour, {name}"].falls,
    )
    for name in ("SGD", "Adagrad")
    for n_fetch, n_push in PERIODS
    if (n_fetch, n_push) != (1, 1)
}
ALL = {**METHODS, **SWEEPS}


class Laboratory:
    """Runs of one task.

    Args:
        task: a `decentralized_tasks.Task`.
        warm_rate: the rate of plain SGD, by one worker.
    """

    def __init__(self, task, warm_rate=None):
        self._task = task
        self._warm_rate = warm_rate
        self._warm = {}

    def run(self, name, workers, rate, seed, part):
        """Trains once.

        Args:
            name: of `ALL`.
            workers: their number.
            rate: the learning rate.
            seed: of the split of the data, first weights, the order of the
                examples and compute times.
            part: "validation" or "test", on which the model is evaluated.

        Returns:
            A dict that JSON can hold.
        """
        task, method = self._task, ALL[name]
        train, validation, test = task.split(seed)
        began, weights = 0.0, None
        if method.is_warm:
            began, weights = self._warm_start(train, seed)
        passes, evaluations = task.epochs, task.evaluations
        if method.guess is None:
            passes, evaluations = MORE_PASSES * passes, min(evaluations, 1.0)
        begin = time.perf_counter()
        history = self._simulate(
            train,
            method.strategy.format(rate=rate),
            # Between two fetches a worker takes steps of its own.
            rate,
            seed,
            workers,
            weights,
            epochs=passes,
            validation_data={"validation": validation, "test": test}[part],
            evaluate_every=1 / evaluations,
        )
        return {
            "task": task.name,
            "method": name,
            "workers": workers,
            "rate": rate,
            "seed": seed,
            "part": part,
            "warm_seconds": began,
            "curve": [
                [
                    round(row["epoch"], 4),
                    round(began + row["seconds"], 6),
                    round(row["accuracy"], 5),
                ]
                for row in history.evaluations
            ],
            "diverged": history.diverged,
            "seconds": began + history.seconds,
            "staleness": float(history.staleness.mean())
            if method.guess is not None and len(history.staleness)
            else 0.0,
            "bytes": history.total_bytes,
            "took": time.perf_counter() - begin,
        }

    def _warm_start(self, train, seed):
        """Virtual seconds, and the weights after them."""
        if seed not in self._warm:
            task = self._task
            steps = len(train[0]) // task.batch_size * task.epochs
            examples = round(WARM_SHARE * steps) * task.batch_size
            history = self._simulate(
                tuple(array[:examples] for array in train),
                "async",
                self._warm_rate,
                seed,
                workers=1,
            )
            self._warm[seed] = history.seconds, history.model.get_weights()
        return self._warm[seed]

    def _simulate(
        self, train, strategy, rate, seed, workers, weights=None, **arguments
    ):
        def build():
            model = self._task.model(seed)
            if weights is not None:
                model.set_weights(weights)
            model.compile(
                "sgd" if strategy == "sandblaster" else _sgd(rate),
                model.loss,
                metrics=["accuracy"],
            )
            return model

        return simulation.simulate(
            build,
            train,
            strategy,
            num_workers=workers,
            batch_size=self._task.batch_size,
            compute=simulation.Gamma(COMPUTE),
            network=simulation.Network(latency_seconds=LATENCY),
            seed=seed,
            **arguments,
        )


def _sgd(rate):
    return keras.optimizers.SGD(float(rate))


def late(run):
    """Accuracy late in training; 0 if the run diverged.

    The mean over the last quarter of the evaluations, as one says little.
    """
    values = [accuracy for _, _, accuracy in run["curve"][1:]]
    last = values[-max(len(values) // 4, 1) :]
    return 0.0 if run["diverged"] or not values else float(np.mean(last))


def seconds_to(run, target):
    """Virtual seconds until an accuracy, None if it was not reached."""
    for _, seconds, accuracy in run["curve"]:
        if accuracy >= target:
            return seconds
    return None


class Results:
    """All runs, each a line of a file, with the best rate of each method.

    Args:
        path: of the file, which may exist.
        is_quick: whether one seed and the first rate are enough.

    Attributes:
        search: the `RateSearch`, by (task, method, workers, part).
    """

    def __init__(self, path, is_quick=False):
        self._is_quick = is_quick
        self._laboratories = {}
        self.search = rate_search.RateSearch(
            path, operator.itemgetter("task", "method", "workers", "part"), late
        )

    def _runner(self, task, method, workers, part):
        warm = self._warm_key(task)

        def run(rate, seed):
            laboratory = self._laboratories.get(task.name)
            if laboratory is None:
                rate_alone = None
                if warm in self.search.runs:
                    rate_alone = rate_search.rate_of(self.search.best(warm))
                laboratory = Laboratory(task, rate_alone)
                if rate_alone is not None:
                    self._laboratories[task.name] = laboratory
            return laboratory.run(method, workers, rate, seed, part)

        return run

    def _warm_key(self, task):
        return task.name, "Downpour, SGD", 1, "validation"

    def train(self, task, method, workers):
        """Looks for the best rate, then evaluates on the test data.

        Args:
            task: a `decentralized_tasks.Task`.
            method: a name of `ALL`.
            workers: their number.
        """
        if ALL[method].is_warm and self._warm_key(task) not in self.search.runs:
            self.train(task, "Downpour, SGD", 1)
        key = (task.name, method, workers, "validation")
        search = self.search
        seeds = rate_search.SEEDS[:1] if self._is_quick else rate_search.SEEDS
        run = self._runner(task, method, workers, "validation")
        if ALL[method].guess is None:
            exponent = 0
        elif self._is_quick:
            exponent = self._guess(key)
            search.need(key, exponent, seeds, run)
        else:
            search.tune(key, self._guess(key), run)
            exponent = search.best(key)
            self._look_for_the_highest(key, exponent, run)
        run = self._runner(task, method, workers, "test")
        search.need((*key[:3], "test"), exponent, seeds, run)

    def _look_for_the_highest(self, key, exponent, run):
        """Tries higher rates until one does not work any more."""
        seeds = rate_search.TUNED_SEEDS
        least = self.search.need(key, exponent, seeds, run) - TOLERATED
        while self.search.need(key, exponent, seeds, run) >= least:
            exponent += 1

    def highest(self, key):
        """The highest rate that works, over the best one."""
        runs, best = self.search.runs[key], self.search.best(key)

        def value(exponent):
            return np.mean(
                [late(runs[exponent][s]) for s in rate_search.TUNED_SEEDS]
            )

        exponent = best
        while (
            exponent + 1 in runs
            and value(exponent + 1) >= value(best) - TOLERATED
        ):
            exponent += 1
        return rate_search.FACTOR ** (exponent - best)

    def _guess(self, key):
        """The exponent to begin with: the best one of what is alike."""
        task, name, workers, part = key
        method = ALL[name]
        alike = [key] + [
            (task, other, workers, part)
            for other in METHODS
            if name.startswith(other) or other.startswith(name)
        ]
        for other in alike:
            if other in self.search.runs:
                return self.search.best(other)
        rate = {"digits": 0.1, "text": 0.4}[task] * method.guess
        if method.falls:
            rate *= 4 / max(workers, 4)
        return rate_search.exponent_of(rate)
