"""Clusters that train in turns: all workers of a method go on, then wait."""

import time

from harness import children
from harness import clusters
from harness import gated_worker

# Those that are not of tfdist, and have no server.
_OTHERS = {
    "alone": gated_worker.lone_worker,
    "mwms": gated_worker.mirrored_worker,
}
_WARM_UP_SECONDS = 120.0


class GatedTraining(clusters.Cluster):
    """The processes of one method, whose training is held between turns."""

    def __init__(self, method, num_workers, sleeps, seed):
        """Begins to start them.

        Args:
            method: a key of `gated_worker.STRATEGIES`; `mwms`, TensorFlow's
                `MultiWorkerMirroredStrategy`; or `alone`, where each worker
                trains a model of its own.
            num_workers: number of workers; with tfdist, a server as well.
            sleeps: a `gated_worker.Sleeps`.
            seed: of the slow steps.
        """
        own = method not in _OTHERS
        build = (gated_worker.tfdist_worker, method)
        if not own:
            build = (_OTHERS[method],)
        super().__init__(
            lambda number: (*build, number, sleeps, seed),
            (gated_worker.serve, method),
            ps=int(own),
            workers=num_workers,
            forked=True,
            name=method,
        )

    def open(self):
        """Lets all workers go on."""
        self.ask_all("open")

    def wait_for_steps(self, number):
        """Waits until every worker has made so many steps."""
        deadline = time.monotonic() + _WARM_UP_SECONDS
        while min(steps := self.ask_all("steps")) < number:
            if time.monotonic() > deadline:
                raise children.ChildError(
                    f"{self.workers[0].name} and others have made {steps} "
                    f"steps in {_WARM_UP_SECONDS:g} s."
                )
            time.sleep(0.1)

    def hold(self):
        """Holds each worker before its next step."""
        self.ask_all("close")

    def turn(self, seconds):
        """Lets all workers go on for some time.

        Args:
            seconds: how long.

        Returns:
            A tuple: begin and end, in seconds since the epoch, and the records
            of all workers between them (see `gated_worker.Training`), in the
            order of time.
        """
        self.ask_all("read")
        self.ask_all("open")
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
        self.ask_all("close")
        records = [r for rows in self.ask_all("read") for r in rows]
        within = [r for r in records if begin <= r[0] < end]
        return begin, end, sorted(within, key=lambda record: record[0])
