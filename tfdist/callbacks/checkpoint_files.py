"""Files of saved states in one directory, each there as a whole or not."""

import contextlib
import os
import pathlib
import re

from absl import logging

from tfdist import saved_state

_NAME = re.compile(r"checkpoint-(\d{8})\.zip")
_DRAFT = ".checkpoint-draft-"


class CheckpointFiles:
    """Writes and finds numbered files.

    A file is written under another name, brought to the disk, and then
    renamed: whoever is killed in between leaves the older ones.

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

    def newest(self, number=None):
        """Reads the newest file that is whole.

        Args:
          number: Not newer than this one, if older ones are there.

        Returns:
          Its number and its `SavedState`, or None.
        """
        numbers = self.numbers()
        wanted = [n for n in numbers if number is None or n <= number]
        for candidate in reversed(wanted or numbers):
            path = self.path(candidate)
            try:
                with path.open("rb") as file:
                    return candidate, saved_state.read(file, lazy=self._lazy)
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
        draft = self.directory / f"{_DRAFT}{os.getpid()}"
        try:
            with draft.open("wb") as file:
                saved_state.write(state, file)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self.path(number))
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._bring_names_to_disk()
        for old in self.numbers()[: -self._keep]:
            self.path(old).unlink(missing_ok=True)
        return number

    def _bring_names_to_disk(self):
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_drafts(self):
        """Removes what killed processes have begun to write."""
        for draft in self.directory.glob(f"{_DRAFT}*"):
            draft.unlink(missing_ok=True)

    def remove_all(self):
        """Removes all files, and the directory if nothing else is in it."""
        self.remove_drafts()
        for number in self.numbers():
            self.path(number).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()
