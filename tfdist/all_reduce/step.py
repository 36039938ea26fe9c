"""One training step: which lanes it has, and which state it assigns."""

import contextlib

import keras
import tensorflow as tf

from tfdist import compiled_parts
from tfdist import function_graphs
from tfdist import missing_gradients
from tfdist import one_replica
from tfdist import own_random_numbers
from tfdist import private_keras
from tfdist import private_tensorflow
from tfdist.all_reduce import rows
from tfdist.all_reduce.variables import WorkerVariable
from tfdist.all_reduce.variables import plain
from tfdist.program_error import ProgramError


class TrainingStep:
    """A training step that is being traced, or that runs eagerly.

    Args:
      engine: The `Engine`.
      trains: Whether it is a training step even without an optimizer.
      common_seed: That of `tf.random` on all workers, or None; see
        `own_random_numbers.seeded`.

    Attributes:
      lanes: List of `Lane`, in the order of the step.
      together: An `ExitStack` that ends with the step: Ctrl-C does not take
        effect between its first lane, where all workers meet, and its end.
    """

    def __init__(self, engine, trains, common_seed):
        self._engine = engine
        self._trains = trains
        # Where each worker makes an update of its own, it draws for itself.
        self._common_seed = common_seed if engine.updates_alike else None
        self._graph = tf.compat.v1.get_default_graph()
        self._eagerly = tf.executing_eagerly()
        # Shared state assigned since the last lane, and its values before.
        self._assigned = {}
        # What functions may assign that were traced in an earlier step, and its
        # values before; and the number of operations that were there then.
        self._within, self._num_operations = [], 0
        # Ids of variables that were used under a `tf.GradientTape`, each with
        # the graph that was being built.
        self._under_tape = set()
        # Whether it has assigned such a weight, and so may wait for others.
        self._has_trained = False
        self.lanes = []
        self.together = contextlib.ExitStack()
        self._read_within()

    def _read_within(self):
        """Reads what functions may assign from here on."""
        if self._eagerly or not self._engine.assigned_within:
            return
        with self._graph.as_default():
            references = self._engine.assigned_within.values()
            found = [reference() for reference in references]
            self._within = [
                (variable, variable.read_value())
                for variable in found
                if variable is not None
            ]
        self._num_operations = len(self._graph.get_operations())

    def _note_within(self):
        """Takes note of what functions have assigned."""
        new = [one for one in self._within if id(one[0]) not in self._assigned]
        if not new:
            return
        are_assigned = function_graphs.assigned_by_functions(
            self._graph,
            [variable.handle for variable, _ in new],
            self._num_operations,
        )
        for (variable, before), is_assigned in zip(
            new, are_assigned, strict=True
        ):
            if is_assigned:
                self._assigned[id(variable)] = variable, before

    def note(self, variable):
        """Called before code that is no optimizer's assigns a variable.

        All get the mean of what they assign, be it a trained weight.
        """
        if variable.is_rate:
            return
        if self._eagerly and not tf.executing_eagerly():
            if not self._engine.reduces_state:
                return
            raise ProgramError(
                f"Variable {variable.name!r} is assigned inside a tf.function "
                "that a step calls which runs eagerly (run_eagerly=True, or "
                "strategy.run outside a tf.function): others would hear of "
                "that while it is traced alone. Call it without tf.function, "
                "or trace the whole step."
            )
        if not self._has_trained:
            self._has_trained = self._is_trained(variable)
        if id(variable) in self._assigned:
            return
        if self._eagerly:
            before = variable.read_value()
        else:
            # Also from within a branch or a function of the step.
            with self._graph.as_default():
                before = variable.read_value()
            if tf.compat.v1.get_default_graph() is not self._graph:
                self._engine.note_traced(variable)
        self._assigned[id(variable)] = variable, before

    def note_under_tape(self, variable):
        """Called when a variable is used under a `tf.GradientTape`."""
        graph = tf.compat.v1.get_default_graph()
        self._under_tape.add((id(variable), graph))

    def _is_trained(self, variable):
        """Whether a variable was used under a tape where it is assigned.

        If that was within a function, it does not tell: another worker may
        have traced the function before.
        """
        graph = tf.compat.v1.get_default_graph()
        while graph is not None:
            if (id(variable), graph) in self._under_tape:
                return one_replica.is_trainable(variable)
            graph = getattr(graph, "outer_graph", None)
        return False

    def apply(self, optimizer, grads, variables, by_pairs=False):
        """Takes the step of an optimizer, in the place of Keras's `apply`.

        Args:
          optimizer: The Keras optimizer.
          grads: As of `apply`.
          variables: The same.
          by_pairs: See `optimizers.apply`.
        """
        if private_tensorflow.is_in_branch(self._graph):
            raise NotImplementedError(
                f"Optimizer {optimizer.name!r} takes a step inside tf.cond or "
                "tf.while_loop, which not all workers may reach: call it in "
                "each step, such as with gradients of zero."
            )
        if variables is None and not optimizer.built:
            raise ValueError(
                f"Optimizer {optimizer.name!r} must already be built to get "
                "gradients without variables. Call "
                "`optimizer.build(trainable_variables)` in `strategy.scope()` "
                "before the first step, or pass the variables."
            )
        with compiled_parts.outside():
            variables = list(variables or private_keras.trained_by(optimizer))
            if not optimizer.built:
                with keras.name_scope(optimizer.name):
                    optimizer.build(variables)
            pairs = [
                (self._as_it_travels(gradient, variable), variable)
                for gradient, variable in zip(grads, variables, strict=True)
                if gradient is not None
            ]
            missing_gradients.refuse_or_warn(grads, variables)
            for _, variable in pairs:
                _check_made_here(variable)
            self._add_lane(
                optimizer,
                [v for _, v in pairs],
                [g for g, _ in pairs],
                by_pairs,
            )

    def _as_it_travels(self, gradient, variable):
        travels_as_rows = (
            not self._eagerly
            and self._engine.takes_rows
            and rows.are_worth_it(gradient, plain(variable))
        )
        return gradient if travels_as_rows else tf.convert_to_tensor(gradient)

    def _add_lane(self, optimizer, variables, gradients, by_pairs=False):
        if not self.lanes:
            self.together.enter_context(self._engine.meeting())
        self._note_within()
        # In one order, wherever each was assigned.
        assigned = sorted(
            self._assigned.values(), key=lambda one: one[0].place or 0
        )
        self._assigned.clear()
        states = [state for state, _ in assigned]
        lane = self._engine.lane_of(
            optimizer,
            variables,
            states,
            [isinstance(one, tf.IndexedSlices) for one in gradients],
            by_pairs,
        )
        # A step that trains without an optimizer is one all the same.
        counts = optimizer is not None or not self.lanes
        self.lanes.append(lane)
        with own_random_numbers.seeded(self._common_seed):
            lane.step(gradients, assigned, counts)
        self._read_within()

    def finish(self):
        """Called when the user's step has returned.

        Without a step of an optimizer or a gradient it may be one that samples
        or evaluates, for which a worker that takes it alone must not wait.
        """
        self._note_within()
        assigned = [variable for variable, _ in self._assigned.values()]
        if not assigned:
            return
        if not self._engine.reduces_state:
            if self._trains or self.lanes:
                self._engine.check_state(list(self._assigned.values()))
        elif self._trains or self.lanes or self._has_trained:
            with compiled_parts.outside():
                self._add_lane(None, [], [])
        else:
            self._engine.warn_of_own_state(assigned)


def _check_made_here(variable):
    if not isinstance(plain(variable), WorkerVariable):
        raise ValueError(
            f"Variable {variable.name!r} was created outside "
            "strategy.scope(): create the model inside."
        )
