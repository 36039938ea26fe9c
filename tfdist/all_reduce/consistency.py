"""Checks that all workers do and hold the same, outside of steps."""

import enum
import json
import zlib

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.all_reduce.variables import plain
from tfdist.program_error import ProgramError
from tfdist.saved_state import ModelMismatchError


class Moment(enum.IntEnum):
    """The calls in which all workers meet."""

    FIT = 1
    STEP = 2
    END_OF_EPOCH = 3
    END_OF_FIT = 4
    BARRIER = 5
    AFTER_FIT = 6


_AT = {
    Moment.FIT: "the beginning of `fit`",
    Moment.STEP: "the first step of a model or optimizer",
    Moment.END_OF_EPOCH: "the end of an epoch",
    Moment.END_OF_FIT: "the end of `fit`",
    Moment.BARRIER: "`strategy.barrier()`",
    Moment.AFTER_FIT: "the end of `fit`, after its callbacks",
}
_AT_EPOCH_ENDS = (
    ", or set them at the end of an epoch, when the chief's count for all (a "
    "worker whose data has ended makes the steps of others without callbacks)"
)


class DifferentValuesError(RuntimeError):
    """Workers hold different values of what they share."""


class Consistency:
    """The meetings of all workers.

    Args:
      collectives: The `Collectives`.
      worker_names: Their names, a tuple of strings.
    """

    def __init__(self, collectives, worker_names):
        self._collectives = collectives
        self._names = worker_names
        # Of the variables that a warning was about.
        self._kinds_told = None

    def meet(self, moment, *numbers):
        """Waits for all workers, which must come from the same call.

        Args:
          moment: The `Moment`.
          *numbers: At most five ints.

        Returns:
          All workers' numbers, an array of a row for each worker.

        Raises:
          ProgramError: Another worker is elsewhere in its program.
        """
        row = [int(moment), *numbers, *[0] * (5 - len(numbers))]
        rows = self._collectives.gather(row, "meeting")
        needs_batch = ""
        if Moment.STEP in rows[:, 0]:
            needs_batch = (
                " A step that runs eagerly (run_eagerly=True) is known from "
                "the first batch on: each worker needs one in its first `fit`."
            )
        for worker in _differ(rows[:, 0]):
            raise ProgramError(
                f"{self._names[worker]} is at {_AT[rows[worker, 0]]} and "
                f"{self._names[0]} at {_AT[rows[0, 0]]}: all workers must run "
                f"the same program, call for call.{needs_batch}"
            )
        return rows[:, 1:]

    def union(self, moment, numbers):
        """Returns the numbers of all workers, a set.

        Args:
          moment: The `Moment`.
          numbers: This worker's, a list of ints of at least 0.
        """
        longest = self.meet(moment, len(numbers))[:, 0].max()
        if not longest:
            return set()
        row = [*numbers, *[-1] * (longest - len(numbers))]
        rows = self._collectives.gather(row, "numbers")
        return set(rows[rows >= 0].tolist())

    def adopt(self, moment, variables, settings="", data=0):
        """Gives all workers the chief's values.

        Args:
          moment: The `Moment`.
          variables: The shared variables, in the same order on all workers.
          settings: How this worker trains, a string that must be the same on
            all; see `model_optimizers.described`.
          data: Value of the `DataNumber` of this worker.

        Returns:
          That of the chief, an int.

        Raises:
          ModelMismatchError: Another worker's model differs.
          ValueError: Its settings do.
        """
        facts = [
            *_kinds(variables),
            _checksum(settings.encode()),
            _checksum(*map(_bits, variables)),
            data,
        ]
        rows = self.meet(moment, *facts)
        if _differ(rows[:, :2]).size:
            self._refuse_model(variables, rows[:, 0].max())
        for worker in _differ(rows[:, 2]):
            epoch = "from another epoch, " if moment is Moment.FIT else ""
            raise ValueError(
                f"{self._names[worker]} trains with another optimizer, other "
                f"settings, {epoch}or on another kind of device, than "
                f"{self._names[0]}: all workers must train in the same way. "
                f"Here: {settings}"
            )
        self._agree(variables, rows[:, 3])
        return int(rows[0, 4])

    def adopt_others(self, moment, variables):
        """Gives all workers the chief's values of what no step has used yet.

        Such as those of a target network. Workers keep their own values, with a
        warning, if one of them has other such variables, as of a model that it
        alone has made.

        Args:
          moment: The `Moment`.
          variables: As of `adopt`.
        """
        kinds = _kinds(variables)
        rows = self.meet(moment, *kinds, _checksum(*map(_bits, variables)))
        if not _differ(rows[:, :2]).size:
            self._agree(variables, rows[:, 2])
        elif kinds != self._kinds_told:
            self._kinds_told = kinds
            logging.warning(
                "This worker has %d variables that no step has used yet, and "
                "others have other ones: each keeps its own values of them. "
                "If steps read them (as those of a target network), make the "
                "same models on all workers.",
                len(variables),
            )

    def _agree(self, variables, checksums):
        """Takes the chief's values over if those of a worker differ."""
        if _differ(checksums).size:
            self._take_over(variables)
        for variable in variables:
            variable.is_agreed = True

    def _refuse_model(self, variables, length):
        keys = [_checksum(_kind(v).encode()) for v in variables]
        keys += [0] * (length - len(keys))
        columns = self._collectives.gather(keys, "model")
        place = int(np.argmax((columns != columns[0]).any(axis=0)))
        worker = int(np.argmax(columns[:, place] != columns[0, place]))
        here = "none"
        if place < len(variables):
            variable = variables[place]
            here = f"{variable.name!r} of {_kind(variable)}"
        raise ModelMismatchError(
            f"{self._names[worker]} trains another model or optimizer than "
            f"{self._names[0]}: all workers must make the same. The first "
            f"variable that differs is number {place}. Here: {here}."
        )

    def _take_over(self, variables):
        bits = b"".join(map(_bits, variables))
        padded = bits + bytes(-len(bits) % 4)
        words = self._collectives.from_chief(np.frombuffer(padded, np.int32))
        bits, start = words.tobytes(), 0
        for variable in variables:
            dtype = variable.dtype.as_numpy_dtype
            size = variable.shape.num_elements() * np.dtype(dtype).itemsize
            value = np.frombuffer(bits[start : start + size], dtype)
            variable.assign(tf.constant(value.reshape(variable.shape)))
            start += size

    def compare(self, moment, variables, but=_AT_EPOCH_ENDS):
        """Raises an error if workers hold different values.

        Args:
          moment: The `Moment`.
          variables: As of `adopt`.
          but: Of the message: where workers may set different values.

        Raises:
          DifferentValuesError: The message names worker and variables.
          ModelMismatchError: Another worker's model differs.
        """
        rows = self.meet(
            moment, *_kinds(variables), _checksum(*map(_bits, variables))
        )
        if _differ(rows[:, :2]).size:
            self._refuse_model(variables, rows[:, 0].max())
        if _differ(rows[:, 2]).size:
            self._compare_each(
                variables,
                f"Callbacks of all workers must set the same values{but}",
            )

    def compare_trained(self, variables, has_trained):
        """Compares what loops of the user's own have trained, at a barrier.

        Nothing is compared if no worker has trained since the last meeting: a
        worker may then set weights of its own, until the next `fit`. Nor is it
        if workers have trained other variables, such as one without a step.

        Args:
          variables: As of `adopt`.
          has_trained: Whether this worker has.

        Raises:
          DifferentValuesError: As of `compare`.
        """
        variables = [v for v in variables if not v.is_rate]
        rows = self.meet(Moment.BARRIER, *_kinds(variables), has_trained)
        are_alike = variables and not _differ(rows[:, :2]).size
        if rows[:, 2].any() and are_alike:
            self._compare_each(
                variables,
                "All workers must set the same values between the steps of a "
                "loop",
            )

    def _compare_each(self, variables, rule):
        columns = self._collectives.gather(
            [_checksum(_bits(v)) for v in variables], "values"
        )
        bad = np.flatnonzero((columns != columns[0]).any(axis=0))
        if not bad.size:
            return
        worker = int(np.argmax((columns != columns[0]).any(axis=1)))
        names = ", ".join(variables[k].name for k in bad[:3])
        raise DifferentValuesError(
            f"{self._names[worker]} and {self._names[0]} hold different "
            f"values of {names} ({len(bad)} of {len(variables)} variables). "
            f"{rule}."
        )


def _differ(rows):
    """Numbers of the workers whose row is not the chief's."""
    rows = rows.reshape([len(rows), -1])
    return np.flatnonzero((rows != rows[0]).any(axis=1))


def _kind(variable):
    return f"{variable.shape} {variable.dtype.name}"


def _kinds(variables):
    """Number of variables, and a checksum of their shapes and dtypes."""
    texts = json.dumps([_kind(variable) for variable in variables])
    return len(variables), _checksum(texts.encode())


def _bits(variable):
    return np.ascontiguousarray(plain(variable).numpy()).tobytes()


def _checksum(*parts):
    number = 0
    for part in parts:
        number = zlib.crc32(part, number)
    return number


def kinds_of_devices(variables):
    """Kinds of the devices that variables are on, a string such as "GPU"."""
    kinds = {
        tf.DeviceSpec.from_string(plain(variable).device).device_type
        for variable in variables
    }
    return " and ".join(sorted(kinds))
