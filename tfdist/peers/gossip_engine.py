"""The engine of workers that average with each other in pairs."""

import math
import threading
import time

from absl import logging
import tensorflow as tf

from tfdist.peers import engine
from tfdist.peers import epoch_check
from tfdist.peers import gossip_account
from tfdist.peers import gossip_channel
from tfdist.peers import mean

# Seconds between two looks at exchanges that are under way.
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.005
# Seconds that a step waits for a reply.
_WAIT_SECONDS = 1.0
_REPORT_SECONDS = 10.0


class GossipEngine(engine.PeerEngine):
    """Steps of this worker, after which it averages with a random other one.

    Args:
      *args: Of `PeerEngine`.
      seed: int, of the draws of neighbours, the same on all workers.
      **kwargs: Of `PeerEngine`.
    """

    strategy_name = "GossipStrategy"

    def __init__(self, *args, seed, **kwargs):
        self.seed = seed
        # Threads that send find out that a worker is lost.
        self._knows = threading.Lock()
        super().__init__(*args, codec=None, **kwargs)
        with tf.device(self.device):
            # Under this lock, parameters change and messages are made.
            self.section = tf.CriticalSection(shared_name=f"{self.name}/lock")
        self._next_look, self._looked_at = 0.0, time.monotonic()
        # By channel: the last request that was waited for.
        self._awaited = {}
        # By channel: the request, messages of its receiver, and for how long.
        self._under_way = {}
        self._mean = None
        if self.roster.others:
            self.roster.on_lost = self.note_known
            self._mean = mean.MeanOfWorkers(
                self.roster,
                self.collectives,
                self.name,
                self.device,
                self.tolerance.start_timeout,
            )

    def _make_check(self):
        return epoch_check.NoEpochCheck()

    def make_channel(self, name, group, rate):
        """Makes a `GossipChannel`; see there."""
        return gossip_channel.GossipChannel(self, name, group, rate)

    def note_known(self):
        """Called when a worker is known, and when one has been lost.

        A lost one has no incarnation here: none of its messages counts.
        """
        roster = self.roster
        with self._knows:
            self.known.assign(
                [
                    0 if roster.is_lost(worker) else roster.known.get(worker, 0)
                    for worker in range(roster.num_workers)
                ]
            )

    # Steps.

    def call(self, function, *args):
        """Calls a `train_function`, when earlier exchanges have ended."""
        for one in self.channels:
            self._await(one)
        return super().call(function, *args)

    def _await(self, channel):
        """Waits for a reply that has not come during a whole step.

        Each is waited for once, and no longer than a second; but nobody trains
        alone until the others have traced their first step.
        """
        request, roster = channel.overdue, self.roster
        if request is None or self._awaited.get(channel.name) == request:
            return
        self._awaited[channel.name] = request
        worker = request[1]
        begins = worker not in roster.joined and not channel.came_from(worker)
        reported = time.monotonic()

        def has_ended():
            return channel.request != request or roster.is_lost(worker)

        channel.transport.wait_until(has_ended, _WAIT_SECONDS)
        while begins and not has_ended():
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                logging.warning(
                    "Waiting for the first step of %s.", roster.names[worker]
                )
            self.read_told()
            channel.transport.wait_until(has_ended, _WAIT_SECONDS)

    def read_told(self):
        """Returns what all workers were told; see `PeerEngine`."""
        told = super().read_told()
        if self.roster.others:
            self._look()
        return told

    def _look(self):
        """Looks, once a second, after exchanges that are under way.

        A receiver that has died before it replied is seen only by who calls
        it. One that does not come to the end of its first step, before which
        it does not reply, is given up, too.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        passed, self._looked_at = now - self._looked_at, now
        # Whoever waits for this worker sees that it gets on.
        self.collectives.post(updates=self.journal.count)
        bound = self.tolerance.stall_timeout
        if self.tolerance.on_stall == "wait":
            bound = math.inf
        before, self._under_way = self._under_way, {}
        for one in self.channels:
            request = one.request
            if request is None:
                continue
            worker = request[1]
            (sender,) = [s for s in one.transport.senders if s.worker == worker]
            sender.probe()
            found = request, self.came_from(worker)
            earlier, waited = before.get(one.name, (None, 0.0))
            # Of the time in which this process itself was stopped little
            # counts: the receiver may have been, too.
            waited += min(passed, bound / 3 + 1.0)
            waited = waited if earlier == found else 0.0
            self._under_way[one.name] = found, waited
            if waited > bound:
                self.roster.give_up(
                    worker, f"it does not reply to a request for {bound:g} s"
                )

    # Between steps.

    def finish(self):
        """Waits until all have ended; then all have the mean of all."""
        super().finish()
        if self.roster.others:
            self._take_mean()

    def _receive_beside(self):
        """Does nothing: a thread takes what comes."""

    def _take_all(self, seconds=None):
        """Waits until no exchange is under way, and none has more to add."""
        # Those that have not come to a step of this `fit` reply, too.
        self._receive()
        reported = time.monotonic()
        # Nobody can have a request under way when all have waited for theirs.
        while any(one.request for one in self.channels):
            self._receive()
            self._look()
            names = {
                self.roster.names[request[1]]
                for one in self.channels
                if (request := one.request)
            }
            if names and time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                logging.warning(
                    "Waiting for replies of %s.", ", ".join(sorted(names))
                )
            time.sleep(_POLL_SECONDS)
        self.collectives.finish(
            {}, self._receive, lambda worker, sent: False, seconds
        )
        for one in self.channels:
            one.close()
            one.news.forget()

    def _receive(self):
        if self.roster.given_up_by is not None:
            raise self.roster.left_behind(self.roster.given_up_by)
        for one in self.channels:
            one.transport.check_threads()
        super()._receive()

    def _take_mean(self):
        # The last step's lanes come last: an older optimizer of the same
        # weights may be freed on some workers, and its mean is of the rest.
        lanes = sorted(self.lanes, key=lambda lane: lane in self._last)
        vectors = {}
        for lane in lanes:
            vectors.update(lane.read())
        means = self._mean.take(vectors)
        if means is None:
            return
        for lane in lanes:
            lane.put({**vectors, **means})

    # Accounts.

    def accounts(self):
        """Returns what this worker has exchanged with each other one.

        Returns:
          A dict: see `GossipStrategy.exchange_counts`.
        """
        roster = self.roster
        columns = {
            "begun": gossip_account.BEGUN,
            "ended": gossip_account.ENDED,
            "given_up": gossip_account.GIVEN_UP,
            "served": gossip_account.SERVED,
            "declined": gossip_account.DECLINED,
            "duplicates": gossip_account.DUPLICATES,
            "foreign": gossip_account.FOREIGN,
        }
        result = {}
        for worker in roster.others:
            found = {
                key: sum(
                    int(counted.counts[worker, column])
                    for counted, _ in self._counted.values()
                )
                for key, column in columns.items()
            }
            senders = [
                sender
                for _, senders in self._counted.values()
                for sender in senders
                if sender.worker == worker
            ]
            found["repeated"] = sum(sender.repeated for sender in senders)
            found["gained"] = sum(
                float(counted.gained[worker])
                for counted, _ in self._counted.values()
            )
            result[roster.names[worker]] = found
        return result

    @property
    def distance(self):
        """Distance from the other worker in the last exchange, float.

        Of what the last step has trained: an older optimizer of the same
        variables knows their distance of before.
        """
        channels = [one for lane in self._last for one in lane.channels]
        return math.hypot(*(one.account.distance for one in channels))
