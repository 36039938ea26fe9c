"""What all codecs promise alike."""

import numpy as np
import pytest
import tensorflow as tf

from tests.compression import runs
from tfdist import compression
from tfdist.compression import base
from tfdist.compression import registry

SIZE = 128
# One for each, which encodes so small a vector.
CODECS = {
    "cast": compression.Cast("float16"),
    "int8": compression.Int8("stochastic", seed=3, dense_below=0),
    "threshold": compression.Threshold(
        1.0, density=1 / 30, clip=100.0, dense_below=0
    ),
    "top_k": compression.TopK(0.1, momentum=0.5, warmup=2, dense_below=0),
    "one_bit": compression.OneBit(dense_below=0),
    "sign": compression.Sign(dense_below=0),
    "power_sgd": compression.PowerSGD(2, dense_below=0),
}


@pytest.fixture(params=registry.names())
def run(request):
    return runs.Run(CODECS[request.param], SIZE)


def test_all_of_it(run):
    """One function for each codec: to trace them is what takes time."""
    codec = run.codec
    first, second = runs.vectors(SIZE, 2)
    begin = dict(run.state)
    message = run.encode(first)

    # The state keeps its shapes and dtypes: it lives in variables.
    assert run.state.keys() == begin.keys()
    for name, tensor in run.state.items():
        assert tensor.shape == begin[name].shape
        assert tensor.dtype == begin[name].dtype

    # Any message goes through one queue, and is decoded after it.
    arrived = runs.through_a_queue(message)
    decoded = run.decode(message)
    variable = tf.Variable(second)
    codec.decode_into(variable, arrived, -0.5)
    runs.same(variable, second + np.float32(-0.5) * decoded)

    # As many bytes as its tensors have.
    size = sum(tensor.numpy().nbytes for tensor in arrived)
    assert int(codec.bytes(arrived)) == size

    # NaN and Inf: nothing is sent, and nothing kept.
    before = {name: tensor.numpy() for name, tensor in run.state.items()}
    for bad in (np.nan, np.inf, -np.inf):
        vector = second.copy()
        vector[17] = bad
        message = run.encode(vector)
        assert base.is_nothing(message)
        assert not run.decode(message).any()
        for name, tensor in run.state.items():
            runs.same(tensor, before[name])
    codec.decode_into(variable, message)
    runs.same(variable, second + np.float32(-0.5) * decoded)


def test_a_sum_that_overflows_is_no_reason_to_leave_a_vector_out():
    run = runs.Run(CODECS["cast"], SIZE)
    vector = np.full(SIZE, 3e38, np.float32)
    assert runs.kind_of(run.encode(vector)) != base.NOTHING


@pytest.mark.parametrize("name", registry.names())
def test_codecs_are_compared_and_made_again_by_their_settings(name):
    codec = CODECS[name]
    again = type(codec).from_config(codec.get_config())
    assert again == codec
    assert again != registry.parse(name)
    # As they are shown they are written.
    assert eval(repr(codec), vars(compression)) == codec


def test_small_vectors_travel_as_they_are():
    codec = compression.Threshold(0.5)
    (vector,) = runs.vectors(1023, 1)
    assert codec.state(1023) == {}
    message, state = codec.encode(tf.constant(vector), {})
    assert runs.kind_of(message) == base.DENSE and state == {}
    variable = tf.Variable(np.zeros(1023, np.float32))
    codec.decode_into(variable, message)
    runs.same(variable, vector)
    assert codec.state(1024).keys() == {"residual"}


def test_a_message_of_another_codec_is_refused():
    message = base.Message(
        tf.constant(base.OWN + 9), tf.zeros([1]), tf.zeros([4], tf.uint8)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="equal of Thresh"):
        CODECS["threshold"].decode(message, SIZE)


@pytest.mark.parametrize(
    ("size", "dtype", "words"),
    [
        (0, tf.float32, "`size`"),
        (2**31, tf.float32, "`size`"),
        (8, tf.float16, "`dtype` must be float32 or float64"),
    ],
)
def test_vectors_that_have_no_codec_are_refused(size, dtype, words):
    with pytest.raises(ValueError, match=words):
        CODECS["cast"].state(size, dtype)


@pytest.mark.parametrize("name", ["threshold", "top_k"])
def test_bytes_are_right_in_a_graph_that_decodes(name):
    """A worker's step encodes, decodes and counts in one graph."""
    codec = CODECS[name]
    vector = runs.vectors(SIZE, 1)[0]
    target = tf.Variable(tf.zeros([SIZE]))

    @tf.function(autograph=False)
    def step(vector):
        message, _ = codec.encode(vector, codec.state(SIZE))
        codec.decode_into(target, message)
        return codec.bytes(message)

    message, _ = codec.encode(tf.constant(vector), codec.state(SIZE))
    expected = sum(tensor.numpy().nbytes for tensor in message)
    assert int(step(tf.constant(vector))) == expected
