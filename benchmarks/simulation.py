"""How fast the simulator is, beside plain Keras on the same machine.

    python benchmarks/simulation.py [--quick]

A small convolutional network on handwritten digits (`tasks.digits`): examples
per second of `simulate` with 1 to 64 virtual workers, as a share of those of
`model.fit` with the same batches. They take turns; what is shown is the median
over the rounds of the ratio to `fit` of the same round. The simulator's time is
that of the whole call, with all that TensorFlow traces; of `fit` the first
epoch is left out.

Then what a virtual worker costs in memory: how much more the process had at
most with 64 workers than with one, of a model of a million parameters.
"""

import resource
import statistics
import time

from absl import flags
from harness import program

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer workers, fewer rounds.")
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 5, or 1 if --quick.", lower_bound=1
)

WORKERS, QUICK_WORKERS = (1, 16, 64), (16, 64)
METHODS = ("async", "sync", "softsync:s=4", "dc_asgd", "dana:variant=zero")
QUICK_METHODS = ("async", "sync")
BATCH = 8
EPOCHS, QUICK_EPOCHS = 10, 2
MEMORY_WORKERS = 64
MEMORY_WIDTH = 1000


def main():
    """Measures, prints a table and a line of JSON."""
    rounds = FLAGS.rounds or (1 if FLAGS.quick else 5)
    workers = QUICK_WORKERS if FLAGS.quick else WORKERS
    methods = QUICK_METHODS if FLAGS.quick else METHODS
    speeds, fit = measure(rounds, methods, workers)
    titles = ["examples/s, as a share of fit"]
    titles += [f"{number} workers" for number in workers]
    rows = [
        [method, *(f"{speeds[method, number]:.2f}" for number in workers)]
        for method in methods
    ]
    print(tables.aligned(titles, rows))
    memory = measure_memory()
    print(
        f"Memory of one more virtual worker: {memory['megabytes']:.2f} MB, "
        f"{memory['models']:.2f} times the model's {memory['model']:.2f} MB."
    )
    program.report(
        "simulation",
        share_of_fit={
            f"{method}, {number}": round(share, 3)
            for (method, number), share in speeds.items()
        },
        fit_examples_per_second=round(fit),
        memory_per_worker=memory,
    )


def measure(rounds, methods, workers):
    """Examples per second of each method and number of workers.

    Args:
        rounds: number of turns of each.
        methods: their names.
        workers: numbers of workers.

    Returns:
        (method, workers) -> median share of what `fit` does, and the median of
        what that is.
    """
    from tfdist import simulation
    from tfdist.simulation import tasks

    task = tasks.digits()
    # Two batches for each of 64 workers.
    x, y = (array[: BATCH * 128] for array in task.train)

    epochs = QUICK_EPOCHS if FLAGS.quick else EPOCHS

    def simulated(method, number):
        began = time.perf_counter()
        simulation.simulate(
            task.model_fn(0.01),
            (x, y),
            method,
            num_workers=number,
            batch_size=BATCH,
            epochs=epochs,
        )
        return epochs * len(x) / (time.perf_counter() - began)

    def fitted():
        model = task.model_fn(0.01)()
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
        began = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
        return epochs * len(x) / (time.perf_counter() - began)

    found = {(m, n): [] for m in methods for n in workers}
    fits = []
    for _ in range(rounds):
        for key, shares in found.items():
            fits.append(fitted())
            shares.append(simulated(*key) / fits[-1])
    medians = {key: statistics.median(v) for key, v in found.items()}
    return medians, statistics.median(fits)


def measure_memory():
    """What one more virtual worker costs, asynchronous, a dict."""
    import keras
    import numpy as np

    from tfdist import simulation

    width = MEMORY_WIDTH
    x = np.random.default_rng(0).standard_normal((256, width), "float32")

    def build():
        model = keras.Sequential(
            [keras.Input((width,)), keras.layers.Dense(width)]
        )
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    def peak(number):
        simulation.simulate(
            build, (x, x), "async", num_workers=number, batch_size=2
        )
        # Kilobytes, on Linux.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

    peak(1)
    least = peak(1)
    more = (peak(MEMORY_WORKERS) - least) / (MEMORY_WORKERS - 1)
    model = 4 * (width * width + width) / 1e6
    return {
        "megabytes": round(more, 3),
        "model": round(model, 3),
        "models": round(more / model, 3),
    }


if __name__ == "__main__":
    program.run(main)
