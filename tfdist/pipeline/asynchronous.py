"""Pipelines without flushes: PipeDream, 2BW, SpecTrain and FTPipe.

A unit, one micro-batch, goes forward through the stages and back. At
half-tick h = 0, 1, 2, ... stage s of K does the forward of unit (h - s) / 2
where h - s is even, otherwise the backward of unit (h - (2 K - 1 - s)) / 2.
So a tick, two half-ticks, takes in one unit and lets all stages work at once:
the even ones forward and then backward, the odd ones the other way round. The
last one does a unit's backward right after its forward, as one task.

A training step is as many ticks as it has units. What is in flight at its end
waits on the devices for the next step (`staging`), so that the pipeline stays
full. A unit has K - 1 ticks left after the one that took it in.

Unlike in a pipeline that is emptied before each update, a unit's forward and
backward meet weights of which others have made newer versions. The schedules
differ in what they do about it:

- "pipedream": a backward uses the weights of its forward (weight stashing),
  so w(t + 1) = w(t) - eta * grad f(w_1(t - K + 1), ..., w_K(t)). With
  `vertical_sync` all stages use the first one's version, max(0, u - K + 1)
  for unit u (Harlap et al. 2018, arXiv:1806.03377).
- "pipedream_2bw": one update for each M units, by the mean of their
  gradients; all of batch t uses W(t - 1), so W(t + 1) = W(t) - eta *
  grad f(W(t - 1)) with W(-1) = W(0) (Narayanan et al. 2021).
- "spectrain": both use weights that are predicted, see `prediction`, from the
  newest: a forward at stage k of K by floor(k / 2) + K - k - 1 updates and a
  backward by floor(k / 2), so that both aim at the version that is there
  when the unit has come back to the first stage (Chen et al. 2018).
- "ftpipe": both use the newest weights (Eliad et al. 2021).

Only a stage's inputs are kept from a forward to its backward, which computes
the rest again, with the same random seeds; moving statistics are updated by
the forward alone.
"""

import contextlib

import keras
import tensorflow as tf

from tfdist import checks
from tfdist import private_keras
from tfdist import private_tensorflow
from tfdist.pipeline import losses
from tfdist.pipeline import micro_batches as micro_batches_lib
from tfdist.pipeline import prediction
from tfdist.pipeline import schedules
from tfdist.pipeline import stashing
from tfdist.pipeline import ticks
from tfdist.pipeline import updates


class AsynchronousPipeline:
    """Trains a model that is cut into stages, without ever flushing.

    Args:
      model: A compiled `keras.Sequential` or functional `keras.Model`.
      stages: Its `stages.Stage`s. Blocks of "ftpipe" that are not neighbours
        may be on one device, where they take turns.
      schedule: One of `schedules.ASYNCHRONOUS`.
      micro_batches: Units into which a batch of `fit` is cut, M. 1: a unit
        is the whole batch.
      vertical_sync: Of "pipedream" alone: whether all stages use the
        version of weights that the first one uses.

    A layer's random numbers must come from a `keras.random.SeedGenerator`, as
    those of Keras' layers do, else a backward computes something else than
    its forward has. `model.compute_loss` and `compute_metrics` are called for
    each unit, with x=None: the inputs do not travel to the last stage.

    Raises:
      ValueError: An argument is not as above, a weight is in several stages,
        or the optimizer cannot update stages one by one.
    """

    def __init__(
        self, model, stages, schedule, micro_batches=1, vertical_sync=False
    ):
        _check(stages, schedule, micro_batches, vertical_sync)
        updates.check(model.optimizer)
        if schedule == "spectrain":
            prediction.check(model.optimizer)
        self.model = model
        # What is trainable may change before the first step, and while units
        # of before are in flight.
        self.stages = [stage.fixed() for stage in stages]
        self._trained = model.trainable_variables
        self.schedule = schedule
        self.micro_batches = micro_batches
        self._batched = schedule == "pipedream_2bw"
        self._rule = stashing.Rule(
            schedule,
            len(self.stages),
            micro_batches if self._batched else 1,
            vertical_sync,
        )
        self._reduction = "mean"
        if self._batched:
            self._reduction = losses.reduction_of(model)
        # By kind of data: with or without sample weights, of which shapes.
        self._ticks = {}
        with tf.init_scope(), tf.device("CPU:0"):
            # Which of them has fed last, and how many of its units wait.
            none = tf.zeros([], tf.int64)
            self._last = private_tensorflow.hidden_variable(none - 1)
            self._waiting = private_tensorflow.hidden_variable(none)
        self._working = False

    @property
    def in_flight(self):
        """Number of units that are not back at the first stage, an int."""
        return sum(one.in_flight for one in self._ticks.values())

    def train_step(self, data):
        """Takes in one batch, and goes as many ticks as it has units.

        Args:
          data: As of `model.train_step`: x, (x, y), or (x, y, sample_weight).

        Returns:
          The metrics so far, a dict; they have what has reached the last
          stage.
        """
        # Not before: some optimizers begin with a copy of the weights.
        self._build_optimizer()
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        cut = micro_batches_lib.MicroBatches(
            micro_batches_lib.batch_size((x, y, sample_weight)),
            self.micro_batches,
        )
        x = micro_batches_lib.inputs_of(self.model, x)
        kind = str(keras.tree.map_structure(_kind, (x, y, sample_weight)))
        if kind not in self._ticks:
            self._ticks[kind] = ticks.Ticks(
                self.model,
                self.stages,
                self._rule,
                self.micro_batches,
                self._reduction,
            )
        own = self._ticks[kind]
        units = [
            own.tasks.unit(
                *cut.part((x, y, sample_weight), number),
                cut.sizes[number],
                cut.share(number, tf.float64) if self._batched else 1.0,
            )
            for number in range(self.micro_batches)
        ]
        checked = self._refuse_mixing(own)
        with self._at_work(), tf.control_dependencies(checked):
            own.feed(units)
            self._waiting.assign(own.on_their_way)
            if all(getattr(m, "built", True) for m in self.model.metrics):
                return self.model.get_metrics_result()
            # A step that is not traced, and no unit was at the last stage.
            return {}

    def _build_optimizer(self):
        """Builds it with what was trainable at `compile`, unless it is."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(self._trained)
        known = set(map(id, private_keras.trained_by(optimizer)))
        unknown = [
            weight.path
            for stage in self.stages
            for weight in stage.weights
            if id(weight) not in known
        ]
        if unknown:
            raise ValueError(
                "The optimizer of a pipeline must be built with all weights "
                "that were trainable at `compile`: compile the model again, "
                "with a new optimizer, after you change what is trainable. "
                f"Received: an optimizer built without {', '.join(unknown)}"
            )

    def _refuse_mixing(self, own):
        """Units of one shape cannot follow those of another in a pipeline.

        Both may have been traced long ago: this is looked at in each step.
        """
        number = list(self._ticks.values()).index(own)
        check = tf.debugging.Assert(
            tf.equal(self._last, number) | tf.equal(self._waiting, 0),
            [
                "A batch of another kind (shapes, dtypes, with or without "
                "weights) follows batches that are still in flight, which "
                f"schedule={self.schedule!r} keeps on their way. Give fit "
                "batches of one kind (pad sequences; weights for all or for "
                "none), call drain() between them, or use gpipe or 1f1b."
            ],
        )
        checked = [] if tf.executing_eagerly() else [check]
        # A batch that is refused does not count as the last one.
        with tf.control_dependencies(checked):
            self._last.assign(number)
        return checked

    def drain(self):
        """Goes on without new units until none is in flight.

        Nothing happens if none is, or within a step.
        """
        if self._working or not tf.executing_eagerly():
            return
        for own in self._ticks.values():
            with self._at_work():
                own.drain()
        self._waiting.assign(0)

    @contextlib.contextmanager
    def _at_work(self):
        self._working = True
        try:
            yield
        finally:
            self._working = False


def _kind(tensor):
    """Returns a tensor's dtype and its shape without the batch dimension."""
    return None if tensor is None else (tensor.dtype.name, tensor.shape[1:])


def _check(stages, schedule, micro_batches, vertical_sync):
    """Refuses arguments of `AsynchronousPipeline`."""
    checks.one_of("schedule", schedule, schedules.ASYNCHRONOUS)
    checks.count("micro_batches", micro_batches)
    if schedule == "pipedream_2bw" and micro_batches < len(stages):
        raise ValueError(
            "Argument `micro_batches` must be at least the number of stages, "
            f"{len(stages)}, with pipedream_2bw: with fewer, two versions of "
            f"weights are not enough. Received: micro_batches={micro_batches}"
        )
    if vertical_sync and schedule != "pipedream":
        raise ValueError(
            "Argument `vertical_sync` must be False except for pipedream. "
            f"Received: vertical_sync={vertical_sync!r} for {schedule}"
        )
    owners = {}
    for stage in stages:
        for variable in stage.variables:
            owner = owners.setdefault(id(variable), stage.index)
            if owner != stage.index:
                raise ValueError(
                    f"Variable {variable.path!r} is in the stages {owner} "
                    f"and {stage.index}: a pipeline without flushes cannot "
                    "have tied weights in different stages, which update at "
                    "different times. Cut elsewhere, or use gpipe or 1f1b."
                )
