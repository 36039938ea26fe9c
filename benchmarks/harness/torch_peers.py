"""Workers that train with PyTorch: a parameter server by RPC, and DDP.

A worker is a callable that takes so many steps and gives the moment at which
each ended; see `children.Child`.
"""

import itertools
import json
import os
import threading
import time

from harness import peer_models

_SECONDS = 60.0
_SERVER = "server"
_parameter_server = None


class ParameterServer:
    """What PyTorch's tutorials have: a model, its optimizer, a lock.

    Gradients of a worker are applied when they come, and the answer is the
    parameters. They are sent as they lie there, without a copy: an update of
    another worker may be half in them.
    """

    def __init__(self, shape):
        self._parameters = list(build_model(shape).parameters())
        self._optimizer = _adam(self._parameters)
        self._lock = threading.Lock()

    def pull(self):
        """The parameters, a list of tensors."""
        return [p.detach() for p in self._parameters]

    def push_and_pull(self, gradients):
        """Applies gradients, a list of tensors; see `pull`."""
        with self._lock:
            for parameter, gradient in zip(
                self._parameters, gradients, strict=True
            ):
                parameter.grad = gradient
            self._optimizer.step()
        return self.pull()


def rpc_serve(shape):
    """Runs the parameter server.

    Args:
        shape: a `peer_models.Shape`.

    Returns:
        A callable that only keeps the server alive.
    """
    global _parameter_server
    _parameter_server = ParameterServer(shape)
    _init_rpc(_SERVER, 0)
    return lambda: None


def rpc_worker(shape):
    """Builds a worker that trains on the parameter server."""
    from torch.distributed import rpc

    _, number = _cluster()
    _init_rpc(f"worker{number}", 1 + number)
    model = build_model(shape)
    parameters = list(model.parameters())

    def assign(values):
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value

    def exchange():
        gradients = [parameter.grad for parameter in parameters]
        assign(rpc.rpc_sync(_SERVER, _push_and_pull, args=(gradients,)))

    assign(rpc.rpc_sync(_SERVER, _pull))
    return _loop(shape, number, model, exchange)


def data_parallel_worker(shape):
    """Builds a worker of `DistributedDataParallel`, with gloo."""
    import datetime

    import torch

    cluster, number = _cluster()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{cluster['worker'][0]}",
        rank=number,
        world_size=len(cluster["worker"]),
        timeout=datetime.timedelta(seconds=_SECONDS),
    )
    model = torch.nn.parallel.DistributedDataParallel(build_model(shape))
    return _loop(shape, number, model, _adam(model.parameters()).step)


def _pull():
    return _parameter_server.pull()


def _push_and_pull(gradients):
    return _parameter_server.push_and_pull(gradients)


def _loop(shape, number, model, update):
    import torch

    x, y = map(torch.from_numpy, peer_models.batches(shape, number))
    batches = itertools.cycle(zip(x, y, strict=True))
    loss = torch.nn.CrossEntropyLoss()

    def train(steps):
        ends = []
        for x, y in itertools.islice(batches, steps):
            model.zero_grad()
            loss(model(x), y).backward()
            update()
            ends.append(time.monotonic())
        return ends

    return train


def _cluster():
    """Job -> addresses, and the number of this task."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["cluster"], config["task"]["index"]


def _init_rpc(name, rank):
    from torch.distributed import rpc

    cluster, _ = _cluster()
    rpc.init_rpc(
        name,
        rank=rank,
        world_size=1 + len(cluster["worker"]),
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://{cluster['ps'][0]}",
            rpc_timeout=_SECONDS,
            # TCP, as between machines and as all others here: by default,
            # processes of one machine use its memory. Of TCP's channels the
            # other, `mpt_uv`, is 3 to 4 times slower where tensors are small.
            _transports=["uv"],
            _channels=["basic"],
        ),
    )


def build_model(shape):
    import torch

    torch.manual_seed(1)
    modules = []
    for inputs, units in shape.layers:
        modules += [torch.nn.Linear(inputs, units), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def _adam(parameters):
    import torch

    return torch.optim.Adam(parameters, peer_models.LEARNING_RATE)
