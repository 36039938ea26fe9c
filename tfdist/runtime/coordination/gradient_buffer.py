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
        # Positions, or pairs of them, of what is averaged: no duplicates.
        averaged, settings = {}, dict.fromkeys(request.settings.values())
        for replay in request.replays:
            averaged.update(dict.fromkeys(replay.arguments))
            settings.update(dict.fromkeys(replay.settings))
        if request.weight is not None:
            averaged[request.weight] = None
        gradients = _flat(averaged)
        settings = [p for p in _flat(settings) if p not in gradients]
        self._positions = [*gradients, *request.copies.values(), *settings]
        self._dtypes = [request.sent[p].dtype for p in self._positions]
        self._key = request.extra[0]
        # Others' gradients may be of other numbers of rows.
        self._in_rows = {
            position
            for replay in request.replays
            for one in (*replay.arguments, *replay.settings)
            if isinstance(one, tuple)
            for position in (*one, request.copies.get(one))
        }
        self.sums = Sums(
            ledger, request, list(averaged), settings, self._in_rows
        )

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
      settings: Positions of what is kept of one worker.
      in_rows: Positions of what may have another number of rows.
    """

    def __init__(self, ledger, request, gradients, settings, in_rows):
        self._ledger = ledger
        self._request = request
        self._gradients = gradients
        self._settings = settings
        self._in_rows = in_rows
        # The same in all traces of all workers, as positions need not be.
        self._numbers = {p: number for number, p in enumerate(_flat(gradients))}

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
        settings = [taken[position] for position in self._settings]
        settings = [worker, *settings] if settings else []
        taken = self._weighed(self._widened(taken))
        dense = [g for g in self._gradients if not isinstance(g, tuple)]
        sparse = [g for g in self._gradients if isinstance(g, tuple)]

        def begin():
            for position in (*dense, *(p for pair in sparse for p in pair)):
                self._assign(position, taken[position])
            self._set_settings(settings)
            return True

        def go_on():
            self._set_lower(settings)
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

        self._cond(first > 0, begin, go_on)

    def _cond(self, condition, begin, go_on):
        def on_server(build):
            def built():
                with self._request.section.entered():
                    return build()

            return built

        tf.cond(condition, on_server(begin), on_server(go_on))

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
        """Of the number of a worker, and of its settings, a list."""
        if not self._settings:
            return []
        sent = self._request.sent
        kinds = [(tf.int64, [])]
        kinds += [(sent[p].dtype, self._shape(p)) for p in self._settings]
        return [
            self._ledger.resource(
                self._request.shard, f"setting/{number}", *kind
            )
            for number, kind in enumerate(kinds)
        ]

    def _set_settings(self, values):
        for handle, value in zip(self._setting_handles(), values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def _set_lower(self, values):
        """Keeps settings of a worker of a lower number than that of others."""
        if not values:
            return
        known = tf.raw_ops.ReadVariableOp(
            resource=self._setting_handles()[0], dtype=tf.int64
        )

        def keep():
            self._set_settings(values)
            return True

        self._cond(values[0] < known, keep, lambda: True)

    def _read_settings(self):
        """Those of one update: a dict of position to tensor."""
        read = {}
        handles = self._setting_handles()[1:]
        for handle, position in zip(handles, self._settings, strict=True):
            read[position] = tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=self._request.sent[position].dtype
            )
            read[position].set_shape(self._shape(position))
        return read

    def _shape(self, position):
        shape = self._request.sent[position].shape
        return [None, *shape[1:]] if position in self._in_rows else shape

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
        """Returns what an update is made of: a dict of position to tensor.

        The means of `count` gradients, and the settings of the worker of the
        lowest number.
        """
        averaged = self._read_settings()
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


def _flat(positions):
    """Positions, with those of values and of indices of each pair, a list."""
    return tf.nest.flatten(list(positions))
