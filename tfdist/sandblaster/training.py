"""Calls of `fit`: an epoch is an iteration of all workers."""

import functools
import itertools
import time
import warnings
import weakref

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist.cluster import member_table
from tfdist.cluster import preemption
from tfdist.sandblaster import coordinator as coordinator_lib
from tfdist.sandblaster import deposits as deposits_lib
from tfdist.sandblaster import lbfgs
from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import portion_gradients
from tfdist.sandblaster import portion_worker
from tfdist.sandblaster import saved_memory
from tfdist.sandblaster import shards as shards_lib
from tfdist.sandblaster import shared_record
from tfdist.sandblaster import whole_data

# Seconds between two looks at the table of members.
_LOOK_SECONDS = 1.0


class SandblasterTraining:
    """All calls of `fit` under one strategy, on this worker.

    Args:
      strategy: The strategy.
      config: The `ClusterConfig`.
      connections: The `Connections`.
      namespace: Prefix of the resources' names, the same on all workers.
      portions_per_worker: Into how many portions the data is cut, times the
        number of workers.
      patience: As of `WorkQueue`.
      tolerance: The `FaultTolerance`.

    Attributes:
      iterations: Results of the iterations that this worker has seen, a list
        of dicts; see `Coordinator.iterate`.
    """

    def __init__(
        self,
        strategy,
        config,
        connections,
        namespace,
        portions_per_worker,
        patience,
        tolerance,
    ):
        self._strategy = weakref.ref(strategy)
        self._config = config
        self._devices = connections.devices
        self._here = connections.worker_device
        self._namespace = namespace
        self._num_portions = portions_per_worker * config.num_workers
        self._patience = patience
        self._tolerance = tolerance
        self._membership = connections.membership
        device = self._devices[0]
        self.board = shared_record.SharedRecord(
            f"{namespace}/board", device, self._here
        )
        self._progress = shared_record.SharedRecord(
            f"{namespace}/progress", device, self._here
        )
        self._calls = itertools.count()
        # Call of `fit` -> its `_Fit`; and by model what the servers hold.
        self._fit = None
        self._models = weakref.WeakKeyDictionary()
        self.iterations = []
        # An epoch has one step, and Keras expects one for each batch.
        warnings.filterwarnings("ignore", "Your input ran out of data")

    def watch(self, frame, running):
        """Takes note of a call of `fit` that asks for its data.

        Args:
          frame: Its frame.
          running: Its `RunningFit`.

        Returns:
          The number of the call, the same on all workers.
        """
        if self._fit is not None and not self._fit.running.is_over():
            raise NotImplementedError(
                "`fit` must not be called within another `fit` under "
                "SandblasterStrategy."
            )
        number = next(self._calls)
        board = self.board.read()
        fit, done = board.get("fit", -1), board.get("done", 0)
        self._fit = _Fit(self, number, frame, running, fit > number)
        if fit == number and done:
            self._fit.go_on(frame, done)
        return number

    def call(self, function, iterator):
        """Takes the place of a model's `train_function`."""
        if private_keras_calls.fit_under_way() is None:
            # `train_on_batch`, which the optimizer refuses.
            return function(iterator)
        return self._fit.step(iterator)

    def begin(self, model, gradients, batches, number):
        """Makes the parts of one call of `fit`.

        Args:
          model: The `keras.Model`.
          gradients: Its `PortionGradients`.
          batches: List of the batches of the data set.
          number: Number of the call.

        Returns:
          A tuple: the `PortionWorker`, the `Coordinator` (None on other tasks
          than the chief), and the description of the call.
        """
        held = self._models.get(model)
        settings = model.optimizer.get_config()
        if held is None or (held.signature, held.settings) != (
            gradients.signature,
            settings,
        ):
            name = f"{self._namespace}/{number}"
            held = _OnServers(
                name, gradients, model.optimizer, self._devices, self._here
            )
            self._models[model] = held
        portions = whole_data.portions(batches, self._num_portions)
        worker = portion_worker.PortionWorker(
            self.board,
            held.shards,
            held.deposits,
            gradients,
            portions,
            self._config.worker_id,
        )
        description = {
            "variables": gradients.signature,
            "settings": repr(sorted(held.settings.items())),
            "data": whole_data.checksum(batches),
            "batches": len(batches),
            "name": held.name,
        }
        coordinator = None
        if self._config.is_chief:
            model.optimizer.attach(
                functools.partial(
                    saved_memory.collect, held.shards, held.name, self._progress
                )
            )
            coordinator = coordinator_lib.Coordinator(
                self.board,
                self._progress,
                held.shards,
                held.deposits,
                worker,
                held.minimizer,
                len(portions),
                self._patience,
                _LostWorkers(self._membership, self._tolerance.worker_timeout),
            )
        return worker, coordinator, description

    def strategy(self):
        """The strategy."""
        return self._strategy()

    def progress(self):
        """The record of the minimization, a dict."""
        return self._progress.read()

    def await_chief(self, is_there):
        """Waits for something that the chief does.

        Args:
          is_there: Callable without arguments.

        Raises:
          tf.errors.UnavailableError: The chief is gone for good.
        """
        began = looked = time.monotonic()
        while not is_there():
            now = time.monotonic()
            if self._membership is not None and now - looked > _LOOK_SECONDS:
                looked = now
                self._check_chief(now - began)
            time.sleep(coordinator_lib.POLL_SECONDS)

    def _check_chief(self, waited):
        chief = self._membership.read()[0]
        states = member_table.MemberState
        silent = min(chief.silent_for, waited)
        if chief.state is states.UNKNOWN:
            is_gone = waited > self._tolerance.start_timeout
        elif chief.state is states.FINISHED:
            is_gone = waited > _LOOK_SECONDS
        else:
            is_gone = silent > member_table.LOST_AFTER_SECONDS
        if is_gone:
            raise tf.errors.UnavailableError(
                None,
                None,
                f"The coordinator, {chief.name}, has not been there for "
                f"{silent:.0f} s ({chief.state.name.lower()}): nobody goes on "
                "with the minimization.",
            )


class _OnServers:
    """Vectors and records of one model, the same for several calls of `fit`."""

    def __init__(self, name, gradients, optimizer, devices, here):
        self.name = name
        self.signature = gradients.signature
        self.settings = optimizer.get_config()
        self.shards = shards_lib.Shards(
            name,
            gradients.number,
            gradients.dtype,
            devices,
            here,
            minimizer_lib.rows(optimizer.memory),
        )
        self.deposits = deposits_lib.Deposits(self.shards, name, here)
        self.minimizer = minimizer_lib.Minimizer(
            self.shards,
            optimizer.memory,
            optimizer.line_search,
            optimizer.damping,
            optimizer.gradient_tolerance,
            optimizer.value_tolerance,
        )


class _LostWorkers:
    """Numbers of workers that are not there any more."""

    def __init__(self, membership, timeout):
        self._membership = membership
        self._timeout = timeout
        self._looked = -_LOOK_SECONDS

    def __call__(self):
        now = time.monotonic()
        if self._membership is None or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        alive = member_table.MemberState.ALIVE
        return [
            number
            for number, member in enumerate(self._membership.read())
            if member.state is not alive or member.silent_for > self._timeout
        ]


class _Fit:
    """One call of `fit`.

    Args:
      training: The `SandblasterTraining`.
      number: Number of the call.
      frame: Its frame.
      running: Its `RunningFit`.
      is_past: Whether the others have ended it: this process was started again.
    """

    def __init__(self, training, number, frame, running, is_past):
        self._is_past = is_past
        self._training = training
        self._number = number
        self._model = private_keras_calls.model_of(frame)
        self._steps_per_epoch = private_keras_calls.steps_per_epoch_of(frame)
        self.running = running
        self._gradients = None
        self._worker = self._coordinator = self._description = None
        # Iterations that this worker has seen.
        self._seen = 0
        self._is_set = False
        _check_optimizer(self._model)

    def go_on(self, frame, done):
        """Leaves out epochs: this process was started again.

        The last iteration that was made is shown once more.

        Args:
          frame: The frame of `fit`.
          done: Number of iterations that were made.
        """
        self._seen = done - 1
        first = private_keras_calls.initial_epoch_of(frame)
        private_keras.set_initial_epoch(self._model, first + self._seen)
        self._is_set = True

    def step(self, iterator):
        """Takes part in an iteration; at the second step, ends the epoch.

        Args:
          iterator: Of the data of an epoch.

        Returns:
          Keras's logs.

        Raises:
          StopIteration: The epoch has had its step.
        """
        if self._is_set:
            # Only this call of `fit` begins later than the user says.
            private_keras.set_initial_epoch(self._model, None)
            self._is_set = False
        if self._is_past:
            self._model.stop_training = True
        if self._is_past or not private_keras_calls.is_first_step_of_epoch():
            raise StopIteration
        if self._worker is None:
            self._begin(iterator)
        if self._coordinator is not None:
            result = self._coordinator.iterate(
                self._number, self._seen, self._description
            )
            self._worker.load(result["point"], result["evaluation"])
        else:
            result = self._follow()
        self._seen += 1
        if result is not None:
            self._show(result)
        return self._model.get_metrics_result()

    def _begin(self, iterator):
        batches = [
            whole_data.plain(batch)
            for batch in itertools.islice(iterator, self._steps_per_epoch)
        ]
        if not batches:
            raise ValueError(
                "Argument `x` of `fit` must have at least one batch. Received: "
                "no batch"
            )
        training = self._training
        self._gradients = portion_gradients.PortionGradients(
            training.strategy(), self._model
        )
        self.running.before_end(self._end)
        self._worker, self._coordinator, self._description = training.begin(
            self._model, self._gradients, batches, self._number
        )
        if self._coordinator is not None:
            goes_on = self._coordinator.begin(
                self._number,
                self._description,
                self._gradients.values(),
                self._model.optimizer.take_loaded(),
            )
            if goes_on:
                logging.warning(
                    "Goes on with the minimization that the chief had begun."
                )
            return
        training.await_chief(
            lambda: training.board.read().get("fit", -1) >= self._number
        )
        progress = training.progress()
        if progress["fit"] == self._number:
            whole_data.compare(progress["description"], self._description)

    def _end(self):
        """Called when all callbacks have ended."""
        # A chief that has to leave comes back, and goes on.
        if self._coordinator is not None and not preemption.received():
            self._coordinator.end()
        # They have all of the data, and the model.
        self._worker = self._coordinator = self._gradients = None
        self._model = None

    def _follow(self):
        """Works until the iteration has ended; returns its result, or None."""
        training = self._training

        def is_over():
            while True:
                board = training.board.read()
                if self._is_over(board) or board["done"] > self._seen:
                    return True
                if not self._worker.work():
                    return False

        training.await_chief(is_over)
        if self._is_over(training.board.read()):
            self._model.stop_training = True
        return self._catch_up()

    def _catch_up(self):
        """Fetches the newest parameters.

        Returns:
          The result of this worker's iteration (the newest one, if it is far
          behind); None if the chief is in another call of `fit`.
        """
        while True:
            progress = self._training.progress()
            newest = progress["result"]
            if progress["fit"] != self._number or newest is None:
                return None
            self._worker.load(newest["point"], newest["evaluation"])
            # Of the second iteration after it, the vector is a trial point.
            if self._training.progress()["done"] == progress["done"]:
                return dict(progress["recent"]).get(self._seen, newest)

    def _is_over(self, board):
        """Whether the chief has ended this call of `fit`."""
        if board["fit"] != self._number:
            return True
        return board["ended"] and board["done"] <= self._seen

    def _show(self, result):
        """Shows the metrics of an iteration, and stops after the last one."""
        self._gradients.show(np.array(result["totals"]))
        self._model.optimizer.iterations.assign(self._seen)
        self._training.iterations.append(result)
        if coordinator_lib.is_last(result):
            self._model.stop_training = True
            logging.info("Training ends: %s.", result["outcome"])


def _check_optimizer(model):
    if not isinstance(model.optimizer, lbfgs.LBFGS):
        raise ValueError(
            "The optimizer of a model under SandblasterStrategy must be "
            f"tfdist.sandblaster.LBFGS. Received: {model.optimizer!r}"
        )
