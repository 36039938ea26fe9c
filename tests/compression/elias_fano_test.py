"""Entropy coding of entries loses nothing, for any of them."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from tests import laws
from tests.compression import runs
from tfdist.compression import elias_fano

# Traced once for each size; the last has indices of 31 bits.
SIZES = (1, 8, 1000, 2**31 - 1)


def encode_and_decode(size):
    return tf.function(
        lambda entries: elias_fano.decode(
            elias_fano.encode(entries, size), size
        ),
        input_signature=[tf.TensorSpec([None], tf.int32)],
        autograph=False,
    )


CODED = {}


@laws.settings(120, deadline=None)
@hypothesis.given(st.data())
def test_what_is_decoded_is_what_was_encoded(data):
    size = data.draw(st.sampled_from(SIZES))
    coded = CODED.setdefault(size, encode_and_decode(size))
    # Any number of them: none, all, neighbours.
    some = data.draw(
        st.one_of(
            st.sets(st.integers(0, size - 1), max_size=min(size, 100)),
            st.builds(
                lambda begin, end: set(range(begin, max(begin, end))),
                st.integers(0, min(size, 1000)),
                st.integers(0, min(size, 1000)),
            ),
        )
    )
    entries = np.array(sorted(some), np.int64).astype(np.int32)
    negative = data.draw(
        st.lists(st.booleans(), min_size=len(some), max_size=len(some))
    )
    entries[np.array(negative, bool)] |= np.int32(-(2**31))
    runs.same(coded(tf.constant(entries, tf.int32)), entries)
