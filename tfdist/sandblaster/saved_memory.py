"""The memory of L-BFGS as a part of a saved model.

Keras asks an optimizer for its state when it saves a model, and hands it back
when it loads one. The state of L-BFGS lies on the servers: it is fetched then,
and put there again when `fit` begins with the same data and parameters.
"""

import json
import zlib

from absl import logging
import numpy as np

from tfdist.sandblaster import minimizer as minimizer_lib

_TEXT = "lbfgs_state"
_ROWS = "lbfgs_history"
_GRADIENT = "lbfgs_gradient"
NAMES = (_TEXT, _ROWS, _GRADIENT)
"""Names of the arrays in a saved optimizer's state."""


def collect(shards, name, progress):
    """Returns the arrays to save, a dict; empty if there is nothing to save.

    Args:
      shards: The `Shards`.
      name: Of the model's vectors.
      progress: The `SharedRecord` of the minimization.
    """
    record = progress.read()
    if record.get("description", {}).get("name") != name:
        return {}
    state = record["minimizer"]
    if state["known"] is None and state.get("before") is None:
        return {}
    now = state["now"]
    point = shards.fetch(minimizer_lib.POINTS[now])
    text = json.dumps(
        {
            "minimizer": state,
            "result": record["result"],
            "description": _without_name(record["description"]),
            "point": _checksum(point),
        }
    )
    return {
        _TEXT: np.frombuffer(text.encode(), np.uint8),
        _ROWS: shards.fetch(minimizer_lib.HISTORY).numpy(),
        _GRADIENT: shards.fetch(minimizer_lib.GRADIENTS[now]).numpy(),
    }


def put(arrays, shards, minimizer, description, values):
    """Puts what was saved on the servers, if `fit` goes on from there.

    Args:
      arrays: Dict from `collect`, or None.
      shards: The `Shards`.
      minimizer: The `Minimizer`, which becomes what it was.
      description: That of this call of `fit`.
      values: The model's parameters, a tensor.

    Returns:
      The result of the last iteration, as of `Coordinator.iterate`; None if
      the data, the model or the parameters are others.
    """
    if not arrays:
        return None
    saved = json.loads(bytes(np.asarray(arrays[_TEXT], np.uint8)).decode())
    if (saved["description"], saved["point"]) != (
        _without_name(description),
        _checksum(values),
    ):
        return None
    now = saved["minimizer"]["now"]
    rows = np.asarray(arrays[_ROWS])
    if rows.shape != shards.shape(minimizer_lib.HISTORY):
        logging.warning(
            "The memory of L-BFGS was saved by another version of tfdist: it "
            "starts empty."
        )
        return None
    shards.load(minimizer_lib.POINTS[now], values)
    shards.load(minimizer_lib.HISTORY, rows)
    shards.load(minimizer_lib.GRADIENTS[now], np.asarray(arrays[_GRADIENT]))
    minimizer.restore(saved["minimizer"])
    # No evaluation of this cluster has the stamp.
    return {**saved["result"], "evaluation": "loaded"}


def _without_name(description):
    return {key: one for key, one in description.items() if key != "name"}


def _checksum(vector):
    # Variables of the model may be float32 where the vector is float64.
    return zlib.crc32(np.asarray(vector, np.float32).tobytes())
