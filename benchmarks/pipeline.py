"""What a pipeline gains where the processor is not what is short.

    python benchmarks/pipeline.py [--quick] [--schedules=gpipe,1f1b]

K stages of equal cost are on K logical CPU devices. A stage's cost is a sleep,
so long for each example of the forward and twice as long of the backward. It
stands for a GPU's computation, and takes no processor time. For each schedule
and M micro-batches: milliseconds per step of `fit`, and how many times as fast
that is as the same model placed on the same devices without a pipeline, where
a batch is at one stage at a time.

Ideal is M K / (M + K - 1) for the schedules that empty the pipeline. The others
stay full from step to step, and only such steps are measured. All their stages
but the last compute a forward F again before its backward B, so that ideal is
K (F + B) / (2 F + B), here 3 K / 4.

What is measured can be told from two columns. "At once", the most tasks that a
device has had at a time, must be 1. "Forwards", how often an example has gone
forward through a stage, must be 1, and 2 where forwards are computed again.
"First s" is what the first step of `fit` takes, in which TensorFlow makes the
graph.

All models take turns in each round. Figures are medians over the rounds.
"""

import statistics
import threading
import time

from absl import flags
from harness import program
import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.pipeline import schedules as schedules_lib

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer and shorter steps: under a minute.")
flags.DEFINE_list("stages", ["2", "4"], "Numbers of stages, K.")
flags.DEFINE_list(
    "micro_batches",
    None,
    "Numbers of micro-batches, M. Default: 1,2,4,8,16,32, or 4,16 if --quick; "
    "without flushes 16, or 4.",
)
flags.DEFINE_list(
    "schedules",
    None,
    f"Of {', '.join(schedules_lib.NAMES)}. Default: all, or gpipe,1f1b,"
    "pipedream if --quick.",
)
flags.DEFINE_float(
    "forward_ms",
    None,
    "A batch's forward in one stage. Default: 160, or 40 if --quick.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 3, or 2 if --quick.", lower_bound=1
)
flags.DEFINE_integer("batch_size", 64, "Examples of a batch.", lower_bound=1)
for _name, _least in (("stages", 2), ("micro_batches", 1)):
    flags.register_validator(
        _name,
        lambda texts, least=_least: all(
            text.isdecimal() and int(text) >= least for text in texts or ()
        ),
        f"must be whole numbers of at least {_least}",
    )
flags.register_validator(
    "schedules",
    lambda names: names is None or set(names) <= set(schedules_lib.NAMES),
    f"must be some of {', '.join(schedules_lib.NAMES)}",
)

BACKWARD = 2
"""How many times as long as a forward a backward takes."""
STEPS = 2
"""That are measured of each `fit`."""
WIDTH = 8
AIM = 0.9
"""The part of ideal that the schedules with flushes should come to."""


class Clock:
    """When a stage computes.

    Attributes:
        most_at_once: the most tasks that it has had at the same time; a device
            has one at a time, so more than 1 makes a measurement worthless.
        examples: how many have gone forward, again for each recomputation.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._now = 0
        self.most_at_once = 0
        self.examples = 0

    def sleep(self, seconds, x, forward_made=None):
        """`x`, after so many seconds for each of its examples.

        Args:
            seconds: a float.
            x: a tensor (examples, ...).
            forward_made: of a backward, what its forward has returned.
        """

        def wait(value, *forward_made):
            with self._lock:
                self._now += 1
                self.most_at_once = max(self.most_at_once, self._now)
                self.examples += 0 if forward_made else len(value)
            time.sleep(seconds * len(value))
            with self._lock:
                self._now -= 1
            return value

        needed = [x] if forward_made is None else [x, forward_made]
        # Stateless: a function runs stateful ones one after the other.
        y = tf.numpy_function(wait, needed, x.dtype, stateful=False)
        y.set_shape(x.shape)
        return y


class Sleeping(keras.layers.Dense):
    """A dense layer on a device that is slow.

    Args:
        seconds: of one example's forward.

    Attributes:
        clock: its `Clock`.
    """

    def __init__(self, seconds, **kwargs):
        super().__init__(WIDTH, **kwargs)
        self._seconds = seconds
        self.clock = Clock()

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)

    def call(self, x):
        @tf.custom_gradient
        def slow(x):
            y = self.clock.sleep(self._seconds, x)

            def gradient(dy):
                # It takes what its forward has made, as that of a real layer:
                # else a forward that is only computed again would be left out.
                return self.clock.sleep(BACKWARD * self._seconds, dy, y)

            return y, gradient

        return slow(super().call(x))


def main():
    """Measures, prints a table and a line of JSON."""
    # It warns that each new model has a graph of its own.
    tf.get_logger().setLevel("ERROR")
    depths = list(map(int, FLAGS.stages))
    make_devices(max(depths))
    print(
        f"{'schedule':>14} {'K':>2} {'M':>3} {'first s':>8} {'ms/step':>8}"
        f" {'speed-up':>8} {'ideal':>5} {'of ideal':>8} {'at once':>7}"
        f" {'forwards':>8}"
    )
    rows = []
    for depth in depths:
        for row in measure(depth):
            rows.append(row)
            print(
                f"{row['schedule']:>14} {depth:2d} {row['micro_batches']:3d}"
                f" {row['first_seconds']:8.2f} {row['ms_per_step']:8.1f}"
                f" {row['speed_up']:8.2f} {row['ideal']:5.2f}"
                f" {row['of_ideal']:8.1%} {row['most_at_once']:7d}"
                f" {row['forwards']:8.2f}",
                flush=True,
            )
    result = {"rows": rows}
    flushing = [
        row["of_ideal"]
        for row in rows
        if row["schedule"] in schedules_lib.SYNCHRONOUS
    ]
    if flushing:
        result["aim_of_ideal"] = AIM
        result["least_of_ideal_with_flushes"] = min(flushing)
        print(f"least with flushes: {min(flushing):.1%} (aim: >= {AIM:.0%})")
    program.report("pipeline", **result)


def make_devices(count):
    """Makes logical devices, and threads for all that they can do at once."""
    tf.config.set_visible_devices([], "GPU")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    # What sleeps keeps its thread. By default there are as many of these as
    # processors, which would let no more than so many stages work at once.
    tf.config.threading.set_inter_op_parallelism_threads(4 * count)


def measure(depth):
    """Measures all schedules with so many stages.

    Args:
        depth: number of stages, K.

    Returns:
        A list of dicts, one per schedule and number of micro-batches.
    """
    models = {key: build(depth, *key) for key in cases(depth)}
    first = {key: take_steps(model, 1)[1] for key, model in models.items()}
    seconds = {key: [] for key in models}
    rounds = FLAGS.rounds or (2 if FLAGS.quick else 3)
    for _ in range(rounds):
        for key, model in models.items():
            ends, _ = take_steps(model, 1 + STEPS)
            seconds[key].append(statistics.median(np.diff(ends).tolist()))
    trained = (1 + rounds * (1 + STEPS)) * FLAGS.batch_size
    rows = []
    for key, own in seconds.items():
        speed_up = statistics.median(
            before / after
            for before, after in zip(seconds["none", 1], own, strict=True)
        )
        best = ideal(depth, *key)
        clocks = [layer.clock for layer in models[key].layers]
        rows.append(
            {
                "schedule": key[0],
                "stages": depth,
                "micro_batches": key[1],
                "first_seconds": round(first[key], 2),
                "ms_per_step": round(1e3 * statistics.median(own), 1),
                "speed_up": round(speed_up, 3),
                "ideal": round(best, 3),
                "of_ideal": round(speed_up / best, 4),
                "most_at_once": max(clock.most_at_once for clock in clocks),
                "forwards": round(max(c.examples for c in clocks) / trained, 3),
            }
        )
    return rows


def cases(depth):
    """Pairs of schedule and micro-batches; the first is no pipeline."""
    found = [("none", 1)]
    quick = FLAGS.quick
    for schedule in FLAGS.schedules or (
        ("gpipe", "1f1b", "pipedream") if quick else schedules_lib.NAMES
    ):
        if schedule in schedules_lib.SYNCHRONOUS:
            default = (4, 16) if quick else (1, 2, 4, 8, 16, 32)
        else:
            default = (4,) if quick else (16,)
        for count in map(int, FLAGS.micro_batches or default):
            # 2BW has two versions of weights, too few for fewer.
            if schedule != "pipedream_2bw" or count >= depth:
                found.append((schedule, count))
    return found


def build(depth, schedule, count):
    """A compiled model of so many stages, one layer each.

    Args:
        depth: number of stages, K.
        schedule: of a pipeline, or "none".
        count: number of micro-batches, M.
    """
    forward_ms = FLAGS.forward_ms or (40 if FLAGS.quick else 160)
    example_seconds = 1e-3 * forward_ms / FLAGS.batch_size
    names = [f"stage_{number}" for number in range(depth)]
    devices = [f"CPU:{number}" for number in range(depth)]
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            *(Sleeping(example_seconds, name=name) for name in names),
        ]
    )
    if schedule == "none":
        places = dict(zip(names, devices, strict=True))
        tfdist.placement.place(model, places)
    else:
        tfdist.pipeline.pipeline(
            model, names[1:], devices, micro_batches=count, schedule=schedule
        )
    # SpecTrain needs the momentum.
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    return model


def take_steps(model, steps):
    """Trains.

    Args:
        model: a compiled model.
        steps: how many.

    Returns:
        (ends, seconds): when each step has ended, a list, and what all took.
    """
    x = np.zeros((steps * FLAGS.batch_size, WIDTH), "float32")
    ends = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    began = time.perf_counter()
    model.fit(
        x, x, FLAGS.batch_size, shuffle=False, verbose=0, callbacks=[note]
    )
    return ends, ends[-1] - began


def ideal(depth, schedule, count):
    """How many times as fast as without a pipeline a schedule can be."""
    if schedule in schedules_lib.ASYNCHRONOUS:
        return depth * (1 + BACKWARD) / (2 + BACKWARD)
    return count * depth / (count + depth - 1)


if __name__ == "__main__":
    program.run(main)
