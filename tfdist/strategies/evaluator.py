"""Evaluation beside the training, by a task that does not train."""

from collections.abc import Sequence
import importlib.util
import json
import os
import pathlib
import time
from typing import Any

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist import private_keras_building

_POLL_SECONDS = 0.5


class SidecarEvaluator:
    """Evaluates the newest parameters again and again until training is over.

    For the `evaluator` task of a cluster, which runs the same script as all
    others:

    ```python
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = build_model()
        model.compile(...)
    if strategy.cluster.is_evaluator:
        tfdist.SidecarEvaluator(model, data=test, log_dir=log_dir).start()
    else:
        model.fit(train, ...)
    ```

    The parameters, and state such as moving averages, come from the servers;
    no checkpoint is needed. The model may be compiled without an optimizer if
    the trainers compile after they build: what is read from the servers are
    the first variables that the trainers made.

    Args:
      model: Compiled `keras.Model`, built under the scope of a tfdist
        strategy.
      data: What `model.evaluate` takes as `x`; or a tuple `(x, y)` or
        `(x, y, sample_weight)` of arrays.
      steps: Batches of one evaluation; None for all.
      log_dir: Directory of `eval.jsonl`, made if need be, which is
        overwritten; None writes none. Each line is an object with `step`
        (updates that had been applied to what was evaluated), `time` (seconds
        since `start`) and the metrics. If TensorBoard is installed, its
        events go to `evaluator/` below.
      interval_seconds: From the start of one evaluation to that of the next,
        if it does not take longer. While nothing new has been applied there
        is none.
      callbacks: List of Keras callbacks for `model.evaluate`.
      verbose: 1 prints a line for each evaluation, 0 does not.

    Raises:
      ValueError: An argument is malformed, or the model was not built under
        a strategy of tfdist.
    """

    def __init__(
        self,
        model: keras.Model,
        data: Any,
        *,
        steps: int | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        interval_seconds: float = 10.0,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        verbose: int = 1,
    ):
        self._interval = checks.not_negative(
            "interval_seconds", interval_seconds
        )
        if steps is not None:
            steps = checks.count("steps", steps)
        if log_dir is not None:
            log_dir = pathlib.Path(checks.path("log_dir", log_dir))
        strategy = getattr(model, "distribute_strategy", None)
        if not hasattr(strategy, "training_is_over"):
            raise ValueError(
                "Argument `model` must be built and compiled under the scope "
                "of a tfdist strategy. Received: a model of "
                f"{type(strategy).__name__}"
            )
        if strategy.cluster.is_worker and not strategy.cluster.is_local:
            raise ValueError(
                f"SidecarEvaluator on {strategy.cluster.task_name}: it would "
                "wait for this very worker to finish training. Use it on the "
                "task whose strategy.cluster.is_evaluator."
            )
        self._model = model
        self._strategy = strategy
        data = data if isinstance(data, tuple) else (data,)
        names = ("x", "y", "sample_weight")
        if len(data) > len(names):
            raise ValueError(
                "Argument `data` must be what model.evaluate takes as x, or a "
                "tuple (x, y) or (x, y, sample_weight). Received: a tuple of "
                f"{len(data)} parts"
            )
        self._data = dict(zip(names, data, strict=False))
        self._steps = steps
        self._log_dir = log_dir
        self._callbacks = callbacks
        self._verbose = verbose
        self._file = self._events = None

    def start(self) -> dict[str, float]:
        """Evaluates until training is over, and then once more.

        Returns:
          A dict: the metrics of the last evaluation, which is that of the
          parameters at the end of the training.

        Raises:
          TimeoutError: The chief did not initialise the variables within the
            strategy's `start_timeout`, or all workers have vanished
            unfinished.
        """
        self._began = time.monotonic()
        self._open()
        try:
            self._build()
            self._strategy.pull()
            evaluated = None
            while True:
                # Asked first: what is evaluated then is the end.
                over = self._strategy.training_is_over()
                due = time.monotonic() + self._interval
                if over or max(self._strategy.updates_applied()) != evaluated:
                    metrics = self._evaluate()
                    evaluated = metrics.pop("step")
                if over:
                    return metrics
                self._wait(due)
        finally:
            if self._file is not None:
                self._file.close()
            if self._events is not None:
                self._events.close()

    def _open(self):
        if self._log_dir is None:
            return
        self._log_dir.mkdir(parents=True, exist_ok=True)
        path = self._log_dir / "eval.jsonl"
        self._file = path.open("w", encoding="utf-8")
        if importlib.util.find_spec("tensorboard") is None:
            logging.warning(
                "TensorBoard is not installed: SidecarEvaluator writes JSON "
                "lines alone (pip install 'tfdist[tensorboard]')."
            )
            return
        self._events = tf.summary.create_file_writer(
            str(self._log_dir / "evaluator")
        )

    def _build(self):
        # Variables that do not exist yet cannot be refreshed.
        if not private_keras_building.is_built(self._model):
            if private_keras_building.has_own_train_step(self._model):
                logging.warning(
                    "SidecarEvaluator builds the layers of model %r in the "
                    "order of its `test_step`, and those who train in that of "
                    "its `train_step`. If these differ, layers of the same "
                    "shapes get each other's weights. Build the layers in the "
                    "script, on all tasks: call them on a batch under "
                    "`strategy.scope()`, or give their models a keras.Input.",
                    self._model.name,
                )
            self._model.evaluate(**self._data, steps=1, verbose=0)

    def _evaluate(self):
        # Under a strategy of ours, `evaluate` refreshes the replicas itself.
        metrics = self._model.evaluate(
            **self._data,
            steps=self._steps,
            callbacks=self._callbacks,
            verbose=0,
            return_dict=True,
        )
        metrics = {k: _plain(value) for k, value in metrics.items()}
        step = self._strategy.updates_pulled()
        if self._file is not None:
            seconds = time.monotonic() - self._began
            row = {"step": step, "time": seconds, **metrics}
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        if self._events is not None:
            with self._events.as_default(step=step):
                for name, value in metrics.items():
                    if isinstance(value, float):
                        tf.summary.scalar(f"evaluation/{name}", value)
            self._events.flush()
        if self._verbose:
            shown = ", ".join(f"{k}: {_shown(v)}" for k, v in metrics.items())
            print(f"Evaluation after {step} updates: {shown}")
        return {"step": step, **metrics}

    def _wait(self, due):
        """Waits until `due`, or until training is over."""
        while (left := due - time.monotonic()) > 0:
            if self._strategy.training_is_over():
                return
            time.sleep(min(left, _POLL_SECONDS))
        # With an interval of 0, and nothing new to evaluate.
        time.sleep(0.01)


def _plain(value):
    """A metric's value as JSON can hold it: a float, or nested lists."""
    return np.asarray(value).astype(float).tolist()


def _shown(value):
    return f"{value:.4f}" if isinstance(value, float) else str(value)
