"""Isolation of the ports of a cluster on this machine.

TensorFlow's servers listen on every interface, whatever address they are
given, and do what anybody tells them. So the launcher keeps other machines
out where it can do so without taking anything from the training script, and
says so where it cannot.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib

from tfdist.cli import firewall
from tfdist.cli import namespace
from tfdist.cli import usage

WAYS = ("auto", "always", "never")
"""The values of `--isolate`."""


def leave_network(isolate: str) -> None:
    """Moves this process into a network of its own, if that is wanted.

    Args:
        isolate: one of `WAYS`; only `always` does it.

    Raises:
        UsageError: if the system does not allow it.
    """
    if isolate != "always":
        return
    try:
        namespace.enter()
    except OSError as error:
        raise usage.UsageError(
            "Flag --isolate=always needs a network namespace, which the "
            f"system does not allow here: {error.strerror}. It allows it to "
            "root (in a container: with the capability SYS_ADMIN), and where "
            "users may have namespaces of their own. Or take --isolate=auto, "
            "and keep the ports in a private network."
        ) from error


@contextlib.contextmanager
def keep_others_out(
    isolate: str,
    addresses: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Keeps other machines from the ports of the tasks, while it lasts.

    Args:
        isolate: one of `WAYS`; after `leave_network`.
        addresses: `host:port` of all tasks that listen.
        say: what is told a user.

    Yields:
        Nothing.
    """
    ports = sorted({int(a.rpartition(":")[2]) for a in addresses})
    interfaces = namespace.outside_interfaces()
    listed = ", ".join(map(str, ports))
    if isolate == "never" or not ports or not interfaces:
        if isolate == "always":
            say("the tasks are in a network of their own, without any other")
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            rule = stack.enter_context(firewall.PortRule(ports))
        except firewall.FirewallError as error:
            say(
                f"warning: ports {listed} are open to whoever reaches this "
                f"machine (by {', '.join(interfaces)}; no firewall rule: "
                f"{error}). --isolate=always closes them, --isolate=never "
                "silences this; see docs/security.md"
            )
        else:
            say(
                f"a firewall rule (nft table inet {rule.table}) keeps other "
                f"machines from ports {listed} until this run ends"
            )
        yield
