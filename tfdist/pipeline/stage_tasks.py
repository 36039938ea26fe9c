"""The forward and backward tasks of stages that update one by one."""

import contextlib
import dataclasses

import keras
import tensorflow as tf

from tfdist import private_keras
from tfdist.pipeline import flow as flow_lib
from tfdist.pipeline import losses
from tfdist.pipeline import prediction
from tfdist.pipeline import stashing
from tfdist.pipeline import updates


class StageTasks:
    """The tasks of all stages; see `flow.Flow` for what they hand on.

    Args:
      model: A compiled Keras model whose optimizer is built.
      stages: Its `stages.Stage`s.
      rule: A `stashing.Rule`.
      reduction: "mean" or "sum": how a batch's loss is made of those of its
        units.

    Attributes:
      flow: Their `flow.Flow`.
      specs: Of what they hand on, see `flow.Flow.specs`; None before `adapt`.
    """

    def __init__(self, model, stages, rule, reduction="mean"):
        self.model = model
        self.stages = stages
        self.rule = rule
        self.flow = flow_lib.Flow(model, stages, rule.stashes)
        self.specs = None
        self._mean = reduction == "mean"
        self._functions = {}

    def unit(self, x, y, sample_weight, count, share):
        """A unit that has just come in.

        Args:
          x: The model's inputs, a list of tensors.
          y: A structure of tensors, or None.
          sample_weight: The same.
          count: How many of its examples count, an integer.
          share: Which part of the examples of one update they are.
        """
        self._unpacked = (y, sample_weight)
        targets = keras.tree.flatten(self._unpacked)
        unit = {
            ("count",): [tf.cast(count, tf.int64)],
            ("share",): [tf.cast(share, tf.float64)],
            ("targets",): [t for t in targets if t is not None],
        }
        for key, tensor in zip(self.flow.inputs, x, strict=True):
            unit["value", key] = [tensor]
        return unit

    def adapt(self, unit):
        """Gets ready for units like this one, and no others."""
        self.specs = self.flow.specs(unit)

    def memory(self, stage):
        """The `Memory` of a stage that begins, or begins again."""
        weights = _read(self.stages[stage].weights)
        sums, examples = [], []
        if self.rule.accumulates:
            sums = [tf.zeros_like(weight) for weight in weights]
            examples = [tf.constant(0, tf.int64)]
        return stashing.Memory(
            tf.convert_to_tensor(self.model.optimizer.iterations.value),
            [list(weights) for _ in range(self.rule.kept(stage))],
            sums,
            examples,
        )

    def do(self, kind, stage, unit, number, memory):
        """One task, if its unit has examples.

        Args:
          kind: "forward" or "backward". The last stage does both at once, as
            its forward.
          stage: Its number.
          unit: A dict, to which what the task makes is added.
          number: The unit's in its batch.
          memory: The stage's `Memory`.

        Returns:
          The stage's `Memory` after it, and an operation that runs when all
          that it makes is there (None when executing eagerly).
        """
        last = stage == len(self.stages) - 1
        with tf.device(self.stages[stage].device):
            if kind == "forward" and not last:
                return memory, _end(self._forward(stage, unit, number, memory))
            memory = self._backward(stage, unit, number, memory)
            if self.rule.accumulates and number == self.rule.batch_units - 1:
                memory = self._update_by_sums(stage, memory)
            made = [
                tensor
                for name in self.flow.sent(stage, self.specs)
                for tensor in unit[name]
            ]
            return memory, _end([*made, *memory.flat()])

    def _forward(self, index, unit, number, memory):
        """Adds what a forward makes to its unit; returns a list of it."""
        stage = self.stages[index]
        given = self._given("forward", index, unit, number, memory)
        given["updates",] = [memory.updates]

        def run(given):
            weights = self._predicted("forward", index, given)
            inputs = [given["value", key][0] for key in stage.inputs]
            state = given["state", index]
            outputs, after = stage.run(inputs, weights, state, is_repeated=True)
            _assign(stage.state, state, after)
            return self.flow.given(index, outputs)

        names = [("value", key) for key in self.flow.gives[index]]
        results = self._if_any(("forward", index), run, given, names)
        for name, result in zip(names, results, strict=True):
            unit[name] = [result]
        unit["state", index] = given["state", index]
        if self.rule.stashes:
            unit["weights", index] = given["weights", index]
        return results

    def _backward(self, index, unit, number, memory):
        """The memory after a backward, which adds gradients to its unit."""
        last = index == len(self.stages) - 1
        kind = "forward" if last else "backward"
        given = self._given(kind, index, unit, number, memory)
        given["updates",] = [memory.updates]
        given["memory",] = memory.flat()
        task = self._turn_round if last else self._backpropagate
        names = self.flow.sent(index, self.specs)

        def run(given):
            weights = self._predicted(kind, index, given)
            watched = [given["value", name[1]][0] for name in names]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*watched, *weights])
                targets, gradients = task(index, given, weights)
            sources = [*watched, *weights]
            found = [None] * len(sources)
            if targets and sources:
                found = tape.gradient(targets, sources, gradients)
            sent = [
                tf.zeros_like(w) if g is None else tf.convert_to_tensor(g)
                for w, g in zip(watched, found, strict=False)
            ]
            after = self._after(
                index,
                found[len(names) :],
                given["count",][0],
                memory.like(given["memory",]),
            )
            return [*sent, *after.flat()]

        results = self._if_any(
            ("backward", index),
            run,
            given,
            names,
            self._passed_by(index, memory).flat(),
        )
        for name, result in zip(names, results, strict=False):
            unit[name] = [result]
        return memory.like(results[len(names) :])

    def _given(self, kind, index, unit, number, memory):
        """Returns the tensors a task reads: of its unit, weights, state."""
        names = self.flow.reads(kind, index, self.specs)
        given = {name: unit[name] for name in names}
        back = self.rule.back(kind, index, number)
        stage = self.stages[index]
        given.setdefault(
            ("weights", index),
            memory.history[back - 1] if back else _read(stage.weights),
        )
        given.setdefault(("state", index), _read(stage.state))
        return given

    def _backpropagate(self, index, given, weights):
        """Runs a stage again; returns targets and their gradients."""
        stage = self.stages[index]
        inputs = [given["value", key][0] for key in stage.inputs]
        outputs, _ = stage.run(inputs, weights, given["state", index])
        targets, gradients = [], []
        outputs = self.flow.given(index, outputs)
        for key, output in zip(self.flow.gives[index], outputs, strict=True):
            arriving = self.flow.arriving(key, self.specs)
            if arriving:
                targets.append(output)
                gradients.append(tf.add_n([given[n][0] for n in arriving]))
        penalty = _penalty(stage.weights, weights)
        if penalty is not None:
            targets.append(penalty)
            gradients.append(tf.cast(given["share",][0], penalty.dtype))
        return targets, gradients

    def _turn_round(self, index, given, weights):
        """Runs the last stage and the loss, which needs no gradient."""
        stage, model = self.stages[index], self.model
        values = {key: given["value", key][0] for key in self.flow.takes[index]}
        state = given["state", index]
        outputs, after = stage.run(
            [values[key] for key in stage.inputs], weights, state
        )
        _assign(stage.state, state, after)
        values.update(zip(stage.outputs, outputs, strict=True))
        y_pred = private_keras.pack_outputs(
            model, [_with_logits(values, key) for key in self.flow.outputs]
        )
        targets = iter(given["targets",])
        y, sample_weight = keras.tree.map_structure(
            lambda t: None if t is None else next(targets), self._unpacked
        )
        if self.rule.accumulates:
            losses.check(model, y, y_pred)
        count, share = given["count",][0], given["share",][0]
        of_batch = losses.shown_of_batch(model, count, share)
        with contextlib.nullcontext() if self._mean else of_batch:
            loss, penalties = losses.compute_of_outputs(
                model, y, y_pred, sample_weight
            )
        share = tf.cast(share, loss.dtype)
        shown = loss
        if not self._mean:
            # Weighted with examples, such values have the batch's sum as mean.
            fixed = tf.add_n([tf.zeros_like(loss), *penalties])
            shown = (loss - fixed) / share + fixed
        tracker = private_keras.loss_tracker(model)
        tracker.update_state(shown, sample_weight=count)
        model.compute_metrics(None, y, y_pred, sample_weight)
        # Of a mean over the examples of an update this is the unit's part.
        targets = [loss * share if self._mean else loss]
        penalty = _penalty(stage.weights, weights)
        if penalty is not None:
            targets.append(penalty * tf.cast(share, penalty.dtype))
        return targets, None

    def _after(self, index, gradients, count, memory):
        """The memory after the gradients of a unit of `count` examples."""
        if not self.rule.accumulates:
            return self._update(index, gradients, memory)
        sums = [
            total if g is None else total + g
            for total, g in zip(memory.sums, gradients, strict=True)
        ]
        examples = [memory.examples[0] + count]
        return dataclasses.replace(memory, sums=sums, examples=examples)

    def _update_by_sums(self, index, memory):
        """The memory after a batch, whose sums are now the gradients."""
        results = cond(
            memory.examples[0] > 0,
            lambda: self._update(index, memory.sums, memory).flat(),
            memory.flat(),
        )
        return memory.like(results)

    def _update(self, index, gradients, memory):
        """Updates a stage's weights; returns the memory after that."""
        stage = self.stages[index]
        optimizer = self.model.optimizer
        history = self._shifted(index, memory)
        updates.apply(optimizer, gradients, stage.weights, memory.updates)
        if index == 0:
            # Each update comes to the first stage last.
            optimizer.iterations.value.assign_add(1)
        return stashing.Memory(
            memory.updates + 1,
            history,
            [tf.zeros_like(total) for total in memory.sums],
            [tf.zeros_like(examples) for examples in memory.examples],
        )

    def _passed_by(self, index, memory):
        """The memory after a unit without examples."""
        if not self.rule.vertical_sync:
            return memory
        # Versions are counted by units, in all stages alike.
        history = self._shifted(index, memory)
        return dataclasses.replace(memory, history=history)

    def _shifted(self, index, memory):
        """The history of a stage, whose weights of now are the newest in it."""
        if not memory.history:
            return []
        return [_read(self.stages[index].weights), *memory.history[:-1]]

    def _predicted(self, kind, index, given):
        ahead = self.rule.ahead(kind, index)
        if not ahead:
            return given["weights", index]
        return prediction.predict(
            self.model.optimizer,
            self.stages[index].weights,
            ahead,
            given["updates",][0],
        )

    def _if_any(self, key, run, given, names, otherwise=()):
        """The results of a task, if its unit has examples.

        Args:
          key: The kind and the stage of the task.
          run: A function of a dict such as `given`, that returns a tensor for
            each of the `names`, and then such as `otherwise`.
          given: A dict from names to lists of tensors.
          names: Of what is of no use if the unit has none.
          otherwise: Tensors to be returned if the unit has none.

        Returns:
          A list of tensors.
        """
        specs = [self.specs[name][0] for name in names]
        flat = [tensor for tensors in given.values() for tensor in tensors]

        def run_flat(*flat):
            flat = iter(flat)
            # A function does not know of the device that it is called on.
            with tf.device(self.stages[key[1]].device):
                return run(
                    {
                        name: [next(flat) for _ in tensors]
                        for name, tensors in given.items()
                    }
                )

        function = run_flat
        if not tf.executing_eagerly():
            if key not in self._functions:
                signature = [
                    spec
                    for name, tensors in given.items()
                    for spec in self.specs.get(name, map(_spec, tensors))
                ]
                self._functions[key] = tf.function(
                    run_flat, input_signature=signature, autograph=False
                )
            function = self._functions[key]
        results = cond(
            has_examples(given),
            lambda: function(*flat),
            otherwise,
            lambda: [_nothing(spec) for spec in specs],
        )
        if not tf.executing_eagerly():
            for result, spec in zip(results, specs, strict=False):
                result.set_shape(spec.shape)
        return results


def has_examples(unit):
    """Whether a unit is there and has examples, a bool tensor []."""
    with tf.device("CPU:0"):
        return unit["count",][0] > 0


def cond(predicate, run, otherwise, nothing=list):
    """Returns what `run` returns if the predicate is true.

    Args:
      predicate: A bool tensor [].
      run: A function that returns a list of tensors, those of `otherwise`
        last.
      otherwise: Tensors to be returned in their place if it is false.
      nothing: A function that returns what stands before these then.

    Returns:
      A list of tensors.
    """
    otherwise = list(otherwise)
    if not tf.executing_eagerly():
        results = tf.cond(
            predicate,
            lambda: [tf.identity(t) for t in run()],
            lambda: [*nothing(), *map(tf.identity, otherwise)],
        )
    else:
        results = run() if predicate else [*nothing(), *otherwise]
    for result, before in zip(
        results[len(results) - len(otherwise) :], otherwise, strict=True
    ):
        if not tf.executing_eagerly():
            result.set_shape(before.shape)
    return results


def _end(tensors):
    """Builds an operation that runs when all the tensors are there."""
    with tf.control_dependencies(tensors):
        return tf.no_op("end")


def _read(variables):
    return [tf.convert_to_tensor(v.value) for v in variables]


def _assign(variables, before, after):
    for variable, old, new in zip(variables, before, after, strict=True):
        if new is not old:
            variable.value.assign(new)


def _with_logits(values, key):
    """An output, which knows the logits that it was made of elsewhere."""
    if ("logits", key) not in values:
        return values[key]
    output = tf.identity(values[key])
    private_keras.set_logits(output, values["logits", key])
    return output


def _spec(tensor):
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _nothing(spec):
    shape = [size or 0 for size in spec.shape]
    return tf.zeros(shape, spec.dtype)


def _penalty(variables, weights):
    """The sum of the regularizers of weights, None if there is none."""
    found = [
        variable.regularizer(weight)
        for variable, weight in zip(variables, weights, strict=True)
        if getattr(variable, "regularizer", None) is not None
    ]
    return tf.add_n(found) if found else None
