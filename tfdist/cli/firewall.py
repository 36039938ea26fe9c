"""A rule of the firewall that keeps other machines from some ports.

It lies in a table of its own that belongs to a process `nft`, which the
launcher holds by a pipe: when the launcher ends, however it does, the pipe is
closed, `nft` ends, and the kernel takes the table away. What others have in
the firewall is not touched.
"""

from collections.abc import Sequence
import contextlib
import os
import select
import shutil
import subprocess

_SECONDS = 5.0
_READ_BYTES = 1 << 16
# Where administrators' programs are, which are not on every user's PATH.
_PLACES = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/local/sbin"))


class FirewallError(Exception):
    """There can be no rule; the message says why."""


class PortRule(contextlib.AbstractContextManager):
    """Drops what comes to ports from other machines, while it lasts.

    Attributes:
        table: the name of the table, as `nft list table inet NAME` shows it.
    """

    def __init__(self, ports: Sequence[int]):
        """Makes the rule.

        Args:
            ports: of TCP.

        Raises:
            FirewallError: if the system does not take it.
        """
        self.table = f"tfdist_{os.getpid()}"
        program = shutil.which("nft") or shutil.which("nft", path=_PLACES)
        if program is None:
            raise FirewallError("the program nft is not there")
        self._process = subprocess.Popen(
            [program, "-i"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Or it leaves a history of commands there.
            env={**os.environ, "HOME": os.devnull},
            bufsize=0,
            # Ctrl-C is for the launcher, which then still needs the rule.
            start_new_session=True,
        )
        try:
            self._make(", ".join(map(str, ports)))
        except FirewallError:
            self.__exit__()
            raise

    def __exit__(self, *exc_info):
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _make(self, ports: str) -> None:
        # `owner` is what makes the table end with the process. A machine's
        # own traffic comes by `lo`, whatever address it goes to.
        commands = (
            f"table inet {self.table} {{ flags owner; chain input {{ "
            "type filter hook input priority filter; policy accept; "
            f'iifname != "lo" tcp dport {{ {ports} }} drop; }}; }}\n'
            f"list table inet {self.table}\n"
        )
        with contextlib.suppress(OSError):  # It has ended, and says why.
            self._process.stdin.write(commands.encode())
        said = b""
        while b"drop" not in said and b"Error" not in said:
            if not select.select([self._process.stdout], [], [], _SECONDS)[0]:
                raise FirewallError(f"nft did not answer in {_SECONDS:g} s")
            part = os.read(self._process.stdout.fileno(), _READ_BYTES)
            if not part:
                break
            said += part
        # An error shows the command, in which there is "drop" as well.
        if b"Error" in said or b"drop" not in said:
            lines = said.decode("utf-8", "replace").strip().splitlines()
            raise FirewallError(f"nft: {lines[0] if lines else 'no answer'}")
