"""Training of many cases in one worker on two real servers."""

from tests.cli.launched import Launched


def train_on_servers(cases, directory):
    """Runs the script `cases` on a cluster until it is done.

    Args:
      cases: Module with `ON_SERVERS`, whose script trains each, says so, and
        writes `<number>.npz` to the directory that it is given.
      directory: Where to.
    """
    cluster = ["--num_ps=2", "--num_workers=1"]
    with Launched(*cluster, cases.__file__, "--", directory) as run:
        for number, name in enumerate(cases.ON_SERVERS):
            run.expect(rf"trained {number} {name}$")
        run.expect(r"servers 2$")
        status, text = run.finish()
    assert status == 0, text
