"""One training step in three frameworks: gradients of a batch, their mean over the workers, the optimizer's update.

    torch        autograd, operator by operator (eager)
    jax          two compiled functions, the gradients and the update; the update reuses its inputs' memory
    tensorflow   two tf.functions, the gradients and the update

Between the two halves the gradients can leave as one flat float32 vector and come back as the mean over the workers. The
exchange is the same for all frameworks: a ring over gloo. It copies the vector once, into memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.models.measure.networks import (
    CLASSES,
    Configuration,
    build_loss,
    build_model,
    build_optimizer,
    input_shape,
)

Vector = npt.NDArray[np.float32]
Average = Callable[[Vector], Vector]  #: a worker's flat gradients -> the mean over all workers


@dataclass(frozen=True)
class Step:
    """The halves of a step, and what lies between them. G is the framework's list of gradients."""

    gradients: Callable[[], Any]  #: () -> G
    flat: Callable[[Any], Vector]  #: G -> [parameters]
    parts: Callable[[Vector], Any]  #: [parameters] -> G
    update: Callable[[Any], None]  #: returns when the parameters are new

    def take(self, average: Average | None) -> None:
        """One step; without `average` the worker is alone."""
        gradients = self.gradients()
        self.update(gradients if average is None else self.parts(average(self.flat(gradients))))


def build_step(c: Configuration, rank: int, seed: int = 0) -> Step:
    """The step of one worker, its share of the joined batch already in the framework's memory."""
    import keras

    keras.utils.set_random_seed(seed)
    model, optimizer, loss = build_model(c), build_optimizer(c), build_loss(c)
    optimizer.build(model.trainable_variables)
    inputs, target = share(c, rank, seed)
    steps = {"torch": _torch_step, "jax": _jax_step, "tensorflow": _tensorflow_step}
    return steps[c.framework](model, optimizer, loss, inputs, target)


def share(c: Configuration, rank: int, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A worker's part of the joined batch of batch x workers samples: (inputs, target)."""
    chance, samples = np.random.default_rng(seed), c.batch * c.workers
    inputs = chance.standard_normal((samples, *input_shape(c)), dtype=np.float32)
    target = inputs if c.network == "autoencoder" else chance.integers(0, CLASSES, samples)
    mine = slice(rank * c.batch, (rank + 1) * c.batch)
    return inputs[mine].copy(), target[mine].copy()


def _torch_step(model: Any, optimizer: Any, loss: Any, inputs: npt.NDArray[Any], target: npt.NDArray[Any]) -> Step:
    import torch

    x, y = torch.from_numpy(inputs), torch.from_numpy(target)
    variables = model.trainable_variables
    places = [v.value for v in variables]

    def gradients() -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss(y, model(x, training=True)), places))

    def update(gradients: list[torch.Tensor]) -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    def flat(gradients: list[torch.Tensor]) -> Vector:
        vector: Vector = torch.cat([g.reshape(-1) for g in gradients]).numpy()
        return vector

    def parts(vector: Vector) -> list[torch.Tensor]:
        pieces = torch.split(torch.from_numpy(vector), [p.numel() for p in places])
        return [piece.view(p.shape) for piece, p in zip(pieces, places, strict=True)]

    return Step(gradients, flat, parts, update)


def _jax_step(model: Any, optimizer: Any, loss: Any, inputs: npt.NDArray[Any], target: npt.NDArray[Any]) -> Step:
    import jax
    import jax.numpy as jnp

    x, y = jnp.asarray(inputs), jnp.asarray(target)
    fixed = [v.value for v in model.non_trainable_variables]
    # the update may reuse the memory of what it is given: copies, since the model's own variables keep theirs
    state = [[jnp.array(v.value) for v in model.trainable_variables], [jnp.array(v.value) for v in optimizer.variables]]
    shapes = [v.shape for v in state[0]]

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        return loss(y, model.stateless_call(weights, fixed, x, training=True)[0])

    def apply(weights: Any, held: Any, gradients: Any) -> Any:
        return optimizer.stateless_apply(held, gradients, weights)

    gradients_of = jax.jit(jax.value_and_grad(loss_of))
    updated = jax.jit(apply, donate_argnums=(0, 1))
    joined = jax.jit(lambda g: jnp.concatenate([p.reshape(-1) for p in g]))
    divided = jax.jit(lambda vector: _divided(vector, shapes))

    def update(gradients: Any) -> None:
        state[:] = updated(*state, gradients)
        jax.block_until_ready(state)

    return Step(lambda: gradients_of(state[0], x, y)[1], lambda g: np.asarray(joined(g)), divided, update)


def _divided(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """A flat vector cut into arrays of these shapes."""
    ends = np.cumsum([int(np.prod(s)) for s in shapes])
    return [vector[end - int(np.prod(s)) : end].reshape(s) for s, end in zip(shapes, ends, strict=True)]


def _tensorflow_step(model: Any, optimizer: Any, loss: Any, inputs: npt.NDArray[Any], target: npt.NDArray[Any]) -> Step:
    import tensorflow as tf

    x, y = tf.constant(inputs), tf.constant(target)
    variables = model.trainable_variables
    values = [v.value for v in variables]
    shapes = [tuple(v.shape) for v in variables]

    def gradients_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return tape.gradient(value, values)

    def update(gradients: Any) -> None:
        optimizer.apply(gradients, variables)

    compiled_gradients, compiled_update = tf.function(gradients_of), tf.function(update)
    joined = tf.function(lambda g: tf.concat([tf.reshape(p, [-1]) for p in g], 0))
    sizes = [int(np.prod(s)) for s in shapes]
    divided = tf.function(lambda v: [tf.reshape(p, s) for p, s in zip(tf.split(v, sizes), shapes, strict=True)])
    return Step(
        lambda: compiled_gradients(x, y),
        lambda g: joined(g).numpy(),
        lambda v: divided(tf.constant(v)),
        compiled_update,
    )


def average_over(workers: int) -> Average:
    """The mean over the workers of the process group that this process has joined.

    The vector returned stays valid until the next call. Raises RuntimeError when a worker does not come in time.
    """
    import torch
    import torch.distributed as dist

    room: dict[int, torch.Tensor] = {}

    def average(mine: Vector) -> Vector:
        shared = room.get(mine.size)
        if shared is None:
            room.clear()
            shared = room[mine.size] = torch.empty(mine.size)
        np.divide(mine, workers, out=shared.numpy())  # the one copy: the frameworks' own arrays may not be written to
        dist.all_reduce(shared)
        result: Vector = shared.numpy()
        return result

    return average
