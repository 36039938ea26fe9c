"""Synchronous pipelines: GPipe, and 1F1B with flush, in one training step.

All micro-batches of a batch pass through the stages with the same weights;
one update follows (Huang et al. 2019, section 2.2; the order of 1F1B is that
of PipeDream-Flush, Narayanan et al. 2021, section 3.2). A step is one graph of
*tasks*: the forward and the backward of each micro-batch in each stage. A task
is a vector-Jacobian product of its own on its stage's device and waits for the
task before it in the stage's order, so that a device works on one at a time
and holds the activations of no more micro-batches than the schedule says.
"""

import warnings

import keras

from tfdist import private_keras
from tfdist.pipeline import losses
from tfdist.pipeline import schedules
from tfdist.pipeline import stages as stages_lib
from tfdist.pipeline import synchronous_step
from tfdist.placement import layers
from tfdist.placement import operations


class SynchronousPipeline:
    """Trains a model cut into stages, one update per batch.

    Its gradient is that of the whole batch. Batch normalization normalizes
    with the statistics of each micro-batch; its moving statistics take one
    step per batch, to the mean of what the micro-batches alone would have
    made of them, weighted by their examples. Other state (seeds) passes from
    micro-batch to micro-batch.

    Args:
      model: A compiled sequential or functional model.
      stages: Its `stages.Stage`s.
      schedule: One of `schedules.SYNCHRONOUS`.
      micro_batches: Number of micro-batches of a batch, M.
      recompute: Whether only the inputs of stages are kept from a forward to
        its backward, which computes the rest again, with the same random
        seeds (Huang et al. 2019, section 2.3).

    Attributes:
      schedule: The `schedules.PipelineSchedule`.
      reduction: None if the loss is computed for the whole batch before the
        first backward (GPipe), else how it is made of those of
        micro-batches: "mean" or "sum".

    Raises:
      ValueError: The gradient of the loss is not that of its micro-batches;
        see `losses.reduction_of`.
    """

    def __init__(self, model, stages, schedule, micro_batches, recompute=False):
        self.model = model
        self.stages = list(stages)
        self.micro_batches = micro_batches
        self.schedule = schedules.make(schedule, len(stages), micro_batches)
        self.reduction = None
        if schedule != "gpipe":
            self.reduction = losses.reduction_of(model)
        self._recompute = recompute
        _, self.inputs, self.outputs = stages_lib.calls_of(model)
        # Those of batch normalization, whose step must not be taken M times.
        self.averaged = {
            id(variable)
            for part in layers.parts(model)
            if isinstance(part.layer, keras.layers.BatchNormalization)
            for variable in part.layer.non_trainable_variables
        }

    def train_step(self, data):
        """One update.

        Args:
          data: What `model.fit` gives to a step: (x, y, sample_weight) or
            less.

        Returns:
          A dict of logs.
        """
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with operations.following():
            step = synchronous_step.SynchronousStep(self, x, y, sample_weight)
            y_pred, loss, gradients = step.run()
            tracker = private_keras.loss_tracker(model)
            tracker.update_state(loss, sample_weight=step.size)
            if gradients:
                model.optimizer.apply_gradients(
                    zip(gradients, model.trainable_weights, strict=True)
                )
            else:
                warnings.warn(
                    f"Model {model.name!r} has no trainable weights.",
                    stacklevel=2,
                )
            return model.compute_metrics(
                x, y, y_pred, sample_weight=sample_weight
            )

    def recomputes(self, task):
        """Whether what a forward has computed is dropped and computed again.

        Not where the backward follows at once: nothing would be gained.

        Args:
          task: A forward's `StageTask`.
        """
        if not self._recompute:
            return False
        tasks = self.schedule.stages[task.stage]
        return tasks[tasks.index(task) + 1] != ("backward", *task[1:])
