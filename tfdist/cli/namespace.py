"""A network of the launcher's own, which nobody outside can reach.

A network namespace has its own interfaces, here the loopback interface alone.
The launcher moves itself into a new one before it starts a task, so that all
tasks are in it and it ends with the last of them. Nothing is changed for
others, and no program is needed but the kernel.
"""

import array
import ctypes
import errno
import fcntl
import os
import pathlib
import socket
import struct
import sys
import threading

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
# `struct ifreq`: 16 bytes of name, and a union, of which this is `short`.
_REQUEST = struct.Struct("16sH22x")


def enter() -> None:
    """Moves this process, with one thread, into a new network namespace.

    With the right to do so (CAP_SYS_ADMIN, as root has) directly, otherwise
    through a user namespace, in which the user is who he was. There is no way
    back: call it where the process can still end with an error.

    Raises:
        OSError: if the system does not allow it; the message says what.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "network namespaces are Linux's")
    if threading.active_count() > 1:
        raise OSError(errno.EBUSY, "this process has other threads")
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWNET, "unshare(CLONE_NEWNET)")
    except OSError:
        _unshare(
            _CLONE_NEWUSER | _CLONE_NEWNET,
            "unshare(CLONE_NEWUSER | CLONE_NEWNET)",
        )
        process = pathlib.Path("/proc/self")
        # The kernel wants to hear first that groups will not be dropped.
        _write(process / "setgroups", "deny")
        _write(process / "uid_map", f"{user} {user} 1")
        _write(process / "gid_map", f"{group} {group} 1")
    _set_up("lo")


def outside_interfaces() -> list[str]:
    """Returns the interfaces by which others can reach this process.

    Where the system does not say, it is taken that there are some: `["?"]`.
    """
    if sys.platform != "linux":
        return ["?"]
    found = []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for _, name in socket.if_nameindex():
                flags = _flags(any_socket, name)
                if flags & _IFF_UP and not flags & _IFF_LOOPBACK:
                    found.append(name)
    except OSError:
        return ["?"]
    return found


def _unshare(flags: int, what: str) -> None:
    # `os.unshare` is there from Python 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _write(path: pathlib.Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error


def _set_up(name: str) -> None:
    """Switches an interface on."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            flags = _flags(any_socket, name) | _IFF_UP
            request = _REQUEST.pack(name.encode(), flags)
            fcntl.ioctl(any_socket, _SET_FLAGS, request)
    except OSError as error:
        # As where AppArmor takes the rights from such namespaces.
        raise OSError(
            error.errno, f"cannot switch {name} on: {error.strerror}"
        ) from error


def _flags(any_socket: socket.socket, name: str) -> int:
    request = array.array("B", _REQUEST.pack(name.encode(), 0))
    fcntl.ioctl(any_socket, _GET_FLAGS, request)
    return _REQUEST.unpack(request.tobytes())[1]
