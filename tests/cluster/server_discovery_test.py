"""Where servers are looked for that have died, with a resolver's help."""

import types

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster import incarnation
from tfdist.cluster import server_discovery
from tfdist.cluster import versions
from tfdist.cluster import waiting


def config_of(*servers, workers=("w:1", "w:2")):
    return ClusterConfig(
        spec={"ps": servers, "worker": workers},
        task_type="worker",
        task_index=0,
    )


@pytest.fixture
def look_up(monkeypatch):
    """Sets what a resolver says, one answer after the other.

    An address that begins with "alive" answers.
    """
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.time = clock.monotonic

    def sleep(seconds):
        clock.now += seconds

    clock.sleep = sleep
    for module in (server_discovery, waiting):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(
        incarnation,
        "read_all",
        lambda config: [
            7 if address.startswith("alive") else None
            for address in config.ps_addresses
        ],
    )

    def set_answers(*answers):
        left = list(answers)

        def look():
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return look

    return set_answers


BEFORE = config_of("alive:1", "dead:1")


def test_a_resolver_that_lists_live_servers_alone_is_asked_again(
    look_up, caplog
):
    discovery = server_discovery.ServerDiscovery(
        BEFORE,
        look_up(
            RuntimeError("pod ps-1 is not Running"),
            config_of("alive:1"),
            ClusterConfig.local(),
            # A worker is away as well.
            config_of("alive:1", "alive:2", workers=("w:1",)),
        ),
    )
    assert discovery.wait(300.0) == [7, 7]
    assert discovery.config == config_of("alive:1", "alive:2")
    assert caplog.text.count("does not give the 2 parameter servers now") == 1
    assert "RuntimeError: pod ps-1 is not Running" in caplog.text


def test_the_end_of_the_wait_says_what_the_resolver_says(look_up):
    discovery = server_discovery.ServerDiscovery(
        BEFORE, look_up(config_of("alive:1"))
    )
    with pytest.raises(TimeoutError, match="ps/task:1.* gives: 1 parameter"):
        discovery.wait(300.0)


def test_a_resolver_is_asked_once_a_second_at_most(look_up):
    asked = []
    answer = look_up(config_of("alive:1"))
    discovery = server_discovery.ServerDiscovery(
        BEFORE, lambda: asked.append(None) or answer()
    )
    with pytest.raises(TimeoutError):
        discovery.wait(30.0)
    assert 15 <= len(asked) <= 31


def test_a_server_that_is_listed_twice_for_a_moment_is_found(look_up):
    discovery = server_discovery.ServerDiscovery(
        BEFORE,
        look_up(
            config_of("alive:1", "dead:1", "alive:2"),
            config_of("alive:1", "alive:2"),
        ),
    )
    assert discovery.wait(300.0) == [7, 7]
    discovery = server_discovery.ServerDiscovery(
        BEFORE, look_up(config_of("alive:1", "alive:2", "alive:3"))
    )
    with pytest.raises(TimeoutError, match="ps/task:1.* gives: 3 parameter"):
        discovery.wait(300.0)


def test_a_server_may_come_back_where_a_worker_has_been(look_up):
    before = config_of("dead:1", workers=("w:1", "alive:1"))
    discovery = server_discovery.ServerDiscovery(
        before,
        look_up(
            # The worker is not listed where it is now.
            config_of("alive:1", workers=("w:1",)),
            config_of("alive:1", workers=("w:1", "w:2")),
        ),
    )
    assert discovery.wait(300.0) == [7]
    assert discovery.config == config_of("alive:1")


@pytest.mark.usefixtures("look_up")
def test_the_server_of_another_cluster_is_not_the_one_that_is_missed(
    monkeypatch,
):
    """It has got the address of a server that has died."""
    config = config_of("alive:1")
    other = config_of("alive:1", workers=("x:1",))
    told = {
        # It has just started.
        2: None,
        3: {"workers": versions.checksum(other)},
        4: {"workers": versions.checksum(config)},
    }
    lives = iter([1, 2, 3, 3, 4, 4])
    now = []

    def read_all(config):
        now[:] = [next(lives)]
        return list(now)

    monkeypatch.setattr(incarnation, "read_all", read_all)
    monkeypatch.setattr(versions, "told_by", lambda *_: told.pop(now[0]))
    discovery = server_discovery.ServerDiscovery(config)
    assert discovery.wait(300.0) == [1]
    assert discovery.lives() == [None]
    assert discovery.lives() == [None]
    (silent,) = discovery.silent([None])
    assert silent.endswith("1 (a server of another cluster listens there)")
    told[3] = {"workers": versions.checksum(other)}
    # Once it is known to be its own it is not asked again.
    assert discovery.wait(300.0) == discovery.lives() == [4]
    assert discovery.silent([None]) == ["/job:ps/task:0 at alive:1"]
