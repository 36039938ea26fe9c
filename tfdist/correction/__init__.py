"""What is done about an update that is late: one file per method."""

from tfdist.correction.base import Correction
from tfdist.correction.inverse_staleness import InverseStaleness

__all__ = ["Correction", "InverseStaleness"]
