"""The base of exchanges: what virtual workers send each other after a step."""

import abc
import dataclasses
from typing import Any

from tfdist import checks
from tfdist import compression as compression_lib


@dataclasses.dataclass(frozen=True)
class VirtualExchange(abc.ABC):
    """A rule for what workers send, who applies it, and who waits.

    Attributes:
      compression: Codec of what is sent, or a text that names one; None sends
        it as it is.
      encode_seconds: That a worker takes to encode one update.
      decode_seconds: That whoever applies an update takes to decode it.
    """

    compression: compression_lib.Codec | str | None = None
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    num_servers = 0
    compresses = True
    # Whether the optimizer clips means of gradients, and no worker its own.
    clips_means = False
    # The real strategy whose rules for models hold here, too.
    strategy_among_peers = None

    def __post_init__(self):
        given = self.compression
        if isinstance(given, str):
            given = compression_lib.parse(given)
            object.__setattr__(self, "compression", given)
        if given is not None and not (
            self.compresses and isinstance(given, compression_lib.Codec)
        ):
            allowed = "None"
            if self.compresses:
                allowed += " or a codec of tfdist.compression"
            raise ValueError(checks.refusal("compression", allowed, given))
        for name in ("encode_seconds", "decode_seconds"):
            checks.not_negative(name, getattr(self, name))

    @property
    def name(self) -> str:
        """For tables and pictures."""
        return repr(self)

    def __repr__(self):
        settings = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if not field.name.endswith("_seconds")
            and getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(settings)})"

    @abc.abstractmethod
    def player(self, run: Any) -> "Player":
        """Returns what plays it in a `FlatRun`."""


class Player(abc.ABC):
    """The state of an exchange in one run.

    Args:
      run: The `FlatRun`.
      exchange: The `VirtualExchange`.

    Attributes:
      slots: Values of the variables of each worker's optimizer.
      codec_states: State of each worker's codec.
    """

    def __init__(self, run, exchange):
        self.run = run
        self.exchange = exchange
        self.workers = range(run.num_workers)
        weights, _, slots = run.first
        self.dense_bytes = weights.nbytes
        self._codecs = run.model.codec_runs(exchange.compression)
        self.codec_states = [self._codecs.first(k) for k in self.workers]
        self.slots = [slots] * len(self.workers)

    def encode(self, worker, vector):
        """Encodes what a worker sends; returns the `DecodedUpdate`."""
        update, state = self._codecs.encode(vector, self.codec_states[worker])
        self.codec_states[worker] = state
        self.run.count(update)
        return update

    def step_of(self, worker, weights, gradient):
        """A worker's own optimizer makes a step.

        Returns:
          The new parameters, and the learning rate.
        """
        weights, self.slots[worker], rate = self.run.model.apply(
            weights, self.slots[worker], gradient
        )
        return weights, rate

    @abc.abstractmethod
    def start(self):
        """All workers begin."""

    @abc.abstractmethod
    def step(self, job, gradient):
        """A worker has computed a gradient, `[size]`."""

    @abc.abstractmethod
    def seen(self, worker):
        """Updates in what a worker computes from, of `FlatRun.version`."""

    def end(self):
        """All have ended, and nothing is under way.

        Returns:
          Whether parameters have changed since the last step was done.
        """
        return False

    @abc.abstractmethod
    def center(self):
        """Returns the parameters that are evaluated, and their slots."""
