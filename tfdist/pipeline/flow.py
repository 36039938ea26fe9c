"""Tensors that pass between the tasks of one unit, and where they wait."""

import tensorflow as tf

from tfdist import private_keras
from tfdist.pipeline import stages as stages_lib


class Flow:
    """The tasks of a unit, and the names of what they hand on.

    A unit is a dict from a name to a list of tensors. Names are tuples:
    ("value", key) of a tensor between stages, ("gradient", key, stage) of
    what its consumer `stage` adds to its gradient, ("weights", stage) and
    ("state", stage) of what a forward has used, ("targets",) for the loss,
    ("count",) of the examples, an int64 tensor [], and ("share",) of the
    examples of one update, float64 [].

    A tensor's key may be ("logits", key): of the logits that an output was made
    of (`private_keras.logits_of`), if it is not the last stage's.

    Args:
      model: A built sequential or functional Keras model.
      stages: Its `stages.Stage`s.
      stashes: Whether weights are kept from a forward to its backward.

    Attributes:
      inputs: Keys of the model's inputs.
      outputs: Keys of the model's outputs.
      gives: For each stage the keys of the tensors that it gives to others.
        `specs` adds those of logits to these and to `takes`.
      takes: For each stage the keys of the tensors that it is given: its
        inputs, and for the last one then what the loss needs of earlier ones.
    """

    def __init__(self, model, stages, stashes):
        self.stages = stages
        self._stashes = stashes
        _, self.inputs, self.outputs = stages_lib.calls_of(model)
        self._last = len(stages) - 1
        self._made = {key for stage in stages for key in stage.outputs}
        own = {*stages[-1].inputs, *stages[-1].outputs}
        self.gives = [list(stage.outputs) for stage in stages]
        self.takes = [list(stage.inputs) for stage in stages]
        self.takes[-1] += [
            key for key in dict.fromkeys(self.outputs) if key not in own
        ]

    def start(self, kind, stage):
        """The half-tick of a unit at which a task begins, an int."""
        if kind == "forward":
            return stage
        return 2 * len(self.stages) - 1 - stage

    def specs(self, unit):
        """Returns the specs of the tensors of units of any number of examples.

        Args:
          unit: One that has just come in.

        Returns:
          A dict from each name to a list of `tf.TensorSpec`s.
        """

        def any_size(tensor):
            return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

        values = self._values(
            [any_size(unit["value", key][0]) for key in self.inputs]
        )
        specs = {
            ("count",): [tf.TensorSpec([], tf.int64)],
            ("share",): [tf.TensorSpec([], tf.float64)],
            ("targets",): [any_size(t) for t in unit["targets",]],
        }
        for key, spec in values.items():
            specs["value", key] = [spec]
        for stage in self.stages:
            for key in self.takes[stage.index]:
                differentiable = stages_lib.has_gradient(values[key].dtype)
                if key in self._made and differentiable:
                    specs["gradient", key, stage.index] = [values[key]]
            specs["weights", stage.index] = _specs(stage.weights)
            specs["state", stage.index] = _specs(stage.state)
        return specs

    def given(self, stage, outputs):
        """Tensors of a stage's outputs, in the order of `gives`."""
        found = dict(zip(self.stages[stage].outputs, outputs, strict=True))
        for key, output in list(found.items()):
            found["logits", key] = private_keras.logits_of(output)
        return [found[key] for key in self.gives[stage]]

    def sent(self, stage, specs):
        """Names of the gradients that a stage's backward hands on."""
        names = [("gradient", key, stage) for key in self.takes[stage]]
        return [name for name in names if name in specs]

    def arriving(self, key, specs):
        """Names of the parts of which a tensor's gradient is the sum."""
        names = [("gradient", key, stage.index) for stage in self.stages]
        return [name for name in names if name in specs]

    def reads(self, kind, stage, specs):
        """Names of what a task needs. The last stage's is one, "forward"."""
        names = [("count",), ("share",)]
        names += [("value", key) for key in self.takes[stage]]
        if stage == self._last:
            return [*names, ("targets",)]
        if kind == "backward":
            names.append(("state", stage))
            if self._stashes:
                names.append(("weights", stage))
            for key in self.gives[stage]:
                names += self.arriving(key, specs)
        return names

    def writes(self, kind, stage, specs):
        """Names of what a task makes."""
        if stage == self._last or kind == "backward":
            return self.sent(stage, specs)
        names = [("value", key) for key in self.gives[stage]]
        names.append(("state", stage))
        if self._stashes:
            names.append(("weights", stage))
        return names

    def waiting(self, specs, age):
        """Returns the tensors of a unit that wait for the next step.

        Args:
          specs: See `specs`.
          age: How many ticks the unit has been through, from 1.

        Returns:
          A dict from a name to the device of the next task that needs it.
        """
        made = {("count",), ("share",), ("targets",)}
        made.update(("value", key) for key in self.inputs)
        needed = {}
        tasks = [
            (self.start(kind, stage.index), kind, stage)
            for stage in self.stages
            for kind in ("forward", "backward")
            if kind == "forward" or stage.index < self._last
        ]
        for start, kind, stage in sorted(tasks, key=lambda task: task[0]):
            if start < 2 * age:
                made.update(self.writes(kind, stage.index, specs))
            else:
                for name in self.reads(kind, stage.index, specs):
                    needed.setdefault(name, stage.device)
        return {name: needed[name] for name in needed if name in made}

    def _values(self, inputs):
        """A dict from the key of each tensor between stages to its spec."""
        keys = []

        def forward(*tensors):
            values = dict(zip(self.inputs, tensors, strict=True))
            for stage in self.stages:
                outputs, _ = stage.run(
                    [values[key] for key in stage.inputs],
                    [tf.convert_to_tensor(v.value) for v in stage.weights],
                    [tf.convert_to_tensor(v.value) for v in stage.state],
                )
                self._add_logits(stage, outputs)
                made = self.given(stage.index, outputs)
                values.update(zip(self.gives[stage.index], made, strict=True))
            keys.extend(values)
            return list(values.values())

        with tf.init_scope():
            function = tf.function(forward, autograph=False)
            outputs = function.get_concrete_function(*inputs).outputs
        return {
            key: tf.TensorSpec(tensor.shape, tensor.dtype)
            for key, tensor in zip(keys, outputs, strict=True)
        }

    def _add_logits(self, stage, outputs):
        """Adds logits of a stage's outputs of the model to what it gives."""
        if stage.index == self._last:
            return
        for key, output in zip(stage.outputs, outputs, strict=True):
            has_logits = private_keras.logits_of(output) is not None
            if has_logits and key in self.outputs:
                self.gives[stage.index].append(("logits", key))
                self.takes[-1].append(("logits", key))
                self._made.add(("logits", key))


def _specs(variables):
    return [tf.TensorSpec(v.shape, v.value.dtype) for v in variables]
