"""Asynchronous SGD with a server against workers without one: a comparison.

    python benchmarks/decentralized.py [--quick] [--task=digits] [--workers=16]

Virtual workers of `tfdist.simulation` train a small network with each method:
asynchronous SGD with a server, workers that send each other updates, gossip
averaging, synchronous SGD, and local steps; dense, and with codecs. Compute
times are 1 ms per gradient (Gamma, shape 100), messages take 0.05 ms and their
bytes over the bandwidth, and codecs the time per element that
docs/compression.md has for 17 million.

Each method has its own learning rate: of a grid of factor 1.5, the one with the
best validation accuracy at 1 Gb/s. Rates are tried beside the best one until
both of its neighbours are worse, on two seeds; the best three are tried on all
seeds. Other data than those for the choice give the accuracy in the tables. A
seed decides over the split of the data, first weights, the order of the
examples and compute times.

Every run is a line of JSON in the file `--results`, which is read again: what
is in it is not run again, and the tables can be printed at any time
(`--show`).
"""

import dataclasses
import itertools
import json
import os
import pathlib
import tempfile
import time

from absl import flags
from harness import program
import numpy as np

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Few methods, one seed: under a minute.")
flags.DEFINE_multi_enum(
    "task", None, ["digits", "text"], "Default: both; digits if --quick."
)
flags.DEFINE_multi_integer(
    "workers", None, "Default: 4, 16 and 64; 4 if --quick.", lower_bound=1
)
flags.DEFINE_multi_string("method", None, "Names of rows. Default: all.")
flags.DEFINE_string(
    "results", None, "A file for single runs. Default: a temporary one."
)
flags.DEFINE_bool("show", False, "Only print what is in the file.")

SEEDS, TUNED_SEEDS = (1, 2, 3, 4, 5), (1, 2)
FACTOR = 1.5
FINALISTS = 3
# Of 17 million elements, milliseconds to encode and to decode.
CODEC_MS = {
    "cast(dtype=bfloat16)": (28, 48),
    "threshold": (86, 10),
    "top_k": (84, 4),
    "power_sgd": (119, 34),
}
# So fast that the network is never the limit.
GBPS = 1000.0
OTHER_GBPS = (0.1, 1.0, 10.0)
OTHER_GBPS_WORKERS = 16
# Whose staleness, and so whose best rate, depends on the network: its workers
# do not wait until messages have left.
TUNED_BY_NETWORK = ("peers",)
# With so many workers, more codecs are tried.
MANY_CODECS_WORKERS = 16

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
    "peers, tau=0.02": ("peers", "threshold(tau=0.02)"),
    "peers, tau=0.07": ("peers", "threshold(tau=0.07)"),
    "peers, tau=0.5": ("peers", "threshold(tau=0.5)"),
    "peers, top_k 1/1000": ("peers", "top_k(ratio=0.001)"),
}
QUICK = ("server", "peers", "peers, threshold 1/250")


@dataclasses.dataclass
class Task:
    """What is trained.

    Attributes:
        name: of the task.
        widths: of the dense layers, the input's first.
        activation: of the hidden ones.
        embedding: (characters, elements), or None.
        arrays: x and y of all examples.
        sizes: examples for training, validation and the test.
        batch_size: examples of one gradient.
        epochs: passes over the data.
        evaluations: per epoch.
        target: test accuracy whose time is taken.
    """

    name: str
    widths: tuple
    activation: str
    embedding: tuple | None
    arrays: tuple
    sizes: tuple
    batch_size: int
    epochs: int
    evaluations: float
    target: float

    def split(self, seed):
        """Pairs (x, y) for training, validation and the test."""
        order = np.random.default_rng([seed, 7]).permutation(
            len(self.arrays[0])
        )
        ends = np.cumsum(self.sizes)
        parts = np.split(order[: ends[-1]], ends[:-1])
        return [tuple(array[part] for array in self.arrays) for part in parts]

    def model(self, seed):
        """A compiled model with first weights of a seed."""
        import keras

        keras.utils.set_random_seed(seed)
        layers = keras.layers
        stack = [keras.Input(self.arrays[0].shape[1:])]
        if self.embedding:
            stack += [layers.Embedding(*self.embedding), layers.Flatten()]
        for width in self.widths[1:-1]:
            stack.append(layers.Dense(width, activation=self.activation))
        stack.append(layers.Dense(self.widths[-1]))
        model = keras.Sequential(stack)
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    def accuracy(self, weights, x, y):
        """Share of right answers of the network with a vector of weights."""
        at = 0
        if self.embedding:
            at = int(np.prod(self.embedding))
            table = weights[:at].reshape(self.embedding)
            x = table[x].reshape(len(x), -1)
        last = len(self.widths) - 2
        for layer, (rows, columns) in enumerate(
            itertools.pairwise(self.widths)
        ):
            kernel = weights[at : at + rows * columns].reshape(rows, columns)
            at += rows * columns
            x = x @ kernel + weights[at : at + columns]
            at += columns
            if layer < last:
                x = np.tanh(x) if self.activation == "tanh" else x * (x > 0)
        return float((x.argmax(1) == y).mean())


def make_task(name):
    """The `Task` of that name."""
    from tfdist.simulation import tasks

    if name == "digits":
        task = tasks.digits()
        parts = zip(task.train, task.validation, strict=True)
        x, y = (np.concatenate(pair) for pair in parts)
        return Task(
            name,
            (64, 128, 128, 10),
            "relu",
            None,
            (x.reshape(len(x), 64), y),
            (1024, 400, 373),
            batch_size=16,
            epochs=20,
            evaluations=1.0,
            target=0.95,
        )
    task = tasks.text(num_examples=16_000, num_validation=4_000)
    parts = zip(task.train, task.validation, strict=True)
    characters = int(max(task.train[0].max(), task.train[1].max())) + 1
    return Task(
        name,
        (80, 192, characters),
        "tanh",
        (characters, 8),
        tuple(np.concatenate(pair) for pair in parts),
        (12_288, 2_712, 5_000),
        batch_size=32,
        epochs=4,
        evaluations=2.0,
        target=0.35,
    )


class Laboratory:
    """Runs of one task, whose functions are traced once.

    Args:
        task: a `Task`.
    """

    def __init__(self, task):
        self.task = task
        self._models = {}
        self._norms = []

    def run(self, name, workers, rate, seed, gbps=GBPS, epochs=None):
        """Trains once; returns a dict that JSON can hold."""
        from tfdist.simulation import Gamma
        from tfdist.simulation import Network
        from tfdist.simulation import flat_run
        from tfdist.simulation.data import Shares

        epochs = epochs or self.task.epochs
        flat, data, parts = self._prepared(seed)
        weights, state, slots = flat.first(self.task.model(seed))
        slots = [
            np.float32(rate) if variable.name == "learning_rate" else value
            for variable, value in zip(
                flat.model.optimizer.variables, slots, strict=True
            )
        ]

        def evaluate(weights, state):
            del state
            accuracies = [self.task.accuracy(weights, *p) for p in parts[1:]]
            return dict(zip(("validation", "test"), accuracies, strict=True))

        self._norms.clear()
        begin = time.perf_counter()
        run = flat_run.FlatRun(
            flat,
            data,
            exchange(name, flat.size),
            shares=Shares(data.num_batches, epochs, workers),
            num_workers=workers,
            compute=Gamma(1e-3),
            network=Network(latency_seconds=5e-5, bandwidth_gbps=gbps),
            seed=seed,
            first=(weights, state, slots),
            evaluate=evaluate,
            evaluate_every=1 / self.task.evaluations,
        )
        history = run.train()
        curve = [
            [round(row[key], 5) for key in _CURVE]
            for row in history.evaluations
        ]
        return {
            "task": self.task.name,
            "method": name,
            "workers": workers,
            "rate": rate,
            "seed": seed,
            "gbps": gbps,
            "epochs": epochs,
            "parameters": flat.size,
            "curve": curve,
            "diverged": history.diverged,
            "seconds": history.seconds,
            "staleness": float(history.staleness.mean()),
            "update_bytes": history.update_bytes,
            "elements": run.sent[2] / max(run.sent[0], 1),
            "step_bytes": history.push_bytes,
            "largest_link": history.largest_link_bytes,
            "gradients": len(history.jobs),
            "rms": [float(np.mean(part)) for part in _thirds(self._norms)],
            "tau": float(run.codec_state(0).get("tau", 0.0)),
            "took": time.perf_counter() - begin,
        }

    def _prepared(self, seed):
        from tfdist.simulation import flat_model
        from tfdist.simulation.data import Data

        if seed not in self._models:
            parts = self.task.split(seed)
            data = Data(parts[0], self.task.batch_size, seed=seed)
            norms = self._norms

            class Recording(flat_model.FlatModel):
                def apply(self, weights, slots, gradient):
                    # Plain SGD, to the bit, in a tenth of the time.
                    rate = slots[1]
                    return weights - rate * gradient, slots, rate

                def gradients(self, jobs):
                    results = super().gradients(jobs)
                    norms.extend(
                        np.sqrt(np.mean(gradient**2))
                        for gradient, _, _ in results
                    )
                    return results

            flat = Recording(self.task.model(seed), data)
            self._models[seed] = flat, data, parts
        return self._models[seed]


_CURVE = ("epoch", "seconds", "validation", "test")


def _thirds(values):
    return np.array_split(values, 3) if len(values) >= 3 else [values]


def exchange(name, size):
    """A row's exchange, with the codec's time for so many elements."""
    from tfdist.simulation import exchanges

    kind, codec = {**METHODS, **CODECS}[name]
    made = {
        "server": exchanges.ServerExchange,
        "peers": exchanges.PeerExchange,
        "gossip": exchanges.GossipExchange,
        "synchronous": exchanges.SynchronousExchange,
        "averaging": exchanges.AveragingExchange,
    }[kind]
    if codec is None:
        return made()
    encode, decode = next(
        ms for text, ms in CODEC_MS.items() if codec.startswith(text)
    )
    per_element = size * 1e-3 / 17e6
    return made(codec, encode * per_element, decode * per_element)


class Results:
    """Runs, each a line of a file.

    Args:
        path: of the file.
    """

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._laboratories = {}
        self.runs = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                self._add(json.loads(line))

    def _add(self, run):
        key = tuple(run[k] for k in ("task", "method", "workers", "gbps"))
        rates = self.runs.setdefault(key, {})
        rates.setdefault(_exponent(run["rate"]), {})[run["seed"]] = run

    def need(self, task, method, workers, exponent, seed, gbps=GBPS):
        """Returns a run, which is made if there is none yet."""
        key = (task.name, method, workers, gbps)
        found = self.runs.get(key, {}).get(exponent, {}).get(seed)
        if found is None:
            laboratory = self._laboratories.setdefault(
                task.name, Laboratory(task)
            )
            rate = float(f"{0.1 * FACTOR**exponent:.4g}")
            found = laboratory.run(method, workers, rate, seed, gbps)
            with self._path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            self._add(found)
        return found

    def validation(self, key, exponent, seeds=None):
        """Mean validation accuracy of a rate, late in training.

        Over the last quarter of the evaluations, as one says little.
        """
        runs = self.runs.get(key, {}).get(exponent, {})
        runs = [r for s, r in runs.items() if seeds is None or s in seeds]
        if not runs:
            return None
        return float(np.mean([_late(run, 2) for run in runs]))

    def best(self, key):
        """The exponent of the best rate, of those with the most seeds."""
        rates = self.runs.get(key, {})
        most = max(map(len, rates.values()), default=0)
        full = [e for e, runs in rates.items() if len(runs) == most]
        return max(full, key=lambda e: self.validation(key, e), default=None)

    def tune(self, task, method, workers, gbps=GBPS):
        """Looks for the best rate, and trains with it on all seeds."""
        key = (task.name, method, workers, gbps)
        if FLAGS.quick:
            exponent = self._begin_with(*key)
            self.need(task, method, workers, exponent, SEEDS[0], gbps)
            self.print_progress(key)
            return

        def value(exponent):
            for seed in TUNED_SEEDS:
                self.need(task, method, workers, exponent, seed, gbps)
            return self.validation(key, exponent, TUNED_SEEDS)

        centre = self._begin_with(*key)
        while True:
            best = max((centre, centre - 1, centre + 1), key=value)
            if best != centre:
                centre = best
                continue
            ranked = sorted(self.runs[key], key=value, reverse=True)
            for exponent in ranked[:FINALISTS]:
                for seed in SEEDS:
                    self.need(task, method, workers, exponent, seed, gbps)
            centre = self.best(key)
            if {centre - 1, centre + 1} <= self.runs[key].keys():
                break
        self.print_progress(key)

    def elsewhere(self, task, method, gbps):
        """Trains on another network, with the rate that is known."""
        workers = OTHER_GBPS_WORKERS
        if method in TUNED_BY_NETWORK:
            self.tune(task, method, workers, gbps)
            return
        exponent = self.best((task.name, method, workers, GBPS))
        for seed in SEEDS:
            self.need(task, method, workers, exponent, seed, gbps)
        self.print_progress((task.name, method, workers, gbps))

    def _begin_with(self, task, method, workers, gbps):
        """An exponent: the best one of what is alike and known."""
        kind = {**METHODS, **CODECS}[method][0]
        for key in (
            (task, method, workers, gbps),
            (task, method, workers, GBPS),
            *(
                (task, m, workers, gbps)
                for m, (k, _) in METHODS.items()
                if k == kind
            ),
        ):
            if key in self.runs:
                return self.best(key)
        # Updates that are means bear higher rates.
        scale = {"digits": 0.1, "text": 0.4}[task]
        scale *= {"server": 4 / workers, "peers": 4 / workers}.get(kind, 2)
        return _exponent(scale)

    def print_progress(self, key):
        """Prints the row that has just been made."""
        row = summarize(self, key)
        print(
            f"{time.strftime('%H:%M:%S')} {key}: rate {row['rate']:.3g}, "
            f"{100 * row['test']:.2f} +- {100 * row['error']:.2f} %, "
            f"{row['update_bytes']:.0f} bytes",
            flush=True,
        )


def _exponent(rate):
    return round(np.log(rate / 0.1) / np.log(FACTOR))


def _late(run, column):
    values = [row[column] for row in run["curve"][1:]]
    late = values[-max(len(values) // 4, 1) :]
    return 0.0 if run["diverged"] else float(np.mean(late))


def summarize(results, key):
    """Figures of a row: means over the seeds with the chosen rate."""
    task, method, workers, gbps = key
    tuned = (task, method, workers, GBPS)
    if method in TUNED_BY_NETWORK:
        tuned = key
    exponent = results.best(tuned)
    runs = list(results.runs.get(key, {}).get(exponent, {}).values())
    if not runs:
        return None
    tests = [_late(run, 3) for run in runs]
    tried = results.runs[tuned]

    def mean(name):
        return float(np.mean([run[name] for run in runs]))

    def error(values):
        spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
        return float(spread / np.sqrt(len(values)))

    seconds = [_time_to(run) for run in runs]
    plain = 8 + 4 * mean("elements")
    return {
        "task": task,
        "method": method,
        "workers": workers,
        "gbps": gbps,
        "rate": 0.1 * FACTOR**exponent,
        "inside": min(tried) < exponent < max(tried),
        "seeds": len(runs),
        "test": float(np.mean(tests)),
        "error": error(tests),
        "tests": {run["seed"]: _late(run, 3) for run in runs},
        "seconds": mean("seconds"),
        "seconds_to_target": None
        if None in seconds
        else float(np.mean(seconds)),
        "seconds_to_target_error": None if None in seconds else error(seconds),
        "staleness": mean("staleness"),
        "update_bytes": mean("update_bytes"),
        "times_fewer": 4
        * runs[0]["parameters"]
        / (mean("update_bytes") or 4 * runs[0]["parameters"]),
        "plain_times_fewer": 4 * runs[0]["parameters"] / plain,
        "step_bytes": mean("step_bytes"),
        "largest_link": mean("largest_link"),
        "link_per_gradient": mean("largest_link") / mean("gradients"),
        "rms": np.mean([run["rms"] for run in runs], 0).tolist(),
        "tau": mean("tau"),
        "parameters": runs[0]["parameters"],
    }


def _time_to(run):
    """Virtual seconds until the target, None if it was not reached."""
    target = {"digits": 0.95, "text": 0.35}[run["task"]]
    for _, seconds, _, test in run["curve"]:
        if test >= target:
            return seconds
    return None


def show(results, names, counts):
    """Prints the tables; returns the rows."""
    rows = []
    for name, workers in itertools.product(names, counts):
        of_table = [
            summarize(results, (name, method, workers, GBPS))
            for method in (*METHODS, *CODECS)
        ]
        of_table = [row for row in of_table if row]
        if not of_table:
            continue
        rows += of_table
        print(f"\n{name}, {workers} workers, {GBPS:g} Gb/s")
        base = next(r for r in of_table if r["method"] in METHODS)
        titles = [
            "method", "rate", "accuracy", "against the first", "staleness",
            "bytes per update", "times fewer", "without entropy coding",
            "sent per step", "busiest link per gradient", "s", "s to target",
        ]  # fmt: skip
        texts = [
            [
                row["method"],
                f"{row['rate']:.3g}" + ("" if row["inside"] else "*"),
                f"{100 * row['test']:.2f} +- {100 * row['error']:.2f}",
                _paired(row, base),
                f"{row['staleness']:.1f}",
                f"{row['update_bytes']:,.0f}",
                f"{row['times_fewer']:.0f}",
                f"{row['plain_times_fewer']:.0f}"
                if "threshold" in row["method"] or "tau" in row["method"]
                else "",
                f"{row['step_bytes']:,.0f}",
                f"{row['link_per_gradient']:,.0f}",
                f"{row['seconds']:.3f}",
                tables.number(row["seconds_to_target"], 3),
            ]
            for row in of_table
        ]
        print(tables.aligned(titles, texts))
    keys = [key for key in results.runs if key[3] != GBPS]
    others = [summarize(results, key) for key in sorted(keys)]
    others = [row for row in others if row]
    if others:
        print("\nSeconds to the target at other bandwidths")
        texts = [
            [
                row["task"],
                row["method"],
                f"{row['gbps']:g}",
                f"{100 * row['test']:.2f} +- {100 * row['error']:.2f}",
                f"{row['seconds']:.3f}",
                tables.number(row["seconds_to_target"], 3),
            ]
            for row in others
        ]
        titles = ["task", "method", "Gb/s", "accuracy", "s", "s to target"]
        print(tables.aligned(titles, texts))
    return rows + others


def _paired(row, base):
    """Mean difference of two methods over seeds, and its standard error."""
    common = sorted(row["tests"].keys() & base["tests"].keys())
    if row is base or len(common) < 2:
        return ""
    values = [100 * (row["tests"][s] - base["tests"][s]) for s in common]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):+.2f} +- {error:.2f}"


def plan(names, counts):
    """Yields (task, method, workers) in the order of their importance."""
    middle = [count for count in counts if count == MANY_CODECS_WORKERS]
    rest = [count for count in counts if count not in middle]
    methods = FLAGS.method or (QUICK if FLAGS.quick else METHODS)
    codecs = [] if FLAGS.method or FLAGS.quick else CODECS
    yield from itertools.product(names, methods, middle)
    yield from itertools.product(names, codecs, middle)
    yield from itertools.product(names, methods, rest)


def main():
    """Trains, prints tables and a line of JSON."""
    names = FLAGS.task or (["digits"] if FLAGS.quick else ["digits", "text"])
    counts = FLAGS.workers or ([4] if FLAGS.quick else [16, 4, 64])
    path = FLAGS.results
    if path is None:
        path = os.path.join(tempfile.mkdtemp(), "decentralized.jsonl")
    results = Results(path)
    if not FLAGS.show:
        made = {name: make_task(name) for name in names}
        for name, method, workers in plan(names, counts):
            results.tune(made[name], method, workers)
        if not FLAGS.quick and OTHER_GBPS_WORKERS in counts:
            for name, gbps in itertools.product(names, OTHER_GBPS):
                for method in FLAGS.method or METHODS:
                    results.elsewhere(made[name], method, gbps)
    rows = show(results, names, counts)
    program.report("decentralized", rows=rows)


if __name__ == "__main__":
    program.run(main)
