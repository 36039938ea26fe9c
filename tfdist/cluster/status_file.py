"""The file in which a launched worker tells the launcher how it trains.

`tfdist launch` names it in the environment. So the launcher, which imports no
TensorFlow and talks to no server, shows the figures of every method, with
servers or without.
"""

import atexit
import dataclasses
import functools
import json
import os
import threading

from absl import logging

from tfdist.cluster import environment
from tfdist.cluster import fit_progress
from tfdist.cluster import step_figures

_SECONDS = 1.0
# By path: callable that returns the `Word` of the last strategy that has one.
_words = {}


@functools.cache
def _meter():
    """The `StepMeter` of this process."""
    return step_figures.StepMeter()


def watch(journal, membership=None):
    """Has a strategy's exchanges told to whoever watches the cluster.

    Args:
      journal: The strategy's journal.
      membership: The `Membership` of this worker, which tells the servers;
        None without servers.
    """
    meter = _meter()
    meter.add(journal)
    path = os.environ.get(environment.STATUS_FILE)
    if membership is not None:
        membership.tell_figures(meter)
    if not path:
        return
    if membership is not None:
        _words[path] = membership.told
    _start(path)


def read(path):
    """Returns what a worker has told last.

    Args:
      path: Of its file.

    Returns:
      Its `StepFigures`, its `fit_progress.Word`, and their time in seconds
      since the epoch; None where it has told nothing yet.
    """
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
            written = os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError):
        return None
    return (
        step_figures.StepFigures(**told["figures"]),
        fit_progress.Word.unpack(told["word"]),
        written,
    )


@functools.cache
def _start(path):
    """Starts the one thread that writes the file, until the process ends.

    Args:
      path: Of the file.
    """
    ends = threading.Event()

    def word():
        return _words.get(path, fit_progress.Word)()

    def run():
        went_well = True
        while not ends.wait(_SECONDS):
            # A disk without room may have some again.
            went_well = _write(path, word(), warns=went_well)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end():
        ends.set()
        thread.join(_SECONDS)
        _write(path, word())

    atexit.register(end)


def _write(path, word, warns=True):
    """Writes the figures as of now; returns whether that went well.

    Args:
      path: Of the file.
      word: The `fit_progress.Word`.
      warns: Whether it logs a warning where it did not.
    """
    figures = dataclasses.asdict(_meter().read())
    told = {"figures": figures, "word": word.pack()}
    draft = f"{path}.draft"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(draft, path)
    except OSError as error:
        if warns:
            logging.warning(
                "The launcher gets no figures until they can be written: %s",
                error,
            )
        return False
    return True
