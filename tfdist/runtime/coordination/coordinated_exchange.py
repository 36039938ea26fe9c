"""The exchange of methods that decide over gradients before they count.

1. The gradients go to all servers, which keep them under a key.
2. The ledger, on the first server, is told; it decides at once or later, and
   the worker waits there.
3. Every server carries out the ledger's log, as far as it has not yet done so,
   whoever's gradients it speaks of; then it gives the worker fresh values.

So a decision is made once for all servers, and what has been decided is
carried out by whoever comes next: a worker that dies in between holds nobody
up, and no server averages other gradients than the others do.

Rows of tables are not averaged, see `own_rows`.
"""

import dataclasses
import functools

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.runtime.coordination import gradient_buffer
from tfdist.runtime.coordination import own_rows
from tfdist.runtime.exchange import exchange
from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.variables import resources
from tfdist.runtime.variables.variables import Role
from tfdist.synchronization import state as state_lib


class CoordinatedExchange(exchange.ExchangeBuilder):
    """An `ExchangeBuilder` that is decided over by a ledger.

    Args:
      ledger: The optimizer's `Ledger`, or None without an optimizer.
      method: The `Synchronization`.
      is_alone: Whether there is one worker.
      **kwargs: Those of `ExchangeBuilder`.
    """

    # Updates are carried out, and counted, before what is of the step alone.
    _is_at_once = False

    def __init__(self, *, ledger, method, is_alone, **kwargs):
        super().__init__(**kwargs)
        self._ledger = ledger
        self._rows = own_rows.of(ledger, self.iterations, kwargs["records"])
        self._method = method
        self._is_alone = is_alone
        # Of gradients on servers.
        self._corrector = self._runtime.corrector.of_servers
        self._decision = self._accepted = None

    def _ask(self, shards):
        if self._method.averages:
            self._check_mutations()
        elif not self._is_alone:
            self._check_averages()
        if self.iterations is None:
            return super()._ask(shards)
        store = self._store
        ledger = self._ledger
        with tf.control_dependencies(self._begun):
            key = ledger.next_key()
        extra = [key, self._pulled]
        requests = [
            self._send(shard, [*extra, *self._rows.sent_to(shard)])
            for shard in shards
        ]
        staged = [self._stage(request) for request in requests]
        kept = []
        for request, mine in zip(requests, staged, strict=True):
            with tf.control_dependencies([request.arrived.op]):
                kept.append(mine.keep())
        # The first server is always among them, and the first.
        first = requests[0]
        decision = self._decision = ledger.arrive(
            *first.extra[:2],
            kept,
            self._last,
            first.finite,
            # One decision for all servers: the first one keeps the progress.
            functools.partial(
                self._runtime.batch_progress.build_claim, 0, first.place, [0]
            ),
        )
        responses = [
            self._carry_out(request, mine, decision)
            for request, mine in zip(requests, staged, strict=True)
        ]
        if self._method.retries:
            # The step would be taken again for ever, and the worker would not
            # get to know of the new epoch.
            after = [decision.head.op]
            with tf.control_dependencies(after), tf.device(store.devices[0]):
                self._current = ledger.is_current(decision.epoch)
        with tf.device(store.worker_device):
            self._accepted = tf.identity(decision.accepted)
        return responses, self._accepted

    def _pulled_by_server(self):
        return self._ledger.pulled_by_server()

    def _pulled_from(self, by_server):
        updated = {
            shard
            for record in self._records
            if isinstance(record, records_lib.Update)
            and record.variable.role is Role.PARAMETER
            for shard in records_lib.shards_of(record, self._store)
        }
        # A model of tables alone has its step counter there.
        updated = updated or {0}
        return tf.reduce_min(tf.stack([by_server[k] for k in sorted(updated)]))

    def _arrival(self, responses):
        return responses[0].more[1]

    def _stage(self, request):
        with tf.control_dependencies([request.arrived.op]):
            self._corrector.add_kept(request)
        device = self._store.devices[request.shard]
        averaged = [r for r in request.replays if _is_of_update(r.record)]
        request = dataclasses.replace(request, replays=averaged)
        return gradient_buffer.GradientBuffer(self._ledger, device, request)

    def _enclosed(self, replays, buffer):
        return self._corrector.enclosed(replays, buffer)

    def _check_mutations(self):
        """Refuses what every worker would do for one and the same update."""
        for record in self._records:
            variable = record.variable
            if self.iterations is not None and _is_of_update(record):
                continue
            if variable.role is Role.STATE or own_rows.are_in(record):
                continue
            raise ValueError(
                f"Variable {variable.name!r} is assigned beside the "
                "optimizer's updates (by a constraint, use_ema=True, a "
                "MultiOptimizer or code of yours). With "
                f"synchronization={self._method!r} every worker would do so "
                "for each update of all of them. Use AsyncStrategy or "
                "BoundedStalenessStrategy, or leave it out. A teacher or a "
                "target network can also move before the optimizer's step "
                "(not with run_eagerly, mixed_float16 or gradient "
                "accumulation), or in a callback on all workers "
                "(on_train_batch_end). A tf.Variable that nothing trains can "
                "be made with trainable=False: then each worker has its own."
            )

    def _check_averages(self):
        """Refuses an average of weights, which misses some of them.

        What another worker's update has made of the weights may be one of
        several updates that a server carries out at once.
        """
        for record in self._records:
            slot = record.variable
            if slot.role is Role.SLOT and not _is_of_update(record):
                raise ValueError(
                    f"Variable {slot.name!r} is an average of weights "
                    "(use_ema=True), which has to see them after each update. "
                    "With a correction, and with synchronization other than "
                    "Async(), several updates may be applied at once. Use "
                    "AsyncStrategy, or leave it out. Received: "
                    f"synchronization={self._method!r}"
                )

    def _carry_out(self, request, staged, decision):
        """Makes a server carry out the log; returns its `PullResponse`."""
        store, section, shard = self._store, request.section, request.shard
        with tf.device(store.devices[shard]):
            head = tf.identity(decision.head)
            *log, void = tf.unstack(tf.identity(decision.log), num=6)
            void = void[: self._ledger.num_workers]
            accepted = tf.identity(decision.accepted)
            epoch = tf.identity(decision.epoch)
            self._rows.note_log(request, log, head)
        with tf.control_dependencies(
            [request.arrived.op, head.op, epoch.op, void.op, *_ops(log)]
        ):
            lock = store.lock(shard)
        before = len(self._graph.get_operations())
        own = [r for r in request.replays if not _is_of_update(r.record)]
        with section.entered(), tf.control_dependencies([lock.op]):
            done = self._ledger.executed(shard)
            # What an epoch that has ended decided is void.
            current = tf.equal(self._ledger.epoch(shard).read(), epoch)

            def body(number):
                with section.entered():
                    return self._entry(request, staged, log, number, done)

            reached = tf.while_loop(
                lambda number: current & (number < head),
                body,
                [done.read()],
                parallel_iterations=1,
            )
            with tf.control_dependencies(reached):
                others = self._rows.build_others(request)
                self._own_part(request, staged, own, accepted, current, void)
        late = section.late_inputs
        if late:
            private_tensorflow.add_control_inputs(lock.op, late)
        if shard == 0:
            figures = [decision.staleness, decision.wait]
        else:
            with section.entered():
                figures = [tf.zeros([], tf.int64), tf.zeros([], tf.float64)]
        if others is not None:
            with section.entered():
                figures[0] = tf.where(accepted, others, figures[0])
        return self._respond(request, lock, before, [], figures)

    def _given(self, request, copies, values):
        return self._corrector.give(request.shard, copies, values)

    def _read_more(self, section):
        if self.iterations is None:
            return []
        more = [self._ledger.updates(section.shard).read()]
        if section.shard == 0:
            more.append(self._decision.arrival)
        return more + self._rows.read_on(section.shard)

    def _note_pulled(self, responses):
        if self.iterations is None:
            return []
        done = [self._ledger.note_accepted(self._accepted)]
        for response in responses:
            done.append(
                self._ledger.set_pulled(response.shard, response.more[0])
            )
            done += self._rows.set_pulled(response.shard, response.more)
        return done

    def _own_part(self, request, staged, replays, accepted, current, void):
        """Builds the part that only this worker's own gradient brings with it.

        The statistics of its batch count if its gradient does. And what is
        void is freed, now that the log has been carried out.
        """
        section = request.section

        def replay():
            with section.entered():
                for one in replays:
                    with section.on_piece(one.piece):
                        if own_rows.are_in(one.record):
                            self._rows.run(one, request)
                        else:
                            one.run(request.sent, section)
                self._rows.build_count(request.shard)
            return True

        def discard():
            with section.entered():
                staged.discard_own()
            return True

        def current_part():
            # Whoever is told to stop while it waits does not hear whether its
            # gradient counts.
            counts = accepted
            if request.finite is not None:
                counts = accepted & request.finite
            done = tf.cond(counts, replay, discard)
            with section.entered():
                staged.free(void)
            return done

        tf.cond(current, current_part, discard)

    def _entry(self, request, staged, log, number, done):
        """Carries out one entry of the log; returns the next one's number."""
        graph = tf.compat.v1.get_default_graph()
        place = tf.math.floormod(number, tf.shape(log[0], tf.int64)[0])
        key, staleness, first, count, worker = (c[place] for c in log)
        updates = [r for r in request.replays if _is_of_update(r.record)]
        version = self._store.counter("version", request.shard)

        def take():
            taken = staged.take(key)
            return self._corrector.correct(
                self._ledger, request, taken, staleness=staleness, worker=worker
            )

        def update(taken):
            sent = list(request.sent)
            for position, value in taken.items():
                sent[position] = value
            with request.section.with_settings(staged.settings(taken)):
                self._update(request, updates, sent, version)
            self._ledger.updates(request.shard).add(1)

        def forget():
            self._corrector.forget(self._ledger, request, worker)

        def on_server(build):
            def built():
                with request.section.entered():
                    build()
                return True

            return built

        def if_(condition, then, otherwise=lambda: None):
            tf.cond(condition, on_server(then), on_server(otherwise))

        def gradient():
            if not self._method.averages:
                update(take())
                return
            if_(
                tf.not_equal(key, state_lib.NO_GRADIENT),
                lambda: staged.sums.add(take(), first, worker),
            )
            sums = staged.sums

            def average():
                update(sums.average(count))
                self._rows.build_note_size(request.shard, count)

            if_(count > 0, average)

        if self._ledger.forgets:
            if_(tf.equal(key, state_lib.FORGET), forget, gradient)
        else:
            gradient()
        with tf.control_dependencies(resources.effects(graph.get_operations())):
            # After all that it stands for: a worker that dies before leaves
            # the entry to the next one.
            with tf.control_dependencies([done.add(1)]):
                return number + 1

    def _run(self, replay, sent, section):
        def run():
            replay.run(sent, section)

        self._corrector.observe(run, self._ledger, replay, section, self._rate)


def _is_of_update(record):
    """Whether it is done once per update, not per worker.

    What an optimizer assigns besides its slots (Nadam's product of momenta)
    belongs to its rule, and comes in the order of the rule.
    """
    return (
        isinstance(record, records_lib.Update)
        and not own_rows.are_in(record)
        or record.variable.role is Role.ITERATIONS
        or (
            record.variable.role is Role.STATE
            and record.variable.made_by_optimizer
        )
    )


def _ops(tensors):
    return [tensor.op for tensor in tensors]
