"""Description of a cluster, and of this process's place in it.

The answer comes from `TF_CONFIG` or from any TensorFlow cluster resolver and
is the same value object for both. This module does not import TensorFlow, so
that the launcher and every refusal of a bad `TF_CONFIG` are fast.
"""

from collections.abc import Mapping
import dataclasses
import json
import os
from typing import Any
import zlib

from tfdist.cluster import tf_config
from tfdist.cluster.refusal import ClusterConfigError

_ARGUMENT_NAMES = tf_config.KeyNames(
    cluster="ClusterConfig.spec",
    task_type="ClusterConfig.task_type",
    task_index="ClusterConfig.task_index",
    initial_workers="ClusterConfig.initial_workers",
)
_RESOLVER_NAMES = tf_config.KeyNames(
    cluster="cluster_resolver.cluster_spec()",
    task_type="cluster_resolver.task_type",
    task_index="cluster_resolver.task_id",
    initial_workers="cluster_resolver.initial_workers",
)


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """A cluster and this process's place in it.

    A value that exists is valid: constructing one checks all of it. Device
    names are those of the job as TensorFlow has it (`/job:chief/task:0`),
    while a worker's id counts chief and workers together, chief first.

    Attributes:
        spec: job (`chief`, `worker`, `ps`, `evaluator`, `helper`) to addresses
            `host:port` in the order of tasks; empty for one process without
            servers. Jobs without tasks are left out.
        task_type: the job of this process.
        task_index: the index of this process in its job.
        initial_workers: how many of the workers, the first ones (the chief
            among them), are waited for when training begins and at its end;
            the others may join later. All by default.

    Example:
    >>> config = ClusterConfig(
    ...     spec={"worker": ["a:1", "b:1"], "ps": ["c:1"]},
    ...     task_type="worker", task_index=1)
    >>> config.worker_id, config.num_workers, config.ps_names
    (1, 2, ('/job:ps/task:0',))
    """

    spec: Mapping[str, tuple[str, ...]]
    task_type: str
    task_index: int
    initial_workers: int | None = None

    def __post_init__(self):
        fields = [field.name for field in dataclasses.fields(self)]
        parts = [getattr(self, name) for name in fields]
        checked = tf_config.check(parts, _ARGUMENT_NAMES)
        for name, value in zip(fields, checked, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def from_tf_config(
        cls,
        environ: Mapping[str, str] | None = None,
        needs_servers: bool = True,
    ) -> "ClusterConfig":
        """Reads the cluster from the environment variable `TF_CONFIG`.

        Args:
            environ: the environment; `None` for that of the process.
            needs_servers: whether several workers need a parameter server.

        Returns:
            The cluster; `ClusterConfig.local()` where `TF_CONFIG` is
            missing or empty, or names no cluster.

        Raises:
            ClusterConfigError: if `TF_CONFIG` is malformed; the message
                names the key, what it held and what is allowed.
        """
        environ = os.environ if environ is None else environ
        parts = tf_config.parse_tf_config(environ.get("TF_CONFIG", ""))
        if parts is None:
            return cls.local()
        names = tf_config.TF_CONFIG_NAMES
        config = cls(*tf_config.check(parts, names))
        if needs_servers:
            tf_config.check_servers(config.spec, names)
        return config

    @classmethod
    def from_resolver(
        cls, resolver: Any, needs_servers: bool = True
    ) -> "ClusterConfig":
        """Reads the cluster from a TensorFlow cluster resolver.

        Args:
            resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. It
                may have an attribute `initial_workers`, which TensorFlow's
                have not; for a `TFConfigClusterResolver`, `TF_CONFIG` may have
                the key.
            needs_servers: whether several workers need a parameter server.

        Returns:
            The cluster; `ClusterConfig.local()` where the resolver has an
            empty cluster.

        Raises:
            ClusterConfigError: if it is no resolver or what it resolves to
                is malformed.
        """
        for attribute in ("cluster_spec", "task_type", "task_id"):
            # Asked of the class: on the instance a property would run.
            if not hasattr(type(resolver), attribute):
                raise ClusterConfigError(
                    "Argument `cluster_resolver` must be a tf.distribute."
                    "cluster_resolver.ClusterResolver. Received: "
                    f"cluster_resolver={resolver!r} (of type "
                    f"{type(resolver).__name__})."
                )
        names = _RESOLVER_NAMES
        cluster_spec = _resolved(resolver.cluster_spec, names.cluster)
        cluster = cluster_spec.as_dict() if cluster_spec else {}
        if not cluster:
            return cls.local()
        task_type = _resolved(lambda: resolver.task_type, names.task_type)
        task_index = _resolved(lambda: resolver.task_id, names.task_index)
        protocol = "cluster_resolver.rpc_layer"
        tf_config.check_rpc_layer(
            _resolved(lambda: getattr(resolver, "rpc_layer", None), protocol),
            protocol,
        )
        number, names = _initial_workers(resolver)
        parts = cluster, task_type, task_index, number
        config = cls(*tf_config.check(parts, names))
        if needs_servers:
            tf_config.check_servers(config.spec, names)
        return config

    @classmethod
    def local(cls) -> "ClusterConfig":
        """Returns one worker in this process, without servers."""
        return cls(spec={}, task_type="worker", task_index=0)

    def __hash__(self):
        return hash((self.fingerprint, self.task_type, self.task_index))

    @property
    def is_local(self) -> bool:
        """Whether this is one worker that has no servers."""
        return self.num_workers == 1 and not self.num_ps

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief, or worker 0 where there is no chief."""
        return self.is_worker and self.worker_id == 0

    @property
    def is_worker(self) -> bool:
        """Whether this task trains: a worker, or the chief."""
        return self.task_type in ("chief", "worker")

    @property
    def is_ps(self) -> bool:
        """Whether this task is a parameter server."""
        return self.task_type == "ps"

    @property
    def is_helper(self) -> bool:
        """Whether this task holds layers of a worker's model."""
        return self.task_type == "helper"

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates beside the training."""
        return self.task_type == "evaluator"

    @property
    def worker_id(self) -> int:
        """The index of this task among chief and workers, chief first.

        Raises:
            ClusterConfigError: if this task is neither.
        """
        if not self.is_worker:
            raise ClusterConfigError(
                "Only chief and workers have a worker id. Received: the task "
                f"{self.task_name}."
            )
        if self.task_type == "chief":
            return 0
        return len(self.spec.get("chief", ())) + self.task_index

    @property
    def num_workers(self) -> int:
        """The number of tasks that train, the chief included."""
        return len(self.worker_names)

    @property
    def data_share(self) -> tuple[int, int]:
        """Into how many shares data is divided, and which is this worker's.

        A worker beyond the initial ones has the share of one of them: data is
        shared out when nobody knows yet who will join. An evaluator has all
        of it.
        """
        if not self.is_worker:
            return 1, 0
        number = self.initial_workers
        return number, self.worker_id % number

    @property
    def num_ps(self) -> int:
        """The number of parameter servers."""
        return len(self.ps_addresses)

    @property
    def worker_names(self) -> tuple[str, ...]:
        """The tasks that train, in the order of worker ids."""
        if not self.spec:
            return (self.task_name,)
        return self._names("chief") + self._names("worker")

    @property
    def worker_addresses(self) -> dict[str, str]:
        """The tasks that train to their `host:port`, in the same order.

        Empty for one process without a cluster.
        """
        if not self.spec:
            return {}
        addresses = *self.spec.get("chief", ()), *self.spec.get("worker", ())
        return dict(zip(self.worker_names, addresses, strict=True))

    @property
    def ps_names(self) -> tuple[str, ...]:
        """The parameter servers, as `/job:ps/task:0`."""
        return self._names("ps")

    @property
    def helpers(self) -> dict[int, str]:
        """This worker's helpers: index of the task to `host:port`.

        With H helpers and N workers (chief first), worker k has the helpers
        from k * H / N to (k + 1) * H / N - 1. Other tasks have none.
        """
        addresses = self.spec.get("helper", ())
        if not addresses or not self.is_worker:
            return {}
        each = len(addresses) // self.num_workers
        first = self.worker_id * each
        return dict(enumerate(addresses[first : first + each], first))

    @property
    def helped_worker(self) -> str:
        """The worker whose helper this task is, as `/job:worker/task:0`."""
        each = len(self.spec["helper"]) // self.num_workers
        return self.worker_names[self.task_index // each]

    @property
    def task_name(self) -> str:
        """This task, as `/job:worker/task:0`."""
        return f"/job:{self.task_type}/task:{self.task_index}"

    @property
    def address(self) -> str | None:
        """This task's `host:port`; `None` where the cluster has none.

        That is so for one process without a cluster, and for an evaluator
        that the cluster does not list.
        """
        addresses = self.spec.get(self.task_type)
        return addresses[self.task_index] if addresses else None

    @property
    def ps_addresses(self) -> tuple[str, ...]:
        """The parameter servers' `host:port`, in the order of tasks."""
        return self.spec.get("ps", ())

    @property
    def fingerprint(self) -> int:
        """A 32-bit checksum that all tasks of one cluster agree on.

        The evaluator does not count, because a cluster may list it for
        itself and leave it out for the others. Of the parameter servers only
        the number does: they may come back at other addresses.
        """
        spec = {
            job: addresses
            for job, addresses in self.spec.items()
            if job not in ("ps", "evaluator")
        }
        parts = [tf_config.canonical(spec), self.num_ps]
        return zlib.crc32(json.dumps(parts).encode())

    def _names(self, job: str) -> tuple[str, ...]:
        count = len(self.spec.get(job, ()))
        return tuple(f"/job:{job}/task:{index}" for index in range(count))


def _initial_workers(resolver: Any) -> tuple[Any, tf_config.KeyNames]:
    """Returns how many workers there are at first, and who says that."""
    names = _RESOLVER_NAMES
    number = _resolved(
        lambda: getattr(resolver, "initial_workers", None),
        names.initial_workers,
    )
    # By its name: this module does not import TensorFlow.
    kinds = {kind.__name__ for kind in type(resolver).__mro__}
    if number is None and "TFConfigClusterResolver" in kinds:
        said_by = tf_config.TF_CONFIG_NAMES.initial_workers
        names = dataclasses.replace(names, initial_workers=said_by)
        config = tf_config.load(os.environ.get("TF_CONFIG", ""))
        number = config.get("initial_workers")
    return number, names


def _resolved(get, name: str) -> Any:
    """Calls a resolver, which reads files, variables or a network."""
    try:
        return get()
    except (ValueError, TypeError, KeyError) as error:
        raise ClusterConfigError(
            f"`{name}` failed: {type(error).__name__}: {error}"
        ) from error


__all__ = ["ClusterConfig", "ClusterConfigError"]
