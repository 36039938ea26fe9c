"""Settings of the C library, gRPC and TensorFlow that live in the environment.

They were found by measuring and are the same for every task of a cluster.
This module does not import TensorFlow: the settings have to be there first.
"""

from collections.abc import MutableMapping
import os

RUNTIME_ENVIRONMENT: dict[str, str] = {
    # glibc hands buffers above this size (bytes; this is the largest that it
    # takes) back to the system when they are freed, and the page faults of
    # the next fresh buffer cost 15 to 40 % of an exchange of large tensors.
    # Read once, when the process starts.
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    # For the same reason, keep up to this many free bytes on top of the heap.
    # Read once, when the process starts.
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    # TensorFlow's own INFO lines say nothing to a user. Read when TensorFlow
    # is imported.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Fail calls to a peer that is unreachable instead of holding them until
    # it comes back. Read when TensorFlow is imported.
    "GRPC_FAIL_FAST": "true",
    # Keras waits at the end of each epoch, evaluation and prediction until the
    # eager runtimes of all servers have nothing to do, and fails if one is
    # away. TensorFlow's own strategy for parameter servers sets this, too.
    # Read each time.
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY": "True",
    # Without keep-alive a peer that is stopped or cut off hangs a step for
    # ever; with these the step fails with UNAVAILABLE after about 7 seconds
    # and works again when the peer does. Read when TensorFlow is imported.
    "TF_GRPC_DEFAULT_OPTIONS": ",".join(
        (
            "grpc.keepalive_time_ms=5000",
            "grpc.keepalive_timeout_ms=4000",
            "grpc.http2.ping_timeout_ms=4000",
            "grpc.http2.max_pings_without_data=0",
            "grpc.min_reconnect_backoff_ms=3000",
        )
    ),
}
"""Name -> value, for every process of a cluster."""


def apply(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what is missing of `RUNTIME_ENVIRONMENT`; never overwrites.

    In a process that runs already this serves for the variables that are
    read when TensorFlow is imported, so call it before that. Those of malloc
    count only for processes that start later with this environment.

    Args:
        environ: the environment to change; that of the process by default.
    """
    for name, value in RUNTIME_ENVIRONMENT.items():
        environ.setdefault(name, value)
