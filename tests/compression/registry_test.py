"""Texts that name codecs."""

import pytest

from tfdist.compression import Cast
from tfdist.compression import Int8
from tfdist.compression import OneBit
from tfdist.compression import PowerSGD
from tfdist.compression import Sign
from tfdist.compression import Threshold
from tfdist.compression import TopK
from tfdist.compression import registry


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("threshold(tau=0.03)", Threshold(0.03)),
        ("threshold:tau=0.03:entropy=false", Threshold(0.03, entropy=False)),
        ("threshold", Threshold(density=1 / 250)),
        ("cast(dtype=float16)", Cast("float16")),
        ("cast", Cast("bfloat16")),
        ("int8(rounding=stochastic)", Int8("stochastic")),
        ("top_k(ratio=0.01,momentum=0.9)", TopK(0.01, momentum=0.9)),
        ("one_bit", OneBit()),
        ("sign(error_feedback=false)", Sign(error_feedback=False)),
        ("power_sgd:rank=2", PowerSGD(2)),
    ],
)
def test_texts_name_codecs(text, codec):
    assert registry.parse(text) == codec


@pytest.mark.parametrize("name", registry.names())
def test_each_name_alone_is_a_codec(name):
    assert registry.parse(name) == registry.parse(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("treshold", "Did you mean 'threshold'?"),
        ("threshold(tua=1)", "Did you mean 'tau'?"),
        ("threshold(", "Argument `compression` must be a codec such as"),
        ("threshold(tau=-1)", "`tau` of Threshold"),
    ],
)
def test_others_are_refused(text, words):
    with pytest.raises(ValueError) as error:
        registry.parse(text)
    assert words in str(error.value)
