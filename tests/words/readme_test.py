"""What the README shows works as shown."""

import pathlib
import re

from absl import flags

from tfdist.cli import launch_flags
from tfdist.cluster import ClusterConfig
from tfdist.cluster import Group

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CLUSTER = (ROOT / "docs" / "cluster.md").read_text("utf-8")
MONITORING = (ROOT / "docs" / "monitoring.md").read_text("utf-8")


def blocks(language, text):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_cluster_description_is_a_good_one():
    text, key = blocks("json", CLUSTER)
    config = ClusterConfig.from_tf_config({"TF_CONFIG": text})
    assert config.task_name == "/job:worker/task:1"
    assert (config.num_ps, config.num_workers) == (2, 3)
    assert Group.from_tf_config({"TF_CONFIG": text}) == Group(0, 1)
    # The key of a group goes beside the others.
    with_group = f"{{{key}, {text.strip()[1:]}"
    group = Group.from_tf_config({"TF_CONFIG": with_group})
    assert group.servers[group.index] == config.ps_addresses


def test_every_flag_of_the_launcher_is_described():
    known = launch_flags.define_flags()
    described = set(re.findall(r"^\| `--([a-z_]+)", CLUSTER, re.MULTILINE))
    assert described == {
        name for name in known if len(name) > 1 and name != "help"
    }
    # With the value that it has.
    for name, value in re.findall(r"^\| `--(\w+)=(\w+)`", CLUSTER, re.M):
        flag = known[name]
        if isinstance(flag, flags.Flag) and flag.default not in (None, []):
            assert str(flag.default).removesuffix(".0") == value


def test_lines_of_json_have_the_fields_that_are_described():
    from tfdist.runtime.exchange.journal import ExchangeRecord

    fields = {"step", *ExchangeRecord.__dataclass_fields__}
    table = MONITORING.split("one object per exchange")[1].split("\n\n")[1]
    first_column = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)`", " ".join(first_column))) == fields
