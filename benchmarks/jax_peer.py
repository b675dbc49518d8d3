"""The models and the optimiser of `benchmarks.stacks` in JAX: vmap over members, lax.scan over steps, one jit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks.stacks import RATE, batches
from headcount.experiments.training import initial_weights
from headcount.experiments.trial import Trial
from headcount.models import ModelConfig, NetworkConfig, build_ensemble
from headcount.tasks.task import IGNORED

Weights = dict[str, Any]
Array = Any


def _interleave(base: Array, mixing: Array) -> Array:
    mixed = jnp.einsum("mhp,...mnw->...hnpw", mixing, base)
    return mixed.reshape(*mixed.shape[:-3], -1, mixed.shape[-1])


def layer(weights: Weights, x: Array, config: ModelConfig) -> Array:
    """`headcount.models.Layer` for patterns from positions, contracted as there: in the order with fewest operations."""
    part = {name.removeprefix("attention."): value for name, value in weights.items()}
    queries, keys = part["query.positions"], part["key.positions"]
    beta, values, join = config.beta(queries.shape[-1]), part["value.features"], part["join.weight"]
    if config.attention == "mha":
        maps, own = jnp.einsum("hfw,hwo->hfo", values, join), "h"
        factors, operands = "hin,hjn", [queries * beta, keys]
        if config.score == "softmax":
            factors, operands = "hij", [jax.nn.softmax(jnp.einsum("hin,hjn->hij", *operands), -1)]
    elif config.score == "linear":
        left = jnp.einsum("hgp,mgp->mhg", part["collapse"] * beta, part["mix_query"])
        right = jnp.einsum("vgq,sgq->svg", part["mix_value"], part["mix_key"])
        maps, own = jnp.einsum("mhg,svg,vfw,hwo->msfo", left, right, values, join, optimize="optimal"), "ms"
        factors, operands = "min,sjn", [queries, keys]
    else:
        virtual = [_interleave(queries, part["mix_query"]), _interleave(keys, part["mix_key"])]
        scores = jax.nn.softmax(jnp.einsum("giw,gjw->gij", *virtual) * beta, -1)
        tokens, pseudo = queries.shape[1], config.pseudo
        split = scores.reshape(-1, tokens, pseudo, tokens, pseudo)
        by_source = jnp.einsum("vgq,gipjq->gvipj", part["mix_value"], split)
        maps, own = jnp.einsum("vfw,hwo->hvfo", values, join), "hv"
        factors, operands = "hvij", [jnp.einsum("hgp,gvipj->hvij", part["collapse"], by_source)]
    return jnp.einsum(f"{factors},bjf,{own}fo->bio", *operands, x, maps, optimize="optimal")


def _norm(x: Array, weights: Weights, name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _linear(x: Array, weights: Weights, name: str) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _attention(x: Array, valid: Array, weights: Weights, name: str, config: NetworkConfig) -> Array:
    part = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(name)}
    sides = [jnp.einsum("bnf,hfw->bhnw", x, part[f"{side}.features"]) for side in ("query", "key", "value")]
    mechanism = config.mechanisms[0]
    if mechanism.attention == "iha":
        sides = [
            _interleave(base, part[f"mix_{side}"]) for base, side in zip(sides, ("query", "key", "value"), strict=True)
        ]
        valid = jnp.repeat(valid, mechanism.pseudo, 1)
    queries, keys, values = sides
    scores = jnp.einsum("bhiw,bhjw->bhij", queries, keys) * queries.shape[-1] ** -0.5
    mixed = jax.nn.softmax(jnp.where(valid[:, None, None], scores, -jnp.inf), -1) @ values
    if mechanism.attention == "iha":
        split = mixed.reshape(*mixed.shape[:2], -1, mechanism.pseudo, mixed.shape[-1])
        mixed = jnp.einsum("hgp,bgnpw->bhnw", part["collapse"], split)
    return jnp.einsum("bhnw,hwo->bno", mixed, part["join.weight"])


def network(weights: Weights, ids: Array, config: NetworkConfig) -> Array:
    """`headcount.models.Network` with learned positions, LayerNorm and a GELU MLP."""
    valid = (ids != 0).any(-1)
    vectors = jnp.pad(weights["embedding.table"], ((0, 0), (1, 0), (0, 0)))
    x = sum(vectors[slot][ids[..., slot]] for slot in range(ids.shape[-1])) + weights["embedding.positions"]
    for block in range(config.depth):
        name = f"blocks.{block}"
        x = x + _attention(_norm(x, weights, f"{name}.attention_norm"), valid, weights, f"{name}.attention", config)
        hidden = _linear(_norm(x, weights, f"{name}.mlp_norm"), weights, f"{name}.mlp.maps.0")
        x = x + _linear(jax.nn.gelu(hidden, approximate=False), weights, f"{name}.mlp.maps.1")
    return _linear(_norm(x, weights, "final_norm"), weights, "head")


def _squares(outputs: Array, targets: Array) -> Array:
    return jnp.square(outputs - targets).mean()


def _cross_entropy(outputs: Array, targets: Array) -> Array:
    asked = targets != IGNORED
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs, -1), jnp.maximum(targets, 0)[..., None], -1)[..., 0]
    return -jnp.where(asked, chosen, 0.0).sum() / asked.sum()


class Peer:
    """An ensemble with the weights and batches of `benchmarks.stacks.Stacked`, trained by one compiled program."""

    def __init__(self, members: Sequence[Trial]) -> None:
        first = members[0]
        starts = [initial_weights(trial.seed) for trial in members]
        ensemble = build_ensemble(first.build_model, starts)
        stacked = ensemble.parameters([block.detach() for block in ensemble.weights])
        weights = {name: jnp.array(part.numpy()) for name, part in stacked.items()}
        mean, square = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
        self.state = (weights, mean, square, jnp.zeros((), jnp.int32))
        self.data = tuple(jnp.array(_narrow(tensor)) for tensor in batches(members))
        forward = partial(layer if isinstance(first.model, ModelConfig) else network, config=first.model)
        loss = _squares if first.task.kind == "real" else _cross_entropy
        self.program = _program(lambda weights, x, y: loss(forward(weights, x), y))

    def train(self, rounds: int) -> np.ndarray:
        self.state, losses = self.program(self.state, self.data, rounds)
        return np.asarray(losses)


def _narrow(tensor: torch.Tensor) -> np.ndarray:
    found: np.ndarray = (tensor if tensor.is_floating_point() else tensor.int()).numpy()
    return found


def _program(loss: Callable[[Weights, Array, Array], Array]) -> Callable[..., Any]:
    """(state, data, rounds) -> the state after that many passes over the batches, and the losses of the last."""
    every = jax.vmap(jax.value_and_grad(loss))

    def step(state: Any, batch: Any) -> Any:
        weights, mean, square, count = state
        losses, gradient = every(weights, *batch)
        count = count + 1
        mean = jax.tree.map(lambda m, g: m + 0.1 * (g - m), mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradient)
        first, second = 1 - 0.9**count, jnp.sqrt(1 - 0.999**count)

        def update(w: Array, m: Array, s: Array) -> Array:
            return w - RATE / first * m / (jnp.sqrt(s) / second + 1e-8)

        return (jax.tree.map(update, weights, mean, square), mean, square, count), losses

    @partial(jax.jit, donate_argnums=0)
    def run(state: Any, data: Any, rounds: Any) -> Any:
        def again(_: Any, carried: Any) -> Any:
            return jax.lax.scan(step, carried[0], data)

        shape = jax.eval_shape(lambda: jax.lax.scan(step, state, data)[1])
        return jax.lax.fori_loop(0, rounds, again, (state, jnp.zeros(shape.shape, shape.dtype)))

    return run
