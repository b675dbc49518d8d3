"""What a construction is: weights compiled into a module class that is also trained, beside the semantics
they must have. Everything is float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.config import BadInput
from headcount.models import MECHANISMS, AttentionConfig, Sizes
from headcount.models.attention import InterleavedHeadAttention, MultiHeadAttention

Inputs = Float[Tensor, "examples tokens features"]
Outputs = Float[Tensor, "examples tokens outputs"]
Semantics = Callable[[Tensor], Tensor]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class NoConstruction(BadInput):
    """A case that a construction does not cover; the message says why."""


@dataclass(frozen=True)
class Construction:
    """A proof that runs: `module` computes `semantics` on `inputs`.

    Attributes:
        name: of the construction and its case.
        statement: what is proved.
        source: where the statement stands in arXiv 2602.21371, or that it does not.
        module: the compiled weights.
        semantics: the same function without attention, (examples, N, d) -> (examples, N, outputs).
        inputs: where both are compared: a basis for linear maps, all inputs where there are few, else random.
        tolerance: largest deviation that rounding explains.
        read: only the first `read` output columns count; all if not given.
        limit: what `semantics` tends to, for a member of a family that is exact only in a limit.
    """

    name: str
    statement: str
    source: str
    module: nn.Module
    semantics: Semantics
    inputs: Inputs
    tolerance: float = 1e-12
    read: int | None = None
    limit: Semantics | None = None

    @property
    def parameters(self) -> int:
        """Trained parameters of the compiled module, counted."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def outputs(self) -> Outputs:
        """What the module says on the inputs, in the columns that count."""
        with torch.no_grad():
            return self.module(self.inputs)[..., : self.read]


def deviation(construction: Construction) -> float:
    """Largest absolute difference between module and semantics over the largest absolute expected output."""
    return relative_deviation(construction.outputs(), construction.semantics(construction.inputs))


def distance_to_limit(construction: Construction) -> float:
    """`deviation` from what the construction tends to, or from its semantics if it is no limit."""
    expected = (construction.limit or construction.semantics)(construction.inputs)
    return relative_deviation(construction.outputs(), expected)


def relative_deviation(outputs: Tensor, expected: Tensor) -> float:
    """max |outputs - expected| / max |expected|; infinite if anything is not finite or shapes differ."""
    if outputs.shape != expected.shape or not bool(outputs.isfinite().all()):
        return math.inf
    scale = float(expected.abs().max())
    return float((outputs - expected).abs().max()) / (scale if scale > 0 else 1.0)


def fill(module: AnyModule, weights: Mapping[str, Tensor]) -> AnyModule:
    """Set the named parameters of a module, cast to float64, and all others to zero.

    Raises:
        KeyError: if the module has no parameter of a given name.
        ValueError: if a shape differs.
    """
    module = module.double()
    parameters = dict(module.named_parameters())
    if unknown := sorted(set(weights) - set(parameters)):
        raise KeyError(f"no parameter {unknown}; there are {sorted(parameters)}")
    for name, parameter in parameters.items():
        weight = weights.get(name)
        if weight is not None and weight.shape != parameter.shape:
            raise ValueError(f"{name} has shape {tuple(parameter.shape)}, not {tuple(weight.shape)}")
        parameter.data.zero_() if weight is None else parameter.data.copy_(weight)
    return module


def compile_attention(
    config: AttentionConfig, sizes: Sizes, weights: Mapping[str, Tensor]
) -> MultiHeadAttention | InterleavedHeadAttention:
    """The attention layer of a configuration with given weights; weights that are not named are zero."""
    return fill(MECHANISMS[config.attention](config, sizes), weights)


def identity(size: int) -> Float[Tensor, "size size"]:
    """I in float64."""
    return torch.eye(size, dtype=torch.float64)


def routers(heads: int) -> dict[str, Float[Tensor, "heads heads heads"]]:
    """The mixings and the collapse of paper Sec. B.2, B.3, with P = H:

    alphaQ[m,h,j] = 1(m = h) 1(j = 1),   alphaK[m,h,j] = alphaV[m,h,j] = 1(m = j),
    R[h,g,p] = 1(g = h) 1(p = 1).

    So virtual query (n, 1) of head h is Q_h, its virtual keys and values (n, j) are K_j and V_j, and
    O_h = sum_j score(Q_h, K_j) V_j.
    """
    own_first = torch.zeros(heads, heads, heads, dtype=torch.float64)
    own_first[:, :, 0] = identity(heads)
    by_pseudo = identity(heads)[:, None, :].repeat(1, heads, 1)
    return {"mix_query": own_first, "mix_key": by_pseudo, "mix_value": by_pseudo, "collapse": own_first}


def ceil_sqrt(number: int) -> int:
    """Smallest H with H^2 >= number, for number >= 1, in integer arithmetic."""
    return math.isqrt(number - 1) + 1


def owned_outputs(outputs: int, heads: int) -> Iterator[tuple[int, int, int]]:
    """(head, column of the head, output) as concatenated heads divide the outputs (`Join`): head h owns
    outputs ceil(h outputs / H) up to the first of head h + 1."""
    first = [-(-head * outputs // heads) for head in range(heads + 1)]
    for head in range(heads):
        for output in range(first[head], first[head + 1]):
            yield head, output - first[head], output


def linear_probes(tokens: int, features: int, seed: int = 0) -> Inputs:
    """All N d unit inputs, which decide a linear map, and eight Gaussian ones, which expose any other."""
    units = identity(tokens * features).reshape(-1, tokens, features)
    return torch.cat([units, gaussian_inputs(8, tokens, features, seed)])


def gaussian_inputs(examples: int, tokens: int, features: int, seed: int = 0) -> Inputs:
    """Independent standard normal entries."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, tokens, features, generator=generator, dtype=torch.float64)


def integer_inputs(tokens: int, low: int, high: int, limit: int = 4096, seed: int = 0) -> Inputs:
    """Every sequence of N integers in low..high if at most `limit`, else `limit` / 64 random ones."""
    if (high - low + 1) ** tokens <= limit:
        every = list(itertools.product(range(low, high + 1), repeat=tokens))
        return torch.tensor(every, dtype=torch.float64)[..., None]
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(low, high + 1, (limit // 64, tokens, 1), generator=generator)
    return draws.double()
