"""What a worker does of itself when servers have come back."""

import json
import types

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.cluster import member_table
from tfdist.cluster import reconnection
from tfdist.runtime.exchange import exchange_markers
from tfdist.runtime.recovery import server_loss
from tfdist.runtime.replicas import consistent_read
from tfdist.runtime.variables import traced_calls


def new_model():
    """A runtime of one variable, of which servers know nothing yet."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        keras.layers.Dense(2, use_bias=False).build((None, 3))
    return strategy._runtime


def test_a_worker_that_has_committed_nothing_does_not_commit_now():
    # It would wait for a chief that may be where it is itself.
    runtime = new_model()
    fake = types.SimpleNamespace(_runtime=runtime)
    server_loss.Recovery._refresh(fake, dropped := [])
    assert dropped == [0]
    assert runtime.committed == 0
    assert not runtime.is_held()


def test_a_server_that_holds_none_of_a_small_model_lacks_nothing():
    runtime = new_model()
    runtime.commit()
    first_values = runtime.synchronizer.first_values
    assert first_values.complete_on(0, [], runtime.committed) == 0


@pytest.mark.parametrize("former", ["ALIVE", "UNKNOWN"])
def test_a_chief_that_was_there_before_asks_for_workers_that_have_trained(
    former,
):
    """Not where a cluster begins, of which another worker may be ahead."""
    looks = []
    membership = types.SimpleNamespace(former=None, row=0, read=lambda: "rows")

    def find_former():
        state = member_table.MemberState[former]
        membership.former = types.SimpleNamespace(state=state)

    membership.find_former = find_former
    fake = types.SimpleNamespace(
        _membership=membership,
        _store=types.SimpleNamespace(call=lambda function: function()),
        _settling=types.SimpleNamespace(
            wait=lambda is_chief, timeout, others: looks.extend(others())
        ),
    )
    fake._has_come_back = lambda: server_loss.Recovery._has_come_back(fake)
    server_loss.Recovery.wait_until_settled(fake, True, 1.0)
    assert looks == list("ows" if former == "ALIVE" else "")
    looks.clear()
    server_loss.Recovery.wait_until_settled(fake, False, 1.0)
    assert not looks


@pytest.mark.parametrize(
    ("here", "is_restored"), [([False, False], False), ([False, True], True)]
)
def test_a_server_is_restored_only_where_somebody_was_there_before(
    here, is_restored
):
    """Not after an evaluator alone, or a worker that has committed nothing."""
    settled = []
    fake = recovering({0}, here, settled)
    server_loss.Recovery._recover(fake, None)
    assert settled == [is_restored]
    assert fake.events[0].dropped_local_steps == 0


def recovering(lost, here, settled, dropped=0):
    """A `Recovery` of servers of which some have lost what they held."""

    def recover(error, put_back):
        put_back(lost, [2])
        return reconnection.ServerReturn(1.0, 2.0, ("ps",) * len(lost))

    return types.SimpleNamespace(
        _whereabouts=types.SimpleNamespace(
            config=types.SimpleNamespace(
                num_workers=2, ps_names=["ps"], task_name="this worker"
            )
        ),
        _election=types.SimpleNamespace(
            restore=lambda shard, began: (False, here),
            lost_by_rows=lambda shard: None,
        ),
        _settling=types.SimpleNamespace(
            settle=lambda shard, is_restored: settled.append(is_restored),
            snapshot_of=lambda shard: "",
        ),
        _runtime=types.SimpleNamespace(
            unused_models=types.SimpleNamespace(free_again=lambda *_: None),
            coordination=types.SimpleNamespace(renew=lambda now, here: None),
        ),
        _reconnection=types.SimpleNamespace(recover=recover),
        _settle_marks=lambda: None,
        _refresh=lambda counts: counts.append(dropped),
        events=[],
        on_first_lost=[],
    )


@pytest.mark.parametrize("lost", [(), (0,), (1,)])
def test_reports_are_back_on_the_first_server_before_workers_meet(lost):
    done = []
    fake = recovering(set(lost), [True], [])
    fake._whereabouts.config.ps_names = ["first", "second"]

    def restore(shard, began):
        done.append("meets others")
        return False, [True]

    fake._election.restore = restore
    fake.on_first_lost.append(lambda: done.append("reports"))
    server_loss.Recovery._recover(fake, None)
    assert (
        done
        == {
            (): [],
            (0,): ["reports", "meets others"],
            (1,): ["meets others"],
        }[lost]
    )


def test_a_break_tells_how_many_local_steps_it_has_cost(caplog):
    fake = recovering(set(), [True, True], [], dropped=3)
    server_loss.Recovery._recover(fake, None)
    assert fake.events[0].dropped_local_steps == 3
    assert "this worker drops 3 local steps" in caplog.text


def test_a_call_of_a_worker_whose_gradients_are_void_recovers_first():
    done = []
    coordination = types.SimpleNamespace(is_behind=True)

    def recover(error):
        # A mere break, where the server was restored: no reason to raise.
        assert isinstance(error, reconnection._TRANSIENT)
        coordination.is_behind = False
        done.append("recovered")

    fake = types.SimpleNamespace(
        _active=types.SimpleNamespace(),
        _runtime=types.SimpleNamespace(coordination=coordination),
        _watchdog=types.SimpleNamespace(
            begin=lambda what: None, end=lambda before: None
        ),
        recover=recover,
    )
    for _ in range(2):
        server_loss.Recovery.call(fake, done.append, "called")
    assert done == ["recovered", "called", "called"]


@pytest.mark.nightly
def test_local_steps_that_were_not_sent_are_dropped_and_counted(monkeypatch):
    strategy = tfdist.ParameterAveragingStrategy(period=4)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = tf.ones([2, 1])
    before = model.get_weights()
    for _ in range(3):
        model.train_on_batch(x, 2 * x)
    runtime, dropped = strategy._runtime, []
    fake = types.SimpleNamespace(_runtime=runtime)

    def fail():
        raise tf.errors.UnavailableError(None, None, "it is gone again")

    with monkeypatch.context() as patch:
        patch.setattr(runtime.synchronizer, "pull_committed", fail)
        with pytest.raises(tf.errors.UnavailableError):
            server_loss.Recovery._refresh(fake, dropped)
    # When a recovery begins again, they are told all the same.
    server_loss.Recovery._refresh(fake, dropped)
    assert dropped == [3, 0]
    for now, value in zip(model.get_weights(), before, strict=True):
        assert (now == value).all()


@pytest.mark.parametrize("is_worker", [False, True])
def test_marks_of_workers_that_do_not_come_are_there_after_a_loss(is_worker):
    """A reading of all servers that was under way is then done again."""
    store = new_model().store
    marks = exchange_markers.ExchangeMarkers(store, num_workers=3, worker_id=0)
    traced = traced_calls.Traced(store)

    def read():
        def build():
            locks, held = consistent_read.lock_all(store)
            found = marks.build_all(held)
            with tf.control_dependencies([found[0].op]):
                store.unlock(0, locks[0])
            return found

        return traced.call("read", build)[0].numpy()

    def lose():
        for worker in range(3):
            tf.raw_ops.DestroyResourceOp(
                resource=store.resource(
                    0, f"mark/{worker}/others", tf.int64, [2]
                )
            )

    @tf.function(autograph=False)
    def leave():
        marks.leave(0, None, tf.constant(7, tf.int64), [0])

    marks.prepare(traced)
    leave()
    before = read()
    assert before[0, :, 0].tolist() == [7, 0, 0]
    traced.call("lose", lose)
    recovery = types.SimpleNamespace(
        _runtime=types.SimpleNamespace(marks=marks),
        _traced=traced_calls.Traced(store),
        _whereabouts=types.SimpleNamespace(
            config=types.SimpleNamespace(is_worker=is_worker)
        ),
    )
    server_loss.Recovery._settle_marks(recovery)
    assert read().shape == before.shape
    assert not read().any()


def test_two_strategies_of_a_process_tell_a_server_of_both():
    texts = []

    class Manifest:
        close = staticmethod(lambda: None)

        def __call__(self, text):
            texts.append(json.loads(text))

    def tell(prefix):
        store = types.SimpleNamespace(
            devices=["a device of this test"],
            known={(0, f"{prefix}/kernel"): tf.float32},
            name_of=lambda name: f"{prefix}/{name}",
            tables_on=lambda shard: {},
        )
        server_loss.Recovery.leave_manifest(
            types.SimpleNamespace(
                _store=store,
                _manifests=[Manifest()],
                incarnations=[1],
                _told={},
            )
        )

    tell("one")
    tell("two")
    assert [group["lock"] for group in texts[-1]] == ["one/lock", "two/lock"]
    assert texts[-1][0]["variables"] == {"one/kernel": "float32"}
