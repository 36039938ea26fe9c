"""Writes TFRecords for six readers, and some to test: python THIS."""

import numpy as np
import tensorflow as tf

names = [*(f"train-{number}" for number in range(6)), "test"]
for seed, name in enumerate(names):
    with tf.io.TFRecordWriter(f"{name}.tfrecord") as writer:
        for x in np.random.default_rng(seed).normal(size=(64, 4)):
            example = tf.train.Example()
            example.features.feature["x"].float_list.value.extend(x)
            example.features.feature["y"].int64_list.value.append(
                int(x.sum() > 0)
            )
            writer.write(example.SerializeToString())
