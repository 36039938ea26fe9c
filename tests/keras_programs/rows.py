"""All rows, by name."""

import importlib

from tests.keras_programs.table import ROWS

GROUPS = {
    "fits": "Calls of `fit`, and your own loops",
    "optimizers": "Optimizers",
    "layers": "Layers, and their state",
    "callbacks": "Callbacks",
    "data": "Data",
    "failures": "Errors and interruptions",
}
for _group in GROUPS:
    importlib.import_module(f"tests.keras_programs.{_group}")

__all__ = ["GROUPS", "ROWS"]
