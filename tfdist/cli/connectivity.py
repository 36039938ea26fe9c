"""Whether tasks can be reached: their names and ports, within a bound."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import enum
import queue
import socket
import threading
import time
from typing import Any


class Port(enum.Enum):
    """Outcome of an attempt to connect to a port."""

    OPEN = "open"
    CLOSED = "closed"  # The machine answers, and nobody listens.
    SILENT = "no answer"
    UNREACHABLE = "unreachable"
    UNKNOWN = "-"  # Nobody could try.


@dataclasses.dataclass
class Reach:
    """Result of a try to reach an address.

    Attributes:
        ip: the first IP address that its name resolves to.
        port: what the port is.
        is_here: whether the IP address is one of this machine's.
        error: what went wrong, for people.
    """

    ip: str | None = None
    port: Port = Port.UNKNOWN
    is_here: bool = False
    error: str = ""


def reach(address: str, timeout: float) -> Reach:
    """Resolves a name and connects to its port, as gRPC would.

    Args:
        address: `host:port`.
        timeout: seconds to connect, for all addresses of the name together;
            resolving has the system's bound, so call it by `within`.
    """
    host, _, number = address.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(number), type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Reach(error=f"its name does not resolve: {reason}")
    result = Reach()
    for family, kind, _, _, where in found:
        port, error = _connect(family, kind, where, timeout / len(found))
        if result.ip is None or port == Port.OPEN:
            result = Reach(where[0], port, _is_here(family, where), error)
        if port == Port.OPEN:
            break
    return result


def within(
    seconds: float, calls: Sequence[Callable[[], Any]], late: Any
) -> list[Any]:
    """Returns what functions return, all called at the same time.

    Args:
        seconds: for all of them together. Who takes longer is left behind in
            a thread that ends with the process.
        calls: functions without arguments. What one raises is returned.
        late: what to return for those.
    """
    answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def run(number: int, call: Callable[[], Any]) -> None:
        try:
            answers.put((number, call()))
        except Exception as error:
            answers.put((number, error))

    for number, call in enumerate(calls):
        threading.Thread(target=run, args=(number, call), daemon=True).start()
    results = [late] * len(calls)
    end = time.monotonic() + seconds
    for _ in calls:
        try:
            left = max(0.0, end - time.monotonic())
            number, answer = answers.get(timeout=left)
        except queue.Empty:
            break
        results[number] = answer
    return results


def _connect(
    family: int, kind: int, where: tuple, timeout: float
) -> tuple[Port, str]:
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(timeout)
            client.connect(where)
            return Port.OPEN, ""
    except ConnectionRefusedError:
        return Port.CLOSED, "nothing listens there"
    except TimeoutError:
        return Port.SILENT, (
            f"no answer within {timeout:g} s: the machine is down, or a "
            "firewall drops what comes to it"
        )
    except OSError as error:
        return Port.UNREACHABLE, f"unreachable: {error.strerror or error}"


def _is_here(family: int, where: tuple) -> bool:
    """Whether an address is this machine's: then a socket can have it."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.bind((where[0], 0, *where[2:]))
            return True
    except OSError:
        return False
