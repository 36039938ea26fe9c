"""Trains a recommender whose tables live on the parameter servers alone.

    tfdist launch --num_ps=2 --num_workers=2 examples/train_recommender.py

Users and items have a vector each; their product says whether a user clicks.
With 4 million rows of 64 floats, the tables and Adam's slots take 3 GB, which
no worker holds: a step looks up the rows of its batch, and sends their
gradients back. Adam changes these rows and no others (docs/tables.md).
With `-- --strategy=sync`, each update of the dense layer is made of the mean
of all workers' gradients, and each worker's rows are updated by themselves.

The data is made up. Ids follow Zipf's law, as those of real logs do, and every
user and item has a hidden vector of 4 numbers; a click is drawn from their
product. So there is a structure to be found, and an AUC that no model can
exceed, which the program prints. With --movielens, ratings of MovieLens from
TensorFlow Datasets take its place: a click is a rating of 4 or more.
"""

from absl import app
from absl import flags
import keras
import numpy as np
import strategy_flags

FLAGS = flags.FLAGS
# For --help.
flags.adopt_module_key_flags(strategy_flags)
flags.DEFINE_integer("users", 2_000_000, "Number of users.", lower_bound=1)
flags.DEFINE_integer("items", 2_000_000, "Number of items.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Floats in a row.", lower_bound=1)
flags.DEFINE_integer("examples", 400_000, "To train on.", lower_bound=1000)
flags.DEFINE_integer("batch_size", 512, "Of one worker.", lower_bound=1)
flags.DEFINE_integer("epochs", 3, "Passes over the data.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.01, "Of Adam.", lower_bound=0.0)
flags.DEFINE_integer(
    "table_mb",
    64,
    "Embeddings of so many MB or more live on servers alone; 0: none does, "
    "and each worker has a replica.",
    lower_bound=0,
)
flags.DEFINE_string(
    "movielens", None, "Name in TFDS, such as movielens/100k-ratings."
)
flags.DEFINE_integer("seed", 0, "Of the data and of first values.")

HIDDEN = 4
SHARPNESS = 2.0
TEST_SHARE = 0.1


def main(argv):
    """Trains and prints AUCs."""
    table_bytes = FLAGS.table_mb << 20
    strategy = strategy_flags.make_strategy(
        table_bytes=table_bytes or None, seed=FLAGS.seed
    )
    cluster = getattr(strategy, "cluster", None)
    is_chief = cluster is None or cluster.is_chief
    load = load_movielens if FLAGS.movielens else make_up
    ids, clicks, best, sizes = load()
    tests = int(TEST_SHARE * len(clicks))
    train = [ids["user"][tests:], ids["item"][tests:]], clicks[tests:]
    test = [ids["user"][:tests], ids["item"][:tests]], clicks[:tests]
    with strategy.scope():
        model = build(*sizes)
        model.compile(
            keras.optimizers.Adam(FLAGS.learning_rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
        )
    model.fit(
        *train,
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=test,
        validation_batch_size=8192,
        callbacks=strategy_flags.stragglers(
            cluster.num_workers if cluster else 1
        ),
        verbose=2 if is_chief else 0,
    )
    if is_chief:
        if cluster is not None and cluster.num_ps:
            held = [f"{n / 2**20:.0f}" for n in strategy.bytes_per_server]
            print(f"MB of variables on each server: {', '.join(held)}")
        if best is not None:
            print(f"AUC of the hidden probabilities themselves: {best:.4f}")


def build(users, items):
    """Builds the model of two tables.

    Args:
        users: number of users.
        items: number of items.
    """
    user = keras.Input((), dtype="int32", name="user")
    item = keras.Input((), dtype="int32", name="item")
    # Keras's default is so small that products of two rows begin as nothing.
    rows = keras.initializers.RandomNormal(stddev=FLAGS.width**-0.5)
    of_user = keras.layers.Embedding(
        users, FLAGS.width, embeddings_initializer=rows, name="users"
    )(user)
    rows = keras.initializers.RandomNormal(stddev=FLAGS.width**-0.5)
    of_item = keras.layers.Embedding(
        items, FLAGS.width, embeddings_initializer=rows, name="items"
    )(item)
    logits = keras.layers.Dot(axes=1)([of_user, of_item])
    return keras.Model([user, item], keras.layers.Dense(1)(logits))


def make_up():
    """Draws examples of a hidden structure.

    Returns:
        Ids by "user" and "item", clicks `(n,)` float32, the AUC of the hidden
        probabilities, and the numbers of users and items.
    """
    random = np.random.default_rng(FLAGS.seed)
    number = int(FLAGS.examples / (1 - TEST_SHARE))
    sizes = {"user": FLAGS.users, "item": FLAGS.items}
    ids, hidden = {}, []
    for name, size in sizes.items():
        # Neighbouring ids are of no special kind: they are mixed.
        drawn = random.zipf(1.2, number).astype(np.uint64)
        ids[name] = (drawn * 2_654_435_761 % size).astype("int32")
        known, where = np.unique(ids[name], return_inverse=True)
        hidden.append(random.normal(size=(len(known), HIDDEN))[where])
    product = np.sum(hidden[0] * hidden[1], axis=1) / HIDDEN**0.5
    probability = 1 / (1 + np.exp(-SHARPNESS * product))
    clicks = (random.random(number) < probability).astype("float32")
    best = keras.metrics.AUC()
    best.update_state(clicks, probability)
    return ids, clicks, float(best.result()), sizes.values()


def load_movielens():
    """Reads ratings by TensorFlow Datasets; see `make_up`."""
    import tensorflow_datasets as tfds

    data = tfds.as_numpy(tfds.load(FLAGS.movielens, split="train"))
    rows = [(r["user_id"], r["movie_id"], r["user_rating"]) for r in data]
    np.random.default_rng(FLAGS.seed).shuffle(rows)
    users, movies, ratings = zip(*rows, strict=True)
    ids = {
        "user": np.asarray(users).astype("int32"),
        "item": np.asarray(movies).astype("int32"),
    }
    clicks = (np.asarray(ratings, "float32") >= 4).astype("float32")
    return ids, clicks, None, [int(each.max()) + 1 for each in ids.values()]


if __name__ == "__main__":
    app.run(main)
