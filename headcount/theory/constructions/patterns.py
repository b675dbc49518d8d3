"""How many attention patterns an interleaved layer has: P^2 a head and H P^2 in all (paper Sec. 4.1), counted
as the numerical rank of the set of matrices.

Scores before the softmax are bilinear in the base heads, Q~[h,p] K~[h,q]^T = sum_(m,m') alphaQ[m,h,p]
alphaK[m',h,q] Q_m K_m'^T, so all H P^2 of them lie in a space of dimension H^2, and the P^2 of one head in
one of dimension min(P, H)^2. The softmax is not linear, so after it they can be all independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.models import AttentionConfig, Sizes
from headcount.models.attention import InterleavedHeadAttention
from headcount.theory.constructions.construction import NoConstruction, compile_attention


@dataclass(frozen=True)
class PatternCount:
    """Matrices of a layer and the dimensions they span.

    Attributes:
        blocks: H P^2, how many there are.
        score_rank: dimension spanned by the score matrices.
        head_rank: largest dimension spanned by the score matrices of one head.
        softmax_rank: dimension spanned by the softmax maps, block (p, q) of head h.
        mixed_rank: dimension spanned by the H^2 patterns M[h, m] that reach the values.
    """

    blocks: int
    score_rank: int
    head_rank: int
    softmax_rank: int
    mixed_rank: int


def numerical_rank(matrices: Float[Tensor, "count rows columns"], tolerance: float = 1e-9) -> int:
    """Dimension of the span: singular values above `tolerance` times the largest."""
    values = torch.linalg.svdvals(matrices.flatten(1))
    return int((values > tolerance * values[0]).sum())


def count_patterns(heads: int, pseudo: int, tokens: int, seed: int = 0) -> PatternCount:
    """Ranks for random weights and one random input of width d = 3.

    Raises:
        NoConstruction: if N^2 < H P^2, where N x N matrices cannot be independent for lack of room.
    """
    blocks = heads * pseudo**2
    if tokens**2 < blocks:
        raise NoConstruction(f"N = {tokens}: {blocks} patterns of {tokens**2} entries cannot be independent")
    config = AttentionConfig(attention="iha", heads=heads, pseudo_heads=pseudo)
    layer = compile_attention(config, Sizes(tokens, 3, heads), {})
    assert isinstance(layer, InterleavedHeadAttention)
    generator = torch.Generator().manual_seed(seed)
    layer.reset(generator)
    x = torch.randn(1, tokens, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        queries = torch.einsum("mhp,bmnw->hpnw", layer.mix_query, layer.query(x))
        keys = torch.einsum("mhp,bmnw->hpnw", layer.mix_key, layer.key(x))
        scores = torch.einsum("hpiw,hqjw->hpqij", queries, keys)
        # Virtual index n P + p: rows split into (i, p), columns into (j, q).
        maps = layer.weights(x)[0].reshape(heads, tokens, pseudo, tokens, pseudo).permute(0, 2, 4, 1, 3)
        mixed = layer.patterns(x)[0]
    return PatternCount(
        blocks=blocks,
        score_rank=numerical_rank(scores.flatten(0, 2)),
        head_rank=max(numerical_rank(head.flatten(0, 1)) for head in scores),
        softmax_rank=numerical_rank(maps.flatten(0, 2)),
        mixed_rank=numerical_rank(mixed.flatten(0, 1)),
    )
