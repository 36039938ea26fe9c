"""Staleness corrections: one file per method."""

from tfdist.correction.base import Copies
from tfdist.correction.base import Correction
from tfdist.correction.base import LateGradient
from tfdist.correction.base import Slots
from tfdist.correction.dana import DANA
from tfdist.correction.delay_compensation import DelayCompensation
from tfdist.correction.fasgd import FASGD
from tfdist.correction.gap_aware import GapAware
from tfdist.correction.inverse_staleness import InverseStaleness

__all__ = [
    "DANA",
    "FASGD",
    "Copies",
    "Correction",
    "DelayCompensation",
    "GapAware",
    "InverseStaleness",
    "LateGradient",
    "Slots",
]
