"""Every mechanism in every form, as one table for several suites; dimensions are pairwise distinct primes."""

from __future__ import annotations

from typing import Any

import torch

from headcount.models.attention import ATTENTION, Sizes, build_mechanism

BATCH, TOKENS, FEATURES, OUTPUTS, VALUES = 19, 7, 5, 11, 13
SIZES = Sizes(TOKENS, FEATURES, OUTPUTS)

FORMS: list[dict[str, Any]] = [
    {"attention": "mha", "heads": 3},
    {"attention": "mha", "heads": 3, "score": "linear"},
    {"attention": "mha", "heads": 3, "rope": "token"},
    {"attention": "mqa", "heads": 3},
    {"attention": "gqa", "heads": 6, "groups": 3, "rope": "token"},
    {"attention": "talking-heads", "heads": 3, "softmax_heads": 2, "value_heads": 5, "start_noise": 0.1},
    {"attention": "knocking-heads", "heads": 3},
    {"attention": "knocking-heads", "heads": 3, "on": "values"},
    {"attention": "knocking-heads", "heads": 6, "groups": 2, "form": "mlp"},
    {"attention": "multi-token", "heads": 3, "query_taps": 2, "key_taps": 3},
    {"attention": "multi-token", "heads": 6, "mixing_group": 2, "query_taps": 3, "key_taps": 5, "convolve_weights": True,
     "mix_logits": True, "gate": True, "depth_scale": True},
    {"attention": "simplicial", "heads": 3},
    {"attention": "simplicial", "heads": 3, "form": "determinant", "query_width": 6, "offset": True},
    {"attention": "clift", "heads": 3},
    {"attention": "third-order", "heads": 3},
    {"attention": "strassen", "heads": 3},
    {"attention": "strassen", "heads": 3, "method": "products"},
    {"attention": "strassen", "heads": 3, "rope": "token", "method": "products", "arithmetic": "input"},
    {"attention": "differential", "heads": 3},
    {"attention": "differential", "heads": 3, "norm": False, "rope": "token"},
    {"attention": "iha", "heads": 3, "pseudo_heads": 2},
    {"attention": "iha", "heads": 3, "pseudo_heads": 2, "collapse": "per-head", "rope": "virtual", "start": "identity"},
    {"attention": "iha", "heads": 3, "pseudo_heads": 2, "score": "linear", "collapse": "per-head"},
    {"attention": "virtual-heads", "heads": 3, "groups": 2},
    {"attention": "explicit", "heads": 3, "base_heads": 2},
    {"attention": "explicit", "heads": 3, "norm": False, "rope": "token"},
]  # fmt: skip
"""Without mask or window."""

CONVOLVED = "multi-token"
"""The mechanism whose patterns depend on the order of tokens without any mask or position."""


def _default(fields: dict[str, Any]) -> dict[str, Any]:
    return {"value_width": VALUES, **fields}


def masks(fields: dict[str, Any]) -> list[str]:
    """Masks that a mechanism knows."""
    return ["none", "causal", "flat-causal"] if fields["attention"] == "iha" else ["none", "causal"]


CASES = [_default(form) for form in FORMS] + [
    _default({**form, "mask": mask, **window})
    for form in FORMS
    for mask in masks(form)
    for window in ({}, {"window": 3, **({"second_window": 2} if form["attention"] == "simplicial" else {})})
    if mask != "none" or window
]
CASES += [{**_default({"attention": name, "heads": 2}), "bias": True} for name in ATTENTION]


def name(fields: dict[str, Any]) -> str:
    """Test id."""
    return "-".join(str(value) for key, value in fields.items() if key != "value_width")


def build(fields: dict[str, Any], sizes: Sizes = SIZES, seed: int = 0, noise: float = 0.0) -> torch.nn.Module:
    """The module of a case in float64, freshly drawn; with noise on every weight if asked, so that maps which
    start at the identity do something."""
    config = ATTENTION[fields["attention"]].config.parse(fields)
    module = build_mechanism(config, sizes).double()
    module.reset(torch.Generator().manual_seed(seed))
    for index, parameter in enumerate(module.parameters()):
        parameter.data += noise * inputs(*parameter.shape, seed=index)
    return module


def inputs(*shape: int, seed: int = 1) -> torch.Tensor:
    """Standard normal entries in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens(seed: int = 1, sizes: Sizes = SIZES, batch: int = BATCH) -> torch.Tensor:
    """Input of a mechanism."""
    return inputs(batch, sizes.tokens, sizes.features, seed=seed)
