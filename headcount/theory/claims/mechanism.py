"""Claims about the mechanism itself: what it contains, what it adds, what it costs in patterns and parameters."""

from __future__ import annotations

from typing import Any

import torch

from headcount.models import AttentionConfig, Sizes
from headcount.models.attention import InterleavedHeadAttention, MultiHeadAttention
from headcount.theory.claims.claim import Claim, Evidence, Finding, Verdict
from headcount.theory.constructions import (
    FOLDS,
    Route,
    count_patterns,
    counterexample,
    deviation,
    every_route,
    folded_mechanism,
    folding,
    include,
    nonlinearity,
    strictness,
)
from headcount.theory.constructions.construction import gaussian_inputs, relative_deviation
from headcount.theory.constructions.inclusion import random_layer

EXACT = 1e-10
"""Deviations up to this are rounding in float64."""


def check_superset(evidence: Evidence) -> Finding:
    """Compile random multi-head layers along every route; the printed one is pseudo 1 with weight 1."""
    sizes = Sizes(5, 3, 7)
    worst_exact, broken, printed = 0.0, [], {}
    for route in every_route():
        gap = _route_gap(route, sizes)
        if route.exact:
            worst_exact = max(worst_exact, gap)
        elif gap <= EXACT and counterexample(route) is None:
            broken.append(route.label)
        if route.selector == "first" and not route.divided and route.pseudo == 2 and route.collapse == "full":
            printed[f"{route.score}, mask {route.mask}, rope {route.rope}"] = gap
    smallest = {}
    for route in (
        Route("linear", "none", "none", 2, "full", "first", False),
        Route("softmax", "flat-causal", "none", 2, "full", "first", False),
        Route("softmax", "none", "virtual", 2, "full", "first", False),
    ):
        found = counterexample(route)
        assert found is not None
        smallest[route.label] = {
            "tokens": found.sizes.tokens,
            "weights": found.weights,
            "x": found.inputs.flatten().tolist(),
            "multi-head": found.multi_head.flatten().tolist(),
            "interleaved": found.interleaved.flatten().tolist(),
        }
    holds = sum(gap <= EXACT for gap in printed.values())
    details = {"largest deviation of a route predicted exact": worst_exact, "printed route, P = 2": printed,
               "smallest counterexamples to the printed route": smallest}  # fmt: skip
    measured = f"printed R exact in {holds} of {len(printed)} forms (P = 2); corrected R at most {worst_exact:.0e} off"
    if worst_exact > EXACT or broken:
        return Finding(
            Verdict.REFUTED, "MHA = IHA with identity mixing", f"{measured}; rule broken: {broken}", details, True
        )
    return Finding(Verdict.CONDITION, "MHA = IHA with identity mixing", measured, details, corrected=Verdict.HOLDS)


def _route_gap(route: Route, sizes: Sizes) -> float:
    """Deviation of a random multi-head layer from the interleaved layer that a route makes of it."""
    layer = random_layer(route.multi_head(2, query_width=4, value_width=4), sizes, seed=0)
    assert isinstance(layer, MultiHeadAttention)
    x = gaussian_inputs(3, sizes.tokens, sizes.features)
    with torch.no_grad():
        return relative_deviation(include(layer, sizes, route)(x), layer(x))


def check_strict(evidence: Evidence) -> Finding:
    """The printed weights give a linear map on repeated tokens; with one sign changed, v tanh(<q, k>)."""
    x = 0.5 * gaussian_inputs(11, 1, 3, 1)[:, 0]
    pair = {sign: strictness(sign) for sign in (1, -1)}
    gaps = {sign: deviation(pair[sign]) for sign in (1, -1)}
    bends = {sign: nonlinearity(pair[sign].module, x, 5) for sign in (1, -1)}
    plain = MultiHeadAttention(
        AttentionConfig(heads=2, content="features", value_content="features", query_width=3), Sizes(5, 3, 7)
    ).double()
    plain.reset(torch.Generator().manual_seed(0))
    bends_plain = nonlinearity(plain, x, 5)
    details = {
        "deviation from v (printed sign) and from v tanh(<q, k>) (corrected sign)": [gaps[1], gaps[-1]],
        "nonlinearity on repeated tokens: printed, corrected, multi-head": [bends[1], bends[-1], bends_plain],
    }
    measured = (
        f"nonlinearity {bends[1]:.0e} as printed, {bends[-1]:.2f} with alphaV[., 2] = -1, {bends_plain:.0e} for MHA"
    )
    printed_fails = bends[1] <= EXACT and gaps[1] <= EXACT
    corrected_holds = bends[-1] > 0.1 and gaps[-1] <= EXACT and bends_plain <= EXACT
    if not corrected_holds:
        return Finding(Verdict.REFUTED, "nonlinear on repeated tokens", measured, details, True, Verdict.REFUTED)
    verdict = Verdict.REFUTED if printed_fails else Verdict.HOLDS
    return Finding(verdict, "nonlinear on repeated tokens", measured, details, corrected=Verdict.HOLDS)


def check_patterns(evidence: Evidence) -> Finding:
    """Ranks of score matrices and softmax maps over random layers."""
    rows: list[dict[str, Any]] = []
    right = True
    for heads, pseudo in ((1, 1), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)):
        counted = count_patterns(heads, pseudo, tokens=13)
        rows.append({"heads": heads, "pseudo": pseudo, **vars(counted)})
        right &= counted.softmax_rank == heads * pseudo**2
        right &= counted.score_rank == min(heads**2, heads * pseudo**2)
        right &= counted.head_rank == min(heads, pseudo) ** 2
    last = rows[-1]
    measured = f"H = P = 3: {last['softmax_rank']} softmax maps, {last['score_rank']} score matrices are independent"
    if not right:
        return Finding(Verdict.REFUTED, "P^2 a head, H P^2 in all", measured, {"ranks": rows}, True)
    return Finding(Verdict.CONDITION, "P^2 a head, H P^2 in all", measured, {"ranks": rows}, corrected=Verdict.HOLDS)


def check_overhead(evidence: Evidence) -> Finding:
    """Parameters of an interleaved layer minus those of the multi-head layer of the same widths, counted."""
    sizes = Sizes(7, 5, 11)
    rows: list[dict[str, Any]] = []
    for heads in (1, 2, 3, 5):
        for pseudo in (1, 2, 4):
            for collapse, formula in (
                ("full", 4 * heads**2 * pseudo),
                ("per-head", 3 * heads**2 * pseudo + heads * pseudo),
            ):
                fields: dict[str, Any] = {"heads": heads, "value_width": 13}
                plain = MultiHeadAttention(AttentionConfig(**fields), sizes)
                mixed = InterleavedHeadAttention(
                    AttentionConfig.parse({**fields, "attention": "iha", "pseudo_heads": pseudo, "collapse": collapse}), sizes
                )  # fmt: skip
                extra = sum(p.numel() for p in mixed.parameters()) - sum(p.numel() for p in plain.parameters())
                rows.append(
                    {"heads": heads, "pseudo": pseudo, "collapse": collapse, "extra": extra, "formula": formula}
                )
    wrong = [row for row in rows if row["extra"] != row["formula"]]
    measured = f"{len(rows) - len(wrong)} of {len(rows)} counted layers agree (per-head collapse: 3 H^2 P + H P)"
    verdict = Verdict.REFUTED if wrong else Verdict.HOLDS
    return Finding(verdict, "4 H^2 P extra parameters", measured, {"counts": rows}, bool(wrong))


def check_fold(evidence: Evidence) -> Finding:
    """Fold interleaved layers with P = 1 into multi-head layers, for every score, mask and rope."""
    sizes, worst, cases = Sizes(5, 2, 7), 0.0, 0
    for score in ("linear", "softmax", "hard"):
        for mask in ("none", "causal", "flat-causal"):
            for rope in ("none", "token", "virtual"):
                for collapse in ("full", "per-head"):
                    config = AttentionConfig.parse(
                        {"attention": "iha", "heads": 3, "pseudo_heads": 1, "score": score, "mask": mask, "rope": rope,
                         "collapse": collapse, "query_width": 4}
                    )  # fmt: skip
                    worst, cases = max(worst, deviation(folding(config, sizes, seed=cases))), cases + 1
    others = {name: deviation(folded_mechanism(name)) for name in FOLDS}
    worst = max(worst, *others.values())
    measured = f"{cases} forms of IHA with P = 1, and {', '.join(others)}: at most {worst:.0e} off"
    verdict = Verdict.HOLDS if worst <= EXACT else Verdict.REFUTED
    return Finding(
        verdict,
        "these mechanisms = MHA (GQA) with folded weights",
        measured,
        {"largest deviation": worst, "other mechanisms": others},
        worst > EXACT,
    )


MECHANISM = [
    Claim(
        "superset",
        "Every MHA layer is an IHA layer with identity mixing, for any number of pseudo-heads.",
        "Sec. 4.1, B.1",
        "With identity mixing the P virtual tokens of a token are copies. Softmax shares the weight of a key among its "
        "copies, so any one pseudo-head gives the head's output. Linear weights add up to P times it. Under a causal mask "
        "on the flat virtual order pseudo 1 sees one copy of its own token and P of the others; only the last pseudo sees "
        "all. Rotary positions on the virtual index turn the copies apart, and nothing in R can undo that.",
        check_superset,
        printed="R selects pseudo 1 of each head with weight 1, in every form.",
        corrected="R sums to 1 (softmax) or 1/P (linear), selects the last pseudo-head under a flat causal mask, and rope "
        "turns by token positions; with virtual rope no R is exact.",
    ),
    Claim(
        "strict",
        "The inclusion is strict for P >= 2: some IHA layer is not linear on repeated tokens X = 1 x^T.",
        "Sec. B.1",
        "On repeated tokens without positions every MHA head averages equal values, so it is linear in x. The printed IHA "
        "weights give virtual keys k and -k but values v and v, so it averages equal values too. Values v and -v give "
        "(e^s - e^-s)/(e^s + e^-s) v = tanh(s) v with s = <q, k>.",
        check_strict,
        printed="alphaV[., 1] = alphaV[., 2] = +1.",
        corrected="alphaV[., 2] = -1; the output is v tanh(<x W_Q, x W_K>).",
    ),
    Claim(
        "patterns",
        "A head realises up to P^2 attention patterns, H P^2 in all.",
        "Sec. 4.1",
        "Score matrices Q~[h,p] K~[h,q]^T are bilinear in the base heads: all of them lie in the span of the H^2 products "
        "Q_m K_s^T, and those of one head in min(P, H)^2 dimensions. The softmax is not linear, so the maps after it can "
        "all be independent.",
        check_patterns,
        printed="H P^2 patterns.",
        corrected="H P^2 softmax maps, but only min(H^2, H P^2) independent score matrices, which is what linear attention has.",
    ),
    Claim(
        "overhead",
        "IHA adds 4 H^2 P parameters to MHA.",
        "Sec. 4",
        "Three mixings of H x H x P and a collapse of H x (H P).",
        check_overhead,
    ),
    Claim(
        "fold",
        "IHA with P = 1 and any mixings computes nothing that MHA does not; nor do MQA, GQA, linear Knocking-Heads, MEA "
        "without its norm, and VHA (against GQA).",
        "ours",
        "With one virtual token a token, mixings are linear maps across heads before the scores and after the values, so "
        "they multiply into W_Q, W_K, W_V and W_O. A rotation common to all heads commutes with them. The other mechanisms' "
        "maps are of the same kinds: within a head, across heads, or repeated heads.",
        check_fold,
    ),
]
