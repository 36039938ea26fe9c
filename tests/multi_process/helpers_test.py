"""A model on several machines is the same model, and outlives none of them."""

import json
import os
import re
import signal

import numpy as np
import pytest

from tests.cli.launched import Launched

pytestmark = pytest.mark.nightly

ADAM = {"class_name": "Adam", "config": {"learning_rate": 0.01}}
# name -> optimizer, policy of the layers, tolerance
WAYS = {
    "adam": (ADAM, "float32", 1e-6),
    "accumulation": (
        {
            "class_name": "SGD",
            "config": {
                "learning_rate": 0.1,
                "momentum": 0.9,
                "gradient_accumulation_steps": 2,
            },
        },
        "float32",
        1e-6,
    ),
    "mixed": (ADAM, "mixed_bfloat16", 1e-2),
}


def test_a_model_on_helpers_is_the_model_on_one_machine(cluster):
    made = cluster(num_ps=1, num_workers=1, num_helpers=2)
    made.start_servers()
    made.start_helpers()
    (worker,) = made.start_workers(
        "helper_tasks:train",
        optimizers={name: way[:2] for name, way in WAYS.items()},
    )
    made.finish(240.0)
    report = worker.report()
    for name, (*_, tolerance) in WAYS.items():
        found = report[name]
        for placed, plain in (found["numbers"], found["weights"]):
            np.testing.assert_allclose(
                placed, plain, rtol=tolerance, atol=tolerance, err_msg=name
            )
        steps = 2 * 6
        assert (
            found["iterations"]
            == [steps // (2 if name == "accumulation" else 1)] * 2
        ), name
        for path, device in found["devices"].items():
            layer = path.split("/")[-2]
            home = {
                "middle": "helper/replica:0/task:0",
                "norm": "helper/replica:0/task:1",
            }.get(layer, "worker/replica:0/task:0")
            assert device == f"/job:{home}/device:CPU:0", path


def test_no_update_is_lost_on_its_way_to_two_helpers(cluster):
    steps, values = 100, [1.0, 0.25]
    made = cluster(num_ps=2, num_workers=2, num_helpers=2)
    made.start_servers()
    made.start_helpers()
    workers = made.start_workers(
        "tasks:push_constants",
        steps=steps,
        values=values,
        wait=True,
        where={"*": "helper:0/CPU:0"},
    )
    for worker in workers:
        worker.expect("has made one step")
    for worker in workers:
        made.tell(f"go on {worker.label}")
    made.finish()
    for number, worker in enumerate(workers):
        report = worker.report()
        assert report["updates"] == [2 * steps] * 2
        assert report["iterations"] == 2 * steps
        assert set(report["placement"]) == {0, 1}
        for part in report["parts"]:
            assert set(part) == {-steps * sum(values)}
        for calls in report["calls"]:
            assert set(calls) == {2 * steps}
        # Each on its own.
        home = f"/job:helper/replica:0/task:{number}/device:CPU:0"
        assert set(report["devices"]) == {home}


def test_a_helper_that_never_comes_is_named(cluster):
    made = cluster(num_ps=1, num_workers=1, num_helpers=2)
    made.start_servers()
    made.start("helper", 0, "tasks:serve")
    worker = made.start("worker", 0, "helper_tasks:wait_for_helpers", seconds=5)
    error = worker.wait_for_report()["error"]
    address = made.address("helper", 1)
    assert f"waiting for helper /job:helper/task:1 at {address}." in error
    assert "task:0" not in error


SCRIPT = """
import json
import json
import os
import keras
from tests.multi_process import tasks
import tfdist

strategy = tfdist.AsyncStrategy(
    fault_tolerance=tfdist.FaultTolerance(
        start_timeout=120.0, server_timeout=120.0
    )
)
# Small weights travel by way of the worker, large ones do not.
model = tasks.build_sum_of_weights(strategy, shapes=[(7,), (3, 5), (130, 130)])
with strategy.scope():
    tfdist.placement.place(model, {{"*": "helper:0/CPU:0"}})

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch % 20 == 19:
            now = int(self.model.optimizer.iterations.numpy())
            print("at update", now, flush=True)
        self.model.stop_training = os.path.exists("{directory}/stop")

model.fit(
    tasks.own_data(1.0), steps_per_epoch=10**6, verbose=0, callbacks=[Tell()]
)
strategy.barrier()
found = {{
    "updates": strategy.updates_applied(),
    "counts": strategy.gradient_counts(),
    "parts": [
        [part.value.shard, sorted(set(part.numpy().ravel().tolist()))]
        for part in model.layers[-1].parts
    ],
}}
print("found", json.dumps(found), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_whose_helper_is_gone_begins_again(tmp_path, number):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(directory=tmp_path))
    flags = ["--num_ps=2", "--num_workers=2", "--helpers_per_worker=1"]
    with Launched(*flags, "--grace_seconds=120", script) as run:
        pids = {
            label: int(run.expect(rf"{label}: pid (\d+)")[1])
            for label in ("ps 1", "helper 1")
        }
        for worker in (0, 1):
            run.expect(rf"\[worker {worker}\] at update")
        os.kill(pids["helper 1"], number)
        run.expect(
            r"worker 1 exited with status 1: \S*HelperLostError: Helper "
            r"/job:helper/task:1 at \S+ (is gone|was started again)"
        )
        # The other one did not need it.
        before = int(run.expect(r"\[worker 0\] at update (\d+)")[1])
        if number == signal.SIGSTOP:
            os.kill(pids["helper 1"], signal.SIGCONT)
        # It imports TensorFlow anew, and then traces its step.
        run.expect(r"\[worker 0\] .*worker/task:1 is back")
        after = int(run.expect(r"\[worker 1\] at update (\d+)")[1])
        assert after > before
        # A server that dies is given back what workers have on helpers.
        os.kill(pids["ps 1"], signal.SIGKILL)
        for _ in range(2):
            run.expect(r"goes on after [\d.]+ s without /job:ps/task:1")
        for worker in (0, 1):
            run.expect(rf"\[worker {worker}\] at update")
        (tmp_path / "stop").touch()
        status, text = run.finish()
    assert status == 0, text
    reports = re.findall(r"found (.*)", text)
    assert len(reports) == 2
    for report in map(json.loads, reports):
        for server, values in report["parts"]:
            assert values == [-1.0 * report["updates"][server]]
        for counts in report["counts"].values():
            assert counts["pushed"] == counts["accepted"] >= 20
    for label in ("helper 0", "helper 1"):
        assert f"{label} is done" in text
