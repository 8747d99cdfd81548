"""The three networks of a campaign: their layers as shapes, which tell their size, and the Keras model made of them.

    cnn           input [side, side, 3]: `layers` convolutions of `width` channels, the mean over all places, 10 classes
    autoencoder   input [features]: `layers` dense layers of width, width/2, width/4 .., the same way back to [features]
    mlp           input [features]: `layers` dense layers of `width`, 10 classes

One definition serves every framework that Keras runs on. `input_size` is the side of the image, or the count of features.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CHANNELS, CLASSES, NARROWEST = 3, 10, 4

ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "silu")
OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adam")
FRAMEWORKS = ("torch", "jax", "tensorflow")
FACTORS = {
    "cnn": ("layers", "width", "kernel", "batch", "input_size", "activation", "optimizer"),
    "autoencoder": ("layers", "width", "batch", "input_size", "activation", "optimizer"),
    "mlp": ("layers", "width", "batch", "input_size", "activation", "optimizer"),
}


@dataclass(frozen=True)
class Configuration:
    """What is set before a run: the inputs of a row."""

    network: str  #: cnn, autoencoder or mlp
    framework: str  #: torch, jax or tensorflow
    layers: int  #: hidden layers; of an autoencoder those of its first half
    width: int  #: channels or units of a hidden layer; of an autoencoder those of its first
    kernel: int  #: side of a convolution's kernel; 1 in networks without convolutions
    batch: int  #: samples a worker takes in one step; all workers together take batch x workers
    input_size: int  #: side of the image, or count of features
    activation: str
    optimizer: str
    workers: int  #: processes of synchronous data-parallel SGD, a core each

    def key(self) -> str:
        """The configuration in words: its name in a journal.

        >>> Configuration("mlp", "jax", 2, 64, 1, 32, 256, "relu", "adam", 2).key()
        'mlp jax layers=2 width=64 kernel=1 batch=32 input_size=256 relu adam workers=2'
        """
        sizes = " ".join(f"{n}={getattr(self, n)}" for n in ("layers", "width", "kernel", "batch", "input_size"))
        return f"{self.network} {self.framework} {sizes} {self.activation} {self.optimizer} workers={self.workers}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Layer:
    """A dense layer, or a convolution that keeps the image's size, with a bias."""

    inputs: int  #: channels or features
    outputs: int
    kernel: int = 1  #: side
    places: int = 1  #: of the image
    hidden: bool = True  #: followed by the activation


@dataclass(frozen=True)
class Size:
    """How large a network is."""

    parameters: int  #: count
    flops: int  #: of a forward pass, a sample: a multiplication and an addition are two; convolutions and dense layers
    activations: int  #: elements that the layers put out, a sample


def layers_of(c: Configuration) -> tuple[Layer, ...]:
    """The layers with weights, in order.

    >>> c = Configuration("autoencoder", "jax", 2, 64, 1, 32, 256, "relu", "adam", 2)
    >>> [(layer.inputs, layer.outputs) for layer in layers_of(c)]
    [(256, 64), (64, 32), (32, 64), (64, 256)]
    """
    if c.network == "cnn":
        places = c.input_size**2
        convolutions = (Layer(CHANNELS if i == 0 else c.width, c.width, c.kernel, places) for i in range(c.layers))
        return (*convolutions, Layer(c.width, CLASSES, hidden=False))
    if c.network == "autoencoder":
        halving = [c.input_size, *(max(NARROWEST, c.width >> i) for i in range(c.layers))]
        widths = [*halving, *halving[-2::-1]]
    else:
        widths = [c.input_size, *[c.width] * c.layers, CLASSES]
    last = len(widths) - 2
    return tuple(Layer(widths[i], widths[i + 1], hidden=i < last) for i in range(last + 1))


def size_of(c: Configuration) -> Size:
    """Parameters, operations and activations, from the shapes of the layers.

    >>> size_of(Configuration("mlp", "jax", 1, 64, 1, 32, 256, "relu", "adam", 2))
    Size(parameters=17098, flops=34048, activations=74)
    """
    layers = layers_of(c)
    weights = [layer.kernel**2 * layer.inputs * layer.outputs for layer in layers]
    return Size(
        parameters=sum(w + layer.outputs for w, layer in zip(weights, layers, strict=True)),
        flops=sum(2 * w * layer.places for w, layer in zip(weights, layers, strict=True)),
        activations=sum(layer.outputs * layer.places for layer in layers),
    )


def input_shape(c: Configuration) -> tuple[int, ...]:
    """The shape of one sample."""
    return (c.input_size, c.input_size, CHANNELS) if c.network == "cnn" else (c.input_size,)


def build_model(c: Configuration) -> Any:
    """The Keras model, its weights from Keras' seeded generator: the same on every worker that set the same seed."""
    import keras

    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    parts = [keras.Input(input_shape(c))]
    for layer in layers_of(c):
        activation = c.activation if layer.hidden else None
        if layer.places > 1:
            parts.append(keras.layers.Conv2D(layer.outputs, layer.kernel, padding="same", activation=activation))
        else:
            if c.network == "cnn":
                parts.append(keras.layers.GlobalAveragePooling2D())
            parts.append(keras.layers.Dense(layer.outputs, activation=activation))
    return keras.Sequential(parts)


def build_optimizer(c: Configuration) -> Any:
    """The Keras optimizer, with Keras' own constants; momentum is SGD with 0.9 of it."""
    import keras

    kinds = {
        "sgd": lambda: keras.optimizers.SGD(),
        "momentum": lambda: keras.optimizers.SGD(momentum=0.9),
        "rmsprop": lambda: keras.optimizers.RMSprop(),
        "adam": lambda: keras.optimizers.Adam(),
    }
    return kinds[c.optimizer]()


def build_loss(c: Configuration) -> Any:
    """Cross entropy of classes; for an autoencoder the mean squared error to its own input."""
    import keras

    if c.network == "autoencoder":
        return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
