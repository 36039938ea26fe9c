"""What the tasks of clusters do with a model before `fit`."""

import keras

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist
from tfdist.callbacks import ClusterCheckpoint

_SHAPES = ((3,),)


def _fit(model, epochs=1, callbacks=()):
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=4,
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    )


def _evaluate(model):
    return model.evaluate(tasks.own_data(1.0), steps=1, verbose=0)


def set_after_evaluation(method, all_evaluate):
    """The chief sets weights before `fit`, whose steps change nothing.

    Args:
        method: name of a class of strategies.
        all_evaluate: whether all workers evaluate before, or the chief alone.
    """
    strategy = getattr(tfdist, method)(fault_tolerance=tasks.PATIENT)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.0)
    model = tasks.build_sum_of_weights(strategy, optimizer, _SHAPES)
    if strategy.cluster.is_chief or all_evaluate:
        _evaluate(model)
    strategy.barrier()
    if strategy.cluster.is_chief:
        for weight in model.trainable_weights:
            weight.assign(keras.ops.ones_like(weight))
    losses = []
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    _fit(model, 3, [seen])
    strategy.barrier()
    handshake.report(losses=losses, after=_evaluate(model))


def look_alone(callback, warmup_steps, compiles_anew):
    """A worker that is not the chief predicts before `fit`.

    Args:
        callback: name of a callback of Keras with a directory, or None.
        warmup_steps: that the chief makes before.
        compiles_anew: whether this is before a second `fit`, with another
            optimizer, in which workers wait for each other.
    """
    if compiles_anew:
        strategy = tfdist.BackupWorkersStrategy(
            backup_workers=0, fault_tolerance=tasks.PATIENT
        )
    else:
        strategy = tfdist.AsyncStrategy(
            warmup_worker_steps=warmup_steps, fault_tolerance=tasks.PATIENT
        )
    model = tasks.build_sum_of_weights(strategy, None, _SHAPES)
    if compiles_anew:
        _fit(model)
        with strategy.scope():
            model.compile(keras.optimizers.Adam(), tasks.first_output)
    if not (strategy.cluster.is_chief or warmup_steps):
        model.predict(tasks.own_data(1.0), steps=1, verbose=0)
    callbacks = []
    if callback:
        callbacks = [getattr(keras.callbacks, callback)("saved")]
    _fit(model, 2, callbacks)
    strategy.barrier()
    handshake.report(applied=strategy.updates_applied())


def count_steps(epochs):
    """Resumes local steps after an evaluation; reports the first counts.

    Args:
        epochs: up to which to train.
    """
    strategy = tfdist.ParameterAveragingStrategy(
        period=2, fault_tolerance=tasks.PATIENT
    )
    model = tasks.build_sum_of_weights(strategy, None, _SHAPES)
    _evaluate(model)
    # The chief puts nothing back before all have its first values.
    strategy.barrier()
    steps = []
    seen = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: steps.append(
            int(model.optimizer.iterations)
        )
    )
    _fit(model, epochs, [ClusterCheckpoint("saved"), seen])
    handshake.report(steps=steps)
