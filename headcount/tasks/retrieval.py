"""Multi-key retrieval: the needle tasks of RULER (Hsieh et al., arXiv 2404.06654) at token scale."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.tasks.described import Described
from headcount.tasks.task import IGNORED, Batch
from headcount.tasks.tokens import distinct, shuffled

_FORMS: dict[str, dict[str, Any]] = {
    "multi-key-1": {"pairs": 4, "filler": 24},
    "multi-key-2": {"pairs": 16, "filler": 0},
    "multi-key-3": {"pairs": 16, "filler": 0, "layout": "split", "pieces": 3, "alphabet": 16, "near": 4},
    "multi-value": {"pairs": 4, "filler": 24, "values_per_key": 4},
    "multi-query": {"pairs": 8, "filler": 24, "queries": 4},
}
"""What each form of the task sets unless told otherwise."""

_MOST_KEYS = 1 << 20

_CELLS = 1 << 22
"""Keys marked at once when near ones are drawn."""


class Retrieval(Described):
    """Keys with values, strewn among filler, then questions: say the value of a key.

    Example, adjacent, 2 pairs, 1 filler: k7 v9 . k2 v5 ? k2 is answered v5 at the last token.

    Keys of an example differ; values are drawn freely. A key with several values is told once for each of
    them, and question number r asks for the r-th one told.

    Attributes:
        form: sets defaults. multi-key-1: some pairs in filler; multi-key-2: pairs only; multi-key-3: pairs only,
            keys and values of several pieces; multi-value: several values of each key; multi-query: several keys
            are asked.
        layout: what one position holds. "fused": a key and its value, which one attention layer can read;
            "adjacent": a key, then its value, which needs a look at the neighbour first; "split": each of the
            `pieces` of a key, then those of its value, which must first be put together.
        pairs: different keys, N.
        values_per_key: values of each key.
        queries: different keys that are asked.
        alphabet: different keys and different values that exist; with "split", different pieces.
        pieces: with "split", tokens of a key and of a value.
        near: with "split", how many other keys differ from the first asked one in exactly one piece.
        filler: filler tokens, L.
        filler_words: different filler tokens that exist; 1 for a constant one.
    """

    name: Literal["retrieval"] = "retrieval"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    form: Literal["multi-key-1", "multi-key-2", "multi-key-3", "multi-value", "multi-query"] = "multi-key-1"
    layout: Literal["fused", "adjacent", "split"] = "adjacent"
    pairs: int = pydantic.Field(default=4, ge=1, le=4096)
    values_per_key: int = pydantic.Field(default=1, ge=1, le=64)
    queries: int = pydantic.Field(default=1, ge=1, le=4096)
    alphabet: int = pydantic.Field(default=32, ge=2, le=65536)
    pieces: int = pydantic.Field(default=1, ge=1, le=16)
    near: int = pydantic.Field(default=0, ge=0, le=4096)
    filler: int = pydantic.Field(default=24, ge=0, le=65536)
    filler_words: int = pydantic.Field(default=1, ge=1, le=4096)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_form(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return _FORMS.get(str(data.get("form", "multi-key-1")), {}) | data

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.layout != "split" and (self.pieces > 1 or self.near):
            raise ValueError(f"pieces and near belong to layout 'split', not '{self.layout}'")
        if self.alphabet**self.pieces > _MOST_KEYS:
            raise ValueError(
                f"alphabet ^ pieces = {self.alphabet}^{self.pieces} is above {_MOST_KEYS:,} different keys"
            )
        if self.pairs > self.alphabet**self.pieces:
            raise ValueError(f"pairs = {self.pairs}: only {self.alphabet**self.pieces} different keys exist")
        if self.queries > self.pairs:
            raise ValueError(f"queries = {self.queries}: only {self.pairs} keys are told")
        most = min(self.pairs - 1, self.pieces * (self.alphabet - 1))
        if self.near > most:
            raise ValueError(f"near = {self.near}: at most {most} other keys can differ in one piece")
        return self

    @property
    def _told(self) -> int:
        """Tokens of one pair."""
        return 1 if self.layout == "fused" else 2 * self.pieces

    @property
    def _answers(self) -> int:
        """Questions about one key: each piece of each value."""
        return self.values_per_key * self.pieces

    @property
    def _asked(self) -> int:
        """Tokens of one question: the mark and the key's pieces, or both in one."""
        return 1 if self.layout == "fused" else 1 + self.pieces

    @property
    def context(self) -> int:
        """Tokens before the questions."""
        return self.pairs * self.values_per_key * self._told + self.filler

    @property
    def length(self) -> int:
        return self.context + self.queries * self._answers * self._asked

    @property
    def _first_key(self) -> int:
        return 1 + self._answers + self.filler_words

    @property
    def vocabulary(self) -> int:
        return self._first_key + 2 * self.alphabet

    @property
    def input_width(self) -> int:
        return 2 if self.layout == "fused" else 1

    @property
    def output_width(self) -> int:
        return self.alphabet

    @property
    def asks(self) -> str:
        return (
            f"the value of {'a key' if self.queries == 1 else f'each of {self.queries} keys'} among {self.pairs} keys"
        )

    @property
    def theory(self) -> str:
        return {
            "fused": "one standard layer of one head can: the question's key scores the keys",
            "adjacent": "two standard layers of one head can: one looks at the neighbour, one finds the key",
            "split": f"two standard layers can with {self.pieces} heads in the first: they gather the pieces of a key",
        }[self.layout]

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        keys = self._keys(examples, generator)
        shape = (examples, self.pairs, self.values_per_key, self.pieces)
        values = torch.randint(self.alphabet, shape, generator=generator)
        units = shuffled(examples, self.pairs * self.values_per_key + self.filler, generator)
        words = torch.randint(self.filler_words, (examples, self.filler), generator=generator)
        return self.encode(keys, values, units, words)

    def _keys(self, examples: int, generator: torch.Generator) -> Int[Tensor, "examples pairs"]:
        """Numbers of different keys, the asked ones first."""
        exist = self.alphabet**self.pieces
        if not self.near:
            return distinct(examples, self.pairs, exist, generator)
        step = max(1, _CELLS // exist)
        if examples > step:
            sizes = [min(step, examples - start) for start in range(0, examples, step)]
            return torch.cat([self._keys(size, generator) for size in sizes])
        target = torch.randint(exist, (examples, 1), generator=generator)
        places = self.alphabet ** torch.arange(self.pieces)
        digits = (target // places) % self.alphabet
        changes = torch.arange(1, self.alphabet)
        changed = (digits[..., None] + changes) % self.alphabet - digits[..., None]
        neighbours = (target[..., None] + changed * places[:, None]).flatten(1)
        near = neighbours.gather(1, distinct(examples, self.near, neighbours.shape[1], generator))
        banned = torch.zeros(examples, exist, dtype=torch.bool).scatter_(1, torch.cat([target, neighbours], 1), True)
        # Keys that differ in more than one piece may run out where few exist.
        if self.pairs - 1 - self.near > exist - 1 - neighbours.shape[1]:
            banned.zero_().scatter_(1, torch.cat([target, near], 1), True)
        others = distinct(examples, self.pairs - 1 - self.near, exist, generator, banned)
        rest = torch.cat([near, others], 1)
        return torch.cat([target, rest.gather(1, shuffled(examples, self.pairs - 1, generator))], 1)

    def encode(
        self,
        keys: Int[Tensor, "examples pairs"],
        values: Int[Tensor, "examples pairs values pieces"],
        units: Int[Tensor, "examples units"],
        words: Int[Tensor, "examples filler"],
    ) -> Batch:
        """Inputs and targets.

        Args:
            keys: numbers of the keys, pieces read as digits with the lowest first; the first ones are asked.
            values: pieces of each value of each key.
            units: order in which pairs (numbered key by key) and then filler tokens are told.
            words: which filler token each of these is.
        """
        examples, told = len(keys), self.pairs * self.values_per_key
        pieces = (keys[..., None] // self.alphabet ** torch.arange(self.pieces)) % self.alphabet
        key_ids, value_ids = self._first_key + pieces, self._first_key + self.alphabet + values
        # The r-th value told of a key is the one whose pair comes r-th.
        place = units.argsort(-1)[:, :told].unflatten(1, (self.pairs, self.values_per_key))
        order = place.argsort(-1)[..., None].expand_as(values)
        answers = values.gather(2, order)[:, : self.queries].flatten(2)
        fused = self.layout == "fused"
        each_key = key_ids[:, :, None].expand_as(values)
        pair_ids = torch.stack([each_key, value_ids], -1) if fused else torch.cat([each_key, value_ids], -1)[..., None]
        pair_ids = pair_ids.flatten(1, 2).flatten(2, 3) if fused else pair_ids.flatten(1, 2).flatten(2)
        # A unit is a pair or a filler token; its tokens start where those of the units before it end.
        width = self._told
        filler_ids = torch.zeros(examples, self.filler, pair_ids.shape[-1], dtype=torch.long)
        filler_ids[..., 0] = 1 + self._answers + words
        contents = torch.cat([pair_ids, filler_ids], 1)
        sizes = torch.where(units < told, width, 1)
        starts = sizes.cumsum(-1) - sizes
        context = torch.zeros(examples, self.context + width, self.input_width, dtype=torch.long)
        shown = contents.gather(1, units[..., None].expand(-1, -1, contents.shape[-1]))
        shown = shown.unflatten(-1, (width, self.input_width))
        offsets = torch.arange(width)
        # What a filler unit does not have is written behind the end and cut off.
        target = (starts[..., None] + offsets).where(offsets < sizes[..., None], self.context)
        context.scatter_(1, target.flatten(1)[..., None].expand(-1, -1, self.input_width), shown.flatten(1, 2))
        questions, targets = self._questions(key_ids[:, : self.queries], answers)
        nothing = torch.full((examples, self.context), IGNORED)
        return Batch(torch.cat([context[:, : self.context], questions], 1), torch.cat([nothing, targets], 1))

    def _questions(self, key_ids: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """A mark that says which piece of which value is asked, and the key; the answer is due at its end."""
        marks = (1 + torch.arange(self._answers))[None, None, :, None].expand(*answers.shape, 1)
        keys = key_ids[:, :, None].expand(-1, -1, self._answers, -1)
        if self.layout == "fused":
            return torch.cat([keys, marks], -1).flatten(1, 2), answers.flatten(1)
        ids = torch.cat([marks, keys], -1)
        targets = torch.full_like(ids, IGNORED)
        targets[..., -1] = answers
        return ids.flatten(1)[..., None], targets.flatten(1)

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        """`some value`: the piece asked for, of the value that is told first, last, or most often."""
        ids = batch.inputs[:, : self.context, -1] - self._first_key - self.alphabet
        examples = len(ids)
        told = ids >= 0
        pieces = ids[told].reshape(examples, -1, self.pieces)
        counts = torch.zeros(examples, self.alphabet, self.pieces, dtype=torch.long)
        counts.scatter_add_(1, pieces, torch.ones_like(pieces))
        which = torch.arange(self.length) - self.context
        if self.layout != "fused":
            which = which.div(self._asked, rounding_mode="floor")
        which = which.clamp_min(0) % self.pieces
        return {
            "some value: first": pieces[:, 0][:, which],
            "some value: last": pieces[:, -1][:, which],
            "some value: most common": counts.argmax(1)[:, which],
        }

    def depth(self, inputs: Int[Tensor, "examples tokens ids"]) -> Float[Tensor, " examples"]:
        """Where the first asked key is told first, from 0 at the start of the context to 1 at its end."""
        windows = (inputs[..., 0] - self._first_key).unfold(1, self.pieces, 1)
        numbers = (windows * self.alphabet ** torch.arange(self.pieces)).sum(-1)
        numbers = numbers.where(((windows >= 0) & (windows < self.alphabet)).all(-1), -1)
        asked = numbers[:, self.context + (0 if self.layout == "fused" else 1), None]
        place = (numbers[:, : self.context] == asked).long().argmax(-1)
        return place / max(1, self.context - self._told)

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        asked = (targets != IGNORED).nonzero()[:, 0].tolist()
        words = ["+".join(self._word(number) for number in token if number) for token in inputs.tolist()]
        answers = [
            f"{' '.join(words[place + 1 - self._asked : place + 1])} -> v{int(targets[place])}" for place in asked
        ]
        return "\n".join([" ".join(words[: self.context]), *answers])

    def _word(self, number: int) -> str:
        if number <= self._answers:
            return f"?{number if self._answers > 1 else ''}"
        if number < self._first_key:
            return "." * (number - self._answers)
        number -= self._first_key
        return f"k{number}" if number < self.alphabet else f"v{number - self.alphabet}"
