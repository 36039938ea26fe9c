"""Shadow weights: a worker's own values, or those that servers gave last."""

import dataclasses
import weakref

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.variables.server_scope import read_replica


@dataclasses.dataclass(frozen=True)
class _Group:
    """Variables whose replicas are swapped with their shadows together.

    A function that was traced before others were known swaps these alone.

    Attributes:
      references: List of weak references to variables.
      shows_own: Whether the replicas hold own values, a worker's bool.
    """

    references: list
    shows_own: object

    @property
    def variables(self):
        """Those that are there, a list."""
        found = [reference() for reference in self.references]
        return [variable for variable in found if variable is not None]


class ShadowWeights:
    """Replicas, and their shadows with the other one of the two values.

    Args:
      store: The `ParameterStore`.
    """

    def __init__(self, store):
        self._store = store
        self._groups = []
        # By ordinal.
        self._shadows = {}

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        for ordinal in ordinals:
            self._shadows.pop(ordinal, None)
        self._groups = [one for one in self._groups if one.variables]

    def has_shadow(self, variable):
        """Whether a variable has one."""
        return variable.ordinal in self._shadows

    def any_own(self):
        """Whether replicas hold own values now."""
        return any(bool(one.shows_own.numpy()) for one in self._groups)

    def shadow(self, variable):
        """Handle of the other one of own value and anchor."""
        if variable.ordinal not in self._shadows:
            self._shadows[variable.ordinal] = self._store.worker_variable(
                lambda: read_replica(variable), "shadow"
            )
        return self._shadows[variable.ordinal]

    def show_before(self, variables, graph, first, own):
        """Builds: the replicas hold what a step needs, before all of it.

        Only when a step has been traced is it known whether it trains.

        Args:
          variables: All that have a shadow, a list.
          graph: The graph of the step.
          first: Number of its operations before it.
          own: Whether it needs this worker's own weights.
        """
        faces = self._groups_of(variables)
        touched = [v for one in faces for v in one.variables]
        touched += [self.shadow(v) for v in touched]
        touched += [one.shows_own for one in faces]
        handles = {id(v.local_handle) for v in touched}
        inputs = {
            id(inner) for outer, inner in graph.captures if id(outer) in handles
        }
        operations = graph.get_operations()
        using = [
            number
            for number, operation in enumerate(operations)
            if any(id(tensor) in inputs for tensor in operation.inputs)
        ]
        # Another step in the same function comes before.
        earlier = [operations[k] for k in using if k < first]
        with graph.as_default(), tf.control_dependencies(None):
            with tf.control_dependencies(earlier):
                self.show(variables, own)
        swap = graph.get_operations()[len(operations) :]
        for operation in swap:
            private_tensorflow.run_independently(operation)
        for number in using:
            if number >= first:
                private_tensorflow.add_control_inputs(operations[number], swap)

    def _groups_of(self, variables):
        """A `_Group` for all that came to be known together, a list."""
        known = {v.ordinal for one in self._groups for v in one.variables}
        new = [v for v in variables if v.ordinal not in known]
        if new:
            shows_own = self._store.worker_variable(False, "shows_own")
            references = [weakref.ref(v) for v in new]
            self._groups.append(_Group(references, shows_own))
        return list(self._groups)

    def show(self, variables, own):
        """Builds: the replicas hold own values, or the anchors.

        Args:
          variables: All that have a shadow, a list.
          own: Which of the two.
        """
        for group in self._groups_of(variables):
            self._swap(group, own)

    def _swap(self, group, own):
        pairs = [(v, self.shadow(v)) for v in group.variables]

        def swap():
            for variable, shadow in pairs:
                here, there = read_replica(variable), read_replica(shadow)
                with tf.control_dependencies([here.op, there.op]):
                    assign(variable.local_handle, there)
                    assign(shadow.local_handle, here)
            group.shows_own.assign(own, read_value=False)
            return True

        # Not noted as a variable of a step that may outlive the group.
        is_shown = tf.equal(read_replica(group.shows_own), own)
        tf.cond(is_shown, lambda: True, swap)
