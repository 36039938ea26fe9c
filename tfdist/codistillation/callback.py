"""The callback that exchanges weights with the peers while a model trains."""

import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import time
from typing import Any
import uuid

from absl import logging
import keras
import numpy as np

from tfdist import checks
from tfdist import private_keras
from tfdist import private_keras_building
from tfdist.codistillation import peers as peers_lib
from tfdist.codistillation import weights as weights_lib
from tfdist.codistillation.background import Background
from tfdist.codistillation.background import outside_scopes
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import Exchange
from tfdist.codistillation.model import Codistilled
from tfdist.codistillation.model import check_learns_from_teachers
from tfdist.codistillation.teacher import Teacher
from tfdist.codistillation.teacher import check_stateless
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import ReplicaVariable

_LOOK_SECONDS = 1.0
_LAST_SECONDS = 30.0


class Codistillation(keras.callbacks.Callback):
    """Gives this group's weights to its peers, and theirs to its teachers.

    For a model that is `Codistilled`. Pass it to `fit` on every process of
    each group. When the burn-in is over and every `exchange_every` updates
    from then on, the group's chief publishes the weights, and every process
    looks for newer ones of the peers. So nobody is taught by a group that has
    not ended its own burn-in, however late it began. While a peer has not
    been seen yet it is looked for once a second (with `background=False`, at
    each exchange).

    Files and networks are seen to in a thread of its own: what has come by
    the end of a training step is in use from the next one on. Peers that are
    late, dead or started again, and checkpoints that are damaged, not finite
    or of another model, never stop this group. It goes on with the last
    teacher that it got, or without.

    Args:
      exchange: What carries the weights: a `SharedDirectory`, or
        `PeerServers`, or another `Exchange`.
      group: Number of this group from 0, or a `Group`. Default: what
        `TF_CONFIG` says under "codistillation".
      num_groups: Number of groups; needed with a number as `group`.
      exchange_every: Updates (`optimizer.iterations`) between two exchanges.
      max_age_seconds: Weights that were taken longer ago are not used (by the
        clocks of both machines); None for no limit.
      background: Whether to exchange in a thread. If not, each exchange is
        part of the step after which it is due: slower, and what groups do
        does not depend on the speed of files.
      log_dir: Directory of `codistillation-<group>-<task>.jsonl`, made if
        need be, to which each run adds; None writes none. One object per
        exchange and peer, see `records`.
      verbose: 0 prints no summary at the end.

    Attributes:
      group: The `Group`, while training and after it.
      records: List of dicts, what came of each exchange: `run` (names this
        training), `time` (seconds since it began), `step` (updates of this
        group), `peer`, and for new weights `teacher_step` (updates of the peer
        that are in them) and `age_seconds`; else `problem`, a string, None
        where there merely was nothing new.
      summary: Dict of what came from each peer, after training.

    Logs of each epoch get `teachers`, how many are in use, and
    `teacher_age_seconds`, how old the weights of the oldest of them are.

    Raises:
      ValueError: An argument is malformed; the model is not `Codistilled`; or
        the exchange does not suit it.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        group: Any = None,
        num_groups: int | None = None,
        exchange_every: int = 50,
        max_age_seconds: float | None = None,
        background: bool = True,
        log_dir: str | os.PathLike[str] | None = None,
        verbose: int = 1,
    ):
        super().__init__()
        if not isinstance(exchange, Exchange):
            raise ValueError(
                "Argument `exchange` must be a SharedDirectory, PeerServers "
                f"or another Exchange. Received: exchange={exchange!r}"
            )
        self._every = checks.count("exchange_every", exchange_every)
        if max_age_seconds is not None:
            max_age_seconds = checks.positive(
                "max_age_seconds", max_age_seconds
            )
        if log_dir is not None:
            log_dir = pathlib.Path(checks.path("log_dir", log_dir))
        self.group = peers_lib.group_of(group, num_groups)
        self._exchange = exchange
        self._max_age = max_age_seconds
        self._in_background = checks.flag("background", background)
        self._log_dir = log_dir
        self._verbose = verbose
        self._file = self._pending = None
        self.records = []
        self.summary = None

    # What Keras calls.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        check_learns_from_teachers(model)
        cluster = getattr(model.distribute_strategy, "cluster", None)
        self._is_in_cluster = cluster is not None and not cluster.is_local
        self._is_chief = cluster is None or cluster.is_chief
        self._student = (
            model.student if isinstance(model, Codistilled) else model
        )
        if self._pending is None or self._pending.done():
            self._thread = Background("codistillation")
            self._pending = None
        # Else one of the training before hangs: what it brings is late.
        self._late = self._pending
        self._run = uuid.uuid4().hex[:12]
        self._began, self._began_at = time.monotonic(), time.time()
        self._has_warned = False
        self._published_step = None
        self._looked_at = -math.inf
        self._open(cluster)
        self._peers = {n: peers_lib.Peer(n) for n in self.group.peers}
        self._next = model.burn_in_steps
        self._is_ready = self._has_stepped = False
        if private_keras_building.is_built(self._student):
            self._prepare()

    def _prepare(self):
        """Binds to the model's variables, which the first step may make."""
        self._is_ready = True
        weights_lib.refuse_tables(self._student)
        self._exchange.bind(self.group, self._student)
        self._initial = None
        if self._is_chief:
            weights = weights_lib.snapshot(self._student)
            self._initial = weights_lib.digest(weights)
        if self._exchange.same_architecture:
            for peer in self._peers.values():
                peer.teacher = outside_scopes(Teacher, self._student)
        else:
            check_stateless(self._student)  # Peers could not use it.
        self._set_teachers()
        step = self._step()
        if step >= self._next:
            self._begin_exchange(step)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._finish_exchange()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._has_stepped = True
        if not self._is_ready:
            self._prepare()
        if self.model.traced_signature is None:
            raise ValueError(
                f"The train_step of {type(self.model).__name__} never calls "
                "self.compute_loss for training, to which teachers would add "
                "theirs: call self.compute_loss(x=x, y=y, y_pred=y_pred)."
            )
        step = self._step()
        if step >= self._next:
            self._begin_exchange(step)
        elif (
            self._in_background
            and step >= self.model.burn_in_steps
            and any(p.checkpoint is None for p in self._peers.values())
            and time.monotonic() - self._looked_at > _LOOK_SECONDS
        ):
            self._look(step, publish=None, for_missing=True)
        self._retire_old()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is None:
            return
        used = [
            peer
            for peer in self._peers.values()
            if peer.checkpoint is not None and self._is_used(peer)
        ]
        logs["teachers"] = float(len(used))
        logs["teacher_age_seconds"] = max(
            (peer.age_seconds() for peer in used), default=0.0
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        step = self._step()
        is_free = self._finish_exchange(wait=True)
        if (
            is_free
            and self._is_ready
            and self._is_chief
            and self._has_weights_of_all
            and self.model.burn_in_steps <= step != self._published_step
        ):
            # Peers that train on shall have the last weights.
            self._look(step, publish=self._checkpoint(step))
            is_free = self._finish_exchange(wait=True)
        if is_free:
            self._thread.close()
        self._exchange.close()
        self.summary = peers_lib.summarize(self._peers.values())
        self.model.set_teachers([])
        if self._file is not None:
            self._file.close()
        if self._verbose and self._is_chief:
            print(peers_lib.told(self.group, self._peers.values()))

    # The exchange.

    @property
    def _has_weights_of_all(self):
        """Whether the student here has what its group has learnt.

        A chief that was started again has the values that it was made with, or
        loaded, until its first step brings those of the others.
        """
        return self._has_stepped or not self._is_in_cluster

    def _step(self):
        """Updates of the group that this process knows of."""
        counter, batches = private_keras.counter_of(self.model.optimizer)
        if isinstance(counter.value, ReplicaVariable):
            # As it is here; to read it as others do would ask a server.
            return int(read_replica(counter.value)) // batches
        return int(keras.ops.convert_to_numpy(counter)) // batches

    def _begin_exchange(self, step):
        """Begins what is due, or leaves it due until the thread is free."""
        if not self._finish_exchange():
            if self._pending_publishes and not self._has_warned:
                self._has_warned = True
                logging.warning(
                    "The exchange before that of step %d has not ended yet. "
                    "Slow files or networks want a greater exchange_every "
                    "than %d.",
                    step,
                    self._every,
                )
            return
        first = self.model.burn_in_steps
        self._next = first + ((step - first) // self._every + 1) * self._every
        publishes = self._is_chief and self._has_weights_of_all
        if self._is_chief and not publishes:
            self._next = step + 1
        self._look(step, self._checkpoint(step) if publishes else None)
        if not self._in_background:
            self._finish_exchange(wait=True)

    def _checkpoint(self, step):
        weights = None
        if self._exchange.needs_weights:
            strategy = self.model.distribute_strategy
            if getattr(strategy, "uses_lookahead", False):
                # The next gradient is of the parameters, as after saving.
                strategy.pull()
            weights = weights_lib.snapshot(self._student)
        return Checkpoint(
            group=self.group.index,
            number=0,
            step=step,
            time=time.time(),
            run=self._run,
            initial=self._initial,
            weights=weights,
        )

    def _look(self, step, publish, for_missing=False):
        """Begins an exchange in the thread, unless one is under way.

        Args:
          step: Updates of this group.
          publish: The `Checkpoint` to publish, or None.
          for_missing: Whether to ask only peers that have not been seen yet.
        """
        if self._pending is not None:
            return
        self._looked_at = time.monotonic()
        self._pending_step = step
        self._pending_publishes = publish is not None
        if publish is not None:
            self._published_step = step
        self._pending_is_for_missing = for_missing
        peers = [
            dataclasses.replace(peer)
            for peer in self._peers.values()
            if peer.checkpoint is None or not for_missing
        ]
        self._pending = self._thread.submit(self._carry, publish, peers)

    def _carry(self, checkpoint, peers):
        """Publishes and asks; in the thread."""
        problem = None
        if checkpoint is not None:
            try:
                weights = checkpoint.weights or ()
                if all(np.all(np.isfinite(array)) for array in weights):
                    self._exchange.publish(checkpoint)
                else:
                    problem = "the weights are not finite"
            except Exception as error:  # Whatever it is: training goes on.
                problem = f"{type(error).__name__}: {error}"
        arrivals = [
            peers_lib.ask(
                self._exchange,
                peer,
                self._student,
                self.model.traced_signature,
            )
            for peer in peers
        ]
        return problem, arrivals

    def _finish_exchange(self, wait=False):
        """Takes what the thread has brought; returns if it is free again."""
        if self._pending is None:
            return True
        if not (wait or self._pending.done()):
            return False
        try:
            problem, arrivals = self._pending.result(_LAST_SECONDS)
        except concurrent.futures.TimeoutError:
            logging.warning(
                "The exchange of step %d has not ended within %.0f s; going "
                "on without it.",
                self._pending_step,
                _LAST_SECONDS,
            )
            return False
        done, self._pending = self._pending, None
        if done is self._late:
            return True
        if problem is not None:
            logging.warning(
                "The weights of step %d could not be published: %s",
                self._pending_step,
                problem,
            )
        renewed = False
        step = self._step()
        for arrival in arrivals:
            peer = self._peers[arrival.peer]
            if arrival.teacher is not None:
                peer.teacher = arrival.teacher
                renewed = True
            self._take(peer, arrival, step)
        if renewed:
            self._set_teachers()
        return True

    def _take(self, peer, arrival, step):
        record = {
            "run": self._run,
            "time": round(time.monotonic() - self._began, 3),
            "step": step,
            "peer": peer.number,
        }
        found = arrival.checkpoint
        # Looked for each second: no record each time that one is not there.
        is_recorded = (
            found or arrival.unusable or not self._pending_is_for_missing
        )
        if found is None:
            record["problem"] = arrival.problem
            peers_lib.note_staleness(peer)
            peer.refused = arrival.refused or peer.refused
            peers_lib.note_problem(peer, arrival)
        else:
            peer.teacher.install(found.weights)
            peer.refused = None  # This one came after it.
            peer.checkpoint = dataclasses.replace(
                found, weights=None, architecture=None
            )
            peer.received += 1
            peer.problem = None
            peer.unchanged = 0
            record["teacher_step"] = found.step
            record["age_seconds"] = round(peer.age_seconds(), 3)
            peers_lib.warn_if_alike(peer, self._initial)
            peers_lib.warn_if_old(peer, self._began_at)
            self._retire_old()
        if not is_recorded:
            return
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def _is_used(self, peer):
        return self._max_age is None or peer.age_seconds() <= self._max_age

    def _retire_old(self):
        """Takes teachers that are too old out of use."""
        if self._max_age is None:
            return
        for peer in self._peers.values():
            if peer.checkpoint is not None and not self._is_used(peer):
                peer.teacher.retire()

    def _set_teachers(self):
        self.model.set_teachers(
            [p.teacher for p in self._peers.values() if p.teacher is not None]
        )

    # What is told.

    def _open(self, cluster):
        if self._log_dir is None:
            return
        self._log_dir.mkdir(parents=True, exist_ok=True)
        task = "worker-0"
        if cluster is not None:
            task = f"{cluster.task_type}-{cluster.task_index}"
        name = f"codistillation-{self.group.index}-{task}.jsonl"
        self._file = (self._log_dir / name).open("a", encoding="utf-8")
