"""Training of many cases in one worker on two real servers."""

import argparse
import pathlib

import numpy as np

from tests.multi_process import scripts
import tfdist


def train_on_servers(cases, directory, names):
    """Runs the script `cases` on a cluster until it is done.

    Args:
      cases: Module whose script trains the cases that it is given, says so,
        and writes `<number>.npz` of each to the directory that it is given.
      directory: Where to.
      names: Of cases.
    """
    outputs = scripts.run(
        directory, cases.__file__, [directory, *names], {"ps": 2, "worker": 1}
    )
    told = outputs["worker-0"].splitlines()
    for number, name in enumerate(names):
        assert f"trained {number} {name}" in told
    assert "servers 2" in told


def main(train):
    """Trains cases against the cluster of TF_CONFIG: a script's `main`.

    Args:
      train: Function of a case's name and a scope to a dict of arrays.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    for number, name in enumerate(arguments.names):
        arrays = train(name, strategy.scope())
        np.savez(arguments.directory / f"{number}.npz", **arrays)
        print("trained", number, name, flush=True)
    print("servers", len(strategy.bytes_per_server), flush=True)
