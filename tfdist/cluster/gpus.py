"""GPUs of tasks that are to compute nothing on them."""

from absl import logging
import tensorflow as tf


def hide(config):
    """Takes no GPU in this process, which is to serve.

    It would take the memory of all, and workers without a GPU would compute
    here: TensorFlow prefers the GPU of any task to a CPU.

    Args:
      config: The `ClusterConfig`.

    Raises:
      RuntimeError: TensorFlow has taken one already.
    """
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        raise RuntimeError(
            f"{config.task_name} serves and needs no GPU, and TensorFlow has "
            "taken one: make the strategy before the program's first operation "
            "of TensorFlow, or start this task with CUDA_VISIBLE_DEVICES= "
            f"(empty). ({error})"
        ) from error


def warn_of_helpers(config):
    """Warns if a worker without a GPU is connected to helpers with one.

    Args:
      config: The `ClusterConfig` of a connected worker.
    """
    specs = [
        tf.DeviceSpec.from_string(device.name)
        for device in tf.config.list_logical_devices("GPU")
    ]
    of_helpers = [spec.to_string() for spec in specs if spec.job == "helper"]
    if of_helpers and len(of_helpers) == len(specs):
        logging.warning(
            "%s has no GPU and its helpers have: TensorFlow computes on %s "
            "whatever has no device, such as layers that are not placed. Place "
            "all layers, or start the helpers with CUDA_VISIBLE_DEVICES= "
            "(empty).",
            config.task_name,
            of_helpers[0],
        )
