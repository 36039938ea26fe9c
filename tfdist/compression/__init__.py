"""Codecs of gradients and updates: one file per method."""

from tfdist.compression.base import Codec
from tfdist.compression.base import Message
from tfdist.compression.cast import Cast
from tfdist.compression.int8 import Int8
from tfdist.compression.one_bit import OneBit
from tfdist.compression.power_sgd import PowerSGD
from tfdist.compression.registry import parse
from tfdist.compression.sign import Sign
from tfdist.compression.threshold import Threshold
from tfdist.compression.top_k import TopK

__all__ = [
    "Cast",
    "Codec",
    "Int8",
    "Message",
    "OneBit",
    "PowerSGD",
    "Sign",
    "Threshold",
    "TopK",
    "parse",
]
