"""Codecs of gradients and updates: one file per method."""

from tfdist.compression.base import Codec
from tfdist.compression.base import Message
from tfdist.compression.cast import Cast
from tfdist.compression.registry import parse
from tfdist.compression.threshold import Threshold

__all__ = [
    "Cast",
    "Codec",
    "Message",
    "Threshold",
    "parse",
]
