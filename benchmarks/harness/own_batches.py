"""Batches that each worker has for itself."""


def whole(dataset):
    """A `tf.data.Dataset` of which each worker trains on all batches."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return dataset.with_options(options)


def mirrored_step(strategy, model, dataset):
    """A step under `tf.distribute.MultiWorkerMirroredStrategy`, to be called.

    `model.fit` of Keras 3 fails there: the batch that it builds the model from
    is a tuple, which `strategy.reduce` does not take, and its train function
    takes the mean of scalars over axis 0. So this is the model's own
    `train_step`, which all-reduces the gradients.

    Args:
        strategy: the strategy.
        model: a compiled model, made in its scope.
        dataset: the worker's own batches, endless.
    """
    import tensorflow as tf

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    iterator = iter(
        strategy.distribute_datasets_from_function(lambda context: dataset)
    )

    @tf.function
    def step():
        strategy.run(model.train_step, args=(next(iterator),))

    return step
