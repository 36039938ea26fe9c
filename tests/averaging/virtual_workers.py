"""Workers with local steps that share a server inside this process.

Each has a model and replicas of its own. Where nobody waits for others their
steps are taken in a given order, so that the delay of each push is known;
where they do wait, each step is taken in a thread of its own.
"""

import functools
import itertools
import threading

import keras
import numpy as np
import tensorflow as tf

from tests.runtime.exchange import delay_test
from tfdist.runtime.coordination import coordination
from tfdist.runtime.corrections import corrector
from tfdist.runtime.local_steps import local
from tfdist.runtime.local_steps import server_communication
from tfdist.synchronization import Async

SECONDS = 60.0
_runs = itertools.count()


def linear(optimizer, layers=()):
    """A function that makes the model of `delay_test`, compiled.

    Args:
      optimizer: Callable that makes the optimizer.
      layers: Callables that make layers before the last one.
    """

    def build():
        model = keras.Sequential(
            [
                keras.Input((delay_test.FEATURES,)),
                *[make() for make in layers],
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        model.compile(optimizer(), "mse")
        return model

    return build


def _parts(k, number, method, synchronization, correction):
    """What `compose` does with the arguments of a strategy."""
    parts = {}
    if correction is not None:
        parts["corrector"] = lambda made: corrector.Corrector(
            made.store,
            made.state,
            correction=correction,
            num_workers=number,
            worker_id=k,
        )
    if method is not None:
        resolved = method.resolve(synchronization, correction, number)
        parts["local"] = lambda made: local.Local(
            made,
            communication=server_communication.ServerCommunication(
                made.store,
                made.coordination,
                resolved,
                synchronization,
                has_others=number > 1,
            ),
            method=resolved,
            synchronization=synchronization,
            num_workers=number,
            worker_id=k,
        )
    by_worker = correction is None or correction.on_worker
    if not (isinstance(synchronization, Async) and by_worker):
        parts["coordination"] = functools.partial(
            coordination.Coordination,
            method=synchronization,
            correction=correction,
            worker_names=[f"worker {j}" for j in range(number)],
            worker_id=k,
            worker_timeout=SECONDS,
            start_timeout=SECONDS,
            members_table=None,
        )
    return parts


class VirtualWorkers:
    """All workers of a run.

    Args:
      number: Of workers.
      method: A `LocalSteps`, as a user gives it; None for none.
      synchronization: A `Synchronization`; default: `Async()`.
      build: Callable that makes a compiled model, the same for every worker;
        default: `linear` with SGD.
      correction: A `Correction`, or None.
      partitioner: See `ParameterStore`.

    Attributes:
      models: Their models.
      runtimes: Their `Runtime`s.
    """

    def __init__(
        self,
        number,
        method,
        synchronization=None,
        build=None,
        *,
        correction=None,
        partitioner=None,
    ):
        synchronization = (synchronization or Async()).resolve(number)
        build = build or linear(lambda: keras.optimizers.SGD(delay_test.RATE))
        run = f"averaging {next(_runs)}"
        if correction is not None:
            correction = correction.resolve(synchronization, number)
        self.workers, self.models = [], []
        for k in range(number):
            parts = _parts(k, number, method, synchronization, correction)
            worker = delay_test.VirtualWorker(run, k, partitioner, **parts)
            keras.utils.set_random_seed(1)
            with worker.scope():
                model = build()
                model.optimizer.build(model.trainable_variables)
            self.workers.append(worker)
            self.models.append(model)
        self.runtimes = [worker.runtime for worker in self.workers]
        for runtime in self.runtimes:
            runtime.pull()
        self._first = self.models[0].get_weights()

    def step(self, k, x, y):
        """Worker `k` takes a step.

        Returns:
          Its exchanges since its last step, a list.
        """
        self.models[k].train_on_batch(x, y)
        return self.runtimes[k].journal.read_new()

    def round(self, batches):
        """All workers take steps at the same time.

        Args:
          batches: By worker, its list of (x, y).

        Returns:
          By worker, its exchanges.
        """
        return self.at_once(
            lambda k: [e for batch in batches[k] for e in self.step(k, *batch)]
        )

    def at_once(self, do):
        """Calls `do` of each worker's number, each in a thread of its own.

        Returns:
          What it returned, a list.
        """
        results, errors = [None] * len(self.workers), []

        def run(k):
            try:
                results[k] = do(k)
            except BaseException as error:  # Raised below.
                errors.append(error)

        threads = [
            threading.Thread(target=run, args=(k,), daemon=True)
            for k in range(len(self.workers))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "they hang"
        return results

    def weights(self, k=0):
        """What worker `k` shows: the kernel and bias of its last layer."""
        return vector(self.models[k])

    def own_weights(self, k):
        """Worker `k`'s own weights, wherever they are at the moment."""
        local_steps = self.runtimes[k].local
        local_steps.show_anchor()  # So the shadows hold the others.
        own = [
            local_steps._own_values.shadow(v.value).numpy().ravel()
            for v in self.models[k].trainable_variables
        ]
        return np.concatenate(own).astype("float64")

    def reset(self):
        """Makes all begin once more; nothing is traced again."""
        for runtime, model in zip(self.runtimes, self.models, strict=True):
            runtime.local.show_anchor()
            outers = []
            for inner in runtime.local.inners:
                inner.pushed()
                inner.since_fetch.assign(0)
                outers += inner.outer.variables
            for variable in (*model.optimizer.variables, *outers):
                if "learning_rate" not in variable.path:
                    variable.value.assign_replica(tf.zeros_like(variable))
                    if runtime is self.runtimes[0]:  # Its assignments count.
                        variable.assign(tf.zeros_like(variable))
            if runtime is self.runtimes[0]:
                model.set_weights(self._first)
            runtime.journal.read_new()
        for runtime in self.runtimes:
            runtime.pull()
            runtime.local._own_values.adopt()


def vector(model):
    """Kernel and bias of a model's last layer as one vector, float64."""
    kernel, bias = model.layers[-1].get_weights()
    return np.concatenate([kernel[:, 0], bias]).astype("float64")
