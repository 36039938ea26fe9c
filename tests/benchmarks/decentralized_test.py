"""The search for the best learning rate of each method."""

import types

from harness import decentralized_runs
from harness import rate_search
import pytest

TASK = types.SimpleNamespace(name="digits")
KEY = "digits", "server", 4, decentralized_runs.GBPS


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Runs whose validation accuracy is best at 0.1 x 1.5^4."""

    def run(self, method, workers, rate, seed, gbps):
        value = -abs(rate_search.exponent_of(rate) - 4.2)
        # An epoch, seconds, validation and test.
        curve = [[0, 0, 0, 0], [1, 1, value, seed]]
        return {
            "task": "digits",
            "method": method,
            "workers": workers,
            "rate": rate,
            "seed": seed,
            "gbps": gbps,
            "curve": curve,
            "diverged": False,
        }

    monkeypatch.setattr(decentralized_runs.Laboratory, "run", run)
    return decentralized_runs.Results(tmp_path / "runs.jsonl")


def test_rates_are_tried_until_both_neighbours_of_the_best_are_worse(results):
    results.train(TASK, *KEY[1:])
    assert results.search.best(KEY) == 4
    tried = results.search.runs[KEY]
    assert {3, 4, 5} <= tried.keys()
    assert tried[4].keys() == set(rate_search.SEEDS)


def test_what_is_in_the_file_is_not_run_again(results, monkeypatch):
    results.train(TASK, *KEY[1:])
    again = decentralized_runs.Results(results.search._path)
    assert again.search.runs == results.search.runs
    monkeypatch.setattr(decentralized_runs.Laboratory, "run", None)
    again.train(TASK, *KEY[1:])


def test_another_network_has_the_rate_that_is_known(results):
    results.train(TASK, *KEY[1:])
    results.train(TASK, *KEY[1:3], 0.1)
    assert results.search.runs[(*KEY[:3], 0.1)].keys() == {4}
    # Peers without a codec have one of their own.
    for gbps in (decentralized_runs.GBPS, 0.1):
        results.train(TASK, "peers", 4, gbps)
        assert len(results.search.runs["digits", "peers", 4, gbps]) > 2


def test_runs_of_real_processes_are_kept_apart(results):
    run = {"task": "digits", "method": "peers", "workers": 4, "seed": 3}
    results.search.write({**run, "real": True})
    again = decentralized_runs.Results(results.search._path)
    assert again.real == {("digits", "peers", 4): {3: {**run, "real": True}}}
    assert not again.search.runs
