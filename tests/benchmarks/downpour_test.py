"""Downpour SGD of the comparison with Sandblaster."""

import types

from harness import downpour_exchange
from harness import downpour_runs
from harness import rate_search
from harness import virtual_training
import numpy as np
import pytest

from tfdist import simulation
from tfdist.simulation import flat_run
from tfdist.simulation.data import Shares

RATE, OWN_RATE, TARGET = 0.25, 0.125, np.array([1.0, -2.0])
STEPS = 12


class Quadratic(virtual_training.NumPyModel):
    """Whose gradient is the distance to a point."""

    def __init__(self, is_adagrad):
        self.rate, self.own_rate = RATE, OWN_RATE
        self.is_adagrad = is_adagrad
        self.scales = []
        self.model = types.SimpleNamespace(non_trainable_variables=[])

    def gradients(self, jobs):
        return [(weights - TARGET, state, 0.0) for weights, state, _ in jobs]

    def codec_runs(self, codec):
        return types.SimpleNamespace(first=lambda worker: {})


def train(n_fetch, n_push, is_adagrad, num_workers=1):
    """Returns the server's parameters at the end, and the `History`."""
    seen = []
    run = flat_run.FlatRun(
        Quadratic(is_adagrad),
        types.SimpleNamespace(num_batches=STEPS, batch_size=1),
        downpour_exchange.DownpourExchange(n_fetch=n_fetch, n_push=n_push),
        shares=Shares(STEPS, 1, num_workers),
        num_workers=num_workers,
        compute=simulation.Gamma(1.0),
        network=simulation.Network(),
        seed=0,
        first=(np.zeros(2), [], [np.zeros(2)]),
        evaluate=lambda weights, state: seen.append(weights) or {},
    )
    history = run.train()
    return seen[-1], history


@pytest.mark.parametrize("is_adagrad", [False, True])
@pytest.mark.parametrize("n_fetch, n_push", [(1, 1), (4, 2), (2, 4), (3, 5)])
def test_one_worker_trains_by_the_paper(n_fetch, n_push, is_adagrad):
    server = own = accrued = squares = np.zeros(2)
    for step in range(1, STEPS + 1):
        gradient = own - TARGET
        accrued = accrued + gradient
        own = own - OWN_RATE * gradient
        if step % n_push == 0 or step == STEPS:
            rate = RATE
            if is_adagrad:
                squares = squares + accrued**2
                rate = RATE / np.sqrt(squares)
            server = server - rate * accrued
            accrued = np.zeros(2)
        if step % n_fetch == 0:
            own = server
    found, _ = train(n_fetch, n_push, is_adagrad)
    np.testing.assert_allclose(found, server, rtol=1e-12)


def test_every_step_of_several_workers_counts_once():
    _, history = train(2, 4, False, num_workers=3)
    assert np.count_nonzero(history.jobs["accepted"]) == STEPS


def test_the_highest_rate_that_works_is_looked_for(tmp_path, monkeypatch):
    """Accuracy falls by 2 points for each rate above the best, 0.1 x 1.5^2."""

    def run(self, name, workers, rate, seed, **others):
        away = rate_search.exponent_of(rate) - 2
        value = 0.9 - (0.02 * away if away > 0 else -0.1 * away)
        return {
            "task": "digits",
            "method": name,
            "workers": workers,
            "rate": rate,
            "seed": seed,
            "curve": [[0, 0, 0, 0], [1, 1, value, value]],
            "diverged": False,
        }

    monkeypatch.setattr(downpour_runs.Laboratory, "run", run)
    results = downpour_runs.Results(tmp_path / "runs.jsonl")
    task = types.SimpleNamespace(name="digits")
    results.train(task, downpour_runs.PLAIN, 4)
    key = "digits", downpour_runs.PLAIN, 4
    assert results.search.best(key) == 2
    assert results.highest(key) == pytest.approx(1.5**2)
