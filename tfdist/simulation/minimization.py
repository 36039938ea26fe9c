"""Runs of `SandblasterStrategy`: real losses and gradients, virtual time."""

import keras
import numpy as np
import tensorflow as tf
import tqdm

from tfdist.sandblaster import evaluation
from tfdist.sandblaster import lbfgs
from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import portion_gradients
from tfdist.sandblaster import samples
from tfdist.sandblaster import shards
from tfdist.simulation import data as data_lib
from tfdist.simulation import history as history_lib
from tfdist.simulation.epoch_evaluator import EpochEvaluator
from tfdist.simulation.evaluations import VirtualEvaluations
from tfdist.simulation.flat_model import FlatModel


def simulate(
    model_fn,
    data,
    strategy,
    *,
    num_workers,
    num_servers,
    epochs,
    seed,
    validation_data,
    evaluate_every,
    max_seconds,
    chunk,
    progress,
    **cluster,
):
    """Minimizes the loss of all data; see `tfdist.simulation.simulate`.

    Args:
      model_fn: Callable that returns a compiled `keras.Model`. Its optimizer
        is an `LBFGS`, or one with default settings takes its place.
      data: A `Data` that is not shuffled.
      strategy: A `Sandblaster`.
      num_workers: Number of workers.
      num_servers: Number of servers.
      epochs: Iterations at most.
      seed: Of initial weights and compute times.
      validation_data: As `simulate` takes it.
      evaluate_every: Passes over the data between two evaluations.
      max_seconds: Virtual time after which no iteration is begun, or None.
      chunk: Gradients computed in one call at most.
      progress: Whether to show a bar.
      **cluster: Arguments of `VirtualEvaluations`.

    Returns:
      A `History`.

    Raises:
      ValueError: The model cannot be trained so; the message says why.
    """
    keras.utils.set_random_seed(seed)
    model = model_fn()
    data_lib.check_model(model)
    portion_gradients.check(model)
    if not isinstance(model.optimizer, lbfgs.LBFGS):
        model.optimizer = lbfgs.LBFGS()
    flat = FlatModel(model, data, chunk)
    validation = None
    if validation_data is not None:
        validation = data_lib.of_validation(validation_data)
    num_bytes = [
        size * flat.dtype.itemsize
        for size in shards.cut(flat.size, num_servers)
    ]
    evaluations = VirtualEvaluations(
        data.num_batches,
        num_workers,
        strategy,
        num_bytes=num_bytes,
        seed=seed,
        **cluster,
    )
    run = _Run(flat, data, evaluations, validation)
    bar = tqdm.tqdm(
        total=epochs,
        desc=f"{strategy.name}, {num_workers} workers",
        unit="iteration",
        disable=not progress,
    )
    evaluator = EpochEvaluator(data.num_batches, evaluate_every, run.measure)
    updates = []
    with bar:
        evaluator.evaluate(0.0, 0)
        for _ in range(epochs):
            if max_seconds is not None and evaluations.now >= max_seconds:
                break
            before = run.batches
            made = run.iterate()
            bar.update()
            if made.step:
                updates.append(evaluations.now)
            evaluator.count(run.batches - before)
            if evaluator.is_due:
                evaluator.evaluate(evaluations.now, len(updates))
            if made.outcome is not minimizer_lib.Outcome.MOVED:
                break
        if evaluator.is_behind:
            evaluator.evaluate(evaluations.now, len(updates))
    run.leave()
    return _history(
        evaluations,
        strategy,
        num_workers,
        num_bytes,
        seed=seed,
        batch_size=data.batch_size,
        update_seconds=updates,
        evaluations=evaluator.rows,
        model=model,
    )


def timing(
    strategy,
    *,
    num_workers,
    steps,
    epochs,
    num_bytes,
    batch_size,
    seed,
    **cluster,
):
    """The course of a run without computing any gradient.

    Each iteration takes the first step that it tries.

    Args:
      strategy: A `Sandblaster`.
      num_workers: Number of workers.
      steps: Batches of the data.
      epochs: Number of iterations, of one evaluation each.
      num_bytes: Of a vector on each server, a list of numbers.
      batch_size: Examples of a batch.
      seed: Of compute times.
      **cluster: Arguments of `VirtualEvaluations`.

    Returns:
      A `History` without evaluations of a model.
    """
    evaluations = VirtualEvaluations(
        steps, num_workers, strategy, num_bytes=num_bytes, seed=seed, **cluster
    )
    updates = []
    for _ in range(epochs):
        evaluations.command()  # The direction and the point.
        evaluations.evaluate()
        evaluations.command()  # The slope.
        evaluations.command()  # The pair.
        evaluations.close()
        updates.append(evaluations.now)
    return _history(
        evaluations,
        strategy,
        num_workers,
        num_bytes,
        seed=seed,
        batch_size=batch_size,
        update_seconds=updates,
        evaluations=[],
        model=None,
    )


def _history(
    played, strategy, num_workers, num_bytes, *, update_seconds, **fields
):
    """Returns the `History` of `VirtualEvaluations` that were played."""
    size = int(sum(num_bytes))
    return history_lib.History(
        method=strategy.name,
        num_workers=num_workers,
        num_servers=len(num_bytes),
        seconds=played.now,
        updates=len(update_seconds),
        jobs=history_lib.jobs_array(played.jobs),
        update_seconds=np.array(update_seconds),
        push_bytes=size,
        pull_bytes=0,
        fetched_bytes=played.fetches * size,
        evaluation_seconds=np.array(played.seconds),
        **fields,
    )


class _Run:
    """A minimization by the `Minimizer` of real coordinators.

    Args:
      flat: The `FlatModel`.
      data: The `Data`.
      evaluations: The `VirtualEvaluations`.
      validation: A `Data`, or None.

    Attributes:
      batches: How many batches were evaluated.
    """

    def __init__(self, flat, data, evaluations, validation):
        self._flat = flat
        self._data = data
        self._virtual = evaluations
        self._validation = validation
        optimizer = flat.model.optimizer
        weights, self._state, self._slots = flat.first()
        self._vectors = VectorsInMemory(
            flat.size,
            flat.dtype,
            minimizer_lib.rows(optimizer.memory),
            evaluations.command,
        )
        self._minimizer = minimizer_lib.Minimizer.of(self._vectors, optimizer)
        self.batches = 0
        self._samples = None
        if optimizer.sample < 1:
            self._samples = samples.Samples(
                len(evaluations.portions), optimizer.sample, optimizer.overlap
            )
        self._vectors.write(self._minimizer.point, tf.constant(weights))

    def iterate(self):
        """Makes an iteration; returns the `Iteration`."""
        made = self._minimizer.iterate(self._evaluate)
        self._virtual.close()
        return made

    def measure(self):
        """Returns loss and figures at the current point."""
        figures = {}
        if self._validation is not None:
            self.leave()
            figures = data_lib.evaluate(self._flat.model, self._validation)
        return self._minimizer.value, figures

    def leave(self):
        """Leaves the current point in the model."""
        point = self._vectors.read(self._minimizer.point).numpy()
        self._flat.leave(point, self._state, self._slots)

    def _evaluate(self, point, gradient, number=None, before="", after=""):
        """The loss at a point; see `sandblaster.evaluation`."""
        if number is None:
            portions = range(len(self._virtual.portions))
            parts = {gradient: portions}
            self._virtual.evaluate()
        else:
            sample = self._samples[number]
            portions = sample.portions
            parts = {
                before: sample.before,
                gradient: sample.own,
                after: sample.after,
            }
            self._virtual.evaluate(portions, len(parts))
        weights = self._vectors.read(point).numpy()
        found = self._gradients(weights, portions)
        value, counts = 0.0, []
        for name, members in parts.items():
            # As real servers: portions are added in float64.
            total, count = np.zeros(self._flat.size, np.float64), 0
            for portion in members:
                own, loss, examples = found[portion]
                total += own
                value += loss
                count += examples
            counts.append(count)
            mean = (total / count).astype(weights.dtype)
            self._vectors.write(name, tf.constant(mean))
        if number is not None:
            self._vectors.run(
                evaluation.mean_commands(gradient, before, after, counts)
            )
        return value / sum(counts)

    def _gradients(self, weights, portions):
        """The sums over some portions at a point.

        Returns:
          Dict of a portion's number to its gradient and loss, both summed over
          examples, and the number of examples.
        """
        batches = {
            batch
            for portion in portions
            for batch in self._virtual.portions[portion]
        }
        self.batches += len(batches)
        computed = self._flat.gradients(
            [(weights, self._state, batch) for batch in sorted(batches)]
        )
        by_batch = dict(zip(sorted(batches), computed, strict=True))
        found = {}
        for portion in portions:
            # As real workers: batches are added in the model's type.
            total, loss, examples = np.zeros_like(weights), 0.0, 0
            for batch in self._virtual.portions[portion]:
                own, state, own_loss = by_batch[batch]
                self._check_state(state)
                size = self._data.size(batch)
                total += weights.dtype.type(size) * own
                loss += own_loss * size
                examples += size
            found[portion] = total, loss, examples
        return found

    def _check_state(self, state):
        variables = self._flat.model.non_trainable_variables
        for variable, old, new in zip(
            variables, self._state, state, strict=True
        ):
            if not np.array_equal(old, new):
                portion_gradients.refuse_change(variable)


class VectorsInMemory:
    """Named vectors of this process, with the commands of `Shards`.

    Args:
      size: Elements of a vector.
      dtype: Of the vectors.
      rows: Dict of the name of a matrix to its number of rows.
      on_run: Callable without arguments, for each list of commands.
    """

    def __init__(self, size, dtype, rows, on_run):
        self.size = size
        self.dtype = tf.as_dtype(dtype)
        self._on_run = on_run
        self._vectors = {}
        zeros = tf.zeros([size], self.dtype)
        self._rows = {name: [zeros] * number for name, number in rows.items()}

    def run(self, commands):
        """See `Shards.run`."""
        self._on_run()
        results = []
        for command in commands:
            numbers = [tf.constant(n, tf.float64) for n in command.numbers]
            part = command.build(self, numbers)
            if part is not None:
                results.append(command.result(part.numpy()))
        return results

    # As a `ShardScope`.

    def shape(self, name):
        """Returns the shape of a vector or a matrix."""
        rows = self._rows.get(name)
        return [self.size] if rows is None else [len(rows), self.size]

    def read(self, name):
        """Returns a vector, a tensor."""
        return self._vectors[name]

    def write(self, name, value):
        """Replaces a vector."""
        self._vectors[name] = value

    def read_row(self, name, index):
        """Returns a row of a matrix, a tensor."""
        return self._rows[name][index]

    def write_row(self, name, index, value):
        """Replaces a row of a matrix."""
        self._rows[name][int(index)] = value
