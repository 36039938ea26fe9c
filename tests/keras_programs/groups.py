"""Groups of one process each that codistil, in the place of a strategy."""

import contextlib
import json
import os
import types

from tests.all_reduce.programs import Mean
from tfdist import codistillation

# Until then the loss is that of plain Keras, to the bit.
_BURN_IN_STEPS = 1_000_000


class Groups:
    """What rows ask of a strategy, where each worker is a group.

    Attributes:
      cluster: Who this worker is.
    """

    def __init__(self, **arguments):
        """Makes it; arguments of strategies are not needed."""
        del arguments
        task = json.loads(os.environ["TF_CONFIG"])
        self.cluster = types.SimpleNamespace(
            worker_id=task["task"]["index"],
            num_workers=len(task["cluster"]["worker"]),
        )

    def scope(self):
        """A scope in which nothing is else."""
        return contextlib.nullcontext()

    def barrier(self):
        """Does nothing: no group waits for another one."""

    def wrap(self, model, **settings):
        """Returns a model that codistils, compiled as one that does not."""
        student = Student(
            model,
            burn_in_steps=_BURN_IN_STEPS,
            loss=codistillation.CodistillationLoss("mean_squared_error"),
        )
        student.worker = self.cluster.worker_id
        student.compile(model.optimizer, Mean(), **settings)
        return student


class Student(codistillation.Codistilled):
    """A model that exchanges weights with the other group in each `fit`."""

    def fit(self, *args, callbacks=(), **settings):
        """Adds the callback."""
        exchange = codistillation.Codistillation(
            codistillation.SharedDirectory("exchange"),
            group=self.worker,
            num_groups=2,
            verbose=0,
        )
        return super().fit(*args, callbacks=[*callbacks, exchange], **settings)
