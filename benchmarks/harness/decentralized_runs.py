"""Runs of methods with and without servers, and the choice of their rates."""

import time

import numpy as np

from harness import rate_search
from harness import virtual_training
from tfdist.simulation import Network
from tfdist.simulation import exchanges

# So fast that the network is never the limit.
GBPS = 1000.0
# Of 17 million elements, milliseconds to encode and to decode.
CODEC_MS = {
    "cast": (28, 48),
    "threshold": (86, 10),
    "top_k": (84, 4),
    "power_sgd": (119, 34),
}
METHODS = {
    "server": ("server", None),
    "server, threshold 1/250": ("server", "threshold(density=0.004)"),
    "peers": ("peers", None),
    "peers, threshold 1/250": ("peers", "threshold(density=0.004)"),
    "peers, top_k 1/250": ("peers", "top_k(ratio=0.004)"),
    "gossip": ("gossip", None),
    "synchronous": ("synchronous", None),
    "synchronous, power_sgd": ("synchronous", "power_sgd(rank=4)"),
    "local steps, 10": ("averaging", None),
}
CODECS = {
    "peers, bfloat16": ("peers", "cast(dtype=bfloat16)"),
    "peers, threshold 1/30": ("peers", "threshold(density=0.0333)"),
    "peers, threshold 1/1000": ("peers", "threshold(density=0.001)"),
    "peers, threshold 1/4000": ("peers", "threshold(density=0.00025)"),
    "peers, tau=0.07": ("peers", "threshold(tau=0.07)"),
    "peers, tau=0.5": ("peers", "threshold(tau=0.5)"),
    "peers, tau=0.02": ("peers", "threshold(tau=0.02)"),
}
ALL = {**METHODS, **CODECS}
# Whose staleness, and so whose best rate, depends on the network: its workers
# do not wait until messages have left.
TUNED_BY_NETWORK = ("peers",)

_KINDS = {
    "server": exchanges.ServerExchange,
    "peers": exchanges.PeerExchange,
    "gossip": exchanges.GossipExchange,
    "synchronous": exchanges.SynchronousExchange,
    "averaging": exchanges.AveragingExchange,
}
_CURVE = ("epoch", "seconds", "validation", "test")


def exchange(method, size):
    """A method's exchange, with its codec's time for so many elements."""
    kind, codec = ALL[method]
    if codec is None:
        return _KINDS[kind]()
    encode, decode = next(
        ms for text, ms in CODEC_MS.items() if codec.startswith(text)
    )
    per_element = size * 1e-3 / 17e6
    return _KINDS[kind](codec, encode * per_element, decode * per_element)


class Laboratory:
    """Runs of one task.

    Args:
        task: a `decentralized_tasks.Task`.
    """

    def __init__(self, task):
        self._task = task
        self._training = virtual_training.VirtualTraining(task)

    def run(self, method, workers, rate, seed, gbps):
        """Trains once.

        Args:
            method: a name of `ALL`.
            workers: their number.
            rate: the learning rate.
            seed: of the split of the data, first weights, the order of the
                examples and compute times.
            gbps: of each link.

        Returns:
            A dict that JSON can hold.
        """
        model = self._training.model(seed)
        model.rate = rate
        begin = time.perf_counter()
        run, history, _ = self._training.run(
            exchange(method, model.size),
            workers,
            Network(latency_seconds=5e-5, bandwidth_gbps=gbps),
            seed,
        )
        updates, _, elements = run.sent
        return {
            "task": self._task.name,
            "method": method,
            "workers": workers,
            "rate": rate,
            "seed": seed,
            "gbps": gbps,
            "parameters": model.size,
            "curve": [
                [round(row[name], 5) for name in _CURVE]
                for row in history.evaluations
            ],
            "diverged": history.diverged,
            "seconds": history.seconds,
            "staleness": float(history.staleness.mean()),
            "update_bytes": history.update_bytes,
            "elements": elements / max(updates, 1),
            "step_bytes": history.push_bytes,
            "largest_link": history.largest_link_bytes,
            "gradients": len(history.jobs),
            # Root mean squares of gradients, in thirds of the training.
            "rms": [
                float(np.mean(part)) for part in np.array_split(model.scales, 3)
            ],
            "tau": float(run.codec_state(0).get("tau", 0.0)),
            "took": time.perf_counter() - begin,
        }


def late(run, name):
    """Accuracy of a run late in training, `validation` or `test`.

    The mean over the last quarter of the evaluations, as one says little; 0 if
    the run diverged.
    """
    values = [row[_CURVE.index(name)] for row in run["curve"][1:]]
    last = values[-max(len(values) // 4, 1) :]
    return 0.0 if run["diverged"] else float(np.mean(last))


def _key_of(run):
    if run.get("real"):
        return None
    return tuple(run[name] for name in ("task", "method", "workers", "gbps"))


class Results:
    """All runs, each a line of a file, with the best rate of each method.

    Args:
        path: of the file, which may exist.
        is_quick: whether one seed and the first rate are enough.

    Attributes:
        search: the `RateSearch`, by (task, method, workers, gbps); runs of real
            processes are among its `others`.
    """

    def __init__(self, path, is_quick=False):
        self._is_quick = is_quick
        self._laboratories = {}
        self.search = rate_search.RateSearch(
            path, _key_of, lambda run: late(run, "validation")
        )

    @property
    def real(self):
        """(task, method, workers) -> seed -> what `decentralized_real` gave."""
        found = {}
        for run in self.search.others:
            key = tuple(run[name] for name in ("task", "method", "workers"))
            found.setdefault(key, {})[run["seed"]] = run
        return found

    def rate(self, key):
        """The best learning rate."""
        return rate_search.rate_of(self.search.best(key))

    def train(self, task, method, workers, gbps=GBPS):
        """Looks for the best rate, and trains with it on all seeds.

        Elsewhere than at `GBPS`, two seeds train with the rate of there, except
        for methods of `TUNED_BY_NETWORK`.
        """
        key = (task.name, method, workers, gbps)

        def run(rate, seed):
            laboratory = self._laboratories.get(task.name)
            if laboratory is None:
                laboratory = Laboratory(task)
                self._laboratories[task.name] = laboratory
            return laboratory.run(method, workers, rate, seed, gbps)

        search = self.search
        if self._is_quick:
            search.need(key, self._guess(key), rate_search.SEEDS[:1], run)
        elif gbps == GBPS or method in TUNED_BY_NETWORK:
            search.tune(key, self._guess(key), run)
        else:
            exponent = search.best((task.name, method, workers, GBPS))
            search.need(key, exponent, rate_search.TUNED_SEEDS, run)

    def _guess(self, key):
        """The exponent to begin with: the best one of what is alike."""
        task, method, workers, gbps = key
        kind = ALL[method][0]
        alike = [key, (task, method, workers, GBPS)]
        alike += [
            (task, other, workers, gbps)
            for other, (its_kind, _) in METHODS.items()
            if its_kind == kind
        ]
        for other in alike:
            if other in self.search.runs:
                return self.search.best(other)
        # Updates that are means bear higher rates.
        rate = {"digits": 0.1, "text": 0.4}[task]
        return rate_search.exponent_of(
            rate * {"server": 4 / workers, "peers": 4 / workers}.get(kind, 2)
        )
