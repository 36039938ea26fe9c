"""Groups of data-parallel workers that teach each other, in one process."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import os
import time

import numpy as np

STEPS_PER_CALL = 10
EVALUATE_EVERY = 10


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one or more groups.

    W synchronous workers with batches of b are, in exact arithmetic, one
    worker with batches of W b (the models have no batch normalization), and so
    each group is.

    Attributes:
      row: Name of the method, as tables show it.
      task: One of `codistilling_tasks.TASKS`.
      batch_size: Examples of one update of one group.
      learning_rate: Of Adam.
      steps: Updates of each group.
      seed: Seed, of the weights and the order of the data.
      num_examples: Of the training set.
      num_groups: Trained at the same time, step by step.
      teaching: Whether groups teach each other; else they merely are there.
      exchange_every: Updates between two exchanges.
      burn_in_steps: Before groups teach.
      shared_data: Whether groups see the same examples, each in an order of
        its own; else each has its part of them.
      decaying: Whether the rate falls to 0, as a cosine, within `steps`;
        else it is constant.
      label_smoothing: As of `keras.losses.CategoricalCrossentropy`.
      target: A loss; predictions are kept of when it is reached.
    """

    row: str
    task: str
    batch_size: int
    learning_rate: float
    steps: int
    seed: int
    num_examples: int
    num_groups: int = 1
    teaching: bool = True
    exchange_every: int = 50
    burn_in_steps: int = 100
    shared_data: bool = False
    decaying: bool = False
    label_smoothing: float = 0.0
    target: float | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a `Run` gave, on validation data.

    Attributes:
      steps: (evaluations,) ints, the updates before each evaluation.
      losses: (evaluations, groups) floats, the mean cross-entropies.
      ensemble: (evaluations,) floats, that of the groups' mean prediction.
      best: (groups, examples, classes) floats, the probabilities when the
        groups' mean loss was least.
      at_target: The same when it first was at most `target`; None if never.
    """

    steps: np.ndarray
    losses: np.ndarray
    ensemble: np.ndarray
    best: np.ndarray
    at_target: np.ndarray | None


def play(processes, runs, what):
    """Plays runs side by side.

    Args:
      processes: A `pool.Pool`.
      runs: List of `Run`.
      what: Of the progress that is shown.

    Returns:
      List of `Outcome`, in the order of `runs`.
    """
    return processes.play(_play, runs, _work, what)


def _work(run):
    # Of teaching, that of the teacher's prediction.
    each = 4 / 3 if run.num_groups > 1 and run.teaching else 1
    return run.steps * (200 + run.batch_size) * run.num_groups * each


def _play(run):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # It has begun, with one.
        # A process for each processor.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    try:
        return _Training(run).play()
    finally:
        # Models and their functions refer to each other in circles.
        keras.backend.clear_session()
        gc.collect()


@functools.cache
def _loaded(name, num_examples):
    from harness import codistilling_tasks

    return codistilling_tasks.TASKS[name](num_examples)


class _Training:
    """All groups of a run, in lock-step, with the real callbacks."""

    def __init__(self, run):
        from tfdist import codistillation

        self._run = run
        self._task = _loaded(run.task, run.num_examples)
        exchange = _live_exchange()
        taught = run.num_groups > 1 and run.teaching
        self._students, self._models, self._batches = [], [], []
        self._callbacks = []
        for index in range(run.num_groups):
            group = codistillation.Group(index, run.num_groups)
            student, model = self._build(index, taught)
            self._students.append(student)
            self._models.append(model)
            self._batches.append(self._endless_batches(group))
            if taught:
                callback = codistillation.Codistillation(
                    exchange,
                    group=group,
                    exchange_every=run.exchange_every,
                    background=False,
                    verbose=0,
                )
                callback.set_model(model)
                self._callbacks.append(callback)
        self._predict = self._prediction()

    def _build(self, index, taught):
        """A network, and what is trained of it, which may be the same."""
        import keras

        from tfdist import codistillation

        run = self._run
        keras.utils.set_random_seed(1000 * run.seed + index)
        student = self._task.build()
        model = student
        if taught:
            model = codistillation.Codistilled(
                student,
                burn_in_steps=run.burn_in_steps,
                loss=codistillation.CodistillationLoss(from_logits=True),
            )
        rate = run.learning_rate
        if run.decaying:
            rate = keras.optimizers.schedules.CosineDecay(rate, run.steps)
        model.compile(
            keras.optimizers.Adam(rate),
            _loss(run.label_smoothing),
            steps_per_execution=STEPS_PER_CALL,
            jit_compile=False,
        )
        return student, model

    def _endless_batches(self, group):
        """Batches of this group, in an order of its own."""
        import tensorflow as tf

        run, data = self._run, self._task.train
        if not run.shared_data:
            data = group.shard(data)
        x, y = (tf.constant(np.ascontiguousarray(part)) for part in data)
        stream = np.random.default_rng(1000 * run.seed + group.index)
        number = run.batch_size * run.steps
        rounds = itertools.repeat(len(x), -(-number // len(x)))
        order = np.concatenate([stream.permutation(n) for n in rounds])
        order = order[:number].astype("int32").reshape(run.steps, -1)
        return iter(
            tf.data.Dataset.from_tensor_slices(order).map(
                lambda which: (tf.gather(x, which), tf.gather(y, which))
            )
        )

    def _prediction(self):
        """A function that gives probabilities, (groups, examples, classes)."""
        import tensorflow as tf

        x = tf.constant(np.ascontiguousarray(self._task.validation[0]))
        return tf.function(
            lambda: tf.nn.softmax(
                tf.stack([s(x, training=False) for s in self._students])
            ),
            autograph=False,
        )

    def play(self):
        run, callbacks = self._run, self._callbacks
        for callback in callbacks:
            callback.on_train_begin()
        for model in self._models:
            model.make_train_function()
        steps, losses, ensemble = [], [], []
        best = at_target = None
        least = np.inf
        for step in range(STEPS_PER_CALL, run.steps + 1, STEPS_PER_CALL):
            for callback in callbacks:
                callback.on_train_batch_begin(step - STEPS_PER_CALL)
            for model, batches in zip(self._models, self._batches, strict=True):
                model.train_function(batches)
            # Not before all have trained: they shall see each other alike.
            for callback in callbacks:
                callback.on_train_batch_end(step - 1)
            if step % EVALUATE_EVERY:
                continue
            predicted = self._predict().numpy()
            steps.append(step)
            losses.append([self._cross_entropy(p) for p in predicted])
            ensemble.append(self._cross_entropy(predicted.mean(axis=0)))
            loss = np.mean(losses[-1])
            if best is None or loss < least:
                best, least = predicted, loss
            if at_target is None and run.target and loss <= run.target:
                at_target = predicted
        for callback in callbacks:
            callback.on_train_end()
        return Outcome(
            np.array(steps),
            np.array(losses),
            np.array(ensemble),
            best,
            at_target,
        )

    def _cross_entropy(self, probabilities):
        y = self._task.validation[1]
        of_truth = probabilities[np.arange(len(y)), y]
        return float(-np.log(np.maximum(of_truth, 1e-12)).mean())


def _loss(label_smoothing):
    import keras

    if not label_smoothing:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    smoothed = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing
    )

    def loss(y_true, y_pred):
        labels = keras.ops.one_hot(
            keras.ops.reshape(y_true, [-1]), y_pred.shape[-1]
        )
        return smoothed(labels, y_pred)

    return loss


def _live_exchange():
    """An `Exchange` within one process: peers see each other as they are."""
    from tfdist import codistillation
    from tfdist.codistillation import weights

    class LiveExchange(codistillation.Exchange):
        needs_weights = False

        def __init__(self):
            self._models, self._published = {}, {}

        def bind(self, group, model):
            self._models[group.index] = model

        def publish(self, checkpoint):
            self._published[checkpoint.group] = checkpoint

        def fetch(self, peer, newer_than):
            # All are at the same step, whoever publishes first.
            newest = max(self._published.values(), key=lambda c: c.step)
            if newer_than is not None and newest.step <= newer_than.number:
                return None
            return codistillation.Checkpoint(
                group=peer,
                number=newest.step,
                step=newest.step,
                time=time.time(),
                run="one process",
                initial=f"of group {peer}",
                weights=weights.snapshot(self._models[peer]),
            )

    return LiveExchange()
