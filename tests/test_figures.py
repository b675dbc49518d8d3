"""Figures and tables: what is drawn is what is stored or computed, nothing is clipped, and bytes are the same."""

import copy
import json
import xml.etree.ElementTree as ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from headcount import api
from headcount.config import BadInput
from headcount.experiments import Trial, preset_names
from headcount.experiments.trial import flatten
from headcount.figures import FIGURES, TABLES, caption, draw, overview, published, relation, style, tables
from headcount.figures.style import HATCHES, LABELS, MARKERS, NothingToDraw, paper_style
from headcount.models import ATTENTION, Sizes
from headcount.tasks import describe, random_stream
from headcount.theory.claims import LEDGER, Evidence
from headcount.theory.claims.costs import published as printed_numbers
from headcount.theory.claims.costs import schedule

RATES = (0.001, 0.0001)
SEEDS = range(3)
SIZES = {"smallest": 4, "largest": 5}


def trial(task, model, rate=0.01, seed=0, **training):
    network = {"network": "transformer", "width": 16, "heads": 2} | model
    return Trial.build({"task": task, "model": network, "training": {"learning_rate": rate, **training}, "seed": seed})


def relation_trials(hops, models, rates=RATES, seeds=SEEDS, sizes=SIZES, **training):
    task = {"name": "relation", "hops": hops, **sizes}
    training = {"batch": 16, "steps": 30, "training_examples": 160, **training}
    return [trial(task, model, rate, seed, **training) for model in models for rate in rates for seed in seeds]


def evidence_of(trials):
    """Evidence with made-up accuracies and curves; the last step of a run differs from seed to seed."""
    random = np.random.default_rng(7)
    rows, curves = [], []
    for one in trials:
        accuracy = round(float(random.uniform(0.6, 0.95)), 4)
        sizes = Sizes(one.task.length, one.task.input_width, one.task.output_width)
        rows.append(
            {"id": one.id, "sweep": "made up", "status": "done", **flatten(one.model_dump(mode="json")),
             "best_error": 1 - accuracy, "best_accuracy": accuracy, "best_stderr": 0.01,
             "parameters": one.model.parameters(sizes, one.task.vocabulary)}
        )  # fmt: skip
        for step in range(10, 31 - 10 * (one.seed == 2), 10):
            errors = random.uniform(0.05, 0.5, 3)
            curves.append(
                {
                    "id": one.id,
                    "step": step,
                    "loss": 1.0,
                    "error": errors[0],
                    "train_error": errors[1],
                    "test_error": errors[2],
                }
            )
    by_id, frame = {one.id: one for one in trials}, pd.DataFrame(curves)
    return Evidence(pd.DataFrame(rows), lambda key: by_id[key].task, lambda key: by_id[key].model, 0.1, lambda: frame)


MODELS = [
    {"attention": "mha"},
    {"attention": "iha"},
    {"attention": "iha", "pseudo_heads": 1},
    {"attention": "simplicial"},
]


@pytest.fixture(scope="module")
def evidence():
    retrieval = {"name": "retrieval", "form": "multi-key-2", "layout": "fused"}
    trials = [
        *relation_trials(2, MODELS),
        *relation_trials(2, [{"attention": "mha", "width": 24}, {"attention": "iha", "width": 24}]),
        *relation_trials(3, [{"attention": name} for name in ("mha", "iha", "strassen")]),
        *(trial({**retrieval, "pairs": pairs}, {"attention": name}, seed=seed)
          for pairs in (4, 8) for name in ("mha", "iha") for seed in range(2)),
    ]  # fmt: skip
    return evidence_of(trials)


def drawn(function, evidence):
    with paper_style():
        figure = function(evidence)
    figure.canvas.draw()
    return figure


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def only_svg(monkeypatch):
    """One format instead of three, for speed."""
    monkeypatch.setattr(style, "FORMATS", ("svg",))


@pytest.mark.usefixtures("only_svg")
def test_everything_is_drawn_or_named_as_missing_and_is_the_same_every_time(evidence, tmp_path):
    written, missing = draw([], evidence, tmp_path / "a")
    assert set(missing) == {"border", "error-heads", "heads-k", "heads-n", "parameters"}
    expected = {f"{name}.{kind}" for name in set(FIGURES) - set(missing) for kind in ("svg", "json")}
    expected |= {f"{name}.{kind}" for name in TABLES for kind in ("md", "tex", "json")}
    assert {path.name for path in written} == expected
    again, _ = draw(["all"], evidence, tmp_path / "b")
    for one, other in zip(written, again, strict=True):
        assert (one.name, one.read_bytes()) == (other.name, other.read_bytes())
        if one.suffix == ".svg":
            ElementTree.parse(one)


@pytest.mark.usefixtures("only_svg")
def test_side_files_name_the_rows_that_were_read(evidence, tmp_path):
    draw(["fig4", "relation", "fig1", "table1"], evidence, tmp_path)
    runs = {
        name: json.loads((tmp_path / f"{name}.json").read_text())["runs"]
        for name in ("fig4", "relation", "fig1", "table1")
    }
    rows = evidence.rows[evidence.rows["task.name"] == "relation"]
    assert runs["fig4"] == sorted(rows[rows["task.hops"] == 2]["id"])
    assert runs["relation"] == sorted(rows["id"])
    assert runs["fig1"] == runs["table1"] == []


@pytest.mark.usefixtures("only_svg")
def test_an_empty_store_has_only_what_needs_no_rows(tmp_path):
    written, missing = draw([], api.NOTHING_STORED, tmp_path)
    needs_none = {"fig1", "fig2", "flop-schedule", "eps-rank", "task-samples", "table1", "table2"}
    assert {path.stem for path in written} == needs_none
    assert set(missing) == {*FIGURES, *TABLES} - needs_none


def test_unknown_names(evidence, tmp_path):
    with pytest.raises(BadInput, match=r"unknown figure or table 'tabel1'; did you mean 'table1'"):
        draw(["fig1", "tabel1"], evidence, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trained_store_gives_the_figures_of_relation_composition(tmp_path):
    made = api.sweep(
        "relation", results=tmp_path, seeds=2, heads=[1], smallest=3, largest=3, model__width=4, training__steps=4,
        training__evaluations=2, training__test_examples=16, training__validation_examples=16, training__curves="all",
    )  # fmt: skip
    written, missing = made.draw("fig4", "fig5", "relation", "relation-differences")
    assert missing == ["fig5"]
    assert json.loads((tmp_path / "figures" / "fig4.json").read_text())["runs"] == sorted(made.rows["id"])
    assert {path.suffix for path in written} == {".png", ".pdf", ".svg", ".json", ".md", ".tex"}


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig4", "fig5", "relation-cost", "flop-schedule", "eps-rank"])
def test_no_text_is_clipped(evidence, name):
    figure = drawn(FIGURES[name], evidence)
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01


def test_captions_are_sentences():
    for function in [*FIGURES.values(), *TABLES.values()]:
        assert caption(function).endswith(".")


def test_every_mechanism_has_a_look_of_its_own():
    assert set(ATTENTION) == set(LABELS) == set(MARKERS) == set(HATCHES)
    assert len(set(MARKERS.values())) == len(set(LABELS.values())) == len(ATTENTION)


# --------------------------------------------------------------------------------------------------
# Figure 1


def test_the_layer_of_the_overview_computes_the_four_powers():
    layer = overview.example_layer()
    x = torch.randn(3, overview.TOKENS, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = torch.cat([x.roll(-power, 1) for power in range(4)], -1)
    with torch.no_grad():
        assert torch.allclose(layer(x), shifted, atol=1e-12)
        weights = layer.weights(x[:1])
    assert not weights[1].any()
    maps = [weights[0, p::2, q::2] for p in range(2) for q in range(2)]
    assert [overview.power_name(one) for one in maps] == ["I", "A", "A^2", "A^3"]
    assert overview.power_name(torch.ones(4, 4, dtype=torch.float64)) == "?"


def test_the_overview_draws_the_tensors_of_the_layer(evidence):
    layer, figure = overview.example_layer(), drawn(overview.iha_overview, evidence)
    maps = {axis.get_title(): np.asarray(axis.collections[0].get_array()) for axis in figure.axes if axis.collections}
    expected = {
        f"$\\alpha^{symbol}$": mixing
        for symbol, mixing in (("Q", layer.mix_query), ("K", layer.mix_key), ("V", layer.mix_value))
    }
    expected["4. Collapse R to output heads"] = layer.collapse
    for title, tensor in expected.items():
        assert np.array_equal(maps[title], tensor.detach().flatten(1).numpy()), title
    assert np.array_equal(maps["$W_Q^2 = A^2$"], layer.query.positions[1].detach().numpy())
    assert np.array_equal(maps["$W_K^2 = A^T$"], layer.key.positions[1].detach().numpy())
    x = torch.eye(overview.TOKENS, dtype=torch.float64)[None, :, :1]
    with torch.no_grad():
        weights, outputs = layer.weights(x)[0].numpy(), layer(x)[0].numpy()
    assert np.array_equal(maps["all virtual queries and keys"], weights)
    assert np.array_equal(maps["p = 2, q = 1: $A^2$"], weights[1::2, 0::2])
    assert np.array_equal(maps["token 1 in, and what comes out"][1:], outputs.T)
    words = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert [word for word in words if word.startswith("(")] == [f"({n}, {p})" for n in range(1, 7) for p in (1, 2)]


# --------------------------------------------------------------------------------------------------
# Relation composition


def test_bars_are_means_dots_are_seeds_and_lines_are_floors(evidence):
    figure = drawn(relation.final_accuracy, evidence)
    rows = evidence.rows[(evidence.rows["task.hops"] == 2) & (evidence.rows["model.width"] == 16)]
    pseudo = rows["model.pseudo_heads"].fillna(0)
    axis = figure.axes[0]
    # One container a mechanism, in the order of `LABELS`; in it one bar a rate, the smaller first.
    for container, (attention, heads) in zip(
        axis.containers, [("mha", 0), ("iha", 1), ("iha", 0), ("simplicial", 0)], strict=True
    ):
        part = rows[(rows["model.attention"] == attention) & (pseudo == heads)]
        means = [part[part["training.learning_rate"] == rate]["best_accuracy"].mean() for rate in sorted(RATES)]
        assert [bar.get_height() for bar in container] == pytest.approx(means)
    dots = np.concatenate([np.asarray(collection.get_offsets())[:, 1] for collection in axis.collections])
    assert sorted(dots) == pytest.approx(sorted(rows["best_accuracy"]))
    first = rows[(rows["model.attention"] == "mha") & (rows["training.learning_rate"] == 0.0001)]["best_accuracy"]
    low, high = stats.t.interval(0.95, 2, first.mean(), stats.sem(first))
    assert axis.lines[0].get_ydata() == pytest.approx([low, high])
    floors = describe.floors(evidence.task_of(rows["id"].iloc[0]), 1024, random_stream(0, "validation"))
    drawn_at = {line.get_ydata()[0] for line in axis.lines if len(set(line.get_ydata())) == 1}
    assert drawn_at == {floors[name] for name in ("majority", "own token", "degrees")}
    assert f"starts at {axis.get_ylim()[0]:g}" in axis.get_ylabel()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:5] == ["MHA", "IHA", "IHA, P = 1", "IHA, P = H", "2-simplicial"]


def test_learning_curves_are_means_over_the_seeds_that_still_run(evidence):
    figure = drawn(relation.binary_curves, evidence)
    assert [axis.get_title() for axis in figure.axes] == ["learning rate 0.0001", "learning rate 0.001"]
    assert figure.axes[0].get_xlabel() == "epoch"
    runs = evidence.rows[(evidence.rows["task.hops"] == 2) & (evidence.rows["model.width"] == 16)]
    runs = runs[(runs["model.attention"] == "mha") & (runs["training.learning_rate"] == 0.0001)]["id"]
    curves = evidence.curves()
    curves = curves[curves["id"].isin(runs) & (curves["step"] <= 20)]
    for split, dashes in (("error", "-"), ("train_error", ":"), ("test_error", "--")):
        line = next(
            line for line in figure.axes[0].lines if line.get_linestyle() == dashes and line.get_linewidth() > 1
        )
        # 160 examples in batches of 16: ten steps are an epoch. Seed 2 stops after step 20.
        assert line.get_xdata() == pytest.approx([1, 2])
        assert line.get_ydata() == pytest.approx((1 - curves.groupby("step")[split].mean()).tolist())


def test_curves_without_a_fixed_set_show_steps_and_only_the_splits_that_were_measured():
    made = evidence_of(relation_trials(3, MODELS[:1], training_examples=None))
    curves = made.curves().assign(train_error=np.nan, test_error=None)
    figure = drawn(relation.ternary_curves, Evidence(made.rows, made.task_of, made.model_of, 0.1, lambda: curves))
    assert figure.axes[0].get_xlabel() == "step"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["MHA", "validation"]
    with pytest.raises(NothingToDraw):
        relation.ternary_curves(Evidence(made.rows, made.task_of, made.model_of, 0.1))


def test_the_experiment_shown_is_the_papers_where_it_is_stored():
    paper = relation_trials(2, MODELS[:2], sizes={}, rates=(0.001,))
    small = relation_trials(2, MODELS)
    shown = relation.relation_experiment(evidence_of(small + paper), 2)
    assert set(shown["id"]) == {one.id for one in paper}
    longer = relation_trials(2, MODELS[:3], steps=40)
    shown = relation.relation_experiment(evidence_of(longer + small), 2)
    assert set(shown["id"]) == {one.id for one in small}


def test_cost_is_drawn_at_the_rate_that_is_best_on_validation(evidence):
    figure = drawn(relation.accuracy_against_cost, evidence)
    left, right = figure.axes[:2]
    points = {float(line.get_xdata()[0]): float(line.get_ydata()[0]) for line in left.lines if line.get_marker() == "D"}
    rows = evidence.rows[(evidence.rows["model.attention"] == "simplicial")]
    least = evidence.curves().groupby("id")["error"].min()
    by_rate = {rate: least[part["id"]].mean() for rate, part in rows.groupby("training.learning_rate")}
    best = rows[rows["training.learning_rate"] == min(by_rate, key=by_rate.get)]
    assert points == {float(best["parameters"].iloc[0]): pytest.approx(best["best_accuracy"].mean())}
    flops = [float(line.get_xdata()[0]) for line in right.lines if line.get_marker() == "D"]
    tokens, width = 25, 16
    assert flops == [12 * tokens * width**2 + 4 * tokens**3 * width]
    assert len([line for line in left.lines if line.get_marker() == "s"]) == 3


def test_a_rate_at_which_a_run_diverged_is_not_the_best():
    made = evidence_of(relation_trials(2, MODELS[:1]))
    chosen = relation.at_best_rate(made.rows.assign(network="one"), made, "network")
    gone = made.rows.assign(network="one")
    gone.loc[gone["id"] == chosen["id"].iloc[0], "best_accuracy"] = np.nan
    other = relation.at_best_rate(gone, made, "network")
    assert set(chosen["training.learning_rate"]) | set(other["training.learning_rate"]) == set(RATES)
    assert len(chosen) == len(other) == len(SEEDS)


def test_diverged_runs_are_counted_and_not_averaged(evidence):
    rows = evidence.rows.copy()
    gone = rows.index[(rows["model.attention"] == "simplicial") & (rows["seed"] == 1)]
    rows.loc[gone, ["status", "best_accuracy", "best_error"]] = ["nan", np.nan, np.nan]
    table = tables.relation_table(Evidence(rows, evidence.task_of, evidence.model_of, 0.1, evidence.curves))
    part = table[table["mechanism"] == "2-simplicial"]
    assert part[["seeds", "diverged"]].to_numpy().tolist() == [[3, 1], [3, 1]]
    alone = rows[(rows["model.attention"] == "simplicial") & (rows["training.learning_rate"] == 0.0001)]
    assert part["test accuracy"].iloc[0] == pytest.approx(alone["best_accuracy"].mean())


# --------------------------------------------------------------------------------------------------
# Published numbers and cost


def test_figure_2_marks_what_is_published_and_what_is_ours(evidence):
    figure = drawn(published.ruler, evidence)
    exact, gains, ours = figure.axes
    numbers = printed_numbers()["figure2_ruler"]
    assert sorted(bar.get_width() for bar in exact.patches) == sorted(numbers["overall_exact_match"].values())
    assert [bar.get_height() for bar in gains.containers[0]] == [27, 32, 112]
    assert exact.get_title() == gains.get_title() == "published, arXiv 2602.21371"
    assert ours.get_title().startswith("ours: multi-key-2")
    rows = evidence.rows[evidence.rows["task.name"] == "retrieval"]
    for container, attention in zip(ours.containers, ("mha", "iha"), strict=True):
        means = rows[rows["model.attention"] == attention].groupby("task.pairs")["best_accuracy"].mean()
        assert [bar.get_height() for bar in container] == pytest.approx(means.tolist())


def test_figure_2_without_rows_names_a_command_that_exists():
    figure = drawn(published.ruler, api.NOTHING_STORED)
    words = figure.axes[2].texts[0].get_text().split()
    assert words[words.index("--preset") + 1] in preset_names()
    sweeps = {made.name for made in api.load_preset(words[words.index("--preset") + 1])}
    assert words[words.index("--only") + 1] in sweeps


def test_the_schedule_is_solid_where_the_window_holds_a_token(evidence):
    figure = drawn(published.flop_schedule, evidence)
    solid, dotted = figure.axes[0].lines[:2]
    at = dict(zip(solid.get_xdata(), solid.get_ydata(), strict=True))
    assert at[16] == pytest.approx(0.6)
    assert (np.isnan(at[64]), np.isnan(at[65])) == (False, True)
    assert np.isnan(dotted.get_ydata()).tolist()[63:65] == [True, False]
    mixing = dict(zip(*figure.axes[0].lines[2].get_data(), strict=True))
    assert mixing[32] == pytest.approx(schedule(8192, 20, 32, 128)["with mixing"])


# --------------------------------------------------------------------------------------------------
# Tables


def test_published_tables_agree_with_the_claim(evidence):
    details = LEDGER["tables"].finding(evidence).details
    for name, key in (("table1", "table1_sft"), ("table2", "table2_pretrained")):
        table = TABLES[name](evidence).set_index("model")
        for model, rank in details["average ranks"][key].items():
            assert table.loc[model, "average rank"] == f"{rank:.2f}"
    table = TABLES["table1"](evidence).set_index("model")
    for model, deltas in details["deltas"].items():
        if model != "Global Attention":
            assert [cell.partition("(")[2] for cell in table.loc[model].iloc[:-1]] == [f"{d:+.1f})" for d in deltas]
    assert table.loc["IHA", "MBPP P@1"] == "15.5 [2] (+0.8)"
    assert table.loc["IHA", "MBPP P@10"] == "41.6 (+0.4)"
    assert TABLES["table2"](evidence).set_index("model").loc["Talking Heads", "MATH-500 EM"] == "not reported"


def test_a_printed_number_that_does_not_follow_is_marked(evidence, monkeypatch):
    wrong = copy.deepcopy(printed_numbers())
    wrong["table1_sft"]["printed_delta_vs_global"]["IHA"][0] = 5.8
    wrong["table1_sft"]["printed_average_rank"]["IHA"] = 1.2
    monkeypatch.setattr(tables, "published", lambda: wrong)
    row = tables.sft_table(evidence).set_index("model").loc["IHA"]
    assert (row["GSM8K P@1"], row["average rank"]) == ("34.3 [1] (+4.8; printed +5.8)", "1.50 (printed 1.2)")


def test_relation_table(evidence):
    table = tables.relation_table(evidence)
    assert len(table) == 2 * (4 + 2) + 2 * 3
    row = table[(table["mechanism"] == "MHA") & (table["width"] == 24) & (table["learning rate"] == 0.001)].iloc[0]
    rows = evidence.rows
    part = rows[
        (rows["model.attention"] == "mha") & (rows["model.width"] == 24) & (rows["training.learning_rate"] == 0.001)
    ]
    values = part["best_accuracy"]
    assert (row["test accuracy"], row["low"], row["high"]) == pytest.approx(
        (values.mean(), *stats.t.interval(0.95, 2, values.mean(), stats.sem(values)))
    )
    assert (row["parameters"], row["attention FLOPs"]) == (part["parameters"].iloc[0], 8 * 25 * 24**2 + 4 * 25**2 * 24)
    assert row["FLOPs"] > row["attention FLOPs"]


def test_differences_are_paired_by_seed(evidence):
    table = tables.relation_differences(evidence)
    chosen = (
        (table["task"] == "binary, m = 4 to 5") & (table["learning rate"] == 0.0001)
        & (table["mechanism"] == "2-simplicial, H = 2, D = 16") & (table["against"] == "MHA, H = 2, D = 16")
    )  # fmt: skip
    row = table[chosen].iloc[0]
    rows = evidence.rows[(evidence.rows["task.hops"] == 2) & (evidence.rows["model.width"] == 16)]
    rows = rows[rows["training.learning_rate"] == 0.0001].sort_values("seed")
    one, other = (rows[rows["model.attention"] == name]["best_accuracy"].to_numpy() for name in ("simplicial", "mha"))
    interval = stats.ttest_rel(one, other).confidence_interval()
    assert (row["difference"], row["low"], row["high"]) == pytest.approx(((one - other).mean(), *interval))
    assert (row["equal"], row["seeds"]) == ("heads", 3)


def test_networks_of_equal_cost_are_compared_whatever_their_width():
    # 12 N D^2 + 4 N^3 D of the one are nearly 8 N D^2 + 4 N^2 D of the other at N = 4, D = 16 and 22.
    models = [
        {"attention": "simplicial"},
        {"attention": "mha", "width": 22, "heads": 1},
        {"attention": "mha", "width": 40},
    ]
    trials = relation_trials(2, models, rates=(0.01,), sizes={"smallest": 2, "largest": 2})
    table = tables.relation_differences(evidence_of(trials))
    assert table[["mechanism", "against", "equal"]].to_numpy().tolist() == [
        ["2-simplicial, H = 2, D = 16", "MHA, H = 1, D = 22", "attention FLOPs"]
    ]
    assert 0.95 <= table["attention FLOPs, ratio"].iloc[0] <= 1 / 0.95


def test_markdown_and_latex_escape_what_they_must():
    table = pd.DataFrame({"a|b": ["50 % & $x_1$", "ok"], "n": [1234, 5], "rate": [1e-5, float("nan")]})
    table.attrs["note"] = "a note of 5 %"
    markdown = tables.to_markdown(table, "Words.").splitlines()
    assert markdown[2:5] == ["| a\\|b | n | rate |", "| --- | --: | --: |", "| 50 % & $x_1$ | 1,234 | 1e-05 |"]
    latex = tables.to_latex(table, "100 % of it", "one")
    assert r"50 \% \& \$x\_1\$ & 1,234 & 1e-05 \\" in latex
    assert r"\caption{100 \% of it}" in latex
    assert r"\begin{tabular}{lrr}" in latex
    assert r"a note of 5 \%" in latex
    assert latex.count(r"\begin") == latex.count(r"\end")
