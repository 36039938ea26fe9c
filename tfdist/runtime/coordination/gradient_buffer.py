"""Gradients that lie on a server until they are decided over."""

import tensorflow as tf

from tfdist import private_tensorflow

_HALVES = (tf.float16, tf.bfloat16)


class GradientBuffer:
    """Gradient buffer of one optimizer on one server.

    Args:
      ledger: The `Ledger`.
      device: The server's.
      request: The `PushRequest` of this worker; what others keep is of its
        kind.
    """

    def __init__(self, ledger, device, request):
        self._ledger = ledger
        self._device = device
        self._request = request
        found = {}
        for replay in request.replays:
            found.update(dict.fromkeys(replay.arguments))
        # Positions, or pairs of them, of what is averaged: no duplicates.
        if request.weight is not None:
            found[request.weight] = None
        self.gradients = list(found)
        positions = [p for one in self.gradients for p in positions_of(one)]
        self._positions = [
            *positions,
            *request.copies.values(),
            *request.settings.values(),
        ]
        self._dtypes = [request.sent[p].dtype for p in self._positions]
        self._key = request.extra[0]
        # Others' gradients may be of other numbers of rows.
        self._in_rows = {
            position
            for one in self.gradients
            if isinstance(one, tuple)
            for position in (*one, request.copies.get(one))
        }
        self.sums = Sums(ledger, request, self.gradients)

    def keep(self):
        """Keeps this worker's gradients; returns the operation."""
        ledger, shard, key = self._ledger, self._request.shard, self._key
        with tf.device(self._device):
            noted = ledger.leftovers.note(shard, ledger.worker, key)
            if not self._positions:
                return noted
            ledger.note_staged(shard, self._dtypes)
            with tf.control_dependencies([noted]):
                kept = self._stage(
                    key, [self._request.sent[p] for p in self._positions]
                )
        private_tensorflow.run_independently(kept)
        return kept

    def _stage(self, key, values):
        return tf.raw_ops.MapStage(
            key=key,
            indices=tf.range(len(self._positions)),
            values=values,
            dtypes=self._dtypes,
            shared_name=self._ledger.name_of("gradients"),
        )

    def take(self, key):
        """Takes away what is kept under `key`.

        Returns:
          A dict of position to tensor.
        """
        if not self._positions:
            return {}
        values = self._unstage(key)
        for value, position in zip(values, self._positions, strict=True):
            shape = self._request.sent[position].shape
            if position in self._in_rows:
                shape = [None, *shape[1:]]
            value.set_shape(shape)
        return dict(zip(self._positions, values, strict=True))

    def settings(self, taken):
        """The settings of the worker whose gradients were taken.

        Returns:
          A dict of `ref()` to tensor.
        """
        return {
            reference: taken[position]
            for reference, position in self._request.settings.items()
        }

    def discard(self, key):
        """Frees what may be kept under `key`; returns the operation."""
        if not self._positions:
            return tf.no_op()
        # To take what is not there would wait for ever; to keep something
        # under a key that has something already changes nothing.
        nothing = [tf.zeros([0], dtype) for dtype in self._dtypes]
        with tf.control_dependencies([self._stage(key, nothing)]):
            return self._unstage(key)[0].op

    def discard_own(self):
        """Frees this worker's own gradient."""
        self.discard(self._key)

    def free(self, void):
        """Frees what is void, see `OrphanedGradients.free`."""
        self._ledger.leftovers.free(
            self._request.shard, void, self._key, self.discard
        )

    def _unstage(self, key):
        return tf.raw_ops.MapUnstage(
            key=key,
            indices=tf.range(len(self._positions)),
            dtypes=self._dtypes,
            shared_name=self._ledger.name_of("gradients"),
        )


class Sums:
    """Sums of the gradients of one update, on one server.

    Args:
      ledger: The `Ledger`.
      request: The `PushRequest`.
      gradients: List of positions, or pairs of positions.
    """

    def __init__(self, ledger, request, gradients):
        self._ledger = ledger
        self._request = request
        self._gradients = gradients
        # The same in all traces of all workers, as positions need not be.
        positions = [p for one in gradients for p in positions_of(one)]
        self._numbers = {p: number for number, p in enumerate(positions)}

    def _handle(self, position, shape):
        return self._ledger.resource(
            self._request.shard,
            f"sum/{self._numbers[position]}",
            self._dtype(position),
            shape,
        )

    def _dtype(self, position):
        """Of sums: half precision would lose some, or overflow."""
        dtype = self._request.sent[position].dtype
        return tf.float32 if dtype in _HALVES else dtype

    def add(self, taken, first, worker):
        """Adds gradients; with `first` they replace what was there.

        Where gradients have weights, they are multiplied by them. Settings
        are kept of the worker with the lowest number.
        """
        mine = list(self._request.settings.values())
        settings = [worker, *(taken[position] for position in mine)]
        taken = self._weighed(self._widened(taken))
        dense = [g for g in self._gradients if not isinstance(g, tuple)]
        sparse = [g for g in self._gradients if isinstance(g, tuple)]

        def begin():
            for position in (*dense, *(p for pair in sparse for p in pair)):
                self._assign(position, taken[position])
            self._set_settings(settings)
            return True

        def go_on():
            self._set_settings(self._of_lower(settings))
            for position in dense:
                tf.raw_ops.AssignAddVariableOp(
                    resource=self._handle(position, taken[position].shape),
                    value=taken[position],
                )
            for position in (p for pair in sparse for p in pair):
                known = self._read(position)
                rows = tf.concat([known, taken[position]], 0)
                self._assign(position, rows)
            return True

        def on_server(build):
            def built():
                with self._request.section.entered():
                    return build()

            return built

        tf.cond(first > 0, on_server(begin), on_server(go_on))

    def _widened(self, taken):
        return {
            position: tf.cast(value, self._dtype(position))
            for position, value in taken.items()
            if position in self._numbers
        }

    def _weighed(self, taken):
        weight = self._request.weight
        if weight is None:
            return taken
        return {
            position: value
            if position == weight
            else value * tf.cast(taken[weight], value.dtype)
            for position, value in taken.items()
        }

    def _setting_handles(self):
        """Of the number of a worker, and its settings: pairs with a type."""
        dtypes = [tf.int64]
        dtypes += [
            self._request.sent[position].dtype
            for position in self._request.settings.values()
        ]
        return [
            (
                self._ledger.resource(
                    self._request.shard, f"setting/{number}", dtype, []
                ),
                dtype,
            )
            for number, dtype in enumerate(dtypes)
        ]

    def _set_settings(self, values):
        if self._request.settings:
            handles = self._setting_handles()
            for (handle, _), value in zip(handles, values, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def _read_settings(self):
        values = []
        for handle, dtype in self._setting_handles():
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            value.set_shape([])
            values.append(value)
        return values

    def _of_lower(self, settings):
        """`settings` or what is kept: of the worker of the lower number."""
        if not self._request.settings:
            return []
        known = self._read_settings()
        lower = settings[0] < known[0]
        return [
            tf.where(lower, new, old)
            for new, old in zip(settings, known, strict=True)
        ]

    def settings(self):
        """Those of the workers of one update: of the lowest number.

        Returns:
          A dict of `ref()` to tensor.
        """
        if not self._request.settings:
            return {}
        _, *values = self._read_settings()
        return dict(zip(self._request.settings, values, strict=True))

    def _shape(self, position):
        shape = self._request.sent[position].shape
        is_sparse = any(
            isinstance(g, tuple) and position in g for g in self._gradients
        )
        return [None, *shape[1:]] if is_sparse else shape

    def _assign(self, position, value):
        tf.raw_ops.AssignVariableOp(
            resource=self._handle(position, self._shape(position)), value=value
        )

    def _read(self, position):
        shape = self._shape(position)
        value = tf.raw_ops.ReadVariableOp(
            resource=self._handle(position, shape),
            dtype=self._dtype(position),
        )
        value.set_shape(shape)
        return value

    def average(self, count):
        """The means of `count` gradients: a dict of position to tensor."""
        averaged = {}
        if self._request.weight is not None:
            count = self._read(self._request.weight)
        for gradient in self._gradients:
            if isinstance(gradient, tuple):
                # A row may come several times, as it does within a batch.
                values, indices = gradient
                averaged[indices] = self._read(indices)
                averaged[values] = self._mean(values, count)
            else:
                averaged[gradient] = self._mean(gradient, count)
        return averaged

    def _mean(self, position, count):
        total = self._read(position)
        mean = total / tf.cast(count, total.dtype)
        return tf.cast(mean, self._request.sent[position].dtype)


def positions_of(gradient):
    """The positions of a gradient: of its values, and of its indices."""
    return gradient if isinstance(gradient, tuple) else (gradient,)
