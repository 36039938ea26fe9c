"""SIGTERM as a notice: this process is to leave soon.

That is what schedulers send before they take a machine away, and what
`tfdist scale` sends to a worker. The process then ends by `SystemExit(143)`, so
that `finally` and `atexit` run, as soon as the main thread is where it may. 143
is what SIGTERM makes of a process that has no handler: a launcher that has not
sent it starts the worker again, and does not take it for done.

Python runs a handler between two lines of Python only, and a step that waits
for the gradients of others may take long. So a thread hears of the signal at
once, and the heartbeat sees to it that the step need not wait.
"""

import os
import signal
import socket
import threading

from absl import logging

_EXIT_STATUS = 128 + signal.SIGTERM
# For each wait of a process that is leaving.
_LAST_SECONDS = 5.0
_received = threading.Event()
_forking = threading.local()


class _Settings:
    """Settings for SIGTERM, which a process gets as a whole."""

    exits = True
    # Callable of the interrupted frame; whether it ends what is under way.
    stop = None
    # Both ends of what the signal's number is written to.
    sockets = None
    # Whether the process ends because of the notice.
    is_leaving = False


_settings = _Settings()


def install(exits=True, stop=None):
    """Takes SIGTERM for a notice from now on.

    Does nothing where the script has a handler of its own, where the signal
    is ignored, or in a thread that is not the main one, as Python has it.

    Args:
      exits: Whether the process is made to end, or only takes note.
      stop: Callable of the frame that was interrupted; returns whether what
        runs there will end by itself with `leave`, at a better moment.

    Returns:
      Whether a notice will be taken.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGTERM)
    if handler not in (signal.SIG_DFL, _on_signal):
        return False
    _settings.exits, _settings.stop = exits, stop
    if handler is not _on_signal:
        signal.signal(signal.SIGTERM, _on_signal)
        os.register_at_fork(
            before=_block, after_in_parent=_unblock, after_in_child=_forget
        )
        _listen()
    return True


def received():
    """Whether this process has got the notice."""
    return _received.is_set()


def will_exit():
    """Whether this process has got the notice, and is made to end by it."""
    return received() and _settings.exits


def tell_script():
    """Whether this process has got the notice, for a script that ends then.

    A script that has heard of it and ends leaves before the end of training.
    """
    if received():
        _settings.is_leaving = True
    return received()


def is_leaving():
    """Whether this process ends because of the notice, as far as is known.

    Not if it has got the notice, and has trained to the end without a look.
    """
    return _settings.is_leaving


def leave():
    """Ends the process, from the main thread.

    Raises:
      SystemExit: Always.
    """
    _settings.is_leaving = True
    raise SystemExit(_EXIT_STATUS)


def leave_if_noticed():
    """Ends the process if it is to leave; for waits of the main thread.

    Raises:
      SystemExit: It is.
    """
    if (
        received()
        and _settings.exits
        and threading.current_thread() is threading.main_thread()
        and _is_running()
    ):
        leave()


def bounded(seconds):
    """Seconds to wait, of at most `seconds`, where that takes long.

    Who is leaving does what is left to do (`atexit`), and not for long.
    """
    if received() and _settings.exits and not _is_running():
        return min(seconds, _LAST_SECONDS)
    return seconds


def _on_signal(number, frame):
    _received.set()
    if not _settings.exits or not _is_running():
        return
    if _settings.stop is not None and _settings.stop(frame):
        return
    leave()


def _is_running():
    """Whether the script has not ended: `atexit` functions go on."""
    return threading.main_thread().is_alive()


def _listen():
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    other = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if other != -1:
        # Somebody else listens (asyncio?): the handler alone has to do.
        signal.set_wakeup_fd(other)
        reader.close()
        writer.close()
        return
    _settings.sockets = reader, writer
    threading.Thread(target=_hear, args=(reader,), daemon=True).start()


def _hear(reader):
    while numbers := reader.recv(64):
        if signal.getsignal(signal.SIGTERM) is not _on_signal:
            continue  # The script has a handler of its own by now.
        if signal.SIGTERM in numbers and not _received.is_set():
            _received.set()
            if _settings.exits:
                logging.warning(
                    "Got SIGTERM: leaving as soon as this step is done."
                )
            else:
                logging.warning("Got SIGTERM.")


def _block():
    """Before a fork: until it has its own handler, a child gets no signal.

    It would write to the socket of this process.
    """
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _unblock():
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forget():
    """In a process that was forked: its signals are not this one's."""
    _received.clear()
    _settings.is_leaving = False
    if signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _settings.sockets is not None:
        signal.set_wakeup_fd(-1)
        for end in _settings.sockets:
            end.close()
        _settings.sockets = None
    _unblock()
