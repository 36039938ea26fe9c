"""TFDS builder of the embedded UCI handwritten digits."""

from collections.abc import Iterator
import gzip
import hashlib
import importlib.resources

import numpy as np
import tensorflow_datasets as tfds

FILE_NAME = "digits.csv.gz"
FILE_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
IMAGE_SIDE = 8  # pixels
TEST_STRIDE = 5  # every fifth image is a test image


class Builder(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8 x 8 pixels of 0 to 16, 10 classes.

    Nothing is downloaded: the data lies beside this file. `README.md` says how
    the images were made and split, `ATTRIBUTION.md` whose they are.

    Features:
        `image`: `(8, 8, 1) uint8`, 0 (white) to 16 (black).
        `label`: `() int64`, 0 to 9.

    References:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits",
        UCI Machine Learning Repository, 1998, doi:10.24432/C50P49.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The UCI test set, split 4 to 1 by label."}

    def _info(self) -> tfds.core.DatasetInfo:
        return _EmbeddedInfo(
            builder=self,
            description=self.get_metadata().description,
            citation=self.get_metadata().citation,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(IMAGE_SIDE, IMAGE_SIDE, 1), dtype=np.uint8
                    ),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://doi.org/10.24432/C50P49",
            license="CC BY 4.0",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        del dl_manager  # Nothing to download.
        images, labels = read_embedded_file()
        in_test = is_test_row(labels)
        return {
            "train": self._generate_examples(images, labels, ~in_test),
            "test": self._generate_examples(images, labels, in_test),
        }

    def _generate_examples(
        self, images: np.ndarray, labels: np.ndarray, chosen: np.ndarray
    ) -> Iterator[tuple[int, dict]]:
        """Yields `(row in the file, example)` for the chosen rows."""
        for row in np.flatnonzero(chosen).tolist():
            yield row, {"image": images[row], "label": int(labels[row])}


class _EmbeddedInfo(tfds.core.DatasetInfo):
    """Information that is all here, so that nobody need be asked for it."""

    def initialize_from_bucket(self) -> None:
        """Looks nothing up, which in TFDS leaves a temporary directory."""


def read_embedded_file() -> tuple[np.ndarray, np.ndarray]:
    """Reads the embedded file.

    Returns:
        `images`, `(1797, 8, 8, 1) uint8` of 0 to 16, and `labels`,
        `(1797,) int64` of 0 to 9, in the order of the file.

    Raises:
        ValueError: if the file is not the one that was published.
    """
    resource = importlib.resources.files(__package__).joinpath(FILE_NAME)
    compressed = resource.read_bytes()
    checksum = hashlib.sha256(compressed).hexdigest()
    if checksum != FILE_SHA256:
        raise ValueError(
            f"The embedded file {FILE_NAME} is damaged: its sha256 must be "
            f"{FILE_SHA256}. Received: {checksum}. Reinstall the package."
        )
    rows = gzip.decompress(compressed).decode("ascii").splitlines()
    table = np.loadtxt(rows, delimiter=",", dtype=np.int64)
    images = table[:, :-1].astype(np.uint8)
    return images.reshape(-1, IMAGE_SIDE, IMAGE_SIDE, 1), table[:, -1]


def is_test_row(labels: np.ndarray) -> np.ndarray:
    """Says which rows are test images.

    Args:
        labels: `(num_rows,) int64`, the labels in file order.

    Returns:
        `(num_rows,) bool`: true for every fifth row, from the first on, of the
        rows sorted stably by label.
    """
    in_test = np.zeros(len(labels), dtype=bool)
    in_test[np.argsort(labels, kind="stable")[::TEST_STRIDE]] = True
    return in_test
