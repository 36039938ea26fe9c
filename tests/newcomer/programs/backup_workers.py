"""TFRecords, a backup worker, TensorBoard and the best model on the disk.

python write_records.py && tfdist launch --num_ps=1 --num_workers=3 THIS
"""

import glob

import keras
import tensorflow as tf

import tfdist

strategy = tfdist.BackupWorkersStrategy(backup_workers=1)

FEATURES = {
    "x": tf.io.FixedLenFeature([4], tf.float32),
    "y": tf.io.FixedLenFeature([], tf.int64),
}


def read(paths):
    def parse(record):
        example = tf.io.parse_single_example(record, FEATURES)
        return example["x"], example["y"]

    return tf.data.TFRecordDataset(paths).map(parse)


# At least one file for each worker: each reads its own alone.
train = read(sorted(glob.glob("train-*.tfrecord")))
train = train.shuffle(1000, seed=1).batch(16)
test = read(["test.tfrecord"]).batch(64)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
model.fit(
    train,
    epochs=4,
    validation_data=test,
    callbacks=[
        tfdist.callbacks.ClusterMonitor(log_dir="runs"),
        keras.callbacks.TensorBoard("runs"),
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    ],
    verbose=2,
)
