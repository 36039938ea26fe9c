import json
import types

import keras
import pytest

from tests.codistillation.scripted_exchange import checkpoint
import tfdist
from tfdist.codistillation import Group
from tfdist.codistillation import PeerServers
from tfdist.codistillation import server_session
from tfdist.codistillation.exchange import PeerUnavailableError

SERVERS = [["a:1", "a:2"], ["b:1"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "int4"}, "float32, float16, int8. .*dtype='int4'"),
        ({"timeout": 0}, "`timeout` must be a finite .* Received: timeout=0"),
        ({"name": 1}, "name must be a string. Received: 1"),
        ({"servers": "a:1"}, "servers must be a list of lists of addresses"),
        ({"servers": [["a:1"], ["b"]]}, r"servers\[1\]\[0\] must be 'host:po"),
        ({"servers": [["a:1"], ["a:1"]]}, r"which servers\[0\]\[0\] has as"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PeerServers(**arguments)


def in_cluster(number=0, group=0):
    """A model that a cluster trains, as far as `bind` looks at it."""
    strategy = types.SimpleNamespace(
        cluster=types.SimpleNamespace(
            num_ps=2, ps_addresses=SERVERS[group], is_chief=True
        ),
        layout=lambda variables: {"variables": [number]},
    )
    return types.SimpleNamespace(distribute_strategy=strategy, variables=[])


@pytest.fixture
def texts(monkeypatch):
    """What has been left on servers, by its name there."""
    left = {}

    def leave(server, name, text, deadline):
        left[server, name] = text

    def read(server, name, what, deadline):
        if (server, name) not in left:
            raise PeerUnavailableError(what)
        return left[server, name]

    monkeypatch.setattr(server_session, "leave_text", leave)
    monkeypatch.setattr(server_session, "read_text", read)
    return left


def bound(number, model, name=""):
    """The exchange of a group that is about to train a model."""
    exchange = PeerServers(name=name)
    exchange.bind(Group(number, 2, SERVERS), in_cluster(model, number))
    return exchange


def test_a_former_model_of_a_group_teaches_no_more(texts):
    bound(1, model=0).publish(checkpoint([], group=1, step=1))
    ((place, text),) = texts.items()
    # A second `fit` of the same model leaves its layout where it is.
    bound(1, model=0)
    assert texts == {place: text} and json.loads(text)["variables"] == [0]
    bound(1, model=1)
    with pytest.raises(PeerUnavailableError, match="nothing of the model"):
        bound(0, model=1).fetch(1, None)


def test_a_group_that_is_still_at_another_model_does_not_teach_it(texts):
    bound(1, model=0, name="fold 1").publish(checkpoint([], group=1, step=1))
    with pytest.raises(PeerUnavailableError, match="layout"):
        bound(0, model=0, name="fold 2").fetch(1, None)


def test_the_groups_own_servers_will_do(texts):
    PeerServers().bind(Group(0, 2, SERVERS), in_cluster())


def test_a_server_that_is_started_again_is_told_where_weights_are(
    monkeypatch, texts
):
    left = []
    monkeypatch.setattr(
        server_session, "leave_text", lambda *arguments: left.append(arguments)
    )
    exchange = PeerServers()
    exchange.bind(Group(0, 2, SERVERS), in_cluster())
    for step in (1, 2):
        exchange.publish(checkpoint([], group=0, step=step))
    # Nothing tells this process whether the server has lost the first.
    assert len(left) == 2
    assert left[0][:3] == left[1][:3]


@pytest.mark.parametrize(
    ("given", "group", "message"),
    [
        (None, Group(0, 2), "needs the addresses of all groups' parameter"),
        (SERVERS, Group(0, 3), "for each of 3 groups. Received: 2 lists"),
        (
            [["a:1"], []],
            Group(0, 2),
            r"for each other group.*servers\[1\]=\[\]",
        ),
    ],
)
def test_groups_without_known_servers_are_refused(given, group, message):
    with pytest.raises(ValueError, match=message):
        PeerServers(given).bind(group, in_cluster())


@pytest.mark.parametrize("strategy", [None, tfdist.AsyncStrategy])
def test_one_process_is_told_to_use_a_directory(strategy):
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    if strategy is not None:
        with strategy().scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="group 1 has none.* SharedDirectory"):
        PeerServers(SERVERS).bind(Group(1, 2), model)
