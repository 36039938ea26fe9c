import json
import socket

from tfdist.cli.local_cluster import LocalCluster
from tfdist.cluster import ClusterConfig


def test_ports_are_held_and_yet_can_be_served():
    with LocalCluster({"ps": 2, "worker": 3, "evaluator": 1}) as cluster:
        ports = [int(task.address.split(":")[1]) for task in cluster.tasks]
        assert len(set(ports)) == 6
        # The system hands none of them to those who ask for any port.
        for _ in range(200):
            with socket.create_server(("127.0.0.1", 0)) as other:
                assert other.getsockname()[1] not in ports
        # A task can serve on its port, as often as it is started again.
        for _ in range(2):
            for host in ("127.0.0.1", "0.0.0.0"):
                with (
                    socket.create_server((host, ports[0])) as server,
                    socket.create_connection(("127.0.0.1", ports[0]), 10) as c,
                ):
                    accepted, address = server.accept()
                    accepted.close()
                    assert address == c.getsockname()


def test_a_held_port_refuses_connections_until_it_is_served():
    with LocalCluster({"worker": 1}) as cluster:
        host, port = cluster.tasks[0].address.split(":")
        with socket.socket() as client:
            assert client.connect_ex((host, int(port))) != 0


def test_tasks_see_one_cluster():
    with LocalCluster({"worker": 2, "chief": 1, "ps": 1}) as cluster:
        labels = [task.label for task in cluster.tasks]
        assert labels == ["ps 0", "chief 0", "worker 0", "worker 1"]
        for task in cluster.tasks:
            config = ClusterConfig.from_tf_config({"TF_CONFIG": task.tf_config})
            assert (config.task_type, config.task_index) == (
                task.job,
                task.index,
            )
            assert config.address == task.address
            assert "evaluator" not in json.loads(task.tf_config)["cluster"]
