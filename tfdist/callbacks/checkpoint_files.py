"""Files of saved states in one directory, each there as a whole or not."""

import contextlib
import os
import pathlib
import re

from absl import logging

from tfdist import saved_state
from tfdist.saving import atomic_write

_NAME = re.compile(r"checkpoint-(\d{8})\.zip")


class CheckpointFiles:
    """Writes and finds numbered files.

    Whoever is killed while it writes one leaves the older ones.

    Args:
      directory: A path.
      keep: How many of the newest are left.
      lazy: See `saved_state.read`.
    """

    def __init__(self, directory, keep, lazy=None):
        self._lazy = lazy
        self.directory = pathlib.Path(directory)
        self._keep = keep

    def numbers(self):
        """Numbers of the files that are there, ascending, a list of ints."""
        if not self.directory.is_dir():
            return []
        matches = (_NAME.fullmatch(p.name) for p in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, number):
        """The path of a file."""
        return self.directory / f"checkpoint-{number:08}.zip"

    def newest(self, number=None, lazy=None):
        """Reads the newest file that is whole.

        Args:
          number: Not newer than this one, if older ones are there.
          lazy: See `saved_state.read`. Default: as of this.

        Returns:
          Its number and its `SavedState`, or None.
        """
        numbers = self.numbers()
        wanted = [n for n in numbers if number is None or n <= number]
        for candidate in reversed(wanted or numbers):
            path = self.path(candidate)
            try:
                with path.open("rb") as file:
                    prefix = self._lazy if lazy is None else lazy
                    return candidate, saved_state.read(file, lazy=prefix)
            except (OSError, saved_state.UnusableStateError) as error:
                logging.warning(
                    "Checkpoint %s is not usable (%s): the one before it is "
                    "taken.",
                    path,
                    error,
                )
        return None

    def write(self, state):
        """Writes a `SavedState` as the newest file, and removes old ones.

        Returns:
          Its number, an int.

        Raises:
          OSError: It could not be written; the others are as they were.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        number = max(self.numbers(), default=0) + 1
        # Somebody may have removed the file of this number, and not its end.
        self._path_of_end(number).unlink(missing_ok=True)
        self._write(state, self.path(number))
        for old in self.numbers()[: -self._keep]:
            self._remove(old)
        return number

    def write_end(self, state, number):
        """Writes what training ended with, beside the file of a number.

        Raises:
          OSError: It could not be written.
        """
        self._write(state, self._path_of_end(number))

    def _write(self, state, path):
        with atomic_write.written(path, os.getpid()) as draft:
            with open(draft, "wb") as file:
                saved_state.write(state, file)
        atomic_write.bring_to_disk(self.directory)

    def end(self, number):
        """Reads what training ended with after a file; None if it is not there.

        Args:
          number: Of the file.
        """
        try:
            with self._path_of_end(number).open("rb") as file:
                return saved_state.read(file, lazy=self._lazy)
        except (OSError, saved_state.UnusableStateError):
            return None

    def _path_of_end(self, number):
        return self.directory / f"end-{number:08}.zip"

    def _remove(self, number):
        self._path_of_end(number).unlink(missing_ok=True)
        self.path(number).unlink(missing_ok=True)

    def remove_drafts(self):
        """Removes what killed processes have begun to write."""
        for name in ("checkpoint-*.zip", "end-*.zip"):
            for draft in atomic_write.drafts(self.directory, name):
                draft.unlink(missing_ok=True)

    def remove_all(self):
        """Removes all files, and the directory if nothing else is in it."""
        self.remove_drafts()
        for number in self.numbers():
            self._remove(number)
        with contextlib.suppress(OSError):
            self.directory.rmdir()
