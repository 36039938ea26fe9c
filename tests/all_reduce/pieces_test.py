"""Vectors, pieces and tails: what goes out comes back as the sums."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.all_reduce import pieces
from tfdist.all_reduce import rates as rates_lib
from tfdist.cluster import collective_sums

SHAPES = [
    ([3], tf.float32),
    ([2, 5], tf.float64),
    ([], tf.float32),
    ([40, 10], tf.float32),
    ([0], tf.float32),
]


@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_sums_come_back_in_their_places(monkeypatch, piece_bytes, tail_bytes):
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(pieces, "_TAIL_BYTES", tail_bytes)
    layout = pieces.Layout([tf.TensorSpec(*spec) for spec in SHAPES], tail=2)
    random = np.random.default_rng(0)
    values = [random.normal(size=shape) for shape, _ in SHAPES]
    sizes = []

    def reduce(vector, number):
        assert number == len(sizes)
        sizes.append(vector.shape.num_elements() * vector.dtype.size)
        return 2.0 * vector

    vectors = layout.sums(
        layout.vectors(
            [
                tf.constant(value, dtype)
                for value, (_, dtype) in zip(values, SHAPES, strict=True)
            ],
            tf.constant([1.0, 65535.0]),
        ),
        reduce,
    )
    assert layout.tail(vectors).numpy().tolist() == [2.0, 131070.0]
    for found, value in zip(layout.tensors(vectors), values, strict=True):
        np.testing.assert_allclose(found, 2.0 * value, rtol=1e-6)
    # No piece is larger, and all that there is went out, with the tail.
    assert max(sizes) <= max(piece_bytes, 8 * 16 + 2 * 8 if tail_bytes else 0)
    assert sorted(sizes) == sorted(layout.piece_bytes())


@pytest.mark.parametrize("number", [2, 1000])
def test_tensors_share_the_memory_of_their_vector(number):
    """A copy of each costs as much as the sum of a small model."""
    specs = [tf.TensorSpec([number, 16], tf.float32)] * 3
    layout = pieces.Layout(specs, tail=3)
    values = [
        tf.random.stateless_normal([number, 16], [k, 0]) for k in range(3)
    ]
    (vector,) = layout.vectors(values, tf.zeros([3]))
    begin = _address(vector)
    end = begin + vector.shape.num_elements() * 4
    for tensor in layout.tensors([vector]):
        assert begin <= _address(tensor) < end


def _address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def test_gradients_need_not_know_their_shapes():
    """As those behind a mask whose rank is not known."""
    layout = pieces.Layout([tf.TensorSpec([3], tf.float32)] * 2, tail=2)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)] * 2)
    def tail(*gradients):
        vectors = layout.vectors(gradients, tf.constant([1.0, 2.0]))
        return layout.tail(vectors)

    assert tail(tf.zeros([3]), tf.zeros([3])).numpy().tolist() == [1.0, 2.0]


def test_pieces_have_the_bytes_that_are_sent(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 64)
    specs = [tf.TensorSpec([20], tf.float32), tf.TensorSpec([2], tf.float64)]
    # 80 bytes by themselves, in two pieces; 16 in 64; a tail of three numbers.
    assert sorted(pieces.Layout(specs).piece_bytes()) == [16, 64, 64]
    assert sorted(pieces.Layout(specs, 3).piece_bytes()) == [16, 24, 64, 64]


@pytest.mark.parametrize("dtype", [tf.int32, tf.bool, tf.float16])
def test_means_are_not_made_in_types_that_cannot_hold_them(dtype):
    wire = pieces.wire_dtype(dtype, "name")
    # Shares 3 / 4 and 1 / 4 of two workers with 1 and 0, so 3 / 4.
    mean = tf.cast(tf.constant(1, tf.int32), wire) * tf.cast(0.75, wire)
    found = pieces.of_dtype(mean, dtype)
    assert found.dtype == dtype
    assert float(tf.cast(found, tf.float32)) == (0.75 if dtype.size == 2 else 1)


def test_complex_numbers_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="'phase'.*complex64"):
        pieces.wire_dtype(tf.complex64, "phase")


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", [0, 7, -7, 2**62 + 5, -(2**62) - 5, -(2**63), 2**63 - 1]),
        ("uint64", [0, 7, 2**53 + 1, 2**64 - 1]),
        ("complex64", [1 + 2j, -3.5j]),
        ("complex128", [1 / 3 + 2j / 3]),
    ],
)
def test_states_that_are_two_floats_are_kept_to_the_last_bit(dtype, values):
    state = tf.Variable(np.array(values, dtype))
    spec = pieces.state_spec(state)
    sent = pieces.of_state(state.read_value(), spec)
    assert spec.is_compatible_with(sent)
    found = pieces.as_state(3 * sent / 3, state.dtype)
    assert found.numpy().tolist() == values
    total = pieces.as_state(2 * sent, state.dtype)
    np.testing.assert_array_equal(total, np.array(values, dtype) * 2)


def test_means_of_large_integers_are_rounded():
    state = tf.Variable([2**40 + 1, -(2**40) - 1], dtype=tf.int64)
    spec = pieces.state_spec(state)
    other = tf.constant([2**40 + 5, -5], tf.int64)
    total = pieces.of_state(state, spec) + pieces.of_state(other, spec)
    mean = pieces.as_state(total / 2, state.dtype)
    assert mean.numpy().tolist() == [2**40 + 3, -(2**39) - 3]


def test_small_vectors_go_to_all_others_and_large_ones_around():
    large = 4 * collective_sums.GATHER_BYTES
    # To three others; and 2 (4 - 1) / 4 of the large one.
    assert collective_sums.bytes_sent([8, large], 4) == 24 + large * 3 // 2
    assert collective_sums.bytes_sent([8], 1) == 0


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64]
)
@pytest.mark.parametrize("rate", [0.1, 1e-30, float("inf")])
def test_the_chiefs_rates_arrive_bit_for_bit(dtype, rate):
    rates = [tf.constant(rate, dtype), tf.constant(0.7, tf.float32)]
    # Of the chief, and of a worker whose rates are others.
    chiefs = rates_lib.ChiefRates(rates)
    first = chiefs.numbers(True)
    others = [tf.constant(0.3, one.dtype) for one in rates]
    second = rates_lib.ChiefRates(others).numbers(False)
    assert len(first) == chiefs.length
    found = chiefs.of(first + second)
    for one, expected in zip(found, rates, strict=True):
        assert one.numpy().tobytes() == expected.numpy().tobytes()
