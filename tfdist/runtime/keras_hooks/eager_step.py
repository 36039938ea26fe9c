"""Training steps that run eagerly, as with `run_eagerly=True`.

The user's code runs line by line, in a debugger if need be. What it does to
variables on servers is recorded as by a traced step; where that would build an
exchange, a function is called that is one, with the recorded tensors as its
arguments. It is traced once for steps that record the same.
"""

import collections
import contextlib
import functools
import inspect
import itertools

import numpy as np
import tensorflow as tf

from tfdist import fused_kernels
from tfdist import model_optimizers
from tfdist.program_error import ProgramError
from tfdist.runtime.exchange import records
from tfdist.runtime.exchange import step as step_lib
from tfdist.runtime.keras_hooks import step_variables
from tfdist.runtime.local_steps import local_step
from tfdist.runtime.variables.variables import ReplicaVariable
from tfdist.runtime.variables.variables import Role

# What is traced is kept for as many kinds of exchanges.
_MOST_FUNCTIONS = 16
_TENSORS = (tf.Tensor, np.ndarray, np.generic)
# What stands in a structure where these were.
_TENSOR, _SLICES, _SLICES_OF_SHAPE = object(), object(), object()


class EagerSteps:
    """Makes the steps of one strategy.

    Args:
      runtime: The `Runtime`.

    Attributes:
      variables: The `StepVariables`.
    """

    def __init__(self, runtime):
        self._runtime = runtime
        self._functions = _Functions()
        runtime.store.traced.add(self._functions)
        self.variables = step_variables.StepVariables()
        # Code of steps that optimizers take.
        self._training = set()

    def note_training(self, function):
        """Takes note of a function, traced or not, in which optimizers step."""
        self._training.add(_code_of(function))

    def begin(self, function, arguments, evaluates):
        """The step that calls `function`, an `EagerStep` or the like.

        Args:
          function: What `strategy.run` has got.
          arguments: What it is called with.
          evaluates: Whether it is a step of an evaluation or prediction.
        """
        self._runtime.commit()
        if not self._runtime.local.keeps_own_values:
            if not evaluates:
                self._runtime.state.look_ahead()
            return EagerStep(self._runtime, self._functions)
        return EagerLocalStep(
            self._runtime,
            arguments,
            self._functions,
            trains=_code_of(function) in self._training,
            evaluates=evaluates,
        )


class EagerStep(step_lib.Step):
    """Records one call of `strategy.run` that runs eagerly.

    What a value was made of is not known: instead of the new value of a
    variable its change is sent, or workers would undo each other's.

    Args:
      runtime: The `Runtime`.
      functions: A `_Functions`.
    """

    is_eager = True

    def __init__(self, runtime, functions):
        super().__init__(runtime)
        self._functions = functions

    def _here(self):
        _check_is_eager()
        return super()._here()

    def reduced(self, tensors):
        """Takes note of gradients that an optimizer is about to apply.

        Args:
          tensors: List of tensors, as handed to the optimizer.
        """
        self._here().expected = len(tensors)

    def update(self, variable, fn, args, kwargs):
        """Records `fn(variable, *args, **kwargs)` for the server."""
        super().update(variable, fn, args, kwargs)
        if fused_kernels.optimizer_of(fn) is None and self._here().records:
            # Averaged weights that Keras puts in place: what follows is to
            # see them.
            self._flush(self._root)

    def before_mutation(self, variable):
        """Called before a variable is assigned in the user's code."""
        self._here()
        _commit(self._runtime, variable)

    def record_mutation(self, variable, kind, value, before):
        """Records `variable.<kind>(value)` for the server.

        Args:
          variable: A `ReplicaVariable`.
          kind: Name of the method.
          value: Its argument.
          before: The value of the replica before.
        """
        if kind != "assign" or variable.role is Role.ITERATIONS:
            super().record_mutation(variable, kind, value, before)
            return
        value = tf.convert_to_tensor(value, dtype=variable.dtype)
        if variable.role is Role.STATE:
            # It alone may begin with infinity; this sends twice the bytes.
            super().record_mutation(variable, records.MOVE, value, before)
            return
        super().record_mutation(variable, "assign_add", value - before, before)

    def exchange(self, graph, recorded, optimizer, barriers, settled):
        """Exchanges what was recorded; see `Step.exchange`."""
        pushed, ticketed = _Pushed(recorded), frozenset(self._ticketed)
        settled = None if settled is None else 0

        def build(*tensors):
            step = step_lib.Step(self._runtime, ticketed)
            step.exchange(
                tf.compat.v1.get_default_graph(),
                pushed.filled(iter(tensors)),
                optimizer,
                set(),
                settled,
            )

        # Unlike an address, it is never that of another optimizer.
        number = step_lib.step_counter(optimizer).ordinal if optimizer else None
        settings = model_optimizers.settings_of(optimizer)
        key = (pushed.key, number, settings, ticketed, settled)
        tensors, pushed.tensors = pushed.tensors, None
        self._functions.call(key, build, tensors, pushed.specs)


class EagerLocalStep(local_step.LocalStep):
    """Follows one call of `strategy.run` that runs eagerly.

    Args:
      runtime: The `Runtime`.
      arguments: See `LocalStep`.
      functions: A `_Functions`.
      trains: Whether it trains, and needs this worker's own weights, as far as
        is known from earlier steps with the same code.
      evaluates: See `LocalStep`.
    """

    is_eager = True

    def __init__(self, runtime, arguments, functions, *, trains, evaluates):
        super().__init__(runtime.local, _as_tensors(arguments), evaluates)
        self._runtime = runtime
        self._functions = functions
        # Number of variables that there were when own weights were shown.
        self._shown = 0
        resumes = not evaluates and runtime.state.resume_own_weights()
        if resumes or trains:
            self._show_own()
        elif evaluates:
            self._local.show_anchor()

    def _show_own(self):
        # The step may make a variable when it has changed others.
        number = len(self._runtime.store.variables)
        if number != self._shown:
            self._shown = number
            self._local.show_own()

    def update(self, variable, fn, args, kwargs):
        """Does `fn(variable, *args, **kwargs)` here."""
        _check_is_eager()
        self._local.check_eager()
        self._show_own()
        super().update(variable, fn, args, kwargs)

    def before_mutation(self, variable):
        """Called before a variable is assigned in the user's code."""
        _check_is_eager()
        _commit(self._runtime, variable)
        if self._evaluates:
            super().before_mutation(variable)
        else:
            self._show_own()

    def _outside(self):
        return contextlib.nullcontext()

    def _show_before(self):
        """Does nothing: it was done before the step, or within it."""

    def _follow(self, end):
        of_tensors = _Leaves([end.points, end.gradients])
        examples = tf.convert_to_tensor(self._examples, tf.int64)
        follow = functools.partial(
            self._local.after_step,
            end.clock,
            end.optimizer,
            end.parameters,
            states=end.states,
        )

        def build(examples, *tensors):
            points, gradients = of_tensors.filled(iter(tensors))
            follow(points=points, gradients=gradients, examples=examples)

        tensors, of_tensors.tensors = of_tensors.tensors, None
        key = (
            end.clock.ordinal,
            tuple(v.ordinal for v in end.parameters + end.states),
            tuple(end.points),
            tuple(end.gradients),
            of_tensors.key,
        )
        self._functions.call(
            key,
            build,
            [examples, *tensors],
            [tf.TensorSpec([], tf.int64), *of_tensors.specs],
            # What is asked for then refreshes the replicas.
            tracing=self._local.own_values_kept,
        )


def _code_of(function):
    """Code of a function: functions that are made of it again have the same.

    It keeps no model alive, as what is bound to a function would.
    """
    if isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", function)


def _as_tensors(arguments):
    """Converts the NumPy arrays among Keras's arguments to tensors."""
    return [
        tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
        for leaf in tf.nest.flatten(arguments)
    ]


def _check_is_eager():
    if not tf.executing_eagerly():
        raise ProgramError(
            "A step that runs eagerly (run_eagerly=True, or strategy.run "
            "outside a tf.function) must do by itself what it does to "
            "variables. It is done inside a tf.function that the step calls: "
            "call it without, or trace the whole step."
        )


def _commit(runtime, variable):
    """Brings a new variable to the servers before a step changes it."""
    if variable.ordinal >= runtime.committed:
        runtime.commit()


class _Functions:
    """Functions that were traced, the last that were called."""

    def __init__(self):
        self._functions = collections.OrderedDict()

    def call(
        self,
        key,
        build,
        tensors,
        specs,
        tracing=contextlib.nullcontext,
    ):
        """Calls what `build` builds from `tensors`.

        Args:
          key: Hashable that stands for it.
          build: Callable of tensors.
          tensors: List of tensors.
          specs: List of their `tf.TensorSpec`.
          tracing: Callable that gives a scope to trace in.
        """
        key = (key, tuple(specs))
        if key not in self._functions:
            function = tf.function(
                build, input_signature=specs, autograph=False
            )
            with tracing():
                self._functions[key] = function.get_concrete_function()
        self._functions.move_to_end(key)
        while len(self._functions) > _MOST_FUNCTIONS:
            self._functions.popitem(last=False)
        self._functions[key](*tensors)

    def forget(self):
        """Forgets all; what is called again is traced again."""
        self._functions.clear()


class _Leaves:
    """A structure whose tensors are arguments of a function.

    Args:
      structure: Nested structure.

    Attributes:
      tensors: List of its tensors.
      specs: List of their `tf.TensorSpec`.
      key: Hashable that stands for all but the values of tensors.
    """

    def __init__(self, structure):
        self.tensors, self.specs, key = [], [], []
        blank = []
        for leaf in tf.nest.flatten(structure):
            place, known = leaf, id(leaf)
            if isinstance(leaf, tf.IndexedSlices):
                place = known = _SLICES_OF_SHAPE
                self._add(leaf.values, [None, *leaf.values.shape[1:]])
                self._add(leaf.indices, [None])
                if leaf.dense_shape is None:
                    place = known = _SLICES
                else:
                    self._add(leaf.dense_shape)
            elif isinstance(leaf, _TENSORS):
                place = known = _TENSOR
                self._add(tf.convert_to_tensor(leaf))
            elif isinstance(leaf, (bool, int, float, str)):
                known = leaf
            elif isinstance(leaf, ReplicaVariable) and leaf.role.is_on_server:
                known = "variable", leaf.ordinal
            blank.append(place)
            key.append(known)
        # Without the tensors, which nobody needs any more.
        self._blank = tf.nest.pack_sequence_as(structure, blank)
        self.key = tuple(key)

    def _add(self, tensor, shape=None):
        shape = tensor.shape if shape is None else shape
        self.tensors.append(tensor)
        self.specs.append(tf.TensorSpec(shape, tensor.dtype))

    def filled(self, tensors):
        """The structure with other tensors.

        Args:
          tensors: Iterator of tensors.
        """

        def fill(place):
            if place is _TENSOR:
                return next(tensors)
            if place is _SLICES:
                return tf.IndexedSlices(next(tensors), next(tensors))
            if place is _SLICES_OF_SHAPE:
                return tf.IndexedSlices(*itertools.islice(tensors, 3))
            return place

        leaves = [fill(place) for place in tf.nest.flatten(self._blank)]
        return tf.nest.pack_sequence_as(self._blank, leaves)


class _Pushed:
    """Records whose tensors are arguments of a function.

    Args:
      recorded: List of `Update` and `Mutation`.

    Attributes:
      tensors: See `_Leaves`, as the others.
      specs: The same.
      key: The same.
    """

    def __init__(self, recorded):
        leaves = [_Leaves(_values_of(record)) for record in recorded]
        self.tensors = [x for one in leaves for x in one.tensors]
        self.specs = [x for one in leaves for x in one.specs]
        self.key = tuple(
            (record.variable.ordinal, _rule(record), one.key)
            for record, one in zip(recorded, leaves, strict=True)
        )
        self._makers = list(zip(map(_maker, recorded), leaves, strict=True))

    def filled(self, tensors):
        """The records with other tensors, a list.

        Args:
          tensors: Iterator of tensors.
        """
        return [make(*leaves.filled(tensors)) for make, leaves in self._makers]


def _values_of(record):
    if isinstance(record, records.Mutation):
        return [record.value, record.before]
    return [record.args, record.kwargs, record.before]


def _maker(record):
    """Returns a function that makes such a record of other values."""
    variable = record.variable
    if isinstance(record, records.Mutation):
        return functools.partial(records.Mutation, variable, record.kind)
    fn, is_gradient = record.fn, record.is_gradient

    def update(args, kwargs, before):
        return records.Update(variable, fn, args, kwargs, is_gradient, before)

    return update


def _rule(record):
    """Returns the key of a record's rule."""
    if isinstance(record, records.Mutation):
        return record.kind
    function = inspect.unwrap(record.fn)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__code__, tuple(map(id, cells)), record.is_gradient
