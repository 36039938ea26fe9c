"""Assignment of a model's variables to servers."""

import contextlib

import keras
import tensorflow as tf

from tfdist import private_keras_variables
from tfdist.runtime.variables.sharding import ByteBalancer
from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import role_of


class Placement:
    """Places variables as `ParameterServerStrategy` does as it makes them.

    Args:
      num_servers: Number of servers.
    """

    def __init__(self, num_servers):
        self._num_servers = num_servers
        self._made = []

    @contextlib.contextmanager
    def watching(self):
        """Scope in which the model is made."""

        def creator(next_creator, **kwargs):
            variable = next_creator(**kwargs)
            maker = private_keras_variables.variable_maker()
            by_optimizer = isinstance(maker, keras.optimizers.Optimizer)
            by_layer = maker is not None and not by_optimizer
            name = kwargs.get("name")
            self._made.append((variable, name, by_optimizer, by_layer))
            return variable

        with tf.variable_creator_scope(creator):
            yield

    def of(self, model):
        """The server of each trainable variable, a list of ints.

        Args:
          model: The compiled `keras.Model` that was made; its variables are
            whole (there is no `variable_partitioner`).

        Raises:
          ValueError: They were made elsewhere.
        """
        # If there are any: what they lie beside is not known here, and the
        # model was there before them.
        slots = {
            id(variable.value)
            for variable in model.optimizer.variables
            if variable is not model.optimizer.iterations
        }
        balancer = ByteBalancer(self._num_servers)
        servers = {}
        for variable, name, by_optimizer, by_layer in self._made:
            role = role_of(
                name=name,
                dtype=variable.dtype,
                trainable=variable.trainable,
                synchronization=variable.synchronization,
                aggregation=variable.aggregation,
                reference=None,
                made_by_optimizer=by_optimizer,
                made_by_layer=by_layer,
            )
            if not role.is_on_server or id(variable) in slots:
                continue
            size = variable.shape.num_elements() * variable.dtype.size
            if role is Role.ITERATIONS:
                balancer.add(0, size)
            else:
                servers[id(variable)] = balancer.place(size)
        try:
            return [servers[id(v.value)] for v in model.trainable_variables]
        except KeyError:
            raise ValueError(
                "Argument `model_fn` must make the variables of its model "
                "when it is called, so that it is known on which of the "
                f"{self._num_servers} servers each of them was. Received: a "
                "model with variables that were there before"
            ) from None
