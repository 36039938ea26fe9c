"""Push requests: what one exchange sends to one server, and how."""

import dataclasses

import tensorflow as tf

from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.exchange import rows
from tfdist.runtime.variables import server_scope as section_lib
from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role


@dataclasses.dataclass
class PushRequest:
    """Request to one server; its tensors are on that server.

    Attributes:
      shard: Number of the server.
      replays: List of `Replay`.
      sent: List of all tensors sent.
      sizes: List of their bytes, ints or scalar tensors.
      pulled: The version of the server at this worker's last pull, scalar.
      ahead: Steps of this worker before this one that were not exchanged
        (gradient accumulation), scalar; None without an optimizer.
      tables: Maps ordinals to tables of which only rows may change, and the
        version at which they were pulled.
      extra: What else was asked to be sent, a list.
      number: Of the exchange, where it leaves a mark, else None.
      copies: What gradients were computed from, where that is needed: a dict
        of gradient (position, or pair of positions) to position.
      finite: Whether all that is pushed is finite, to all servers, a scalar
        bool; None if nobody has looked.
      weight: Position of how much the gradients count among those of an
        update, a scalar; None if all count the same.
      settings: The worker-local variables that are sent with the gradients,
        a dict of `ref()` to position.
      section: The `ServerScope` to be built.
      arrived: Time at which all was there, seconds, scalar float64.
    """

    shard: int
    replays: list
    sent: list
    sizes: list
    pulled: tf.Tensor
    ahead: tf.Tensor | None
    tables: dict
    extra: list
    number: tf.Tensor | None
    copies: dict
    finite: tf.Tensor | None
    weight: int | None
    settings: dict
    section: section_lib.ServerScope
    arrived: tf.Tensor

    @property
    def place(self):
        """The place of the batch in the data, see `PortionProgress`."""
        return self.extra[-1] if self.extra else None


class Sender:
    """Sends the records of one exchange, with what they need on servers.

    Args:
      store: The `ParameterStore`.
      graph: The graph to build in.
      records: List of `Update` and `Mutation`, in the order of the program.
      settings: Worker-local variables that are sent with the gradients.
      frozen: Ordinals of step counters that are not to be read afresh.
      lifter: The `Lifter` of the graph.
      weight: How much these gradients count among those of an update, a
        scalar tensor; None if all count the same.
      is_at_once: Whether a server does all that a step has recorded together
        with the step's own update, before it counts that. Else rows of tables
        take what depends on state (a learning rate that follows a schedule),
        and assignments what depends on step counters, as this worker has
        computed it.
    """

    def __init__(
        self,
        store,
        graph,
        records,
        *,
        settings,
        frozen,
        lifter,
        weight,
        is_at_once,
    ):
        self._store = store
        self._graph = graph
        self._records = records
        self._settings = settings
        self._frozen = frozen
        self._lifter = lifter
        self._weight = weight
        self._is_at_once = is_at_once

    def send(self, shard, *, begun, ahead, finite, number, extra, enclosed):
        """Sends to a server what it needs.

        Args:
          shard: Number of the server.
          begun: Operations that come before.
          ahead: See `PushRequest`; None without an optimizer.
          finite: See `PushRequest`.
          number: See `PushRequest`.
          extra: More tensors, a list.
          enclosed: Callable of the replays and the `SendBuffer` that adds what
            is sent beside gradients; returns `PushRequest.copies`.

        Returns:
          A `PushRequest`.
        """
        store = self._store
        records = [
            r for r in self._records if shard in records_lib.shards_of(r, store)
        ]
        buffer = section_lib.SendBuffer()
        replays = [
            records_lib.prepare(
                record,
                piece,
                live=self._live(record, shard),
                lifter=self._lifter,
                buffer=buffer,
            )
            for record in records
            for piece in records_lib.pieces_on(shard, record.variable)
        ]
        # Nothing is applied before all has arrived, and so before this
        # worker has noted that it has begun.
        with tf.control_dependencies(begun):
            with tf.device(store.worker_device):
                pulled = tf.identity(store.pulled_version(shard))
        pulled = buffer.add(pulled)
        tables = self._tables(records, buffer)
        if ahead is not None:
            ahead = buffer.add(ahead)
        settings = {
            v.ref(): buffer.add(read_replica(v)) for v in self._settings
        }
        extra = [buffer.add(tensor) for tensor in extra]
        if finite is not None:
            # As a number it travels with others.
            finite = buffer.add(tf.cast(finite, tf.int64))
        number = None if number is None else buffer.add(number)
        copies = enclosed(replays, buffer)
        weight = None if self._weight is None else buffer.add(self._weight)
        sent = transfer.move(
            buffer.tensors,
            source=store.worker_device,
            target=store.devices[shard],
        )
        section = section_lib.ServerScope(store, shard, self._graph)
        for reference, position in settings.items():
            section.local_values[reference] = sent[position]
        with tf.control_dependencies([t.op for t in sent]):
            arrived = section.now()
        if finite is not None:
            with tf.device(store.devices[shard]):
                finite = tf.cast(sent[finite], tf.bool)
        return PushRequest(
            shard=shard,
            replays=replays,
            sent=sent,
            sizes=[transfer.num_bytes(t) for t in buffer.tensors],
            pulled=sent[pulled],
            ahead=None if ahead is None else sent[ahead],
            tables={
                ordinal: (table, sent[position])
                for ordinal, (table, position) in tables.items()
            },
            extra=[sent[position] for position in extra],
            number=None if number is None else sent[number],
            copies=copies,
            finite=finite,
            weight=weight,
            settings=settings,
            section=section,
            arrived=arrived,
        )

    def _live(self, record, shard):
        """Variables that the value of `record` reads afresh on `shard`."""
        if record.variable.role is Role.TABLE and not self._is_at_once:
            return frozenset()
        live = self._store.live_on(shard) - self._frozen
        if isinstance(record, records_lib.Mutation):
            if not (self._is_at_once or record.variable.made_by_optimizer):
                live = live - self._store.counters()
            live = live | {record.variable.ordinal}
            if record.variable.pieces:
                # An average of a split parameter: rows depend on rows alone.
                live = live | {
                    v.ordinal
                    for v in self._store.variables
                    if v.pieces == record.variable.pieces
                }
        return live

    def _tables(self, records, buffer):
        """Tables of which only rows may change; when they were pulled."""
        return {
            record.variable.ordinal: (
                record.variable,
                buffer.add(self._store.rows_pulled(record.variable)),
            )
            for record in records
            if isinstance(record, records_lib.Update)
            and rows.is_candidate(record.variable, record.args)
        }
