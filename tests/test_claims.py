"""The ledger: exact verdicts as they stand, and claims on trained models against rows made by hand."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from headcount import api, cli
from headcount.models import ModelConfig
from headcount.tasks import Cpm3, Polynomial
from headcount.theory.claims import LEDGER, Evidence, Verdict
from headcount.theory.claims.costs import average_ranks, paired_interval, schedule

EMPTY = Evidence(pd.DataFrame(), lambda key: Polynomial(), lambda key: ModelConfig(), 0.1)

EXACT = {
    "superset": (Verdict.CONDITION, Verdict.HOLDS),
    "strict": (Verdict.REFUTED, Verdict.HOLDS),
    "patterns": (Verdict.CONDITION, Verdict.HOLDS),
    "overhead": (Verdict.HOLDS, None),
    "fold": (Verdict.HOLDS, None),
    "poly-mha-upper": (Verdict.HOLDS, None),
    "poly-iha-upper": (Verdict.HOLDS, None),
    "poly-saving": (Verdict.CONDITION, Verdict.HOLDS),
    "border": (Verdict.REFUTED, Verdict.HOLDS),
    "width": (Verdict.CONDITION, Verdict.HOLDS),
    "cpm3-upper": (Verdict.HOLDS, None),
    "cpm3-temperature": (Verdict.HOLDS, None),
    "cpm3-task": (Verdict.REFUTED, Verdict.HOLDS),
    "cpm3-free": (Verdict.REFUTED, Verdict.HOLDS),
    "cpm3-order": (Verdict.REFUTED, Verdict.HOLDS),
    "cpm3-count": (Verdict.CONDITION, Verdict.HOLDS),
    "cpm3-example": (Verdict.REFUTED, Verdict.HOLDS),
    "flops": (Verdict.CONDITION, Verdict.HOLDS),
    "tables": (Verdict.REFUTED, None),
    "ruler": (Verdict.REFUTED, None),
}


def test_every_claim_is_complete():
    for claim in LEDGER.values():
        assert claim.statement.endswith(".")
        assert claim.source
        assert len(claim.derivation) > 40
        assert bool(claim.printed) == bool(claim.corrected), claim.id
    assert {claim.id for claim in LEDGER.values() if not claim.sweeps} == set(EXACT)


@pytest.mark.parametrize("claim", EXACT)
def test_exact_verdict(claim):
    finding = LEDGER[claim].finding(EMPTY)
    assert (finding.verdict, finding.corrected) == EXACT[claim]
    assert not finding.contradicted
    assert finding.details
    json.dumps(api.finding_json(LEDGER[claim], finding), allow_nan=False)
    text = api.finding_text(LEDGER[claim], finding)
    assert f"headcount claims verify {claim}" in text


@pytest.mark.parametrize(
    ("claim", "target", "replacement"),
    [
        ("poly-mha-upper", "headcount.theory.claims.filters.deviation", lambda made: 1e-3),
        ("border", "headcount.theory.claims.filters.distance_to_limit", lambda made: 0.1),
        ("cpm3-upper", "headcount.theory.claims.counting.deviation", lambda made: 1.0),
        ("cpm3-order", "headcount.theory.claims.counting.order_sensitive", lambda multiplier, modulus: True),
        ("fold", "headcount.theory.claims.mechanism.deviation", lambda made: 1e-3),
    ],
)
def test_checks_fail_when_what_they_check_fails(monkeypatch, claim, target, replacement):
    monkeypatch.setattr(target, replacement)
    finding = LEDGER[claim].finding(EMPTY)
    assert finding.contradicted
    assert finding.verdict == Verdict.REFUTED


def test_schedule_is_three_fifths_of_the_core_and_more_with_what_is_left_out():
    cost = schedule(8192, 20, 20, 128)
    assert cost["core"] == pytest.approx(0.6)
    assert cost["with mixing"] == pytest.approx(0.6 + 8 / 5 * 20 * 20 / 8192)
    assert schedule(127, 8, 8, 16)["window"] < 1 <= schedule(128, 8, 8, 16)["window"]


def test_average_ranks_share_ties_and_skip_gaps():
    ranks = average_ranks(np.array([[3.0, 1.0], [2.0, np.nan], [2.0, 5.0]]))
    assert ranks.tolist() == [1.5, 2.5, 1.75]


def content_rows(entries, task, **model):
    """Entries are (heads, error, norm, value_content); rows as the store gives them."""
    made, tasks, models = [], {}, {}
    for index, (heads, error, norm, values) in enumerate(entries):
        key = str(index)
        tasks[key] = task
        models[key] = ModelConfig.parse({"heads": heads, "value_content": values, **model})
        made.append(
            {
                "id": key, "status": "done", "task.name": task.name, "task.tokens": task.length,
                "task.k": getattr(task, "k", None), "task.operator": getattr(task, "operator", None),
                "task.target": getattr(task, "target", None), "model.attention": "mha", "model.heads": heads,
                "model.content": "full", "model.score": models[key].score, "model.output": "mixed",
                "model.value_content": values, "seed": index, "best_error": error, "error": error, "best_stderr": 1e-4,
                "weight_norm": norm, "best_accuracy": np.nan,
            }
        )  # fmt: skip
    return Evidence(pd.DataFrame(made), tasks.__getitem__, models.__getitem__, 0.1)


def test_border_claim_needs_low_errors_and_measures_growing_weights():
    task = Polynomial(k=5, tokens=8)
    falling = [(4, 0.2, 10.0, "full"), (4, 0.05, 20.0, "full"), (3, 0.5, 9.0, "full")]
    claim = LEDGER["border-trained"]
    finding = claim.finding(content_rows(falling, task, score="linear"))
    assert finding.verdict == Verdict.SUPPORTED
    assert finding.details["slope of log weight norm in log error, at the border"] == pytest.approx(-0.5)
    high = [(4, 0.5, 10.0, "full"), (4, 0.44, 20.0, "full")]
    assert claim.finding(content_rows(high, task, score="linear")).verdict == Verdict.UNRESOLVED
    assert claim.finding(content_rows([(5, 0.01, 1.0, "full")], task, score="linear")).verdict == Verdict.NO_EVIDENCE


def test_scalar_transport_claim_notices_a_model_below_the_floor():
    task, claim = Cpm3(tokens=5), LEDGER["cpm3-content"]
    fine = [(2, 0.78, 1.0, "features"), (2, 0.4, 1.0, "full")]
    assert claim.finding(content_rows(fine, task)).verdict == Verdict.SUPPORTED
    beaten = [(2, 0.70, 1.0, "features"), (2, 0.4, 1.0, "full")]
    finding = claim.finding(content_rows(beaten, task))
    assert finding.verdict == Verdict.REFUTED
    assert finding.contradicted
    assert claim.finding(content_rows(fine[:1], task)).verdict == Verdict.NO_EVIDENCE


def relation_rows(accuracy, heads=8, sizes=((2, 6, 10), (3, 5, 8))):
    made = [
        {"id": f"{name}{seed}{hops}{rate}", "status": "done", "task.name": "relation", "task.hops": hops, "task.smallest": least,
         "task.largest": most, "model.attention": name, "model.heads": heads, "model.width": 16, "model.depth": 1, "seed": seed,
         "best_accuracy": value + 0.001 * seed, "best_error": 1 - value, "training.learning_rate": rate}
        for name, values in accuracy.items() for seed, value in enumerate(values)
        for hops, least, most in sizes for rate in (1e-3, 1e-4)
    ]  # fmt: skip
    return Evidence(pd.DataFrame(made), lambda key: Polynomial(), lambda key: ModelConfig(), 0.1)


IN_ORDER = {"iha": [0.95, 0.96, 0.95], "simplicial": [0.9, 0.91, 0.9], "mha": [0.8, 0.81, 0.8]}


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [
        (IN_ORDER, Verdict.SUPPORTED),
        ({"iha": [0.80, 0.81, 0.80], "simplicial": [0.9, 0.91, 0.9], "mha": [0.7, 0.71, 0.7]}, Verdict.REFUTED),
        ({"iha": [0.9, 0.8, 0.95], "simplicial": [0.9, 0.91, 0.8], "mha": [0.7, 0.71, 0.7]}, Verdict.UNRESOLVED),
        ({"iha": [0.9, 0.8], "mha": [0.7, 0.71]}, Verdict.UNRESOLVED),
        ({"iha": [0.9, 0.8, 0.9]}, Verdict.UNRESOLVED),
        ({"strassen": [0.9, 0.8, 0.9]}, Verdict.NO_EVIDENCE),
    ],
)
def test_relation_claim_compares_paired_runs(accuracy, verdict):
    assert LEDGER["relation"].finding(relation_rows(accuracy)).verdict == verdict


def test_relation_claim_is_decided_at_the_papers_sizes_only():
    claim = LEDGER["relation"]
    small = claim.finding(relation_rows(IN_ORDER, heads=4))
    assert small.verdict == Verdict.UNRESOLVED
    assert "as claimed" in small.measured
    backwards = dict(zip(IN_ORDER, reversed(IN_ORDER.values()), strict=True))
    turned = claim.finding(relation_rows(backwards, sizes=((2, 4, 5), (3, 3, 4))))
    assert turned.verdict == Verdict.UNRESOLVED
    assert "contradicted" in turned.measured
    # One task alone does not support a claim about two.
    assert claim.finding(relation_rows(IN_ORDER, sizes=((2, 6, 10),))).verdict == Verdict.UNRESOLVED


def test_paired_interval_is_students():
    gaps = pd.Series([0.1, 0.2, 0.4])
    found = paired_interval(gaps)
    low, high = stats.t.interval(0.95, 2, loc=gaps.mean(), scale=stats.sem(gaps))
    assert (found["low"], found["high"]) == pytest.approx((low, high))


def test_claims_commands(monkeypatch, capsys, tmp_path):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["headcount", "claims", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code or 0, capsys.readouterr()
        return 0, capsys.readouterr()

    results = tmp_path / "results"
    code, out = run("--results", results)
    assert code == 0
    assert "not verified yet" in out.out
    code, out = run("verify", "cpm3-order", "tables", "--json", "--results", results)
    assert code == 0
    assert [row["verdict"] for row in json.loads(out.out)] == ["REFUTED", "REFUTED"]
    code, out = run("--json", "--results", results)
    stored = {row["claim"]: row["verdict"] for row in json.loads(out.out)}
    assert stored["cpm3-order"] == "REFUTED"
    assert stored["law-poly-mha"] == "not verified yet"
    code, out = run("show", "cpm3-order", "--results", results)
    assert "G mod M != 1" in out.out
    code, out = run("show", "border-trained", "--results", results)
    assert "headcount sweep --preset conditions" in out.out
    for arguments, words in ((("show", "cpm3-ordr"), "did you mean 'cpm3-order'"), (("verify", "law-poly-mha"), "headcount check law-poly-mha")):  # fmt: skip
        code, out = run(*arguments, "--results", results)
        assert code == 2
        assert words in out.err
