"""Versions of a stage's weights that each forward and backward uses.

Version v of a stage is what its weights are after v updates. All here is
known from the schedule alone, before anything is trained.
"""

import itertools

import numpy as np

from tfdist.pipeline import schedules


def weight_versions(schedule, vertical_sync=False):
    """The version that each forward and backward uses.

    With stages s = 0 to K - 1, units u from 0 and M micro-batches of a batch:

    - "gpipe", "1f1b": the current one, which is the number of the batch.
    - "pipedream" stashes weights: a forward uses the current version, and
      the backward of its unit the same. In the steady state that is
      u - (K - 1 - s), so w(t + 1) = w(t) - eta * grad f(w_0(t - K + 1), ...,
      w_{K-1}(t)) (Harlap et al. 2018). With `vertical_sync` all
      stages use max(0, u - K + 1), as the first one does.
    - "pipedream_2bw": batch t uses max(0, t - 1), which is 0 for the first
      two, so W(t + 1) = W(t) - eta * grad f(W(t - 1)) with W(-1) = W(0)
      (Narayanan et al. 2021, section 3.1).
    - "ftpipe": a forward uses the current version; a backward computes it
      again with the version that is current then (Eliad et al. 2021).
    - "spectrain": the current one, from which it predicts a later one, by
      `predicted_steps`.

    Args:
      schedule: A `schedules.PipelineSchedule` whose name is one of
        `schedules.NAMES`.
      vertical_sync: Whether all stages use the version of the first one, of
        "pipedream" alone.

    Returns:
      A dict from each forward and backward `StageTask` to an int.

    Raises:
      ValueError: Nobody knows the schedule's name, or `vertical_sync` does
        not fit it.
    """
    if schedule.name not in schedules.NAMES:
        raise ValueError(
            "Argument `schedule` must be one of "
            f"{', '.join(schedules.NAMES)}, whose weights are known. "
            f"Received: schedule={schedule.name!r}"
        )
    if vertical_sync and schedule.name != "pipedream":
        raise ValueError(
            "Argument `vertical_sync` must be False except for pipedream. "
            f"Received: vertical_sync={vertical_sync!r} for {schedule.name}"
        )
    found = {}
    for tasks in schedule.stages:
        current = 0
        for task in tasks:
            if task.kind == "update":
                current += 1
                continue
            version = current
            if vertical_sync:
                version = max(0, task.unit - schedule.num_stages + 1)
            elif schedule.name == "pipedream" and task.kind == "backward":
                version = found[task._replace(kind="forward")]
            elif schedule.name == "pipedream_2bw":
                version = max(0, task.unit // schedule.batch_units - 1)
            found[task] = version
    return found


def kept_versions(schedule, vertical_sync=False):
    """The most versions of its weights that each stage holds at once.

    The current one counts. That is 1 for "gpipe", "1f1b", "spectrain" and
    "ftpipe", 2 for "pipedream_2bw", and K - s at stage s for "pipedream",
    which is its in-flight units (Narayanan et al. 2019, section 3.3).

    Args:
      schedule: As for `weight_versions`.
      vertical_sync: The same. Stages then keep K versions, since a version
        is used there when the first stage has long left it.

    Returns:
      A tuple of K ints.
    """
    versions = weight_versions(schedule, vertical_sync)
    found = []
    for tasks in schedule.stages:
        # Index of a task -> change of the number of versions before it.
        changes = np.zeros(len(tasks) + 1, np.int64)
        updates = [i for i, task in enumerate(tasks) if task.kind == "update"]
        last = {
            versions[task]: i
            for i, task in enumerate(tasks)
            if task.kind != "update"
        }
        # Made by an update, and current until the next one.
        born = [-1, *updates]
        for version, (begin, end) in enumerate(
            itertools.pairwise([*born, len(tasks) - 1])
        ):
            changes[begin + 1] += 1
            gone = max(end, last.get(version, -1))
            changes[gone + 1] -= 1
        found.append(int(np.cumsum(changes).max()))
    return tuple(found)


def predicted_steps(num_stages):
    """By how many updates SpecTrain predicts the weights of each stage.

    From the current ones those after s updates are predicted, W - s * eta *
    v; with s = 0 they stay as they are. At stage k of K, s = floor(k / 2) +
    K - k - 1 for a forward and floor(k / 2) for a backward (Chen, Yang and
    Cheng 2018): both look forward to the version that is there when
    the unit has come back to the first stage.

    Args:
      num_stages: Number of stages, K.

    Returns:
      A pair of (K,) int64: of forwards, and of backwards.
    """
    stage = np.arange(num_stages)
    backward = stage // 2
    return backward + num_stages - stage - 1, backward
