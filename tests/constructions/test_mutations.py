"""A construction whose check cannot fail proves nothing: every one-step change of its weights must be
noticed, unless it provably leaves the function as it is. The reasons for that are the table NEUTRAL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch

from headcount.theory.constructions import Construction, catalogue, deviation

from .mutations import Mutant, attention_of, mutants, on_a_path


def part(mutant: Mutant) -> str:
    """Name of the changed tensor within its layer."""
    return mutant.parameter.removeprefix("attention.").removeprefix("0.").removeprefix("1.")


def changes_scores(mutant: Mutant) -> bool:
    return part(mutant).startswith(("query", "key", "mix_query", "mix_key"))


def config_of(construction: Construction):
    return attention_of(construction.module).config


def off_every_path(mutant: Mutant) -> bool:
    if mutant.kind in ("rotate", "drop"):
        return False
    if config_of(mutant.original).score != "linear" and part(mutant).startswith(("key", "mix_key")):
        return False
    return not bool(on_a_path(mutant.original, mutant.parameter)[mutant.index])


def equal_pseudo_queries(mutant: Mutant) -> bool:
    attention = attention_of(mutant.original.module)
    if part(mutant) != "collapse" or mutant.kind != "swap":
        return False
    queries = attention.mix_query.detach()
    same = bool((queries == queries[..., :1]).all())
    return same and (attention.config.mask != "flat-causal" or attention.config.score == "hard")


def scales_hard_scores(mutant: Mutant) -> bool:
    return config_of(mutant.original).score == "hard" and mutant.kind == "double" and changes_scores(mutant)


def no_score_crosses(mutant: Mutant) -> bool:
    name = mutant.original.name
    random_weights = name.startswith(("inclusion hard", "fold hard"))
    return random_weights and (changes_scores(mutant) or part(mutant).startswith("value"))


def equal_values(mutant: Mutant) -> bool:
    return mutant.original.name == "strictness alphaV=(1, 1)" and changes_scores(mutant)


def congruent_pairs(mutant: Mutant) -> bool:
    """Hidden units of a modulo activation agree up to their order and a common unit factor mod M."""
    if part(mutant) != "pairs.weight":
        return False

    def canonical(construction: Construction) -> Counter[tuple[int, ...]]:
        count = construction.module[1]
        rows = count.pairs.weight.detach().long()
        M = count.modulus
        units = [u for u in range(1, M) if any(u * v % M == 1 for v in range(M))]
        return Counter(min(tuple((u * row % M).tolist()) for u in units) for row in rows)

    return canonical(mutant.original) == canonical(mutant.construction)


def permuted_workspace(mutant: Mutant) -> bool:
    """The MLP counts pairs of all workspace columns, in whatever order they come."""
    if mutant.kind != "rotate" or not mutant.original.name.startswith("relu-count"):
        return False
    with torch.no_grad():
        before, after = (
            attention_of(construction.module)(construction.inputs).sort(-1).values
            for construction in (mutant.original, mutant.construction)
        )
    return torch.equal(before, after)


def whole_domain(mutant: Mutant) -> bool:
    """Every input was tested, so equal there is equal: hidden units that stay closed or trade places."""
    name, inputs = mutant.original.name, mutant.original.inputs
    values = inputs.shape[-1] if name.startswith("histogram") else int(inputs.max()) + 1
    counting = name.startswith(("relu-count", "histogram-count"))
    return counting and part(mutant).startswith(("hidden", "out")) and len(inputs) == values ** inputs.shape[1]


NEUTRAL: dict[str, Callable[[Mutant], bool]] = {
    "on no path of nonzero weights to an output that is read (unread pseudo-head, padding)": off_every_path,
    "another pseudo-head with the same query sees the same keys": equal_pseudo_queries,
    "hard attention ignores a positive factor of the winning scores": scales_hard_scores,
    "hard attention, random weights: no score crosses another, or no query takes the value": no_score_crosses,
    "all value rows are equal and weights sum to 1: the printed sign is linear": equal_values,
    "hidden units in another order, or times a unit of Z / M": congruent_pairs,
    "the workspace in another order": permuted_workspace,
    "the same function on the whole, enumerated domain": whole_domain,
}


def test_every_change_is_noticed_or_neutral() -> None:
    used: Counter[str] = Counter()
    unexplained: list[str] = []
    noticed: Counter[tuple[str, str]] = Counter()
    tensors: set[tuple[str, str]] = set()
    for construction in catalogue():
        for mutant in mutants(construction):
            key = (construction.name, mutant.parameter)
            tensors.add(key)
            if not deviation(mutant.construction) <= construction.tolerance:
                noticed[key] += 1
                continue
            reason = next((text for text, applies in NEUTRAL.items() if applies(mutant)), None)
            if reason is None:
                unexplained.append(str(mutant))
            else:
                used[reason] += 1
    assert unexplained == []
    assert set(used) == set(NEUTRAL), "a reason that excuses nothing is a hole in the check"
    blind = {key for key in tensors if not noticed[key]}
    printed = "strictness alphaV=(1, 1)"
    assert blind == {(printed, name) for name in ("mix_query", "mix_key", "query.features", "key.features")}
    assert noticed.total() > 9 * used.total()


def test_masks_were_dropped() -> None:
    dropped = [m for c in catalogue() if config_of(c).mask != "none" for m in mutants(c) if m.kind == "drop"]
    assert len(dropped) == 24
    assert all(deviation(mutant.construction) > 1e-3 for mutant in dropped)
