"""What flags of strategies with local steps make of them, in one process."""

import json
import pathlib

import pytest

from tests.multi_process import scripts

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
# Flags -> what the strategy's method says of itself with four workers.
GOOD_FLAGS = {
    "parameter_averaging": ["period=10,", "warmup_steps=0,"],
    "parameter_averaging:period=7:average_optimizer_state=true": [
        "period=7,",
        "average_optimizer_state=True,",
    ],
    "parameter_averaging:warmup_steps=30 --worker_timeout=20": [
        "warmup_steps=30,"
    ],
    # 1 - 1 / 4.
    "bmuf": ["period=50,", "momentum=0.75,", "reset_momentum=True,"],
    "bmuf:block_momentum=0.5:warmup_steps=9": [
        "momentum=0.5,",
        "warmup_steps=9,",
    ],
    "diloco": [
        "period=500,",
        "SGD(",
        "learning_rate=0.7,",
        "momentum=0.9,",
        "nesterov=True",
    ],
    "diloco:period=20:outer_learning_rate=0.5:outer_momentum=0": [
        "period=20,",
        "learning_rate=0.5,",
        "momentum=0,",
    ],
    "async_local_sgd": ["period=50,", "DelayedNesterov(", "delay=4,"],
    "async_local_sgd:outer_learning_rate=0.5:outer_momentum=0.8": [
        "learning_rate=0.5,",
        "momentum=0.8,",
    ],
    # 0.9 / 4, and of the whole.
    "easgd": ["period=10,", "alpha=0.225,", "moving_rate=None,"],
    "easgd:moving_rate=0.8:synchronization=sync": [
        "alpha=0.2,",
        "moving_rate=0.8,",
    ],
    "downpour": ["n_fetch=1,", "n_push=1,", "Adagrad(learning_rate=0.01,"],
    "downpour:n_fetch=3:n_push=2:outer_learning_rate=0.5": [
        "n_fetch=3,",
        "n_push=2,",
        "learning_rate=0.5,",
        "initial_accumulator_value=0,",
    ],
}
DESCRIBE_EACH = """
import json, sys
sys.path.insert(0, sys.argv[1])
import strategy_flags
described = {}
for text in json.loads(sys.argv[2]):
    strategy_flags.FLAGS.unparse_flags()
    strategy_flags.FLAGS(["script", *f"--strategy={text}".split()])
    strategy = strategy_flags.make_strategy()
    described[text] = repr(
        strategy.local_steps.resolve(strategy.synchronization, None, 4)
    )
print(json.dumps(described))
"""


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    directory = tmp_path_factory.mktemp("described")
    program = directory / "describe_each.py"
    program.write_text(DESCRIBE_EACH)
    task = scripts.start(
        directory, program, [EXAMPLES, json.dumps(list(GOOD_FLAGS))]
    )
    assert task.wait(240) == 0, task.output()
    return json.loads(task.output().splitlines()[-1])


@pytest.mark.parametrize("flags", GOOD_FLAGS)
def test_flags_become_settings_of_the_method(described, flags):
    # Each setting ends with a comma here.
    settings = described[flags].replace(")", ",")
    for setting in GOOD_FLAGS[flags]:
        assert setting in settings
