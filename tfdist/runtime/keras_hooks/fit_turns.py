"""The order in which the workers' calls of `fit` begin and end.

Who waits for the chief's call, or for those of all others: as long as they are
there and get on, and no longer.
"""

from absl import logging

from tfdist.cluster import fit_progress
from tfdist.cluster import member_table
from tfdist.cluster import termination
from tfdist.cluster import waiting

CHIEF = 0
# How long the others put off their first step for a worker of which nobody has
# seen anything.
_UNSEEN_SECONDS = 60.0
_NEVER_SEEN = member_table.MemberState.UNKNOWN
_FINISHED = member_table.MemberState.FINISHED


class FitTurns:
    """Waits for other workers' calls of `fit`, on one worker.

    Args:
      store: The `ParameterStore`.
      membership: The `Membership`.
      config: The `ClusterConfig`.
      wait: As `Runtime.wait`.
      worker_timeout: Seconds without a heartbeat after which a worker is not
        waited for.
      start_timeout: Seconds to wait for workers that have not come yet.
    """

    def __init__(
        self,
        store,
        membership,
        config,
        *,
        wait,
        worker_timeout,
        start_timeout,
    ):
        self._store = store
        self._wait = wait
        self._membership = membership
        self._fits = membership.fits
        self._names = config.worker_names
        self._worker = config.worker_id
        self._worker_timeout = worker_timeout
        self._initial_workers = config.initial_workers
        self._start_timeout = start_timeout
        self._first = termination.Expected(
            config.initial_workers, min(start_timeout, _UNSEEN_SECONDS)
        )
        self._expected = termination.Expected(
            config.initial_workers, start_timeout
        )
        # Number of the last call of `fit` whose end on the others the chief
        # has waited for.
        self._met = 0
        # The furthest that the chief has been seen at: less is another life.
        self._furthest = 0
        # Whether calls here have other numbers than in the script; and whether
        # this worker's ends of training are counted as the others'.
        self._has_jumped = self._counts_along = False

    def chief_was_seen_at(self, reached):
        """Takes note of how far the chief has come."""
        self._furthest = max(self._furthest, reached)

    def next_number(self, passes, may_pass):
        """The number of the call of `fit` that begins here.

        A process that was started again, or that nobody has expected, has
        run its script from the beginning: its first call is the others' first,
        and it passes those that they have ended. One that has been expected
        and is late for the first time begins with what they are at, and so
        does a model whose call cannot be passed.

        Args:
          passes: Whether this process has only passed calls so far.
          may_pass: Whether this one may be passed.
        """
        number = self._fits.number + 1
        if not passes or (may_pass and not self.is_expected()):
            return number
        others = [
            member.word.number
            for worker, member in enumerate(self._rows())
            if worker != self._worker
        ]
        if self._worker != CHIEF:
            others = others[:1]
        latest = max(number, *others)
        self._has_jumped |= latest > number
        return latest

    def position(self, number):
        """Position of the cluster in a call of `fit`, for who comes back to it.

        That is where the chief is, or the furthest of the others where it is
        not there or has yet to begin the call, and no less than this worker
        has done itself. Not of a worker that is there for the first time and
        has been expected: what it has to train on nobody else does.

        Args:
          number: The call's number.

        Returns:
          Tuple of epoch and batches of it, ints; `fit_progress.OVER` where the
          cluster has ended the call.
        """
        if self.is_expected():
            return (0, 0)
        rows = self._rows()
        words = [
            member.word
            for worker, member in enumerate(rows)
            if worker != self._worker and self._counts(member)
        ]
        chief = rows[CHIEF]
        has_begun = chief.word.reached >= fit_progress.begun(number)
        if self._worker != CHIEF and has_begun and self._counts(chief):
            words = [chief.word]
        places = [word.position(number) for word in words]
        former = self._membership.former
        if former is not None and former.state is not _NEVER_SEEN:
            places.append(_place_of(former, number))
        return max(places, default=(0, 0))

    def has_completed(self, number):
        """Whether this worker's former process has made all of a call.

        Args:
          number: The call's number.
        """
        former = self._membership.former
        return (
            former is not None
            and former.state is not _NEVER_SEEN
            and former.word.completed >= number
        )

    def count_along(self, number):
        """Counts this worker's ends of training and barriers as others; once.

        In an earlier life, or before it joined, they may have been there
        often. Called when a call of `fit` begins here.

        Args:
          number: The call's number.
        """
        is_first = self.is_expected() and not self._has_jumped
        if self._counts_along or is_first:
            return
        rows = self._rows()
        for member in rows if self._worker == CHIEF else rows[:1]:
            is_in = member.word.reached == fit_progress.begun(number)
            if is_in and self.is_there(member):
                self._membership.count_along(member)
                self._counts_along = True

    def _rows(self):
        """The `Member` of each worker, as last heard of, a list."""
        return self._store.call(self._membership.read)[: len(self._names)]

    def chief(self):
        """The chief's `Member`, as last heard of."""
        return self._rows()[CHIEF]

    def is_expected(self):
        """Whether the cluster begins with this worker, here for the first time.

        What it has to train on nobody else does.
        """
        former = self._membership.former
        is_new = former is None or former.state is _NEVER_SEEN
        return is_new and self._worker < self._initial_workers

    def wait_for_start(self):
        """Waits until the first workers have made their first step in `fit`.

        So that none has trained for long when the others begin. One that was
        started again, or comes when others train, does not wait.
        """
        former = self._membership.former
        if former is None or former.state is not _NEVER_SEEN:
            return
        late = []

        def all_begin():
            rows = self._rows()
            others = [
                (worker, member)
                for worker, member in enumerate(rows)
                if worker != self._worker
            ]
            late[:] = [
                self._names[worker]
                for worker, member in others
                if self._first.includes(worker, member, self._worker_timeout)
                and not member.word.has_trained(1)
            ]
            return not late or any(
                member.word.has_trained(1, batches=2) for _, member in others
            )

        try:
            waiting.wait_until(
                all_begin,
                what=lambda: (
                    f"{', '.join(late)} to begin to train as well "
                    '(worker_start="independent" does not wait)'
                ),
                timeout=self._start_timeout,
            )
        except TimeoutError as error:
            logging.warning("%s Beginning without.", error)

    def are_over(self):
        """Whether another worker has finished, and none is expected.

        Those that have left, failed or died have not: they may come back, and
        what is left to train on may be this worker's alone.
        """
        others = [
            (worker, member)
            for worker, member in enumerate(self._rows())
            if worker != self._worker
        ]
        if _FINISHED not in [member.state for _, member in others]:
            return False
        return not any(
            self._expected.includes(worker, member, self._worker_timeout)
            for worker, member in others
        )

    def others_have_call(self, number):
        """Whether another worker has made a call of `fit`, or a later one.

        Args:
          number: The call's number.
        """
        return any(
            member.word.came_to >= number
            for worker, member in enumerate(self._rows())
            if worker != self._worker
        )

    def chief_has_ended(self, number):
        """Whether the chief waits for others, and has not begun a call.

        Args:
          number: The call's number.
        """
        chief = self.chief()
        return self._is_awaited_by(
            chief
        ) and chief.word.reached < fit_progress.begun(number)

    def _is_awaited_by(self, chief):
        """Whether the chief waits for this worker, between calls of `fit`."""
        # Of a process that has passed calls, counts do not compare yet: their
        # callbacks have not been there.
        compare = self._counts_along or self._has_jumped or self.is_expected()
        return compare and self._membership.is_awaited_by(chief)

    def _counts(self, member):
        """Whether a worker trains, or has trained to the end."""
        return self.is_there(member) or member.state is _FINISHED

    def is_there(self, member):
        """Whether a `Member` lives, as far as is known."""
        return (
            member.state is member_table.MemberState.ALIVE
            and member.silent_for < self._worker_timeout
        )

    def wait_for_chief(self, reached, what):
        """Waits until the chief has come that far, or is not there.

        Args:
          reached: How far, of `fit_progress`.
          what: What it is waited for to do, for messages.

        Returns:
          Its `Member`; None if nothing got on meanwhile.
        """
        return self._wait(
            lambda: self._chief_if_at(reached),
            what=f"{self._names[CHIEF]} {what}",
        )

    def _chief_if_at(self, reached):
        """The chief's `Member` if it is not waited for any more, or None."""
        chief = self.chief()
        over = (
            chief.word.reached >= reached
            or not self.is_there(chief)
            or self._is_awaited_by(chief)
            # It has been started again.
            or chief.word.reached < self._furthest
        )
        self._furthest = max(self._furthest, chief.word.reached)
        return chief if over else None

    def wait_for_word(self, number, find):
        """Waits for what the chief tells before its first step in a call.

        Args:
          number: The call's number.
          find: Callable without arguments that returns it, or None.

        Returns:
          It; None if it is not there, though the chief has begun the call, is
          not there, or does not get on.
        """

        def found_or_over():
            # Looked at first: what it tells comes before its first step.
            over = self._chief_if_at(fit_progress.begun(number))
            word = find()
            return word is not None or over is not None

        self._wait(
            found_or_over,
            what=f"{self._names[CHIEF]} to say with which checkpoint it begins "
            f"call {number} of fit",
        )
        return find()

    def wait_for_others(self, number):
        """Waits until all others have ended a call of `fit`, or are gone.

        Called on the chief.
        """
        if number <= self._met:
            return
        self._wait_for_others(
            self._expected,
            fit_progress.ended(number),
            f"to end call {number} of fit",
        )
        self._met = number

    def wait_for_others_to_begin(self, number):
        """Waits until all others have begun a call of `fit`, or are gone.

        Called on the chief.
        """
        self._wait_for_others(
            self._first,
            fit_progress.begun(number),
            f"to begin call {number} of fit",
        )

    def _wait_for_others(self, expected, reached, what):
        late = []

        def nobody_is_late():
            rows = self._rows()
            late[:] = [
                member.name
                for worker, member in enumerate(rows)
                if worker != self._worker
                and expected.includes(worker, member, self._worker_timeout)
                and member.word.reached < reached
                and not self._membership.is_awaited_by(member)
            ]
            return not late

        self._wait(nobody_is_late, what=lambda: f"{', '.join(late)} {what}")


def _place_of(former, number):
    """Position of this worker's former process in a call of `fit`.

    Not its end, if it came to no other one: perhaps an exception has ended it.

    Args:
      former: The `Member`.
      number: The call's number.
    """
    word = former.word
    is_last = number == word.number and number >= word.came_to
    if is_last and former.state is not _FINISHED:
        return word.epoch, word.batch
    return word.position(number)
