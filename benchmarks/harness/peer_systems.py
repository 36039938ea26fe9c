"""The systems of `benchmarks/peers.py`: what each is, and how it is started.

A system to come is one entry of `SYSTEMS`, with the function that builds its
worker in `keras_peers` or `torch_peers`; an aim for it is one entry of
`peer_figures.AIMS`.
"""

from collections.abc import Callable
import dataclasses
import functools
import importlib.util
import os

import tqdm

from harness import children
from harness import clusters
from harness import keras_peers
from harness import peer_figures
from harness import program
from harness import torch_peers

WORKERS = 2
NOT_INSTALLED = "not installed"
_LEAST_STEPS = 10
_WARM_UP = 0.25  # Of the time of the steps that count.
_SECONDS = 180.0  # What takes longer has failed.
_TORCH_ENVIRONMENT = {
    # As `torchrun` does, so that processes leave each other processors.
    "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // WORKERS)),
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
}


@dataclasses.dataclass(frozen=True)
class System:
    """One row of the table.

    Attributes:
        title: what people call it.
        short: the same, in a column.
        start: a function of a `peer_models.Shape` that begins to start the
            processes, and returns them: a context manager.
        workers: number of workers.
        needs: a package that may not be installed, or None.
    """

    title: str
    short: str
    start: Callable
    workers: int = WORKERS
    needs: str | None = None

    @property
    def is_installed(self):
        """Whether there is what it needs."""
        if self.needs is None:
            return True
        return importlib.util.find_spec(self.needs) is not None

    def turn(self, shape, seconds):
        """Trains a new model, on processes that end with the turn.

        Args:
            shape: a `peer_models.Shape`.
            seconds: how long the steps that count take, about.

        Returns:
            A `peer_figures.Turn`.

        Raises:
            ChildError: if a process raised, died or did not answer in time.
            OSError: if one died in between.
            ValueError: if the workers did not train at the same time.
        """
        with self.start(shape) as cluster:
            cluster.wait_until_built()
            ends = cluster.ask_all(_LEAST_STEPS, timeout=_SECONDS)
            # The pace of the first steps is not yet that of the others.
            steps = self._steps(ends, _WARM_UP * seconds)
            ends = cluster.ask_all(steps, timeout=_SECONDS)
            steps = self._steps(ends, seconds)
            before = children.all_cpu_seconds(cluster.pids)
            ends = cluster.ask_all(steps, timeout=_SECONDS)
            after = children.all_cpu_seconds(cluster.pids)
        return peer_figures.Turn.of(ends, after - before)

    def _steps(self, ends, seconds):
        """Steps of each worker that take so long, at the pace of the last."""
        pace = sum(map(peer_figures.pace, ends)) / self.workers
        return max(_LEAST_STEPS, round(seconds * pace))


def _tfdist(method, title, short, ps=1):
    def start(shape):
        return clusters.Cluster(
            (keras_peers.of_tfdist, shape, method),
            (keras_peers.serve, method),
            ps=ps,
            workers=WORKERS,
            forked=True,
            name=title,
        )

    return System(title, short, start)


def _keras(build, title, short, workers=WORKERS):
    def start(shape):
        return clusters.Cluster(
            (build, shape), ps=0, workers=workers, forked=True, name=title
        )

    return System(title, short, start, workers)


def _torch(build, title, short, serve=None):
    def start(shape):
        return clusters.Cluster(
            (build, shape),
            (serve, shape),
            ps=int(serve is not None),
            workers=WORKERS,
            environ=_TORCH_ENVIRONMENT,
            name=title,
        )

    return System(title, short, start, needs="torch")


def _coordinated(shape):
    return clusters.TensorFlowCluster(
        shape,
        WORKERS,
        coordinator=keras_peers.coordinator,
        workers=WORKERS,
        forked=True,
    )


# Name -> `System`, next to those that it is compared with.
SYSTEMS = {
    "tfdist_async": _tfdist("async", "tfdist AsyncStrategy, fit", "Async"),
    "tf_ps": System("TF ParameterServerStrategy", "TF PSS", _coordinated),
    "torch_rpc": _torch(
        torch_peers.rpc_worker,
        "PyTorch RPC parameter server",
        "RPC",
        torch_peers.rpc_serve,
    ),
    "tfdist_sync": _tfdist("sync", "tfdist Sync(), fit", "Sync"),
    "tfdist_all_reduce": _tfdist(
        "all_reduce", "tfdist AllReduceStrategy, fit", "all-reduce", ps=0
    ),
    "tfdist_averaging": _tfdist(
        "averaging", "tfdist averaging, ring, fit", "averaging", ps=0
    ),
    "tf_mirrored": _keras(
        keras_peers.mirrored, "TF MultiWorkerMirroredStrategy", "MWMS"
    ),
    "torch_ddp": _torch(
        torch_peers.data_parallel_worker, "PyTorch DDP, gloo", "DDP"
    ),
    "keras": _keras(
        keras_peers.plain, "Keras fit, one process", "Keras", workers=1
    ),
}


def measure(shape, systems, rounds, seconds):
    """Lets systems take turns at one model.

    Args:
        shape: a `peer_models.Shape`.
        systems: name -> `System`.
        rounds: number of turns of each. A system that has failed gets none.
        seconds: of the steps that count, of each turn.

    Returns:
        Name -> `peer_figures.Row`.
    """
    errors = {
        name: NOT_INSTALLED
        for name, system in systems.items()
        if not system.is_installed
    }

    def turn(name):
        progress.set_description(systems[name].title)
        if name not in errors:
            try:
                return systems[name].turn(shape, seconds)
            except (children.ChildError, OSError, ValueError) as error:
                errors[name] = str(error).strip().splitlines()[-1]
            finally:
                progress.update()

    with tqdm.tqdm(total=rounds * len(systems), unit="turn") as progress:
        turns = program.take_turns(
            {name: functools.partial(turn, name) for name in systems}, rounds
        )
    return {
        name: peer_figures.Row(turns[name], errors.get(name))
        for name in systems
    }
