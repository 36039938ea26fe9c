"""Virtual processes and servers that train on a virtual cluster.

The processes compute gradients and send them to a `Cluster`, the servers carry
its log out; a script says what happens next: every interleaving, with kills,
stops and returns.
"""

import numpy as np

from tests.synchronization.virtual_cluster import SECOND
from tests.synchronization.virtual_cluster import SILENT
from tests.synchronization.virtual_cluster import Cluster
from tests.synchronization.virtual_process import Process
from tests.synchronization.virtual_server import SIZE
from tests.synchronization.virtual_server import Gradient
from tests.synchronization.virtual_server import Server
from tests.synchronization.virtual_server import batch_gradient
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Status


class Run:
    """Virtual processes that train on a virtual cluster.

    What holds for every method is asserted after every event: counts add up,
    whoever is there is known, there is no deadlock.

    Args:
      method: A `Synchronization`.
      num_workers: Number of workers.
      oracle: What says how it should be, or None: `receive(worker, gradient,
        version)`, `lose(worker)` for one that is gone, `parameters`,
        `version`, `waiting` (set) and `dropped` (list).
      scale: Factor of a gradient by its staleness.
      num_servers: Servers that carry the log out only when workers make
        them, each when it is its turn; 0 for one that does so at once.
      watch: Called with this after each event.
      on_read: Called with this, a worker and the servers when it has been
        decided over and has pulled what it computes its next step from.
      allows: Whether an action may happen to a worker: a callable of this,
        the action's name and the worker.

    Attributes:
      cluster: The `Cluster`.
      observer: A `Server` that is never behind.
      gradients: Dict of key to `Gradient`, without the lost ones.
      present: Who is waited for, a set.
      clocks: The paper's clock of each worker: steps finished.
    """

    def __init__(
        self,
        method,
        num_workers,
        *,
        oracle=None,
        scale=lambda staleness: 1.0,
        num_servers=0,
        watch=lambda run: None,
        on_read=lambda run, worker, servers: None,
        allows=lambda run, action, worker: True,
    ):
        self.cluster = Cluster(method, num_workers)
        self.oracle = oracle
        self.scale = scale
        self.gradients = {}
        self.observer = Server(self)
        self.servers = [Server(self) for _ in range(num_servers)]
        self.processes = [Process(np.zeros(SIZE)) for _ in range(num_workers)]
        self.present = set(range(num_workers))
        # Keys of gradients from before a time when everybody was gone.
        self.earlier = set()
        # How many gradients there were at each such time.
        self.begins = []
        # Of those who are gone, who has left by itself.
        self._left = set()
        self.clocks = [0] * num_workers
        self._key = 7
        self._watch = watch
        self._on_read = on_read
        self._allows = allows

    # What may happen.

    def play(self, script):
        """Plays a list of (action, number that says to whom)."""
        for action, number in script:
            able = [
                worker
                for worker, process in enumerate(self.processes)
                if self._applies(action, worker, process)
                and self._allows(self, action, worker)
            ]
            if able:
                getattr(self, action)(able[number % len(able)])
        return self

    def _applies(self, action, worker, process):
        if action == "advance":
            return process.runs and not process.left and self._able(worker)
        if action == "leave":
            return process.runs and not process.left and process.computing
        if action == "begin":
            return process.runs and process.left
        if action == "stop":
            return process.runs
        if action == "resume":
            return process.alive and process.stopped
        if action in ("kill", "end", "crash"):
            return process.alive
        if action == "restart":
            return not process.alive
        return True

    def _able(self, worker):
        process = self.processes[worker]
        return (
            process.computing
            or process.unread
            or worker in self.cluster.decided()
        )

    def advance(self, worker):
        """A worker that can do something does it."""
        process = self.processes[worker]
        if process.unread:
            self._read_next(worker)
        elif process.computing:
            self._finish(worker)
        else:
            self._go_on(worker)

    def leave(self, worker):
        """A worker is out of data."""
        self.processes[worker].left = True
        self.cluster.leave(worker)
        self._gone(worker, left=True)

    def begin(self, worker):
        """A worker that has left has data again."""
        self.processes[worker].left = False
        self._pull(worker)

    def stop(self, worker):
        """A process is stopped."""
        self.processes[worker].stopped = True

    def resume(self, worker):
        """A stopped process is continued."""
        self.processes[worker].stopped = False
        self.cluster.heard[worker] = self.cluster.now

    def kill(self, worker):
        """A process dies and nobody is told."""
        self.processes[worker].alive = False

    def end(self, worker):
        """A process ends and the server is told."""
        self.processes[worker].alive = False
        self.cluster.ended[worker] = True
        self.cluster.tick()
        self._gone(worker)

    def restart(self, worker):
        """A new process takes the place of one that has ended."""
        process = self.processes[worker]
        self.processes[worker] = Process(
            process.parameters, steps=process.steps, lives=process.lives + 1
        )
        self.cluster.ended[worker] = False
        self.cluster.heard[worker] = self.cluster.now
        self._pull(worker)

    def crash(self, worker):
        """A process dies and starts again before anybody notices."""
        self.kill(worker)
        self.restart(worker)

    def wait(self, worker=None):
        """Time passes until nobody waits for the silent."""
        del worker
        cluster = self.cluster
        cluster.now += (SILENT + 1) * SECOND
        runs = np.array([process.runs for process in self.processes])
        cluster.heard = np.where(runs, cluster.now, cluster.heard)
        cluster.tick()
        self._gone(*np.flatnonzero(~runs).tolist())

    # What that means.

    def undecided(self, worker):
        """Key of a worker's undecided gradient, or None."""
        state = self.cluster.read()
        if state.phase[worker] == Phase.ARRIVED:
            return int(state.key[worker])
        return None

    def _finish(self, worker):
        process, cluster = self.processes[worker], self.cluster
        cluster.now += SECOND // 10
        for other, its in enumerate(self.processes):
            if its.runs:
                cluster.heard[other] = cluster.now
        value = batch_gradient(worker, process.steps, process.parameters)
        process.steps += 1
        process.computing = False
        if not self.present:
            self._begin_anew(worker)
        others = self.present - {worker}
        lost = self.undecided(worker)
        if lost:
            # Of an earlier life; nobody will ever see it.
            del self.gradients[lost]
        clock = self.clocks[worker] + (not lost)
        returned = worker not in self.present
        if returned and others:
            # It enters no further back than the slowest.
            clock = max(clock, min(self.clocks[k] for k in others))
        self.clocks[worker] = clock
        self.present.add(worker)
        self._key += 3
        key = self._key
        self.gradients[key] = Gradient(
            worker,
            value,
            process.pulled,
            process.parameters,
            clock - 1,
            returned,
        )
        cluster.arrive(worker, key, process.pulled)
        if self.oracle:
            self.oracle.receive(worker, value, process.pulled)
        if not cluster.method.waits:
            # In the same transaction.
            assert worker in cluster.decided()
            self._go_on(worker)
        self._happened()

    def _begin_anew(self, worker):
        """Everybody was gone: who has left expects the others who have."""
        state, cluster = self.cluster.read(), self.cluster
        last = np.maximum(cluster.heard, state.since)
        silent = cluster.now - last > SILENT * SECOND
        self.present = set()
        if worker in self._left:
            # Of those who have ended since, it is known from now on.
            self._left = {
                k for k in self._left if not (cluster.ended[k] or silent[k])
            }
            self.present = {*self._left}
        self.clocks = [0] * len(self.clocks)
        self.earlier.update(self.gradients)
        self.begins.append(len(self.gradients))
        if self.oracle:
            self.oracle.begin_anew(self.present)

    def _go_on(self, worker):
        process = self.processes[worker]
        self.cluster.go_on(worker)
        process.decision = self.cluster.read()
        self.observer.carry_out(process.decision)
        process.unread = list(self.servers)
        process.parameters = process.parameters.copy()
        process.pulled = len(self.observer.updates)
        if not self.servers:
            process.parameters = self.observer.parameters
            self._begin_step(worker, [self.observer])

    def _read_next(self, worker):
        process = self.processes[worker]
        server = process.unread.pop(0)
        server.carry_out(process.decision)
        place = self.servers.index(server)
        part = slice(place, None, len(self.servers))
        process.parameters[part] = server.parameters[part]
        first = place == 0
        updates = len(server.updates)
        process.pulled = updates if first else min(process.pulled, updates)
        if not process.unread:
            self._begin_step(worker, self.servers)

    def _pull(self, worker):
        """A new process, or a new `fit`, carries nothing out."""
        process = self.processes[worker]
        servers = self.servers or [self.observer]
        process.parameters = np.zeros(SIZE)
        for place, server in enumerate(servers):
            part = slice(place, None, len(servers))
            process.parameters[part] = server.parameters[part]
        process.pulled = min(len(server.updates) for server in servers)
        process.computing = True

    def _begin_step(self, worker, servers):
        self.processes[worker].computing = True
        self._on_read(self, worker, servers)

    def _gone(self, *workers, left=False):
        for worker in workers:
            if worker in self.present:
                self.present.discard(worker)
                (self._left.add if left else self._left.discard)(worker)
            if self.oracle:
                self.oracle.lose(worker)
        self._happened()

    def _happened(self):
        state = self.cluster.read()
        self.observer.carry_out(state)
        self._check(state)
        self._watch(self)

    def _check(self, state):
        undecided = state.phase == Phase.ARRIVED
        steps = [process.steps for process in self.processes]
        np.testing.assert_array_equal(state.pushed, steps)
        np.testing.assert_array_equal(
            state.pushed, state.accepted + state.dropped + undecided
        )
        assert state.version == len(self.observer.updates)
        assert state.arrivals == sum(steps)
        present = set(np.flatnonzero(state.status != Status.GONE).tolist())
        assert present == self.present
        waiting = self.cluster.waiting()
        assert not present or present - waiting, "deadlock"
        if self.oracle:
            assert waiting == self.oracle.waiting
            assert state.dropped.tolist() == self.oracle.dropped
            assert state.version == self.oracle.version
            np.testing.assert_allclose(
                self.observer.parameters, self.oracle.parameters, rtol=1e-9
            )

    # The end.

    def drain(self, steps=3):
        """After all failures everybody who is there gets on."""
        self.play([("resume", 0)] * len(self.processes))
        for worker, process in enumerate(self.processes):
            if process.left and process.runs:
                self.end(worker)  # Or it would be expected in a next `fit`.
        self.wait()
        goals = [
            process.steps + steps if process.runs and not process.left else 0
            for process in self.processes
        ]
        for _ in range(20 * steps):
            before = [process.steps for process in self.processes]
            if all(b >= g for b, g in zip(before, goals, strict=True)):
                break
            for worker, process in enumerate(self.processes):
                if self._applies("advance", worker, process):
                    self.advance(worker)
        else:
            raise AssertionError(f"starved: {before} of {goals}")
        self._leave_one_alone()
        for server in self.servers:
            # Whoever comes next would make it do what is left.
            server.carry_out(self.cluster.read())
            np.testing.assert_array_equal(server.history, self.observer.history)

    def _leave_one_alone(self):
        there = [k for k, p in enumerate(self.processes) if p.runs]
        for worker in there[:-1]:
            self.cluster.ended[worker] = True
            self.processes[worker].alive = False
            self.cluster.tick()
            self._gone(worker)
        for worker in there[-1:]:
            if self.processes[worker].left:
                self.begin(worker)
            for _ in range(4 + 4 * len(self.servers)):
                assert self._able(worker), "it waits for those who are gone"
                self.advance(worker)
