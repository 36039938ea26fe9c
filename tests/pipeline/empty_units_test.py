"""Units without examples in a pipeline without flushes."""

import numpy as np
import pytest

from tests import nightly
from tests.pipeline import chains
from tests.pipeline import oracles

pytestmark = pytest.mark.usefixtures("float64")


def test_a_unit_without_examples_counts_nothing_in_its_batch():
    # 5 examples in 3 units, and 2 in 3 of which the last is empty.
    weights, units = (
        chains.initial(2),
        chains.units_of([2, 2, 1, 1, 1, 2, 2, 2]),
    )
    batches = [
        [np.concatenate(parts) for parts in zip(*some, strict=True)]
        for some in (units[:3], units[3:5], units[5:])
    ]
    model = chains.chain(
        weights,
        chains.sgd(0.0),
        True,
        micro_batches=3,
        schedule="pipedream_2bw",
    )
    chains.feed(model, batches)
    chains.executor(model).drain()
    made = [weights] * 2
    for x, y in batches:
        gradients = oracles.gradients(made[-2], x, y)
        made.append(
            [
                w - chains.RATE * g
                for w, g in zip(made[-1], gradients, strict=True)
            ]
        )
    chains.assert_weights(model, made[-1])


@pytest.mark.parametrize("run_eagerly", nightly.also([True], [False]))
def test_stages_have_the_same_version_after_a_unit_without_examples(
    run_eagerly,
):
    # Of the second batch, the last two of four units are empty.
    depth, sizes = 3, [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1]
    weights, units = chains.initial(depth), chains.units_of(sizes)
    model = chains.chain(
        weights,
        chains.sgd(0.0),
        run_eagerly,
        micro_batches=4,
        schedule="pipedream",
        vertical_sync=True,
    )
    batches = chains.batches_of(units, 4)
    # One that fills the pipeline again.
    for part in (batches, batches[:1]):
        chains.feed(model, part)
        chains.executor(model).drain()
    versions = [weights]
    for part in (units, units[:4]):
        start = len(versions) - 1
        made = [start]
        for x, y in part:
            late = made[max(0, len(made) - depth)]
            if len(x):
                gradients = oracles.gradients(versions[late], x, y)
                versions.append(
                    [
                        w - chains.RATE * g
                        for w, g in zip(versions[-1], gradients, strict=True)
                    ]
                )
            made.append(len(versions) - 1)
    chains.assert_weights(model, versions[-1])
