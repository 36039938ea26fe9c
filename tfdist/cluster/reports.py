"""Short reports that tasks leave for each other on the first server."""

import json

import tensorflow as tf

from tfdist.cluster import member_table
from tfdist.cluster import resource_values


class OwnReports:
    """Reports in one process without servers.

    Args:
      config: The `ClusterConfig` of this task.
    """

    def __init__(self, config):
        self._name = config.task_name
        self._contents = {}

    def publish(self, topic, content):
        """See `Reports.publish`."""
        self._contents[topic] = content

    def collect(self, topic):
        """See `Reports.collect`."""
        if topic not in self._contents:
            return {}
        return {self._name: self._contents[topic]}


class Reports:
    """One report per topic and member, the last one written.

    Args:
      device: Device of the first server.
      config: The `ClusterConfig` of this task.
    """

    def __init__(self, device, config):
        self._device = device
        self._names = member_table.names_of(config)
        self._index = self._names.index(config.task_name)
        self._here = tf.config.list_logical_devices("CPU")[0].name
        self._writers = {}
        self._readers = {}
        # By topic: what this task has published last, a JSON text.
        self._published = {}

    def publish(self, topic, content):
        """Leaves `content`, anything that JSON can hold, under `topic`."""
        self._published[topic] = json.dumps(content)
        self._write(topic)

    def publish_again(self):
        """Leaves all that was published on a server that has lost it."""
        for topic in self._published:
            self._write(topic)

    def _write(self, topic):
        if topic not in self._writers:

            def build(text):
                with tf.device(self._device):
                    tf.raw_ops.AssignVariableOp(
                        resource=self._handle(topic, self._index),
                        value=tf.identity(text),
                    )

            self._writers[topic] = tf.function(build, autograph=False)
        self._writers[topic](tf.constant(self._published[topic]))

    def collect(self, topic):
        """Returns what all members published under `topic`, by task name."""
        if topic not in self._readers:
            self._readers[topic] = tf.function(
                lambda: self._build_read(topic), autograph=False
            )
        texts = self._readers[topic]().numpy()
        return {
            name: json.loads(text)
            for name, text in zip(self._names, texts, strict=True)
            if text
        }

    def _handle(self, topic, index):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.string,
            shape=[],
            shared_name=f"tfdist/report/{topic}/{index}",
        )

    def _build_read(self, topic):
        with tf.device(self._device):
            stacked = build_texts(
                [
                    self._handle(topic, index)
                    for index in range(len(self._names))
                ]
            )
        with tf.device(self._here):
            return tf.identity(stacked)


def build_texts(handles):
    """Builds the reading of texts, in the scope's device.

    Args:
      handles: List of resources of scalar strings.

    Returns:
      A vector; "" for what nobody has written.
    """
    return tf.stack(
        [resource_values.build_read_or(handle, "") for handle in handles]
    )
