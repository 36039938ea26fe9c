"""Weights straight from the peers' parameter servers."""

import dataclasses
import json
import time
from typing import Any

import keras
import numpy as np

from tfdist import checks
from tfdist.cluster import addresses
from tfdist.cluster import sessions
from tfdist.cluster.groups import Group
from tfdist.cluster.refusal import refusal
from tfdist.codistillation import quantization
from tfdist.codistillation import server_session
from tfdist.codistillation import weights as weights_lib
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import Exchange
from tfdist.codistillation.exchange import PeerUnavailableError
from tfdist.codistillation.exchange import UnusableCheckpointError
from tfdist.codistillation.server_weights import ServerWeights

_LAYOUT = "tfdist/codistillation/layout"
_FORMAT = 1


class PeerServers(Exchange):
    """Reads the weights that a peer's parameter servers hold just then.

    For groups that are clusters with parameter servers and train the same
    architecture. A group's chief leaves a *layout* on its first server: what
    lies where. With it each process of a peer reads the weights from the
    servers themselves, whenever it wants them, without a copy on any disk and
    without the group's workers. When a group's training is over its servers
    end; others keep what they had of it.

    Servers go on while they are read, and no lock is taken: each tensor (of
    a variable that is split, each piece) is consistent in itself, and a part
    of them may have an update more than others. `step` is the most updates
    that one of them has applied. With local steps (`tfdist.averaging`)
    servers hold what workers have made of their weights together. State that
    belongs to each worker (integers, learning rates) is not on servers: of it
    a checkpoint has this process's own.

    Weights are quantised by the server, before they travel. Of a variable
    that is split over servers each piece is quantised for itself: with
    "int8" it has scales of its own, which are as good or better.

    Of a checkpoint `time` is when the servers were read, by this process's
    clock, and `number` counts the updates; when a peer's servers have lost
    their count with a restart, it goes on from what this process had.

    Whoever reaches a parameter server can read and write all it holds: the
    groups have to trust each other, and nobody else may reach them.

    Args:
      servers: For each group the list of its servers' `host:port` in the
        order of their tasks. Default: what the group says, from `TF_CONFIG`.
      name: Of the model, the same in all groups. Groups that train several
        models one after the other give each one a name; else a group that is
        still at a model teaches it to those that are at the next one.
      dtype: What weights travel in: "float32" (as they are), "float16" or
        "int8", a half or a quarter of the bytes; see `quantization`.
      timeout: Seconds that a peer has to answer, for each `fetch`.

    Attributes:
      bytes_received: Bytes of the weights that came, as they travelled.

    Raises:
      ValueError: An argument is malformed.
    """

    needs_weights = False

    def __init__(
        self,
        servers: Any = None,
        *,
        name: str = "",
        dtype: Any = "float32",
        timeout: float = 10.0,
    ):
        if not isinstance(name, str):
            raise refusal("name", "be a string", name)
        quantization.check(dtype)
        self._given = None if servers is None else _checked(servers)
        self._text_name = f"{_LAYOUT}/{name}" if name else _LAYOUT
        self._dtype = dtype
        self._timeout = checks.positive("timeout", timeout)
        self.bytes_received = 0
        self._model = self._strategy = self._own = None
        self._peers = {}

    def bind(self, group: Group, model: keras.Model) -> None:
        strategy = model.distribute_strategy
        cluster = getattr(strategy, "cluster", None)
        if cluster is None or not cluster.num_ps:
            raise ValueError(
                "PeerServers exchanges weights through parameter servers, and "
                f"group {group.index} has none (one process without servers, "
                'or communication="ring"). Use a SharedDirectory.'
            )
        servers = self._servers(group)
        # It refuses variables that are not the strategy's.
        strategy.layout(weights_lib.exchanged_variables(model))
        self._model, self._strategy = model, strategy
        self._own = server_session.Server(
            group.index, 0, cluster.ps_addresses[0]
        )
        self._peers = {
            number: _Peer(
                [
                    server_session.Server(number, task, address)
                    for task, address in enumerate(servers[number])
                ],
                # What is known of its lives outlasts a run.
                getattr(self._peers.get(number), "life", None),
            )
            for number in range(group.num_groups)
            if number != group.index
        }
        if cluster.is_chief:
            self._withdraw()

    def _withdraw(self):
        """Takes back the layout of another model that this group has trained.

        Its weights may still be on the servers, and must not teach any more.
        """
        try:
            left = self._read(self._own)
            if left and not self._is_own(left):
                self._leave("")
        except PeerUnavailableError:
            pass  # Nothing was published there, or it is lost.

    def _is_own(self, text):
        own = json.loads(json.dumps(self._layout()))
        try:
            return json.loads(text).items() >= own.items()
        except (AttributeError, ValueError):
            return False

    def _layout(self):
        return self._strategy.layout(
            weights_lib.exchanged_variables(self._model)
        )

    def _read(self, server, deadline=None):
        return server_session.read_text(
            server,
            self._text_name,
            "the layout of its weights",
            deadline or sessions.Deadline(self._timeout),
        )

    def _leave(self, text):
        server_session.leave_text(
            self._own, self._text_name, text, sessions.Deadline(self._timeout)
        )

    def _servers(self, group):
        servers = group.servers if self._given is None else self._given
        if not servers:
            raise ValueError(
                "PeerServers needs the addresses of all groups' parameter "
                'servers: "servers" in TF_CONFIG["codistillation"], or '
                'PeerServers(servers=[["host:port"], ["host:port"]]).'
            )
        if len(servers) != group.num_groups:
            raise ValueError(
                "Argument `servers` must be a list for each of "
                f"{group.num_groups} groups. Received: {len(servers)} lists"
            )
        for number, its in enumerate(servers):
            if number != group.index and not its:
                raise ValueError(
                    "Argument `servers` must have a parameter server that can "
                    "be asked for each other group; without, use a "
                    f"SharedDirectory. Received: servers[{number}]=[]"
                )
        return servers

    def publish(self, checkpoint: Checkpoint) -> None:
        """Says where this group's weights are.

        Each time: a server that was started again does not know any more.

        Raises:
          PeerUnavailableError: This group's own first server does not answer.
        """
        layout = {
            "format": _FORMAT,
            "group": checkpoint.group,
            "run": checkpoint.run,
            "initial": checkpoint.initial,
            **self._layout(),
        }
        self._leave(json.dumps(layout))

    def fetch(
        self, peer: int, newer_than: Checkpoint | None
    ) -> Checkpoint | None:
        peer = self._peers[peer]
        deadline = sessions.Deadline(self._timeout)
        text = self._read(peer.servers[0], deadline)
        if not text:
            raise PeerUnavailableError(
                f"group {peer.servers[0].group} has published nothing of the "
                "model that it trains now"
            )
        if text != peer.text:
            peer.read_by(text, self._model, self._dtype)
        with peer.reader.opened(deadline) as conversation:
            updates, step = conversation.counts()
            number = peer.number_of(updates, newer_than)
            if newer_than is not None and number <= newer_than.number:
                return None
            now = time.time()
            weights = conversation.weights()
        self.bytes_received += conversation.bytes_received
        return Checkpoint(
            group=peer.servers[0].group,
            number=number,
            step=step,
            time=now,
            run=peer.run,
            initial=peer.initial,
            weights=tuple(
                np.array(weights_lib.as_numpy(variable))
                if array is None
                else array
                for variable, array in zip(
                    weights_lib.exchanged_variables(self._model),
                    weights,
                    strict=True,
                )
            ),
        )


def _checked(servers):
    """Addresses as tuples.

    Raises:
      ValueError: They are malformed.
    """
    allowed = "be a list of lists of addresses, one for each group"
    if not isinstance(servers, (list, tuple)):
        raise refusal("servers", allowed, servers)
    owner = {}
    for number, group in enumerate(servers):
        if not isinstance(group, (list, tuple)):
            raise refusal(f"servers[{number}]", allowed, group)
        for task, address in enumerate(group):
            addresses.claim(address, f"servers[{number}][{task}]", owner)
    return tuple(map(tuple, servers))


@dataclasses.dataclass
class _Life:
    """One life of a peer, as this process counts.

    Attributes:
      run: Its name.
      offset: What is added to the count of its updates.
    """

    run: str
    offset: int


class _Peer:
    """Another group, as far as this one knows it.

    Args:
      servers: List of its `Server`s.
      life: The `_Life` that was seen last, or None.
    """

    def __init__(self, servers, life):
        self.servers = servers
        self.life = life
        self.text = self.run = self.initial = self.reader = None

    def read_by(self, text, model, dtype):
        """Takes a layout, if it fits.

        Args:
          text: What is on the server.
          model: This group's.
          dtype: What weights travel in.

        Raises:
          UnusableCheckpointError: It is malformed, of another group, or of
            another architecture.
        """
        self.text = None
        server = self.servers[0]
        try:
            layout = json.loads(text)
            if layout["format"] != _FORMAT:
                raise UnusableCheckpointError(
                    f"the layout on {server} has format {layout['format']!r}, "
                    f"known here is {_FORMAT}: use the same version of tfdist"
                )
            if layout["group"] != server.group:
                raise UnusableCheckpointError(
                    f"what is said to be {server} belongs to group "
                    f"{layout['group']!r}: check the order of servers"
                )
            if layout["num_servers"] != len(self.servers):
                raise UnusableCheckpointError(
                    f"group {server.group} has {layout['num_servers']!r} "
                    f"parameter servers, and {len(self.servers)} are known "
                    "here: tell all, in the order of their tasks"
                )
            _check_fit(layout, model, server.group)
            reader = ServerWeights(self.servers, layout, dtype)
            run, initial = layout["run"], layout["initial"]
        except UnusableCheckpointError:
            raise
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise UnusableCheckpointError(
                f"the layout on {server} is malformed: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.text, self.reader = text, reader
        self.run, self.initial = run, initial

    def number_of(self, updates, newer_than):
        """Number of a checkpoint, greater than those of lives before.

        Args:
          updates: That the servers have counted.
          newer_than: The `Checkpoint` that this process has, or None.
        """
        if self.life is None or self.life.run != self.run:
            offset = 0
            if newer_than is not None and newer_than.run != self.run:
                offset = max(0, newer_than.number + 1 - updates)
            self.life = _Life(self.run, offset)
        return updates + self.life.offset


def _check_fit(layout, model, group):
    """Refuses weights that are not those of a model like `model`."""
    theirs = layout["variables"]
    misfit = weights_lib.misfit(model, [v["shape"] for v in theirs])
    if misfit is None:
        for number, (variable, its) in enumerate(
            zip(weights_lib.exchanged_variables(model), theirs, strict=True)
        ):
            if variable.dtype != its["dtype"]:
                misfit = (
                    f"its variable {number} has dtype {its['dtype']} where "
                    f"{variable.path!r} here has {variable.dtype}"
                )
                break
    if misfit is not None:
        raise UnusableCheckpointError(
            f"group {group} has another architecture: {misfit}. Groups with "
            "different ones exchange whole models: SharedDirectory(..., "
            "whole_models=True)"
        )
