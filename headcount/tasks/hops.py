"""k-hop induction heads (Sanford, Hsu, Telgarsky, arXiv 2402.09268)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
import torch
from jaxtyping import Int
from torch import Tensor

from headcount.tasks.described import Described, discrete_floors
from headcount.tasks.task import IGNORED, Batch, random_stream


def find(letters: Int[Tensor, "examples tokens"], alphabet: int) -> Int[Tensor, "examples tokens"]:
    """find_1(i) = max({0} and {j <= i : X_{j-1} = X_i}), positions counted from 1, in one scan.

    It is the place after the latest earlier occurrence of X_i, or 0 if there is none.
    """
    latest = torch.zeros(len(letters), alphabet, dtype=torch.long)
    found = torch.zeros_like(letters)
    for place in range(letters.shape[1]):
        here = letters[:, place, None]
        before = latest.gather(1, here)
        found[:, place, None] = before + (before > 0).long()
        latest.scatter_(1, here, torch.full_like(here, place + 1))
    return found


def hop_targets(
    letters: Int[Tensor, "examples tokens"], hops: Int[Tensor, " examples"], alphabet: int
) -> Int[Tensor, "examples tokens"]:
    """hop_k(X)_i = X at find_k(i), where find_k(i) = find_1(find_{k-1}(i)) and find_0(i) = i; `alphabet` if that is 0.

    Every hop searches strictly before the place where the last one landed.
    Example: b a e b c a b e b d e a, the last a: hop_1 = b, hop_2 = c.
    """
    table = torch.nn.functional.pad(find(letters, alphabet), (1, 0))
    place = torch.arange(1, letters.shape[1] + 1).repeat(len(letters), 1)
    for hop in range(int(hops.max()) if len(hops) else 0):
        place = table.gather(1, place).where((hop < hops)[:, None], place)
    return torch.nn.functional.pad(letters, (1, 0), value=alphabet).gather(1, place)


def hop_targets_brute(letters: list[int], hops: int, alphabet: int) -> list[int]:
    """The definition of `hop_targets`, enumerated."""
    X = [None, *letters]

    def find_k(k: int, i: int) -> int:
        i = i if k == 0 else find_k(k - 1, i)
        return i if k == 0 else max([0, *(j for j in range(2, i + 1) if X[j - 1] == X[i])])

    landed = [find_k(hops, i) for i in range(1, len(letters) + 1)]
    return [letters[place - 1] if place else alphabet for place in landed]


class Hops(Described):
    """The number of hops k, then letters without equal neighbours; at each letter say where k hops back lead.

    Example, k = 1: b a e b c a is read as 1 b a e b c a and answered blank none none none a none e.
    Answers are letters, then "none", then "blank", which is asked at the first token as in the published
    data. The published sizes are N = 100, which leaves 98 letters and 99 tokens, and k from 0 to 16.

    Attributes:
        sequence: N, the published length; the tokens are k and the first N - 2 letters.
        alphabet: number of letters.
        most_hops: k is uniform over 0 .. most_hops.
        hops: a fixed k instead.
        blank: "answer" asks for blank at the first token, as published; "ignored" asks for nothing there.
    """

    name: Literal["hops"] = "hops"
    kind: ClassVar[Literal["real", "classes", "binary"]] = "classes"
    sequence: int = pydantic.Field(default=100, ge=4, le=8192)
    alphabet: int = pydantic.Field(default=4, ge=2, le=1024)
    most_hops: int = pydantic.Field(default=16, ge=0, le=1024)
    hops: int | None = pydantic.Field(default=None, ge=0)
    blank: Literal["answer", "ignored"] = "answer"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hops is not None and self.hops > self.most_hops:
            raise ValueError(f"hops = {self.hops} is above most_hops = {self.most_hops}")
        return self

    @property
    def length(self) -> int:
        return self.sequence - 1

    @property
    def vocabulary(self) -> int:
        return 2 + self.alphabet + self.most_hops

    @property
    def input_width(self) -> int:
        return 1

    @property
    def output_width(self) -> int:
        return self.alphabet + 2

    @property
    def asks(self) -> str:
        count = "k" if self.hops is None else f"{self.hops}"
        return f"the letter reached by {count} hop(s), each to what followed the latest earlier occurrence"

    @property
    def theory(self) -> str:
        most = self.most_hops if self.hops is None else self.hops
        if not most:
            return "every token holds its own answer: no attention is needed"
        return (
            f"floor(log2 k) + 2 = {most.bit_length() + 1} standard causal layers of one head and constant width can, "
            f"k = {most}; Omega(log k) layers are needed if telling one cycle from two takes so many rounds"
        )

    def sample(self, examples: int, generator: torch.Generator) -> Batch:
        hops = torch.randint(0, self.most_hops + 1, (examples,), generator=generator)
        if self.hops is not None:
            hops = torch.full_like(hops, self.hops)
        first = torch.randint(self.alphabet, (examples, 1), generator=generator)
        steps = torch.randint(1, self.alphabet, (examples, self.sequence - 3), generator=generator)
        return self.encode(torch.cat([first, steps], 1).cumsum(1) % self.alphabet, hops)

    def encode(self, letters: Int[Tensor, "examples letters"], hops: Int[Tensor, " examples"]) -> Batch:
        """Inputs and targets of given letters 0 .. alphabet - 1 and hop counts."""
        ids = torch.cat([1 + self.alphabet + hops[:, None], 1 + letters], 1)
        first = torch.full_like(hops[:, None], self.alphabet + 1 if self.blank == "answer" else IGNORED)
        return Batch(ids[..., None], torch.cat([first, hop_targets(letters, hops, self.alphabet)], 1))

    def answerable(self, batch: Batch) -> Batch:
        """The same examples with the answers none and blank no longer asked for."""
        return Batch(batch.inputs, batch.targets.masked_fill(batch.targets >= self.alphabet, IGNORED))

    def floors(self, examples: int = 4096, generator: torch.Generator | None = None) -> dict[str, float]:
        """Accuracy of shortcuts over all positions, then over those answered by a letter; see `discrete_floors`."""
        generator = generator or random_stream(0, "validation")
        everywhere = discrete_floors(self, examples, generator)
        lettered = discrete_floors(self, examples, generator, self.answerable)
        return everywhere | {f"{name}, answerable": accuracy for name, accuracy in lettered.items()}

    def _decode(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[:, 1:, 0] - 1, inputs[:, 0, 0] - 1 - self.alphabet

    def lookups(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens features"]]:
        """What is at hand without search: k; k and the position; k and the letter."""
        examples, tokens, _ = batch.inputs.shape
        hops = batch.inputs[:, :1].expand(-1, tokens, -1)
        place = torch.arange(tokens)[None, :, None].expand(examples, -1, -1)
        return {
            "hops": torch.cat([hops, (place == 0).long()], -1),
            "hops and position": torch.cat([hops, place], -1),
            "hops and own letter": torch.cat([hops, batch.inputs], -1),
        }

    def guesses(self, batch: Batch) -> dict[str, Int[Tensor, "examples tokens"]]:
        """Hops of another kind: one hop only, one too few, and hops that all search before i itself."""
        letters, hops = self._decode(batch.inputs)

        def after_first(answer: Tensor) -> Tensor:
            return torch.cat([batch.targets[:, :1], answer], 1)

        return {
            "one hop": after_first(hop_targets(letters, hops.clamp_max(1), self.alphabet)),
            "one hop too few": after_first(hop_targets(letters, (hops - 1).clamp_min(0), self.alphabet)),
            "half the hops": after_first(hop_targets(letters, hops // 2, self.alphabet)),
            "searching before i": after_first(self._search_before_i(letters, hops)),
        }

    def _search_before_i(self, letters: Tensor, hops: Tensor) -> Tensor:
        """The look-alike in which every hop takes the latest occurrence before i of the letter reached."""
        examples, tokens = letters.shape
        following = torch.full((examples, self.alphabet), self.alphabet)
        answers = torch.empty_like(letters)
        for place in range(tokens):
            if place:
                following.scatter_(1, letters[:, place - 1, None], letters[:, place, None])
            reached = letters[:, place]
            table = torch.nn.functional.pad(following, (0, 1), value=self.alphabet)
            for hop in range(int(hops.max())):
                reached = table.gather(1, reached[:, None])[:, 0].where(hop < hops, reached)
            answers[:, place] = reached
        return answers

    def picture(self, inputs: Int[Tensor, "tokens ids"], targets: Tensor) -> str:
        letters, hops = self._decode(inputs[None])
        names = [*(chr(97 + n) if self.alphabet <= 26 else str(n) for n in range(self.alphabet)), "-", "_"]
        word = [names[letter] for letter in letters[0].tolist()]
        table = find(letters, self.alphabet)[0].tolist()
        path, place = [f"{word[-1]} at {len(word)}"], len(word)
        for _ in range(int(hops)):
            place = table[place - 1] if place else 0
            path.append(f"{word[place - 1]} at {place}" if place else "none")
        said = " ".join(names[target] for target in targets[1:].tolist())
        return f"k = {int(hops)}\nletters {' '.join(word)}\nanswers {said}\nlast letter: {' -> '.join(path)}"
