"""Packaging of tfdist."""

import pathlib

import setuptools

ROOT = pathlib.Path(__file__).parent


def version() -> str:
    """Returns the version without importing the package."""
    names = {}
    exec((ROOT / "tfdist" / "version.py").read_text("utf-8"), names)
    return names["__version__"]


def long_description() -> str:
    """Returns the README."""
    readme = ROOT / "README.md"
    return readme.read_text("utf-8") if readme.exists() else ""


PLOTS = ["matplotlib>=3.7"]
TENSORBOARD = ["tensorboard"]
# What benchmarks/peers.py measures besides; of one version, as figures are.
PEERS = ["torch==2.13.0"]

setuptools.setup(
    name="tfdist",
    version=version(),
    description=(
        "Asynchronous and other distributed training for Keras 3 on "
        "TensorFlow, as tf.distribute strategies"
    ),
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # So that an editable install is a path, which type checkers follow.
    package_dir={"": "."},
    packages=setuptools.find_packages(include=["tfdist", "tfdist.*"]),
    package_data={
        "tfdist": ["py.typed", "*.pyi"],
        "tfdist.datasets": ["**/*.csv.gz", "**/*.xz", "**/*.npz"]
        + ["**/*.txt", "**/*.md", "**/*.bib"],
    },
    include_package_data=False,
    python_requires=">=3.10",
    install_requires=[
        "tensorflow>=2.18,<2.22",
        # What looks into Keras has canaries (tests/private_keras*_test.py):
        # raise this bound when a version has passed them.
        "keras>=3.12,<3.16",
        "numpy",
        "scipy",
        "tensorflow-datasets",
        "absl-py",
        "tqdm",
        # tensorflow-datasets 4.9 imports it without requiring it.
        "importlib_resources",
    ],
    extras_require={
        "peers": PEERS,
        "plots": PLOTS,
        "tensorboard": TENSORBOARD,
        "test": [
            "hypothesis",
            "keras-tuner",
            "mypy",
            "psutil",
            "pyright[nodejs]",
            "pytest",
            "pytest-rerunfailures",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            *PLOTS,
            *TENSORBOARD,
        ],
    },
    entry_points={"console_scripts": ["tfdist=tfdist.cli.main:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
    ],
)
