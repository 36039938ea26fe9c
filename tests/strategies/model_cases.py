"""Models shaped like those of Keras's public examples, each tiny.

Run as a script under `tfdist launch`, it trains each of them with one strategy
and writes what came of it to a directory.
"""

import keras
from keras import layers
import numpy as np
import tensorflow as tf

from tests.strategies import trained_on_servers

SEED = 7
EXAMPLES, BATCH, EPOCHS = 16, 4, 2

_random = np.random.default_rng(11)
LABELS = _random.integers(0, 3, EXAMPLES).astype("int32")
VECTORS = _random.normal(size=(EXAMPLES, 6)).astype("float32")
IMAGES = _random.uniform(size=(EXAMPLES, 8, 8, 1)).astype("float32")
TOKENS = _random.integers(0, 20, (EXAMPLES, 5)).astype("int32")


def _classify(inputs, logits, optimizer="adam"):
    model = keras.Model(inputs, logits)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _perceptron():
    """As in examples/vision/mnist_mlp: dense layers and dropout."""
    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="relu")(inputs)
    x = layers.Dropout(0.3)(x)
    x = layers.Dense(8, activation="relu")(x)
    return _classify(inputs, layers.Dense(3)(x), "rmsprop")


def _convolutional_net():
    """As in examples/vision/image_classification_from_scratch."""
    inputs = keras.Input((8, 8, 1))
    x = layers.Rescaling(2.0, offset=-1.0)(inputs)
    x = layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("swish")(x)
    shortcut = layers.Conv2D(6, 1, strides=2, padding="same")(x)
    x = layers.SeparableConv2D(6, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.add([x, shortcut])
    x = layers.GlobalAveragePooling2D()(x)
    return _classify(inputs, layers.Dense(3)(layers.Dropout(0.25)(x)))


def _bidirectional_lstm():
    """As in examples/nlp/bidirectional_lstm_imdb."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(20, 4, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(3))(x)
    return _classify(inputs, layers.Dense(3)(x))


class TokenAndPosition(layers.Layer):
    def __init__(self):
        super().__init__()
        self.token = layers.Embedding(20, 4)
        self.position = layers.Embedding(5, 4)

    def call(self, x):
        return self.token(x) + self.position(keras.ops.arange(5))


class TransformerBlock(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)
        self.feed_forward = keras.Sequential(
            [layers.Dense(6, activation="gelu"), layers.Dense(4)]
        )
        self.norms = [layers.LayerNormalization() for _ in range(2)]
        self.dropout = layers.Dropout(0.1)

    def call(self, x, training=None):
        attended = self.dropout(self.attention(x, x), training=training)
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.feed_forward(x))


def _transformer_block():
    """As in examples/nlp/text_classification_with_transformer."""
    inputs = keras.Input((5,), dtype="int32")
    x = TransformerBlock()(TokenAndPosition()(inputs))
    x = layers.GlobalAveragePooling1D()(x)
    return _classify(inputs, layers.Dense(3)(x))


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


class VariationalAutoencoder(keras.Model):
    """As in examples/generative/vae, with its own step and metrics."""

    def __init__(self):
        super().__init__()
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(3, 3, activation="relu", strides=2, padding="same")(
            inputs
        )
        x = layers.Dense(5, activation="relu")(layers.Flatten()(x))
        mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
        z = Sampling()([mean, log_variance])
        self.encoder = keras.Model(inputs, [mean, log_variance, z])
        latent = keras.Input((2,))
        x = layers.Dense(4 * 4 * 2, activation="relu")(latent)
        x = layers.Reshape((4, 4, 2))(x)
        x = layers.Conv2DTranspose(
            1, 3, strides=2, padding="same", activation="sigmoid"
        )(x)
        self.decoder = keras.Model(latent, x)
        self.total = keras.metrics.Mean(name="total")
        self.divergence = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        return [self.total, self.divergence]

    def train_step(self, images):
        with tf.GradientTape() as tape:
            mean, log_variance, z = self.encoder(images)
            reconstruction = tf.reduce_mean(
                tf.reduce_sum(
                    keras.losses.binary_crossentropy(images, self.decoder(z)),
                    axis=(1, 2),
                )
            )
            divergence = -0.5 * (
                1.0 + log_variance - mean**2 - tf.exp(log_variance)
            )
            divergence = tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
            loss = reconstruction + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_weights, strict=True)
        )
        self.total.update_state(loss)
        self.divergence.update_state(divergence)
        return {m.name: m.result() for m in self.metrics}


def _variational_autoencoder():
    model = VariationalAutoencoder()
    model.compile("adam")
    return model


class ConvolutionalGan(keras.Model):
    """As in examples/generative/dcgan_overriding_train_step."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(3, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Flatten(),
                layers.Dropout(0.2),
                layers.Dense(1),
            ]
        )
        self.generator = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(4 * 4 * 2),
                layers.Reshape((4, 4, 2)),
                layers.Conv2DTranspose(
                    3, 4, strides=2, padding="same", use_bias=False
                ),
                layers.BatchNormalization(),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
            ]
        )
        self.seeds = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer):
        super().compile(loss=None)
        self.optimizers = [d_optimizer, g_optimizer]
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_metric = keras.metrics.Mean(name="d_loss")
        self.g_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_metric, self.g_metric]

    def _noise(self):
        return keras.random.normal((BATCH, 4), seed=self.seeds)

    def train_step(self, real):
        images = tf.concat([self.generator(self._noise()), real], axis=0)
        labels = tf.concat([tf.ones((BATCH, 1)), tf.zeros((BATCH, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(labels.shape, seed=self.seeds)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(
                labels, self.discriminator(images, training=True)
            )
        self._apply(self.optimizers[0], tape, d_loss, self.discriminator)
        with tf.GradientTape() as tape:
            fake = self.generator(self._noise(), training=True)
            g_loss = self.loss_fn(
                tf.zeros((BATCH, 1)), self.discriminator(fake)
            )
        self._apply(self.optimizers[1], tape, g_loss, self.generator)
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}

    def _apply(self, optimizer, tape, loss, model):
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_weights, strict=True)
        )


def _gan():
    model = ConvolutionalGan()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3))
    return model


def _siamese_net():
    """As in examples/vision/siamese_contrastive."""
    inputs = keras.Input((8, 8, 1))
    x = layers.BatchNormalization()(inputs)
    x = layers.Conv2D(2, 5, activation="tanh")(x)
    x = layers.AveragePooling2D(2)(x)
    x = layers.BatchNormalization()(layers.Flatten()(x))
    tower = keras.Model(inputs, layers.Dense(4, activation="tanh")(x))
    pair = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    distance = layers.Lambda(
        lambda v: keras.ops.sqrt(
            keras.ops.sum(keras.ops.square(v[0] - v[1]), 1, keepdims=True)
            + 1e-7
        )
    )([tower(pair[0]), tower(pair[1])])
    output = layers.Dense(1, activation="sigmoid")(
        layers.BatchNormalization()(distance)
    )
    model = keras.Model(pair, output)
    model.compile("rmsprop", _contrastive, metrics=["accuracy"])
    return model


def _contrastive(y_true, y_pred):
    return keras.ops.mean(
        (1.0 - y_true) * keras.ops.square(y_pred)
        + y_true * keras.ops.square(keras.ops.maximum(1.0 - y_pred, 0.0))
    )


def _wide_and_deep():
    """As in examples/structured_data: two inputs, outputs and losses."""
    numbers = keras.Input((6,), name="numbers")
    tokens = keras.Input((5,), dtype="int32", name="tokens")
    words = layers.Flatten()(layers.Embedding(20, 2)(tokens))
    merged = layers.concatenate([layers.BatchNormalization()(numbers), words])
    deep = layers.Dense(6, activation="selu")(merged)
    kind = layers.Dense(3, name="kind")(deep)
    value = layers.Dense(1, name="value")(layers.concatenate([deep, merged]))
    model = keras.Model([numbers, tokens], {"kind": kind, "value": value})
    model.compile(
        keras.optimizers.Adagrad(0.05),
        {
            "kind": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            ),
            "value": "mse",
        },
        loss_weights={"kind": 1.0, "value": 0.3},
    )
    return model


SAME = (LABELS == LABELS[::-1]).astype("float32")[:, None]
CASES = {
    "perceptron": (_perceptron, (VECTORS, LABELS)),
    "convolutional net": (_convolutional_net, (IMAGES, LABELS)),
    "bidirectional lstm": (_bidirectional_lstm, (TOKENS, LABELS)),
    "transformer block": (_transformer_block, (TOKENS, LABELS)),
    "variational autoencoder": (_variational_autoencoder, (IMAGES,)),
    "gan": (_gan, (IMAGES,)),
    "siamese net": (_siamese_net, ((IMAGES, IMAGES[::-1].copy()), SAME)),
    "wide and deep": (
        _wide_and_deep,
        (
            {"numbers": VECTORS, "tokens": TOKENS},
            {"kind": LABELS, "value": VECTORS[:, :1]},
        ),
    ),
}
# Statistics of batches, tables, seeds, several inputs, outputs and optimizers.
ON_SERVERS = ["convolutional net", "transformer block", "gan", "wide and deep"]


def train(name, scope, **settings):
    """Trains one model; returns what shows how it went, a list of arrays.

    Args:
      name: A key of `CASES`.
      scope: Context in which the model is made.
      **settings: Attributes of the model to set, such as `jit_compile`.
    """
    keras.utils.set_random_seed(SEED)
    build, data = CASES[name]
    with scope:
        model = build()
    for attribute, value in settings.items():
        setattr(model, attribute, value)
    history = model.fit(
        *data, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    ).history
    optimizers = getattr(model, "optimizers", [model.optimizer])
    state = [v.numpy() for o in optimizers for v in o.variables]
    everything = [history, model.get_weights(), state]
    return [np.array(v) for v in tf.nest.flatten(everything)]


if __name__ == "__main__":
    trained_on_servers.main(
        lambda *arguments: {
            str(place): value for place, value in enumerate(train(*arguments))
        }
    )
