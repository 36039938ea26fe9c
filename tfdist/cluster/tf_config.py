"""The grammar of `TF_CONFIG`: everything malformed is refused by name.

`TF_CONFIG` is JSON, as TensorFlow defines it:

```
{"cluster": {"chief": ["host:port"], "worker": [...], "ps": [...],
             "evaluator": [...], "helper": [...]},
 "task": {"type": "worker", "index": 0},
 "rpc_layer": "grpc",
 "initial_workers": 2}
```

`initial_workers` is ours: how many of the workers are there from the beginning.
So is the job `helper`, tasks that hold layers of workers' models.
`groups.py` knows one key more, `codistillation`, which TensorFlow has not.

Each check says which key is wrong, what it held and what is allowed. The
same checks serve cluster resolvers and clusters given as arguments, which
only have other names for the keys. This module does not import TensorFlow.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from tfdist import checks
from tfdist.cluster import addresses
from tfdist.cluster.refusal import ClusterConfigError
from tfdist.cluster.refusal import refusal
from tfdist.cluster.refusal import refuse_misspelt_keys
from tfdist.cluster.refusal import shown

JOBS = ("chief", "worker", "ps", "evaluator", "helper")
"""Allowed job names; chief and workers come in the order of worker ids."""

_KNOWN_KEYS = (
    "cluster",
    "task",
    "rpc_layer",
    "codistillation",
    "initial_workers",
)


@dataclasses.dataclass(frozen=True)
class KeyNames:
    """Names of the parts of a description, as the user writes them.

    Attributes:
        cluster: name of the mapping of jobs to addresses.
        task_type: name of the type of this task.
        task_index: name of the index of this task.
        initial_workers: name of the number of workers at the beginning.
    """

    cluster: str
    task_type: str
    task_index: str
    initial_workers: str


TF_CONFIG_NAMES = KeyNames(
    cluster='TF_CONFIG["cluster"]',
    task_type='TF_CONFIG["task"]["type"]',
    task_index='TF_CONFIG["task"]["index"]',
    initial_workers='TF_CONFIG["initial_workers"]',
)


def parse_tf_config(text: str) -> tuple[Any, Any, Any, Any] | None:
    """Splits the text of `TF_CONFIG` into its parts, unchecked.

    Keys beside `type` and `index` in `task` are ignored, because platforms
    add their own (`trial`, `cloud`).

    Args:
        text: the value of the environment variable.

    Returns:
        `(cluster, task_type, task_index, initial_workers)`, or `None` where
        the text names no cluster.

    Raises:
        ClusterConfigError: if the text is malformed.
    """
    config = load(text)
    cluster = config.get("cluster", {})
    if not isinstance(cluster, dict):
        raise refusal(
            TF_CONFIG_NAMES.cluster,
            "be an object that maps jobs to lists of addresses",
            cluster,
        )
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise refusal(
            'TF_CONFIG["task"]', 'be an object with "type" and "index"', task
        )
    check_rpc_layer(config.get("rpc_layer"), 'TF_CONFIG["rpc_layer"]')
    if not cluster:
        _refuse_task_without_cluster(task)
        return None
    for key, allowed in (
        ("type", f"be one of {', '.join(JOBS)}"),
        ("index", "be an integer from 0"),
    ):
        if key not in task:
            raise ClusterConfigError(
                f'TF_CONFIG["task"]["{key}"] must {allowed}. Received: '
                f'TF_CONFIG["task"]={shown(task)}, where it is missing.'
            )
    return cluster, task["type"], task["index"], config.get("initial_workers")


def load(text: str) -> dict[str, Any]:
    """Reads the text of `TF_CONFIG`.

    Keys that nothing here reads are ignored, because the platforms that
    write `TF_CONFIG` add their own (`environment`, `job`, `session_master`,
    ...); only what looks like one of ours misspelt is refused.

    Args:
        text: the value of the environment variable.

    Returns:
        What it says, unchecked; empty where the text is.

    Raises:
        ClusterConfigError: if it is no JSON object, or has a misspelt key.
    """
    if not text.strip():
        return {}
    try:
        config = json.loads(text, object_pairs_hook=_object_without_twins)
    except ClusterConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ClusterConfigError(
            f"TF_CONFIG must be a JSON object. Received: TF_CONFIG="
            f"{shown(text)}, which is not JSON: {error}"
        ) from error
    if not isinstance(config, dict):
        raise refusal("TF_CONFIG", "be a JSON object", config)
    watched = [key for key in _KNOWN_KEYS if key != "rpc_layer"]
    refuse_misspelt_keys("TF_CONFIG", config, _KNOWN_KEYS, watched)
    return config


def check(
    parts: Sequence[Any], names: KeyNames
) -> tuple[dict[str, tuple[str, ...]], str, int, int]:
    """Checks a whole description.

    Args:
        parts: `(cluster, task_type, task_index, initial_workers)`; the cluster
            is empty for one process without servers.
        names: what the user calls them.

    Returns:
        The same four in their normal form.

    Raises:
        ClusterConfigError: if anything is not allowed.
    """
    cluster, task_type, task_index, initial_workers = parts
    spec = {} if cluster == {} else check_spec(cluster, names)
    task_type, task_index = check_task(task_type, task_index, spec, names)
    number = check_initial_workers(initial_workers, spec, names)
    return spec, task_type, task_index, number


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
        raise refusal(names.cluster, "map jobs to lists of addresses", cluster)
    for job in cluster:
        if job == "master":
            raise ClusterConfigError(
                f'{names.cluster} must not have a job "master": that is '
                f'TensorFlow 1\'s name, call it "chief". Received: jobs '
                f"{list(cluster)}. Allowed: {', '.join(JOBS)}."
            )
        if job not in JOBS:
            raise ClusterConfigError(
                f"{names.cluster} has an unknown job {shown(job)}. "
                f"Received: jobs {shown(list(cluster))}. Allowed: "
                f"{', '.join(JOBS)}."
            )
    spec = {}
    owner: dict[tuple[str, int], str] = {}
    for job in JOBS:
        name = f'{names.cluster}["{job}"]'
        tasks = addresses.in_order(cluster.get(job, ()), name)
        for index, address in enumerate(tasks):
            addresses.claim(address, f"{name}[{index}]", owner)
        if tasks:
            spec[job] = tuple(tasks)
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
        raise refusal(
            names.task_type,
            f"be one of the cluster's jobs ({', '.join(jobs)})",
            task_type,
        )
    # TensorFlow lets the evaluator be absent from the cluster. There is one
    # at most, as there is one process where no cluster is given.
    count = len(spec.get(task_type, ())) or 1
    allowed = f"be an integer from 0 to {count - 1} for type {task_type!r}"
    if isinstance(task_index, str) and addresses.INDEX.fullmatch(task_index):
        task_index = int(task_index)
    if not checks.is_count(task_index, 0) or task_index >= count:
        raise refusal(names.task_index, allowed, task_index)
    if task_type == "evaluator" and not spec.get("ps"):
        raise ClusterConfigError(
            f'{names.cluster} must have a job "ps" where there is an '
            "evaluator, which reads the parameters from the servers. "
            f"Received: jobs {list(spec)}."
        )
    return task_type, int(task_index)


def check_rpc_layer(rpc_layer: Any, name: str) -> None:
    """Refuses every protocol but gRPC.

    Args:
        rpc_layer: the protocol, `None` or empty for the default.
        name: what the user calls it.

    Raises:
        ClusterConfigError: if it is another one.
    """
    if rpc_layer not in (None, "", "grpc"):
        raise refusal(name, "be 'grpc'", rpc_layer)


def check_initial_workers(
    number: Any, spec: Mapping[str, tuple[str, ...]], names: KeyNames
) -> int:
    """Checks the number of workers that are there from the beginning.

    Args:
        number: the number; `None` for all.
        spec: the checked cluster; empty for one process without servers.
        names: what the user calls it.

    Returns:
        The number.

    Raises:
        ClusterConfigError: if there are not so many workers, or none.
    """
    capacity = len(spec.get("chief", ())) + len(spec.get("worker", ())) or 1
    if number is None:
        return capacity
    allowed = (
        f"be an integer from 1 to {capacity}, the workers of the cluster "
        "(chief included)"
    )
    if not checks.is_count(number, 1) or number > capacity:
        raise refusal(names.initial_workers, allowed, number)
    if number < capacity and not spec.get("ps"):
        raise ClusterConfigError(
            f"{names.initial_workers} may be less than the workers of the "
            "cluster only where there are parameter servers. Received: "
            f"{number} of {capacity} workers and no ps."
        )
    return int(number)


def canonical(spec: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Returns a spec in which equal endpoints are equal strings."""
    return {
        job: [":".join(map(str, addresses.endpoint(a, job))) for a in tasks]
        for job, tasks in sorted(spec.items())
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


def _refuse_task_without_cluster(task: Mapping[str, Any]) -> None:
    """Only the first worker may go on alone: a second one never should."""
    if task.get("type", "worker") in ("chief", "worker"):
        if str(task.get("index", 0)) == "0":
            return
    raise ClusterConfigError(
        'TF_CONFIG["cluster"] must list the cluster in which '
        f'TF_CONFIG["task"] is a task. Received: TF_CONFIG["task"]='
        f"{shown(dict(task))} and no cluster."
    )


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
    _check_helpers(spec, workers, names)


def _check_helpers(spec: Mapping[str, Any], workers: int, names: KeyNames):
    helpers = len(spec.get("helper", ()))
    if helpers % workers:
        raise ClusterConfigError(
            f'{names.cluster}["helper"] must list as many tasks for each '
            f"worker (chief included). Received: {helpers} helpers and "
            f"{workers} workers."
        )
    if helpers and (not spec.get("ps") or spec.get("evaluator")):
        raise ClusterConfigError(
            f'{names.cluster} must have a job "ps" and no job "evaluator" '
            "where there are helpers: these see by the servers when training "
            "is over, and an evaluator has none for its model. Received: "
            f"jobs {list(spec)}."
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
            "where there is more than one worker, unless the strategy has "
            "none (AllReduceStrategy, PeerToPeerStrategy, GossipStrategy, or "
            f'communication="ring"). Received: {workers} workers (chief '
            "included) and no ps."
        )
