"""A worker that trains with peers, to which a schedule happens.

    python tests/chaos/trained_with_peers.py METHOD DIRECTORY EVENTS

METHOD is peer_to_peer or gossip. EVENTS is JSON: a list of worker, and what
happens to it: "kill" (SIGKILL), or for how many seconds it is stopped. One
happens after the other, each when all workers train. Then the chief stops. Each
worker prints the bits of its weights, and with peer_to_peer how many updates it
has sent and had.
"""

import hashlib
import json
import pathlib
import sys
import time

import keras

from tests.chaos import trained_alone
from tests.peers import programs
import tfdist

# Steps of each process before anything happens.
_STEPS = 30
_PAUSE_SECONDS = 0.01
# A worker trains that has made a step within so many seconds.
_RECENT_SECONDS = 2.0


class Schedule(keras.callbacks.Callback):
    """What happens to this worker.

    Args:
        events: as in the module's docstring.
        cluster: the `ClusterConfig`.
        marks: `pathlib.Path` of a directory; has a file for each past event.
    """

    def __init__(self, events, cluster, marks):
        super().__init__()
        self._events = events
        self._cluster = cluster
        self._marks = marks
        self._steps = 0

    def on_train_batch_end(self, batch, logs=None):
        """Looks whether it is time for anything."""
        self._steps += 1
        time.sleep(_PAUSE_SECONDS)
        if self._steps < _STEPS:
            return
        self._at(self._cluster.worker_id).touch()
        if not all(map(self._trains, range(self._cluster.num_workers))):
            return
        past = len(list(self._marks.glob("event-*")))
        if past == len(self._events):
            self.model.stop_training = self._cluster.is_chief
            return
        worker, what = self._events[past]
        if worker == self._cluster.worker_id:
            # Until it has made its steps again it does not train.
            self._at(worker).unlink()
            self._steps = 0
            (self._marks / f"event-{past}").touch()
            print(f"event: {past} {worker} {what}", flush=True)
            trained_alone.suffer(what)

    def _at(self, worker):
        return self._marks / f"trains-{worker}"

    def _trains(self, worker):
        try:
            moment = self._at(worker).stat().st_mtime
        except FileNotFoundError:
            return False
        return time.time() - moment < _RECENT_SECONDS


def main(method, directory, events):
    """Trains; see the module's docstring."""
    settings = {
        "seed": 0,
        "fault_tolerance": tfdist.FaultTolerance(
            worker_timeout=trained_alone.WORKER_TIMEOUT
        ),
    }
    if method == "gossip":
        strategy = tfdist.GossipStrategy(**settings)
    else:
        strategy = tfdist.PeerToPeerStrategy(
            "threshold(tau=0.0625)", **settings
        )
    model = programs.model_of(strategy)
    model.fit(
        programs.data(strategy.cluster.worker_id, 10**7),
        verbose=0,
        callbacks=[
            Schedule(
                json.loads(events), strategy.cluster, pathlib.Path(directory)
            )
        ],
    )
    bits = b"".join(weight.tobytes() for weight in model.get_weights())
    print("result:", hashlib.sha256(bits).hexdigest(), flush=True)
    if method == "gossip":
        return
    counts = {
        "name": strategy.cluster.task_name,
        **strategy.update_counts(),
    }
    print("counts:", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
