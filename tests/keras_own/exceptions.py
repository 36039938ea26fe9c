"""What of Keras's own tests does not pass under a strategy, and why."""

import fnmatch

_REPLICA_CONTEXT = (
    "under any strategy Keras refuses LossScaleOptimizer.apply outside of "
    "strategy.run"
)
# Patterns of the ends of tests' ids, and reasons.
EXCEPTIONS = [
    ("LossScaleOptimizerTest::test_apply_with_no_vars", _REPLICA_CONTEXT),
    ("LossScaleOptimizerTest::test_downscaling_stateful", _REPLICA_CONTEXT),
    ("LossScaleOptimizerTest::test_finite_step*_stateful", _REPLICA_CONTEXT),
    ("LossScaleOptimizerTest::test_infinite_step_stateful", _REPLICA_CONTEXT),
    (
        "LossScaleOptimizerTest::test_iterations_update_stateful",
        _REPLICA_CONTEXT,
    ),
    ("LossScaleOptimizerTest::test_upscaling_stateful", _REPLICA_CONTEXT),
    (
        "test_multi_optimizer_wrapped_in_loss_scale_optimizer",
        _REPLICA_CONTEXT,
    ),
    ("OptimizerSparseTest::test_*_loss_scale_optimizer_sgd", _REPLICA_CONTEXT),
]


def reason(test):
    """Why a test is not to pass, None if it is.

    Args:
        test: its id in pytest.
    """
    for pattern, why in EXCEPTIONS:
        if fnmatch.fnmatchcase(test, "*" + pattern):
            return why
    return None
