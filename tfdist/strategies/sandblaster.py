"""Batch optimization with a coordinator, as users construct it."""

import contextlib
from typing import Any

import tensorflow as tf
from typing_extensions import Unpack

from tfdist import checks
from tfdist.cluster import tf_config
from tfdist.sandblaster import barriers
from tfdist.sandblaster import extended
from tfdist.sandblaster import training as training_lib
from tfdist.saving import files
from tfdist.saving import refusals
from tfdist.strategies import construction
from tfdist.strategies import fault_tolerance as fault_tolerance_lib
from tfdist.strategies import options
from tfdist.strategies import whole_cluster
from tfdist.strategies.fault_tolerance import FaultTolerance


class SandblasterStrategy(whole_cluster.ClusterMixin, tf.distribute.Strategy):
    """Minimizes the loss of a whole data set: Sandblaster L-BFGS.

    The parameters and all that L-BFGS remembers lie on parameter servers, each
    of which has a piece of every vector. The chief coordinates: it sends the
    servers short commands, and holds scalars only. The data is cut into
    portions, many more than workers; each worker, the chief too, takes one
    when it is free, and leaves its gradient on the servers. What a dead or slow
    worker has not computed is computed by others, and each portion counts once.

    An epoch of `fit` is one iteration, over all of the data, which each worker
    is given as a whole and in the same order (`shuffle=False`), and keeps in
    memory. The optimizer is `tfdist.sandblaster.LBFGS`. The same code runs in
    one process without `TF_CONFIG`. Any task may die, and its process may be
    started again: the chief goes on where it was, and when a server is lost all
    servers go back to the last iteration of which each has a snapshot. See
    docs/sandblaster.md.

    Args:
      cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`;
        default: read `TF_CONFIG`.
      portions_per_worker: Portions of the data, times the number of workers;
        fewer if the data has fewer batches.
      backup_after: Median durations of a portion after which a free worker
        computes it as well when no other portion is left; more than 1.
      fault_tolerance: A `FaultTolerance`, of which `start_timeout`,
        `worker_timeout`, `server_timeout`, `stall_timeout`, `on_preemption`,
        `snapshot_dir` and `snapshot_every` count, and `on_stall="wait"`.
      seed: Integer for `keras.utils.set_random_seed`, the same on all workers.

    Raises:
      ValueError: An argument is not allowed; the message says what is.
      ClusterConfigError: The cluster's description is malformed.
      TimeoutError: The servers could not be reached within `start_timeout`.

    References:
      Dean et al., "Large scale distributed deep networks", NIPS 2012, section
      4.2.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver
        | None = None,
        *,
        portions_per_worker: int = 8,
        backup_after: float = 2.0,
        fault_tolerance: FaultTolerance | None = None,
        seed: int | None = None,
        **unknown: Unpack[options.Unknown],
    ):
        fault_tolerance_lib.refuse(unknown, type(self))
        portions_per_worker = checks.count(
            "portions_per_worker", portions_per_worker
        )
        backup_after = checks.number(
            "backup_after", backup_after, lambda x: x > 1, "above 1"
        )
        seed = construction.checked_seed(seed)
        tolerance = fault_tolerance_lib.checked(fault_tolerance)
        config, look_up = construction.cluster(cluster_resolver, True)
        if "evaluator" in config.spec:
            raise tf_config.ClusterConfigError(
                'TF_CONFIG["cluster"] must have no job "evaluator" for '
                f"SandblasterStrategy. Received: jobs {list(config.spec)}"
            )
        construction.serve_if_server(
            config, look_up, tolerance, writes_on_command=True
        )
        self._resolver = construction.resolver_of(cluster_resolver)
        connections = construction.connect(config, look_up, True, tolerance)
        self._cluster = config = connections.config
        construction.begin_program(config)
        construction.set_seed(config, seed)
        self._files = files.of(config)
        self._training = training_lib.SandblasterTraining(
            self,
            config,
            connections,
            construction.namespace(config),
            portions_per_worker,
            backup_after,
            tolerance,
            self._files,
        )
        self._barriers = barriers.Barriers(
            connections.membership, config, tolerance
        )
        if not config.is_chief:
            refusals.refuse_to_open()
        super().__init__(
            extended.SandblasterExtended(
                self,
                self._training,
                config,
                connections.worker_device,
                self._files,
            )
        )

    def __repr__(self) -> str:
        return construction.described(self)

    @property
    def iterations(self) -> list[dict[str, Any]]:
        """The iterations that this worker has seen, a list of dicts.

        Each has `outcome` ("moved", "converged", or "stuck" where no direction
        decreases the loss any more), `value`, the loss; `gradient_norm`, the
        largest absolute value of the gradient; `step`, the length along the
        direction; `evaluations`, how often loss and gradient were computed; and
        `restarted`, whether the memory was forgotten.
        """
        names = (
            "outcome",
            "value",
            "gradient_norm",
            "step",
            "evaluations",
            "restarted",
        )
        return [
            {name: one[name] for name in names}
            for one in self._training.iterations
        ]

    def progress(self) -> dict[str, int]:
        """Returns how far the iteration under way has come.

        Returns:
          A dict of ints: `iterations`, those of this call of `fit` that are
          done; `evaluations`, those that were begun in all; `portions`, into
          how many the data is cut, 0 between two evaluations; and `done`, how
          many of them are computed.
        """
        board = self._training.over_losses(self._training.board.read)
        accepted = (board.get("queue") or {}).get("accepted", [])
        return {
            "iterations": board.get("done", 0),
            "evaluations": board.get("evaluation", 0),
            "portions": len(accepted),
            "done": len(accepted) - accepted.count(None),
        }

    def portion_counts(self) -> dict[str, dict[str, int]]:
        """Returns how many portions each worker has computed, so far.

        Returns:
          A dict of worker name to a dict with `counted` and `late`, ints: the
          latter are those that another worker had computed before.
        """
        board = self._training.over_losses(self._training.board.read)
        counts = board.get("counts", {})
        found = {}
        for number, name in enumerate(self._cluster.worker_names):
            counted, late = counts.get(str(number), (0, 0))
            found[name] = {"counted": counted, "late": late}
        return found

    @property
    def recoveries(self) -> list[Any]:
        """Losses of servers that this worker has seen, a list of objects.

        Each has `time`, that of the end of the recovery in seconds since the
        epoch, `seconds`, and `servers`, the names of those that had lost what
        they held.
        """
        return self._training.recoveries

    def barrier(self) -> None:
        """Waits until all workers have reached their own call of this.

        A worker that has ended, or has not been heard of for a minute, is not
        waited for, nor one that has not come `start_timeout` after the start.
        Nobody is waited for longer than `stall_timeout`, unless `on_stall` is
        "wait"; the log says without whom it goes on.
        """
        self._barriers.meet(self._training.over_losses)

    def own_files(self) -> contextlib.AbstractContextManager[None]:
        """Scope in which this task writes what it saves, chief or not.

        See `ParameterServerStrategy.own_files`.
        """
        return self._files.own()


options.write_out(SandblasterStrategy, SandblasterStrategy)
