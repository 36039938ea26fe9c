"""What a monitor has written is read, refused, or replayed."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from tfdist import simulation
from tfdist.runtime.exchange.journal import ExchangeRecord

WORKERS, BATCH, EPOCHS, SEED = 3, 7, 3, 4
_stream = np.random.default_rng(0)
# 16 batches, the last one smaller: shares of 6, 5 and 5.
X = _stream.normal(size=[110, 4]).astype("float32")
Y = np.sin(X.sum(axis=1, keepdims=True))


def model_fn():
    model = keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(3, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def simulate(method):
    return simulation.simulate(
        model_fn,
        (X, Y),
        method,
        num_workers=WORKERS,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        seed=SEED,
        compute=simulation.Gamma(0.1, shape=5),
        network=simulation.Network(latency_seconds=0.01),
        chunk=2,
    )


def replay(method, trace, **more):
    more = {"batch_size": BATCH, "seed": SEED, "chunk": 2, **more}
    return simulation.replay(model_fn, (X, Y), method, trace, **more)


def rows_of(history, decided=True):
    """What monitors would have written, by worker lists of dicts."""
    jobs = history.jobs
    arrivals = np.argsort(np.argsort(jobs["arrived"])).tolist()
    workers = [[] for _ in range(history.num_workers)]
    for job, arrival in zip(jobs, arrivals, strict=True):
        steps = workers[job["worker"]]
        steps.append(
            {
                "step": len(steps) + 1,
                "time": float(job["decided"]),
                "version": 0,
                "pulled": int(job["pulled"]),
                "arrival": arrival if decided else -1,
                "staleness": int(job["staleness"]),
                "accepted": bool(job["accepted"]),
                "compute_seconds": float(job["computed"] - job["began"]),
                "exchange_seconds": float(job["arrived"] - job["computed"]),
                "wait_seconds": float(job["decided"] - job["arrived"]),
                "bytes_sent": 1,
                "bytes_received": 1,
                "local_steps": 1,
                "nonfinite": False,
                "pulled_by_server": [int(job["pulled"])],
            }
        )
    return workers


def write(directory, workers):
    """Writes rows as a monitor does; returns the directory."""
    for worker, rows in enumerate(workers):
        path = directory / f"steps-worker-{worker}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture(scope="module")
def softsync():
    """A simulated run, to be written and spoilt."""
    return simulate("softsync:s=2")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "method",
    [
        "softsync:s=2:correction=inverse_staleness",
        "backup_workers:on_drop=retry",
        "dc_asgd:lambda_0=2.0",
        "bounded_staleness:max_staleness=2:correction=gap_aware",
        "sync",
        "backup_workers",
    ],
)
def test_a_simulated_training_replays_to_the_bit(tmp_path, method):
    before = simulate(method)
    trace = simulation.read_trace(write(tmp_path, rows_of(before)))
    after = replay(method, trace)
    for a, b in zip(
        before.model.get_weights(), after.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert after.updates == before.updates
    assert after.seconds == pytest.approx(before.seconds)
    assert after.utilization == pytest.approx(before.utilization)
    order = np.lexsort([before.jobs["step"], before.jobs["worker"]])
    again = np.lexsort([after.jobs["step"], after.jobs["worker"]])
    for name in ("worker", "batch", "pulled", "staleness", "accepted"):
        np.testing.assert_array_equal(
            before.jobs[name][order], after.jobs[name][again]
        )


@pytest.mark.nightly
def test_one_server_s_updates_tell_the_order_where_nobody_decides(tmp_path):
    before = simulate("async")
    trace = simulation.read_trace(write(tmp_path, rows_of(before, False)))
    after = replay("async", trace, validation_data=(X, Y), chunk=1)
    for a, b in zip(
        before.model.get_weights(), after.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert len(after.evaluations) == EPOCHS + 1
    assert after.final("loss") < after.evaluations[0]["loss"]


# What is read.


@pytest.mark.nightly
def test_a_trace_is_what_was_written(tmp_path, softsync):
    rows = rows_of(softsync)
    trace = simulation.read_trace(str(write(tmp_path, rows)))
    assert trace.num_workers == WORKERS and trace.num_servers == 1
    assert trace.files == tuple(f"steps-worker-{w}.jsonl" for w in range(3))
    for steps, written in zip(trace.workers, rows, strict=True):
        for number, (step, row) in enumerate(zip(steps, written, strict=True)):
            assert isinstance(step, ExchangeRecord)
            assert isinstance(step.pulled_by_server, tuple)
            read = json.loads(json.dumps(dataclasses.asdict(step)))
            assert {"step": number + 1, **read} == row


def test_compute_leaves_out_the_first_steps(tmp_path, softsync):
    rows = rows_of(softsync)
    trace = simulation.read_trace(write(tmp_path, rows))
    recorded = trace.compute()
    assert isinstance(recorded, simulation.Recorded)
    for seconds, written in zip(recorded.seconds, rows, strict=True):
        expected = [row["compute_seconds"] for row in written[1:]]
        np.testing.assert_array_equal(seconds, expected)
    simulation.timing("async", num_workers=5, steps=20, compute=recorded)
    # Three local steps to an exchange: each took a third of the time.
    rows[0][1]["local_steps"] = 3
    thirds = simulation.read_trace(write(tmp_path, rows)).compute().seconds[0]
    first = rows[0][1]["compute_seconds"]
    np.testing.assert_allclose(thirds[:3], [first / 3] * 3)
    np.testing.assert_array_equal(thirds[3:], recorded.seconds[0][1:])
    write(tmp_path, [*rows[:2], rows[2][:1]])
    with pytest.raises(ValueError, match="worker-2.jsonl: a second step is"):
        simulation.read_trace(tmp_path).compute()


@pytest.mark.nightly
def test_the_chief_is_worker_0(tmp_path, softsync):
    write(tmp_path, rows_of(softsync))
    (tmp_path / "steps-worker-0.jsonl").rename(tmp_path / "steps-chief-0.jsonl")
    for worker in (1, 2):
        path = tmp_path / f"steps-worker-{worker}.jsonl"
        path.rename(tmp_path / f"steps-worker-{worker - 1}.jsonl")
    trace = simulation.read_trace(tmp_path)
    assert trace.files[0] == "steps-chief-0.jsonl"
    assert replay("softsync:s=2", trace).updates == softsync.updates


# What is refused.


def spoil(number, worker=1, **values):
    """Changes fields of one step; None takes one away."""

    def change(rows):
        row = rows[worker][number]
        for name, value in values.items():
            del row[name]
            if value is not None:
                row[name] = value

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (
            spoil(2, step=7),
            r"worker-1.jsonl, line 3: Field `step` must be 3.*: 7",
        ),
        (spoil(0, pulled=None), r"line 1: .* Missing: pulled; an earlier tfd"),
        (
            spoil(4, accepted=1),
            r"line 5: Field `accepted` must be of type bool.*: 1",
        ),
        (
            spoil(4, staleness=-1),
            r"line 5: Field `staleness` must be at least 0",
        ),
        (
            spoil(4, pulled_by_server=[1, 2]),
            r"worker-1.jsonl, worker 1, step 5: pulled_by_server must be of 1",
        ),
        (lambda rows: rows[1].clear(), r"worker-1.jsonl: the file has no st"),
    ],
)
def test_other_lines_are_refused(tmp_path, softsync, change, message):
    rows = rows_of(softsync)
    change(rows)
    write(tmp_path, rows)
    with pytest.raises(ValueError, match=message):
        simulation.read_trace(tmp_path)


def test_files_that_are_missing_or_strange_are_refused(tmp_path, softsync):
    with pytest.raises(ValueError, match="`log_dir` must be the log_dir of a"):
        simulation.read_trace(tmp_path)
    write(tmp_path, rows_of(softsync))
    path = tmp_path / "steps-worker-1.jsonl"
    with path.open("a") as file:
        file.write('{"step": 18, "ti')
    with pytest.raises(ValueError, match=r"line 16: a line must be .*ended\?"):
        simulation.read_trace(tmp_path)
    path.rename(tmp_path / "steps-ps-1.jsonl")
    with pytest.raises(ValueError, match="steps-ps-1.jsonl: files of steps mu"):
        simulation.read_trace(tmp_path)
    (tmp_path / "steps-ps-1.jsonl").unlink()
    with pytest.raises(ValueError, match="steps-worker-1.jsonl is missing"):
        simulation.read_trace(tmp_path)


def last_worker_is_not_there(rows):
    del rows[2]


def an_earlier_fit(rows):
    for steps in rows:
        for row in steps:
            row["arrival"] += 9


def a_step_twice(rows):
    rows[1][3]["arrival"] = rows[1][2]["arrival"]


def steps_exchanged(rows):
    first, second = rows[1][3:5]
    for name in ("arrival", "pulled", "staleness", "pulled_by_server"):
        first[name], second[name] = second[name], first[name]


@pytest.mark.parametrize(
    "change, message",
    [
        (last_worker_is_not_there, "no step as arrival .* is not complete"),
        (an_earlier_fit, "no step as arrival 0: .* of one call of fit"),
        (a_step_twice, "worker 1, step 4: it came as .* so did .* step 3"),
        (steps_exchanged, "worker 1, step 5: .* before the step before it"),
        (spoil(4, pulled_by_server=[99]), "step 5: pulled .*Received: 99"),
        (spoil(4, local_steps=3), "step 5: local_steps must be 1.*: 3"),
        (spoil(4, staleness=9), r"step 5: .* In the trace: .*staleness=9"),
    ],
)
def test_contradictions_are_refused(tmp_path, softsync, change, message):
    rows = rows_of(softsync)
    change(rows)
    trace = simulation.read_trace(write(tmp_path, rows))
    with pytest.raises(ValueError, match=message):
        replay("softsync:s=2", trace)


@pytest.mark.parametrize(
    "method, more, message",
    [
        ("async", {}, r"with Async\(\) it has accepted=True and stalen"),
        ("softsync:s=2", {"batch_size": 8}, "worker 0 must have made .* steps"),
        ("parameter_averaging", {}, "local steps are not replayed"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path, softsync, method, more, message
):
    trace = simulation.read_trace(write(tmp_path, rows_of(softsync)))
    with pytest.raises(ValueError, match=message):
        replay(method, trace, **more)


@pytest.mark.nightly
def test_what_does_not_tell_the_order_is_refused(tmp_path):
    rows = rows_of(simulate("async"), decided=False)
    trace = simulation.read_trace(write(tmp_path, rows))
    with pytest.raises(ValueError, match="was trained with AsyncStrategy"):
        replay("softsync:s=2", trace)
    for row in (row for steps in rows for row in steps):
        row["pulled_by_server"] *= 2
    trace = simulation.read_trace(write(tmp_path, rows))
    with pytest.raises(ValueError, match="must be of one server.*: 2 servers"):
        replay("async", trace)
    with pytest.raises(TypeError, match="`trace` must be what .*read_trace"):
        replay("async", tmp_path)
