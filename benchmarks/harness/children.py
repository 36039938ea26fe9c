"""Processes that a benchmark starts, asks, and never leaves behind."""

import multiprocessing
from multiprocessing import connection
import os
import threading
import time
import traceback

_spawn = multiprocessing.get_context("spawn")
_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["tfdist", "keras"])
_START_SECONDS = 120.0


class ChildError(RuntimeError):
    """A child process raised, died or did not answer in time."""


class Child:
    """A process that builds something and then answers questions about it.

    `build(*args)` runs in the new process and returns a callable; `ask` calls
    it there. The process ends with the one that started it, however that
    ends.
    """

    def __init__(self, name, build, *args, environ=None, forked=False):
        """Starts the process.

        Args:
            name: what errors call it.
            build: a function of a module, called in the new process.
            *args: its arguments.
            environ: variables to set in the new process, a dict.
            forked: whether to fork it from a process that has imported
                TensorFlow, which costs each other process seconds. What is
                read when TensorFlow is imported, or before, has to be the
                same in the `environ` of all that are forked.
        """
        self.name = name
        self._connection, theirs = _spawn.Pipe()
        # Nothing is ever sent on it: its end is the end of this process.
        self._lifeline, watched = _spawn.Pipe()
        self._process = (_forkserver if forked else _spawn).Process(
            target=_live,
            args=(theirs, watched, environ or {}, build, args),
            name=name,
            daemon=True,
        )
        before = dict(os.environ)
        os.environ.update(environ or {})
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        watched.close()

    @property
    def pid(self):
        """Its process id."""
        return self._process.pid

    @property
    def connection(self):
        """What can be waited for until there is an answer."""
        return self._connection

    def wait_until_built(self):
        """Waits until `build` has returned."""
        self.answer(_START_SECONDS)

    def ask(self, *question, timeout=120.0):
        """Returns what the child's callable returns for `question`.

        Args:
            *question: the arguments of the callable.
            timeout: seconds.

        Raises:
            ChildError: if it raised, died or took longer.
        """
        self.tell(*question)
        return self.answer(timeout)

    def tell(self, *question):
        """Asks without waiting; `answer` gives the answer."""
        self._connection.send(question)

    def answer(self, timeout=120.0):
        """Waits for the answer to the last question; see `ask`."""
        deadline = time.monotonic() + timeout
        while not self._connection.poll(0.5):
            if not self._process.is_alive():
                raise ChildError(
                    f"{self.name} died with status {self._process.exitcode}."
                )
            if time.monotonic() > deadline:
                raise ChildError(
                    f"{self.name} did not answer within {timeout:g} s."
                )
        try:
            error, answer = self._connection.recv()
        except EOFError:
            raise ChildError(f"{self.name} has gone.") from None
        if error:
            raise ChildError(f"{self.name}:\n{error}")
        return answer

    def close(self, timeout=20.0):
        """Lets the process end, kills it after `timeout` seconds."""
        self._connection.close()
        self._process.join(timeout)
        self._process.kill()
        self._process.join()
        self._lifeline.close()

    def kill(self):
        """Ends a process that only serves."""
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._lifeline.close()


def answers(asked, timeout=_START_SECONDS):
    """Waits for the answers of several; the first that fails ends the wait.

    Those that stand still for one that failed are not waited for.

    Args:
        asked: list of `Child`.
        timeout: seconds.

    Returns:
        Their answers, a list.

    Raises:
        ChildError: see `Child.ask`.
    """
    deadline = time.monotonic() + timeout
    found = {}
    while waiting := [c for c in asked if c not in found]:
        left = deadline - time.monotonic()
        ready = connection.wait([c.connection for c in waiting], max(0, left))
        if not ready:
            raise ChildError(
                f"{waiting[0].name} did not answer within {timeout:g} s."
            )
        for child in waiting:
            if child.connection in ready:
                found[child] = child.answer()
    return [found[child] for child in asked]


def cpu_seconds(pid):
    """What a process has had of the processors, with all of its threads.

    Linux counts in ticks of 10 ms.

    Returns:
        A tuple: seconds in user mode, seconds in the kernel.
    """
    with open(f"/proc/{pid}/stat") as stat:
        # The name stands in parentheses, and may have spaces.
        fields = stat.read().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def all_cpu_seconds(pids):
    """The `cpu_seconds` of all these processes together."""
    return sum(sum(cpu_seconds(pid)) for pid in pids)


def peak_mb(pids):
    """The largest peak of resident memory of these processes, in megabytes."""
    return max(resident_mb(pid, peak=True) for pid in pids)


def resident_mb(pid, peak=False):
    """Resident memory of a process in megabytes, now or at its peak."""
    name = "VmHWM:" if peak else "VmRSS:"
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"Process {pid} has ended.")


def _live(connection, lifeline, environ, build, args):
    os.environ.update(environ)
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    try:
        answer_to = build(*args)
        connection.send((None, None))
        while True:
            try:
                question = connection.recv()
            except (EOFError, ConnectionResetError):
                return
            connection.send((None, answer_to(*question)))
    except Exception:  # Whatever it is, the benchmark shows it and ends.
        connection.send((traceback.format_exc(), None))


def _die_with(lifeline):
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)
