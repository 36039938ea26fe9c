"""Models whose `save`, `save_weights` and `export` follow the rule of files.

A Keras model is asked by its methods to save itself, by users and by Keras's
callbacks alike, and to load what it has saved. The models of a strategy become
instances of a subclass of their class that has these methods (`instances`).
"""

import os

import keras

from tfdist import dynamic_subclasses
from tfdist import private_keras_variables
from tfdist.saving import atomic_write

_ENDINGS = (".keras", ".h5", ".hdf5")
# Whose methods write one file, and nothing beside it.
_KNOWN = ("keras.", "tfdist.")


class SavedByChief:
    """A mixin: a model of a cluster, of which the chief writes the files."""

    def save(self, *args, **kwargs):
        """As Keras's; another task than the chief writes nothing."""
        return _save(self, "save", super().save, args, kwargs)

    def save_weights(self, *args, **kwargs):
        """As Keras's; another task than the chief writes nothing."""
        return _save(self, "save_weights", super().save_weights, args, kwargs)

    def export(self, *args, **kwargs):
        """As Keras's; another task than the chief writes nothing."""
        return _save(self, "export", super().export, args, kwargs)

    def load_weights(self, *args, **kwargs):
        """As Keras's; where there is no file, the error names who writes it."""
        try:
            return super().load_weights(*args, **kwargs)
        except FileNotFoundError as error:
            if self._tfdist_files.writes:
                raise
            raise self._tfdist_files.missing(error) from error


def see(model, files):
    """Makes a `keras.Model` follow the rule of `files`, a `Files`."""
    dynamic_subclasses.specialize(model, SavedByChief)
    # Not by Keras's `__setattr__`: its `__init__` may still be under way.
    vars(model)["_tfdist_files"] = files


def see_callers(files):
    """Makes all models follow the rule of `files` that are calling."""
    for model in private_keras_variables.layers_under_way(keras.Model):
        see(model, files)


def _save(model, name, method, args, kwargs):
    path = args[0] if args else kwargs.get("filepath")
    if not isinstance(path, str | os.PathLike):
        return method(*args, **kwargs)
    files = model._tfdist_files
    if not files.writes:
        files.leave_to_chief(f"model.{name}", path)
        return None
    if not _is_one_file(model, name, path, args, kwargs):
        return method(*args, **kwargs)
    with atomic_write.written(path, files.task_id) as draft:
        if args:
            return method(draft, *args[1:], **kwargs)
        return method(**{**kwargs, "filepath": draft})


def _is_one_file(model, name, path, args, kwargs):
    """Whether all that the call writes is a new content of `path`."""
    overwrite = args[1] if len(args) > 1 else kwargs.get("overwrite", True)
    return (
        name != "export"
        and os.fspath(path).endswith(_ENDINGS)
        and kwargs.get("max_shard_size") is None
        and len(args) < 3
        # Or else Keras asks the user about the file that is there.
        and bool(overwrite)
        and atomic_write.can_be_written(path)
        and _author(model, name).startswith(_KNOWN)
    )


def _author(model, name):
    """The module of the class whose method `name` a model had before."""
    classes = type(model).__mro__
    behind = classes[classes.index(SavedByChief) + 1 :]
    return next(c.__module__ for c in behind if name in vars(c))
