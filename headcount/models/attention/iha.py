"""Interleaved head attention (arXiv 2602.21371, Sec. 4): P pseudo-heads per head, mixed from all heads."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.models.attention.config import AttentionConfig, Sizes
from headcount.models.attention.heads import Join, Projection, apply_patterns
from headcount.models.attention.scores import attention_weights, causal_mask, rotary


class InterleavedHeadAttention(nn.Module):
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
        heads, pseudo = config.heads, config.pseudo
        n, w = config.widths(sizes)
        shape = (heads, sizes.tokens, sizes.features)
        scale = config.position_scale(sizes)
        self.query = Projection(*shape, n, config.content, scale)
        self.key = Projection(*shape, n, config.content, scale)
        self.value = Projection(*shape, w, config.value_content, 1.0)
        self.mix_query = nn.Parameter(torch.empty(heads, heads, pseudo))
        self.mix_key = nn.Parameter(torch.empty(heads, heads, pseudo))
        self.mix_value = nn.Parameter(torch.empty(heads, heads, pseudo))
        self.collapse = nn.Parameter(
            torch.empty((heads, heads, pseudo) if config.collapse == "full" else (heads, pseudo))
        )
        self.join = Join(heads, w, sizes.outputs, config.output)
        self.inverse_temperature = config.beta(n)

    def reset(self, generator: torch.Generator) -> None:
        """Draw every weight anew.

        Mixings start at one of three points (`config.start`). With "identity" every pseudo-head is
        its own head, and without the noise added here they would stay tied for ever: their
        gradients are equal. "router" gives pseudo-head p the keys and values of head p mod H.
        "random" draws them from N(0, 1/H).
        """
        for part in (self.query, self.key, self.value, self.join):
            part.reset(generator)
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

    def virtual_tokens(
        self, base: Float[Tensor, "*batch heads tokens width"], mixing: Float[Tensor, "heads heads pseudo"]
    ) -> Float[Tensor, "*batch heads virtual width"]:
        """Mix the base heads and interleave the P pseudo-heads of each token."""
        mixed = torch.einsum("mhp,...mnw->...hnpw", mixing, base)
        return mixed.flatten(-3, -2)

    def weights(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> Float[Tensor, "*batch heads virtual_query virtual_key"]:
        """Attention weights of every head on the N P virtual tokens."""
        queries = self.virtual_tokens(self.query(x), self.mix_query)
        keys = self.virtual_tokens(self.key(x), self.mix_key)
        pseudo, virtual = self.config.pseudo, queries.shape[-2]
        index = torch.arange(virtual, device=x.device)
        if self.config.rope != "none":
            positions = index if self.config.rope == "virtual" else index // pseudo
            queries, keys = rotary(queries, positions), rotary(keys, positions)
        mask = None
        if self.config.mask == "flat-causal":
            mask = causal_mask(virtual, x.device)
        elif self.config.mask == "causal":
            token = index // pseudo
            mask = token[None, :] <= token[:, None]
        return attention_weights(queries, keys, self.config.score, self.inverse_temperature, mask)

    def linear_factors(
        self, x: Float[Tensor, "batch tokens features"]
    ) -> tuple[Float[Tensor, "*batch heads query inner"], Float[Tensor, "*batch heads key inner"]]:
        """L[h], S[m] with M[h, m] = L[h] S[m]^T (see `patterns`) for a linear score without mask or rope:
        the sums over pseudo-heads act on queries and keys before these meet. The inner axis is (g, n)."""
        collapse = self.collapse_matrix() * self.inverse_temperature
        mix_left = torch.einsum("hgp,mgp->mhg", collapse, self.mix_query)
        mix_right = torch.einsum("mgq,sgq->smg", self.mix_value, self.mix_key)
        left = torch.einsum("mhg,...miw->...higw", mix_left, self.query(x))
        right = torch.einsum("smg,...sjw->...mjgw", mix_right, self.key(x))
        return left.flatten(-2), right.flatten(-2)

    @property
    def _factors(self) -> bool:
        return self.config.score == "linear" and self.config.mask == "none" and self.config.rope == "none"

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

    def forward(self, x: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch tokens outputs"]:
        if self.config.content == "positions":
            return apply_patterns(self.patterns(x), self.value, self.join, x)
        values = self.value(x)
        if self._factors:
            left, right = self.linear_factors(x)
            summary = torch.einsum("bmjc,bmjw->bcw", right, values)
            return self.join(torch.einsum("bhic,bcw->bhiw", left, summary))
        virtual = self.weights(x) @ self.virtual_tokens(values, self.mix_value)
        outputs = virtual.unflatten(-2, (-1, self.config.pseudo))
        return self.join(torch.einsum("hgp,bgnpw->bhnw", self.collapse_matrix(), outputs))
