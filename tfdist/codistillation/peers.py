"""The peers of a group, as one process knows them."""

import dataclasses
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.cluster.groups import Group
from tfdist.codistillation import weights as weights_lib
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import PeerUnavailableError
from tfdist.codistillation.exchange import UnusableCheckpointError
from tfdist.codistillation.teacher import Teacher

_STALE_EXCHANGES = 10
_OLD_SECONDS = 30.0


@dataclasses.dataclass
class Peer:
    """Another group, as this process knows it.

    Attributes:
      number: Of the group.
      teacher: The `Teacher` with its weights; None while none is needed.
      checkpoint: The `Checkpoint` that is installed, without its weights; None
        before the first.
      refused: The last `Checkpoint` that came, without its weights, if it could
        not be used; else None.
      problem: Why, or None.
      received: How many have been installed.
      skipped: How many could not be used.
      unchanged: Exchanges since the last one that brought anything.
    """

    number: int
    teacher: Teacher | None = None
    checkpoint: Checkpoint | None = None
    refused: Checkpoint | None = None
    problem: str | None = None
    received: int = 0
    skipped: int = 0
    unchanged: int = 0

    def newest(self):
        """The last `Checkpoint` that came of it, or None; clocks may differ."""
        return self.refused or self.checkpoint

    def age_seconds(self):
        """Seconds since its weights were taken, 0 if clocks disagree."""
        return max(0.0, time.time() - self.checkpoint.time)


@dataclasses.dataclass(frozen=True)
class Arrival:
    """Outcome of a request for one peer's checkpoint.

    Attributes:
      peer: Number of the group.
      checkpoint: A new `Checkpoint`, or None.
      teacher: A new `Teacher` for it, where the one there is does not do.
      problem: Why there is none, or None.
      unusable: Whether there was one that could not be used.
      refused: That one, without its weights, if it could be read; or None.
      failed: Whether an exchange raised what it should not.
    """

    peer: int
    checkpoint: Checkpoint | None = None
    teacher: Teacher | None = None
    problem: str | None = None
    unusable: bool = False
    refused: Checkpoint | None = None
    failed: bool = False


def ask(exchange, peer, model, signature):
    """Asks for a peer's newest checkpoint, and whether it can be used.

    Args:
      exchange: The `Exchange`.
      peer: The `Peer`.
      model: The student, a built `keras.Model`.
      signature: What the student's steps take and give, as `(x, outputs)` of
        `tf.TensorSpec`; None before it is known.

    Returns:
      An `Arrival`.
    """
    number = peer.number
    if signature is None and not exchange.same_architecture:
        return Arrival(number)  # Whether it fits could not be told.
    found = None
    try:
        found = exchange.fetch(number, peer.newest())
        if found is None:
            return Arrival(number)
        teacher = _usable(found, peer, model, signature)
    except PeerUnavailableError as error:
        return Arrival(number, problem=str(error))
    except Exception as error:  # Whatever it is: training goes on.
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, UnusableCheckpointError):
            problem = str(error)
        elif found is None:
            return Arrival(number, problem=problem, failed=True)
        if found is not None:
            found = dataclasses.replace(found, weights=None, architecture=None)
        return Arrival(number, problem=problem, unusable=True, refused=found)
    return Arrival(number, found, teacher)


def _usable(found, peer, model, signature):
    """Checks a checkpoint; returns a `Teacher` if it needs a new one."""
    for number, array in enumerate(found.weights):
        if array.dtype.kind not in "biuf":
            raise UnusableCheckpointError(
                f"variable {number} of group {found.group} has dtype "
                f"{array.dtype}, which is no number"
            )
        if np.issubdtype(array.dtype, np.inexact):
            if not np.all(np.isfinite(array)):
                raise UnusableCheckpointError(
                    f"the weights of group {found.group} at its step "
                    f"{found.step} are not finite (variable {number})"
                )
    if found.architecture is None:
        shapes = [array.shape for array in found.weights]
        misfit = weights_lib.misfit(model, shapes)
        if misfit is not None:
            raise UnusableCheckpointError(
                f"group {found.group} has another architecture: {misfit}. "
                "Groups with different ones exchange whole models: "
                "SharedDirectory(..., whole_models=True)"
            )
        return None if peer.teacher is not None else Teacher(model)
    old = peer.teacher
    if old is not None and _same(old.architecture, found.architecture):
        return None
    teacher = Teacher(found.architecture)
    if signature is not None:
        _check_signature(teacher, signature, found)
    return teacher


def _same(one, other):
    if one is other:
        return True
    shapes = [tuple(v.shape) for v in weights_lib.exchanged_variables(other)]
    return (
        weights_lib.misfit(one, shapes) is None
        and one.to_json() == other.to_json()
    )


def _check_signature(teacher, signature, found):
    """Checks that a model of another architecture has our ins and outs."""
    x, expected = signature
    try:
        outputs = (
            tf.function(teacher.outputs, autograph=False)
            .get_concrete_function(x)
            .structured_outputs
        )
        tf.nest.assert_same_structure(outputs, expected)
    except (TypeError, ValueError) as error:
        raise UnusableCheckpointError(
            f"the model of group {found.group} does not take what this one "
            f"takes: {error}"
        ) from error
    for ours, theirs in zip(
        tf.nest.flatten(expected), tf.nest.flatten(outputs), strict=True
    ):
        if not ours.shape.is_compatible_with(theirs.shape):
            raise UnusableCheckpointError(
                f"the model of group {found.group} gives outputs of shape "
                f"{theirs.shape}, this one of shape {ours.shape}"
            )


def warn_if_alike(peer, initial):
    """Warns if a peer began with the very weights that this group had."""
    if peer.received == 1 and peer.checkpoint.initial == initial:
        logging.warning(
            "Group %d began with the same weights as this one: groups that "
            "begin alike have less to teach each other. Seed each in its own "
            "way, as by keras.utils.set_random_seed(seed + group).",
            peer.number,
        )


def warn_if_old(peer, began_at):
    """Warns if the first weights of a peer may be of another run."""
    before = began_at - peer.checkpoint.time
    if peer.received == 1 and before > _OLD_SECONDS:
        logging.warning(
            "The first weights of group %d are of its step %d, and were "
            "written %.0f s before this training began. If they come from an "
            "earlier run, use a new directory for each run, or set "
            "max_age_seconds.",
            peer.number,
            peer.checkpoint.step,
            before,
        )


def note_problem(peer, arrival):
    """Tells of a problem once, for as long as it is the same."""
    is_new = arrival.problem not in (None, peer.problem)
    # What could be read is not asked for again: the next one is another.
    if arrival.unusable and (is_new or arrival.refused is not None):
        peer.skipped += 1
    if is_new:
        if arrival.unusable:
            logging.warning(
                "Weights of group %d are not used: %s",
                peer.number,
                arrival.problem,
            )
        elif arrival.failed:
            logging.warning(
                "Group %d could not be asked for its weights, and will be "
                "asked again: %s",
                peer.number,
                arrival.problem,
            )
    peer.problem = arrival.problem or peer.problem


def note_staleness(peer):
    """Tells once that a peer has not published for some exchanges."""
    peer.unchanged += 1
    if peer.unchanged == _STALE_EXCHANGES and peer.checkpoint is not None:
        logging.warning(
            "Group %d has published nothing new for %d exchanges; training "
            "goes on with its weights of step %d, %.0f s old.",
            peer.number,
            peer.unchanged,
            peer.checkpoint.step,
            peer.age_seconds(),
        )


def summarize(peers):
    """Returns what was received from each of `peers`, for JSON."""
    return {
        str(peer.number): {
            "received": peer.received,
            "skipped": peer.skipped,
            "step": peer.checkpoint.step if peer.checkpoint else None,
            "age_seconds": peer.age_seconds() if peer.checkpoint else None,
        }
        for peer in peers
    }


def told(group, peers):
    """The same as a sentence."""
    parts = []
    for peer in peers:
        if peer.checkpoint is None:
            parts.append(f"no weights of group {peer.number} came")
            continue
        parts.append(
            f"weights of group {peer.number} came {_times(peer.received)}, the "
            f"last of its step {peer.checkpoint.step}"
            + (f", {peer.skipped} were skipped" if peer.skipped else "")
        )
    return (
        f"Codistillation of group {group.index}: "
        f"{'; '.join(parts) or 'it is the only group'}."
    )


def _times(number):
    return "once" if number == 1 else f"{number} times"


def group_of(group, num_groups):
    """The `Group` that a user means; see `Codistillation` for arguments."""
    if isinstance(group, Group):
        found = group
    elif group is not None:
        if num_groups is None:
            raise ValueError(
                f"group={group!r} needs num_groups, the number of all groups."
            )
        found = Group(group, num_groups)
    else:
        found = Group.from_tf_config()
        if found.num_groups == 1:
            logging.warning(
                "This is the only group, which nobody teaches. To codistil, "
                "pass group= and num_groups=, or set TF_CONFIG's key "
                '"codistillation": {"group": 0, "num_groups": 2}, as `tfdist '
                "launch --num_groups=2` does."
            )
    if num_groups is not None and num_groups != found.num_groups:
        raise ValueError(
            f"num_groups is {num_groups}, and {found.num_groups} according to "
            "the group."
        )
    return found
