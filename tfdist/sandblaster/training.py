"""Calls of `fit`: an epoch is an iteration of all workers."""

import itertools
import time
import warnings
import weakref

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist import private_keras_calls
from tfdist.cluster import member_table
from tfdist.sandblaster import coordinator as coordinator_lib
from tfdist.sandblaster import deposits as deposits_lib
from tfdist.sandblaster import lbfgs
from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import portion_gradients
from tfdist.sandblaster import portion_worker
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
        number = next(self._calls)
        self._fit = _Fit(self, number, frame, running)
        return number

    def call(self, function, iterator):
        """Takes the place of a model's `train_function`."""
        del function
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
        if held is None or held.signature != gradients.signature:
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
    """One call of `fit`."""

    def __init__(self, training, number, frame, running):
        self._training = training
        self._number = number
        self._model = private_keras_calls.model_of(frame)
        self._steps_per_epoch = private_keras_calls.steps_per_epoch_of(frame)
        self._running = running
        self._gradients = None
        self._worker = self._coordinator = self._description = None
        # Iterations that this worker has seen.
        self._seen = 0
        _check_optimizer(self._model)

    def step(self, iterator):
        """Takes part in an iteration; at the second step, ends the epoch.

        Args:
          iterator: Of the data of an epoch.

        Returns:
          Keras's logs.

        Raises:
          StopIteration: The epoch has had its step.
        """
        if not private_keras_calls.is_first_step_of_epoch():
            raise StopIteration
        if self._worker is None:
            self._begin(iterator)
        if self._coordinator is not None:
            result = self._coordinator.iterate(
                self._number, self._seen, self._description
            )
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
        self._worker, self._coordinator, self._description = training.begin(
            self._model, self._gradients, batches, self._number
        )
        if self._coordinator is not None:
            goes_on = self._coordinator.begin(
                self._number, self._description, self._gradients.values()
            )
            if goes_on:
                logging.warning(
                    "Goes on with the minimization that the chief had begun."
                )
            self._running.before_end(self._coordinator.end)
            return
        training.await_chief(
            lambda: training.board.read().get("fit", -1) >= self._number
        )
        progress = training.progress()
        if progress["fit"] == self._number:
            whole_data.compare(progress["description"], self._description)

    def _follow(self):
        """Works until the iteration has ended; returns its result, or None."""
        training = self._training

        def is_over():
            while True:
                board = training.board.read()
                if self._is_past(board) or board["done"] > self._seen:
                    return True
                if not self._worker.work():
                    return False

        training.await_chief(is_over)
        if self._is_past(training.board.read()):
            self._model.stop_training = True
        progress = training.progress()
        return progress["result"] if progress["fit"] == self._number else None

    def _is_past(self, board):
        """Whether the chief has ended this call of `fit`."""
        if board["fit"] != self._number:
            return True
        return board["ended"] and board["done"] <= self._seen

    def _show(self, result):
        """The model is where the iteration has led to, and its metrics."""
        self._worker.load(result["point"], result["evaluation"])
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
