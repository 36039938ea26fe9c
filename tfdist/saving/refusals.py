"""Saving that no model is asked for, on a task that writes no files.

Functions such as `keras.saving.save_model`, `tf.train.Checkpoint.save` and
`tf.saved_model.save` cannot be made to do nothing: they are refused. What
TensorFlow saves it reads before it writes. What Keras saves it opens first,
which Python tells (`sys.addaudithook`): but for HDF5, whose library opens
files by itself, nothing has been touched then.
"""

import sys

from tfdist import private_keras_variables

_installed = []


def refuse_to_open():
    """Makes Keras fail on this task before it opens a file to save to.

    For as long as the process lives: Python takes no hook back. Only models
    whose variables are those of a strategy that writes no files are refused.
    """
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_before_event)


def before_read(files):
    """Called before a variable is read that may be read to be saved.

    Args:
      files: The `Files` of the variable.

    Raises:
      ProgramError: It is, and this task writes no files.
    """
    if files.writes:
        return
    call = private_keras_variables.saving_call()
    if call is not None:
        raise files.refusal(call.name, call.path)


def _before_event(event, arguments):
    if event != "open":
        return
    mode = arguments[1]
    if not isinstance(mode, str) or not set(mode) & set("wax+"):
        return
    call = private_keras_variables.saving_call()
    for variable in getattr(call, "variables", ()):
        files = getattr(variable.value, "files", None)
        if files is not None and not files.writes:
            raise files.refusal(call.name, call.path)
