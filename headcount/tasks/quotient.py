"""Quotient relation composition: meet at two different nodes of one colour (arXiv 2501.19215, App. C)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
import pydantic
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headcount.tasks.described import Described
from headcount.tasks.relation import draw, flatten_square, unflatten_square
from headcount.tasks.task import IGNORED, Batch


def quotient_compose(
    relation: Bool[Tensor, "*batch nodes nodes"], colours: Int[Tensor, "*batch nodes"]
) -> Bool[Tensor, "*batch nodes nodes"]:
    """At (i, j): whether i -> k and j -> l for different k, l of one colour."""
    alike = (colours[..., :, None] == colours[..., None, :]) & ~torch.eye(colours.shape[-1], dtype=torch.bool)
    edges = relation.float()
    return edges @ alike.float() @ edges.transpose(-1, -2) > 0


def quotient_compose_brute(relation: np.ndarray, colours: np.ndarray) -> list[list[bool]]:
    """The definition of `quotient_compose`, enumerated."""
    every = range(len(colours))
    return [
        [
            any(relation[i, k] and relation[j, n] and k != n and colours[k] == colours[n] for k in every for n in every)
            for j in every
        ]
        for i in every
    ]


class Quotient(Described):
    """Tokens are the entries of a random relation R, each with the colours of its row's and column's node;
    at (i, j), i != j, say whether i and j reach two different nodes of one colour.

    Example, m = 3, colours (1, 2, 2), R = (0 1 0; 0 0 1; 0 0 0): 0 -> 1 and 1 -> 2 share colour 2, so (0, 1)
    and (1, 0) are 1 and the other pairs 0; nothing is asked on the diagonal.

    Attributes:
        smallest, largest: the number of nodes m is uniform between them.
        density: probability of an entry 1.
        colours: every node's colour is uniform over so many; None takes as many as there are nodes.
        diagonal: "zero" removes R_ii, which gives the published 53 % of positive labels; "kept" leaves it.
        coordinates: whether a token also carries the ids of its row and its column.
    """

    name: Literal["quotient"] = "quotient"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "binary"
    smallest: int = pydantic.Field(default=6, ge=2, le=64)
    largest: int = pydantic.Field(default=8, ge=2, le=64)
    density: float = pydantic.Field(default=0.433, gt=0, lt=1)
    colours: int | None = pydantic.Field(default=None, ge=1, le=64)
    diagonal: Literal["zero", "kept"] = "zero"
    coordinates: bool = True

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.largest < self.smallest:
            raise ValueError(f"largest = {self.largest} is below smallest = {self.smallest}")
        return self

    @property
    def length(self) -> int:
        return self.largest**2

    @property
    def _palette(self) -> int:
        return self.colours or self.largest

    @property
    def vocabulary(self) -> int:
        return 3 + 2 * self._palette + (2 * self.largest if self.coordinates else 0)

    @property
    def input_width(self) -> int:
        return 5 if self.coordinates else 3

    @property
    def output_width(self) -> int:
        return 1

    @property
    def asks(self) -> str:
        return "whether i and j reach two different nodes of one colour, for every pair i != j"

    @property
    def theory(self) -> str:
        return "one standard layer cannot; one layer of Strassen attention can; triangular attention failed in training"

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        nodes = torch.randint(self.smallest, self.largest + 1, (examples,), generator=generator)
        relation = torch.rand(examples, self.largest, self.largest, generator=generator) < self.density
        palette = nodes[:, None] if self.colours is None else torch.full((examples, 1), self.colours)
        colours = (torch.rand(examples, self.largest, generator=generator) * palette).long()
        return self.encode(relation, colours, nodes)

    def encode(
        self,
        relation: Bool[Tensor, "examples largest largest"],
        colours: Int[Tensor, "examples largest"],
        nodes: Int[Tensor, " examples"],
    ) -> Batch:
        """Inputs and targets of given relations and colours from 0 on; entries beyond m nodes are left out."""
        inside = torch.arange(self.largest) < nodes[:, None]
        relation = relation & inside[:, None, :] & inside[:, :, None]
        if self.diagonal == "zero":
            relation = relation & ~torch.eye(self.largest, dtype=torch.bool)
        both = torch.stack([relation, quotient_compose(relation, colours)], 1).long()
        entries, valid, rows, columns = flatten_square(both, nodes)
        parts = [1 + entries[..., 0], 3 + colours.gather(1, rows), 3 + self._palette + colours.gather(1, columns)]
        if self.coordinates:
            first = 3 + 2 * self._palette
            parts += [first + rows, first + self.largest + columns]
        ids = torch.stack(parts, -1).masked_fill(~valid[..., None], 0)
        targets = entries[..., 1].masked_fill(~valid | (rows == columns), IGNORED)
        return Batch(ids, targets[..., None])

    def _decode(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        nodes = (inputs[..., 0] > 0).sum(-1).double().sqrt().round().long()
        matrices, rows, columns = unflatten_square((inputs[..., :1] - 1).clamp_min(0), nodes, self.largest)
        return matrices[:, 0], rows, columns, nodes

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        """`degrees`: R_ij, successors of i and of j, whether their colours agree, and m."""
        matrices, rows, columns, nodes = self._decode(batch.inputs)
        own = batch.inputs[..., :3]
        degree = matrices.sum(-1)
        alike = (own[..., 1] + self._palette == own[..., 2]).long()
        seen = [own[..., 0], degree.gather(1, rows), degree.gather(1, columns), alike, nodes[:, None].expand_as(rows)]
        return {"own token": own, "degrees": torch.stack(seen, -1)}

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        matrices, _, _, nodes = self._decode(inputs[None])
        size = int(nodes)
        relation, colours = matrices[0, :size, :size], inputs[:: size + 1, 1][:size] - 3
        answer = targets[: size**2, 0].reshape(size, size)
        text = f"colours {' '.join(map(str, colours.tolist()))}\nR =\n{draw(relation)}\n"
        text += "answers =\n" + draw(answer).replace(str(IGNORED), "-")
        for i, j in (answer == 1).nonzero().tolist():
            meet = [
                (k, n)
                for k in range(size)
                for n in range(size)
                if relation[i, k] and relation[j, n] and k != n and colours[k] == colours[n]
            ]
            k, n = meet[0]
            return f"{text}\nfor instance ({i}, {j}) is 1 by {i} -> {k}, {j} -> {n}, both of colour {int(colours[k])}"
        return text
