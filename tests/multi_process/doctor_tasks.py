"""Tasks of a cluster that the doctor looks at."""

from tests.multi_process import handshake
from tests.multi_process import tasks
from tfdist.cluster import ClusterConfig
from tfdist.cluster import bare_server
from tfdist.cluster import connection
from tfdist.cluster import registration
from tfdist.cluster import versions

OLDER = "0.0.9"


def serve_older():
    """Is a server that says it has an older version."""
    versions.__version__ = OLDER
    tasks.serve()


def stay():
    """Is a worker that is there until the test tells it to go."""
    config = ClusterConfig.from_tf_config()
    _, devices = connection.connect(config, 60.0)
    registration.join(config, devices, 60.0)
    handshake.report(ready=True)
    handshake.wait_for("go")


def serve_bare(seconds):
    """Is what `tfdist doctor --serve_seconds` is."""
    bare_server.serve(ClusterConfig.from_tf_config(), seconds)
