"""Values of servers, read from all of them at one moment."""

import tensorflow as tf

from tfdist.runtime.corrections import saved_slots
from tfdist.runtime.replicas import consistent_read
from tfdist.runtime.variables import copies
from tfdist.runtime.variables import transfer


class ServerValues:
    """Reads variables, and what corrections keep, from the servers.

    Args:
      store: The `ParameterStore`.
      marks: Its `ExchangeMarkers`.
    """

    def __init__(self, store, marks):
        self._store = store
        self._marks = marks
        self._reader = consistent_read.Reader(store, marks)

    def read(self, variables, corrector):
        """Reads all of it.

        Args:
          variables: List of variables that servers hold.
          corrector: The `Corrector`, for what it keeps there.

        Returns:
          The values of `variables`, a list of NumPy arrays; what
          `saved_slots.on_servers` names, a dict of name to array; and the
          most updates that a server has applied, an int.
        """
        slots = saved_slots.on_servers(self._store, corrector)
        key = (tuple(v.ordinal for v in variables), tuple(slots))
        values, kept, versions = self._reader.read(
            key, lambda: self._build(variables, slots)
        )
        found = {}
        for one, value in zip(slots, kept, strict=True):
            found.setdefault(one.key, []).append(value.numpy())
        return (
            [value.numpy() for value in values],
            saved_slots.joined(slots, found),
            max(int(version) for version in versions),
        )

    def _build(self, variables, slots):
        store = self._store
        locks, held = consistent_read.lock_all(store)
        marks = self._marks.build_all(held)
        values = {v.ordinal: {} for v in variables}
        kept, versions = {}, []
        for shard in range(store.num_shards):
            primary = copies.primary_on(store, shard, variables)
            here = [k for k, one in enumerate(slots) if one.shard == shard]
            device = store.devices[shard]
            with tf.control_dependencies([held]), tf.device(device):
                read = [
                    tf.ensure_shape(
                        tf.raw_ops.ReadVariableOp(
                            resource=store.handle(variable, shard, piece),
                            dtype=variable.dtype,
                        ),
                        variable.shape_of(piece),
                    )
                    for variable, piece in primary
                ]
                read += [slots[k].read() for k in here]
                read.append(store.counter("version", shard).read())
            before = [t.op for t in (*read, *marks[shard : shard + 1])]
            with tf.control_dependencies(before):
                store.unlock(shard, locks[shard])
            *home, version = transfer.move(
                read, source=device, target=store.worker_device
            )
            for (variable, piece), value in zip(primary, home, strict=False):
                values[variable.ordinal][piece.number if piece else 0] = value
            kept.update(zip(here, home[len(primary) :], strict=True))
            versions.append(version)
        with tf.device(store.worker_device):
            whole = [
                tf.concat([found[k] for k in sorted(found)], 0)
                if len(found) > 1
                else found[0]
                for found in values.values()
            ]
            marks = [tf.identity(mark) for mark in marks]
        return marks, (whole, [kept[k] for k in sorted(kept)], versions)
