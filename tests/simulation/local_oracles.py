"""Local steps in NumPy, from the papers' formulas alone.

`in_rounds` and `by_arrival`, for synchronous and asynchronous methods, train
the linear regression of `quadratic`.
"""

import numpy as np

from tests.simulation import quadratic


class Momentum:
    """Keras's SGD: plain, with momentum, or with Nesterov's.

    Args:
      rate: Learning rate, or callable of the steps counted before.
      momentum: Its momentum.
      nesterov: Whether the weights are the point ahead.
    """

    def __init__(self, rate=quadratic.RATE, momentum=0.0, nesterov=False):
        self.rate = rate if callable(rate) else lambda counted: rate
        self.momentum = momentum
        self.nesterov = nesterov
        self.slots = [np.zeros(quadratic.SIZE)]

    def step(self, weights, gradient, counted):
        change = self.rate(counted) * gradient
        velocity = self.momentum * self.slots[0] - change
        self.slots = [velocity]
        if self.nesterov:
            velocity = self.momentum * velocity - change
        return weights + velocity


def rows_of(batch, size):
    """The examples of a batch of at most `size`, where nothing is shuffled."""
    batches = -(-quadratic.EXAMPLES // size)
    first = batch % batches * size
    return np.arange(first, min(first + size, quadratic.EXAMPLES))


def share_of(worker, num_workers, epochs, size):
    """The batches of a worker, a list."""
    batches = -(-quadratic.EXAMPLES // size)
    return [
        epoch * batches + batch
        for epoch in range(epochs)
        for batch in range(worker, batches, num_workers)
    ]


class Worker:
    """What a worker does by itself.

    Attributes:
      own: Its weights.
      anchor: What it was given last.
      point: Its weights before its last step.
      examples: Seen since it was given these.
      accrued: The sum of its gradients since then.
    """

    def __init__(self, number, num_workers, epochs, size, inner):
        self.left = share_of(number, num_workers, epochs, size)
        self.size = size
        self.inner = inner
        self.counted = 0
        self.accrued = np.zeros(quadratic.SIZE)
        self.give(np.asarray(quadratic.START, "float64"))

    def give(self, parameters):
        self.own = self.anchor = self.point = parameters
        self.examples = 0

    def steps(self, number):
        """Takes so many steps, or those that are left; returns how many."""
        mine, self.left = self.left[:number], self.left[number:]
        for batch in mine:
            rows = rows_of(batch, self.size)
            gradient = quadratic.gradient(self.own, rows)
            self.accrued = self.accrued + gradient
            self.point = self.own
            self.own = self.inner.step(self.own, gradient, self.counted)
            self.counted += 1
            self.examples += len(rows)
        return len(mine)


def in_rounds(
    num_workers, epochs, size, period, make_inner, update, after=None
):
    """A synchronous training.

    Args:
      num_workers: Number of workers.
      epochs: Passes over the data.
      size: Of a batch.
      period: Steps between two exchanges.
      make_inner: Makes the optimizer of a worker.
      update: Callable of the parameters, and of the workers that push, that
        returns the new parameters.
      after: Callable of the workers that have pushed and the new parameters:
        what they go on from; default: from these.

    Returns:
      The parameters, a vector.
    """
    workers = [
        Worker(number, num_workers, epochs, size, make_inner())
        for number in range(num_workers)
    ]
    theta = np.asarray(quadratic.START, "float64")
    while True:
        active = [worker for worker in workers if worker.left]
        if not active:
            return theta
        for worker in active:
            worker.steps(period)
        theta = update(theta, active)
        if after is not None:
            after(active, theta)
            continue
        for worker in active:
            worker.give(theta)


def mean_of(workers):
    """The mean of the workers' weights, by the examples that they saw."""
    return np.average(
        [worker.own for worker in workers],
        axis=0,
        weights=[worker.examples for worker in workers],
    )


class Bmuf:
    """Chen and Huo 2016, Nesterov's: `W` is the filtered model.

    That is not what is given out.
    """

    def __init__(self, momentum, rate):
        self.momentum, self.rate = momentum, rate
        self.filtered = np.asarray(quadratic.START, "float64")
        self.delta = np.zeros(quadratic.SIZE)

    def __call__(self, given, workers):
        change = mean_of(workers) - given
        self.delta = self.momentum * self.delta + self.rate * change
        self.filtered = self.filtered + self.delta
        return self.filtered + self.momentum * self.delta


class DelayedNesterov:
    """Liu et al. 2024, algorithm 3, of one worker's change after another."""

    def __init__(self, workers, rate, momentum, c):
        self.workers, self.rate = workers, rate
        self.momentum, self.c = momentum, c
        self.velocity = self.buffer = np.zeros(quadratic.SIZE)
        self.time = 0

    def __call__(self, theta, change):
        number, c = self.workers, self.c
        self.buffer = self.buffer + change
        share = c
        if (self.time + 1) % number == 0:
            self.velocity = self.momentum * self.velocity + self.buffer / number
            self.buffer = np.zeros(quadratic.SIZE)
            share = 1 - c * number + c
        self.time += 1
        step = share * self.momentum * self.velocity + change / number
        return theta - self.rate * step


def by_arrival(history, epochs, size, make_inner, exchange):
    """An asynchronous training, in the order in which a history has it.

    Args:
      history: A `History`; of it, who arrived when, and after how many steps.
      epochs: Passes over the data.
      size: Of a batch.
      make_inner: Makes the optimizer of a worker.
      exchange: Callable of the parameters, and of the worker, that returns
        the new parameters and sets what the worker goes on from.

    Returns:
      The parameters; the staleness of each push, a list; and the numbers of
      these in the history, in the order in which they arrived.
    """
    workers = [
        Worker(number, history.num_workers, epochs, size, make_inner())
        for number in range(history.num_workers)
    ]
    thetas, counted = [np.asarray(quadratic.START, "float64")], [0]
    staleness, seen = [], {}
    jobs = history.jobs[~np.isnan(history.jobs["arrived"])]
    order = np.argsort(jobs["arrived"], kind="stable")
    for updates, job in enumerate(jobs[order]):
        number = int(job["worker"])
        worker = workers[number]
        if number not in seen:
            # It may have come when others had trained.
            seen[number] = int(job["pulled"])
            worker.give(thetas[seen[number]])
            worker.counted = counted[seen[number]]
        assert worker.steps(int(job["steps"])) == job["steps"]
        thetas.append(exchange(thetas[-1], worker))
        # Where one that comes later begins to count.
        counted.append(max(counted[-1], worker.counted))
        staleness.append(updates - seen[number])
        seen[number] = updates + 1
    assert not any(worker.left for worker in workers)
    return thetas[-1], staleness, order
