"""Small models of all kinds, and a placement for each."""

import keras
import numpy as np

BATCH = 8


@keras.saving.register_keras_serializable("tests.placement")
class Attention(keras.layers.Layer):
    """A transformer's block, as a layer that is made of layers."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.attention = keras.layers.MultiHeadAttention(
            2, width // 2, dropout=0.1, seed=5, name="attention"
        )
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.wide = keras.layers.Dense(2 * width, "gelu", name="wide")
        self.narrow = keras.layers.Dense(width, name="narrow")

    def call(self, x):
        x = x + self.attention(x, x)
        return x + self.narrow(self.wide(self.norm(x)))

    def build(self, shape):
        self.attention.build(shape, shape)
        self.norm.build(shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 2 * self.width))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class Subclassed(keras.Model):
    """Operations of its own between layers, and tied weights."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(11, 6, name="embedding")
        self.middle = keras.Sequential(
            [keras.layers.Dense(6, "tanh", name="inner")], name="middle"
        )

    def call(self, tokens):
        x = keras.ops.mean(self.embedding(tokens), axis=1)
        x = self.middle(x) + x
        return keras.ops.matmul(
            x, keras.ops.transpose(self.embedding.embeddings)
        )


def mlp():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, "gelu", name="first"),
            keras.layers.Dropout(0.3, seed=3, name="drop"),
            keras.layers.Dense(
                4,
                kernel_regularizer="l2",
                activity_regularizer="l2",
                name="last",
            ),
        ]
    ), {"first": "CPU:1", "drop": "CPU:2", "last": "CPU:3"}


def convnet():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, use_bias=False, name="conv"),
            keras.layers.BatchNormalization(name="normal"),
            keras.layers.ReLU(name="relu"),
            keras.layers.MaxPooling2D(name="pool"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(4, name="head"),
        ]
    ), {"*": "CPU:1", "normal": "CPU:2", "head": "CPU:3"}


def lstm():
    return keras.Sequential(
        [
            keras.Input((5, 3)),
            keras.layers.LSTM(4, return_sequences=True, name="lower"),
            keras.layers.Bidirectional(
                keras.layers.GRU(3, name="inner"), name="upper"
            ),
            keras.layers.Dense(4, name="head"),
        ]
    ), {"lower": "CPU:1", "upper": "CPU:2", "head": "CPU:3"}


def transformer():
    inputs = keras.Input((4, 6))
    x = Attention(6, name="block_0")(inputs)
    x = Attention(6, name="block_1")(x)
    x = keras.layers.GlobalAveragePooling1D(name="pool")(x)
    outputs = keras.layers.Dense(4, name="head")(x)
    return keras.Model(inputs, outputs), {
        "block_0": "CPU:1",
        "block_1": "CPU:2",
        "block_1/wide": "CPU:3",
        "head": "CPU:1",
    }


def skips():
    inputs = keras.Input((5,))
    a = keras.layers.Dense(6, "tanh", name="a")(inputs)
    b = keras.layers.Dense(6, "tanh", name="b")(a)
    c = keras.layers.Dense(6, "tanh", name="c")(b) + a
    d = keras.layers.Concatenate(name="joined")([b, c, inputs])
    return keras.Model(inputs, keras.layers.Dense(4, name="d")(d)), {
        "a": "CPU:1",
        "b": "CPU:2",
        "c": "CPU:3",
        "joined": "CPU:2",
        "d": "CPU:1",
    }


def shared():
    inputs = keras.Input((6,))
    twice = keras.layers.Dense(6, "tanh", name="twice")
    between = keras.layers.Dense(6, "tanh", name="between")
    x = twice(between(twice(inputs)))
    return keras.Model(inputs, keras.layers.Dense(4, name="head")(x)), {
        "twice": "CPU:1",
        "between": "CPU:2",
        "head": "CPU:3",
    }


def nested():
    inner_in = keras.Input((6,))
    inner_out = keras.layers.Dense(6, "tanh", name="inside")(inner_in)
    inner = keras.Model(inner_in, inner_out + inner_in, name="inner")
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(4, name="head")(inner(inner(inputs)))
    return keras.Model(inputs, outputs), {"inner": "CPU:1", "head": "CPU:2"}


def subclassed():
    model = Subclassed()
    model(np.zeros((2, 3), "int32"))
    return model, {"embedding": "CPU:1", "middle": "CPU:2"}


MODELS = {
    function.__name__: function
    for function in (
        mlp,
        convnet,
        lstm,
        transformer,
        skips,
        shared,
        nested,
        subclassed,
    )
}


def data(name, examples=5 * BATCH):
    """Inputs and targets for one of `MODELS`."""
    stream = np.random.default_rng(0)
    shapes = {
        "mlp": (5,),
        "convnet": (6, 6, 1),
        "lstm": (5, 3),
        "transformer": (4, 6),
        "skips": (5,),
        "shared": (6,),
        "nested": (6,),
    }
    if name == "subclassed":
        x = stream.integers(0, 11, (examples, 3)).astype("int32")
        return x, stream.integers(0, 11, examples)
    x = stream.standard_normal((examples, *shapes[name])).astype("float32")
    return x, stream.integers(0, 4, examples)


def build(name):
    """(model, placement), with the same weights at each call."""
    keras.utils.set_random_seed(7)
    return MODELS[name]()
