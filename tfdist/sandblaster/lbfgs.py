"""L-BFGS as the optimizer of a Keras model."""

from collections.abc import Callable
import contextlib
from typing import Any

import keras
import numpy as np

from tfdist import checks
from tfdist.program_error import ProgramError
from tfdist.sandblaster import line_search as line_search_lib
from tfdist.sandblaster import samples
from tfdist.sandblaster import saved_memory


class LBFGS(keras.optimizers.Optimizer):
    """Limited-memory BFGS over a whole data set, for `SandblasterStrategy`.

    Each epoch of `fit` is one iteration: a direction from the last `memory`
    pairs of steps and gradient changes, and a line search along it, in which
    each trial is an evaluation of loss and gradient over all data. There is no
    learning rate. The loss has to be a function of the parameters alone,
    without dropout. When a tolerance is reached, training stops.

    ```
    with tfdist.SandblasterStrategy().scope():
        model = ...
        model.compile(tfdist.sandblaster.LBFGS(), loss=...)
    model.fit(x, y, batch_size=1024, epochs=100)
    ```

    Args:
      memory: Number of pairs, at least 1. The servers hold `2 * memory + 7`
        vectors of the parameters' size (three more with samples), and one in
        float64.
      line_search: "strong_wolfe", "armijo", "fixed", or a `StrongWolfe`,
        `Armijo` or `FixedStep` of `tfdist.sandblaster` with settings.
      damping: Whether a pair of too little curvature is damped (Powell 1978)
        instead of left out.
      gradient_tolerance: Training stops when no element of the gradient is
        larger, in absolute value.
      value_tolerance: Training stops when an iteration decreases the loss by no
        more than this, relative to the loss (or to 1 if it is less). With a
        `FixedStep` it is not used.
      sample: Share of the data that an iteration evaluates, in portions. Below
        1 it needs a `FixedStep`, and the loss, the metrics and
        `gradient_tolerance` are those of a sample.
      overlap: Share of a sample that the next one has as well: gradient changes
        are those on this part. Above 0 and below 0.5.
      name: Of the optimizer.

    Raises:
      ValueError: A setting is not allowed; the message says what is.

    References:
      Dean et al., "Large scale distributed deep networks", NIPS 2012, section
      4.2. Liu and Nocedal, "On the limited memory BFGS method for large scale
      optimization", 1989. Berahas, Nocedal and Takac, "A multi-batch L-BFGS
      method for machine learning", NIPS 2016 (`sample` and `overlap`).
    """

    def __init__(
        self,
        memory: int = 10,
        line_search: str | line_search_lib.LineSearch = "strong_wolfe",
        damping: bool = False,
        gradient_tolerance: float = 1e-5,
        value_tolerance: float = 2.2e-9,
        sample: float = 1.0,
        overlap: float = 0.25,
        name: str = "lbfgs",
    ):
        samples.check(sample, overlap)
        search = line_search_lib.of(line_search)
        if sample < 1 and not isinstance(search, line_search_lib.FixedStep):
            raise ValueError(
                'Argument `line_search` must be "fixed" or a FixedStep with '
                "`sample` below 1: losses of different samples say nothing "
                f"about a step. Received: line_search={line_search!r}"
            )
        super().__init__(learning_rate=1.0, name=name)
        self.memory = checks.count("memory", memory)
        self.line_search = search
        self.damping = checks.flag("damping", damping)
        self.gradient_tolerance = checks.not_negative(
            "gradient_tolerance", gradient_tolerance
        )
        self.value_tolerance = checks.not_negative(
            "value_tolerance", value_tolerance
        )
        self.sample = sample
        self.overlap = overlap
        self._sink = None
        self._saved = dict
        self._loaded = None

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes nothing: what L-BFGS remembers lies on the servers."""
        if not self.built:
            super().build(variables)

    @contextlib.contextmanager
    def collecting(self, sink: Any) -> Any:
        """Scope in which gradients are collected.

        Args:
          sink: An object with `note_loss(loss)` and `add(gradients,
            variables)`.
        """
        before, self._sink = self._sink, sink
        try:
            yield
        finally:
            self._sink = before

    def scale_loss(self, loss: Any) -> Any:
        """Takes note of the loss, and returns it as it is."""
        if self._sink is not None:
            self._sink.note_loss(loss)
        return loss

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Collects gradients; `fit` makes steps of them.

        Raises:
          ProgramError: It is called outside of `fit` under the strategy.
        """
        if self._sink is None:
            raise ProgramError(
                "LBFGS has no step of one batch: train by `model.fit` of a "
                "model that was compiled inside "
                "`with tfdist.SandblasterStrategy().scope():`."
            )
        self._sink.add(list(grads), trainable_variables)

    def attach(self, saved: Callable[[], dict[str, Any]]) -> None:
        """Sets where the memory is fetched from when the model is saved.

        Args:
          saved: Callable that returns a dict of arrays.
        """
        self._saved = saved

    def take_loaded(self) -> dict[str, Any] | None:
        """Returns the memory that was loaded with the model, once."""
        loaded, self._loaded = self._loaded, None
        return loaded

    def save_own_variables(self, store: Any) -> None:
        """As Keras's, with the memory."""
        super().save_own_variables(store)
        for name, array in self._saved().items():
            store[name] = array

    def load_own_variables(self, store: Any) -> None:
        """As Keras's, with the memory."""
        arrays = {name: np.asarray(store[name]) for name in store.keys()}
        loaded = {n: arrays.pop(n) for n in saved_memory.NAMES if n in arrays}
        self._loaded = loaded or None
        super().load_own_variables(arrays)

    def get_config(self) -> dict[str, Any]:
        """Returns the settings."""
        return {
            "name": self.name,
            "memory": self.memory,
            "line_search": line_search_lib.config_of(self.line_search),
            "damping": self.damping,
            "gradient_tolerance": self.gradient_tolerance,
            "value_tolerance": self.value_tolerance,
            "sample": self.sample,
            "overlap": self.overlap,
        }


keras.saving.register_keras_serializable("tfdist")(LBFGS)
