"""Workers whose threads begin to talk to a server all at once."""

import threading

# First calls of the main thread, each of another function.
_FUNCTIONS = 60
_THREADS = 3


def build(eagerly):
    """Builds a worker that is connected and a member of the cluster.

    Args:
        eagerly: whether its other threads use TensorFlow's eager runtime, and
            not sessions as tfdist's do.

    Returns:
        A callable without arguments, in which the other threads call
        functions on the server while the main one calls others for the first
        time.
    """
    import tensorflow as tf

    from tfdist.cluster import ClusterConfig
    from tfdist.cluster import connection
    from tfdist.cluster import registration

    config = ClusterConfig.from_tf_config()
    here, (server,) = connection.connect(config, 60.0)
    (client,) = registration.join(config, [server], 60.0).clients

    def make():
        @tf.function(autograph=False)
        def look():
            with tf.device(server):
                time = tf.timestamp()
            with tf.device(here):
                return tf.identity(time)

        return look

    def begin():
        together = threading.Barrier(_THREADS + 1)
        over = threading.Event()
        calls = [
            make() if eagerly else client.function(lambda: [tf.timestamp()], [])
            for _ in range(_THREADS)
        ]

        def keep_calling(call):
            together.wait()
            while not over.is_set():
                call()

        threads = [
            threading.Thread(target=keep_calling, args=(call,), daemon=True)
            for call in calls
        ]
        for thread in threads:
            thread.start()
        together.wait()
        for _ in range(_FUNCTIONS):
            make()()
        over.set()
        for thread in threads:
            thread.join()

    return begin
