"""Settings of the C library, gRPC and TensorFlow that live in the environment.

They were found by measuring and are the same for every task of a cluster.
Those that training depends on are read when TensorFlow connects to another
process or later, so that `import tfdist` may come before or after TensorFlow's
(`tests/multi_process/import_order_test.py`). This module does not import it.
"""

from collections.abc import MutableMapping
import os
import sys
import warnings

# Set by `tfdist launch`: where servers keep snapshots, and every how many
# seconds, unless the program says so.
SNAPSHOT_DIR = "TFDIST_SNAPSHOT_DIR"
SNAPSHOT_EVERY = "TFDIST_SNAPSHOT_EVERY"
# Set by it, too: the file of `tfdist.cluster.status_file`.
STATUS_FILE = "TFDIST_STATUS_FILE"
# And for servers, helpers and the evaluator: the file that is there when all
# workers have ended, and none will be started again.
END_FILE = "TFDIST_END_FILE"
_CHANNELS = "TF_GRPC_DEFAULT_OPTIONS"
_KEEPALIVE = "grpc.keepalive_time_ms=5000"
# gRPC takes one ping in 300 s on a connection that nothing else goes through;
# the third that comes earlier closes it ("Too many pings").
_KEEPALIVE_OF_SERVERS = "grpc.keepalive_time_ms=330000"

RUNTIME_ENVIRONMENT: dict[str, str] = {
    # glibc hands buffers above this size (bytes; this is the largest that it
    # takes) back to the system when they are freed, and the page faults of
    # the next fresh buffer cost 15 to 40 % of an exchange of large tensors.
    # Read once, when the process starts.
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    # For the same reason, keep up to this many free bytes on top of the heap.
    # Read once, when the process starts.
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    # TensorFlow's own INFO lines say nothing to a user. Read with its first
    # line, which it logs when it is imported: if that comes first, its lines
    # are shown, and nothing else is different.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Fail calls to a peer that is unreachable instead of holding them until
    # it comes back. Read with each call.
    "GRPC_FAIL_FAST": "true",
    # Keras waits at the end of each epoch, evaluation and prediction until the
    # eager runtimes of all servers have nothing to do, and fails if one is
    # away. TensorFlow's own strategy for parameter servers sets this, too.
    # Read each time.
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY": "True",
    # Without keep-alive a peer that is stopped or cut off hangs a step for
    # ever; with these the step fails with UNAVAILABLE after about 7 seconds
    # and works again when the peer does. And gRPC would look for tasks behind
    # the proxy of $http_proxy. Read once, when the process first connects to
    # another one.
    _CHANNELS: ",".join(
        (
            _KEEPALIVE,
            "grpc.keepalive_timeout_ms=4000",
            "grpc.http2.ping_timeout_ms=4000",
            "grpc.http2.max_pings_without_data=0",
            "grpc.min_reconnect_backoff_ms=3000",
            "grpc.enable_http_proxy=0",
        )
    ),
}
"""Name -> value, for every process of a cluster."""


def apply(environ: MutableMapping[str, str]) -> None:
    """Sets what is missing of `RUNTIME_ENVIRONMENT`; never overwrites.

    Args:
        environ: the environment to change.
    """
    for name, value in RUNTIME_ENVIRONMENT.items():
        environ.setdefault(name, value)


def apply_to_server(environ: MutableMapping[str, str]) -> None:
    """Lets a process of a server wait for other servers for long.

    A step waits on one server for a decision of another as long as workers
    wait for each other, and nothing else goes from server to server: the
    pings of keep-alive would end it after 15 s. Workers have a heartbeat on
    their connections, notice a server that is gone, and end the step on all.

    Args:
        environ: of the process, before it connects; what a user has set stays.
    """
    ours = RUNTIME_ENVIRONMENT[_CHANNELS]
    if environ.get(_CHANNELS) == ours:
        environ[_CHANNELS] = ours.replace(_KEEPALIVE, _KEEPALIVE_OF_SERVERS)


def apply_here() -> None:
    """The same for this process, whether it has imported TensorFlow or not.

    Those of malloc count only for processes that start later. Warns where
    another one comes too late: the process has connected to others.
    """
    is_late = "tensorflow" in sys.modules and _CHANNELS not in os.environ
    apply(os.environ)
    if is_late:
        # TensorFlow is imported already.
        from tfdist import private_tensorflow

        if private_tensorflow.is_connected():
            warnings.warn(
                "This process had connected to other TensorFlow processes "
                f"before `import tfdist`, which has now set {_CHANNELS}: a "
                "peer that is stopped or cut off may hang a step for ever. "
                "Import tfdist before you connect, or set the variable in the "
                "environment of the process "
                "(tfdist.cluster.environment.RUNTIME_ENVIRONMENT).",
                stacklevel=3,
            )
