"""One training step of a synchronous pipeline, while it is built."""

import collections
import contextlib

import keras
import tensorflow as tf

from tfdist import compute_loss
from tfdist import private_keras
from tfdist.pipeline import losses
from tfdist.pipeline import micro_batches
from tfdist.pipeline import schedules
from tfdist.pipeline import stages


class SynchronousStep:
    """The tensors of a training step while it is built.

    A tensor that passes between tasks is known by its key and the number of
    its micro-batch. The logits of an output (`private_keras.logits_of`)
    are one more output, with the key ("logits", key).

    Args:
      executor: The `SynchronousPipeline`.
      x: Inputs in any structure that the model takes.
      y: Targets in any structure, or None.
      sample_weight: In any structure, or None.

    Attributes:
      size: Number of examples, an int or a scalar tensor.

    Raises:
      ValueError: The data cannot be cut into micro-batches.
    """

    def __init__(self, executor, x, y, sample_weight):
        self._executor = executor
        self._model = executor.model
        self._stages = executor.stages
        self._whole = x, y, sample_weight
        self._units = range(executor.micro_batches)
        with tf.device(self._stages[0].device):
            inputs = micro_batches.inputs_of(self._model, x)
            self.size = micro_batches.batch_size((inputs, y, sample_weight))
            self._cut = micro_batches.MicroBatches(self.size, len(self._units))
            self._values = {
                (key, unit): self._cut.part(tensor, unit)
                for unit in self._units
                for key, tensor in zip(executor.inputs, inputs, strict=True)
            }
        self._variables = {
            id(variable): variable
            for stage in self._stages
            for variable in stage.variables
        }
        # Tensors that depend on weights: what others are made of is no matter.
        self._trained = set()
        for stage in self._stages:
            if stage.weights or not self._trained.isdisjoint(stage.inputs):
                self._trained.update(stage.outputs)
        # Once: all tasks see the same weights.
        self._read = {
            key: tf.identity(variable.value)
            for key, variable in self._variables.items()
        }
        self._state = dict(self._read)
        self._averages = {}
        self._on_stage = {}  # (stage number, device) -> weights on it.
        self._kept = {}  # From a forward for its backward.
        self._cotangents = collections.defaultdict(list)
        self._gradients = collections.defaultdict(lambda: None)
        self._ends = {}  # Task -> what runs when it has ended.

    def run(self):
        """Builds all tasks.

        Returns:
          (y_pred, loss, gradients): the outputs for the whole batch, its loss,
          and a gradient for each of the model's trainable weights.
        """
        by_unit = self._executor.reduction is not None
        begun = False
        for task, before in in_turn(
            self._executor.schedule,
            [len(stage.devices) for stage in self._stages],
        ):
            stage = self._stages[task.stage]
            if task.kind == "forward":
                self._forward(stage, task, before)
            elif task.kind == "backward":
                if by_unit and stage is self._stages[-1]:
                    self._begin_backward_of(task.unit)
                elif not (by_unit or begun):
                    y_pred, loss = self._whole_loss(begins_backward=True)
                begun = True
                self._backward(stage, task, before)
        if by_unit:
            y_pred, loss = self._whole_loss(begins_backward=False)
        places = [(s, device) for s in self._stages for device in s.devices]
        places.append("loss")
        gradients = [
            _sum(self._gradients[where, id(weight)] for where in places)
            for weight in self._model.trainable_weights
        ]
        return y_pred, loss, gradients

    # Tasks.

    @contextlib.contextmanager
    def _task(self, task, before):
        """On its device and after the task before it.

        Yields:
          A list for the tensors or operations with which it ends.
        """
        results = []
        after = [self._ends[before]] if before in self._ends else []
        with (
            tf.device(self._stages[task.stage].device_of(task.unit)),
            tf.name_scope(f"{task.kind}_{task.stage}_{task.unit}"),
        ):
            with tf.control_dependencies(after):
                yield results
            if not tf.executing_eagerly():
                with tf.control_dependencies([*after, *results]):
                    self._ends[task] = tf.no_op("end")

    def _forward(self, stage, task, before):
        tensors = self._arrived(stage, task.unit)
        weights = self._weights(stage, task.unit)
        state = [self._state[id(variable)] for variable in stage.state]
        recompute = self._executor.recomputes(task)
        with self._task(task, before) as results:
            sources = self._sources(stage, tensors, weights)
            tape = None if recompute else _tape(sources)
            device = stage.device_of(task.unit)
            outputs, after = _run(
                stage, tensors, weights, state, tape, device, recompute
            )
            for variable, old, new in zip(
                stage.state, state, after, strict=True
            ):
                if new is not old:
                    self._check_owner(variable, stage)
                    self._change_state(variable, old, new, task.unit)
            results += [*outputs.values(), *after]
        for key, tensor in outputs.items():
            self._values[key, task.unit] = tensor
        if recompute:
            outputs = None
        self._kept[task[1:]] = tensors, state, tape, outputs

    def _backward(self, stage, task, before):
        tensors, state, tape, outputs = self._kept.pop(task[1:])
        weights = self._weights(stage, task.unit)
        sources = self._sources(stage, tensors, weights)
        device = stage.device_of(task.unit)
        with self._task(task, before) as results:
            if tape is None and sources:
                tape = _tape(sources)
                outputs, _ = _run(stage, tensors, weights, state, tape, device)
            cotangents = {
                key: _sum(self._cotangents.pop((key, task.unit)))
                for key in outputs or ()
                if (key, task.unit) in self._cotangents
            }
            if not (cotangents and sources):
                # Nothing to do: it has still its place in the order.
                later = ("backward", task.stage + 1, task.unit)
                results += [self._ends[later]] if later in self._ends else []
                return
            gradients = _gradients(
                tape,
                [outputs[key] for key in cotangents],
                sources,
                list(cotangents.values()),
            )
            for key, gradient in gradients.items():
                if gradient is None:
                    continue
                if key in self._trained:
                    gradient = tf.convert_to_tensor(gradient)
                    self._cotangents[key, task.unit].append(gradient)
                else:
                    where = (stage, device), key
                    gradient = _sum([self._gradients[where], gradient])
                    self._gradients[where] = gradient
                results.append(getattr(gradient, "values", gradient))

    def _sources(self, stage, tensors, weights):
        """Key of input or id of weight -> what gets a gradient of the stage."""
        inputs = {
            key: tensor
            for key, tensor in zip(stage.inputs, tensors, strict=True)
            if key in self._trained and stages.has_gradient(tensor.dtype)
        }
        values = zip(stage.weights, weights, strict=True)
        return inputs | {id(weight): value for weight, value in values}

    def _arrived(self, stage, unit):
        """Inputs on the stage's device.

        They do not wait for the stage to be free: they travel while it works.
        """
        with tf.device(stage.device_of(unit)), tf.name_scope("arrived"):
            return [
                tf.identity(self._values[key, unit]) for key in stage.inputs
            ]

    def _weights(self, stage, unit):
        device = stage.device_of(unit)
        if (stage.index, device) not in self._on_stage:
            with tf.device(device), tf.name_scope("weights"):
                self._on_stage[stage.index, device] = [
                    tf.identity(self._read[id(weight)])
                    for weight in stage.weights
                ]
        return self._on_stage[stage.index, device]

    def _check_owner(self, variable, stage):
        owners = [
            s for s in self._stages if any(v is variable for v in s.variables)
        ]
        if owners != [stage]:
            shared = " and ".join(str(owner.index) for owner in owners)
            raise ValueError(
                f"{variable.path!r} is changed by a layer that stages {shared} "
                "share, which have different micro-batches at a time: call "
                "the layer within one stage, or use a layer for each."
            )

    def _change_state(self, variable, old, new, unit):
        key = id(variable)
        if key in self._executor.averaged:
            # `old` is for all micro-batches what the variable was.
            change = self._cut.share(unit, new.dtype) * (new - old)
            self._averages[key] = self._averages.get(key, old) + change
        elif self._cut.may_be_empty:
            counts = self._cut.sizes[unit] > 0
            self._state[key] = tf.where(counts, new, old)
        else:
            self._state[key] = new

    # Loss.

    def _begin_backward_of(self, unit):
        """The loss of one micro-batch, as a part of that of the batch."""
        if isinstance(self.size, int) and self._cut.sizes[unit] == 0:
            return  # Keras gives no scalar for a loss of nothing.
        x, y, sample_weight = self._part_of_batch(unit)
        outputs = self._outputs([unit])
        # What this does to metrics is forgotten: `_whole_loss` does it, once.
        scope = keras.StatelessScope(
            [(v, self._read[key]) for key, v in self._variables.items()]
        )
        with (
            tf.name_scope(f"loss_{unit}"),
            scope,
            _tape(_differentiable(outputs)) as tape,
        ):
            y_pred = self._pack(outputs, [unit])
            if unit == 0:
                losses.check(self._model, y, y_pred)
            loss = compute_loss.call(
                self._model.compute_loss, x, y, y_pred, sample_weight
            )
            if self._executor.reduction == "mean":
                loss *= self._cut.share(unit, loss.dtype)
            loss = self._model.optimizer.scale_loss(loss)
        self._begin(_gradients(tape, loss, _differentiable(outputs)))

    def _whole_loss(self, begins_backward):
        """The loss of the batch, and its gradients with respect to weights.

        These are of what does not come through outputs: regularization.
        """
        # As in Keras: a loss that calls layers again finds it, and changes it.
        self._assign_state()
        outputs = self._outputs(self._units)
        weights = self._model.trainable_weights
        sources = _differentiable(outputs) if begins_backward else {}
        with tf.name_scope("loss"), _tape(sources) as tape:
            tape.watch([weight.value for weight in weights])
            y_pred = self._pack(outputs, self._units)
            x, y, sample_weight = self._whole
            loss = compute_loss.call(
                self._model.compute_loss, x, y, y_pred, sample_weight
            )
            scaled = self._model.optimizer.scale_loss(loss)
        for weight in weights:
            sources["loss", id(weight)] = weight.value
        found = _gradients(tape, scaled, sources)
        for weight in weights:
            key = "loss", id(weight)
            self._gradients[key] = found.pop(key)
        self._begin(found)
        return y_pred, loss

    def _assign_state(self):
        """Assigns what the state of layers is after the batch."""
        for key, value in {**self._state, **self._averages}.items():
            if value is not self._read[key]:
                # On the device of its handle, as `following` has it.
                self._variables[key].assign(value)

    def _begin(self, gradients):
        for key, gradient in gradients.items():
            if gradient is not None:
                self._cotangents[key].append(gradient)

    def _outputs(self, units):
        """(key, unit) -> tensor, of the model's outputs and their logits."""
        keys = dict.fromkeys(self._executor.outputs)
        return {
            (k, unit): self._values[k, unit]
            for key in keys
            for k in (key, ("logits", key))
            for unit in units
            if (k, unit) in self._values
        }

    def _pack(self, outputs, units):
        """Outputs of micro-batches in the structure of the model's outputs."""

        def join(key):
            parts = [
                self._cut.counted(outputs[key, unit], unit) for unit in units
            ]
            return parts[0] if len(parts) == 1 else tf.concat(parts, 0)

        flat = []
        for key in self._executor.outputs:
            output = join(key)
            if (("logits", key), units[0]) in outputs:
                private_keras.set_logits(output, join(("logits", key)))
            flat.append(output)
        return private_keras.pack_outputs(self._model, flat)

    def _part_of_batch(self, unit):
        with tf.device(self._stages[-1].device):
            part = self._cut.part(self._whole, unit)
            return self._cut.counted(part, unit)


def in_turn(schedule, replicas):
    """The tasks of a schedule in an order in which none waits for a later one.

    Args:
      schedule: A `PipelineSchedule`.
      replicas: Of each stage, which take micro-batches in turn.

    Yields:
      (task, before): a `StageTask` and the one that its replica of the stage
      does before it, or None.
    """
    done, last = set(), {}
    waiting = [collections.deque(tasks) for tasks in schedule.stages]
    while any(waiting):
        for tasks in waiting:
            while tasks and done.issuperset(
                schedules.inputs(tasks[0], schedule.num_stages)
            ):
                task = tasks.popleft()
                done.add(task)
                replica = task.stage, task.unit % replicas[task.stage]
                yield task, last.get(replica)
                last[replica] = task


def _tape(sources):
    """A tape for gradients with respect to a dict of tensors."""
    tape = tf.GradientTape(watch_accessed_variables=False)
    with tape:
        tape.watch(list(sources.values()))
    return tape


def _differentiable(tensors):
    return {k: t for k, t in tensors.items() if stages.has_gradient(t.dtype)}


def _gradients(tape, targets, sources, cotangents=None):
    """Key -> gradient with respect to each of a dict of tensors, or None."""
    found = tape.gradient(targets, list(sources.values()), cotangents)
    return dict(zip(sources, found, strict=True))


def _run(stage, tensors, weights, state, tape, device, is_repeated=False):
    """Runs a stage; returns a dict of its outputs, and its state after."""
    with tape or contextlib.nullcontext():
        outputs, after = stage.run(
            tensors, weights, state, device=device, is_repeated=is_repeated
        )
    found = dict(zip(stage.outputs, outputs, strict=True))
    for key, output in list(found.items()):
        logits = private_keras.logits_of(output)
        if logits is not None:
            found["logits", key] = logits
    return found, after


def _sum(gradients):
    """The sum of those that are not None; None if all are."""
    known = [gradient for gradient in gradients if gradient is not None]
    if len(known) < 2:
        return known[0] if known else None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in known):
        return tf.IndexedSlices(
            tf.concat([gradient.values for gradient in known], 0),
            tf.concat([gradient.indices for gradient in known], 0),
            known[0].dense_shape,
        )
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in known])
