import json
import socket

from tfdist.cli.local_cluster import LocalCluster
from tfdist.cluster import ClusterConfig
from tfdist.cluster import Group


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


def test_one_group_is_a_cluster_that_knows_of_none():
    with LocalCluster({"worker": 2, "ps": 1}, num_groups=1) as cluster:
        for task in cluster.tasks:
            assert json.loads(task.tf_config).keys() == {"cluster", "task"}
            assert task.label == f"{task.job} {task.index}"


def test_groups_have_a_cluster_each_and_know_the_others_servers():
    counts = {"worker": 1, "ps": 2, "evaluator": 1}
    with LocalCluster(counts, num_groups=3) as cluster:
        tasks = cluster.tasks
    assert [task.label for task in tasks] == [
        f"group {group} {task}"
        for group in range(3)
        for task in ("ps 0", "ps 1", "worker 0", "evaluator 0")
    ]
    assert len({task.address for task in tasks}) == 12
    servers = tuple(
        tuple(
            task.address
            for task in tasks
            if (task.group, task.job) == (group, "ps")
        )
        for group in range(3)
    )
    for task in tasks:
        environ = {"TF_CONFIG": task.tf_config}
        assert Group.from_tf_config(environ) == Group(task.group, 3, servers)
        config = ClusterConfig.from_tf_config(environ)
        assert config.ps_addresses == servers[task.group]
        assert config.address == task.address


def test_a_group_can_be_one_process():
    with LocalCluster({"worker": 1, "ps": 0}, num_groups=2) as cluster:
        for number, task in enumerate(cluster.tasks):
            assert json.loads(task.tf_config) == {
                "cluster": {"worker": [task.address]},
                "task": {"type": "worker", "index": 0},
                "codistillation": {"group": number, "num_groups": 2},
            }
            environ = {"TF_CONFIG": task.tf_config}
            assert ClusterConfig.from_tf_config(environ).is_local
        assert len(cluster.tasks) == 2
