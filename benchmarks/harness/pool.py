"""Runs that are played side by side, a process for each processor."""

from concurrent import futures
import multiprocessing
import os

import tqdm


class Pool(futures.ProcessPoolExecutor):
    """Processes that play runs.

    Args:
      number: Of processes; None for one per processor.
    """

    def __init__(self, number=None):
        super().__init__(
            number or os.cpu_count(),
            mp_context=multiprocessing.get_context("spawn"),
        )

    def play(self, function, runs, work, what=None):
        """Plays runs.

        Args:
          function: Of a run; what it returns is the run's outcome.
          runs: List.
          work: Function of a run: how long it takes, about.
          what: Of the progress that is shown.

        Returns:
          List of outcomes, in the order of `runs`.
        """
        # The longest first, so that none is left over at the end.
        order = sorted(range(len(runs)), key=lambda k: -work(runs[k]))
        waiting = {self.submit(function, runs[k]): k for k in order}
        outcomes = [None] * len(runs)
        for done in tqdm.tqdm(
            futures.as_completed(waiting), what, total=len(runs), unit="run"
        ):
            outcomes[waiting[done]] = done.result()
        return outcomes
