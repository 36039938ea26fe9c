"""Records every exchange of every worker, and sums up the cluster's."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import time
from typing import Any

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist import own_callbacks
from tfdist import private_keras_calls
from tfdist.callbacks import summary as summary_lib
from tfdist.cluster import preemption

# A worker keeps its last 8,192 exchanges: it writes them before that.
_MOST_EXCHANGES = 4096
_STEPS_FILE = re.compile(r"steps-((?:chief|worker)-\d+)\.jsonl")
# Fields that say which step it was: their means mean nothing.
_NO_FIGURES = ("time", "version", "pulled", "arrival", "pulled_by_server")
# What a disk without room raises, in Python and in TensorFlow.
_OF_THE_DISK = (OSError, tf.errors.OpError)
# What is wrong with a path, and not with the disk.
_OF_THE_PATH = (
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class ClusterMonitor(keras.callbacks.Callback):
    """Shows staleness, time and traffic while a model trains on a cluster.

    Pass it to `fit` on every worker. Each writes its own file of JSON lines,
    one object per exchange, that is per optimizer step unless there are local
    steps between exchanges (the fields of
    `tfdist.exchange_record.ExchangeRecord`, with its number as `step`
    and with `time` in seconds since training began), and its own events for
    TensorBoard, averages over `every_batches` steps. After each epoch the
    metrics of the whole cluster join the logs as `cluster_<name>`: the others
    are those of the worker whose progress bar it is, on its own share of the
    data.

    Where the disk is full, an error is logged, and that call of
    `fit` goes on without the files.

    Before each epoch but the first the worker's parameters are refreshed, as
    others go on while one validates.

    When training ends, every worker waits for the others, and the chief prints
    a summary, also found in `summary`. Of workers that have died or left it
    knows what they did until the end of their last epoch, or until they were
    told to leave; and their steps and mean staleness as the servers have
    counted them.

    Args:
      log_dir: Directory of the files, made if need be; None writes none.
      every_batches: Steps between two writes; after 4,096 exchanges it writes
        in any case.
      verbose: 0 prints no summary.

    Attributes:
      jsonl_path: Path of this worker's file, or None.
      summary: Dict with the cluster's figures, on the chief after training;
        see `tfdist.callbacks.summary.summarize`. None in a chief that was
        started again, of a call of `fit` that is over for the others.

    Raises:
      ValueError: An argument is malformed, or the model was not built
        under a strategy of tfdist.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *,
        every_batches: int = 50,
        verbose: int = 1,
    ):
        super().__init__()
        # Workers wait for each other when a call of `fit` with it ends.
        self.ends_together = True
        if log_dir is not None:
            log_dir = pathlib.Path(checks.path("log_dir", log_dir))
        self._log_dir = log_dir
        self._every = checks.count("every_batches", every_batches)
        self._published = True
        # Whether the others know that this worker has been told to leave.
        self._leaves = False
        self._verbose = verbose
        self.jsonl_path = None
        self.summary = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "journal"):
            raise ValueError(
                "Argument `model` must be built and compiled under the scope "
                "of a tfdist strategy for a ClusterMonitor, other than "
                "SandblasterStrategy and PipelineStrategy. Received: a model "
                f"of {type(strategy).__name__}"
            )
        self._strategy = strategy
        _publish_first(self._publish_metrics)
        cluster = strategy.cluster
        self._name = f"{cluster.task_type}-{cluster.task_index}"
        # The number of the first exchange of this training, and of the next.
        self._first = self._next = strategy.journal.count
        self._written_at = -1
        self._between = strategy.journal.bytes_between
        self._began = time.time()
        self._epochs = 0
        # Names in the logs of epochs in which this worker has had a batch.
        self._shown, self._has_batch = set(), False
        self._fit = strategy.state.fit_number
        self._before = self._counts_before()
        self._figures = summary_lib.WorkerFigures(
            self._before.get(cluster.task_name), self._fit
        )
        self._file = self._events = None
        # Files of a call that this process passes have what there is to say.
        if self._log_dir is not None and not strategy.state.is_passed:
            try:
                self._open(cluster)
            except _OF_THE_PATH:
                raise
            except _OF_THE_DISK as error:
                self._give_up(error)
        if cluster.num_workers > 1 and cluster.is_chief and self._verbose:
            # Reports of others are left on servers.
            all_of = "cluster_* are those of all"
            shares = strategy.data_shares
            data = "the data that it is given (sharding is off)"
            if shares is not None:
                # Or portions: `work="queue"`.
                data = f"its part of the data, which {shares} workers share"
            print(
                f"Progress and metrics are those of {cluster.task_name} on "
                f"{data}; {all_of if cluster.num_ps else 'so are cluster_*'}."
            )

        # What this worker reported in an earlier call of `fit` is over, and
        # another process of this worker finds what was counted before.
        self._publish(0.0)

    def _counts_before(self):
        """Returns the counts before this call of `fit`, by worker."""
        strategy = self._strategy
        # What an earlier process of this worker did in the first call belongs
        # to it.
        if not self._first and self._fit <= 1:
            return {}
        counts = strategy.gradient_counts()
        if not self._first:
            name = strategy.cluster.task_name
            left = strategy.collect("figures").get(name)
            if left is not None and left["fit"] == self._fit:
                counts[name] = left["counts_before"]
        return counts

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._has_batch = True
        waiting = self._strategy.journal.count - self._next
        # With `steps_per_execution` batches come several at a time.
        if (
            batch - self._written_at >= self._every
            or waiting >= _MOST_EXCHANGES
        ):
            self._written_at = batch
            self._record()
        # Not `strategy.preempted`: with that the script itself looks.
        if preemption.received() and not self._leaves:
            # `fit` may end here, and not by `on_train_end`.
            self._leaves = True
            self._report()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._epochs:
            # Others went on while this worker validated and saved: its next
            # gradient would be that much late.
            self._strategy.pull()
        self._epochs += 1
        self._published = self._has_batch = False
        self._written_at = -1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        # Validation at the end of an epoch is about to reset the metrics.
        self._publish_metrics()
        if self._strategy.uses_lookahead:
            self._strategy.pull()

    def _publish_metrics(self):
        if not self._published:
            self._published = True
            self._strategy.publish_metrics(self.model)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._report()
        self._publish_metrics()
        if logs is not None:
            if self._has_batch:
                self._shown |= logs.keys()
            for name, value in self._cluster_metrics().items():
                # Keras's progress bar takes no list.
                several = isinstance(value, list)
                logs[f"cluster_{name}"] = np.array(value) if several else value

    def _cluster_metrics(self):
        """Those that steps report; of a `train_step` of the user's, not all.

        The others, such as the loss of `compile`, may never be updated.
        """
        metrics = self._strategy.cluster_metrics(self.model)
        if not self._shown:
            return metrics
        return {k: metrics[k] for k in metrics if k in self._shown}

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # The last local steps are part of what is recorded.
        self._strategy.flush()
        self._report()
        try:
            for file in self._files():
                file.close()
        except _OF_THE_DISK as error:
            self._give_up(error)
        self._strategy.await_end_of_training(self._summarize)

    def _summarize(self):
        """Sums up what all workers have reported, on the chief."""
        if not self._strategy.cluster.is_chief:
            return
        reports = self._strategy.collect("figures")
        state = self._strategy.state
        if state.is_passed and (
            any(report["fit"] > self._fit for report in reports.values())
            or state.others_have_later_call()
        ):
            # Servers count what all calls have made, those after it as well.
            logging.info(
                "No summary of a call of `fit` that is over for the others."
            )
            return
        self.summary = summary_lib.summarize(
            {n: r for n, r in reports.items() if r["fit"] == self._fit},
            self._strategy.updates_applied(),
            self._strategy.gradient_counts(),
            self._before,
        )
        self.summary["metrics"] = self._cluster_metrics()
        if self._verbose:
            is_local = self._strategy.cluster.is_local
            print(summary_lib.table(self.summary, is_local))

    def _report(self):
        """Leaves this worker's figures so far for the chief."""
        self._record()
        seconds = time.time() - self._began
        between = self._strategy.journal.bytes_between - self._between
        self._publish(seconds, between)

    def _publish(self, seconds, bytes_between=0):
        # In a call that it passes, a process of a worker that is started again
        # leaves what the one before has reported of a later call.
        if not self._strategy.state.is_passed:
            report = self._figures.report(seconds, bytes_between)
            self._strategy.publish("figures", report)

    def _record(self):
        known = self._next
        exchanges, self._next = self._strategy.journal.read_from(known)
        if not exchanges:
            return
        first = self._next - len(exchanges)
        if first > known:
            logging.warning(
                "ClusterMonitor has not seen %d exchanges: there were more "
                "than a worker keeps since it last looked. Use a smaller "
                "`steps_per_execution`.",
                first - known,
            )
        self._figures.add(exchanges)
        if self._file is None:
            return
        try:
            self._write(exchanges, first)
        except _OF_THE_DISK as error:
            self._give_up(error)

    def _open(self, cluster):
        """Opens this worker's files, in a directory that is made if need be.

        Args:
          cluster: The `ClusterConfig`.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        if cluster.is_chief:
            _remove_steps_of_others(self._log_dir, cluster.worker_names)
        self.jsonl_path = self._log_dir / f"steps-{self._name}.jsonl"
        self._file = self.jsonl_path.open("w", encoding="utf-8")
        self._events = _event_writer(self._log_dir / "cluster" / self._name)

    def _files(self):
        """Those that are open, a list."""
        return [f for f in (self._file, self._events) if f is not None]

    def _give_up(self, error):
        """Writes no more in this call of `fit`, which goes on."""
        logging.error(
            "ClusterMonitor cannot write to %s; training goes on, and nothing "
            "more of it is written there: %s",
            self._log_dir,
            str(error).splitlines()[0],
        )
        for file in self._files():
            # It tries once more to write what it has.
            with contextlib.suppress(*_OF_THE_DISK):
                file.close()
        self._file = self._events = None

    def _write(self, exchanges, first):
        """Writes exchanges to this worker's files.

        Args:
          exchanges: List of `ExchangeRecord`.
          first: Number of the first of them.
        """
        for step, exchange in enumerate(exchanges, first - self._first + 1):
            row = dataclasses.asdict(exchange)
            row["time"] = exchange.time - self._began
            self._file.write(json.dumps({"step": step, **row}) + "\n")
        self._file.flush()
        if self._events is None:
            return
        with self._events.as_default(step=exchanges[-1].version):
            for field in dataclasses.fields(exchanges[0]):
                if field.name not in _NO_FIGURES:
                    values = [getattr(e, field.name) for e in exchanges]
                    tf.summary.scalar(
                        f"cluster/{field.name}", sum(values) / len(values)
                    )


def _publish_first(publish):
    """Publishes an epoch's metrics before another callback resets them.

    A callback that evaluates the model does, and may come before the monitor.
    """
    call = private_keras_calls.fit_under_way()
    listed = call and private_keras_calls.callbacks_of(call)
    if isinstance(listed, keras.callbacks.CallbackList):
        first = {"on_epoch_end": lambda epoch, logs=None: publish()}
        own_callbacks.put_around(listed, __name__, first)


def _remove_steps_of_others(directory, names):
    """Removes files of steps of workers that the cluster does not have.

    An earlier training with more workers has left them, and who reads the
    directory would take them for this training's.

    Args:
      directory: The monitor's `log_dir`.
      names: Of all workers that the cluster may have, also of those that have
        not started yet.
    """
    kept = {name.removeprefix("/job:").replace("/task:", "-") for name in names}
    for path in directory.glob("steps-*.jsonl"):
        match = _STEPS_FILE.fullmatch(path.name)
        if match and match[1] not in kept:
            path.unlink(missing_ok=True)


def _event_writer(directory):
    """Writer of TensorBoard's events, None if TensorBoard is not there."""
    if importlib.util.find_spec("tensorboard") is None:
        logging.warning(
            "TensorBoard is not installed: ClusterMonitor writes JSON lines "
            "alone (pip install 'tfdist[tensorboard]')."
        )
        return None
    return tf.summary.create_file_writer(str(directory))
