"""Codistilling groups against one group of as many workers.

    python benchmarks/codistillation.py [--quick] [--tasks=text,library]

The question of Anil et al. 2018 (arXiv 1804.03235): one group of 2M
data-parallel workers, past the number from which more of them help little, or
two groups of M that teach each other, each on its half of the data? What
counts is the number of steps (updates of each group; groups run at the same
time) to a loss on validation data, so nothing depends on the machine's speed.
A group of W synchronous workers with batches of 32 is trained as one worker
with batches of 32 W, which is the same in exact arithmetic. Two groups are
trained in lock-step in one process, with the real model `Codistilled` and the
real callback `Codistillation`.

Both tasks are to predict the next character from the ten before, with an
embedding and one hidden layer of 256, by Adam:

- `text`, Python's own documentation: 360,000 examples, so that there are
  many epochs, and large batches overfit;
- `library`, the source of Python's standard library: 4,000,000 examples, each
  seen once at most, which is the paper's case.

First each row's learning rate is tuned, with a seed of its own and the same
rates to choose from; that also shows from where more workers do not help. The
target is the least loss that one group of 2M reached then at a constant rate,
plus 0.01. Burn-in (100 steps) and weight (1) are not tuned; other intervals of
the exchange have the rate of the first one. Then other seeds are measured, at
constant rates and, for `text`, at rates that fall to 0 as a cosine in 600 or
1200 steps: of these two, what reaches a target first counts.

Churn is between two retrainings that differ in their seed, over validation
examples: the total variation distance of the predicted probabilities (half the
sum over classes of the absolute difference), and how often the most probable
class differs; of one of two codistilled models, as only one would be used. It
is taken where the validation loss is least, and where the target is reached.
"""

import dataclasses
import os

from absl import flags
from harness import codistilling
from harness import codistilling_figures as figures_lib
from harness import pool
from harness import program

FLAGS = flags.FLAGS
flags.DEFINE_bool(
    "quick", False, "Small and short, one pair of seeds: no evidence."
)
flags.DEFINE_list("tasks", None, "Default: text,library, or text if --quick.")
flags.DEFINE_integer(
    "seeds", None, "Default: 3, or 2 if --quick.", lower_bound=2
)
flags.DEFINE_integer(
    "processes", None, "Default: one per processor.", lower_bound=1
)

WORKER_BATCH = 32
TUNING_SEED = 0
AIM_RATIO, AIM_CHURN = 0.7, 0.25
MARGINS = (0.0, 0.02, 0.05, 0.1, 0.2)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured of a task.

    Attributes:
      num_examples: Of the training set.
      workers: Numbers of workers of one group; the last is 2M, and M before.
      rates: Learning rates to choose from.
      steps: Of each run with a constant rate.
      intervals: Of the exchange; the first one is that of all other rows.
      decaying: Steps of the runs with a rate that falls.
      smoothings: Of labels, to choose from; none leaves controls out.
      other_rates: To choose from with a falling rate or smoothed labels.
      burn_in_steps: Before groups teach.
    """

    num_examples: int
    workers: tuple
    rates: tuple
    steps: int
    intervals: tuple
    decaying: tuple = ()
    smoothings: tuple = ()
    other_rates: tuple = ()
    burn_in_steps: int = 100


SETTINGS = {
    "text": Setting(
        num_examples=360_000,
        workers=(8, 16, 32, 64, 128),
        rates=(0.008, 0.016, 0.032),
        steps=1200,
        intervals=(50, 10, 20, 250, 1000),
        decaying=(600, 1200),
        smoothings=(0.03, 0.1),
        other_rates=(0.008, 0.016),
    ),
    "library": Setting(
        num_examples=4_000_000,
        workers=(32, 64, 128),
        rates=(0.008, 0.016),
        steps=800,
        intervals=(50,),
    ),
}
QUICK = Setting(
    num_examples=20_000,
    workers=(2, 4),
    rates=(0.004,),
    steps=200,
    intervals=(50, 10),
    burn_in_steps=50,
)
flags.register_validator(
    "tasks",
    lambda names: names is None or (names and set(names) <= set(SETTINGS)),
    f"must be some of {', '.join(SETTINGS)}.",
)


class Rows:
    """The rows of one task, as `Run`s without seed and learning rate."""

    def __init__(self, task, setting):
        self._base = codistilling.Run(
            row="",
            task=task,
            batch_size=0,
            learning_rate=0.0,
            steps=setting.steps,
            seed=TUNING_SEED,
            num_examples=setting.num_examples,
            exchange_every=setting.intervals[0],
            burn_in_steps=setting.burn_in_steps,
        )
        self.setting = setting
        self.half, self.whole = setting.workers[-2:]
        self.single = {w: self._row(f"1 x {w}", w) for w in setting.workers}
        self.baseline = self.single[self.whole]
        self.codistilled = self._row(
            f"2 x {self.half} codistilling", self.half, num_groups=2
        )

    def _row(self, name, workers, **settings):
        batch = workers * WORKER_BATCH
        return dataclasses.replace(
            self._base, row=name, batch_size=batch, **settings
        )

    def candidates(self):
        """What to choose from: of each row, all rates and smoothings."""
        setting = self.setting
        compared = [self.baseline, self.single[self.half], self.codistilled]
        smoothed = dataclasses.replace(
            self.baseline, row=f"{self.baseline.row}, labels smoothed"
        )
        constant = [*self.single.values(), self.codistilled]
        others = [
            figures_lib.falling(row, steps)
            for steps in setting.decaying
            for row in compared
        ]
        others += [
            dataclasses.replace(smoothed, label_smoothing=smoothing)
            for smoothing in setting.smoothings
        ]
        return [
            dataclasses.replace(row, learning_rate=rate)
            for rows, rates in (
                (constant, setting.rates),
                (others, setting.other_rates),
            )
            for row in rows
            for rate in rates
        ]

    def measured(self, best):
        """Those that are measured; what was not tuned borrows a rate.

        Args:
          best: Name of a row -> the best of its candidates.
        """
        half = best[self.single[self.half].row]
        own = best[self.codistilled.row]
        untuned = {
            f"2 x {self.half} apart": {
                "teaching": False,
                "learning_rate": half.learning_rate,
            }
        }
        for interval in self.setting.intervals[1:]:
            name = f"{own.row}, every {interval}"
            untuned[name] = {"exchange_every": interval}
        if self.setting.smoothings:
            untuned[f"{own.row}, the same data"] = {"shared_data": True}
        curve = {row.row for row in self.single.values()}
        return [
            best[self.baseline.row],
            half,
            *(run for name, run in best.items() if name not in curve),
            *(
                dataclasses.replace(own, row=name, **changes)
                for name, changes in untuned.items()
            ),
        ]


def main():
    """Trains, prints tables and a line of JSON."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    quick = FLAGS.quick
    tasks = FLAGS.tasks or (["text"] if quick else list(SETTINGS))
    seeds = range(1, 1 + (FLAGS.seeds or (2 if quick else 3)))
    found = {}
    with pool.Pool(FLAGS.processes) as executor:
        for task in tasks:
            rows = Rows(task, QUICK if quick else SETTINGS[task])
            found[task] = measure(rows, seeds, executor, task)
    program.report(
        "codistillation",
        quick=quick,
        seeds=len(seeds),
        aim_ratio_of_steps=AIM_RATIO,
        aim_churn_reduction=AIM_CHURN,
        tasks=found,
    )


def measure(rows, seeds, executor, task):
    """Tunes, measures and shows one task; returns its figures."""
    runs = rows.candidates()
    tuned = list(
        zip(
            runs,
            codistilling.play(executor, runs, f"{task}: tuning"),
            strict=True,
        )
    )
    least = min(
        figures_lib.least_loss(outcome)
        for run, outcome in tuned
        if run.row == rows.baseline.row
    )
    target = round(least + 0.01, 4)
    targets = [round(target + margin, 4) for margin in MARGINS]
    best = figures_lib.best_candidates(tuned, target)
    runs = [
        dataclasses.replace(run, seed=seed, target=target)
        for seed in seeds
        for run in rows.measured({row: run for row, (run, _) in best.items()})
    ]
    outcomes = {}
    for run, outcome in zip(
        runs,
        codistilling.play(executor, runs, f"{task}: seeds"),
        strict=True,
    ):
        outcomes.setdefault(run.row, []).append(outcome)
    figures = {
        "target": target,
        "workers": {"M": rows.half, "2M": rows.whole, "batch": WORKER_BATCH},
        "tuning": figures_lib.tuning(tuned, best, targets),
        **figures_lib.summarize(
            outcomes,
            targets,
            {
                "2M": rows.baseline.row,
                "M": rows.single[rows.half].row,
                "codistilling": rows.codistilled.row,
            },
            rows.setting.decaying,
        ),
    }
    figures_lib.show(task, figures, len(seeds), AIM_RATIO, AIM_CHURN)
    return figures


if __name__ == "__main__":
    program.run(main)
