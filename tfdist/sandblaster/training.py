"""The training of one strategy: its parts, and who is there."""

import functools
import time
import warnings
import weakref

from absl import logging

from tfdist import private_keras_calls
from tfdist.cluster import member_table
from tfdist.cluster import shared_record
from tfdist.sandblaster import coordinator as coordinator_lib
from tfdist.sandblaster import deposits as deposits_lib
from tfdist.sandblaster import evaluation as evaluation_lib
from tfdist.sandblaster import fence as fence_lib
from tfdist.sandblaster import followers
from tfdist.sandblaster import iteration_snapshots
from tfdist.sandblaster import left_out_models
from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import minimizing_fit
from tfdist.sandblaster import portion_worker
from tfdist.sandblaster import samples
from tfdist.sandblaster import saved_memory
from tfdist.sandblaster import server_loss
from tfdist.sandblaster import shards as shards_lib
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
      files: The `Files` of this task.

    Attributes:
      board: The `SharedRecord` of the portions.
      followers: The `Followers`.
      left_out: The `LeftOutModels`.
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
        files,
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
        self.followers = followers.Followers(
            namespace,
            device,
            self._here,
            config.worker_id,
            config.num_workers,
            self._membership,
            tolerance,
        )
        self._fence = fence_lib.Fence(namespace, self._devices, self._here)
        self._losses = server_loss.NoLoss()
        if self._membership is not None:
            waits = tolerance.on_stall == "wait"
            self._losses = server_loss.ServerLoss(
                config,
                connections.look_up,
                self._membership,
                self._fence,
                float("inf") if waits else tolerance.server_timeout,
            )
        self._snapshots = iteration_snapshots.IterationSnapshots(
            namespace, self._devices, self._here
        )
        self.left_out = left_out_models.LeftOutModels(config, files)
        # The last call of `fit` and its number; and by model what the servers
        # hold.
        self._fit, self._number = None, -1
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
        # One that has raised before its first step is none.
        number = self._number
        if self._fit is None or self._fit.is_call:
            number += 1
        board, is_from_snapshot = self.over_losses(self._known)
        fit = board.get("fit", -1)
        is_past = fit > number
        if not self._config.is_chief:
            # While it reads its data, too, the chief waits for it.
            ended = number if is_past else number - 1
            self.over_losses(lambda: self.followers.note(ended))
        if is_past:
            _tell_left_out(number, fit, is_from_snapshot)
            # One without epochs would have trained nothing.
            if private_keras_calls.has_epochs(frame):
                self.left_out.add(private_keras_calls.model_of(frame), number)
        if self._fit is not None:
            self._fit.release()
        self._fit = minimizing_fit.MinimizingFit(
            self, number, frame, running, is_past
        )
        self._number = number
        if fit == number and board.get("done"):
            self._fit.go_on(frame, board, is_from_snapshot)
        return number

    def _known(self):
        """The call of `fit` under way.

        Returns:
          A dict with `fit` and `done`, empty if there is none; and whether it
          is that of a snapshot, as the first server has lost it.
        """
        board = self.board.read()
        if board or not self._config.is_chief:
            return board, False
        self._snapshots.look()
        records = self._snapshots.records()
        return (records[0][1], True) if records else ({}, False)

    def over_losses(self, function):
        """Calls a function that talks to servers, again if some were lost.

        Args:
          function: Callable without arguments that may be called several times.

        Returns:
          What it returns.

        Raises:
          TimeoutError: A server is gone for too long; the message names it.
        """
        return self._losses.call(function, self._put_back)

    def _put_back(self):
        if self._fit is not None:
            self._fit.put_back()

    @property
    def recoveries(self):
        """Losses of servers, a list of `reconnection.ServerReturn`."""
        return list(self._losses.events)

    def await_coordinator(self):
        """Waits until the chief has put back what servers have lost.

        Raises:
          TimeoutError: It has not in time; the message names the servers.
          CoordinatorGoneError: The chief is gone for good.
        """
        self._losses.wait_until_whole(self._check_chief)

    def call(self, function, iterator):
        """Takes the place of a model's `train_function`."""
        if private_keras_calls.fit_under_way() is None:
            # `train_on_batch`, which the optimizer refuses.
            return function(iterator)
        return self._fit.step(iterator)

    def name_of(self, number):
        """The name that servers have for the vectors of a call of `fit`.

        A process that was started again has not seen the calls before, of
        which this one may go on with the vectors.

        Args:
          number: Number of the call.

        Returns:
          The name, or None on the chief if it is the first to begin.
        """
        if self._config.is_chief:
            self._snapshots.look()
            records = [one for _, one in self._snapshots.records()]
            records = [self._progress.read(), *records]
        else:
            self.await_chief(lambda: self.board.read().get("fit", -1) >= number)
            records = [self._progress.read()]
        return next(
            (
                record["description"]["name"]
                for record in records
                if record.get("fit") == number
            ),
            None,
        )

    def begin(self, model, gradients, batches, number, name):
        """Makes the parts of one call of `fit`.

        Args:
          model: The `keras.Model`.
          gradients: Its `PortionGradients`.
          batches: List of the batches of the data set.
          number: Number of the call.
          name: From `name_of`.

        Returns:
          A tuple: the `PortionWorker`, the `Coordinator` (None on other tasks
          than the chief), and the description of the call.

        Raises:
          ProgramError: The model has untrained weights, see `LeftOutModels`.
        """
        if self._config.is_chief and name is None:
            self.left_out.check(model, number)
        held = self._models.get(model)
        settings = model.optimizer.get_config()
        if (
            held is None
            or (held.signature, held.settings)
            != (
                gradients.signature,
                settings,
            )
            or (name and held.name != name)
        ):
            held = _OnServers(
                name or f"{self._namespace}/{number}",
                gradients,
                model.optimizer,
                self._fence,
                self._here,
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
            "untrained": whole_data.checksum(gradients.untrained()),
            "data": whole_data.checksum(batches),
            "batches": len(batches),
            "name": held.name,
        }
        coordinator = None
        optimizer = model.optimizer
        chosen = None
        if optimizer.sample < 1:
            chosen = samples.Samples(
                len(portions), optimizer.sample, optimizer.overlap
            )
        if self._config.is_chief:
            model.optimizer.attach(functools.partial(self._collect, held))
            coordinator = coordinator_lib.Coordinator(
                self.board,
                self._progress,
                held,
                self._snapshots,
                worker,
                evaluation_lib.Evaluation(
                    self.board,
                    held,
                    worker,
                    len(portions),
                    self._patience,
                    self.followers.absent_workers(),
                    chosen,
                ),
            )
        return worker, coordinator, description

    def _collect(self, held):
        """Returns what `saved_memory.collect` does."""

        def collect():
            self._fit.catch_up()
            if self._fence.missing():
                logging.warning(
                    "The model is saved without the memory of L-BFGS, which "
                    "the parameter servers have lost."
                )
                return {}
            return saved_memory.collect(held.shards, held.name, self._progress)

        return self.over_losses(collect)

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
          CoordinatorGoneError: The chief is gone for good.
        """
        began = looked = time.monotonic()
        while not is_there():
            now = time.monotonic()
            if self._membership is not None and now - looked > _LOOK_SECONDS:
                looked = now
                self._check_chief(now - began)
            time.sleep(evaluation_lib.POLL_SECONDS)

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
            raise server_loss.CoordinatorGoneError(
                f"The coordinator, {chief.name}, has not been there for "
                f"{silent:.0f} s ({chief.state.name.lower()}): nobody goes on "
                "with the minimization.",
            )


def _tell_left_out(number, fit, is_from_snapshot):
    reason = "this process was started after the chief had begun call %d."
    if is_from_snapshot:
        reason = (
            "a snapshot of parameter servers is of call %d. If it is of "
            "another program, give each program a `snapshot_dir` of its own."
        )
    logging.warning(
        "Call %d of `fit` is left out, and the model keeps its weights: "
        + reason,
        number + 1,
        fit + 1,
    )


class _OnServers:
    """Vectors and records of one model, the same for several calls of `fit`."""

    def __init__(self, name, gradients, optimizer, fence, here):
        self.name = name
        self.signature = gradients.signature
        self.settings = optimizer.get_config()
        self.shards = shards_lib.Shards(
            name,
            gradients.number,
            gradients.dtype,
            fence.devices,
            here,
            minimizer_lib.rows(optimizer.memory),
            fence,
        )
        self.stored = iteration_snapshots.StoredShards(self.shards)
        self.deposits = deposits_lib.Deposits(self.shards, name, here)
        self.minimizer = minimizer_lib.Minimizer.of(self.shards, optimizer)
