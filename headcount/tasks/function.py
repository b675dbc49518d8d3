"""Function composition: look a value up, then look that value up (arXiv 2402.08164; 2501.19215, App. C)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch


def composed(outer: Int[Tensor, "examples n"], inner: Int[Tensor, "examples n"], x: Tensor) -> Int[Tensor, " examples"]:
    """outer(inner(x)) for functions given as lists of values."""
    return outer.gather(1, inner.gather(1, x[:, None]))[:, 0]


class Function(Described):
    """A query in front, then the values of functions on 0 .. n - 1; the answer is asked at the query.

    "zero" lists one function f and asks whether f(f(0)) = 0; half of the answers are forced to be yes.
    Example, n = 3: f = (2, 1, 0) is read as ?, 2, 1, 0 and answered 1, since f(f(0)) = f(2) = 0.

    "value" lists g, then f, and asks for f(g(x)), which is one of n answers.
    Example, n = 2: x = 1, g = (1, 0), f = (1, 1) is read as ?1, 1, 0, 1, 1 and answered f(0) = 1.

    Attributes:
        form: "zero" or "value".
        smallest, largest: n is uniform between them; 25 and 30 as published for "zero", else 16 and 16.
        coordinates: whether a token also carries the id of the argument (and of the function) it stands for.
    """

    name: Literal["function"] = "function"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    form: Literal["zero", "value"] = "zero"
    smallest: int = pydantic.Field(default=25, ge=2, le=4096)
    largest: int = pydantic.Field(default=30, ge=2, le=4096)
    coordinates: bool = True

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_form(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("form") == "value":
            return {"smallest": data.get("largest", 16), "largest": data.get("smallest", 16)} | data
        return data

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.largest < self.smallest:
            raise ValueError(f"largest = {self.largest} is below smallest = {self.smallest}")
        return self

    @property
    def _functions(self) -> int:
        return 1 if self.form == "zero" else 2

    @property
    def length(self) -> int:
        return 1 + self._functions * self.largest

    @property
    def _mark(self) -> int:
        return 1 + self.largest

    @property
    def vocabulary(self) -> int:
        return 2 + self.largest * (1 + (self._functions if self.coordinates else 0))

    @property
    def input_width(self) -> int:
        return 2 if self.coordinates else 1

    @property
    def output_width(self) -> int:
        return 2 if self.form == "zero" else self.largest

    @property
    def asks(self) -> str:
        return "whether f(f(0)) = 0" if self.form == "zero" else "the value f(g(x))"

    @property
    def theory(self) -> str:
        return (
            "one standard layer fails once H (d + 1) p < n log n (H heads of width d at p bits); two layers, or one "
            "layer whose scores depend on three tokens, can"
        )

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        n = torch.randint(self.smallest, self.largest + 1, (examples,), generator=generator)
        shape = (examples, self._functions, self.largest)
        functions = (torch.rand(shape, generator=generator) * n[:, None, None]).long()
        if self.form == "value":
            return self.encode(functions, n, (torch.rand(examples, generator=generator) * n).long())
        values, start = functions[:, 0], torch.zeros(examples, dtype=torch.long)
        yes = torch.rand(examples, generator=generator) < 0.5
        # yes: overwrite f(f(0)) by 0. no, but f(f(0)) = 0: redraw f(0) among arguments whose value is not 0.
        reached = values[:, :1].clone()
        values.scatter_(1, reached, values.gather(1, reached) * ~yes[:, None])
        argument = torch.arange(self.largest)
        eligible = (values != 0) & (argument > 0) & (argument < n[:, None])
        # Where there is none, f(0) = f(1) = 1 is the answer no.
        none = ~eligible.any(-1) & ~yes
        values[none, 1] = 1
        eligible[none, 1] = True
        redrawn = torch.rand(eligible.shape, generator=generator).masked_fill(~eligible, -1).argmax(-1)
        wrong = ~yes & (composed(values, values, start) == 0)
        values[:, 0] = redrawn.where(wrong, values[:, 0])
        return self.encode(functions, n, start)

    def encode(
        self,
        functions: Int[Tensor, "examples functions largest"],
        n: Int[Tensor, " examples"],
        x: Int[Tensor, " examples"],
    ) -> Batch:
        """Inputs and targets of given functions (g before f), their sizes n, and arguments x (0 in form "zero")."""
        place = torch.arange(self.length - 1)[None, :]
        which, argument = place // n[:, None], place % n[:, None]
        valid = which < self._functions
        listed = functions.flatten(1).gather(1, (which * self.largest + argument).where(valid, 0))
        marked = self.form == "zero" or self.coordinates
        query, ids = [torch.full_like(x, self._mark) if marked else 1 + x], [1 + listed]
        if self.coordinates:
            query.append(torch.zeros_like(x) if self.form == "zero" else 1 + self._mark + x)
            ids.append(1 + self._mark + which * self.largest + argument)
        body = torch.stack(ids, -1).masked_fill(~valid[..., None], 0)
        answer = composed(functions[:, -1], functions[:, 0], x)
        targets = torch.full((len(x), self.length), IGNORED)
        targets[:, 0] = (answer == 0).long() if self.form == "zero" else answer
        return Batch(torch.cat([torch.stack(query, -1)[:, None], body], 1), targets)

    def _decode(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Functions (g before f), n, x."""
        n = ((inputs[..., 0] > 0).sum(-1) - 1) // self._functions
        argument = torch.arange(self.largest)
        place = 1 + torch.arange(self._functions)[:, None] * n[:, None, None] + argument
        values = inputs[:, :, 0].gather(1, place.clamp_max(self.length - 1).flatten(1)) - 1
        functions = values.unflatten(1, (self._functions, self.largest)).where(argument < n[:, None, None], -1)
        if self.form == "zero":
            return functions, n, torch.zeros_like(n)
        return functions, n, inputs[:, 0, 1] - 1 - self._mark if self.coordinates else inputs[:, 0, 0] - 1

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        if self.form == "value":
            return {}
        functions, n, _ = self._decode(batch.inputs)
        zeros = (functions[:, 0] == 0).sum(-1)
        return {
            "count of zeros": zeros[:, None, None].expand(-1, self.length, -1),
            "count of zeros and n": torch.stack([zeros, n], -1)[:, None].expand(-1, self.length, -1),
        }

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        if self.form == "zero":
            return {}
        functions, _, x = self._decode(batch.inputs)
        inner, outer = functions.unbind(1)
        # Values of arguments that do not exist are -1; they are counted at the end and cut off.
        counts = torch.zeros(len(x), self.largest + 1, dtype=torch.long)
        counts.scatter_add_(1, outer.remainder(self.largest + 1), torch.ones_like(outer))
        said = {
            "most common value of f": counts[:, :-1].argmax(-1),
            "f(x)": outer.gather(1, x[:, None])[:, 0],
            "g(x)": inner.gather(1, x[:, None])[:, 0],
        }
        return {name: answer[:, None].expand(-1, self.length) for name, answer in said.items()}

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        functions, n, x = self._decode(inputs[None])
        lists = functions[0, :, : int(n)].tolist()
        inner, outer, start = lists[0], lists[-1], int(x)
        names = ("f", "f") if self.form == "zero" else ("g", "f")
        told = "\n".join(f"{name} = {' '.join(map(str, values))}" for name, values in zip(names, lists, strict=False))
        middle = inner[start]
        why = f"{names[0]}({start}) = {middle}, f({middle}) = {outer[middle]}"
        return f"{told}\nanswer {int(targets[0])}: {why}"
