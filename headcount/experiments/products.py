"""Products of large matrices by oneDNN, on processors that MKL uses by half.

MKL, by which torch multiplies float32 matrices, works on 64 bytes at once on Intel's processors alone. oneDNN, which
comes with torch too, does so on all that can.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

LARGE = 4 * 10**6
"""Multiplications from which on a product is large; twice as many where its first matrix lies along columns, which
oneDNN has to put in order."""


def suits(a: Float[Tensor, "batch m k"], b: Float[Tensor, "batch k n"]) -> bool:
    """Whether `products` takes less time than torch.bmm."""
    least = LARGE if a.stride(2) == 1 else 2 * LARGE
    return a.dtype == torch.float32 and a.shape[1] * a.shape[2] * b.shape[2] >= least and half_used()


@lru_cache
def half_used() -> bool:
    """Whether this processor computes on 64 bytes at once, but not for MKL."""
    backends = torch.backends
    if backends.cpu.get_cpu_capability() != "AVX512" or not (
        backends.mkl.is_available() and backends.mkldnn.is_available()
    ):
        return False
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:
        processor = platform.processor()
    return "AuthenticAMD" in processor


_library = torch.library.Library("headcount", "DEF")
_library.define("products(Tensor a, Tensor b) -> Tensor")
_library.define("products.out(Tensor a, Tensor b, *, Tensor(c!) out) -> Tensor(c!)")
products = torch.ops.headcount.products.default
"""torch.bmm, one matrix after the other, so that bits do not depend on how many there are."""


@torch.library.impl(_library, "products.out", "CPU")
def _products_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    for x, y, place in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
        place.copy_(torch.ops.mkldnn._linear_pointwise(x, y.t(), None, "none", [], ""))
    return out


@torch.library.impl(_library, "products", "CPU")
def _products(a: Tensor, b: Tensor) -> Tensor:
    return _products_out(a, b, out=_shaped(a, b))


@torch.library.register_fake("headcount::products", lib=_library)
def _shaped(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(len(a), a.shape[1], b.shape[2])
