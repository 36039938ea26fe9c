"""Groups of a codistillation: this process's own, and the others.

In codistillation several groups, each one process or a whole cluster, train
on disjoint data and teach each other. A process learns its group from a key
of `TF_CONFIG` beside TensorFlow's own, which is there with and without a
cluster:

```
{"cluster": {...}, "task": {...},
 "codistillation": {"group": 0, "num_groups": 2,
                    "servers": [["host:port", ...], ["host:port"]]}}
```

`servers` is optional: the parameter servers of each group, its own included.
This module does not import TensorFlow.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import os
import sys
from typing import Any

from tfdist import checks
from tfdist.cluster import addresses
from tfdist.cluster import tf_config
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.refusal import ClusterConfigError
from tfdist.cluster.refusal import refusal
from tfdist.cluster.refusal import refuse_misspelt_keys
from tfdist.cluster.refusal import shown

_KEY = 'TF_CONFIG["codistillation"]'
_KNOWN_KEYS = ("group", "num_groups", "servers")


@dataclasses.dataclass(frozen=True)
class _Names:
    """Names of the parts of a description, as the user writes them."""

    index: str
    num_groups: str
    servers: str


_ARGUMENT_NAMES = _Names("Group.index", "Group.num_groups", "Group.servers")
_TF_CONFIG_NAMES = _Names(*(f'{_KEY}["{key}"]' for key in _KNOWN_KEYS))


@dataclasses.dataclass(frozen=True)
class Group:
    """One of the groups that teach each other.

    A value that exists is valid: constructing one checks all of it.

    Attributes:
        index: the number of this group, from 0.
        num_groups: the number of groups, at least 1.
        servers: the parameter servers' `host:port` of each group, in the
            order of groups, empty for a group without servers; `()` where
            they are not told.

    Example:
    >>> group = Group(index=1, num_groups=3)
    >>> group.peers
    (0, 2)
    >>> group.shard(np.arange(7))
    array([1, 4])
    """

    index: int
    num_groups: int
    servers: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self):
        _check_index(self.index, self.num_groups, _ARGUMENT_NAMES)
        object.__setattr__(self, "index", int(self.index))
        object.__setattr__(self, "num_groups", int(self.num_groups))
        servers = self.servers
        if not isinstance(servers, (list, tuple)) or servers:
            servers = _checked_servers(
                servers, self.num_groups, _ARGUMENT_NAMES
            )
        object.__setattr__(self, "servers", tuple(servers))

    @classmethod
    def from_tf_config(
        cls, environ: Mapping[str, str] | None = None
    ) -> "Group":
        """Reads the group from the environment variable `TF_CONFIG`.

        Args:
            environ: the environment; `None` for that of the process.

        Returns:
            The group; the only one, `Group(0, 1)`, where `TF_CONFIG` is
            missing or empty, or has no key `codistillation`.

        Raises:
            ClusterConfigError: if `TF_CONFIG` is malformed; the message
                names the key, what it held and what is allowed.
        """
        environ = os.environ if environ is None else environ
        cluster = ClusterConfig.from_tf_config(environ, needs_servers=False)
        config = tf_config.load(environ.get("TF_CONFIG", ""))
        if "codistillation" not in config:
            return cls(0, 1)
        given = config["codistillation"]
        if not isinstance(given, dict):
            raise refusal(
                _KEY, 'be an object with "group" and "num_groups"', given
            )
        refuse_misspelt_keys(_KEY, given, _KNOWN_KEYS, _KNOWN_KEYS)
        for key in ("group", "num_groups"):
            if key not in given:
                raise ClusterConfigError(
                    f'{_KEY} must have "group" and "num_groups". Received: '
                    f'{shown(given)}, where "{key}" is missing.'
                )
        index, num_groups = given["group"], given["num_groups"]
        _check_index(index, num_groups, _TF_CONFIG_NAMES)
        servers = ()
        if "servers" in given:
            servers = _checked_servers(
                given["servers"], num_groups, _TF_CONFIG_NAMES
            )
            if cluster.spec:
                _check_own(servers[index], cluster, index)
        return cls(index, num_groups, servers)

    @property
    def peers(self) -> tuple[int, ...]:
        """The numbers of the other groups."""
        return tuple(i for i in range(self.num_groups) if i != self.index)

    def shard(self, dataset: Any) -> Any:
        """Returns this group's part of the examples.

        The parts of all groups are disjoint and together the whole, if all
        groups give the same examples in the same order: shuffle afterwards,
        or with one seed.

        Args:
            dataset: a `tf.data.Dataset`, whose elements (examples, or
                batches if it is batched) are dealt out in turn; or a NumPy
                array or tensor; or such of equal length in tuples, lists
                and dicts.

        Returns:
            The same of every `num_groups`-th example from `index` on; of
            arrays these are views, not copies.

        Raises:
            ValueError: if it is something else, arrays have different
                lengths, or a group would have no example.
        """
        tensorflow = _tensorflow()
        if tensorflow and isinstance(dataset, tensorflow.data.Dataset):
            return dataset.shard(self.num_groups, self.index)
        lengths = dict(_lengths(dataset, "dataset"))
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name}: {n}" for name, n in lengths.items())
            raise ValueError(
                "Argument `dataset` must have arrays of equal length. "
                f"Received: {found}."
            )
        length = min(lengths.values())
        if length < self.num_groups:
            raise ValueError(
                "Argument `dataset` must have at least one example for each "
                f"of {self.num_groups} groups. Received: {length} examples."
            )
        return _every(dataset, slice(self.index, None, self.num_groups))


def _check_index(index: Any, num_groups: Any, names: _Names) -> None:
    if not checks.is_count(num_groups, 1):
        raise refusal(names.num_groups, "be an integer from 1", num_groups)
    if not checks.is_count(index, 0) or index >= num_groups:
        last = shown(num_groups - 1)
        raise refusal(names.index, f"be an integer from 0 to {last}", index)


def _checked_servers(
    servers: Any, num_groups: int, names: _Names
) -> tuple[tuple[str, ...], ...]:
    """Returns the servers of all groups in their normal form."""
    if not isinstance(servers, (list, tuple)) or len(servers) != num_groups:
        raise refusal(
            names.servers,
            f"be a list of {shown(num_groups)} lists of addresses, one for "
            "each group",
            servers,
        )
    owner: dict[tuple[str, int], str] = {}
    for number, group in enumerate(servers):
        name = f"{names.servers}[{number}]"
        if not isinstance(group, (list, tuple)):
            raise refusal(
                name, "be the list of addresses of a group's servers", group
            )
        for task, address in enumerate(group):
            addresses.claim(address, f"{name}[{task}]", owner)
    return tuple(map(tuple, servers))


def _check_own(
    servers: tuple[str, ...], cluster: ClusterConfig, index: int
) -> None:
    """Refuses servers of this group that are not the cluster's own."""
    own = cluster.ps_addresses
    if tf_config.canonical({"ps": servers}) != tf_config.canonical({"ps": own}):
        raise refusal(
            f"{_TF_CONFIG_NAMES.servers}[{index}]",
            f'be TF_CONFIG["cluster"]["ps"], {shown(list(own))}, as that is '
            "this group",
            list(servers),
        )


def _tensorflow() -> Any:
    """Returns TensorFlow where it has been imported, as its objects need."""
    return sys.modules.get("tensorflow")


def _lengths(data: Any, name: str) -> Iterator[tuple[str, int]]:
    """Yields the name and the length of each array in nested data."""
    import numpy as np  # Here, so that the launcher starts without it.

    tensorflow = _tensorflow()
    kinds = (np.ndarray, tensorflow.Tensor) if tensorflow else np.ndarray
    if isinstance(data, kinds) and len(data.shape):
        yield name, data.shape[0]
    elif isinstance(data, (tuple, list)) and data:
        for index, part in enumerate(data):
            yield from _lengths(part, f"{name}[{index}]")
    elif isinstance(data, Mapping) and data:
        for key, part in data.items():
            yield from _lengths(part, f"{name}[{key!r}]")
    else:
        raise ValueError(
            "Argument `dataset` must be a tf.data.Dataset, a NumPy array or "
            "tensor, or such arrays in tuples, lists and dicts. Received: "
            f"{name}={shown(data)} (of type {type(data).__name__})."
        )


def _every(data: Any, which: slice) -> Any:
    """Returns nested arrays, each with some of its examples."""
    if isinstance(data, (tuple, list)):
        parts = [_every(part, which) for part in data]
        return parts if isinstance(data, list) else tuple(parts)
    if isinstance(data, Mapping):
        return {key: _every(part, which) for key, part in data.items()}
    return data[which]


__all__ = ["Group"]
