"""The overview of interleaved head attention (paper Fig. 1), drawn from a compiled layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from torch import Tensor

from headcount.figures.style import DOUBLE, SERIES
from headcount.models.attention import InterleavedHeadAttention
from headcount.models.attention.iha import interleave
from headcount.tasks.operators import cyclic_shift
from headcount.theory.claims import Evidence
from headcount.theory.constructions.polynomial import iha_polynomial, powers_of

TOKENS, TERMS = 6, 4
POWERS = ("I", "A", "A^2", "A^3")


def example_layer() -> InterleavedHeadAttention:
    """X -> [X, A X, A^2 X, A^3 X] for the cyclic shift A, with H = P = 2, all four powers in head 1.

    The base heads are those of Sec. B.2 (`iha_polynomial`): Q_m = A^(2(m-1)), K_m = (A^(m-1))^T, and V_m holds X
    in column m. Its routers use P of the P^2 maps of each head. Here

        alpha[m,1,p] = 1(m = p) for queries, keys and values, and head 2 has none,
        R[h,1,p] = 1(p = h),

    so that pseudo query p and pseudo key q of head 1 meet in A^(2(p-1)) A^(q-1), and output head h reads
    pseudo-head h: sum_q A^(2(h-1) + q-1) V_q = [A^(2(h-1)) X, A^(2(h-1)+1) X].
    """
    layer = iha_polynomial(cyclic_shift(TOKENS), TERMS, content="positions", value_content="features").module
    assert isinstance(layer, InterleavedHeadAttention)
    own = torch.eye(len(layer.mix_query), dtype=torch.float64)
    for mixing in (layer.mix_query, layer.mix_key, layer.mix_value):
        mixing.data.zero_()[:, 0, :] = own
    layer.collapse.data.zero_()[:, 0, :] = own
    return layer


def power_name(pattern: Float[Tensor, "tokens tokens"]) -> str:
    """Which power of the cyclic shift a map is, or its transpose; "?" for another."""
    powers = powers_of(cyclic_shift(len(pattern)), TERMS)
    known = {**dict(zip(POWERS, powers, strict=True)), "A^T": powers[1].T}
    return next((name for name, power in known.items() if torch.allclose(pattern, power)), "?")


def _map(axis: Axes, values: Tensor, title: str, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> None:
    """A heat map of values between 0 and 1."""
    height, width = values.shape
    axis.pcolormesh(values.numpy(), cmap="Blues", vmin=0, vmax=1.15, edgecolors="#cccccc", linewidth=0.4)
    axis.invert_yaxis()
    axis.set_aspect("equal")
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labelsize=6, pad=1)
    axis.set_title(title, fontsize=7)
    axis.set_xticks([place + 0.5 for place in range(width)][: len(columns)], columns)
    axis.set_yticks([place + 0.5 for place in range(height)][: len(rows)], rows)


def _routing(axis: Axes, values: Float[Tensor, "heads others pseudo"], title: str, symbol: str) -> None:
    """A mixing or the collapse as a heat map with its numbers; columns are pseudo-heads (h, p)."""
    heads, others, pseudo = values.shape
    columns = [f"{h + 1},{p + 1}" for h in range(others) for p in range(pseudo)]
    _map(axis, values.flatten(1), title, [f"${symbol}_{m + 1}$" for m in range(heads)], columns)
    for (m, column), value in np.ndenumerate(values.flatten(1).numpy()):
        colour = "white" if value > 0.6 else "#777777"
        axis.text(column + 0.5, m + 0.5, f"{value:g}", ha="center", va="center", fontsize=6, color=colour)


def _interleaving(axis: Axes, layer: InterleavedHeadAttention) -> None:
    """Tokens above, virtual tokens of head 1 below. Numbers are what the layer's own interleaving makes of them."""
    heads, pseudo = len(layer.mix_query), layer.config.pseudo
    mixing = layer.mix_query[:, :1]
    numbers = torch.arange(1.0, TOKENS + 1, dtype=torch.float64).expand(heads, TOKENS)[..., None]
    sources = torch.arange(1.0, heads + 1, dtype=torch.float64)[:, None, None].expand(heads, TOKENS, 1)
    token, source = (interleave(base, mixing)[0, :, 0].int().tolist() for base in (numbers, sources))
    for n in range(TOKENS):
        _box(axis, n * pseudo + pseudo / 2, 1.0, pseudo * 0.55, SERIES[n], f"token {n + 1}")
    for index, (n, m) in enumerate(zip(token, source, strict=True)):
        _box(axis, index + 0.5, 0.0, 0.86, SERIES[n - 1], f"({n}, {index % pseudo + 1})")
        axis.plot([(n - 0.5) * pseudo, index + 0.5], [0.78, 0.22], color=SERIES[n - 1], lw=0.7)
        axis.text(index + 0.5, -0.42, f"Q$_{m}$ of {n}", ha="center", va="center", fontsize=6, color="#555555")
    axis.set_xlim(0, TOKENS * pseudo)
    axis.set_ylim(-0.6, 1.25)
    axis.set_axis_off()


def _box(axis: Axes, x: float, y: float, width: float, colour: str, text: str) -> None:
    axis.add_patch(Rectangle((x - width / 2, y - 0.22), width, 0.44, fc=colour, ec=colour, alpha=0.25, lw=0))
    axis.text(x, y, text, ha="center", va="center", fontsize=6.5)


def iha_overview(evidence: Evidence) -> Figure:
    """Interleaved head attention at work (paper Fig. 1): every number is read from one compiled layer of H = P = 2
    heads that computes [X, A X, A^2 X, A^3 X] for a cyclic shift A.

    Needs no stored rows.
    """
    layer = example_layer()
    heads, pseudo = len(layer.mix_query), layer.config.pseudo
    x = torch.zeros(1, TOKENS, 1, dtype=torch.float64)
    x[0, 0] = 1.0
    figure = plt.figure(figsize=(DOUBLE, 4.7))
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=[1.15, 1.0, 2.0])
    with torch.no_grad():
        weights, outputs = layer.weights(x)[0], layer(x)[0]
        base = {"Q": layer.query.positions, "K": layer.key.positions}
        mixings = {"Q": layer.mix_query, "K": layer.mix_key, "V": layer.mix_value}
        _heading(
            top, f"1. Mixing: base heads, here of positions alone, become {pseudo} pseudo-heads (h, p) of each head"
        )
        line = iter(top.subplots(1, 2 * heads + 3, width_ratios=[1] * 2 * heads + [1.35] * 3))
        for symbol, weight in base.items():
            assert weight is not None
            for m in range(heads):
                _map(next(line), weight[m], f"$W_{symbol}^{m + 1} = {power_name(weight[m])}$")
        for symbol, mixing in mixings.items():
            _routing(next(line), mixing, f"$\\alpha^{symbol}$", symbol)
        _heading(
            middle, f"2. Interleaving: {TOKENS} tokens n become {TOKENS * pseudo} virtual tokens (n, p), here of head 1"
        )
        _interleaving(middle.subplots(), layer)
        _heading(bottom, "3. Attention of head 1 on the virtual tokens: P$^2$ maps between real tokens")
        grid = bottom.add_gridspec(2, 4, width_ratios=[2.2, 1, 1, 1.7])
        whole = bottom.add_subplot(grid[:, 0])
        _map(whole, weights, "all virtual queries and keys")
        for edge in range(0, TOKENS * pseudo + 1, pseudo):
            whole.axhline(edge, color="#888888", lw=0.5)
            whole.axvline(edge, color="#888888", lw=0.5)
        whole.set_xlabel("virtual key (j, q)", fontsize=7)
        whole.set_ylabel("virtual query (i, p)", fontsize=7)
        maps = weights.unflatten(1, (TOKENS, pseudo)).unflatten(0, (TOKENS, pseudo)).permute(1, 3, 0, 2)
        for p, q in product(range(pseudo), repeat=2):
            name = power_name(maps[p, q])
            _map(bottom.add_subplot(grid[p, 1 + q]), maps[p, q], f"p = {p + 1}, q = {q + 1}: ${name}$")
        _routing(bottom.add_subplot(grid[0, 3]), layer.collapse, "4. Collapse R to output heads", "O")
        rows = ["input X", *(f"${name.replace('I', '')}X$" for name in POWERS)]
        _map(bottom.add_subplot(grid[1, 3]), torch.cat([x[0], outputs], -1).T, "token 1 in, and what comes out", rows)
    return figure


def _heading(part: SubFigure, text: str) -> None:
    part.suptitle(text, fontsize=8, x=0.01, ha="left")
