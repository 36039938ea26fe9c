"""What of Keras's own tests does not pass under a strategy, and why."""

import fnmatch

_NAN = "an update with NaN is dropped, so what follows is not NaN"
_OF_ALL = (
    "constraints, and averages of weights, are refused where an update is of "
    "several workers: each would apply them for all"
)
_COUNTS = (
    "the same of the count of steps that MultiOptimizer keeps beside those of "
    "its optimizers"
)
_PERIOD = (
    "in the middle of a period what is read are the servers' values, not this "
    "worker's own"
)
_REPLICA_CONTEXT = (
    "under any strategy Keras refuses LossScaleOptimizer.apply outside of "
    "strategy.run"
)
_ALL = ("async", "sync", "local_steps")
# Reasons, strategies, and patterns of the ends of tests' ids.
EXCEPTIONS = [
    (_NAN, _ALL, ["CSVLoggerTest::test_stop_training_csv"]),
    (
        _OF_ALL,
        ("sync",),
        ["TestTrainer::test_constraints_are_applied"],
    ),
    (
        _COUNTS,
        ("sync",),
        ["test_multi_optimizer_with_model_fit"],
    ),
    (
        _OF_ALL,
        ("sync", "local_steps"),
        [
            "AdamTest::test_ema",
            "LionTest::test_ema",
            "Test::test_ema_with_model_fit",
            "SwapEMAWeightsTest::test_swap_ema_weights",
            "SwapEMAWeightsTest::test_swap_ema_weights_on_epoch",
            "test_swap_ema_weights_with_loss_scale_optimizer",
            "test_swap_ema_weights_with_multi_optimizer",
        ],
    ),
    (
        _PERIOD,
        ("local_steps",),
        [
            "test_on_batch_methods_graph_fn",
            "test_on_batch_methods_jit",
            "CallbackTest::test_model_state_is_current_on_epoch_end",
            "BackupAndRestoreCallbackTest::test_backup_corrupted",
        ],
    ),
    (
        _REPLICA_CONTEXT,
        _ALL,
        [
            "LossScaleOptimizerTest::test_apply_with_no_vars",
            "LossScaleOptimizerTest::test_downscaling_stateful",
            "LossScaleOptimizerTest::test_finite_step*_stateful",
            "LossScaleOptimizerTest::test_infinite_step_stateful",
            "LossScaleOptimizerTest::test_iterations_update_stateful",
            "LossScaleOptimizerTest::test_upscaling_stateful",
            "test_multi_optimizer_wrapped_in_loss_scale_optimizer",
            "OptimizerSparseTest::test_*_loss_scale_optimizer_sgd",
        ],
    ),
]
# The same of those that are not run.
NOT_RUN = [
    (
        "makes a strategy of TensorFlow, in a new runtime",
        _ALL,
        ["SwapEMAWeightsTest::test_swap_ema_weights_with_tf_distribute"],
    ),
]


def reason(exceptions, test, strategy):
    """Why a test is one of the exceptions, None if it is not.

    Args:
        exceptions: `EXCEPTIONS` or `NOT_RUN`.
        test: its id in pytest.
        strategy: name of one.
    """
    for why, strategies, patterns in exceptions:
        if strategy in strategies and any(
            fnmatch.fnmatchcase(test, "*" + pattern) for pattern in patterns
        ):
            return why
    return None
