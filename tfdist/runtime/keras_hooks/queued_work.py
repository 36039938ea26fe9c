"""`work="queue"`: workers take portions of an epoch's data when they are free.

Keras iterates over a `QueuedEpoch`, which is no iterator of `tf.data`: where
Keras calls its training function with it, the function is given the iterator
of the portion that this worker has taken. The queue (`PortionQueue`) is a
record on the first server; how much of a portion counts is what servers have
applied of it (`PortionProgress`).
"""

from tfdist import private_keras_calls
from tfdist.cluster import fit_progress
from tfdist.cluster import lost_workers
from tfdist.cluster import shared_record
from tfdist.data_shares import portion_queue
from tfdist.data_shares import portion_reader
from tfdist.null_methods import nothing
from tfdist.runtime.keras_hooks import queued_epoch


class NoQueuedWork:
    """See `QueuedWork`; where each worker has a share."""

    # What makes the data of a call of `fit`.
    data = None
    watch = leave = nothing

    def call(self, call, function, *args):
        return call(function, *args)

    def counts(self):
        return {}


class QueuedWork:
    """Portions for all calls of `fit` under one strategy, on one worker.

    Args:
      store: The `ParameterStore`.
      progress: The `PortionProgress`.
      membership: The `Membership`.
      config: The `ClusterConfig`.
      wait: As `Runtime.wait`.
      pull: As `Runtime.pull`.
      portions_per_worker: Portions of an epoch for each of the workers that
        begin.
      worker_timeout: Seconds without a heartbeat after which the portion of a
        worker comes back.
    """

    def __init__(
        self,
        store,
        progress,
        membership,
        config,
        *,
        wait,
        pull,
        portions_per_worker,
        worker_timeout,
    ):
        self.store = store
        self.progress = progress
        self.worker = config.worker_id
        self.is_chief = config.is_chief
        self.names = config.worker_names
        self._workers = config.initial_workers
        self._portions_per_worker = portions_per_worker
        self._membership = membership
        self._worker_timeout = worker_timeout
        self.wait = wait
        self.pull = pull
        self._record = shared_record.SharedRecord(
            store.name_of("portions/queue"),
            store.devices[0],
            store.worker_device,
        )
        # The call of `fit` under way, or the last one, a `RunningFit`.
        self._running = None
        # The epoch under way on this worker, or None.
        self._epoch = None

    def watch(self, running):
        """Takes note of a call of `fit` that asks for its data.

        Args:
          running: Its `RunningFit`.

        Raises:
          NotImplementedError: Another call is under way.
        """
        if self._running is not None and not self._running.is_over():
            raise NotImplementedError(
                '`fit` must not be called within another `fit` with work="'
                'queue".'
            )
        self._running = running

    def data(self, dataset, adapter, frame, call):
        """Returns the data of a call of `fit`, for `EpochData`.

        Args:
          dataset: The `tf.data.Dataset` that Keras has made.
          adapter: The Keras `DataAdapter` that has made it; None if none has.
          frame: The frame of `fit`, or None.
          call: Number of the call, the same on all workers.

        Returns:
          A callable that makes what Keras iterates over in an epoch.

        Raises:
          ValueError: The data has no portions; see `portion_reader.check`.
        """
        steps = None
        if adapter is not None:
            steps = private_keras_calls.steps_per_epoch_of(frame)
        portion_reader.check(dataset, adapter, steps, self._workers)
        model = private_keras_calls.model_of(frame)
        executions = model.steps_per_execution
        ends = portion_queue.cut(
            adapter.num_batches,
            self._workers,
            self._portions_per_worker,
            executions,
        )
        if len(ends) < self._workers:
            raise ValueError(
                "Argument `steps_per_execution` must leave a portion for each "
                'worker with work="queue", of at least as many batches. '
                f"Received: steps_per_execution={executions} for "
                f"{adapter.num_batches} batches and {self._workers} workers"
            )
        reader = portion_reader.PortionReader(dataset, call, adapter)
        return lambda: queued_epoch.QueuedEpoch(self, reader, model, call, ends)

    def call(self, call, function, *args):
        """Calls a `train_function` of Keras.

        Args:
          call: Callable of it and its arguments that does so.
          function: The `train_function`.
          *args: Its arguments; of `fit` a `QueuedEpoch`.
        """
        if not (args and isinstance(args[0], queued_epoch.QueuedEpoch)):
            return call(function, *args)
        self._epoch = args[0]
        return self._epoch.step(call, function)

    def leave(self):
        """Called when this worker has made its last step of a `fit`."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.leave()

    def counts(self):
        """Returns how many portions each worker has done, a dict.

        In all calls of `fit`: names of workers to ints.
        """
        queue = self.queue()
        counts = {} if queue is None else queue.counts
        return {name: counts.get(k, 0) for k, name in enumerate(self.names)}

    # For the epoch.

    def queue(self):
        """Returns the `PortionQueue` as it is now; None before the first."""
        board = self.store.call(self._record.read)
        return portion_queue.restored(board) if board else None

    def change(self, function):
        """Changes the queue on the server; see `SharedRecord.change`.

        Args:
          function: Callable of the `PortionQueue`, None before the first, that
            returns a queue to be kept, or None, and an answer.

        Returns:
          The answer.
        """

        def change(board, now):
            queue = portion_queue.restored(board) if board else None
            queue, answer = function(queue)
            if queue is not None:
                board.update(queue.state())
            return answer

        return self.store.call(self._record.change, change)

    def lost_workers(self, call):
        """A `LostWorkers` of a call of `fit`."""
        return lost_workers.LostWorkers(
            lambda: self.store.call(self._membership.read)[: len(self.names)],
            fit_progress.begun(call),
            fit_progress.ended(call),
            self._worker_timeout,
        )
