"""TensorFlow's own parameter servers, driven by its own coordinator.

It needs a server, workers and a coordinator (`chief`), a process each.
Keras 3's optimizers do not run under `tf.distribute.ParameterServerStrategy`;
TensorFlow's own SGD does, and is one fused kernel per variable.
"""

import time


def serve(cluster, job, number=0):
    """Runs a `ps` or `worker` task.

    Args:
        cluster: job -> list of addresses.
        job: the job of this process.
        number: its number in the job.

    Returns:
        A callable that only keeps the server alive.
    """
    import tensorflow as tf

    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=number
    )
    return lambda: server.target


def coordinator(models, learning_rate, gradient):
    """Builds the coordinator, with one training step per model.

    Args:
        models: name -> (number of variables, elements of each).
        learning_rate: of SGD.
        gradient: every element of every gradient.

    Returns:
        A callable `(model, steps)` that has the worker take the steps and
        gives seconds per step and the first element of the first variable.
    """
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    driver = tf.distribute.coordinator.ClusterCoordinator(strategy)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(learning_rate)

    def build(number, size):
        with strategy.scope():
            parameters = [tf.Variable(tf.zeros([size])) for _ in range(number)]

        def constant_gradients():
            each = tuple(tf.fill([size], gradient) for _ in range(number))
            return tf.data.Dataset.from_tensors(each).repeat()

        def exchange(gradients):
            # TensorFlow sends a parameter to a worker that uses it.
            used = [tf.identity(p)[0] for p in parameters]
            with tf.control_dependencies(used):
                optimizer.apply_gradients(
                    zip(gradients, parameters, strict=True)
                )
            return tf.add_n(used)

        @tf.function
        def step(iterator):
            return strategy.run(exchange, args=(next(iterator),))

        dataset = driver.create_per_worker_dataset(constant_gradients)
        return step, iter(dataset), parameters[0]

    built = {name: build(*shape) for name, shape in models.items()}

    def measure(model, steps):
        step, iterator, parameter = built[model]
        started = time.perf_counter()
        for _ in range(steps):
            driver.schedule(step, args=(iterator,))
        driver.join()
        seconds = (time.perf_counter() - started) / steps
        return seconds, float(parameter.numpy()[0])

    return measure
