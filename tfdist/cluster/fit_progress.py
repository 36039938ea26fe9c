"""Progress of each worker in its calls of `fit`, and its decisions.

Some numbers that each worker writes beside its heartbeat in the table of
members (`tfdist.cluster.member_table`), so that they are there again, too, when
a server has been started again.
"""

import dataclasses
import math
import threading

# Learning rates of one model's optimizers that others can follow.
MAX_RATES = 8
# Position after the last epoch of a call of `fit`.
OVER = (2**31 - 1, 0)


@dataclasses.dataclass(frozen=True)
class Word:
    """Progress of `fit` that one worker has reported.

    Attributes:
      reached: How far it has come: `begun`, `ended` or `closed` of the number
        of a call of `fit`; 0 before the first.
      stopped: The call that it has stopped before its end; 0 for none.
      version: Updates that it had pulled when it decided last.
      rates: Learning rates of the optimizers that it trains with, a tuple of
        floats.
      data: A number of the first batch of all, the same where the data is
        alike; 0 where it is not compared.
      epoch: The epoch that it is in, from 0, as Keras counts them.
      batch: Batches of its share that it has trained on in this epoch.
      size: Batches of its share in an epoch; 0 where that is not known.
      first_epoch: The epoch with which it has begun the call.
      first_batch: Batches of that epoch that it has left out.
      written: The last call that it has begun with weights that it has set
        since its last step in the call before; 0 for none.
      came_to: The last call that its program has made, begun or not; 0 before
        the first.
      completed: The last call of which it has made the last step, or none was
        left; 0 for none. A call that an exception has ended is none.
    """

    reached: int = 0
    stopped: int = 0
    version: int = 0
    rates: tuple = ()
    data: int = 0
    epoch: int = 0
    batch: int = 0
    size: int = 0
    first_epoch: int = 0
    first_batch: int = 0
    written: int = 0
    came_to: int = 0
    completed: int = 0

    @property
    def number(self):
        """The number of the call that it is in, or was in last."""
        return math.ceil(self.reached / 3)

    @property
    def ended(self):
        """`ended` of the last call of which it has made the last step."""
        number = self.number
        return ended(number if self.reached >= ended(number) else number - 1)

    def position(self, number):
        """Its epoch and batch in a call of `fit`: `OVER` when that has ended.

        Args:
          number: The call's number.

        Returns:
          A tuple of two ints, (0, 0) before the call.
        """
        if self.reached >= ended(number):
            return OVER
        if self.reached < begun(number):
            return (0, 0)
        return (self.epoch, self.batch)

    def has_trained(self, number, batches=1):
        """Whether it has trained in a call of `fit`, wherever that began.

        Args:
          number: The call's number.
          batches: On how many batches at least.
        """
        start = (self.first_epoch, self.first_batch + batches)
        return self.position(number) >= start

    def pack(self):
        """The same as a list of `SIZE` floats."""
        rates = [*self.rates, *[math.nan] * MAX_RATES][:MAX_RATES]
        return [*(float(getattr(self, name)) for name in _INTS), *rates]

    @classmethod
    def unpack(cls, numbers):
        """The `Word` that numbers from `pack` are."""
        ints, rates = numbers[: len(_INTS)], numbers[len(_INTS) :]
        rates = tuple(float(rate) for rate in rates if not math.isnan(rate))
        ints = map(int, ints)
        return cls(rates=rates, **dict(zip(_INTS, ints, strict=True)))


_INTS = [f.name for f in dataclasses.fields(Word) if f.name != "rates"]
# Numbers of a `Word`, and which of them is `reached`.
SIZE = len(_INTS) + MAX_RATES
REACHED = _INTS.index("reached")


def begun(number):
    """A call of `fit` makes its first step: all before it has been done."""
    return 3 * number - 2


def ended(number):
    """It has made its last, and servers have all that it made."""
    return 3 * number - 1


def closed(number):
    """Its callbacks have done what they do at the end of training."""
    return 3 * number


class Fits:
    """Progress of `fit` that this process reports, under any strategy.

    Attributes:
      word: The `Word`.
      is_abandoned: Whether an exception has ended the last call of `fit`
        between its first step and its last.
    """

    def __init__(self):
        self.word = Word()
        self.is_abandoned = False
        # Calls of `fit` of this process; the numbers of others may be ahead.
        self.number = 0
        self._call = None
        # Between the thread that trains and those that write.
        self._lock = threading.RLock()

    def watch(self, call, number):
        """Takes note of a call of `fit` that is about to begin.

        Args:
          call: A `tfdist.running_fit.RunningFit`.
          number: Its number.
        """
        with self._lock:
            self.number = number
            self._call = call
            self.is_abandoned = False
            self.tell(
                reached=closed(number - 1), came_to=number, epoch=0, batch=0
            )

    def is_around(self, frame):
        """Whether a call of `fit` is made within the one that is known."""
        return self._call is not None and self._call.is_around(frame)

    def is_running(self):
        """Whether the call of `fit` is under way."""
        call = self._call
        return call is not None and not call.is_over()

    def is_left_by(self, word):
        """Whether another worker is out of the call of `fit` under way here.

        An exception may have ended it there. One before the first batch was
        done has not: that worker may have to begin the same call again.

        Args:
          word: The other worker's `Word`.
        """
        place = word.reached, word.epoch, word.batch
        return self.is_running() and place > (closed(self.number), 0, 0)

    def tell(self, **changes):
        """Changes the `word`, which travels with the next sign of life."""
        with self._lock:
            self.word = dataclasses.replace(self.word, **changes)

    def close(self):
        """The call of `fit` is over."""
        with self._lock:
            self._call = None
            self.tell(reached=closed(self.number))

    def close_if_over(self):
        """Called with each heartbeat, when this worker has left if need be.

        Before, others that begin the next call would still count on it. An
        exception has ended the call, or it had nothing to do.
        """
        with self._lock:
            if self._call is not None and self._call.is_over():
                reached = self.word.reached
                self.is_abandoned = reached == begun(self.number)
                if self._call.has_ended:
                    self.tell(completed=self.number)
                self.close()

    def pack(self):
        """Returns what each heartbeat writes."""
        with self._lock:
            return self.word.pack()
