"""Records of a step's changes to variables on servers, and their replay."""

import dataclasses

from absl import logging
import keras
import tensorflow as tf

from tfdist import fused_kernels
from tfdist import one_replica
from tfdist.runtime.exchange import table_gradients
from tfdist.runtime.variables import server_scope
from tfdist.runtime.variables.variables import Role


@dataclasses.dataclass
class Update:
    """`strategy.extended.update(variable, fn, args, kwargs)`."""

    variable: object
    fn: object
    args: tuple
    kwargs: dict
    # Whether `args` are gradients that an optimizer applies.
    is_gradient: bool = False
    # The replica before the user's code changed it, or None.
    before: object = None


MOVE = "move"
"""Kind of a `Mutation` that does again what made `value` of `before`."""


@dataclasses.dataclass
class Mutation:
    """`variable.<kind>(value)` in the user's code, or `MOVE`."""

    variable: object
    kind: str
    value: object
    before: object = None
    # The `Plan` to compute the value of the newest one, also where it was made
    # before an optimizer's step; None where the `Lifter` says.
    plan: object = None
    is_gradient = False


@dataclasses.dataclass
class Replay:
    """One record, ready to be done to one variable or piece on one server.

    Attributes:
      record: The `Update` or `Mutation`.
      piece: The `Piece`, or None.
      run: Callable of the list of tensors sent and the `ServerScope`.
      arguments: What is sent and averaged where gradients are: a list of
        positions in the send buffer, or pairs of positions (values, indices)
        for `tf.IndexedSlices`.
      settings: The same of what is taken of one worker even there.
      gradient: The one of `arguments` that is a gradient, or None.
    """

    record: object
    piece: object
    run: object
    arguments: list
    settings: list
    gradient: object = None


def _add_to(variable, change):
    variable.assign_add(change, read_value=False)


def as_change(record):
    """The change that an assignment has made on the worker, an `Update`."""
    changed = (record.value - record.before,)
    return Update(record.variable, _add_to, changed, {}, before=record.before)


def is_assigned(record):
    """Whether the user's code assigns a parameter."""
    return isinstance(record, Mutation) and (
        record.variable.role is Role.PARAMETER
    )


def is_projected_teacher(record):
    """Whether it is of a parameter that no optimizer trains, with a plan.

    It may come before or after the updates of others.
    """
    has_plan = isinstance(record, Mutation) and record.plan is not None
    return has_plan and not one_replica.is_trainable(record.variable)


def _is_of_state(record):
    """Whether it assigns what no optimizer trains, and has no plan."""
    is_new_value = record.kind == "assign" and record.plan is None
    return is_new_value and record.variable.role is Role.STATE


def _moved(record, resolve):
    """The newest value with the same difference added, for a `MOVE`.

    From or to infinity there is none, and the new value takes the place.
    """
    take_value, take_before = (
        resolve(tensor, lift=False) for tensor in (record.value, record.before)
    )

    def take(sent, section):
        value, before = take_value(sent, section), take_before(sent, section)
        newest = tf.convert_to_tensor(record.variable)
        moved = newest + (value - before)
        # `abs`, as complex numbers are neither finite nor not.
        return tf.where(tf.math.is_finite(tf.abs(moved)), moved, value)

    return take


def pieces_on(shard, variable):
    """The pieces of `variable` on a server; `[None]` if it is whole."""
    if not variable.pieces:
        return [None]
    return [piece for piece in variable.pieces if piece.shard == shard]


def beside_gradients(recorded):
    """Returns what comes with gradients and other updates, such as a rate.

    Args:
      recorded: List of `Update` and `Mutation`.

    Returns:
      A list of tensors and other values, each once.
    """
    found = {}
    for record in recorded:
        values = tf.nest.flatten(getattr(record, "args", ()))
        others = values[1:] if record.is_gradient else values
        found.update({id(value): value for value in others})
    return list(found.values())


def local_scalars_of(optimizer, others=()):
    """The worker's own scalars of an optimizer, such as its learning rate.

    Args:
      optimizer: The Keras optimizer.
      others: More values, variables among them: a rate that is a function may
        return one that is none of the optimizer's.
    """
    found = [*optimizer.variables, *others]
    values = [v.value if isinstance(v, keras.Variable) else v for v in found]
    return [
        value
        for value in {id(value): value for value in values}.values()
        if getattr(value, "role", None) is Role.LOCAL and not value.shape.rank
    ]


def shards_of(record, store):
    """The servers that `record` concerns."""
    variable = record.variable
    if variable.role is Role.STATE and variable.shape.num_elements() == 1:
        return range(store.num_shards)
    return homes_of(variable)


def homes_of(variable):
    """The servers on which a `ReplicaVariable` lies, in one piece or more."""
    if variable.pieces:
        return [piece.shard for piece in variable.pieces]
    return [variable.shard]


def prepare(record, piece, *, live, lifter, buffer):
    """Puts into `buffer` what `record` needs on a server.

    Args:
      record: An `Update` or a `Mutation`.
      piece: The `Piece` of its variable, or None.
      live: Ordinals of the variables that are read afresh there.
      lifter: The `Lifter` of the graph.
      buffer: The `SendBuffer` to the server.

    Returns:
      A `Replay`.
    """
    resolve = server_scope.Resolver(
        lifter, live, buffer, record.variable, piece
    )
    if isinstance(record, Mutation):
        if record.kind == MOVE or (
            _is_of_state(record)
            and lifter.loses(record.value, record.variable, live)
        ):
            take = _moved(record, resolve)
            record = dataclasses.replace(record, kind="assign")
        elif record.plan is None:
            take = resolve(record.value)
        else:
            take = resolve.planned(record.plan)

        def mutate(sent, section):
            value = take(sent, section)
            kwargs = {}
            if not record.kind.startswith("scatter"):
                kwargs["read_value"] = False
            getattr(record.variable, record.kind)(value, **kwargs)

        arguments, settings = _sorted_out(resolve, lifter, buffer)
        return Replay(record, piece, mutate, arguments, settings)
    gradient = None
    args = []
    for argument in tf.nest.flatten(record.args):
        # An optimizer may hand over more, such as its learning rate.
        is_gradient = record.is_gradient and gradient is None
        num_plain = len(resolve.plain)
        args.append(resolve(argument, lift=not is_gradient))
        is_plain = len(resolve.plain) > num_plain
        if is_gradient:
            (gradient,) = resolve.plain
        elif record.is_gradient and is_plain:
            if lifter.is_of_counter(argument, live):
                _warn_of_own_count()
    kwargs = [resolve(a) for a in tf.nest.flatten(record.kwargs)]

    def update(sent, section):
        given = tf.nest.pack_sequence_as(
            record.args, [take(sent, section) for take in args]
        )
        if record.variable.role is Role.TABLE:
            table_gradients.apply(record, piece, given, section)
            return
        fused_kernels.update(
            record.variable,
            record.fn,
            given,
            tf.nest.pack_sequence_as(
                record.kwargs, [take(sent, section) for take in kwargs]
            ),
            shape=record.variable.shape_of(piece),
        )

    return Replay(
        record, piece, update, resolve.plain, resolve.inputs, gradient
    )


def _sorted_out(resolve, lifter, buffer):
    """Returns `arguments` and `settings` of the `Replay` of a `Mutation`.

    What an optimizer makes of gradients, such as their size, is averaged; rows
    that are set, and what a mean is no value of, are not.
    """
    arguments, settings = [], []
    for position in (*resolve.plain, *resolve.inputs):
        if isinstance(position, tuple):
            settings.append(position)
            continue
        tensor = buffer.tensors[position]
        if tensor.op.type == "Const":
            continue
        is_number = tensor.dtype.is_floating or tensor.dtype.is_complex
        has_mean = is_number and tensor.shape.is_fully_defined()
        if has_mean and not lifter.is_own(tensor):
            arguments.append(position)
        else:
            settings.append(position)
    return arguments, settings


def _warn_of_own_count():
    logging.log_first_n(
        logging.WARNING,
        "An optimizer's learning rate is computed from its number of updates "
        "by operations that servers cannot repeat, such as a look-up in a "
        "tf.Variable or a tf.py_function. Each worker sends the rate of the "
        "number that it has pulled, which leaves out later updates of others. "
        "Use a schedule of tf or keras.ops operations on numbers and constant "
        "tensors.",
        1,
    )
