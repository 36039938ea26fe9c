"""Servers that come back at other addresses, which a resolver gives."""

import json

import pytest

from tests.multi_process import moved_server_tasks
from tests.multi_process.server_failure_test import check_exact
from tests.multi_process.server_recovery_test import check_restored
from tests.multi_process.server_recovery_test import go_on

pytestmark = pytest.mark.nightly


@pytest.fixture
def made(cluster):
    return cluster(num_ps=2, num_workers=2)


def tell(made, servers):
    """Says where the servers are."""
    spec = {
        "ps": servers,
        "worker": [made.address("worker", index) for index in range(2)],
    }
    path = made.directory / moved_server_tasks.CLUSTER_FILE
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(spec))
    draft.rename(path)


def test_fit_goes_on_where_the_servers_are_now(made):
    addresses = [made.address("ps", index) for index in range(2)]
    tell(made, addresses)
    servers = [
        made.start("ps", index, "moved_server_tasks:serve")
        for index in range(2)
    ]
    workers = made.start_workers("moved_server_tasks:train")
    go_on(workers, 5)
    kills = ([1], [0, 1])
    for killed in kills:
        for index in killed:
            servers[index].kill()
            addresses[index] = made.another_address()
        # Not yet: they are waited for where they were.
        workers[0].expect(r"Waiting for it to come back")
        tell(made, addresses)
        for index in killed:
            servers[index] = made.start("ps", index, "moved_server_tasks:serve")
            port = addresses[index].rsplit(":", 1)[1]
            servers[index].expect(f"serves on port {port} ")
        for worker in workers:
            worker.expect(f"servers are at {', '.join(addresses)} now")
            worker.expect(r"goes on after [\d.]+ s without /job:ps")
        go_on(workers)
    made.tell("stop")
    made.finish()
    check_exact([worker.report() for worker in workers])
    check_restored(workers, kills)
