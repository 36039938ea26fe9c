"""One epoch of `fit` with `work="queue"`, on one worker."""

import math

from absl import logging

from tfdist import private_keras_calls
from tfdist.data_shares import portion_queue
from tfdist.program_error import ProgramError

# Epochs of one call of `fit`: its number and the epoch's make one number.
_MAX_EPOCHS = 2**32


class QueuedEpoch:
    """One epoch of `fit` on this worker: the portions that it takes.

    Args:
      work: The `QueuedWork`.
      reader: The `PortionReader`.
      model: The `keras.Model`.
      call: Number of the call of `fit`.
      ends: By portion of an epoch, the number of the batch after its last.
    """

    def __init__(self, work, reader, model, call, ends):
        self._queued_work = work
        self._reader = reader
        self._model = model
        self._executions = model.steps_per_execution
        self._call = call
        self._ends = ends
        self._cut = portion_queue.checksum(ends)
        # Number of the epoch as Keras counts; None before the first step.
        self._epoch = None
        # Whether it is the last one of the call.
        self._is_last = False
        self._portion = None
        # Number of the next batch in the epoch.
        self._next = 0
        self._steps = 0
        # The portions that this worker knows to be done, where a server that
        # was started again does not.
        self._done = set()
        self._lost = work.lost_workers(call)
        # Who has which portion, as last seen.
        self._held = {}
        # Calls of the training function for the step under way.
        self._attempts = 0
        self._has_begun = self._is_over = False

    def __iter__(self):
        return self

    def __next__(self):
        """Refuses to give a batch to anything but the training function.

        Raises:
          TypeError: Always.
        """
        raise TypeError(
            'The data of `fit` with work="queue" must go to the training '
            "function as Keras makes it. Received: a `fit` or a "
            '`make_train_function` of your own; use work="shares".'
        )

    def step(self, call, function):
        """Takes the next step.

        Args:
          call: Callable of a function and its arguments that calls it.
          function: Keras's training function.

        Returns:
          What it returns.

        Raises:
          StopIteration: All portions of the epoch are done.
        """
        if self._epoch is None:
            frame = private_keras_calls.fit_under_way()
            self._epoch = private_keras_calls.epoch_of(frame)
            self._is_last = self._epoch + 1 >= private_keras_calls.epochs_of(
                frame
            )
        result = self._step(call, function)
        self._steps += 1
        if self._steps < math.ceil(self._ends[-1] / self._executions):
            return result
        # Keras takes no more steps than there are batches. There are more if
        # some were taken twice.
        while not self._model.stop_training:
            try:
                result = self._step(call, function)
            except StopIteration:
                break
        return result

    def leave(self):
        """Gives back a portion that this worker has not come to the end of."""
        if self._portion is not None:
            self._portion = None
            self._queued_work.change(
                self._give_back([self._queued_work.worker])
            )

    # A step.

    def _step(self, call, function):
        while self._portion is None or self._next == self._portion.end:
            if self._portion is not None:
                self._complete()
            self._take()
        self._attempts = 0
        result = call(self._train, function)
        if self._attempts > 1:
            # A server that was started again has an empty queue.
            self._queued_work.change(self._tell_known)
        if self._next == self._portion.end:
            self._complete()
        return result

    def _train(self, function):
        """Trains on the next batch; on the same again if that has failed."""
        self._attempts += 1
        portion = self._portion
        number = min(self._executions, portion.end - self._next)
        iterator = self._reader.open(self._epoch, self._next)
        progress = self._queued_work.progress
        progress.set_place(
            self._number,
            self._cut,
            len(self._ends),
            portion.number,
            self._next - portion.first,
        )
        try:
            result = function(iterator)
        finally:
            progress.clear_place()
        self._reader.note_taken(number)
        self._next += number
        return result

    @property
    def _number(self):
        """Number of the epoch, greater than those of all before."""
        return self._call * _MAX_EPOCHS + self._epoch

    # The queue.

    def _complete(self):
        number, self._portion = self._portion.number, None

        def complete(queue):
            queue = self._current(queue)
            if queue is not None:
                queue.complete(number, self._queued_work.worker)
            return queue, None

        self._queued_work.change(complete)
        self._done.add(number)

    def _take(self):
        """Takes a portion; waits for one as long as others are under way.

        Raises:
          StopIteration: The epoch is over.
        """
        if not self._has_begun:
            self._queued_work.wait(
                self._may_begin, what=f"others to end epoch {self._epoch}"
            )
            self._check_progress()
            self._has_begun = True
        if not self._is_over:
            self._queued_work.wait(self._look, what=self._describe)
        if self._portion is None:
            if not self._is_over:
                self._end()
                # Others have trained while this worker waited: validation,
                # and callbacks that save, are to have what they did.
                self._queued_work.pull()
            raise StopIteration
        self._next = self._portion.first
        if self._portion.was_begun:
            self._go_on()

    def _go_on(self):
        """Begins a portion that has come back with what servers lack of it."""
        portion = self._portion
        done = self._queued_work.progress.read(self._number)[portion.number :][
            :1
        ]
        done = int(done[0]) if len(done) else 0
        # In whole calls of the training function, whose first batches servers
        # leave out.
        done -= done % self._executions
        self._next = min(portion.first + done, portion.end)
        logging.warning(
            "Portion %d of epoch %d has come back; %d of its %d batches have "
            "been applied.",
            portion.number + 1,
            self._epoch + 1,
            self._next - portion.first,
            portion.end - portion.first,
        )

    def _may_begin(self):
        """Whether nobody is in an earlier epoch of this call any more."""
        queue = self._queued_work.queue()
        return (
            queue is None
            or queue.epoch // _MAX_EPOCHS < self._call
            or queue.epoch >= self._number
            or queue.is_done
        )

    def _check_progress(self):
        """Refuses servers that would leave out what they have not applied.

        Raises:
          ProgramError: Their snapshots are of a later epoch, or of this one
            with other portions.
        """
        latest, cut = self._queued_work.progress.latest()
        queue = self._queued_work.queue()
        is_new = queue is None or queue.epoch < self._number
        if latest == self._number and cut != self._cut and is_new:
            raise ProgramError(
                'With work="queue", parameter servers that begin with '
                "snapshots must go on with the same portions. They have others "
                f"of call {self._call}, epoch {self._epoch + 1}. Use the same "
                "data, `batch_size`, `steps_per_execution`, "
                "`portions_per_worker` and number of workers, begin with the "
                f"next epoch (`initial_epoch={self._epoch + 1}`), or empty "
                "`snapshot_dir`."
            )
        is_behind = queue is not None and queue.epoch > self._number
        if latest > self._number and not is_behind:
            raise ProgramError(
                'With work="queue", parameter servers that begin with '
                "snapshots must go on with the same epoch. They have call "
                f"{latest // _MAX_EPOCHS} of `fit`, epoch "
                f"{latest % _MAX_EPOCHS + 1}, and this worker begins call "
                f"{self._call}, epoch {self._epoch + 1}. Pass `initial_epoch` "
                "(as BackupAndRestore does), or empty `snapshot_dir`."
            )

    def _look(self):
        """Takes a portion; returns whether there is one, or the end."""
        self._portion, is_over = self._queued_work.change(self._take_from)
        if self._portion is not None or is_over:
            return True
        lost = self._lost.find(self._held.keys() - {self._queued_work.worker})
        if lost:
            self._queued_work.change(self._give_back(lost))
        return False

    def _take_from(self, queue):
        """Takes a portion of a queue.

        Returns:
          The queue if it has changed, else None; and the answer: the portion
          or None, and whether the epoch is over.
        """
        queue = self._current(queue)
        if queue is None:
            return None, (None, True)
        portion = queue.take(self._queued_work.worker)
        self._held = queue.held()
        # Also by workers that may be gone when a server is started again.
        self._done.update(queue.done())
        return queue, (portion, queue.is_done)

    def _current(self, queue):
        """The queue of this epoch, begun if need be; None if that is over."""
        if queue is not None and queue.epoch > self._number:
            return None
        held = {}
        if queue is None or queue.epoch < self._number:
            before = queue
            queue = portion_queue.PortionQueue(self._number, self._ends)
            # Of a queue that was lost with its server. `LostWorkers` frees
            # those of workers that are gone.
            held.update(self._held)
            if before is not None:
                queue.counts, queue.returned = before.counts, before.returned
        if queue.ends != self._ends:
            raise ValueError(
                "Argument `x` must be the same data on all workers with "
                f'work="queue". Received: {self._ends[-1]} batches in '
                f"{len(self._ends)} portions, where another worker has "
                f"{queue.ends[-1]} in {len(queue)}"
            )
        held.pop(self._queued_work.worker, None)
        if self._portion is not None:
            held[self._queued_work.worker] = self._portion.number
        queue.know(self._done, held)
        return queue

    def _tell_known(self, queue):
        return self._current(queue), None

    def _give_back(self, workers):
        """Returns a change of the queue: some workers' portions are free."""

        def give_back(queue):
            queue = self._current(queue)
            if queue is None:
                return None, None
            if found := queue.give_back(workers):
                names = [self._queued_work.names[worker] for worker in workers]
                logging.warning(
                    "Portion %s of epoch %d comes back: %s is gone or has "
                    "stopped.",
                    ", ".join(str(number + 1) for number in found),
                    self._epoch + 1,
                    ", ".join(names),
                )
            return queue, None

        return give_back

    def _describe(self):
        under_way = ", ".join(
            f"portion {number + 1} ({self._queued_work.names[worker]})"
            for worker, number in sorted(self._held.items())
        )
        return f"the end of epoch {self._epoch + 1}: {under_way}"

    def _end(self):
        """Logs how an epoch has ended, once."""
        self._is_over = True
        queue = self._queued_work.queue()
        if queue is None or queue.epoch != self._number:
            # Others are further.
            call = 0 if queue is None else queue.epoch // _MAX_EPOCHS
            if call > self._call and not self._is_last:
                logging.warning(
                    "Others have begun call %d of `fit`: the rest of call %d, "
                    "from epoch %d on, is skipped.",
                    call,
                    self._call,
                    self._epoch + 1,
                )
                self._model.stop_training = True
            return
        if not queue.is_done:
            logging.warning(
                "Epoch %d ends with %d of %d portions; the others have not "
                "been seen.",
                self._epoch + 1,
                len(queue.done()),
                len(queue),
            )
        elif self._queued_work.is_chief:
            logging.info(
                "Epoch %d has seen all %d portions; %d have come back so far.",
                self._epoch + 1,
                len(queue),
                queue.returned,
            )
