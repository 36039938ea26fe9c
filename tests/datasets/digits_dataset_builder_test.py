"""Tests of the embedded digits as a TFDS data set."""

import gzip
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tfdist import datasets
import tfdist.datasets.digits
from tfdist.datasets.digits import digits_dataset_builder

PACKAGE_DIR = pathlib.Path(digits_dataset_builder.__file__).parent


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensorflow_datasets")
    datasets.load("digits", data_dir=path)
    return path


@pytest.fixture(scope="module")
def embedded():
    return digits_dataset_builder.read_embedded_file()


def as_arrays(dataset):
    """`(images, labels)` of a supervised data set."""
    images, labels = zip(*tfds.as_numpy(dataset), strict=True)
    return np.stack(images), np.array(labels)


def sorted_rows(images, labels):
    """One row of 65 numbers per image, in an order that ignores theirs."""
    rows = np.column_stack([images.reshape(len(images), -1), labels])
    return rows[np.lexsort(rows.T)]


def test_embedded_file_is_small_enough_for_the_package():
    size = (PACKAGE_DIR / digits_dataset_builder.FILE_NAME).stat().st_size
    assert size < 100_000


def test_embedded_file_holds_the_published_numbers(embedded):
    images, labels = embedded
    assert images.shape == (1797, 8, 8, 1)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 16)
    # The class distribution that UCI publishes for this part.
    counts = "178 182 177 183 181 182 181 179 174 180"
    assert " ".join(map(str, np.bincount(labels))) == counts


def test_damaged_file_is_refused(monkeypatch):
    monkeypatch.setattr(digits_dataset_builder, "FILE_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="sha256 must be 0000.*Received: 09f6"):
        digits_dataset_builder.read_embedded_file()


def test_test_rows_are_every_fifth_of_each_label():
    # Sorted stably by label: rows 1 3 5 7 9 11, then 0 2 4 6 8 10. Every fifth
    # from the first on: row 1, row 11, row 8.
    labels = np.array([1, 0] * 6)
    in_test = digits_dataset_builder.is_test_row(labels)
    assert np.flatnonzero(in_test).tolist() == [1, 8, 11]


def test_builder_is_a_real_tfds_builder(data_dir):
    builder = tfds.builder("digits", data_dir=data_dir)
    assert isinstance(builder, tfds.core.GeneratorBasedBuilder)
    assert type(builder) is tfdist.datasets.digits.Builder
    assert builder.info.features["image"].shape == (8, 8, 1)
    assert builder.info.features["image"].np_dtype == np.uint8
    assert builder.info.features["label"].num_classes == 10
    assert builder.info.supervised_keys == ("image", "label")
    assert "10.24432/C50P49" in builder.info.citation
    assert "divide by 16" in builder.info.description


def test_attribution_names_licence_and_checksum():
    text = (PACKAGE_DIR / "ATTRIBUTION.md").read_text()
    assert "CC BY 4.0" in text
    assert digits_dataset_builder.FILE_SHA256 in text


@pytest.mark.nightly
def test_splits_hold_every_image_once_and_unchanged(data_dir, embedded):
    splits = datasets.load("digits", data_dir=data_dir)
    train_images, train_labels = as_arrays(splits["train"])
    test_images, test_labels = as_arrays(splits["test"])
    assert len(train_images) == 1797 - 360
    assert len(test_images) == 360  # ceil(1797 / 5)
    loaded = sorted_rows(
        np.concatenate([train_images, test_images]),
        np.concatenate([train_labels, test_labels]),
    )
    np.testing.assert_array_equal(loaded, sorted_rows(*embedded))


def test_splits_are_balanced_like_the_whole(data_dir, embedded):
    _, labels = as_arrays(
        datasets.load("digits", split="test", data_dir=data_dir)
    )
    share = np.bincount(embedded[1]) / 5
    assert np.all(np.abs(np.bincount(labels) - share) <= 1)


@pytest.mark.nightly
def test_order_on_disk_is_the_same_for_everyone(data_dir, tmp_path):
    first = as_arrays(datasets.load("digits", split="train", data_dir=data_dir))
    second = as_arrays(
        datasets.load("digits", split="train", data_dir=tmp_path)
    )
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    # ... and it is not sorted by label.
    assert len(set(first[1][:50].tolist())) == 10


@pytest.mark.parametrize(
    ("split", "count"),
    [
        ("train[:10%]", 144),  # 143.7, rounded by TFDS to the nearest
        ("test[100:150]", 50),
        ("train+test", 1797),
    ],
)
def test_split_slicing(data_dir, split, count):
    dataset = datasets.load("digits", split=split, data_dir=data_dir)
    assert len(as_arrays(dataset)[1]) == count


def test_arguments_reach_tfds(data_dir):
    dataset, info = datasets.load(
        "digits",
        split="test",
        data_dir=data_dir,
        as_supervised=False,
        shuffle_files=True,
        batch_size=32,
        with_info=True,
    )
    batch = next(iter(tfds.as_numpy(dataset)))
    assert batch["image"].shape == (32, 8, 8, 1)
    assert batch["label"].dtype == np.int64
    assert info.splits["train"].num_examples == 1437


def test_compressed_file_is_plain_gzip_of_rows():
    path = PACKAGE_DIR / digits_dataset_builder.FILE_NAME
    with gzip.open(path, "rt") as rows:
        assert all(len(row.split(",")) == 65 for row in rows)
