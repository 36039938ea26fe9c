"""Asks a server whether it is there, and which life it is in."""

import contextlib
import socket

import tensorflow as tf

_CONNECT_SECONDS = 2.0


def read(address, task, timeout, protocol="grpc"):
    """The number that a server's runtime has drawn when it started.

    It needs nothing of the cluster that this process is connected to: a
    server that hangs, is gone or was started again disturbs nobody.

    Args:
      address: `host:port` of a `ps` task.
      task: Its number.
      timeout: Seconds for its answer.
      protocol: TensorFlow's, of the server.

    Returns:
      An int, or None where nobody answers in time.
    """
    host, port = address.rsplit(":", 1)
    try:
        # TensorFlow would go on trying where nobody listens.
        socket.create_connection(
            (host.strip("[]"), int(port)), min(timeout, _CONNECT_SECONDS)
        ).close()
    except OSError:
        return None
    config = tf.compat.v1.ConfigProto(
        operation_timeout_in_ms=max(1, round(timeout * 1000)),
        # A server that knows of others would ask them as well.
        device_filters=[f"/job:ps/task:{task}"],
    )
    session = None
    try:
        session = tf.compat.v1.Session(
            f"{protocol}://{address}", graph=tf.Graph(), config=config
        )
        for device in session.list_devices():
            if f"/job:ps/replica:0/task:{task}/" in device.name:
                return device.incarnation
    except (tf.errors.OpError, OSError):
        pass
    finally:
        # As a context it would be closed in a thread, which prints errors.
        if session is not None:
            with contextlib.suppress(tf.errors.OpError):
                session.close()
    return None
