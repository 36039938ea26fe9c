"""GPUs of tasks that are to compute nothing on them."""

from absl import logging
import tensorflow as tf


def hide(config):
    """Takes no GPU in this process, which is to serve, or warns if it has one.

    It would take the memory of all, and workers without a GPU would compute
    here: TensorFlow prefers the GPU of any task to a CPU.

    Args:
      config: The `ClusterConfig`.
    """
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError as error:
        logging.warning(
            "%s serves and needs no GPU, and TensorFlow has taken one: it may "
            "take the memory that workers need, and those without a GPU may "
            "compute here. Make the strategy before the program's first "
            "operation of TensorFlow, or start this task with "
            "CUDA_VISIBLE_DEVICES= (empty). (%s)",
            config.task_name,
            error,
        )


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
