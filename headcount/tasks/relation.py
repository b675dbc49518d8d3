"""Composition of binary relations over several hops (paper App. D; arXiv 2501.19215, App. C)."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pydantic
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch

_DEFAULTS = {
    1: (6, 10, 0.5),
    2: (6, 10, 0.325),
    3: (5, 8, 0.264),
    4: (5, 8, 0.25),
    5: (5, 8, 0.244),
    6: (5, 8, 0.242),
}
"""Hops -> fewest and most nodes, density. Two and three hops are the paper's; the rest balances the labels."""


def compose(relations: Bool[Tensor, "*batch hops nodes nodes"]) -> Bool[Tensor, "*batch nodes nodes"]:
    """R_h o .. o R_1: whether a path i -> j takes its t-th step in relation t."""
    reached = relations[..., 0, :, :]
    for hop in range(1, relations.shape[-3]):
        reached = reached.float() @ relations[..., hop, :, :].float() > 0
    return reached


def compose_brute(relations: Bool[np.ndarray, "hops nodes nodes"]) -> list[list[bool]]:
    """The definition of `compose`: every path is tried."""
    hops, nodes, _ = relations.shape

    def joined(i: int, j: int) -> bool:
        paths = ((i, *between, j) for between in product(range(nodes), repeat=hops - 1))
        return any(all(relations[t][step] for t, step in enumerate(pairwise(path))) for path in paths)

    return [[joined(i, j) for j in range(nodes)] for i in range(nodes)]


def flatten_square(
    matrices: Tensor, nodes: Int[Tensor, " examples"]
) -> tuple[Tensor, Bool[Tensor, "examples cells"], Int[Tensor, "examples cells"], Int[Tensor, "examples cells"]]:
    """The top left m x m corner of each (channels, M, M) row by row, right padded to M^2 cells.

    Returns:
        Entries (examples, cells, channels), whether a cell is valid, its row and its column.
    """
    largest = matrices.shape[-1]
    cells, width = torch.arange(largest**2)[None, :], nodes[:, None]
    valid = cells < width**2
    rows, columns = (cells // width).where(valid, 0), (cells % width).where(valid, 0)
    place = (rows * largest + columns)[..., None].expand(-1, -1, matrices.shape[1])
    return matrices.flatten(-2).transpose(-1, -2).gather(1, place), valid, rows, columns


def draw(text: Tensor) -> str:
    """A matrix of 0 and 1 as text."""
    return "\n".join(" ".join(str(int(entry)) for entry in row) for row in text)


class Relation(Described):
    """Tokens are the entries of random Boolean m x m matrices; at (i, j) say whether a path of `hops` steps
    leads from i to j.

    Example, two hops, m = 2: R = (0 1; 1 0) is read as 0 1 1 0, and R o R = (1 0; 0 1) is answered 1 0 0 1.

    Attributes:
        hops: steps of the path, h.
        relations: "same" takes every step in one relation R; "different" takes step t in its own relation
            R_t, and a token holds the h bits of its entry, so that two hops ask for B o A.
        smallest, largest: m is uniform between them.
        density: probability of an entry 1.
        coordinates: whether a token also carries the ids of its row and its column.
    """

    name: Literal["relation"] = "relation"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "binary"
    hops: int = pydantic.Field(default=2, ge=1, le=16)
    relations: Literal["same", "different"] = "same"
    smallest: int = pydantic.Field(default=6, ge=1, le=64)
    largest: int = pydantic.Field(default=10, ge=1, le=64)
    density: float = pydantic.Field(default=0.325, gt=0, lt=1)
    coordinates: bool = True

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_hops(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        hops = data.get("hops", 2)
        if not isinstance(hops, int):
            return data
        if hops in _DEFAULTS:
            return dict(zip(("smallest", "largest", "density"), _DEFAULTS[hops], strict=True)) | data
        if hops > max(_DEFAULTS) and "density" not in data:
            raise ValueError(
                f"hops = {hops} needs a density; up to {max(_DEFAULTS)} hops have one that balances labels"
            )
        return data

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.largest < self.smallest:
            raise ValueError(f"largest = {self.largest} is below smallest = {self.smallest}")
        return self

    @property
    def length(self) -> int:
        return self.largest**2

    @property
    def bits(self) -> int:
        """Relations that a token tells about."""
        return self.hops if self.relations == "different" else 1

    @property
    def vocabulary(self) -> int:
        return 1 + 2 * self.bits + (2 * self.largest if self.coordinates else 0)

    @property
    def input_width(self) -> int:
        return self.bits + (2 if self.coordinates else 0)

    @property
    def output_width(self) -> int:
        return 1

    @property
    def asks(self) -> str:
        what = "the relation" if self.bits == 1 else "the relations in turn"
        return f"whether {self.hops} step(s) in {what} lead from i to j, for every pair (i, j)"

    @property
    def theory(self) -> str:
        if self.hops == 1:
            return "every token holds its own answer: no attention is needed"
        return (
            "one standard layer cannot: H d p must grow almost linearly in m; one layer whose scores depend on "
            "three tokens can; no bound is known for two layers"
        )

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        nodes = torch.randint(self.smallest, self.largest + 1, (examples,), generator=generator)
        shape = (examples, self.bits, self.largest, self.largest)
        return self.encode(torch.rand(shape, generator=generator) < self.density, nodes)

    def encode(
        self, relations: Bool[Tensor, "examples bits largest largest"], nodes: Int[Tensor, " examples"]
    ) -> Batch:
        """Inputs and targets of given relations on nodes 0 .. m - 1; entries beyond are left out."""
        inside = torch.arange(self.largest) < nodes[:, None]
        relations = relations & (inside[:, None, :, None] & inside[:, None, None, :])
        answer = compose(relations if self.bits > 1 else relations.expand(-1, self.hops, -1, -1))
        entries, valid, rows, columns = flatten_square(torch.cat([relations, answer[:, None]], 1).long(), nodes)
        ids = 1 + 2 * torch.arange(self.bits) + entries[..., :-1]
        if self.coordinates:
            first = 1 + 2 * self.bits
            ids = torch.cat([ids, first + rows[..., None], first + self.largest + columns[..., None]], -1)
        padding = ~valid[..., None]
        return Batch(ids.masked_fill(padding, 0), entries[..., -1:].masked_fill(padding, IGNORED))

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        """`degrees` adds successors of i, predecessors of j, whether i = j, and m: what averages can tell."""
        bits, nodes = self._bits(batch.inputs)
        matrices, rows, columns = unflatten_square(bits, nodes, self.largest)
        leaving = matrices[:, 0].sum(-1).gather(1, rows)
        arriving = matrices[:, -1].sum(-2).gather(1, columns)
        seen = [leaving, arriving, (rows == columns).long(), nodes[:, None].expand_as(rows)]
        return {"own token": bits, "degrees": torch.cat([bits, torch.stack(seen, -1)], -1)}

    def _bits(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        bits = (inputs[..., : self.bits] - 1 - 2 * torch.arange(self.bits)).clamp_min(0)
        return bits, (inputs[..., 0] > 0).sum(-1).double().sqrt().round().long()

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        bits, nodes = self._bits(inputs[None])
        size = int(nodes)
        cells = torch.cat([bits[0], targets], -1)[: size**2].reshape(size, size, -1).permute(2, 0, 1)
        names = ["R"] if self.bits == 1 else [f"R{step + 1}" for step in range(self.bits)]
        asked = " o ".join(reversed(names * self.hops if self.bits == 1 else names))
        matrices = "\n".join(f"{name} =\n{draw(cell)}" for name, cell in zip([*names, asked], cells, strict=True))
        if not (ones := cells[-1].nonzero().tolist()):
            return f"{matrices}\nno path of {self.hops} step(s)"
        i, j = ones[0]
        steps = [cells[min(step, self.bits - 1)].bool().numpy() for step in range(self.hops)]
        walks = ((i, *between, j) for between in product(range(size), repeat=self.hops - 1))
        walk = next(walk for walk in walks if all(R[a, b] for R, (a, b) in zip(steps, pairwise(walk), strict=True)))
        return f"{matrices}\nfor instance ({i}, {j}) is 1 by the path {' -> '.join(map(str, walk))}"


def unflatten_square(
    entries: Int[Tensor, "examples cells channels"], nodes: Int[Tensor, " examples"], largest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inverse of `flatten_square`: matrices (examples, channels, M, M), zero outside, and rows and columns."""
    _, valid, rows, columns = flatten_square(torch.zeros(len(nodes), 1, largest, largest), nodes)
    flat = torch.zeros(len(nodes), largest**2, entries.shape[-1], dtype=entries.dtype)
    place = (rows * largest + columns)[..., None].expand_as(entries)
    flat.scatter_add_(1, place, entries * valid[..., None])
    return flat.transpose(1, 2).unflatten(-1, (largest, largest)), rows, columns
