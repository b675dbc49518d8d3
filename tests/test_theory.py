"""Floors with certificates, fits on data with a known law, thresholds and verdicts on rows made by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.models import ModelConfig, Sizes
from headcount.tasks import Cpm3, Polynomial
from headcount.tasks.operators import cyclic_shift, matrix_powers, random_gaussian
from headcount.theory.claims import LEDGER, Evidence, Verdict
from headcount.theory.fits import FitRefused, fit_ceiling_law, fit_power_law
from headcount.theory.floors import (
    concatenated_floor,
    epsilon_rank,
    family_floor,
    floor,
    operator_dimension,
    operators_of_one_head,
    predicted_heads,
    rank_floor,
    recheck,
    span_floor,
    total_floor,
)
from headcount.theory.thresholds import thresholds


def model(**fields):
    return ModelConfig.parse({"content": "positions", "value_content": "features", "score": "linear", **fields})


@pytest.mark.parametrize(("k", "heads"), [(4, 1), (9, 4), (9, 8), (25, 24)])
def test_cyclic_floor_has_its_closed_form(k, heads):
    task = Polynomial(k=k, tokens=26)
    assert floor(task, model(heads=heads)) == pytest.approx(np.sqrt((k - heads) / k), abs=1e-12)
    squared = floor(task, model(attention="iha", heads=heads))
    assert squared == pytest.approx(np.sqrt(max(k - heads**2, 0) / k), abs=1e-7)


def test_no_fit_of_operators_beats_the_floor():
    family = matrix_powers(random_gaussian(7, seed=1), 5)
    rows = family.reshape(5, -1)
    rng = np.random.default_rng(0)
    for operators in (1, 2, 4):
        certified = family_floor(family, operators).floor
        for _ in range(200):
            mixture = rng.standard_normal((operators, 5)) @ rows + 0.1 * rng.standard_normal((operators, rows.shape[1]))
            best, *_ = np.linalg.lstsq(mixture.T, rows.T, rcond=None)
            error = np.sqrt(((rows.T - mixture.T @ best) ** 2).sum() / (rows**2).sum())
            assert error >= certified - 1e-12


def test_operator_dimension_of_interleaved_heads():
    """The patterns M[h, m] of random layers span exactly the stated number of dimensions."""
    import torch

    from headcount.models import Layer, Sizes

    for score in ("linear", "softmax"):
        for heads, pseudo in ((2, 1), (2, 2), (2, 5), (3, 1), (3, 2), (3, 3)):
            config = model(attention="iha", heads=heads, pseudo_heads=pseudo, score=score)
            layer = Layer(config, Sizes(11, 1, 4)).double()
            layer.reset(torch.Generator().manual_seed(0))
            patterns = layer.attention.patterns(torch.zeros(1, 11, 1).double()).reshape(heads**2, -1)
            rank = np.linalg.matrix_rank(patterns.detach().numpy(), tol=1e-9)
            assert rank == operator_dimension(config), (score, heads, pseudo)


@pytest.mark.parametrize("score", ["linear", "softmax"])
def test_operators_of_one_head_and_of_a_collapse_per_head(score):
    import torch

    from headcount.models import Layer, Sizes

    for heads, pseudo in ((2, 1), (3, 2), (2, 3)):
        for collapse in ("full", "per-head"):
            config = model(attention="iha", heads=heads, pseudo_heads=pseudo, score=score, collapse=collapse)
            layer = Layer(config, Sizes(11, 1, 4)).double()
            layer.reset(torch.Generator().manual_seed(0))
            patterns = layer.attention.patterns(torch.zeros(1, 11, 1).double()).detach().numpy()
            of_one = np.linalg.matrix_rank(patterns[0].reshape(heads, -1), tol=1e-9)
            assert of_one == operators_of_one_head(config)
            assert np.linalg.matrix_rank(patterns.reshape(heads**2, -1), tol=1e-9) == operator_dimension(config)


def test_concatenated_floor_adds_the_parts_and_is_never_below_the_mixed_one():
    task = Polynomial.parse({"operator": "karate", "k": 6})
    for heads in (1, 2, 3, 4, 6):
        mixed, concatenated = floor(task, model(heads=heads)), floor(task, model(heads=heads, output="concat"))
        assert concatenated >= mixed - 1e-12
    parts = concatenated_floor(task.powers(), 2, 1)
    assert all(recheck(part) for part in parts)
    own = [family_floor(task.powers()[:3], 1), family_floor(task.powers()[3:], 1)]
    expected = sum(p.floor**2 * (p.singular_values**2).sum() for p in own) / (task.powers() ** 2).sum()
    assert total_floor(parts) == pytest.approx(np.sqrt(expected))
    assert floor(task, model(heads=6, output="concat")) == pytest.approx(0, abs=1e-7)


def test_rank_and_span_floors():
    assert rank_floor(cyclic_shift(7), 5).floor == pytest.approx(np.sqrt(2 / 7))
    assert span_floor(9, 4).floor == pytest.approx(np.sqrt(5 / 9))
    assert recheck(rank_floor(random_gaussian(7, seed=0), 3))
    assert recheck(span_floor(9, 4))
    assert span_floor(9, 4).floor == pytest.approx(floor(Cpm3(tokens=9), model(heads=4)))


def test_certificates_are_rechecked_and_forgeries_noticed():
    certificate = family_floor(matrix_powers(random_gaussian(9, seed=2), 6), 3)
    assert recheck(certificate)
    assert not recheck(replace(certificate, floor=certificate.floor * 1.01))
    assert not recheck(replace(certificate, operators=2))
    assert not recheck(replace(certificate, singular_values=certificate.singular_values * [1, 1, 1, 1, 1, 2]))
    assert not recheck(replace(certificate, family=certificate.family * 1.1))


def test_floor_covers_only_the_class_it_is_proved_for():
    task, workspace = Polynomial(k=4, tokens=9), Cpm3(tokens=9)
    assert floor(task, ModelConfig(content="full", heads=2)) is None
    assert floor(task, model(heads=2, mlp_width=8)) is None
    assert floor(workspace, ModelConfig(content="full", heads=2, value_content="features")) == pytest.approx(
        np.sqrt(7 / 9)
    )
    assert floor(workspace, ModelConfig(content="full", heads=2, value_content="full")) is None
    assert floor(Cpm3(target="count"), model(heads=2)) is None


@pytest.mark.parametrize(
    ("operator", "tolerance", "rank"),
    [("karate", 0.1, 4), ("karate", 0.01, 6), ("karate", 0.001, 8), ("les-miserables", 0.1, 4)],
)
def test_epsilon_rank_of_real_graphs(operator, tolerance, rank):
    task = Polynomial.parse({"operator": operator, "k": 32})
    assert epsilon_rank(task, tolerance) == rank
    assert predicted_heads(task, "mha", tolerance) == rank


def test_epsilon_rank_of_the_shift_is_k():
    for k in (1, 2, 7, 20):
        assert epsilon_rank(Polynomial(k=k, tokens=21), 0.1) == k
    assert np.allclose(matrix_powers(cyclic_shift(5), 6)[5], np.eye(5))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scatter", [0.0, 0.05, 0.2])
def test_power_law_interval_covers_a_known_exponent(exponent, scatter):
    rng = np.random.default_rng(1)
    sizes = np.array([4, 6, 9, 13, 20, 30, 45, 64])
    covered = 0
    for _ in range(100):
        fit = fit_power_law(sizes, 3 * sizes**exponent * np.exp(scatter * rng.standard_normal(8)))
        covered += fit.covers(exponent)
    assert covered >= 88
    assert not fit.covers(exponent + 1)


def test_finite_size_formula_is_taken_off():
    sizes = np.array([4, 8, 16, 32, 64])
    counted = 2 * sizes**2 + 50 * sizes
    raw = fit_power_law(sizes, counted)
    assert raw.high < 2
    corrected = fit_power_law(sizes, counted, reference=counted, reference_exponent=2)
    assert corrected.exponent == pytest.approx(2)
    assert not fit_power_law(sizes, counted * sizes**0.5, counted, 2).covers(2)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_rounding_up_alone_gives_an_interval_that_holds_the_law_and_excludes_the_rival(exponent):
    sizes = np.array([1, 2, 4, 5, 9, 10, 16, 17, 25])
    heads = np.ceil(np.round(sizes**exponent, 9))
    fit = fit_ceiling_law(sizes, heads - 1, heads)
    assert fit.covers(exponent)
    assert not fit.covers(1.5 - exponent)
    assert fit.high - fit.low < 0.15
    assert fit.identified[0] <= exponent <= fit.identified[1]


@pytest.mark.parametrize("scatter", [0.05, 0.2])
def test_ceiling_interval_covers_under_noise(scatter):
    rng = np.random.default_rng(2)
    sizes = np.array([1, 2, 3, 4, 6, 9, 12, 16, 20, 25, 36, 49, 64])
    covered = 0
    for _ in range(30):
        heads = np.ceil(1.3 * sizes**0.5 * np.exp(scatter * rng.standard_normal(len(sizes))))
        covered += fit_ceiling_law(sizes, heads - 1, heads).covers(0.5)
    assert covered >= 26


def test_unsolved_sizes_bound_the_law_from_below():
    sizes = np.array([4, 9, 16, 25, 36, 49])
    exact = fit_ceiling_law(sizes, sizes - 1, sizes)
    open_ended = fit_ceiling_law(sizes, sizes - 1, [4, 9, 16, 25, np.inf, np.inf])
    assert open_ended.covers(1.0)
    assert open_ended.high > exact.high


@pytest.mark.parametrize(
    ("sizes", "above", "upto", "reason"),
    [
        ([4, 9, 16], [3, 8, 15], [4, 9, 16], "too few points"),
        ([4, 4, 4, 4], [3] * 4, [4] * 4, "too few points"),
        ([10, 11, 12, 13], [9, 10, 11, 12], [10, 11, 12, 13], "too little range"),
        ([4, 9, 16, 25], [3, 8, 15, 24], [np.inf] * 4, "no bounded point"),
        ([0, 9, 16, 25], [0, 8, 15, 24], [1, 9, 16, 25], "not positive"),
    ],
)
def test_fits_refuse_what_they_cannot_carry(sizes, above, upto, reason):
    with pytest.raises(FitRefused) as caught:
        fit_ceiling_law(sizes, above, upto)
    assert caught.value.reason == reason


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=5, max_size=9, unique=True), st.floats(0.3, 1.2), st.floats(0.6, 3.0))
def test_identified_set_holds_the_truth_for_any_noiseless_law(sizes, exponent, coefficient):
    sizes = np.array(sorted(sizes), float)
    if sizes[-1] / sizes[0] < 4:
        return
    heads = np.ceil(coefficient * sizes**exponent)
    try:
        fit = fit_ceiling_law(sizes, heads - 1, heads)
    except FitRefused:
        with pytest.raises(FitRefused, match="exponent not bounded"):
            fit_ceiling_law(sizes, heads - 1, heads)
        return
    assert fit.identified is not None
    assert fit.identified[0] - 1e-9 <= exponent <= fit.identified[1] + 1e-9
    assert fit.low <= exponent <= fit.high


def rows_of(entries, **fixed):
    """Rows as the store gives them: entries are (k, attention, heads, seed, error)."""
    made = []
    for index, (k, attention, heads, seed, error) in enumerate(entries):
        made.append(
            {
                "id": str(index), "sweep": "s", "status": "nan" if np.isnan(error) else "done", "task.name": "polynomial",
                "task.k": k, "task.tokens": 26, "task.operator": "cyclic", "task.features": 1,
                "model.attention": attention, "model.heads": heads, "model.content": "positions", "seed": seed,
                "model.score": "linear", "model.value_content": "features", "model.output": "mixed", "model.mask": "none",
                "model.rope": "none", "model.query_width": None, "model.value_width": None, "model.pseudo_heads": None,
                "model.collapse": "full", "model.mlp_width": 0,
                "best_error": error, "best_stderr": 1e-4, "parameters": 100 * heads, **fixed,
            }
        )  # fmt: skip
    return pd.DataFrame(made)


def evidence_of(rows):
    by_id = {row["id"]: row for _, row in rows.iterrows()}
    return Evidence(
        rows,
        lambda key: Polynomial(k=int(by_id[key]["task.k"]), tokens=26),
        lambda key: model(attention=by_id[key]["model.attention"], heads=int(by_id[key]["model.heads"])),
        0.1,
    )


def test_models_that_differ_in_a_field_left_open_are_not_pooled():
    rows = rows_of([(4, "mha", 4, 0, 0.01), (4, "mha", 4, 1, 0.9)])
    rows["model.query_width"] = [None, 2.0]
    table = thresholds(rows, 0.1)
    assert len(table) == 2
    assert sorted(table["heads"].isna()) == [False, True]


def test_thresholds_by_best_and_by_median_seed():
    rows = rows_of(
        [
            (4, "mha", 3, 0, 0.5), (4, "mha", 3, 1, 0.5), (4, "mha", 3, 2, np.nan),
            (4, "mha", 4, 0, 0.01), (4, "mha", 4, 1, 0.3), (4, "mha", 4, 2, 0.4),
            (4, "mha", 6, 0, 0.01), (4, "mha", 6, 1, 0.02), (4, "mha", 6, 2, 0.4),
            (9, "mha", 5, 0, 0.4), (9, "mha", 5, 1, 0.4), (9, "mha", 5, 2, 0.4),
        ]
    )  # fmt: skip
    table = thresholds(rows, 0.1).set_index("task.k")
    assert table.loc[4, ["heads", "heads_median", "failing"]].tolist() == [4, 6, 3]
    assert table.loc[4, "success"] == pytest.approx(1 / 3)
    assert np.isnan(table.loc[9, "heads"])
    assert table.loc[9, "failing"] == 5


KS = (1, 2, 4, 5, 9, 10, 16, 17, 25)


def lawful(attention, law, above=0.01):
    entries = []
    for k in KS:
        need = law(k)
        for heads in (need - 1, need, need + 1):
            if heads >= 1:
                dimension = heads if attention == "mha" else heads**2
                certified = np.sqrt(max(k - dimension, 0) / k)
                entries.append((k, attention, heads, 0, above if heads >= need else max(certified * 1.001, 0.2)))
    return entries


@pytest.mark.parametrize(
    ("claim", "attention", "law", "verdict", "contradicted"),
    [
        ("law-poly-mha", "mha", lambda k: k, Verdict.SUPPORTED, False),
        ("law-poly-iha", "iha", lambda k: int(np.ceil(np.sqrt(k))), Verdict.SUPPORTED, False),
        # Twice the heads: not the law, though the exponent is right.
        ("law-poly-mha", "mha", lambda k: 2 * k, Verdict.UNRESOLVED, False),
        # Fewer heads than the certified need: the bound itself would be wrong.
        ("law-poly-mha", "mha", lambda k: int(np.ceil(np.sqrt(k))), Verdict.REFUTED, True),
        # Another exponent.
        ("law-poly-iha", "iha", lambda k: k, Verdict.REFUTED, True),
    ],
)
def test_head_laws_can_hold_and_fail(claim, attention, law, verdict, contradicted):
    finding = LEDGER[claim].finding(evidence_of(rows_of(lawful(attention, law))))
    assert finding.verdict == verdict
    assert finding.contradicted == contradicted


def test_floor_claims_notice_a_model_below_the_floor():
    entries = lawful("mha", lambda k: k)
    assert LEDGER["poly-mha-lower"].finding(evidence_of(rows_of(entries))).verdict == Verdict.SUPPORTED
    entries.append((9, "mha", 8, 1, 0.30))
    finding = LEDGER["poly-mha-lower"].finding(evidence_of(rows_of(entries)))
    assert finding.verdict == Verdict.REFUTED
    assert finding.contradicted
    far = [(9, "mha", 8, 0, 0.5)]
    assert LEDGER["poly-mha-lower"].finding(evidence_of(rows_of(far))).verdict == Verdict.UNRESOLVED


def test_parameter_law_is_refuted_by_other_counts():
    entries = lawful("mha", lambda k: k) + lawful("iha", lambda k: int(np.ceil(np.sqrt(k))))
    rows = rows_of(entries)
    rows["parameters"] = rows["task.k"] ** 2 * 100
    finding = LEDGER["poly-theta"].finding(evidence_of(rows))
    assert finding.verdict == Verdict.REFUTED
    assert finding.contradicted


def test_rows_of_another_setting_do_not_speak_for_a_law():
    rows = rows_of(lawful("mha", lambda k: k))
    others = rows_of(lawful("mha", lambda k: 2 * k))
    others["id"] = "x" + others["id"]
    others["model.query_width"] = 2
    both = pd.concat([rows, others], ignore_index=True)
    finding = LEDGER["law-poly-mha"].finding(evidence_of(both))
    assert finding.verdict == Verdict.SUPPORTED
    assert len(finding.details["thresholds"]) == len(KS)


def test_unsolved_sizes_leave_the_parameter_law_open():
    rows = rows_of(lawful("mha", lambda k: k) + lawful("iha", lambda k: int(np.ceil(np.sqrt(k)))))
    rows["parameters"] = [
        model(attention=a, heads=h).parameters(Sizes(26, 1, k))
        for a, h, k in zip(rows["model.attention"], rows["model.heads"], rows["task.k"], strict=True)
    ]
    assert LEDGER["poly-theta"].finding(evidence_of(rows)).verdict == Verdict.SUPPORTED
    rows.loc[rows["task.k"] >= 16, "best_error"] = 0.9
    assert LEDGER["poly-theta"].finding(evidence_of(rows)).verdict == Verdict.UNRESOLVED


def test_missing_evidence_is_never_a_pass():
    empty = Evidence(pd.DataFrame(), lambda key: Polynomial(), lambda key: model(), 0.1)
    for claim in LEDGER.values():
        if claim.sweeps:
            finding = claim.finding(empty)
            assert finding.verdict == Verdict.NO_EVIDENCE, claim.id
            assert "headcount sweep" in finding.measured
