"""Training of many cases in one worker on two real servers."""

from tests.multi_process import scripts


def train_on_servers(cases, directory):
    """Runs the script `cases` on a cluster until it is done.

    Args:
      cases: Module with `ON_SERVERS`, whose script trains each, says so, and
        writes `<number>.npz` to the directory that it is given.
      directory: Where to.
    """
    outputs = scripts.run(
        directory, cases.__file__, [directory], {"ps": 2, "worker": 1}
    )
    told = outputs["worker-0"].splitlines()
    for number, name in enumerate(cases.ON_SERVERS):
        assert f"trained {number} {name}" in told
    assert "servers 2" in told
