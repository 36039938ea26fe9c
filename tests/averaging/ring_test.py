"""What cannot be done without servers is refused at once."""

import json
from unittest import mock

import pytest
import tensorflow as tf

import tfdist
from tfdist import synchronization
from tfdist.all_reduce import consistency
from tfdist.cluster.config import ClusterConfigError
from tfdist.runtime.local_steps import ring_communication
from tfdist.runtime.local_steps import ring_engine

TWO = {"worker": ["localhost:1", "localhost:2"]}

# name -> (arguments, parts of the message).
WRONG = {
    "partitioner": (
        {
            "variable_partitioner": (
                tf.distribute.experimental.partitioners.FixedShardsPartitioner(
                    2
                )
            )
        },
        ["variable_partitioner", "None", "FixedShardsPartitioner"],
    ),
}


def ring(**kwargs):
    """A strategy without servers."""
    return tfdist.ParameterServerStrategy(
        **{
            "communication": "ring",
            "local_steps": 2,
            "synchronization": synchronization.Sync(),
            **kwargs,
        }
    )


def tf_config(monkeypatch, cluster, job="worker"):
    """Sets `TF_CONFIG` to the first task of a job."""
    text = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
    monkeypatch.setenv("TF_CONFIG", text)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(monkeypatch, name):
    tf_config(monkeypatch, TWO)
    arguments, parts = WRONG[name]
    with pytest.raises(ValueError) as error:
        ring(**arguments)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("job", ["ps", "evaluator"])
def test_other_tasks_than_workers_are_named(monkeypatch, job):
    tf_config(monkeypatch, {**TWO, job: ["localhost:3"]})
    with pytest.raises(ClusterConfigError, match=f'no job "{job}"'):
        ring()


def test_a_server_does_not_serve_a_ring(monkeypatch):
    tf_config(monkeypatch, {**TWO, "ps": ["localhost:3"]}, job="ps")
    with pytest.raises(ClusterConfigError, match='no job "ps"'):
        ring()


def test_without_a_ring_the_missing_servers_are_named(monkeypatch):
    tf_config(monkeypatch, TWO)
    with pytest.raises(ClusterConfigError) as error:
        ring(communication="parameter_server")
    for part in ('TF_CONFIG["cluster"]["ps"]', 'communication="ring"'):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        tfdist.AllReduceStrategy,
        lambda: tfdist.BMUFStrategy(2, communication="ring"),
        lambda: tfdist.DiLoCoStrategy(2, communication="ring"),
        lambda: tfdist.ParameterAveragingStrategy(2, communication="ring"),
    ],
    ids=["all-reduce", "BMUF", "DiLoCo", "averaging"],
)
def test_one_process_is_a_ring_of_one(make):
    strategy = make()
    assert strategy.cluster.is_local
    assert strategy.training_is_over()


def test_after_a_first_step_that_is_refused_nothing_is_compared():
    """No worker's store holds the model."""
    parts = [mock.Mock() for _ in range(4)]
    engine = ring_engine.RingEngine(*parts, is_chief=True)
    engine.compare_model(consistency.Moment.END_OF_FIT, None)
    _, values, compared, _ = parts
    assert not values.mock_calls and not compared.mock_calls


def later_training(*steps):
    """A `RingEngine` of a training after others, of optimizers with steps."""
    engine = ring_engine.RingEngine(
        *(mock.Mock() for _ in range(4)), is_chief=True
    )
    inners = [mock.Mock(**{"has_steps.return_value": n > 0}) for n in steps]
    engine.local = mock.Mock(inners=inners, has_own_values=False)
    engine.local.unpushed.return_value = any(steps)
    engine.note_met()
    return engine


def test_an_optimizer_that_begins_beside_another_is_refused():
    engine = later_training(1)
    communication = ring_communication.RingCommunication(None, engine)
    with pytest.raises(ValueError, match="one optimizer trains at a time"):
        communication.begin(engine.local, None, None)


def test_optimizers_that_have_begun_before_do_not_end_together():
    # In one exchange the steps of one alone would count.
    with pytest.raises(ValueError, match="one optimizer trains at a time"):
        later_training(0, 1, 1).end_steps()
