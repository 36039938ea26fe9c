"""The outer optimizer of asynchronous local SGD."""

from typing import Any

import keras
from keras import ops

from tfdist import checks


@keras.saving.register_keras_serializable(package="tfdist")
class DelayedNesterov(keras.optimizers.Optimizer):
    """Nesterov's momentum that is updated with every `delay`-th update.

    Liu et al., "Asynchronous local-SGD training for language modeling", 2024,
    algorithm 3. Applied to each worker's change by itself, Nesterov's momentum
    amplifies them; here the changes g gather in a buffer b, and

    ```
    every update:    b = b + g
    every delay-th:  m = beta m + b / delay;  b = 0
                     theta = theta - rate ((1 - c delay + c) beta m + g / delay)
    the others:      theta = theta - rate (c beta m + g / delay)
    ```

    With `delay` 1 it is `SGD(rate, momentum, nesterov=True)`.

    Args:
      learning_rate: The outer rate.
      momentum: beta, 0 or more and less than 1.
      delay: Updates between two of the momentum, the number of workers.
      c: How much of the momentum's step each of the updates in between takes,
        0 to 1 / delay.
      name: Name of the optimizer.
      **kwargs: Those of `keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.7,
        momentum: float = 0.9,
        delay: int = 1,
        c: float = 0.0,
        name: str = "delayed_nesterov",
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        owner = type(self).__name__
        momentum = checks.in_range(f"{owner}: momentum", momentum, below=1.0)
        delay = checks.count(f"{owner}: delay", delay)
        c = checks.not_negative(f"{owner}: c", c)
        if c * delay > 1:
            raise ValueError(
                f"Argument `c` of {owner} must be at most 1 / delay, "
                f"{1 / delay:g}. Received: c={c!r}"
            )
        self.momentum = momentum
        self.delay = delay
        self.c = c

    def build(self, variables: list[Any]) -> None:
        """Makes the momenta and the buffers.

        Args:
          variables: List of variables.
        """
        if self.built:
            return
        super().build(variables)
        self._momenta, self._buffers = self.add_optimizer_variables(
            variables, ["momentum", "buffer"]
        )

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        """Updates one variable.

        Args:
          gradient: A tensor.
          variable: The variable.
          learning_rate: Scalar tensor.
        """
        index = self._get_variable_index(variable)
        momentum, buffer = self._momenta[index], self._buffers[index]
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        is_turn = ops.equal((self._iterations + 1) % self.delay, 0)
        gathered = ops.add(buffer, gradient)
        known = ops.convert_to_tensor(momentum)
        moved = ops.where(
            is_turn, self.momentum * known + gathered / self.delay, known
        )
        self.assign(
            buffer, ops.where(is_turn, ops.zeros_like(gathered), gathered)
        )
        self.assign(momentum, moved)
        share = ops.cast(
            ops.where(is_turn, 1.0 - self.c * self.delay + self.c, self.c),
            variable.dtype,
        )
        step = share * self.momentum * moved + gradient / self.delay
        self.assign_sub(variable, rate * step)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, a dict."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "delay": self.delay,
            "c": self.c,
        }
