"""A training step whose optimizers act on this worker's own weights.

Everything that Keras does in a step it does to the replicas, as on one
machine. Where an optimizer counts its step, an exchange follows if it is due.
"""

import dataclasses
import weakref

import tensorflow as tf

from tfdist import function_graphs
from tfdist import fused_kernels
from tfdist import one_replica
from tfdist import private_keras_variables
from tfdist.runtime.variables.variables import Role


@dataclasses.dataclass
class _End:
    """The end of an optimizer's step, see `Local.after_step`."""

    clock: object
    optimizer: object
    parameters: list
    states: list
    points: dict
    gradients: dict


class LocalStep:
    """Follows one call of `strategy.run` while it is traced.

    Args:
      local: The `Local`.
      arguments: What the step was called with; the first axis of its first
        tensor tells how many examples it has.
      evaluates: Whether it is a step of an evaluation or prediction. Unless
        an optimizer counts a step in it, what it assigns is put back.
    """

    is_local = True
    is_eager = False
    # Steps of optimizers that may have been dropped.
    num_updates = 0
    accumulates = False
    may_be_repeated = False
    # Whether an optimizer counts a step, or one that only accumulates.
    is_training = False

    def __init__(self, local, arguments, evaluates=False):
        self._local = local
        self._evaluates = evaluates
        # By ordinal, variables of an evaluation, and their values before.
        self._before = {}
        self._root = tf.compat.v1.get_default_graph()
        self._first = len(self._root.get_operations())
        self._examples = _num_examples(arguments)
        # Since the last exchange in this trace, by ordinal.
        self._touched = {}
        self._states = {}
        # Ordinals of all state that was assigned.
        self._noted = set()
        # Parameters that code of the user's assigns, and those that
        # optimizers do: others of the first are exchanged as state.
        self._assigned = {}
        self._trained = set()
        self._points = {}
        self._gradients = {}
        self._expected = 0
        self._optimizer = None
        self._trains = False
        # What follows on optimizers' steps, in the order of these.
        self._ends = []

    def reduced(self, tensors):
        """Takes note of gradients that an optimizer is about to apply.

        Args:
          tensors: List of tensors, as handed to the optimizer.
        """
        self._expected = len(tensors)

    def update(self, variable, fn, args, kwargs):
        """Does `fn(variable, *args, **kwargs)` here."""
        optimizer = fused_kernels.optimizer_of(fn)
        if optimizer is not None and variable.role is Role.PARAMETER:
            self._optimizer = optimizer
            self._touched[variable.ordinal] = variable
            if self._local.needs_points:
                self._note_point(variable)
        if self._expected and args:
            self._expected -= 1
            if self._local.needs_gradients:
                self._gradients[variable.ordinal] = args[0]
        fused_kernels.update(variable, fn, args, kwargs)

    def _note_point(self, variable):
        """Keeps the weights at which the step's gradients are computed."""
        if variable.ordinal not in self._points:
            self._points[variable.ordinal] = variable.read_value()

    def before_mutation(self, variable):
        """Called before a variable is assigned in the user's code."""
        if self._evaluates and variable.ordinal not in self._before:
            with self._outside():
                value = variable.read_value()
            self._before[variable.ordinal] = variable, value

    def _outside(self):
        """Scope of the step, outside of its branches and functions."""
        return self._root.as_default()

    def assigned(self, variable):
        """Called after a variable was assigned in the user's code."""
        if not self._evaluates:
            variable.num_assignments += 1
        if variable.role is Role.STATE:
            self._states[variable.ordinal] = variable
            self._noted.add(variable.ordinal)
            if tf.compat.v1.get_default_graph() is not self._root:
                within = self._local.assigned_within
                within[variable.ordinal] = weakref.ref(variable)
        if variable.role is Role.PARAMETER:
            self._parameter_assigned(variable)
        if variable.role is Role.CLOCK:
            self.is_training = True
            if self._touched:
                self._end(variable)

    def _parameter_assigned(self, variable):
        if private_keras_variables.optimizer_under_way() is None:
            self._assigned[variable.ordinal] = variable
        elif one_replica.is_overwritten_with_gradient(variable):
            # It has no update, and is averaged as statistics are.
            self._states[variable.ordinal] = variable
        # While it accumulates, an optimizer still has constraints met.

    def _end(self, clock):
        """An optimizer has counted its step."""
        self._trains = True
        self._trained |= self._touched.keys()
        self._note_within()
        end = _End(
            clock,
            self._optimizer,
            list(self._touched.values()),
            list(self._states.values()),
            self._points,
            self._gradients,
        )
        if tf.compat.v1.get_default_graph() is self._root:
            self._ends.append(end)
        else:
            # In a branch, which may not be taken.
            end.states += self._take_state().values()
            self._follow(end)
        self._touched, self._states = {}, {}
        self._points, self._gradients = {}, {}
        self._optimizer = None

    def _follow(self, end):
        for state in end.states:
            state.assigned_by_workers = True
        self._local.after_step(
            end.clock,
            end.optimizer,
            end.parameters,
            states=end.states,
            points=end.points,
            gradients=end.gradients,
            examples=self._examples,
        )

    def finish(self):
        """Called when the user's step function has ended.

        What the model's variables hold depends on what the step is for.
        """
        if self._evaluates and not self.is_training:
            # The replicas hold what the servers gave last, from which the
            # next exchange measures what this worker has done.
            for variable, value in self._before.values():
                variable.assign_replica(value)
            self._show_before()
            return
        for variable, _ in self._before.values():
            variable.num_assignments += 1
        self._note_within()
        self._states |= self._take_state()
        for ordinal in self._assigned.keys() - self._trained:
            variable = self._assigned[ordinal]
            how = one_replica.how_to_freeze(
                variable, "it is averaged, as statistics are"
            )
            raise ValueError(
                f"Variable {variable.name!r} is trainable, and a step assigns "
                "it without an optimizer that trains it. With local steps it "
                f"would not be exchanged. If nothing trains it, {how}."
            )
        if self._states:
            if not self._ends:
                raise ValueError(
                    f"{sorted(v.name for v in self._states.values())} are "
                    "assigned in a step that no optimizer takes, or after one "
                    "that is taken in a branch. With local steps nothing "
                    "would be exchanged: assign them eagerly, or before the "
                    "optimizer's step."
                )
            self._ends[-1].states += self._states.values()
        for end in self._ends:
            end.states = self._states_of(end)
            self._follow(end)
        self._show_before()

    def _note_within(self):
        """Takes note of state of functions that were traced in other steps."""
        references = self._local.assigned_within.items()
        found = [
            reference()
            for ordinal, reference in references
            if ordinal not in self._noted
        ]
        new = [variable for variable in found if variable is not None]
        # What a branch calls is in the graph of that.
        graph, first = tf.compat.v1.get_default_graph(), 0
        while new and graph is not None:
            if graph is self._root:
                first = self._first
            are_assigned = function_graphs.assigned_by_functions(
                graph, [variable.local_handle for variable in new], first
            )
            for variable, is_assigned in zip(new, are_assigned, strict=True):
                if is_assigned and variable.ordinal not in self._noted:
                    self.assigned(variable)
            if graph is self._root:
                break
            graph = getattr(graph, "outer_graph", None)

    def _states_of(self, end):
        """Returns all that is assigned around steps of an optimizer, each once.

        Args:
          end: The `_End` of one of them.
        """
        found = {
            variable.ordinal: variable
            for other in self._ends
            if other.clock is end.clock
            for variable in other.states
        }
        return list(found.values())

    def _take_state(self):
        """Takes assigned parameters that nothing trains for state.

        Such as a teacher's weights, which are averaged as statistics are.

        Returns:
          A dict of variables by ordinal.
        """
        found = {
            ordinal: variable
            for ordinal, variable in self._assigned.items()
            if ordinal not in self._trained
            and not one_replica.is_trainable(variable)
        }
        for ordinal in found:
            del self._assigned[ordinal]
        return found

    def _show_before(self):
        self._local.before_step(self._root, self._first, own=self._trains)


def _num_examples(arguments):
    for tensor in tf.nest.flatten(arguments):
        if isinstance(tensor, tf.RaggedTensor):
            return tf.cast(tensor.nrows(), tf.int64)
        if isinstance(tensor, tf.SparseTensor):
            return tensor.dense_shape[0]
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank:
            return tf.shape(tensor, out_type=tf.int64)[0]
    return tf.ones([], tf.int64)
