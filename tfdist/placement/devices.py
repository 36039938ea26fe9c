"""Names of devices: what a user writes, and what TensorFlow calls them."""

import os
import re

import tensorflow as tf

_IN_SCOPE = re.compile(
    r"on-([A-Za-z_]\w*)\.(\d+)\.([A-Za-z_]+)\.(\d+)(?=[_/]|$)"
)


# A helper by its number among this worker's own.
_HELPER = re.compile(r"/?helper:(\d+)/(.+)")


def available():
    """Full names of the devices that this process can use.

    Returns:
      A list of strings such as "/job:localhost/replica:0/task:0/device:GPU:0":
      the logical devices of this process and of every task that it is
      connected to.
    """
    specs = [
        tf.DeviceSpec.from_string(device.name)
        for device in tf.config.list_logical_devices()
    ]
    return [
        spec.replace(
            job=spec.job or "localhost",
            replica=spec.replica or 0,
            task=spec.task or 0,
        ).to_string()
        for spec in specs
    ]


def of_this_process():
    """Full names of this process's own GPUs, or of its CPUs if it has none.

    A process with parameter servers or helpers is connected to theirs, too.

    Returns:
      A list of strings, the logical devices.
    """
    own = _own()
    specs = [(name, tf.DeviceSpec.from_string(name)) for name in available()]
    known = [
        name
        for name, spec in specs
        if (spec.job, spec.task) == (own.job, own.task)
    ]
    gpus = [name for name in known if ":GPU:" in name]
    return gpus or [name for name in known if ":CPU:" in name]


def default():
    """The device on which TensorFlow runs what has none: the first GPU, if any.

    Returns:
      A full name.
    """
    own = _own()
    gpu = own.replace(device_type="GPU", device_index=0).to_string()
    return gpu if gpu in available() else own.to_string()


def resolve(device, argument="device"):
    """The full name of a device that exists.

    Args:
      device: A name in any of TensorFlow's spellings: "GPU:1", "/GPU:1",
        "/device:GPU:1", "/job:worker/task:1/GPU:0". What it leaves out is
        this process's own job, replica and task. "helper:0/GPU:1" is a device
        of this worker's first helper.
      argument: What the name was given as, for the message.

    Returns:
      The full name, a string.

    Raises:
      ValueError: The name cannot be read, or there is no such device. The
        message lists those that there are.
    """
    known = available()
    own_spec = _own()
    name = _with_helper(str(device), known, argument)
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise ValueError(
            f"Argument `{argument}` must be the name of a device such as "
            "'GPU:0' or '/job:worker/task:1/GPU:0'. Received: "
            f"{argument}={device!r}"
        ) from error
    spec = spec.replace(
        job=spec.job or own_spec.job,
        replica=spec.replica or 0,
        task=own_spec.task if spec.job is None else (spec.task or 0),
        device_index=spec.device_index or 0,
    )
    if (
        spec.device_type is None
        or "*" in str(device)
        or spec.to_string() not in known
    ):
        raise ValueError(
            f"Argument `{argument}` must be a device that exists, one of "
            f"{', '.join(short(name) for name in known)}"
            f"{_hiding(spec.device_type)}. Received: {argument}={device!r}"
        )
    return spec.to_string()


def _hiding(kind):
    """Returns what hides devices of a kind, for a message; "" if nothing."""
    variable = "CUDA_VISIBLE_DEVICES"
    if kind != "GPU" or variable not in os.environ:
        return ""
    return (
        f" (this process has {variable}={os.environ[variable]!r}; "
        f"`tfdist launch --env={variable}=...` sets it)"
    )


def _with_helper(device, known, argument):
    """Returns a device's name with the task of the helper that it numbers."""
    if not (named := _HELPER.fullmatch(device)):
        return device
    helpers = _helpers(known)
    number = int(named[1])
    if number >= len(helpers):
        raise ValueError(
            f"Argument `{argument}` must name one of the {len(helpers)} "
            "helpers that this process has: those of its worker in "
            'TF_CONFIG["cluster"]["helper"] (`tfdist launch '
            "--helpers_per_worker`), under a strategy that has connected to "
            f"them. Received: {argument}={device!r}"
        )
    return f"/job:helper/task:{helpers[number]}/{named[2]}"


def _helpers(known):
    """Tasks of this worker's helpers, which alone it is connected to."""
    specs = [tf.DeviceSpec.from_string(name) for name in known]
    return sorted({spec.task for spec in specs if spec.job == "helper"})


def _own():
    """Job and task of this process, a `tf.DeviceSpec`."""
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.DeviceSpec.from_string(tf.zeros([]).device)


def of_variable(device, dtype):
    """The device on which TensorFlow keeps a variable that is made on `device`.

    GPUs have no variables of int32 and of strings: these are on the CPU of the
    same task.

    Args:
      device: A full name of a device.
      dtype: A `tf.DType`.

    Returns:
      A full name.
    """
    return cpu_of(device) if dtype in (tf.int32, tf.string) else device


def cpu_of(device):
    """The first CPU of a device's task, or the device if it is a CPU.

    Args:
      device: A full name of a device.

    Returns:
      A full name.
    """
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return device
    return spec.replace(device_type="CPU", device_index=0).to_string()


def short(device):
    """A device's name as one would say it, such as "GPU:1" or "worker:1/GPU:0".

    Args:
      device: A full name, or "" for one that has not been decided.
    """
    if not device:
        return "anywhere"
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    if spec.job in (None, "localhost"):
        return name
    if spec.job == "helper":
        return f"helper:{_helpers(available()).index(spec.task)}/{name}"
    return f"{spec.job}:{spec.task}/{name}"


def scope(device):
    """The name scope that marks operations as belonging on `device`."""
    spec = tf.DeviceSpec.from_string(device)
    return f"on-{spec.job}.{spec.task}.{spec.device_type}.{spec.device_index}"


def of_scope(name):
    """The device of the innermost scope of `scope` in an operation's name.

    Args:
      name: An operation's name, such as "model/on-localhost.0.GPU.1/MatMul".

    Returns:
      A full name, or "" where there is no such scope.
    """
    found = _IN_SCOPE.findall(name)
    if not found:
        return ""
    job, task, kind, index = found[-1]
    return f"/job:{job}/replica:0/task:{task}/device:{kind}:{index}"
