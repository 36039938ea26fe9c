"""The reduction of one optimizer's step over all workers."""

import functools

from absl import logging
import keras
import tensorflow as tf

from tfdist import model_optimizers
from tfdist import one_replica
from tfdist import private_tensorflow
from tfdist.all_reduce import branches
from tfdist.all_reduce import optimizers
from tfdist.all_reduce import pieces
from tfdist.all_reduce import rates as rates_lib
from tfdist.all_reduce import rows as rows_lib
from tfdist.all_reduce import tail as tail_lib
from tfdist.all_reduce.variables import plain


class Lane:
    """One optimizer's gradients, and shared state that its step assigns.

    A step reduces both at once, and then is Keras's own with the means. A
    worker without a batch *follows*: it brings nothing and takes the same
    step with the means of the others.

    Args:
      engine: The `Engine`.
      optimizer: A Keras optimizer; None for state alone.
      variables: Keras variables that it trains, a list.
      states: List of `WorkerVariable` that are assigned by other code.
      have_rows: For each of `variables`, whether its gradient travels as rows.
      by_pairs: See `optimizers.apply`.
    """

    def __init__(
        self, engine, optimizer, variables, states, have_rows, by_pairs
    ):
        self._engine = engine
        self.optimizer = optimizer
        self.variables = variables
        self.states = states
        self._have_rows = have_rows
        self._by_pairs = by_pairs
        dense, tables = self._parted([plain(v) for v in variables])
        # All that travels in vectors, of which gradients are the first.
        self._num_dense = len(dense)
        reduced = [*dense, *states]
        self._specs = [*_specs(dense), *map(pieces.state_spec, states)]
        self._names = [v.name.split(":")[0] for v in [*reduced, *tables]]
        self._make_layout()
        self.number = engine.journal.add(self._layout.piece_bytes())
        self._tables = [
            rows_lib.TableSum(
                engine.collectives, spec, f"{self._name}/table {k} {spec}"
            )
            for k, spec in enumerate(_specs(tables))
        ]
        # All lanes of the step that it was part of last, in order.
        self.step_lanes = ()
        # A loss scale overflows on purpose, and has to see it.
        self._checks_gradients = not isinstance(
            optimizer, keras.optimizers.LossScaleOptimizer
        )
        self._settings = model_optimizers.settings_of(optimizer)
        self._make_functions()

    def _make_layout(self):
        rates = model_optimizers.rates_of(self.optimizer)
        self._rates = rates_lib.ChiefRates([rate.value for rate in rates])
        self._layout = pieces.Layout(
            self._specs, tail_lib.LENGTH + self._rates.length
        )

    @property
    def _name(self):
        # Vectors of another length need another name.
        return f"{self.number}/{self._rates.length}/{self._specs}"

    def _make_functions(self):
        self._reduce_eagerly = _traced(self._reduce)
        self._round = _traced(self._build_round)
        self._finish_eagerly = _traced(self._finish)
        # The same rounding on all workers, with a batch or without: a graph of
        # its own, which TensorFlow rewrites without regard to what is around.
        self._take = _traced(
            self._build_step, private_tensorflow.STAYS_A_FUNCTION
        )

    def follow_settings(self):
        """Called when a step is built: it has the optimizer's settings of now.

        So do the steps without a batch that follow it.
        """
        settings = model_optimizers.settings_of(self.optimizer)
        if settings != self._settings:
            if self._engine.num_workers > 1:
                logging.warning(
                    "The settings of optimizer %r have changed. If you have "
                    "not done so, change them on all workers alike, and then "
                    "call `compile` on all of them, or make the `tf.function` "
                    "of your step again: steps built before keep the old "
                    "settings, so that the workers' weights would differ.",
                    self.optimizer.name,
                )
            self._settings = settings
            self._make_layout()
            self._make_functions()

    @property
    def shared(self):
        """All variables that its step may change, each once, a list."""
        both = [*self.trained, *self.states]
        return list({id(variable): variable for variable in both}.values())

    @property
    def trained(self):
        """All that the optimizer has, and all trained weights, a list."""
        slots = () if self.optimizer is None else self.optimizer.variables
        assigned = filter(one_replica.is_trainable, self.states)
        return list(map(plain, [*self.variables, *slots, *assigned]))

    @property
    def agreeing(self):
        """Variables whose values all workers have to hold before a step."""
        return self.shared

    def step(self, gradients, assigned, counts_as_step):
        """Builds a step, or takes it when executing eagerly.

        Args:
          gradients: Tensors, or `tf.IndexedSlices`, one for each of
            `variables`.
          assigned: Pairs of each of `states` and its value before the step.
          counts_as_step: Whether the journal has it: steps of an optimizer, or
            of a training step that has none.
        """
        before = [value for _, value in assigned]
        gradients, slices = self._parted(gradients)
        states = [state.read_value() for state in self.states]
        for k, state in enumerate(self.states):
            if _is_summed(state):
                states[k] -= before[k]
        cut = self._num_dense
        values = [
            *map(tf.cast, gradients, [s.dtype for s in self._specs[:cut]]),
            *map(pieces.of_state, states, self._specs[cut:]),
        ]
        eagerly = tf.executing_eagerly()
        reduce = self._reduce_eagerly if eagerly else self._reduce
        rows = [
            table.of(one)
            for table, one in zip(self._tables, slices, strict=True)
        ]
        sums, began, counts, row_bytes = reduce(
            values, self._engine.wrote.read_value(), rows
        )
        finish = self._finish_eagerly if eagerly else self._finish
        tail = finish(sums, before)
        self._engine.note(tail)
        if counts_as_step:
            self._engine.journal.write(
                began=began,
                ended=tail.present,
                accepted=counts,
                lane=self.number,
                extras=[row_bytes],
            )

    def _parted(self, of_variables):
        """Returns what belongs to dense gradients, and what to rows."""
        pairs = list(zip(of_variables, self._have_rows, strict=True))
        dense = [one for one, has_rows in pairs if not has_rows]
        return dense, [one for one, has_rows in pairs if has_rows]

    def _together(self, dense, of_tables):
        """Returns, in the order of `variables`, what `_parted` parts."""
        dense, of_tables = iter(dense), iter(of_tables)
        return [
            next(of_tables if has_rows else dense)
            for has_rows in self._have_rows
        ]

    def _reduce(self, values, wrote, rows):
        """Builds the sums of a step.

        Returns:
          The summed vectors and tables; when this worker had its own; whether
          its gradients count; and the bytes of rows that it sends.
        """
        check = self._engine.check
        mine = tail_lib.Tail(1.0, 1.0, 1.0, wrote=wrote)
        counts = tf.constant(True)
        if check.looks and self._checks_gradients:
            vectors = self._layout.vectors(values, self._numbers(mine))
            cut = len(vectors)
            checked, counts = check.checked(
                [*vectors, *(one.values for one in rows)],
                lambda vectors: [
                    *self._layout.tensors(vectors),
                    *vectors[cut:],
                ],
                self._names,
                lambda vectors: [
                    *self._nothing(
                        tail_lib.without_share(self._layout.tail(vectors))
                    ),
                    *map(tf.zeros_like, vectors[cut:]),
                ],
            )
            vectors = checked[:cut]
            rows = [
                rows_lib.Rows(kept, one.ids)
                for kept, one in zip(checked[cut:], rows, strict=True)
            ]
        else:
            first = self._num_dense
            if check.looks and self.states:
                kept, finite = check.checked(
                    values[first:],
                    list,
                    self._names[first : len(self._specs)],
                    lambda values: [tf.zeros_like(value) for value in values],
                )
                values = [*values[:first], *kept]
                mine = mine._replace(states=finite)
            vectors = self._layout.vectors(values, self._numbers(mine))
        with tf.control_dependencies([*vectors, *(one.ids for one in rows)]):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            sums, row_bytes = self._sums(vectors, rows)
        return sums, began, counts, row_bytes

    def _numbers(self, mine):
        """Builds the tail of this worker's `Tail`, and the chief's rates."""
        numbers = tf.stack([tf.cast(x, tf.float32) for x in mine])
        rates = self._rates.numbers(self._engine.is_chief)
        return tf.concat([numbers, rates], 0)

    def _nothing(self, numbers):
        """Builds the vectors of a worker that adds a tail alone."""
        zeros = [tf.zeros(spec.shape, spec.dtype) for spec in self._specs]
        return self._layout.vectors(zeros, numbers)

    def _sums(self, vectors, rows):
        """Builds the sums of vectors and tables, and the bytes of rows."""
        collectives = self._engine.collectives
        sums = self._layout.sums(
            vectors,
            lambda vector, piece: collectives.sum(
                vector, f"{self._name}/{piece}", piece
            ),
        )
        sent = tf.constant(0.0, tf.float64)
        if rows:
            most = rows_lib.build_most(collectives, rows, f"{self._name}/rows")
            for table, mine, number in zip(
                self._tables, rows, most, strict=True
            ):
                total, num_bytes = table.build(mine, number)
                sums.append(total)
                sent += num_bytes
        return sums, sent

    def _finish(self, sums, before):
        """Builds the step with the sums; returns their `Tail`."""
        tail, _ = self._told(sums)
        if not (self._engine.check.looks and self._checks_gradients):
            self._take(sums, before)
            return tail
        changed = [*self.states, *self._rates.variables]
        cuts = len(sums), len(sums) + len(before)

        def step(*tensors):
            self._build_step(tensors[: cuts[0]], tensors[cuts[0] : cuts[1]])
            return []

        def leave_out(*tensors):
            """Nothing of any worker counts: nothing is new but the rates."""
            values = list(tensors[cuts[0] : cuts[1]])
            _, numbers = self._told(tensors[: cuts[0]])
            values += self._rates.of(numbers)
            for handle, value in zip(tensors[cuts[1] :], values, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            return []

        handles = [variable.handle for variable in changed]
        branches.choose(
            tail.gradients > 0.0, step, leave_out, [*sums, *before, *handles]
        )
        return tail

    def _told(self, sums):
        """Returns the `Tail` of sums, and those of the chief's rates."""
        return tail_lib.split(self._layout.tail(sums))

    def _build_step(self, sums, before):
        """Builds the chief's rates, the means of state, and Keras's step."""
        tail, numbers = self._told(sums)
        self._rates.assign(numbers)
        most = tf.maximum(tail.gradients, 1.0)
        divided = [tf.math.divide(v, tf.cast(most, v.dtype)) for v in sums]
        means = self._layout.tensors(divided)
        first = self._num_dense
        of_tables = divided[len(divided) - len(self._tables) :]
        with self._engine.applying(), self._engine.replica_context():
            number = tf.maximum(tail.states, 1.0)
            totals = self._layout.tensors(sums)
            for state, total, old in zip(
                self.states, totals[first:], before, strict=True
            ):
                if _is_summed(state):
                    total = pieces.as_state(total, state.dtype)
                    state.assign(old + total)
                    continue
                mean = total / tf.cast(number, total.dtype)
                mean = pieces.as_state(mean, state.dtype)
                state.assign(tf.where(tail.states > 0.0, mean, old))
            if self.optimizer is None:
                return
            gradients = [
                pieces.of_dtype(mean, plain(variable).dtype)
                for mean, variable in zip(
                    self._together(means, of_tables),
                    self.variables,
                    strict=True,
                )
            ]
            with (
                self._engine.journal.counting_update(self.optimizer),
                self._engine.updating(),
            ):
                optimizers.apply(
                    self.optimizer, gradients, self.variables, self._by_pairs
                )

    # Without a batch.

    def follow(self, **mine):
        """Takes part in a step of the others, if they take one.

        Args:
          **mine: Numbers of this worker, of `Tail`.

        Returns:
          The `Tail` of all, of floats.
        """
        mine = tail_lib.Tail(**mine)
        sums = self._engine.collectives.call(
            self._round, tf.constant(mine, tf.float32)
        )
        numbers = self._layout.tail(sums).numpy()
        tail = tail_lib.Tail(*numbers[: tail_lib.LENGTH].tolist())
        if tail.present:
            before = [state.read_value() for state in self.states]
            self._finish_eagerly(sums, before)
        return tail

    def _build_round(self, mine):
        numbers = self._numbers(tail_lib.Tail(*tf.unstack(mine)))
        rows = [table.of(None) for table in self._tables]
        sums, _ = self._sums(self._nothing(numbers), rows)
        return sums


def _is_summed(state):
    """Whether all workers' changes of a state count, and not their mean."""
    return state.aggregation == tf.VariableAggregation.SUM


def _specs(variables):
    return [
        tf.TensorSpec(v.shape, pieces.wire_dtype(v.dtype, v.name))
        for v in variables
    ]


def _traced(method, attributes=None):
    # TensorFlow warns of a method that is traced for many objects.
    return tf.function(
        functools.partial(method),
        autograph=False,
        experimental_attributes=attributes,
    )
