"""The ticks of a pipeline without flushes, and what is on its way between them.

See `asynchronous` for who does what in a tick.
"""

import functools
import itertools

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.pipeline import stage_tasks
from tfdist.pipeline import staging


class Ticks:
    """Goes through ticks with units of one kind of data.

    Args:
      model: A compiled Keras model whose optimizer is built.
      stages: Its `stages.Stage`s.
      rule: A `stashing.Rule`.
      micro_batches: How many units come in with each step.
      reduction: See `stage_tasks.StageTasks`.

    Attributes:
      tasks: The `stage_tasks.StageTasks`.
      staging: The `staging.Staging` of what is on its way.
    """

    def __init__(self, model, stages, rule, micro_batches, reduction):
        self.stages = stages
        self.tasks = stage_tasks.StageTasks(model, stages, rule, reduction)
        self.staging = staging.Staging()
        self._batch = micro_batches
        with tf.init_scope(), tf.device("CPU:0"):
            self._in_flight = private_tensorflow.hidden_variable(
                tf.zeros([], tf.int64)
            )
            # Nothing of before is remembered, all starts with what is now.
            self._fresh = private_tensorflow.hidden_variable(True)
            self._broken_off = private_tensorflow.hidden_variable(False)
        self._drain = functools.partial(self._go, {}, len(stages) - 1)
        if not model.run_eagerly:
            self._drain = tf.function(self._drain, autograph=False)

    @property
    def in_flight(self):
        """Number of units that are not back at the first stage, an int."""
        return int(self._in_flight.numpy())

    @property
    def on_their_way(self):
        """Number of units that have not come back, a variable."""
        return self._in_flight

    def feed(self, units):
        """Takes in units, a list, and goes one tick for each."""
        if self.tasks.specs is None:
            self.tasks.adapt(units[0])
        self._go(dict(enumerate(units)), len(units))

    def drain(self):
        """Goes on until no unit is in flight. Not within a graph."""
        if self._broken_off.numpy():
            # Some stages have made its updates, some have not.
            logging.warning(
                "A training step has failed. The %d micro-batches that were "
                "in flight before it are given up.",
                self.in_flight,
            )
        elif self._fresh.numpy():
            return
        else:
            self._drain()
        # What the last steps have left here is of no use any more.
        self.staging.clear()
        self._in_flight.assign(0)
        self._broken_off.assign(False)
        self._fresh.assign(True)

    def _go(self, units, ticks):
        """Goes some ticks.

        Args:
          units: A dict from their number in this step to those that come in.
            Those that are on their way have numbers below 0.
          ticks: An int; unit n comes in at tick n.
        """
        depth, units = len(self.stages), dict(units)
        broken_off = self._broken_off.read_value()
        began = self._broken_off.assign(True)
        with tf.control_dependencies(_operations(began)):
            fresh = self._fresh.read_value() | broken_off
            for age in range(1, depth):
                units[-age] = self._load_unit(age, broken_off)
            memories = [self._load_memory(s, fresh) for s in range(depth)]
        done = {}
        for tick, half in itertools.product(range(ticks), range(2)):
            for kind, stage in self._turns:
                start = self.tasks.flow.start(kind, stage)
                number, odd = divmod(2 * tick + half - start, 2)
                if odd or number not in units:
                    continue
                device = self.stages[stage].device
                with tf.control_dependencies(done.get(device, [])):
                    memories[stage], token = self.tasks.do(
                        kind,
                        stage,
                        units[number],
                        number % self._batch,
                        memories[stage],
                    )
                done[device] = [token]
        on_their_way = tf.constant(0, tf.int64)
        for age in range(1, depth):
            unit = units.get(ticks - age)
            if unit is not None:
                self._store_unit(age, unit)
                on_their_way += tf.cast(
                    stage_tasks.has_examples(unit), tf.int64
                )
        for stage, memory in enumerate(memories):
            tensors = memory.flat()
            self.staging.store(
                ("memory", stage),
                tensors,
                _specs(tensors),
                self.stages[stage].device,
            )
        self._in_flight.assign(on_their_way)
        self._fresh.assign(False)
        tokens = [token for tokens in done.values() for token in tokens]
        with tf.control_dependencies(tokens):
            self._broken_off.assign(False)

    @functools.cached_property
    def _turns(self):
        """Pairs of kind and stage, those of one device in order.

        Backward comes before forward, which frees memory.
        """
        stages = range(len(self.stages) - 1, -1, -1)
        turns = itertools.product(("backward", "forward"), stages)
        # What would be the first of them belongs to the last one's forward.
        return list(turns)[1:]

    def _load_unit(self, age, broken_off):
        specs = self.tasks.specs
        unit = {
            name: self.staging.load((age, name), specs[name], device)
            for name, device in self.tasks.flow.waiting(specs, age).items()
        }
        # After a step that has failed the parts of a unit may not fit.
        count = unit["count",][0]
        unit["count",] = [tf.where(broken_off, tf.zeros_like(count), count)]
        return unit

    def _store_unit(self, age, unit):
        specs = self.tasks.specs
        waiting = self.tasks.flow.waiting(specs, age)
        for name, device in waiting.items():
            self.staging.store((age, name), unit[name], specs[name], device)

    def _load_memory(self, stage, fresh):
        device = self.stages[stage].device
        with tf.device(device):
            first = self.tasks.memory(stage)
            tensors = first.flat()
            loaded = self.staging.load(
                ("memory", stage), _specs(tensors), device
            )
            return first.like(stage_tasks.cond(fresh, lambda: tensors, loaded))


def _specs(tensors):
    return [tf.TensorSpec(t.shape, t.dtype) for t in tensors]


def _operations(*results):
    """Returns operations as control dependencies; none when eager."""
    return [] if tf.executing_eagerly() else list(results)
