"""How many tensors one training step sends to each server and back."""

import pytest


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("table", "there", "back"),
    [
        # Gradients and counters in one; fresh values in one, and that the
        # condition under which the server applies has been run.
        (False, 1, 2),
        # Ids, gradients of rows, and the rest; rows, and the same as above.
        (True, 3, 3),
    ],
)
def test_a_step_sends_few_messages(cluster, tmp_path, table, there, back):
    made = cluster(num_ps=2, num_workers=1)
    made.start_servers()
    worker = made.start(
        "worker",
        0,
        "messages_tasks:count",
        table=table,
        directory=str(tmp_path / "account"),
    )
    made.finish()
    sent = worker.report()["sent"]
    assert sent == {
        pair: number
        for server in ("ps/0/0", "ps/0/1")
        for pair, number in (
            (f"worker/0/0 {server}", there),
            (f"{server} worker/0/0", back),
        )
    }
