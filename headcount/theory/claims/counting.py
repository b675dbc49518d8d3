"""Claims about CPM-3 that are decided by compiling weights or by enumeration, without training."""

from __future__ import annotations

import itertools
import math
from typing import Any

from headcount.tasks.cpm3 import order_sensitive
from headcount.theory.claims.claim import Claim, Evidence, Finding, Verdict, heads_of
from headcount.theory.claims.mechanism import EXACT
from headcount.theory.constructions import (
    attention_parameters,
    deviation,
    distance_to_limit,
    histogram_count,
    modulo_count,
    printed_bound,
    printed_parameters,
    relu_count,
    shift_example,
    softmax_error_bound,
    softmax_of_tokens,
    symmetric_although_large,
    symmetric_example,
    token_differences,
    transposed_query_examples,
    workspace,
    workspace_example,
)
from headcount.theory.constructions.counting import Mechanism

MECHANISMS: tuple[Mechanism, ...] = ("mha", "iha")


def check_upper(evidence: Evidence) -> Finding:
    """Workspaces and the counting MLP behind them, against enumeration."""
    rows: list[dict[str, Any]] = []
    for tokens in (2, 5, 7, 9, 16):
        for attention in MECHANISMS:
            made = workspace(tokens, attention)
            need = tokens if attention == "mha" else math.isqrt(tokens - 1) + 1
            rows.append({"part": "workspace", "N": tokens, "attention": attention, "heads": heads_of(made),
                         "predicted": need, "deviation": deviation(made)})  # fmt: skip
    for tokens, modulus, multiplier, high in ((3, 5, 12, 4), (4, 3, 10, 3), (5, 4, 7, 2), (13, 7, 16, 10**6)):
        for attention in MECHANISMS:
            made = modulo_count(tokens, modulus, multiplier, attention, high=high)
            rows.append({"part": "count, modulo", "N": tokens, "M": modulus, "G": multiplier, "attention": attention,
                         "inputs": len(made.inputs), "deviation": deviation(made)})  # fmt: skip
            if high < 10:
                made = relu_count(tokens, modulus, multiplier, attention, high=high)
                rows.append({"part": "count, ReLU", "N": tokens, "M": modulus, "G": multiplier, "attention": attention,
                             "inputs": len(made.inputs), "deviation": deviation(made)})  # fmt: skip
    worst = max(float(row["deviation"]) for row in rows)
    heads = all(row["heads"] == row["predicted"] for row in rows if "heads" in row)
    measured = f"{len(rows)} compiled models, exhaustive for small N, at most {worst:.0e} off"
    right = worst <= 1e-8 and heads
    return Finding(
        Verdict.HOLDS if right else Verdict.REFUTED,
        "N_max and ceil(sqrt N_max) heads, exact count",
        measured,
        {"models": rows},
        not right,
    )


def check_temperature(evidence: Evidence) -> Finding:
    """Workspace error at finite inverse temperature against the closed form, for both mechanisms."""
    rows: list[dict[str, Any]] = []
    worst = 0.0
    for tokens in (4, 9, 16):
        for beta in (2.0, 5.0, 10.0, 20.0):
            for attention in MECHANISMS:
                made = workspace(tokens, attention, beta=beta)
                off, error = deviation(made), distance_to_limit(made)
                worst = max(worst, off)
                rows.append(
                    {
                        "N": tokens,
                        "beta": beta,
                        "attention": attention,
                        "error": error,
                        "bound for tokens in [0, 1]": softmax_error_bound(tokens, beta, 1.0),
                        "formula off by": off,
                    }
                )
    mixed = max(deviation(workspace(n, a, beta=0.5, output="mixed")) for n in (4, 9) for a in MECHANISMS)
    details = {"rows": rows, "error with an output projection at beta = 0.5": mixed}
    sample = next(row for row in rows if row["N"] == 16 and row["beta"] == 10)
    measured = f"formula off by at most {worst:.0e}; N = 16, beta = 10: {sample['error']:.1e}; with W_O exact at any beta ({mixed:.0e})"
    right = worst <= EXACT and mixed <= 1e-9
    return Finding(
        Verdict.HOLDS if right else Verdict.REFUTED, "error (S - N x)/(e^beta + N - 1)", measured, details, not right
    )


def check_task(evidence: Evidence) -> Finding:
    """One uniform head over one-hot residues and an MLP, against enumeration."""
    rows: list[dict[str, Any]] = []
    for tokens, modulus, multiplier in ((3, 5, 12), (4, 3, 10), (5, 4, 7), (31, 5, 12)):
        made = histogram_count(tokens, modulus, multiplier)
        rows.append(
            {
                "N": tokens,
                "M": modulus,
                "G": multiplier,
                "heads": 1,
                "inputs": len(made.inputs),
                "deviation": deviation(made),
            }
        )
    worst = max(row["deviation"] for row in rows)
    measured = f"1 head is exact for N = {', '.join(str(row['N']) for row in rows)} (at most {worst:.0e} off)"
    verdict = Verdict.REFUTED if worst <= EXACT else Verdict.HOLDS
    return Finding(
        verdict,
        "MHA needs N_max heads for CPM-3",
        measured,
        {"models": rows},
        corrected=Verdict.HOLDS if worst <= EXACT else None,
    )


def check_free(evidence: Evidence) -> Finding:
    """One softmax head that reads the scalars and has positional values; tokens are recovered from it."""
    rows: list[dict[str, Any]] = []
    for tokens in (3, 11, 31):
        made = softmax_of_tokens(tokens)
        x = made.inputs[..., 0]
        recovered = token_differences(made.outputs())[:, 0]
        gap = float((recovered - (x - x[:, :1])).abs().max())
        rows.append({"N": tokens, "heads": 1, "deviation": deviation(made), "recovery of x_j - x_1 off by": gap})
    worst = max(max(row["deviation"], row["recovery of x_j - x_1 off by"]) for row in rows)
    measured = f"1 softmax head determines all tokens (N up to {rows[-1]['N']}, recovery {worst:.0e} off)"
    verdict = Verdict.REFUTED if worst <= EXACT else Verdict.HOLDS
    return Finding(
        verdict,
        "N_max heads are needed to gather the tokens",
        measured,
        {"models": rows},
        corrected=Verdict.HOLDS if worst <= EXACT else None,
    )


def check_order(evidence: Evidence) -> Finding:
    """Decide by enumeration for which G and M swapping a pair changes the predicate."""
    against_printed, against_ours, cases = [], [], 0
    for modulus in range(2, 12):
        for multiplier in range(1, 6 * modulus):
            cases += 1
            changes = any(
                ((x + multiplier * a + b) % modulus == 0) != ((x + multiplier * b + a) % modulus == 0)
                for x, a, b in itertools.product(range(modulus), repeat=3)
            )
            if multiplier > 2 * modulus and not changes:
                against_printed.append((multiplier, modulus))
            if changes != order_sensitive(multiplier, modulus):
                against_ours.append((multiplier, modulus))
    first = min(against_printed, default=None)
    details = {
        "pairs (G, M) tried": cases,
        "G > 2M and yet symmetric": against_printed,
        "our rule wrong at": against_ours,
    }
    measured = f"{cases} pairs (G, M): {len(against_printed)} have G > 2M and are symmetric, e.g. G, M = {first}; G mod M != 1 decides all"
    if against_ours:
        return Finding(Verdict.REFUTED, "G > 2M", measured, details, True, Verdict.REFUTED)
    verdict = Verdict.REFUTED if against_printed else Verdict.HOLDS
    return Finding(verdict, "G > 2M makes pairs order-sensitive", measured, details, corrected=Verdict.HOLDS)


def check_count(evidence: Evidence) -> Finding:
    """Printed totals against compiled modules, and the printed bound for N_max = 1 .. 20,000."""
    rows: list[dict[str, Any]] = []
    for tokens in (4, 9, 16, 25):
        counted = {attention: workspace(tokens, attention).parameters for attention in MECHANISMS}
        mlp = modulo_count(tokens, 5, 12, "mha").parameters - counted["mha"]
        rows.append({
            "N": tokens, "attention MHA": counted["mha"], "attention IHA": counted["iha"], "MLP": mlp,
            "formula MHA": attention_parameters(tokens, "mha"), "formula IHA": attention_parameters(tokens, "iha"),
            "printed T_MHA": printed_parameters(tokens, "mha"), "printed T_IHA": printed_parameters(tokens, "iha"),
        })  # fmt: skip
    sizes = range(1, 20_001)
    worst = max(printed_parameters(n, "iha") / printed_bound(n) for n in sizes)
    ratio = [printed_parameters(n, "mha") / printed_parameters(n, "iha") for n in (100, 1000, 10_000)]
    exact = all(
        row["attention MHA"] == row["formula MHA"] and row["attention IHA"] == row["formula IHA"] for row in rows
    )
    values_off = rows[-1]["printed T_MHA"] - rows[-1]["attention MHA"] - rows[-1]["MLP"]
    details = {"counted and printed": rows, "largest T_IHA over bound, N = 1 .. 20,000": worst,
               "T_MHA / T_IHA at N = 100, 1,000, 10,000": ratio}  # fmt: skip
    measured = (
        f"bound holds for N = 1..20,000 (at most {worst:.2f} of it); T_MHA off by {values_off:,} at N = 25;"
        f" T_MHA / T_IHA = {ratio[0]:.2f}, {ratio[1]:.2f}, {ratio[2]:.2f} at N = 100, 1,000, 10,000"
    )
    if worst > 1 or not exact:
        return Finding(
            Verdict.REFUTED, "T_IHA <= 37 N^2.5 + N^2(N-1) + N^2", measured, details, not exact, Verdict.REFUTED
        )
    return Finding(
        Verdict.CONDITION,
        "T_IHA <= 37 N^2.5 + N^2(N-1) + N^2; T_MHA as printed",
        measured,
        details,
        corrected=Verdict.HOLDS,
    )


def check_example(evidence: Evidence) -> Finding:
    """The printed worked examples, recomputed."""
    facts = [workspace_example(), shift_example(), symmetric_example()]
    symmetric, general = transposed_query_examples()
    rows = [
        {"item": fact.item, "printed": fact.printed, "recomputed": fact.recomputed, "agrees": fact.agrees}
        for fact in facts
    ]
    details = {
        "items": rows, "G > 2M in the example, and symmetric": symmetric_although_large(),
        "first k = 4 example of B.2, error for symmetric and general A": [symmetric, general],
    }  # fmt: skip
    wrong = [fact.item for fact in facts if not fact.agrees]
    measured = f"{len(wrong)} of {len(facts)} printed items differ ({'; '.join(wrong)}); (A^2)^T for A^2 is {general:.1f} off for general A"
    return Finding(
        Verdict.REFUTED if wrong else Verdict.HOLDS, "the printed examples", measured, details, corrected=Verdict.HOLDS
    )


COUNTING = [
    Claim(
        "cpm3-upper",
        "N_max heads (MHA) or ceil(sqrt N_max) heads (IHA) build the workspace, and an MLP counts exactly.",
        "Sec. 4.3, B.3",
        "Head h attends with the shift P^(h-1), so column h of the workspace is x_(i+h-1). An MLP with one unit an ordered "
        "pair computes x_i + G x_a + x_b and tests it for zero modulo M, with the paper's activation, or with a sum of "
        "tents over the multiples of M when tokens are bounded (ours).",
        check_upper,
    ),
    Claim(
        "cpm3-temperature",
        "At inverse temperature beta the workspace is off by (S - N x)/(e^beta + N - 1), S the sum of the tokens, for both.",
        "ours",
        "A row has one logit beta and N - 1 logits 0 (IHA: H of each pattern, which cancels against the value factor H). "
        "With an output projection the leak S is itself linear in the columns, so W_O removes it at every beta.",
        check_temperature,
    ),
    Claim(
        "cpm3-task",
        "CPM-3 itself needs N_max heads of MHA.",
        "Sec. 4.3",
        "Labels depend on the histogram c of residues only: label_i = sum_r c[r] c[(-x_i - G r) mod M]. One uniform head "
        "over one-hot residues outputs c/N, and a ReLU MLP finishes, products of counts being sums of squares.",
        check_task,
        printed="N_max heads are needed for the task.",
        corrected="N_max heads are needed by the scalar-token workspace route with fixed patterns; the task needs one head.",
    ),
    Claim(
        "cpm3-free",
        "N_max heads are needed to gather all tokens.",
        "Sec. 4.3, B.3",
        "With attention that reads the scalars, logits x_j and values e_j give softmax(x_1 .. x_N) in one head. Ratios of "
        "its entries are exp(x_j - x_k): all tokens up to a shift, which x_i fixes.",
        check_free,
        printed="N_max heads, for attention in general.",
        corrected="N_max heads for linear transport of scalar values: fixed patterns, or values that read no positions.",
    ),
    Claim(
        "cpm3-order",
        "G > 2M makes the predicate sensitive to the order of the pair.",
        "Sec. 4.3",
        "Swapping a and b changes the sum by (G - 1)(a - b), and a - b = 1 occurs. So only G mod M matters.",
        check_order,
        printed="G > 2M.",
        corrected="G mod M != 1.",
    ),
    Claim(
        "cpm3-count",
        "T_MHA = 3N^3 + (N+1)N(N-1) + N^2 and T_IHA <= 37 N^2.5 + N^2(N-1) + N^2 parameters.",
        "Sec. B.3",
        "The bound on T_IHA holds. T_MHA counts N^3 for values where the construction has N(N+1), and leaves out feature "
        "rows. The counting MLP is Theta(N^3) in both models, so the total does not improve in order, only attention does.",
        check_count,
        printed="T_MHA with N^3 for values.",
        corrected="Attention: 2N^2(N+1) + N(N+1) for MHA, 2N(N+1)H + (N+1)H^2 + 4H^3 for IHA; N^3 + N^2 for the MLP in both.",
    ),
    Claim(
        "cpm3-example",
        "The worked examples of Sec. B.2 and B.3 are right.",
        "Sec. B.2, B.3",
        "Each item is recomputed from its definition.",
        check_example,
        printed="P as printed; second row 2 3 2; W_Q = (A^2)^T.",
        corrected="P^T; second row 2 3 1; W_Q = A^2, the same only for symmetric A^2.",
    ),
]
