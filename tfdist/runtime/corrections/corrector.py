"""A correction of late gradients at work in one strategy."""

import functools

import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.correction import Copies
from tfdist.runtime.corrections.no_correction import NoCorrector
from tfdist.runtime.corrections.parameter_correction import ParameterCorrection
from tfdist.runtime.corrections.slots import ServerSlots
from tfdist.runtime.corrections.slots import dtype_of
from tfdist.runtime.corrections.slots import name_of
from tfdist.runtime.corrections.slots import place_of
from tfdist.runtime.corrections.slots import read
from tfdist.runtime.corrections.worker_corrections import WorkerCorrections
from tfdist.runtime.variables import copies as copies_lib
from tfdist.runtime.variables import server_scope
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.variables import Role


class Corrector:
    """Gives a `Correction` what it works on, on servers or on this worker.

    Args:
      store: The `ParameterStore`.
      state: The `TrainingState`.
      correction: The `Correction`, resolved.
      num_workers: Number of workers.
      worker_id: Number of this one.
    """

    def __init__(self, store, state, correction, *, num_workers, worker_id):
        self._store = store
        self._state = state
        self._correction = correction
        self._num_workers = num_workers
        self._worker = worker_id
        self._on_worker = WorkerCorrections(
            store, state, correction, num_workers
        )
        # The ledger of the optimizer that trains a variable, by its ordinal.
        self._ledgers = {}

    @property
    def correction(self):
        """The `Correction`."""
        return self._correction

    @property
    def needs_copies(self):
        """Whether it needs the parameters that a gradient is computed from."""
        return self._correction.copies is not None

    @property
    def is_on_servers(self):
        """Whether servers correct gradients; else workers do."""
        return not self._correction.on_worker

    @property
    def of_servers(self):
        """The corrections on servers: none if workers correct."""
        return self if self.is_on_servers else NoCorrector()

    @property
    def uses_lookahead(self):
        """Whether workers compute with other values than the parameters."""
        return self._correction.uses_lookahead

    @property
    def ledgers(self):
        """The `Ledger` of the optimizer that trains a variable, by ordinal."""
        return {
            variable.ordinal: self._ledgers[variable.ordinal]
            for variable in self._store.variables
            if variable.ordinal in self._ledgers
        }

    def own_variables(self):
        """Returns this worker's slots, a dict of name to variable."""
        return self._on_worker.variables()

    # On the worker.

    def before_push(self, records, optimizer, counter):
        """Checks gradients, and corrects them if that is done by workers.

        Args:
          records: List of `Update` and `Mutation`; the gradients in it are
            replaced.
          optimizer: The Keras optimizer whose step it is.
          counter: Its step counter.

        Returns:
          Callable of a scalar bool tensor, or None, to be called once it is
          known whether all that is pushed is finite (None if nobody looks).
          What workers keep then follows, unless the update is left out.

        Raises:
          ValueError: The optimizer or a parameter does not fit.
        """
        self._correction.check_optimizer(optimizer)
        pending = []
        for record in records:
            if not record.is_gradient:
                continue
            variable = record.variable
            if variable.role is not Role.PARAMETER or (
                not variable.dtype.is_floating
            ):
                raise ValueError(
                    f"{self._correction!r} is for trainable variables of real "
                    f"numbers, and {variable.name!r} is a "
                    f"{variable.role.value} of {variable.dtype.name}."
                )
            if self._correction.on_worker:
                gradient, *rest = record.args
                corrected, slots = self._on_worker.correct(
                    gradient, variable, counter
                )
                record.args = (corrected, *rest)
                pending.append(slots)

        def settle(finite):
            for slots in pending:
                slots.settle(finite)

        return settle

    # What gradients were computed from.

    def enclosed(self, replays, buffer):
        """Adds to a push the replicas that its gradients were computed from.

        Args:
          replays: List of `Replay`.
          buffer: The `SendBuffer` to the server.

        Returns:
          A dict of gradient (position, or pair of positions) to position.
        """
        if self._correction.copies is not Copies.WORKER:
            return {}
        copies = {}
        # Code before the optimizer may have changed the replica.
        before = {}
        for replay in replays:
            record = replay.record
            if record.before is not None:
                before.setdefault(record.variable.ordinal, record.before)
        for variable, piece, gradient in late_gradients(replays):
            value = before.get(variable.ordinal)
            if value is None:
                value = server_scope.read_replica(variable)
            if piece is not None:
                value = piece.of(value)
            if isinstance(gradient, tuple):
                indices = buffer.tensors[gradient[1]]
                value = tf.gather(value, indices)
            copies[gradient] = buffer.add(value)
        return copies

    def add_kept(self, request):
        """Adds to a request what the server keeps of this worker's last pull.

        Args:
          request: A `PushRequest`, on its server.
        """
        if self._correction.copies is not Copies.SERVER:
            return
        section = request.section
        with section.entered():
            for variable, piece, gradient in late_gradients(request.replays):
                handle = self._backup(variable, piece, section.shard)
                rows = None
                if isinstance(gradient, tuple):
                    rows = request.sent[gradient[1]]
                value = read(handle, variable.dtype, rows)
                if rows is None:
                    value.set_shape(variable.shape_of(piece))
                request.copies[gradient] = len(request.sent)
                request.sent.append(value)

    def note_given(self, shard, copies, values):
        """Keeps what this worker is given, on the server; in its scope.

        Args:
          shard: Number of the server.
          copies: List of (variable, `Piece` or None).
          values: List of their values, tensors on the server.
        """
        if self._correction.copies is not Copies.SERVER:
            return []
        return [
            tf.raw_ops.AssignVariableOp(
                resource=self._backup(variable, piece, shard), value=value
            )
            for (variable, piece), value in zip(copies, values, strict=True)
            if variable.role is Role.PARAMETER
        ]

    def _backup(self, variable, piece, shard):
        return self._store.resource(
            shard,
            f"given/{self._worker}/{place_of(variable, piece)}",
            variable.dtype,
            variable.shape_of(piece),
        )

    # On a server.

    def prepare(self, ledger, variables):
        """Makes the slots on the servers, where there are none yet.

        Args:
          ledger: The `Ledger`.
          variables: List of the variables that its optimizer trains.
        """
        new = [
            variable
            for variable in variables
            if self._ledgers.get(variable.ordinal) is not ledger
        ]
        if not new or self._correction.on_worker:
            return
        with tf.init_scope():
            build = functools.partial(self._build_slots, ledger, new, True)
            traced_calls.trace(build)()
            self._ledgers.update((v.ordinal, ledger) for v in new)
            self._state.show_ahead()

    def prepare_again(self):
        """Makes the slots that a server has lost."""
        by_ledger = {}
        for ordinal, ledger in self.ledgers.items():
            variables = by_ledger.setdefault(ledger, [])
            variables.append(self._store.variables[ordinal])
        for ledger, variables in by_ledger.items():
            build = functools.partial(self._build_slots, ledger, variables)
            traced_calls.trace(build)()

    def _build_slots(self, ledger, variables, are_new=False):
        store = self._store
        keeps = are_new and self._correction.copies is Copies.SERVER
        for shard in range(store.num_shards):
            held = copies_lib.held_by(store, shard, variables)
            slots = [self.slots(ledger, shard, *copy) for copy in held]
            if not (held and keeps or any(one.names for one in slots)):
                continue
            lock = store.lock(shard)
            device = store.devices[shard]
            with tf.control_dependencies([lock.op]), tf.device(device):
                made = [op for one in slots for op in one.make()]
                for copy in held if keeps else ():
                    made.append(self._build_first_given(shard, *copy))
            with tf.control_dependencies(made):
                store.unlock(shard, lock)

    def _build_first_given(self, shard, variable, piece):
        """Keeps the value there as given, if no pull has given one yet.

        As of a variable that is made in the middle of a period of local steps.
        """
        backup = self._backup(variable, piece, shard)
        value = read(self._store.handle(variable, shard, piece), variable.dtype)
        return resource_values.build_put_if_missing(backup, value).op

    def _on_server(self, ledger, shard, variable, piece):
        """The `ParameterCorrection` of a variable or piece on a server."""

        def now(rows):
            handle = self._store.handle(variable, shard, piece)
            return read(handle, variable.dtype, rows)

        slots = self.slots(ledger, shard, variable, piece)
        return ParameterCorrection(self._correction, slots, now)

    def slots(self, ledger, shard, variable, piece):
        """The `Slots` of a variable or piece of it on a server."""
        return ServerSlots(
            ledger,
            shard,
            name_of(self._correction, variable, piece, self._num_workers),
            self.shapes(variable, piece),
            dtype_of(variable),
        )

    def shapes(self, variable, piece):
        """Returns the slots of a variable or its piece: `Correction.slots`."""
        shape = variable.shape_of(piece).as_list()
        return self._correction.slots(shape, self._num_workers)

    def correct(self, ledger, request, taken, *, staleness, worker):
        """Corrects what was kept of one exchange, on its server.

        Args:
          ledger: The `Ledger`.
          request: The `PushRequest`.
          taken: What was kept, a dict of position to tensor.
          staleness: Scalar int64 tensor.
          worker: Whose it is, scalar int64 tensor.

        Returns:
          A dict of position to tensor.
        """
        corrected = dict(taken)
        for variable, piece, gradient in late_gradients(request.replays):
            sparse = isinstance(gradient, tuple)
            if sparse:
                values, indices = gradient
                late = tf.IndexedSlices(taken[values], taken[indices])
            else:
                late = taken[gradient]
            one = self._on_server(ledger, request.shard, variable, piece)
            result = one.correct(
                late,
                staleness=staleness,
                worker=worker,
                pulled=taken.get(request.copies.get(gradient)),
                shape=variable.shape_of(piece),
            )
            if sparse:
                corrected[values] = result.values
                corrected[indices] = result.indices
            else:
                corrected[gradient] = result
        return corrected

    def observe(self, run, ledger, replay, section, rate):
        """Runs an optimizer's rule on a server; the correction looks on.

        Args:
          run: Callable without arguments that builds the rule.
          ledger: The `Ledger`, None without an optimizer.
          replay: The `Replay`.
          section: The `ServerScope`.
          rate: Callable that gives the learning rate, a tensor.
        """
        if not replay.record.is_gradient:
            run()
            return
        one = self._on_server(
            ledger, section.shard, replay.record.variable, replay.piece
        )
        with one.observed(rate):
            run()

    def give(self, shard, copies, values):
        """Builds the values that this worker pulls; keeps them where needed.

        Args:
          shard: Number of the server.
          copies: List of (variable, `Piece` or None).
          values: List of what the server holds.

        Returns:
          A list of tensors.
        """
        given = []
        for (variable, piece), value in zip(copies, values, strict=True):
            ledger = self._ledgers.get(variable.ordinal)
            if ledger is not None:
                one = self._on_server(ledger, shard, variable, piece)
                value = one.look_ahead(value)
            given.append(value)
        self.note_given(shard, copies, given)
        return given

    def show_ahead(self, but=()):
        """Gives this worker what gradients are computed from.

        When it is about to begin: each exchange does so, and the pull before
        the first one gives the parameters themselves. They stay so where all
        momenta are of workers whose `fit` has ended: the first gradient has
        the servers forget these.

        Args:
          but: Ordinals of parameters that stay as they are.

        Returns:
          List of the parameters of which the replicas have been given.
        """
        if not self._correction.uses_lookahead:
            return []
        with tf.init_scope():
            over = {x for x in self.ledgers.values() if x.will_forget_all()}
            ordinals = [
                ordinal
                for ordinal, ledger in self.ledgers.items()
                if ledger not in over and ordinal not in but
            ]
            if ordinals:
                traced_calls.trace(lambda: self._build_show_ahead(ordinals))()
            return [self._store.variables[ordinal] for ordinal in ordinals]

    def _build_show_ahead(self, ordinals):
        store, pieces = self._store, {}
        variables = [store.variables[ordinal] for ordinal in ordinals]
        for shard in range(store.num_shards):
            copies = copies_lib.held_by(store, shard, variables)
            lock = store.lock(shard)
            device = store.devices[shard]
            with tf.control_dependencies([lock.op]), tf.device(device):
                before = len(lock.graph.get_operations())
                values = [
                    read(store.handle(variable, shard, piece), variable.dtype)
                    for variable, piece in copies
                ]
                given = self.give(shard, copies, values)
                done = lock.graph.get_operations()[before:]
            with tf.control_dependencies(
                [op for op in done if op.type != "VarHandleOp"]
            ):
                store.unlock(shard, lock)
            for (variable, piece), value in zip(copies, given, strict=True):
                number = 0 if piece is None else piece.number
                pieces.setdefault(variable.ordinal, {})[number] = value
        with tf.device(store.worker_device):
            for ordinal, found in pieces.items():
                variable = store.variables[ordinal]
                ordered = [found[number] for number in sorted(found)]
                whole = tf.concat(ordered, 0) if variable.pieces else ordered[0]
                variable.assign_replica(whole)

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        # Of a variable that is gone, or of an optimizer that is.
        self._ledgers = {
            ordinal: ledger
            for ordinal, ledger in self._ledgers.items()
            if not ordinals & {ordinal, ledger.ordinal}
        }
        self._on_worker.let_go(ordinals)

    def forget(self, ledger, request, worker):
        """Removes from a server what is kept of a worker."""
        for variable, piece, _ in late_gradients(request.replays):
            one = self._on_server(ledger, request.shard, variable, piece)
            one.forget(worker)


def late_gradients(replays):
    """List of (variable, `Piece` or None, gradient) that are corrected."""
    return [
        (replay.record.variable, replay.piece, replay.gradient)
        for replay in replays
        if replay.gradient is not None
    ]
