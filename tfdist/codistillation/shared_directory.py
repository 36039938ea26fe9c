"""Checkpoints in a directory that all groups can read."""

import dataclasses
import os
import re
import tempfile
from typing import Any
import uuid

from absl import logging
import keras
import tensorflow as tf

from tfdist import checks
from tfdist import private_keras
from tfdist.cluster.groups import Group
from tfdist.codistillation import archive
from tfdist.codistillation import quantization
from tfdist.codistillation import weights as weights_lib
from tfdist.codistillation.background import outside_scopes
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import Exchange
from tfdist.codistillation.exchange import PeerUnavailableError
from tfdist.codistillation.exchange import UnusableCheckpointError

_NAME = re.compile(r"checkpoint-(\d{8,})-step-(\d+)\.(npz|keras)", re.ASCII)
_UNFINISHED = ".unfinished-"
_KEPT = 3


class SharedDirectory(Exchange):
    """Exchanges checkpoints through files.

    Below `path` each group has a directory, `group-0`, into which its chief
    alone writes: first to a temporary name, which is then renamed, so that
    what has the name of a checkpoint is complete. It keeps its last three.
    The newest that is complete is read; of other names nothing is, and what
    is damaged is skipped with a warning, once.

    Files are numbered over all lives of a group. When they were taken is
    told by the clock of the machine that wrote them.

    Whole models are for groups with different architectures. They are loaded
    with Keras's `safe_mode`, which refuses code (Lambda layers); classes of
    your own have to be registered in each group
    (`keras.saving.register_keras_serializable`). Nothing is ever unpickled.

    Args:
      path: A directory that all machines see, made if need be: local, NFS, or
        whatever else `tf.io.gfile` serves.
      dtype: What weights are stored in: "float32" (as they are), "float16" or
        "int8", a half or a quarter of the bytes; see `quantization`.
      whole_models: Whether to write whole `.keras` files instead of weights.

    Attributes:
      skipped: List of `(path, reason)` of the files that were skipped.
      bytes_read: Bytes of all that was fetched.

    Raises:
      ValueError: An argument is malformed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: Any = "float32",
        whole_models: bool = False,
    ):
        path = os.fspath(checks.path("path", path))
        quantization.check(dtype)
        whole_models = checks.flag("whole_models", whole_models)
        if whole_models and dtype != "float32":
            raise ValueError(
                "Argument `dtype` must be 'float32' with whole_models=True: "
                "whole models travel as Keras saves them. Received: "
                f"dtype={dtype!r}"
            )
        self._path = path
        self._dtype = dtype
        self._whole_models = whole_models
        self.same_architecture = not whole_models
        self.skipped = []
        self.bytes_read = 0
        self._bad = set()
        self._group = None
        self._last = None
        self._twin = None

    def bind(self, group: Group, model: keras.Model) -> None:
        self._group = group
        self._twin = None
        if self._whole_models:
            # Saved is a twin: it has no optimizer, and nobody trains it
            # while it is written.
            self._twin = outside_scopes(_twin_of, model)
        try:
            tf.io.gfile.makedirs(self._directory(group.index))
        except tf.errors.OpError as error:
            raise ValueError(
                "Argument `path` must name a directory that exists or can be "
                f"made. Received: path={self._path!r}: {error.message}"
            ) from error

    def _directory(self, number):
        return os.path.join(self._path, f"group-{number}")

    def _checkpoints(self, number):
        """`(number of checkpoint, name)` of a group's files, newest first."""
        try:
            names = tf.io.gfile.listdir(self._directory(number))
        except tf.errors.NotFoundError:
            return []
        found = [(name, _NAME.fullmatch(name)) for name in names]
        return sorted(
            ((int(match[1]), name) for name, match in found if match),
            reverse=True,
        )

    def publish(self, checkpoint: Checkpoint) -> None:
        own = self._group.index
        directory = self._directory(own)
        before = self._checkpoints(own)
        newest = before[0][0] if before else 0
        if self._last is None:
            self._remove_unfinished(directory)
        elif newest > self._last:
            logging.warning(
                "Another process publishes as group %d in %s. Each group needs "
                "a number of its own, and one chief.",
                own,
                directory,
            )
        # Listings may be late, as on NFS.
        number = max(newest, self._last or 0) + 1
        suffix = "keras" if self._whole_models else "npz"
        name = f"checkpoint-{number:08d}-step-{checkpoint.step}.{suffix}"
        content = archive.encode(
            dataclasses.replace(checkpoint, number=number),
            dtype=self._dtype,
            keras_file=self._keras_file(checkpoint.weights),
        )
        unfinished = os.path.join(directory, _UNFINISHED + uuid.uuid4().hex)
        try:
            with tf.io.gfile.GFile(unfinished, "wb") as file:
                file.write(content)
            tf.io.gfile.rename(unfinished, os.path.join(directory, name))
        except Exception:
            # Each attempt has a name of its own, and a disk may be full.
            if tf.io.gfile.exists(unfinished):
                _remove(unfinished)
            raise
        self._last = number
        for _, old in before[_KEPT - 1 :]:
            _remove(os.path.join(directory, old))

    def _keras_file(self, values):
        if not self._whole_models:
            return None
        for variable, value in zip(
            weights_lib.exchanged_variables(self._twin), values, strict=True
        ):
            variable.assign(value)
        return archive.keras_file_of(self._twin)

    def _remove_unfinished(self, directory):
        """Removes what an earlier life was writing when it was killed."""
        for name in tf.io.gfile.listdir(directory):
            if name.startswith(_UNFINISHED):
                _remove(os.path.join(directory, name))

    def fetch(
        self, peer: int, newer_than: Checkpoint | None
    ) -> Checkpoint | None:
        known = 0 if newer_than is None else newer_than.number
        checkpoints = self._checkpoints(peer)
        if not checkpoints and newer_than is None:
            raise PeerUnavailableError(
                f"group {peer} has published nothing in {self._path} yet"
            )
        is_emptied = bool(checkpoints) and checkpoints[0][0] < known
        reason = None
        for number, name in checkpoints:
            if number <= known and not is_emptied:
                break
            path = os.path.join(self._directory(peer), name)
            try:
                stat = tf.io.gfile.stat(path)
                key = (path, stat.length, stat.mtime_nsec)
                if key in self._bad:
                    continue
                with tf.io.gfile.GFile(path, "rb") as file:
                    content = file.read()
            except tf.errors.NotFoundError:
                continue  # Its group has removed it meanwhile.
            except tf.errors.OpError as error:
                reason = f"{path}: {error.message}"
                continue
            try:
                checkpoint = archive.decode(content)
                if (checkpoint.group, checkpoint.number) != (peer, number):
                    raise UnusableCheckpointError(
                        f"it is checkpoint {checkpoint.number} of group "
                        f"{checkpoint.group}"
                    )
            except UnusableCheckpointError as error:
                reason = f"{path}: {error}"
                self._bad.add(key)
                self.skipped.append((path, str(error)))
                logging.warning(
                    "Skipped a checkpoint of group %d that cannot be read: %s",
                    peer,
                    reason,
                )
                continue
            if is_emptied and checkpoint.time <= newer_than.time:
                return None  # A listing that is late, and not a new life.
            self.bytes_read += len(content)
            return checkpoint
        if reason is not None:
            raise UnusableCheckpointError(reason)
        return None


def _twin_of(model):
    """Another model like it, which is what peers will have of it."""
    description = keras.saving.serialize_keras_object(model)
    description.pop("compile_config", None)
    try:
        twin = keras.saving.deserialize_keras_object(
            description, safe_mode=True
        )
        _copy_assets(model, twin)
        return twin
    except Exception as error:  # Of all kinds: it is somebody's model.
        raise ValueError(
            f"whole_models=True: peers could not load {model.name!r}, as Keras "
            "does not make it again from its configuration in safe mode: "
            f"{type(error).__name__}: {error}"
        ) from error


def _copy_assets(layer, twin):
    """Copies what Keras saves beside weights, such as adapted vocabularies."""
    if hasattr(layer, "save_assets"):
        # As Keras does it: assets may need them, as TF-IDF weights.
        store = {}
        layer.save_own_variables(store)
        twin.load_own_variables(store)
        with tempfile.TemporaryDirectory() as directory:
            layer.save_assets(directory)
            twin.load_assets(directory)
    for part, its in zip(
        private_keras.sublayers(layer),
        private_keras.sublayers(twin),
        strict=True,
    ):
        _copy_assets(part, its)


def _remove(path):
    try:
        tf.io.gfile.remove(path)
    except tf.errors.OpError as error:
        logging.warning("Cannot remove %s: %s", path, error.message)
