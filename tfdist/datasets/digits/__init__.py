"""The UCI handwritten digits, embedded, as the TFDS dataset `digits`.

Importing this package registers the builder, after which `tfds.load("digits")`
finds it too.
"""

from tfdist.datasets.digits.digits_dataset_builder import Builder

__all__ = ["Builder"]
