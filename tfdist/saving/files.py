"""The choice of the task that writes what all tasks' program saves.

Every task runs the same program. Where each wrote what it saves, they would
write one file at the same time, and leave that of whoever came last.
"""

import contextlib
import os
import tempfile

from absl import logging

from tfdist.program_error import ProgramError


def of(config):
    """The `Files` of a task; `Unshared` where no other task writes any.

    Args:
      config: The `ClusterConfig`.
    """
    alone = config.num_workers == 1 and "evaluator" not in config.spec
    return Unshared() if alone and config.is_chief else Files(config)


class Unshared:
    """See `Files`: those of a task beside which no other one runs."""

    is_shared = False
    writes = True
    writes_logs = True
    task_id = "alone"

    def own(self):
        """Scope in which this task writes what it saves, as always."""
        return contextlib.nullcontext()


class WrittenBefore:
    """See `Files`: those of a model that a restarted chief has not trained.

    The chief's process before has trained and saved it, where this one has
    left out the training.

    Args:
      files: The `Files` of this task.
      is_left_out: Callable without arguments: whether the model has, now, the
        weights of the training that was left out.
    """

    is_shared = True

    def __init__(self, files, is_left_out):
        self.task_id = files.task_id
        self._is_left_out = is_left_out
        self._told = set()

    @property
    def writes(self):
        """Whether this task writes what the model saves, now."""
        return not self._is_left_out()

    def leave_to_chief(self, call, path):
        """Logs, once for a call and a path, that nothing is written."""
        key = call, os.fspath(path)
        if key in self._told:
            return
        self._told.add(key)
        logging.warning(
            "%s of %s is left out: this process has not trained the model, and "
            "the one before has saved it.",
            call,
            path,
        )

    def missing(self, error):
        """The error for a file that is not there: Python's own."""
        return error


class Files:
    """The files of one strategy on one task.

    Args:
      config: The `ClusterConfig`.

    Attributes:
      task_id: Of this task, unlike those of other clusters; a string that can
        be part of a name. The same when the task is started again.
    """

    # Other tasks run the same program.
    is_shared = True

    def __init__(self, config):
        self._is_chief = config.is_chief
        self._trains = config.is_worker
        self._task = config.task_name
        self.task_id = (
            f"{config.fingerprint:08x}-{config.task_type}-{config.task_index}"
        )
        self._chief = config.worker_names[0]
        self._own = 0
        self._told = set()
        self._scratch = None

    @property
    def writes(self):
        """Whether this task writes what it saves, now."""
        return self._is_chief or self._own > 0

    @property
    def writes_logs(self):
        """Whether callbacks of this task write logs, now.

        Those of an evaluator are about its evaluations, and nobody else's.
        """
        return self.writes or not self._trains

    @contextlib.contextmanager
    def own(self):
        """Scope in which this task writes what it saves, chief or not."""
        self._own += 1
        try:
            yield
        finally:
            self._own -= 1

    def leave_to_chief(self, call, path):
        """Prints, once for a call and a directory, that nothing is written.

        Args:
          call: What was called, a string such as "model.save".
          path: Where it would have written.
        """
        key = call, os.path.dirname(os.fspath(path))
        if key in self._told:
            return
        self._told.add(key)
        # No warning: a program that every task runs is right as it is.
        print(
            f"{call} of {path} is left to the chief, {self._chief}. For files "
            "of this task's own: `with strategy.own_files(): ...`",
            flush=True,
        )

    def missing(self, error):
        """The error for a file that is not there, and may be the chief's.

        Args:
          error: A `FileNotFoundError`.

        Returns:
          A `FileNotFoundError`.
        """
        return FileNotFoundError(
            f"{error}. {self._task} leaves what models save to the chief, "
            f"{self._chief}. To load what the program has saved, save it to a "
            "path that all workers can read, and call `strategy.barrier()` "
            "after saving. To have a file on each worker, save inside `with "
            "strategy.own_files():`."
        )

    def refusal(self, call, path):
        """The error for a call that cannot be left to the chief.

        Args:
          call: What was called, a string.
          path: Where it would have written.

        Returns:
          A `ProgramError`.
        """
        return ProgramError(
            f"{call} to {str(path)!r} on {self._task}: the chief "
            f"({self._chief}) runs the same program and writes the same file. "
            "Save on the chief alone:\n"
            "    if strategy.cluster.is_chief:\n"
            f"        {call}(...)\n"
            "(`model.save`, `save_weights` and `export` of a model that was "
            "compiled under strategy.scope() see to that by themselves), or, "
            "with a name of this task's own, inside "
            "`with strategy.own_files():`."
        )

    def scratch(self):
        """A directory of this process for what nobody wants; ends with it."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="tfdist-")
        return self._scratch.name
