"""Real clusters against NumPy oracles, for each method of synchronization.

Each worker records what it pulled, how late its gradients were and whether
they were accepted. That is the order in which everything happened; from it an
oracle written from the papers' formulas says what the parameters must be after
each update (papers.md, sections 2, 3 and 4).
"""

import collections

import keras
import numpy as np
import pytest

from tests.multi_process import synchronization_tasks

RATE, BATCH, WORKERS = 0.02, 4, 3
START = np.array([1.0, 1.0, 1.0, 0.0])


def gradient(weights, x, y):
    """Of the mean squared error of x @ kernel + bias, in float64."""
    error = x @ weights[:-1] + weights[-1] - y[:, 0]
    return 2 * np.concatenate([x.T @ error, [error.sum()]]) / len(x)


def train(
    cluster, method, arguments, steps, num_ps=1, last_is_late=False, **more
):
    """Trains on a real cluster; returns what the workers report."""
    made = cluster(num_ps=num_ps, num_workers=WORKERS)
    made.start_servers()
    workers = made.start_workers(
        "synchronization_tasks:regress",
        **{
            "method": method,
            "arguments": arguments,
            "steps": steps,
            "batch_size": BATCH,
            "optimizer": "sgd",
            "rate": RATE,
            "wait": last_is_late,
            **more,
        },
    )
    if last_is_late:
        made.let_the_last_be_late(workers)
    made.finish()
    return [worker.report() for worker in workers]


def history(reports, repeats=False):
    """What happened to each gradient.

    Args:
        reports: of the workers.
        repeats: whether a batch comes again whose gradient was dropped.

    Returns:
        A list of (worker, step, version pulled, update that it is part of or
        `None`), and the batches by worker.
    """
    events, data = [], []
    for worker, report in enumerate(reports):
        pulled = step = 0
        for version, late, accepted, _ in report["exchanges"]:
            update = pulled + late if accepted else None
            events.append((worker, step, pulled, update))
            step += accepted or not repeats
            pulled = version
        data.append(synchronization_tasks.regression(worker, step, BATCH))
    return events, data


def replay(events, data, scale=lambda late: 1.0, mean=True):
    """The parameters after each update, from the recorded events.

    Args:
        events: from `history`.
        data: from `history`.
        scale: factor of a gradient by its staleness.
        mean: whether an update averages its gradients or adds them.

    Returns:
        The list of parameters by version, and the list of the gradients that
        each update was made of, as (worker, step, version pulled).
    """
    members = collections.defaultdict(list)
    for worker, step, pulled, update in events:
        if update is not None:
            members[update].append((worker, step, pulled))
    versions = [START]
    for update in range(len(members)):
        parts = [
            scale(update - pulled)
            * gradient(versions[pulled], *(d[step] for d in data[worker]))
            for worker, step, pulled in members[update]
        ]
        move = np.mean(parts, axis=0) if mean else np.sum(parts, axis=0)
        versions.append(versions[-1] - RATE * move)
    return versions, [members[update] for update in range(len(members))]


def check_seen(reports, versions, repeats=False):
    """Compares what each worker saw after each batch with the oracle."""
    for report in reports:
        pulled = [0]
        pulled += [
            version
            for version, _, accepted, _ in report["exchanges"]
            if accepted or not repeats
        ]
        for version, weights in zip(pulled, report["seen"], strict=True):
            np.testing.assert_allclose(
                weights, versions[version], rtol=1e-5, atol=1e-5
            )
        assert report["updates"][0] == len(versions) - 1


@pytest.mark.smoke
def test_sync_is_one_machine_with_the_n_fold_batch(cluster):
    num_ps, optimizer, fits, steps = 2, "adam", 2, 20
    reports = train(
        cluster,
        "Sync",
        {},
        steps,
        num_ps=num_ps,
        optimizer=optimizer,
        fits=fits,
    )
    shares = [
        synchronization_tasks.regression(worker, steps, BATCH)
        for worker in range(WORKERS)
    ]
    x, y = (
        np.concatenate(arrays, axis=1) for arrays in zip(*shares, strict=True)
    )
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")]
    )
    model.compile(
        keras.optimizers.get(
            {"class_name": optimizer, "config": {"learning_rate": RATE}}
        ),
        "mse",
    )
    for step in range(fits * steps):
        model.train_on_batch(x[step % steps], y[step % steps])
        kernel, bias = model.get_weights()
        for report in reports:
            np.testing.assert_allclose(
                report["seen"][step + 1],
                [*kernel[:, 0], bias[0]],
                rtol=1e-5,
                atol=1e-5,
            )
    for report in reports:
        assert report["updates"] == [fits * steps] * num_ps
        assert report["iterations"] == fits * steps
        assert all(accepted for _, _, accepted, _ in report["exchanges"])


@pytest.mark.nightly
def test_backup_workers_take_the_first_gradients(cluster):
    """With `on_drop="next"`: simulation_agreement_test.py."""
    steps = 30
    reports = train(
        cluster,
        "Sync",
        {"backup_workers": 1, "on_drop": "retry"},
        steps,
        paces=[0.0, 0.0, 0.01],
    )
    for worker, report in enumerate(reports):
        check_counts(report, worker)
    events, data = history(reports, repeats=True)
    for x, _ in data:  # Every batch had its turn.
        assert len(x) == steps
    versions, members = replay(events, data)
    check_seen(reports, versions, repeats=True)
    last = min(last_version(report) for report in reports)
    for update, gradients in enumerate(members):
        workers = [worker for worker, _, _ in gradients]
        assert len(set(workers)) == len(workers)
        # All from the parameters that they change.
        assert {pulled for _, _, pulled in gradients} == {update}
        if update < last:
            assert len(gradients) == 2


def check_counts(report, worker):
    """Compares the server's count of a worker's gradients with its own."""
    exchanges = report["exchanges"]
    accepted = sum(accepted for _, _, accepted, _ in exchanges)
    counts = report["counts"][f"/job:worker/task:{worker}"]
    assert counts == {
        "staleness": counts["staleness"],
        "pushed": len(exchanges),
        "accepted": accepted,
        "dropped": len(exchanges) - accepted,
        "nonfinite": 0,
    }


def last_version(report):
    """The version at which a worker began its last step."""
    return report["exchanges"][-2][0]


@pytest.mark.nightly
def test_softsync_averages_any_s_gradients(cluster):
    """Late ones count less; as they are: simulation_agreement_test.py."""
    reports = train(
        cluster,
        "SoftSync",
        {"s": 2},
        40,
        late=True,
        last_is_late=True,
    )
    events, data = history(reports)
    versions, members = replay(events, data, scale=lambda tau: 1 / max(1, tau))
    assert [len(gradients) for gradients in members] == [2] * 60
    check_seen(reports, versions)
    # Two workers' six gradients between two of the last one are three updates.
    assert max(update - pulled for _, _, pulled, update in events) >= 3


@pytest.mark.nightly
def test_bounded_staleness_sees_what_it_must_and_may(cluster):
    steps, bound = 30, 2
    reports = train(
        cluster,
        "BoundedStaleness",
        {"max_staleness": bound},
        steps,
        paces=[0.0, 0.003, 0.01],
    )
    events, data = history(reports)
    versions, members = replay(events, data, mean=False)
    assert [len(gradients) for gradients in members] == [1] * (WORKERS * steps)
    check_seen(reports, versions)
    update_of = {(worker, step): update for worker, step, _, update in events}
    for worker, step, pulled, _ in events:
        for other in range(WORKERS):
            for theirs in range(steps):
                seen = update_of[other, theirs] < pulled
                if theirs < step - bound or (other == worker and theirs < step):
                    assert seen
                elif theirs >= step + bound:
                    assert not seen
