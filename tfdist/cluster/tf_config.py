"""The grammar of `TF_CONFIG`: everything malformed is refused by name.

`TF_CONFIG` is JSON, as TensorFlow defines it:

```
{"cluster": {"chief": ["host:port"], "worker": [...], "ps": [...],
             "evaluator": [...]},
 "task": {"type": "worker", "index": 0},
 "rpc_layer": "grpc"}
```

Each check says which key is wrong, what it held and what is allowed. The
same checks serve cluster resolvers and clusters given as arguments, which
only have other names for the keys. This module does not import TensorFlow.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import ipaddress
import json
import re
from typing import Any

JOBS = ("chief", "worker", "ps", "evaluator")
"""Allowed job names; chief and workers come in the order of worker ids."""

_KNOWN_KEYS = ("cluster", "task", "rpc_layer")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)


class ClusterConfigError(ValueError):
    """The description of the cluster is malformed; the message says where."""


@dataclasses.dataclass(frozen=True)
class KeyNames:
    """What the user calls each part of the description.

    Attributes:
        cluster: name of the mapping of jobs to addresses.
        task_type: name of the type of this task.
        task_index: name of the index of this task.
        rpc_layer: name of the protocol.
    """

    cluster: str
    task_type: str
    task_index: str
    rpc_layer: str


TF_CONFIG_NAMES = KeyNames(
    cluster='TF_CONFIG["cluster"]',
    task_type='TF_CONFIG["task"]["type"]',
    task_index='TF_CONFIG["task"]["index"]',
    rpc_layer='TF_CONFIG["rpc_layer"]',
)


def parse_tf_config(text: str) -> tuple[Any, Any, Any, Any] | None:
    """Splits the text of `TF_CONFIG` into its parts, unchecked.

    Keys beside `cluster`, `task` and `rpc_layer` are ignored, because the
    platforms that write `TF_CONFIG` add their own (`environment`, `job`,
    `session_master`, ...); only what looks like a misspelt `cluster` or
    `task` is refused. Keys beside `type` and `index` in `task` are ignored
    for the same reason (`trial`, `cloud`).

    Args:
        text: the value of the environment variable.

    Returns:
        `(cluster, task_type, task_index, rpc_layer)`, or `None` where the
        text names no cluster.

    Raises:
        ClusterConfigError: if the text is malformed.
    """
    if not text.strip():
        return None
    try:
        config = json.loads(text, object_pairs_hook=_object_without_twins)
    except ClusterConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ClusterConfigError(
            f"TF_CONFIG must be a JSON object. Received: TF_CONFIG="
            f"{_shown(text)}, which is not JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise _refusal("TF_CONFIG", "be a JSON object", config)
    _refuse_misspelt_keys(config)
    cluster = config.get("cluster", {})
    if not isinstance(cluster, dict):
        raise _refusal(
            TF_CONFIG_NAMES.cluster,
            "be an object that maps jobs to lists of addresses",
            cluster,
        )
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise _refusal(
            'TF_CONFIG["task"]', 'be an object with "type" and "index"', task
        )
    rpc_layer = config.get("rpc_layer")
    if not cluster:
        _refuse_task_without_cluster(task)
        check_rpc_layer(rpc_layer, TF_CONFIG_NAMES)
        return None
    for key, allowed in (
        ("type", f"be one of {', '.join(JOBS)}"),
        ("index", "be an integer from 0"),
    ):
        if key not in task:
            raise ClusterConfigError(
                f'TF_CONFIG["task"]["{key}"] must {allowed}. Received: '
                f'TF_CONFIG["task"]={_shown(task)}, where it is missing.'
            )
    return cluster, task["type"], task["index"], rpc_layer


def check(
    parts: tuple[Any, Any, Any, Any], names: KeyNames
) -> tuple[dict[str, tuple[str, ...]], str, int, str]:
    """Checks a whole description.

    Args:
        parts: `(cluster, task_type, task_index, rpc_layer)`; the cluster is
            empty for one process without servers.
        names: what the user calls them.

    Returns:
        The same four in their normal form.

    Raises:
        ClusterConfigError: if anything is not allowed.
    """
    cluster, task_type, task_index, rpc_layer = parts
    spec = {} if cluster == {} else check_spec(cluster, names)
    task_type, task_index = check_task(task_type, task_index, spec, names)
    return spec, task_type, task_index, check_rpc_layer(rpc_layer, names)


def check_spec(cluster: Any, names: KeyNames) -> dict[str, tuple[str, ...]]:
    """Checks a mapping of jobs to addresses.

    Args:
        cluster: job -> list of addresses, or dict of task index -> address.
        names: what the user calls it.

    Returns:
        Job -> addresses in the order of tasks, jobs in the order of `JOBS`;
        jobs without tasks are left out.

    Raises:
        ClusterConfigError: if anything in it is not allowed.
    """
    if not isinstance(cluster, Mapping):
        raise _refusal(names.cluster, "map jobs to lists of addresses", cluster)
    for job in cluster:
        if job == "master":
            raise ClusterConfigError(
                f'{names.cluster} must not have a job "master": that is '
                f'TensorFlow 1\'s name, call it "chief". Received: jobs '
                f"{list(cluster)}. Allowed: {', '.join(JOBS)}."
            )
        if job not in JOBS:
            raise ClusterConfigError(
                f"{names.cluster} has an unknown job {_shown(job)}. "
                f"Received: jobs {_shown(list(cluster))}. Allowed: "
                f"{', '.join(JOBS)}."
            )
    spec = {}
    owner: dict[tuple[str, int], str] = {}
    for job in JOBS:
        name = f'{names.cluster}["{job}"]'
        addresses = _addresses(cluster.get(job, ()), name)
        for index, address in enumerate(addresses):
            task = f"{name}[{index}]"
            endpoint = _endpoint(address, task)
            if endpoint in owner:
                raise ClusterConfigError(
                    f"{task} must differ from the address of every other "
                    f"task. Received: {address!r}, which {owner[endpoint]} "
                    "has as well."
                )
            owner[endpoint] = task
        if addresses:
            spec[job] = tuple(addresses)
    _check_counts(spec, names)
    return spec


def check_task(
    task_type: Any, task_index: Any, spec: Mapping[str, Any], names: KeyNames
) -> tuple[str, int]:
    """Checks that a task is one of the cluster's.

    Args:
        task_type: the type (job) of the task.
        task_index: an integer, or a string of digits as TensorFlow accepts.
        spec: the checked cluster; empty for one process without servers.
        names: what the user calls them.

    Returns:
        `(task_type, task_index)`, the index as an integer.

    Raises:
        ClusterConfigError: if there is no such task.
    """
    jobs = [job for job in JOBS if job in spec or job == "evaluator"]
    if not spec:
        jobs = ["worker"]
    if task_type == "master":
        raise ClusterConfigError(
            f"{names.task_type} must be one of {', '.join(jobs)}. Received: "
            "'master', which is TensorFlow 1's name: call it 'chief'."
        )
    if not isinstance(task_type, str) or task_type not in jobs:
        raise _refusal(
            names.task_type,
            f"be one of the cluster's jobs ({', '.join(jobs)})",
            task_type,
        )
    # TensorFlow lets the evaluator be absent from the cluster. There is one
    # at most, as there is one process where no cluster is given.
    count = len(spec.get(task_type, ())) or 1
    allowed = f"be an integer from 0 to {count - 1} for type {task_type!r}"
    if isinstance(task_index, str) and _INDEX.fullmatch(task_index):
        task_index = int(task_index)
    if isinstance(task_index, bool) or not isinstance(task_index, int):
        raise _refusal(names.task_index, allowed, task_index)
    if not 0 <= task_index < count:
        raise _refusal(names.task_index, allowed, task_index)
    if task_type == "evaluator" and not spec.get("ps"):
        raise ClusterConfigError(
            f'{names.cluster} must have a job "ps" where there is an '
            "evaluator, which reads the parameters from the servers. "
            f"Received: jobs {list(spec)}."
        )
    return task_type, task_index


def check_rpc_layer(rpc_layer: Any, names: KeyNames) -> str:
    """Returns `"grpc"`; refuses every other protocol.

    Args:
        rpc_layer: the protocol, `None` or empty for the default.
        names: what the user calls it.

    Raises:
        ClusterConfigError: if it is another one.
    """
    if rpc_layer is None or rpc_layer == "" or rpc_layer == "grpc":
        return "grpc"
    raise _refusal(names.rpc_layer, "be 'grpc'", rpc_layer)


def canonical(spec: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Returns a spec in which equal endpoints are equal strings."""
    return {
        job: [":".join(map(str, _endpoint(a, job))) for a in addresses]
        for job, addresses in sorted(spec.items())
    }


def _object_without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a JSON object; JSON itself would keep the last of two twins."""
    result = {}
    for key, value in pairs:
        if key in result:
            raise ClusterConfigError(
                f"TF_CONFIG must name each key once. Received: {key!r} twice "
                "in one object."
            )
        result[key] = value
    return result


def _refuse_misspelt_keys(config: Mapping[str, Any]) -> None:
    for key in config:
        if key in _KNOWN_KEYS:
            continue
        near = difflib.get_close_matches(
            key.lower(), ("cluster", "task"), n=1, cutoff=0.7
        )
        if near and near[0] not in config:
            raise ClusterConfigError(
                f'TF_CONFIG["{key}"] looks like a misspelt "{near[0]}". '
                f"Received: keys {list(config)}. Allowed: "
                f"{', '.join(_KNOWN_KEYS)}; other keys are ignored."
            )


def _refuse_task_without_cluster(task: Mapping[str, Any]) -> None:
    """Only the first worker may go on alone: a second one never should."""
    if task.get("type", "worker") in ("chief", "worker"):
        if str(task.get("index", 0)) == "0":
            return
    raise ClusterConfigError(
        'TF_CONFIG["cluster"] must list the cluster in which '
        f'TF_CONFIG["task"] is a task. Received: TF_CONFIG["task"]='
        f"{_shown(dict(task))} and no cluster."
    )


def _addresses(value: Any, name: str) -> list[Any]:
    """Returns the addresses of one job as a list."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, Mapping):
        raise _refusal(
            name,
            "be a list of addresses, or an object of task index to address",
            value,
        )
    by_index = {}
    for key, address in value.items():
        is_index = isinstance(key, int) and not isinstance(key, bool)
        if not is_index and not _INDEX.fullmatch(str(key)):
            raise ClusterConfigError(
                f"{name} must have task indices (0, 1, ...) as keys. "
                f"Received: the key {_shown(key)}."
            )
        by_index[int(key)] = address
    # TensorFlow allows gaps (tasks that this one need not know), but then
    # nobody here could tell how many workers or servers there are.
    if sorted(by_index) != list(range(len(value))):
        raise ClusterConfigError(
            f"{name} must list the tasks 0 to {len(value) - 1}, each once. "
            f"Received: tasks {_shown(sorted(map(str, value)))}."
        )
    return [by_index[index] for index in sorted(by_index)]


def _endpoint(address: Any, name: str) -> tuple[str, int]:
    """Returns `(host, port)`, in lower case, of a well-formed address."""
    allowed = "be 'host:port' with a port from 1 to 65535"
    if not isinstance(address, str) or not address:
        raise _refusal(name, allowed, address)
    if "://" in address:
        raise _refusal(name, f"{allowed}, without a scheme", address)
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise _refusal(name, allowed, address)
    if host.startswith("[") and host.endswith("]"):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError as error:
            raise _refusal(
                name, f"{allowed}; in brackets goes an IPv6 address", address
            ) from error
    elif ":" in host:
        raise _refusal(
            name, f"{allowed}; IPv6 goes in brackets, as '[::1]:2222'", address
        )
    elif not _HOST.fullmatch(host):
        raise _refusal(name, f"{allowed}; the host is malformed", address)
    if not _INDEX.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise _refusal(name, allowed, address)
    return host.lower(), int(port)


def _check_counts(spec: Mapping[str, Any], names: KeyNames) -> None:
    for job in ("chief", "evaluator"):
        if len(spec.get(job, ())) > 1:
            raise ClusterConfigError(
                f'{names.cluster}["{job}"] must list one address at most. '
                f"Received: {len(spec[job])} addresses {list(spec[job])}."
            )
    workers = len(spec.get("chief", ())) + len(spec.get("worker", ()))
    if not workers:
        raise ClusterConfigError(
            f'{names.cluster} must have at least one task in "worker" or '
            f'"chief". Received: jobs {list(spec)}.'
        )


def check_servers(spec: Mapping[str, Any], names: KeyNames) -> None:
    """Refuses several workers without a parameter server.

    Args:
        spec: the checked cluster.
        names: what the user calls it.

    Raises:
        ClusterConfigError: if that is what it is.
    """
    workers = len(spec.get("chief", ())) + len(spec.get("worker", ()))
    if workers > 1 and not spec.get("ps"):
        raise ClusterConfigError(
            f'{names.cluster}["ps"] must list at least one parameter server '
            f"where there is more than one worker, unless the strategy has "
            f'communication="ring". Received: {workers} workers (chief '
            "included) and no ps."
        )


def _refusal(name: str, allowed: str, received: Any) -> ClusterConfigError:
    return ClusterConfigError(
        f"{name} must {allowed}. Received: {_shown(received)} (of type "
        f"{type(received).__name__})."
    )


def _shown(value: Any, limit: int = 200) -> str:
    """Returns a `repr` of a length that fits a message."""
    try:
        text = repr(value)
    except ValueError:  # An integer of more digits than Python prints.
        text = "<an integer of thousands of digits>"
    return text if len(text) <= limit else f"{text[:limit]}..."
