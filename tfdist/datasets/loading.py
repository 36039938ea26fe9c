"""`load`: `tfds.load` for the processes of a cluster."""

import importlib
import os
import pathlib
from typing import Any
import urllib.parse

from tfdist import checks
from tfdist.datasets import preparation_lock

# Data sets inside this package: name -> module that registers the builder.
EMBEDDED = {"digits": "tfdist.datasets.digits"}

# The largest pixel value, where it is not 255.
MAX_PIXEL = {"digits": 16}


class DatasetUnavailableError(RuntimeError):
    """A data set is not on disk and could not be prepared."""


def load(
    name: str,
    *,
    split: Any = None,
    data_dir: str | os.PathLike | None = None,
    as_supervised: bool = True,
    download: bool = True,
    builder_kwargs: dict[str, Any] | None = None,
    download_and_prepare_kwargs: dict[str, Any] | None = None,
    network_timeout: float = 20.0,
    **tfds_load_kwargs: Any,
) -> Any:
    """Loads a data set, preparing it first where that was not yet done.

    Any number of processes may call this at the same moment with the same
    `data_dir`: one prepares the data, the others wait for it. Nothing is
    written outside of `data_dir`.

    ```python
    train = tfdist.datasets.load("digits", split="train")
    (test,), info = tfdist.datasets.load(
        "digits", split=["test"], with_info=True
    )
    ```

    Args:
        name: `"digits"` (embedded, no network needed) or any name that
            `tfds.load` knows, such as `"mnist"` or `"cifar10:3.0.2"`.
        split: as in `tfds.load`: `"train"`, `"train[:10%]"`, a list of such
            strings, or `None` for a dictionary of all splits.
        data_dir: where the prepared data lies. Default: `TFDS_DATA_DIR`, else
            `~/tensorflow_datasets`.
        as_supervised: whether elements are `(input, label)` pairs rather than
            dictionaries. Unlike in `tfds.load` this is the default, being what
            `model.fit` takes.
        download: whether to prepare the data when it is not on disk.
        builder_kwargs: as in `tfds.load`.
        download_and_prepare_kwargs: as in `tfds.load`.
        network_timeout: seconds that the data set's server has to answer, where
            something must be downloaded. Must be positive.
        **tfds_load_kwargs: further arguments of `tfds.load`: `with_info`,
            `shuffle_files`, `batch_size`, `read_config`, ...

    Returns:
        What `tfds.load` returns: a `tf.data.Dataset`, or the structure of
        `split`, or a pair of that and a `tfds.core.DatasetInfo`.

    Raises:
        ValueError: if nobody knows a data set of this name.
        DatasetUnavailableError: if the data set is not on disk and could not be
            downloaded or generated.
    """
    network_timeout = checks.positive("network_timeout", network_timeout)
    # Imported here: parameter servers, which load no data, need not pay for it.
    import tensorflow_datasets as tfds

    if _dataset_name(name) in EMBEDDED:
        importlib.import_module(EMBEDDED[_dataset_name(name)])
    if download:
        _prepare(
            name,
            dict(builder_kwargs or {}, data_dir=data_dir),
            download_and_prepare_kwargs or {},
            network_timeout,
        )
    return tfds.load(
        name,
        split=split,
        data_dir=data_dir,
        as_supervised=as_supervised,
        download=False,
        builder_kwargs=builder_kwargs,
        **tfds_load_kwargs,
    )


def _dataset_name(name: str) -> str:
    """`"digits"` of `"digits/config:1.0.0"`."""
    return name.split("/")[0].split(":")[0]


def _prepare(
    name: str,
    builder_kwargs: dict[str, Any],
    download_and_prepare_kwargs: dict[str, Any],
    network_timeout: float,
) -> None:
    """Brings the data set to disk unless it is there.

    Raises:
        ValueError: if nobody knows a data set of this name.
        DatasetUnavailableError: if it could not be downloaded or generated.
    """
    builder = _make_builder(name, builder_kwargs)
    if builder.is_prepared():
        return
    try:
        with (
            preparation_lock.preparation_lock(builder.data_dir),
            preparation_lock.private_random_state(),
        ):
            # Another process may have prepared it while this one waited.
            builder = _make_builder(name, builder_kwargs)
            if not builder.is_prepared():
                download_dir = download_and_prepare_kwargs.get("download_dir")
                _check_network(builder, download_dir, network_timeout)
                builder.download_and_prepare(**download_and_prepare_kwargs)
    except ImportError:
        raise  # TFDS names the package that this data set needs.
    except Exception as error:
        # Where there is no lock (gs://, Windows) another process may have been
        # faster, which makes TFDS's rename fail.
        if not _make_builder(name, builder_kwargs).is_prepared():
            raise _unavailable(name, builder, error) from error


def _make_builder(name: str, builder_kwargs: dict[str, Any]):
    """Returns the `tfds.core.DatasetBuilder`, or says which names exist."""
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name, **builder_kwargs)
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(
            f"Argument `name` must be an embedded data set "
            f"({', '.join(sorted(EMBEDDED))}) or one that TensorFlow Datasets "
            f"knows (mnist, cifar10, ...). Received: name={name!r}"
        ) from error


def _check_network(
    builder, download_dir: str | os.PathLike | None, timeout: float
) -> None:
    """Fails soon where the data set's server does not answer.

    TFDS itself sets no limit. Behind a firewall that drops packets it would
    hang for minutes, in one process after the other. An answer of any status
    will do here: this asks for the server, not for the file.

    Raises:
        OSError: if there is no answer within `timeout` seconds.
    """
    import requests

    # `data_dir/name[/config]/version`.
    depth = 1 if builder.builder_config is None else 2
    data_dir = builder.data_path.parents[depth]
    downloads = pathlib.Path(download_dir or data_dir / "downloads")
    urls = [url for url in builder.url_infos or () if url.startswith("http")]
    if not urls or any(downloads.glob("*.INFO")):
        return  # Nothing to download, or (some of it) downloaded before.
    server = urllib.parse.urljoin(urls[0], "/")
    requests.head(server, timeout=timeout, allow_redirects=False)


def _unavailable(name: str, builder, error: Exception):
    """Words the error for a data set that could not be prepared."""
    if _dataset_name(name) in EMBEDDED:
        return DatasetUnavailableError(
            f"The embedded data set {name!r} could not be written to "
            f"{builder.data_dir}. Cause: {type(error).__name__}: {error}"
        )
    return DatasetUnavailableError(
        f"The data set {name!r} is not in {builder.data_dir} and could not be "
        "downloaded and prepared, for which it needs the network. Embedded, "
        f"and so free of that need: {', '.join(sorted(EMBEDDED))}. "
        f"Cause: {type(error).__name__}: {error}"
    )
