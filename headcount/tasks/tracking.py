"""Variable tracking: follow copies of a variable back to its value (RULER, arXiv 2404.06654)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch
from headcount.tasks.tokens import distinct


def roots_brute(statements: list[tuple[int, int]], variables: int) -> dict[int, int]:
    """Value of each variable. A statement (v, s) sets v to number s - variables, or to variable s below that."""
    source = dict(statements)

    def value(variable: int) -> int:
        return source[variable] - variables if source[variable] >= variables else value(source[variable])

    return {variable: value(variable) for variable in source}


class Tracking(Described):
    """Assignments "a = 5", "b = a", "c = b" of several chains, mixed with each other, then one question.

    Example, 2 chains, 1 copy: a = 5, c = 3, b = a, d = c, ?b is answered 5.

    Attributes:
        chains: chains with different values.
        hops: copies in a chain, so that it has hops + 1 variables.
        variables, values: how many different names and numbers exist.
        order: "kept" tells each chain from its value on; "shuffled" tells all assignments in any order.
        layout: "fused": one position holds variable and source; "triples": three tokens, variable, =, source.
        asks_for: "value" asks for the number behind the last variable of a chain, at the last token; "members"
            names a number and asks at each assignment whether its variable has it (the set that RULER asks for).
    """

    name: Literal["tracking"] = "tracking"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    chains: int = pydantic.Field(default=4, ge=1, le=1024)
    hops: int = pydantic.Field(default=4, ge=0, le=1024)
    variables: int = pydantic.Field(default=64, ge=1, le=65536)
    values: int = pydantic.Field(default=32, ge=1, le=65536)
    order: Literal["kept", "shuffled"] = "kept"
    layout: Literal["fused", "triples"] = "triples"
    asks_for: Literal["value", "members"] = "value"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.statements > self.variables:
            raise ValueError(f"variables = {self.variables}: the chains have {self.statements} different ones")
        if self.chains > self.values:
            raise ValueError(f"values = {self.values}: the {self.chains} chains have different ones")
        return self

    @property
    def statements(self) -> int:
        """Assignments told."""
        return self.chains * (self.hops + 1)

    @property
    def _width(self) -> int:
        return 1 if self.layout == "fused" else 3

    @property
    def length(self) -> int:
        return self.statements * self._width + 1

    @property
    def vocabulary(self) -> int:
        return 3 + self.variables + self.values

    @property
    def input_width(self) -> int:
        return 2

    @property
    def output_width(self) -> int:
        return self.values if self.asks_for == "value" else 2

    @property
    def asks(self) -> str:
        if self.asks_for == "value":
            return f"the value of a variable that is {self.hops} copies away from it"
        return "which variables have the value named, by whatever number of copies"

    @property
    def theory(self) -> str:
        links = (self.hops + 1).bit_length() if self.asks_for == "value" else self.hops.bit_length() + 1
        depth = links + (0 if self.layout == "fused" else 1)
        return f"{depth} standard layers of one head can: each doubles the number of copies that a token has followed"

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        names = distinct(examples, self.statements, self.variables, generator)
        numbers = distinct(examples, self.chains, self.values, generator)
        keys = torch.rand(examples, self.chains, self.hops + 1, generator=generator)
        order = keys.flatten(1) if self.order == "shuffled" else keys.sort(-1).values.flatten(1)
        chain = torch.randint(self.chains, (examples,), generator=generator)
        return self.encode(names.unflatten(1, (self.chains, -1)), numbers, order.argsort(-1), chain)

    def encode(
        self,
        names: Int[Tensor, "examples chains links"],
        numbers: Int[Tensor, "examples chains"],
        order: Int[Tensor, "examples statements"],
        chain: Int[Tensor, " examples"],
    ) -> Batch:
        """Inputs and targets of given chains, the order of all their assignments, and the chain asked about."""
        examples = len(names)
        sources = torch.cat([self.variables + numbers[..., None], names[..., :-1]], -1)
        told = torch.stack([names, sources], -1).flatten(1, 2)
        told = 3 + told.gather(1, order[..., None].expand(-1, -1, 2))
        if self.layout == "triples":
            equals = torch.full((examples, self.statements, 1), 2)
            told = torch.cat([told[..., :1], equals, told[..., 1:]], -1).flatten(1)[..., None]
            told = torch.nn.functional.pad(told, (0, 1))
        row = torch.arange(examples)
        asked = names[row, chain, -1] if self.asks_for == "value" else self.variables + numbers[row, chain]
        question = torch.stack([torch.ones_like(asked), 3 + asked], -1)[:, None]
        targets = torch.full((examples, self.length), IGNORED)
        if self.asks_for == "value":
            targets[:, -1] = numbers[row, chain]
        else:
            links = torch.arange(self.chains).repeat_interleave(self.hops + 1)
            targets[:, self._width - 1 : -1 : self._width] = (links[order] == chain[:, None]).long()
        return Batch(torch.cat([told, question], 1), targets)

    def _told(self, inputs: Tensor) -> Tensor:
        """The assignments as pairs (variable, source), numbers counted from `variables` on."""
        if self.layout == "fused":
            return inputs[:, :-1] - 3
        return inputs[:, :-1, 0].unflatten(1, (self.statements, 3))[..., ::2] - 3

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        if self.asks_for == "value":
            return {}
        told, named = self._told(batch.inputs), batch.inputs[:, -1:, 1] - 3
        own = (told[..., 1] == named).long() + 2 * (told[..., 1] >= self.variables).long()
        seen = torch.zeros(*batch.targets.shape, dtype=torch.long)
        seen[:, self._width - 1 : -1 : self._width] = own
        return {"own statement and question": seen[..., None]}

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        if self.asks_for == "members":
            return {}
        sources = self._told(batch.inputs)[..., 1] - self.variables
        numbers = sources[sources >= 0].reshape(len(sources), self.chains)
        return {
            "first value told": numbers[:, :1].expand_as(batch.targets),
            "last value told": numbers[:, -1:].expand_as(batch.targets),
        }

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        def word(number: int) -> str:
            return f"x{number}" if number < self.variables else str(number - self.variables)

        told = self._told(inputs[None])[0].tolist()
        source = dict(told)
        lines = ", ".join(f"{word(variable)} = {word(origin)}" for variable, origin in told)
        asked = int(inputs[-1, 1]) - 3
        if self.asks_for == "value":
            path = [asked]
            while path[-1] < self.variables:
                path.append(source[path[-1]])
            return f"{lines}\n?{word(asked)} is {int(targets[-1])}: {' = '.join(map(word, path))}"
        answers = targets[self._width - 1 : -1 : self._width].tolist()
        members = " ".join(word(variable) for (variable, _), answer in zip(told, answers, strict=True) if answer)
        return f"{lines}\nvariables with value {word(asked)}: {members}"
