"""What is said of compression's cost, on networks of all speeds."""

import math

import pytest

from tfdist.simulation import codec_costs
from tfdist.simulation.codec_costs import CodecCost

# 1 MB less in 1 ms: at 8 Gb/s the megabyte takes as long.
COST = CodecCost("sign", 1_100_000, 100_000, 1e-3)


def test_it_pays_below_the_bandwidth_that_takes_as_long():
    assert COST.pays_below_gbps == pytest.approx(8)
    assert "would save 3 ms" in COST.sentence(2.0)
    assert "it would not pay" in COST.sentence(8.1)
    assert "it would not pay" in COST.sentence(math.inf)


def test_it_never_pays_for_few_parameters():
    cost = CodecCost("threshold(density=0.004)", 40, 52, 1e-3)
    for gbps in (1e-6, math.inf):
        assert cost.sentence(gbps) == (
            "Compression: threshold(density=0.004) makes 52 bytes of 40: for "
            "so few parameters it would not pay."
        )


@pytest.mark.nightly
def test_a_measured_message_has_the_bytes_of_its_density(caplog):
    cost = codec_costs.measure(50_000)
    # Messages differ in size, so that each may be traced by itself.
    assert "retracing" not in caplog.text
    assert cost.dense_bytes == 200_000
    # 200 entries of about 11 bits.
    assert 200 < cost.num_bytes < 400
    assert cost.seconds > 0
