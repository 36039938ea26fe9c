"""Addresses of tasks: `host:port`, well-formed, and each of one task only.

This module does not import TensorFlow.
"""

from collections.abc import Mapping
import ipaddress
import re
from typing import Any

from tfdist.cluster.refusal import ClusterConfigError
from tfdist.cluster.refusal import refusal
from tfdist.cluster.refusal import shown

INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)
"""The index of a task where it is text."""

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?", re.ASCII)


def in_order(value: Any, name: str) -> list[Any]:
    """Returns the addresses of one job as a list.

    Args:
        value: a list of them, or a dict of task index -> address.
        name: what the user calls it.

    Raises:
        ClusterConfigError: if it is neither, or tasks are missing.
    """
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, Mapping):
        raise refusal(
            name,
            "be a list of addresses, or an object of task index to address",
            value,
        )
    by_index = {}
    for key, address in value.items():
        is_index = isinstance(key, int) and not isinstance(key, bool)
        if not is_index and not INDEX.fullmatch(str(key)):
            raise ClusterConfigError(
                f"{name} must have task indices (0, 1, ...) as keys. "
                f"Received: the key {shown(key)}."
            )
        by_index[int(key)] = address
    # TensorFlow allows gaps (tasks that this one need not know), but then
    # nobody here could tell how many workers or servers there are.
    if sorted(by_index) != list(range(len(value))):
        raise ClusterConfigError(
            f"{name} must list the tasks 0 to {len(value) - 1}, each once. "
            f"Received: tasks {shown(sorted(map(str, value)))}."
        )
    return [by_index[index] for index in sorted(by_index)]


def claim(address: Any, name: str, owner: dict[tuple[str, int], str]) -> None:
    """Gives a task an address, which is well-formed and nobody else's.

    Args:
        address: the address.
        name: what the user calls the task.
        owner: endpoint -> name of the task that has it; gets this one.

    Raises:
        ClusterConfigError: if the task cannot have it.
    """
    place = endpoint(address, name)
    if place in owner:
        raise ClusterConfigError(
            f"{name} must differ from the address of every other task. "
            f"Received: {address!r}, which {owner[place]} has as well."
        )
    owner[place] = name


def endpoint(address: Any, name: str) -> tuple[str, int]:
    """Returns `(host, port)`, in lower case, of a well-formed address.

    Args:
        address: the address.
        name: what the user calls it.

    Raises:
        ClusterConfigError: if it is malformed.
    """
    allowed = "be 'host:port' with a port from 1 to 65535"
    if not isinstance(address, str) or not address:
        raise refusal(name, allowed, address)
    if "://" in address:
        raise refusal(name, f"{allowed}, without a scheme", address)
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise refusal(name, allowed, address)
    if host.startswith("[") and host.endswith("]"):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError as error:
            raise refusal(
                name, f"{allowed}; in brackets goes an IPv6 address", address
            ) from error
    elif ":" in host:
        raise refusal(
            name, f"{allowed}; IPv6 goes in brackets, as '[::1]:2222'", address
        )
    elif not _HOST.fullmatch(host):
        raise refusal(name, f"{allowed}; the host is malformed", address)
    if not INDEX.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise refusal(name, allowed, address)
    return host.lower(), int(port)
