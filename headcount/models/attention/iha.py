"""Interleaved head attention (arXiv 2602.21371, Sec. 4): P pseudo-heads per head, mixed from all heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.config import BadInput
from headcount.models.attention.config import AttentionConfig, Sizes
from headcount.models.attention.heads import Join, Projection, apply_patterns
from headcount.models.attention.masks import over_visible
from headcount.models.attention.mechanism import Attention
from headcount.models.attention.mha import FeatureConfig
from headcount.models.attention.scores import attend, attention_weights, rotary


class InterleavedConfig(FeatureConfig):
    """Interleaved head attention in a network: 4 D^2 + 4 H^2 P parameters (3 H^2 P + H P with collapse
    "per-head"), 8 N D^2 + 8 N H P D + 4 (N P)^2 D operations."""

    label: ClassVar[str] = "Interleaved head attention"
    source: ClassVar[str] = "arXiv 2602.21371, Sec. 4"
    memory: ClassVar[str] = "N P D (fused); H (N P)^2 if the weights are held"
    folds: ClassVar[str] = "only for P = 1"

    attention: Literal["iha"] = "iha"


def matched_window(tokens: int, pseudo: int) -> int:
    """W = N / (2 P^2), rounded: the window at which local interleaved attention costs half of what global
    multi-head attention does (arXiv 2602.21371, App. C).

    Raises:
        BadInput: if W is below one token, so that no window matches.
    """
    if tokens < 2 * pseudo**2:
        raise BadInput(f"{tokens} tokens are too few to match P = {pseudo}: a window of N / (2 P^2) needs N >= 2 P^2")
    return round(tokens / (2 * pseudo**2))


def interleave(
    base: Float[Tensor, "*batch heads tokens width"], mixing: Float[Tensor, "heads target pseudo"]
) -> Float[Tensor, "*batch target virtual width"]:
    """Mix the base heads into P pseudo-heads per head; token n's lie at indices n P .. n P + P - 1."""
    return torch.einsum("mhp,...mnw->...hnpw", mixing, base).flatten(-3, -2)


def collapse_pseudo(
    outputs: Float[Tensor, "batch heads virtual width"], collapse: Float[Tensor, "heads *sources pseudo"]
) -> Float[Tensor, "batch heads tokens width"]:
    """O_h = sum_{g,p} R[h,g,p] Out[g,p], or sum_p R[h,p] Out[h,p] where R has no source axis."""
    split = outputs.unflatten(-2, (-1, collapse.shape[-1]))
    return torch.einsum("hgp,bgnpw->bhnw" if collapse.dim() == 3 else "hp,bhnpw->bhnw", collapse, split)


class InterleavedHeadAttention(Attention):
    """With base projections Q_m, K_m, V_m of the H heads m:

        Q~[h,p] = sum_m mix_query[m,h,p] Q_m        (same for keys and values)
        each token n becomes P virtual tokens (n,1) .. (n,P) at virtual index n P + p
        Out[h]  = score(Q~[h] K~[h]^T) V~[h]         on the N P virtual tokens of head h
        O_h     = sum_{g,p} collapse[h,g,p] Out[g,p]

    and O_1 .. O_H are concatenated or mixed by W_O (`Join`). With collapse "per-head", O_h reads
    its own head only: sum_p collapse[h,p] Out[h,p].

    Parameters: those of multi-head attention, 3 H^2 P for the three mixings, and H^2 P (full) or
    H P (per-head) for the collapse.
    """

    def __init__(self, config: AttentionConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.options = config.options()
        heads, pseudo = config.heads, config.pseudo
        n, w = config.widths(sizes)
        shape = (heads, sizes.tokens, sizes.features)
        scale, bias = config.position_scale(sizes), self.options.bias
        self.query = Projection(*shape, n, config.content, scale, bias)
        self.key = Projection(*shape, n, config.content, scale, bias)
        self.value = Projection(*shape, w, config.value_content, 1.0, bias)
        self.mix_query = nn.Parameter(torch.empty(heads, heads, pseudo))
        self.mix_key = nn.Parameter(torch.empty(heads, heads, pseudo))
        self.mix_value = nn.Parameter(torch.empty(heads, heads, pseudo))
        self.collapse = nn.Parameter(
            torch.empty((heads, heads, pseudo) if config.collapse == "full" else (heads, pseudo))
        )
        self.join = Join(heads, w, sizes.outputs, config.output, bias)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew.

        Mixings start at one of three points (`config.start`). With "identity" every pseudo-head is
        its own head, and without the noise added here they would stay tied for ever: their
        gradients are equal. "router" gives pseudo-head p the keys and values of head p mod H.
        "random" draws them from N(0, 1/H).
        """
        super().reset(generator)
        heads, _, pseudo = self.mix_query.shape
        own = torch.eye(heads)[:, :, None].expand(heads, heads, pseudo)
        routed = torch.eye(heads).repeat(1, -(-pseudo // heads))[:, None, :pseudo].expand(heads, heads, pseudo)
        start, noise = self.config.start, self.config.start_noise
        mixings = (self.mix_query, self.mix_key, self.mix_value)
        for mixing, centre in zip(mixings, (own, routed, routed), strict=True):
            if start == "random":
                mixing.data.normal_(0.0, heads**-0.5, generator=generator)
            else:
                mixing.data.normal_(0.0, noise, generator=generator)
                mixing.data.add_(own if start == "identity" else centre)
        sources = self.collapse[0].numel()
        if start == "random":
            self.collapse.data.normal_(0.0, sources**-0.5, generator=generator)
        else:
            self.collapse.data.normal_(0.0, noise / pseudo, generator=generator)
            self.collapse.data.add_((own if self.collapse.dim() == 3 else torch.ones(heads, pseudo)) / pseudo)

    def collapse_matrix(self) -> Float[Tensor, "heads heads pseudo"]:
        """R[h, g, p], block diagonal when the collapse is per head."""
        if self.collapse.dim() == 3:
            return self.collapse
        identity = torch.eye(len(self.collapse), dtype=self.collapse.dtype, device=self.collapse.device)
        return identity[:, :, None] * self.collapse[:, None, :]

    def queries_keys(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> tuple[Float[Tensor, "*batch heads virtual width"], Float[Tensor, "*batch heads virtual width"]]:
        """Those of the virtual tokens, rotated with rope; no batch axis when only positions are read."""
        queries, keys = interleave(self.query(x), self.mix_query), interleave(self.key(x), self.mix_key)
        if self.config.rope != "none":
            index = torch.arange(queries.shape[-2], device=x.device)
            positions = index if self.config.rope == "virtual" else index // self.config.pseudo
            queries = rotary(queries, positions, self.options.rope_base)
            keys = rotary(keys, positions, self.options.rope_base)
        return queries, keys

    def weights(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "*batch heads virtual_query virtual_key"]:
        """Attention weights of every head on the N P virtual tokens."""
        queries, keys = self.queries_keys(x)
        mask = self.config.visibility.dense(queries.shape[-2], valid, x.device)
        if mask is not None and valid is None:
            mask = mask[0, 0]
        return attention_weights(queries, keys, self.config.score, self.inverse_temperature, mask)

    def linear_mixings(self) -> tuple[Float[Tensor, "heads heads groups"], Float[Tensor, "heads heads groups"]]:
        """L[m,h,g], S[s,v,g] for a linear score without mask or rope, where the sums over pseudo-heads act on
        queries and keys before these meet: output head h attends to the values of base head v with
        sum_{m,s,g} L[m,h,g] S[s,v,g] Q_m K_s^T."""
        left = torch.einsum("hgp,mgp->mhg", self.collapse_matrix() * self.inverse_temperature, self.mix_query)
        right = torch.einsum("vgq,sgq->svg", self.mix_value, self.mix_key)
        return left, right

    def linear_factors(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> tuple[Float[Tensor, "*batch heads query inner"], Float[Tensor, "*batch heads key inner"]]:
        """L[h], S[v] with M[h, v] = L[h] S[v]^T (see `patterns`) for a linear score without mask or rope.
        The inner axis is (g, n)."""
        mix_left, mix_right = self.linear_mixings()
        left = torch.einsum("mhg,...miw->...higw", mix_left, self.query(x))
        right = torch.einsum("svg,...sjw->...vjgw", mix_right, self.key(x))
        return left.flatten(-2), right.flatten(-2)

    @property
    def _factors(self) -> bool:
        seen = self.config.visibility
        return (
            self.config.score == "linear" and seen.mask == "none" and seen.window is None and self.config.rope == "none"
        )

    def patterns(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> Float[Tensor, "*batch heads source_heads query key"]:
        """M[h, m]: how output head h attends to the values of base head m once pseudo-heads are mixed
        and collapsed: sum_{g,p,q} R[h,g,p] mix_value[m,g,q] A_g[(i,p), (j,q)]. At most H^2 matrices."""
        if self._factors:
            left, right = self.linear_factors(x)
            return torch.einsum("...hic,...mjc->...hmij", left, right)
        pseudo = self.config.pseudo
        split = self.weights(x).unflatten(-1, (-1, pseudo)).unflatten(-3, (-1, pseudo))
        by_source = torch.einsum("mgq,...gipjq->...gmipj", self.mix_value, split)
        return torch.einsum("hgp,...gmipj->...hmij", self.collapse_matrix(), by_source)

    def forward(
        self, x: Float[Tensor, "batch tokens features"], valid: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens outputs"]:
        if self.config.content == "positions" and valid is None:
            if self._factors:
                factors, mixers = (self.query(x), self.key(x)), self.linear_mixings()
                return apply_patterns("min,sjn", factors, self.value, self.join, x, "mhg,svg", mixers)
            return apply_patterns("hvij", [self.patterns(x)], self.value, self.join, x)
        values = self.value(x)
        if self._factors:
            left, right = (factor.expand(len(x), -1, -1, -1) for factor in self.linear_factors(x))
            values = values if valid is None else values.masked_fill(~valid[:, None, :, None], 0.0)
            summary = torch.einsum("bmjc,bmjw->bcw", right, values)
            return self.join(torch.einsum("bhic,bcw->bhiw", left, summary))
        values = interleave(values, self.mix_value)
        queries, keys = (part.expand(*values.shape[:-1], -1) for part in self.queries_keys(x))
        visibility, beta, score = self.config.visibility, self.inverse_temperature, self.config.score
        if score == "softmax":
            outputs = attend(queries, keys, values, beta, visibility, valid)
        else:

            def core(query_side: Sequence[Tensor], key_side: Sequence[Tensor], mask: Tensor | None) -> Tensor:
                return attention_weights(query_side[0], key_side[0], score, beta, mask) @ key_side[1]

            outputs = over_visible(core, [queries], [keys, values], visibility, valid)
        return self.join(collapse_pseudo(outputs, self.collapse))
