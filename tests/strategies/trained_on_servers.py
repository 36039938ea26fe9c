"""Training of many cases in one worker on two real servers."""

from tests.multi_process import scripts


def train_on_servers(cases, directory, names):
    """Runs the script `cases` on a cluster until it is done.

    Args:
      cases: Module whose script trains the cases that it is given, says so,
        and writes `<number>.npz` of each to the directory that it is given.
      directory: Where to.
      names: Of cases.
    """
    outputs = scripts.run(
        directory, cases.__file__, [directory, *names], {"ps": 2, "worker": 1}
    )
    told = outputs["worker-0"].splitlines()
    for number, name in enumerate(names):
        assert f"trained {number} {name}" in told
    assert "servers 2" in told
