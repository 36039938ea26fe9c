"""Slots of a staleness correction, as part of a saved state.

On servers by server and piece, in a saved state whole; with as many workers
as there are.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tfdist.runtime.coordination import ledger as ledger_lib
from tfdist.runtime.corrections.slots import dtype_of
from tfdist.runtime.corrections.slots import name_of
from tfdist.runtime.variables.variables import Role

ON_SERVERS = "correction/"
ON_WORKER = "own_correction/"


@dataclasses.dataclass(frozen=True)
class Slot:
    """One slot of a variable, or of a piece of it, on one server.

    Attributes:
      key: Its name in a saved state: of the optimizer's step counter, of the
        variable, of the slot.
      shard: The server.
      piece: The `Piece`, or None.
      slots: The `ServerSlots` that it is one of, and `name` its name there.
      name: See `slots`.
      axis: Along which slots of pieces are put together; None where all are
        the same.
    """

    key: str
    shard: int
    piece: object
    slots: object = dataclasses.field(compare=False)
    name: str
    axis: int | None

    def read(self):
        """Builds the reading, in the server's scope."""
        return self.slots.read(self.name)


def on_servers(store, corrector):
    """All slots that servers hold, a list of `Slot`."""
    if not corrector.is_on_servers:
        return []
    found = []
    for ordinal, ledger in sorted(corrector.ledgers.items()):
        variable = store.variables[ordinal]
        for shard, piece in store.copies_of(variable):
            slots = corrector.slots(ledger, shard, variable, piece)
            found += [
                Slot(
                    f"{ON_SERVERS}{ledger.name}/{ordinal}/{name}",
                    shard,
                    piece,
                    slots,
                    name,
                    _axis(corrector, variable, piece, name),
                )
                for name in slots.names
            ]
    return found


def joined(slots, found):
    """Slots as they are saved: whole.

    Args:
      slots: List of `Slot`.
      found: By key, the arrays of the pieces, in the order of `slots`.

    Returns:
      A dict of key to array.
    """
    whole = {}
    for one in slots:
        pieces = found[one.key]
        if one.axis is None or len(pieces) == 1:
            whole[one.key] = pieces[0]
        elif one.key not in whole:
            whole[one.key] = np.concatenate(pieces, one.axis)
    return whole


def _axis(corrector, variable, piece, name):
    """The axis along which a slot is split as its variable is, or None."""
    if piece is None:
        return None
    whole = corrector.shapes(variable, None)[name]
    part = corrector.shapes(variable, piece)[name]
    for axis, (one, other) in enumerate(zip(whole, part, strict=True)):
        if one != other:
            return axis
    return None


def write(store, corrector, variables, saved, num_workers):
    """Puts the saved slots of variables onto their servers.

    Under the names under which the optimizers look for them when they take
    their first steps.

    Args:
      store: The `ParameterStore`.
      corrector: The `Corrector`.
      variables: List of `ReplicaVariable`.
      saved: A `SavedState`.
      num_workers: Number of workers here.
    """
    if not corrector.is_on_servers:
        return
    placed, values = [], []
    for variable in variables:
        for counter, slots in _saved_of(variable, saved).items():
            slots = corrector.correction.for_workers(slots, num_workers)
            for shard, piece in store.copies_of(variable):
                prefix = name_of(
                    corrector.correction, variable, piece, num_workers
                )
                for name, value in slots.items():
                    axis = _axis(corrector, variable, piece, name)
                    if axis is not None:
                        rows = range(piece.first, piece.first + piece.rows)
                        value = np.take(value, rows, axis)
                    placed.append((shard, f"{counter}/{prefix}/{name}"))
                    values.append(tf.constant(value, dtype_of(variable)))
    if not values:
        return

    def build(values):
        for shard in range(store.num_shards):
            with tf.device(store.devices[shard]):
                here = [
                    (name, tf.identity(value))
                    for (holder, name), value in zip(
                        placed, values, strict=True
                    )
                    if holder == shard
                ]
            with tf.control_dependencies([value.op for _, value in here]):
                lock = store.lock(shard)
            with tf.control_dependencies([lock.op]):
                with tf.device(store.devices[shard]):
                    done = [
                        tf.raw_ops.AssignVariableOp(
                            resource=store.resource(
                                shard,
                                f"ledger/{name}",
                                value.dtype,
                                value.shape,
                            ),
                            value=value,
                        )
                        for name, value in here
                    ]
            with tf.control_dependencies(done):
                store.unlock(shard, lock)

    tf.function(build, autograph=False)(values)


def _saved_of(variable, saved):
    """Returns a variable's saved slots: by step counter, by name, arrays."""
    found = {}
    for key, value in saved.arrays.items():
        if key.startswith(ON_SERVERS):
            _, counter, ordinal, name = key.split("/", 3)
            # The first that an optimizer has is what it begins with.
            counter = counter.split(ledger_lib.LATER)[0]
            if int(ordinal) == variable.ordinal:
                found.setdefault(counter, {})[name] = value
    return found


def prepare(runtime, variables, saved):
    """Makes slots on servers for optimizers that have taken no step here yet.

    Args:
      runtime: The `Runtime`.
      variables: List of `ReplicaVariable`, step counters among them.
      saved: A `SavedState`, whose slots tell what each optimizer trains.
    """
    corrector = runtime.corrector
    known, trained = corrector.ledgers, {}
    for variable in variables:
        if variable.role is Role.PARAMETER and variable.ordinal not in known:
            for counter in _saved_of(variable, saved):
                trained.setdefault(int(counter), []).append(variable)
    for counter in variables:
        if counter.ordinal in trained:
            ledger = runtime.coordination.prepare(counter)
            corrector.prepare(ledger, trained[counter.ordinal])


def of_worker(corrector):
    """Returns a correction's slots on this worker, a dict of key to array."""
    return {
        key: variable.numpy()
        for key, variable in corrector.own_variables().items()
    }


def put_on_worker(corrector, arrays):
    """Puts back what a correction keeps on this worker already."""
    for key, variable in corrector.own_variables().items():
        if key in arrays:
            variable.assign_replica(tf.constant(arrays[key], variable.dtype))
