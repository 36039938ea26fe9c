"""Snapshots that a server writes of what it holds, and finds when it is back.

Workers tell a server what there is to be kept (`manifests`): only their graphs
know the names. The server's own process reads all of it under the locks that
training steps take, so that a snapshot is one state, and writes it to a
directory of its own, which gets its name when all is in it. So a server that
is killed meanwhile, or finds no room, leaves the snapshot before. Tables that
need much memory are written by rows, see `table_snapshots`.
"""

import json
import os
import pathlib
import re
import shutil
import threading
import time

from absl import logging
import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.cluster import table_snapshots
from tfdist.cluster.manifests import Manifest
from tfdist.cluster.manifests import VariableGroup

_META = "meta.json"
_DATA = "data"
# The last one may be unreadable, if the machine has died with it.
_KEPT = 2
# Pauses are at least so many times as long as a snapshot takes.
_MOST_OF_TIME = 20
# In the name of what has a part for each worker: how many they are.
_BY_WORKER = re.compile(r"/of-(\d+)(?:/|$)")


def build_is_from_snapshot(value=None):
    """Builds, in the scope's device: whether a server holds but a snapshot.

    That is so from the moment at which its process has found one until a
    worker says otherwise.

    Args:
      value: bool to set it; None to read it.

    Returns:
      A scalar bool tensor, or the operation.
    """
    return _build_flag("tfdist/from_snapshot", value)


def build_is_unrestored(value=None):
    """Builds, in the scope's device: whether nobody has restored a server.

    It was started again when no worker was left that knew what it had held,
    so it may lack variables: each server writes its snapshots when it likes,
    and perhaps before workers have told it of all that there is.

    Args:
      value: See `build_is_from_snapshot`.

    Returns:
      See `build_is_from_snapshot`.
    """
    return _build_flag("tfdist/unrestored", value)


def build_found(text=None):
    """Builds, in the scope's device: the snapshot that a server has found.

    Args:
      text: Its path and age, to set it; None to read it.

    Returns:
      A scalar string tensor, empty for none, or the operation.
    """
    return _build_value("tfdist/found_snapshot", text, tf.string, "")


def _build_flag(name, value):
    return _build_value(name, value, tf.bool, False)


def _build_value(name, value, dtype, default):
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[], shared_name=name)
    if value is not None:
        return tf.raw_ops.AssignVariableOp(
            resource=handle, value=tf.constant(value)
        )
    return resource_values.build_read_or(handle, default)


class Snapshots:
    """Writes and finds the snapshots of one server, in its process.

    Args:
      directory: For the snapshots of all servers of the cluster; each makes a
        directory of its own in it.
      device: The server's device.
      task: Number of the server.
      num_servers: How many there are.
      num_members: Number of rows of its table of members.
      num_workers: Number of workers.
      every: Seconds between two snapshots.

    Attributes:
      directory: That of this server.
    """

    def __init__(
        self,
        directory,
        device,
        *,
        task,
        num_servers,
        num_members,
        num_workers,
        every,
    ):
        name = f"ps-{task}-of-{num_servers}"
        self.directory = pathlib.Path(directory) / name
        self._device = device
        self._name = f"/job:ps/task:{task}"
        self._every = every
        self._num_workers = num_workers
        self._manifest = Manifest(device, num_members)
        # By lock. What was named stays as long as it is held: a member that
        # has just been started again knows less than it did.
        self._groups = {}
        # By what it does and lock: the last function, and what for.
        self._readers = {}
        self._last = None
        self._failed = False
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread = None

    def restore(self):
        """Puts the newest snapshot in place that can be read.

        Before anybody else talks to the server. What is by worker is left out
        if it is of another number of workers: a cluster of that number that
        comes again is to begin anew with it.

        Returns:
          How many variables that were, 0 for none.
        """
        for path in reversed(self._found()):
            try:
                meta = json.loads((path / _META).read_text())
                groups = {
                    k: VariableGroup(*g) for k, g in meta["groups"].items()
                }
                by_rows = set(meta.get("by_rows", ()))
                dtypes = {
                    name: dtype
                    for group in groups.values()
                    for name, dtype in group.variables.items()
                    if name not in by_rows and not self._is_of_others(name)
                }
                names = list(dtypes)
                with tf.device(self._device):
                    values = tf.raw_ops.RestoreV2(
                        prefix=str(path / _DATA),
                        tensor_names=names,
                        shape_and_slices=[""] * len(names),
                        dtypes=[tf.as_dtype(t) for t in dtypes.values()],
                    )
                # Last: they are put onto the server while they are read.
                rows = table_snapshots.restore(path, self._device)
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                tf.errors.OpError,
            ) as error:
                logging.warning(
                    "%s cannot read its snapshot %s (%s).",
                    self._name,
                    path,
                    str(error).splitlines()[0],
                )
                continue
            with tf.device(self._device):
                for name, value in zip(names, values, strict=True):
                    handle = tf.raw_ops.VarHandleOp(
                        dtype=value.dtype, shape=value.shape, shared_name=name
                    )
                    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                age = f"{time.time() - meta['time']:.1f} s"
                build_found(f"{path}, {age} old")
                about_rows = ""
                for counter, versions in rows.items():
                    now = self._read_counter(counter)
                    lost = now - max(versions), now - min(versions)
                    table_snapshots.build_lost(counter, lost)
                    about_rows += (
                        f", of update {now}; rows of tables lack the last "
                        f"{lost[0]} to {lost[1]} of these updates"
                    )
                build_is_from_snapshot(True)
            self._groups = groups
            logging.warning(
                "%s begins with its snapshot %s, which is %s old: %d "
                "variables%s.",
                self._name,
                path,
                age,
                len(names) + len(by_rows),
                about_rows,
            )
            return len(names) + len(by_rows)
        return 0

    def _is_of_others(self, name):
        """Whether a variable is by worker, of another number of workers."""
        found = _BY_WORKER.search(name)
        return found is not None and int(found[1]) != self._num_workers

    def start(self):
        """Writes snapshots from now on, in a thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self):
        """Writes a snapshot now, unless there is nothing new.

        Returns:
          Whether one was written. What is in its way is logged.
        """
        with self._writing:
            if self._stop.is_set():
                return False
            try:
                try:
                    return self._write()
                except (
                    tf.errors.FailedPreconditionError,
                    tf.errors.NotFoundError,
                ):
                    # A model was freed meanwhile.
                    return self._write()
            except (OSError, tf.errors.OpError) as error:
                if not self._failed:
                    logging.error(
                        "%s cannot write a snapshot to %s, and goes on with "
                        "the one before: %s",
                        self._name,
                        self.directory,
                        str(error).splitlines()[0][:300],
                    )
                self._failed = True
                return False

    def finish(self):
        """Ends writing. Training is over: snapshots are removed."""
        self._stop.set()
        with self._writing:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self):
        pause = self._every
        while not self._stop.wait(pause):
            began = time.monotonic()
            try:
                self.write()
            except Exception:
                logging.exception("%s: a snapshot has failed.", self._name)
            took = time.monotonic() - began
            pause = max(self._every, _MOST_OF_TIME * took)

    def _found(self):
        """The snapshots that are there, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(
            path for path in self.directory.iterdir() if path.name.isdigit()
        )

    def _write(self):
        named = self._manifest.read()
        for lock, group in named.items():
            self._groups.setdefault(lock, VariableGroup(group.counter)).add(
                group
            )
        found, counters = {}, []
        for lock, group in sorted(self._groups.items()):
            known = self._held(lock, group.variables)
            now = named[lock].variables if lock in named else {}
            for name in [n for n in group.variables if n not in known | now]:
                # It was freed with its model.
                del group.variables[name]
                group.tables.pop(name, None)
            for name, flag in group.tables.items():
                if flag not in known:
                    known.pop(name, None)  # Its first values are being made.
            if group.counter in known:
                found[lock] = known
                counters += map(self._read_counter, group.counters(known))
        state = (str(found), tuple(counters))
        if not found or state == self._last:
            return False
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f"draft-{os.getpid()}"
        # Also of processes that were killed while they wrote.
        for left in self.directory.glob("draft-*"):
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir()
        try:
            counters = self._write_to(draft, found)
            there = self._found()
            number = int(there[-1].name) + 1 if there else 0
            for path in draft.iterdir():
                _sync(path)
            draft.rename(self.directory / f"{number:010d}")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync(self.directory)
        if self._failed:
            logging.warning("%s writes snapshots again.", self._name)
        self._failed = False
        self._last = (str(found), tuple(counters))
        for path in self._found()[:-_KEPT]:
            shutil.rmtree(path, ignore_errors=True)
        return True

    def _write_to(self, draft, found):
        """Writes a snapshot's files.

        Returns the groups' counters: what they do not count is not in it.

        Args:
          draft: A directory.
          found: By lock, dict of the names of what is held to dtypes.
        """
        names, values, counters, groups, by_rows = [], [], [], {}, []
        for number, (lock, known) in enumerate(found.items()):
            group = self._groups[lock]
            tables = {n: known[n] for n in group.tables if n in known}
            names_of_counters, before = group.counters(known), None
            if tables:
                writer = self._table_writer(lock, group.counter, tables)
                if writer.is_large():
                    # Of what comes from now on, some stripes have nothing.
                    before = [*map(self._read_counter, names_of_counters)]
                    writer.write(draft, number)
                    by_rows += tables
            groups[lock] = group.counter, known, group.tables
            whole = {n: d for n, d in known.items() if n not in by_rows}
            read = self._reader(lock, tuple(whole.items()))()
            names += list(whole)
            values += read
            counters += before or [
                int(read[list(whole).index(name)]) for name in names_of_counters
            ]
        with tf.device(self._device):
            tf.raw_ops.SaveV2(
                prefix=str(draft / _DATA),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=values,
            )
        meta = {"time": time.time(), "groups": groups, "by_rows": by_rows}
        (draft / _META).write_text(json.dumps(meta))
        return counters

    def _table_writer(self, lock, counter, tables):
        writer = table_snapshots.TableWriter(
            self._device, lock, counter, tables
        )
        known = self._readers.get(("rows", lock))
        if known is not None and known.key == writer.key:
            return known
        self._readers["rows", lock] = writer
        return writer

    def _read_counter(self, name):
        with tf.device(self._device):
            value = tf.raw_ops.ReadVariableOp(
                resource=_handle(name, "int64"), dtype=tf.int64
            )
        return int(value)

    def _held(self, lock, variables):
        """Those of `variables`, name to dtype, that have a value."""
        key = tuple(sorted(variables.items()))
        known, reader = self._readers.get(("held", lock), (None, None))
        if key != known:

            def check():
                with tf.device(self._device):
                    return [
                        tf.raw_ops.VarIsInitializedOp(
                            resource=_handle(name, dtype)
                        )
                        for name, dtype in key
                    ]

            reader = _traced(check)
            self._readers["held", lock] = key, reader
        held = reader()
        return {
            item[0]: item[1]
            for item, there in zip(key, held, strict=True)
            if there
        }

    def _reader(self, lock, variables):
        """Function that reads variables under the lock of that name."""
        known, reader = self._readers.get(("read", lock), (None, None))
        if variables != known:

            def read():
                with tf.device(self._device):
                    mutex = tf.raw_ops.MutexV2(shared_name=lock)
                    taken = tf.raw_ops.MutexLock(mutex=mutex)
                    with tf.control_dependencies([taken]):
                        values = [
                            tf.raw_ops.ReadVariableOp(
                                resource=_handle(name, dtype),
                                dtype=tf.as_dtype(dtype),
                            )
                            for name, dtype in variables
                        ]
                    with tf.control_dependencies(values):
                        tf.raw_ops.ConsumeMutexLock(mutex_lock=taken)
                    return values

            reader = _traced(read)
            self._readers["read", lock] = variables, reader
        return reader


def _handle(name, dtype):
    return tf.raw_ops.VarHandleOp(
        dtype=tf.as_dtype(dtype), shape=None, shared_name=name
    )


def _traced(function):
    return tf.function(function, autograph=False).get_concrete_function()


def _sync(path):
    """Flushes a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
