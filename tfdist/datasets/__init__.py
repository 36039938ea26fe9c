"""Data sets: a small real one inside the package, all others through TFDS.

`load("digits")` needs no network; `load("mnist")` is `tfds.load`, made safe for
several processes that start at the same moment. TensorFlow Datasets is imported
at the first call, not when this package is.
"""

from tfdist.datasets.loading import EMBEDDED
from tfdist.datasets.loading import MAX_PIXEL
from tfdist.datasets.loading import DatasetUnavailableError
from tfdist.datasets.loading import load

__all__ = ["EMBEDDED", "MAX_PIXEL", "DatasetUnavailableError", "load"]
