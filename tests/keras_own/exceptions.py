"""What of Keras's own tests does not pass under a strategy, and why."""

import fnmatch

_NAN = "an update with NaN is dropped, so what follows is not NaN"
_OF_ALL = (
    "constraints, and averages of weights, are refused where an update is of "
    "several workers: each would apply them for all"
)
_TWO = ["sync", "local_steps"]
_PERIOD = (
    "in the midst of a period what is read are the servers' values, not this "
    "worker's own"
)
_REPLICA_CONTEXT = (
    "under any strategy Keras refuses LossScaleOptimizer.apply outside of "
    "strategy.run"
)
# Patterns of the ends of tests' ids, reasons, and strategies: None for all.
EXCEPTIONS = [
    ("CSVLoggerTest::test_stop_training_csv", _NAN, None),
    ("TestTrainer::test_constraints_are_applied", _OF_ALL, ["sync"]),
    ("test_on_batch_methods_graph_fn", _PERIOD, ["local_steps"]),
    ("test_on_batch_methods_jit", _PERIOD, ["local_steps"]),
    (
        "CallbackTest::test_model_state_is_current_on_epoch_end",
        _PERIOD,
        ["local_steps"],
    ),
    (
        "BackupAndRestoreCallbackTest::test_backup_corrupted",
        _PERIOD,
        ["local_steps"],
    ),
    ("Test::test_ema", _OF_ALL, _TWO),
    ("Test::test_ema_with_model_fit", _OF_ALL, _TWO),
    ("SwapEMAWeightsTest::test_swap_ema_weights", _OF_ALL, _TWO),
    ("SwapEMAWeightsTest::test_swap_ema_weights_on_epoch", _OF_ALL, _TWO),
    (
        "test_swap_ema_weights_with_loss_scale_optimizer",
        _OF_ALL,
        _TWO,
    ),
    ("test_multi_optimizer_with_model_fit", _OF_ALL, _TWO),
    ("test_swap_ema_weights_with_multi_optimizer", _OF_ALL, _TWO),
    ("LossScaleOptimizerTest::test_apply_with_no_vars", _REPLICA_CONTEXT, None),
    (
        "LossScaleOptimizerTest::test_downscaling_stateful",
        _REPLICA_CONTEXT,
        None,
    ),
    (
        "LossScaleOptimizerTest::test_finite_step*_stateful",
        _REPLICA_CONTEXT,
        None,
    ),
    (
        "LossScaleOptimizerTest::test_infinite_step_stateful",
        _REPLICA_CONTEXT,
        None,
    ),
    (
        "LossScaleOptimizerTest::test_iterations_update_stateful",
        _REPLICA_CONTEXT,
        None,
    ),
    ("LossScaleOptimizerTest::test_upscaling_stateful", _REPLICA_CONTEXT, None),
    (
        "test_multi_optimizer_wrapped_in_loss_scale_optimizer",
        _REPLICA_CONTEXT,
        None,
    ),
    (
        "OptimizerSparseTest::test_*_loss_scale_optimizer_sgd",
        _REPLICA_CONTEXT,
        None,
    ),
]
# Patterns of those that are not run, and reasons.
NOT_RUN = [
    (
        "SwapEMAWeightsTest::test_swap_ema_weights_with_tf_distribute",
        "makes a strategy of TensorFlow, in a new runtime",
    ),
]


def reason(test, strategy):
    """Why a test is not to pass, None if it is.

    Args:
        test: its id in pytest.
        strategy: name of one.
    """
    for pattern, why, strategies in EXCEPTIONS:
        if fnmatch.fnmatchcase(test, "*" + pattern) and (
            strategies is None or strategy in strategies
        ):
            return why
    return None


def why_not_run(test):
    """Why a test is not to be run, None if it is.

    Args:
        test: its id in pytest.
    """
    for pattern, why in NOT_RUN:
        if fnmatch.fnmatchcase(test, "*" + pattern):
            return why
    return None
