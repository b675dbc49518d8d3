"""The same things from Python as from the command line: sweep, fit, check, draw, export, reproduce."""

from __future__ import annotations

import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headcount import figures
from headcount.config import BadInput, choose, whole_file
from headcount.experiments import (
    TOLERANCE,
    Execution,
    Report,
    Store,
    Sweep,
    Trial,
    load_preset,
    preset_names,
    recovery,
    run,
)
from headcount.experiments.sweep import defaults
from headcount.experiments.tracking import TensorBoard
from headcount.experiments.trial import flatten
from headcount.figures import report as pages
from headcount.models import ATTENTION, ModelConfig, Sizes, describe_mechanisms
from headcount.tasks import TASKS, Task, babi, random_stream
from headcount.tasks import describe as tasks
from headcount.tasks.babi_stories import SUPPORTS
from headcount.theory.claims import LEDGER, Claim, Evidence, Finding
from headcount.theory.fits import Fit
from headcount.theory.thresholds import fit_heads, thresholds

Progress = Callable[[int, int, str], None]

MOST_SEEDS = 100_000

SIZE_OF = {"polynomial": "task.k", "cpm3": "task.tokens"}
"""The field a task's head law is over."""


def _silent(done: int, total: int, label: str) -> None:
    pass


class Results:
    """A results folder: its rows, and everything computed from them."""

    def __init__(self, folder: str | Path = "results", tolerance: float = TOLERANCE) -> None:
        """Open an existing results folder.

        Raises:
            BadInput: if it holds no store.
        """
        if not 0 < tolerance < 1:
            raise BadInput(f"tolerance = {tolerance}: a relative error between 0 and 1 is needed")
        self.folder, self.tolerance = Path(folder), tolerance
        self.store = Store(folder, create=False)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row a trial, see `Store.rows`."""
        return self.store.rows()

    @cached_property
    def evidence(self) -> Evidence:
        """What claims and figures read."""
        trials = self._trials
        return Evidence(
            self.rows, lambda key: trials[key].task, lambda key: trials[key].model, self.tolerance, self.store.curves
        )

    @cached_property
    def _trials(self) -> Mapping[str, Trial]:
        return self.store.trials()

    def thresholds(self) -> pd.DataFrame:
        """Fewest heads that solve each problem, see `theory.thresholds.thresholds`."""
        return thresholds(self.rows, self.tolerance)

    def fit(self, task: str, attention: str) -> Fit:
        """The power law of heads against k (polynomial) or N_max (cpm3).

        Raises:
            BadInput: on an unknown task.
            FitRefused: if the rows cannot carry a fit.
        """
        size = SIZE_OF[choose(task, SIZE_OF, "task")]
        rows = self.evidence.where(task__name=task, model__attention=attention)
        table = thresholds(rows, self.tolerance)
        if table.empty:
            raise BadInput(f"no finished row of {attention} on {task} in '{self.folder}'")
        table = table.sort_values(size)
        return fit_heads(table, size)

    def check(self, ids: Sequence[str] = (), trained: bool = True, exact: bool = True) -> list[tuple[Claim, Finding]]:
        """Compute the verdicts of claims (all, or those named) and store them.

        Args:
            trained, exact: whether to include claims that read stored rows, and those that do not.

        Raises:
            BadInput: on an unknown claim.
        """
        chosen = [LEDGER[choose(key, LEDGER, "claim")] for key in ids] if ids else list(LEDGER.values())
        chosen = [claim for claim in chosen if (trained if claim.sweeps else exact)]
        found = [(claim, claim.finding(self.evidence)) for claim in chosen]
        self.store.save_verdicts(
            {
                "claim": claim.id,
                "verdict": str(finding.verdict),
                "predicted": finding.predicted,
                "measured": finding.measured,
                "details": plain(finding.details),
            }
            for claim, finding in found
        )
        return found

    def draw(self, *names: str) -> tuple[list[Path], list[str]]:
        """Draw figures and write tables (all if none is named) under figures/ in the results folder.

        Returns:
            Files written, and names of figures and tables that have no rows yet.
        """
        return figures.draw(list(names), self.evidence, self.folder / "figures")

    def report(
        self, path: str | Path | None = None, findings: Sequence[tuple[Claim, Finding]] | None = None
    ) -> Path:  # fmt: skip
        """Write one self-contained HTML page of everything here; trains nothing.

        Args:
            path: file to write; report.html in the results folder if not given.
            findings: verdicts of `check`, if they are known already.

        Raises:
            BadInput: if the path cannot be written.
        """
        page = self.folder / "report.html" if path is None else Path(path)
        with whole_file(page) as file:
            found = self.check() if findings is None else findings
            file.write_text(pages.render(self.evidence, found, self._presets()), encoding="utf-8")
        return page

    def _presets(self) -> dict[str, str]:
        """The preset that holds all stored trials of a sweep, by sweep; sweeps without one are left out."""
        found: dict[str, str] = {}
        stored = {str(name): set(part) for name, part in self.rows.groupby("sweep")["id"]}
        # Sweeps of smoke, quick and paper share names; paper, by far the longest to build, comes last this way.
        for preset in sorted(preset_names(), reverse=True):
            for made in load_preset(preset):
                if made.name in stored.keys() - found.keys() and stored[made.name] <= {one.id for one in made.trials()}:
                    found[made.name] = preset
        return found

    def run_text(self, run: str) -> str:
        """Everything about one run, for people.

        Args:
            run: its id, or the first digits of it.

        Raises:
            BadInput: if none or several have such an id.
        """
        stored, points = self.store.one(self.store.find(run))
        stored["config"] = flatten(json.loads(stored["config"]))
        for moment in ("planned_at", "heartbeat", "finished_at"):
            if stored.get(moment) is not None:
                stored[moment] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored[moment]))
        if "environment" in stored:
            stored["environment"] = json.loads(stored["environment"])
        failure = stored.pop("traceback", None)
        lines = [line for name, value in stored.items() if value is not None for line in _evidence_lines(name, value)]
        if points:
            some = sorted({round(i * (len(points) - 1) / 9) for i in range(10)})
            lines += _evidence_lines(f"curve, {len(some)} of {len(points)} points", [points[i] for i in some])
        return "\n".join(line.removeprefix("  ") for line in lines) + (f"\n\n{failure}" if failure else "")

    def export(self, kind: str, target: Path) -> int:
        """Write all rows to a Parquet or CSV file; returns how many.

        Raises:
            BadInput: on an unknown format or a path that cannot be written.
        """
        choose(kind, ("csv", "parquet"), "format")
        with whole_file(target) as file:
            if kind == "csv":
                self.rows.to_csv(file, index=False)
            else:
                self.rows.to_parquet(file, index=False)
        return len(self.rows)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises:
        BadInput: if the path cannot be written.
    """
    with whole_file(path) as file:
        file.write_text(text, encoding="utf-8")


def _unknown_run(run: str) -> Any:
    raise LookupError(f"no run {run} is stored")


NOTHING_STORED = Evidence(pd.DataFrame(), _unknown_run, _unknown_run, TOLERANCE)


def _results(folder: str | Path) -> Results | None:
    """The results in a folder, or None where there are none yet."""
    return Results(folder) if Store.is_in(folder) else None


def ledger(results: str | Path = "results") -> list[dict[str, Any]]:
    """Every claim with its latest stored verdict; "not verified yet" where none is stored."""
    found = _results(results)
    stored = {} if found is None else found.store.verdicts().set_index("claim").to_dict("index")
    rows = []
    for claim in LEDGER.values():
        known = stored.get(claim.id)
        rows.append(
            {
                "claim": claim.id, "statement": claim.statement, "source": claim.source,
                "verdict": known["verdict"] if known else "not verified yet",
                "measured": known["measured"] if known else f"run: {claim.rerun}",
            }
        )  # fmt: skip
    return rows


def explain(claim: str, results: str | Path = "results") -> tuple[Claim, Finding]:
    """Compute one claim on whatever evidence is stored.

    Raises:
        BadInput: on an unknown claim.
    """
    chosen, found = LEDGER[choose(claim, LEDGER, "claim")], _results(results)
    return chosen, chosen.finding(NOTHING_STORED if found is None else found.evidence)


def verify(claims: Sequence[str], results: str | Path = "results") -> list[tuple[Claim, Finding]]:
    """Rerun exact claims (all of them, or those named), and store the verdicts.

    Raises:
        BadInput: on an unknown claim, or one that needs training.
    """
    for key in claims:
        if LEDGER[choose(key, LEDGER, "claim")].sweeps:
            raise BadInput(f"claim '{key}' reads trained models; use: headcount check {key}")
    Store(results).close()
    return Results(results).check(claims, trained=False)


def finding_text(claim: Claim, finding: Finding) -> str:
    """A claim with its verdict and evidence, for people."""
    lines = [
        f"{claim.id}: {finding.verdict}" + (f" (corrected form: {finding.corrected})" if finding.corrected else "")
    ]
    parts = {
        "claim": claim.statement, "source": claim.source, "printed": claim.printed, "corrected": claim.corrected,
        "why": claim.derivation, "predicted": finding.predicted, "measured": finding.measured,
    }  # fmt: skip
    lines += [f"  {name + ':':11}{text}" for name, text in parts.items() if text]
    lines += [f"  {'rerun:':11}{claim.rerun}", "", "evidence:"]
    for name, value in finding.details.items():
        lines += _evidence_lines(name, value)
    return "\n".join(lines)


def _evidence_lines(name: str, value: Any) -> list[str]:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        with pd.option_context("display.width", 200, "display.max_columns", 50):
            table = pd.DataFrame(value).to_string(index=False, float_format=lambda number: f"{number:.4g}")
        return [f"  {name}:", *("    " + line for line in table.splitlines())]
    if isinstance(value, Mapping):
        inner = [line for key, part in value.items() for line in _evidence_lines(str(key), part)]
        return [f"  {name}:", *("  " + line for line in inner)]
    return [f"  {name}: {f'{value:.4g}' if isinstance(value, float) else value}"]


def ledger_document() -> str:
    """The ledger as Markdown. Exact claims carry the verdict computed now; trained ones say what to run."""
    lines = [
        "# The claims ledger",
        "",
        "Written by `headcount claims document` from the claim objects in `headcount/theory/claims`. Verdicts of exact claims",
        "are computed when this page is written; claims about trained models say which sweep gives the evidence.",
        "Sources are sections of Interleaved Head Attention, arXiv 2602.21371, unless they say ours.",
        "",
        "| id | claim | source | verdict |",
        "|---|---|---|---|",
    ]
    found = [(claim, None if claim.sweeps else claim.finding(NOTHING_STORED)) for claim in LEDGER.values()]
    for claim, finding in found:
        lines.append(
            f"| [{claim.id}](#{claim.id}) | {claim.statement} | {claim.source} | {_verdict_words(claim, finding)} |"
        )
    for claim, finding in found:
        lines += ["", f"## {claim.id}", "", claim.statement, ""]
        if claim.printed:
            lines.append(f"- **Printed:** {claim.printed}")
        if claim.corrected:
            lines.append(f"- **Corrected:** {claim.corrected}")
        lines += [f"- **Source:** {claim.source}", f"- **Why:** {claim.derivation}"]
        lines.append(f"- **Verdict:** {_verdict_words(claim, finding)}")
        lines.append(f"- **Rerun:** `{claim.rerun}`; all numbers: `headcount claims show {claim.id}`")
    return "\n".join(lines) + "\n"


def _verdict_words(claim: Claim, finding: Finding | None) -> str:
    if finding is None:
        return f"from training: {claim.finding(NOTHING_STORED).measured}"
    return f"{finding.verdict}" + (f"; corrected form {finding.corrected}" if finding.corrected else "")


def _task(name: str, fields: Mapping[str, Any]) -> Task:
    return TASKS[choose(name, TASKS, "task")].parse({"name": name, **fields})


def _chance_and_shortcut(task: Task, floors: Mapping[str, float]) -> tuple[tuple[str, float], tuple[str, float]]:
    """The first floor, and the best of the others; floors on a part of the questions have a comma in their name."""
    chance, *others = ((name, value) for name, value in floors.items() if "," not in name)
    return chance, (min if task.kind == "real" else max)(others or [chance], key=lambda item: item[1])


def describe_task(name: str, fields: Mapping[str, Any] | None = None, examples: int = 512) -> dict[str, str]:
    """One row of the task table; chance and the best shortcut are measured on fresh examples.

    Raises:
        BadInput: on an unknown task or field.
    """
    task = _task(name, fields or {})
    floors = tasks.floors(task, examples, random_stream(0, "validation"))
    chance, best = _chance_and_shortcut(task, floors)
    unit = "relative error" if task.kind == "real" else "accuracy"
    return {
        "task": name,
        "asks": tasks.asks(task),
        "theory": tasks.theory(task),
        "chance": f"{chance[1]:.2f} {unit} ({chance[0]})",
        "shortcut": f"{best[1]:.2f} ({best[0]})",
    }


def show_task(name: str, fields: Mapping[str, Any], seed: int, n: int) -> str:
    """Readable examples of a task.

    Raises:
        BadInput: on an unknown task or field.
    """
    return tasks.show(_task(name, fields), seed, n)


def task_statistics(name: str, fields: Mapping[str, Any], examples: int, seed: int) -> dict[str, Any]:
    """Statistics and shortcut floors of a task as plain data.

    Raises:
        BadInput: on an unknown task or field.
    """
    task = _task(name, fields)
    floors = tasks.floors(task, examples, random_stream(seed, "validation"))
    found: dict[str, Any] = plain(
        {"task": task.model_dump(), **tasks.statistics(task, examples, seed), "floors": floors}
    )
    return found


def accuracy_table(results: Results, sweeps: Sequence[str] = ()) -> pd.DataFrame:
    """Accuracy of every mechanism on tasks with discrete answers, beside chance and the best shortcut.

    Args:
        sweeps: only rows of these sweeps; all if empty.

    Returns:
        One row for each task configuration, mechanism and head count: seeds, best and median accuracy (of the
        weights that were best on validation), parameters, FLOPs of one forward pass of one sequence.
    """
    rows = results.rows[results.rows["status"] == "done"]
    if sweeps:
        rows = rows[rows["sweep"].isin(sweeps)]
    made = []
    for (_, _, mechanism, heads), part in _by_question(results, rows):
        task, model = results.evidence.task_of(part["id"].iloc[0]), results.evidence.model_of(part["id"].iloc[0])
        if task.kind == "real" or isinstance(model, ModelConfig):
            continue
        floors = tasks.floors(task, 1024, random_stream(0, "validation"))
        chance, shortcut = _chance_and_shortcut(task, floors)
        sizes = Sizes(task.length, task.input_width, task.output_width)
        made.append(
            {
                "task": _difference(task), "mechanism": mechanism, "heads": heads, "seeds": len(part),
                "best": part["best_accuracy"].max(), "median": part["best_accuracy"].median(),
                "chance": chance[1], "shortcut": shortcut[1], "by": shortcut[0],
                "parameters": int(part["parameters"].iloc[0]), "FLOPs": model.flops(sizes, task.vocabulary),
            }
        )  # fmt: skip
    return pd.DataFrame(made)


def _by_question(results: Results, rows: pd.DataFrame) -> Any:
    keys = [results.evidence.task_of(run).model_dump_json() for run in rows["id"]]
    network = [results.evidence.model_of(run).model_dump_json() for run in rows["id"]]
    return rows.groupby([keys, network, rows["model.attention"], rows["model.heads"]], sort=False, dropna=False)


def _difference(task: Task) -> str:
    """A task's name and the fields that differ from its defaults."""
    plain_task = type(task).parse({"name": task.name})
    changed = {key: value for key, value in task.model_dump().items() if getattr(plain_task, key) != value}
    return " ".join([task.name, *(f"{key}={value}" for key, value in changed.items())])


def describe_models(tokens: int = 64, width: int = 128, heads: int = 8) -> list[dict[str, Any]]:
    """Every mechanism with its parameters, FLOPs, memory growth, whether it folds into MHA, and its source.

    Raises:
        BadInput: on sizes that do not fit.
    """
    if min(tokens, width, heads) < 1:
        raise BadInput("tokens, width and heads must be at least 1")
    described = describe_mechanisms(Sizes(tokens, width, width), heads, {"gqa": {"groups": max(1, heads // 4)}})
    return [asdict(one) for one in described]


def model_text(name: str) -> str:
    """What a mechanism computes: equations, sizes, fields with their defaults, source.

    Raises:
        BadInput: on an unknown mechanism.
    """
    entry = ATTENTION[choose(name, ATTENTION, "mechanism")]
    module = sys.modules[entry.module.__module__]
    equations = [
        f"{key}: {inspect.cleandoc(inner.__doc__)}"
        for key, inner in vars(module).items()
        if inspect.isfunction(inner)
        and inner.__module__ == module.__name__
        and inner.__doc__
        and not key.startswith("_")
    ]
    fields = [
        f"  {key} = {field.get_default(call_default_factory=True)!r}"
        for key, field in entry.config.model_fields.items()
    ]
    heading = [entry.config.label, (module.__doc__ or "").strip(), inspect.cleandoc(entry.module.__doc__ or "")]
    facts = [
        "fields:",
        *fields,
        f"memory: {entry.config.memory}",
        f"folds into MHA: {entry.config.folds}",
        f"source: {entry.config.source}",
    ]
    return "\n\n".join([*heading, *equations, "\n".join(facts)])


def read_stories(path: str) -> dict[str, Any]:
    """What a bAbI file holds.

    Raises:
        BadInput: naming file and line, if it is malformed.
    """
    stories = babi.read(path)
    counts = {"stories": len(stories), "questions": sum(len(story.questions) for story in stories)}
    found: dict[str, Any] = plain({**counts, **asdict(babi.statistics(stories))})
    return found


def compare_stories(count: int = 400, seed: int = 0) -> list[dict[str, Any]]:
    """Statistics of generated stories beside those of the released files (v1.2, test), one row a type."""
    rows = []
    for story_type in babi.SLUGS:
        made = babi.statistics(babi.stories(babi.Babi(story_type=story_type), count, seed))
        released = babi.RELEASED[story_type]
        row: dict[str, Any] = {"type": story_type}
        row["supports, generated"] = " to ".join(str(number) for number in sorted(set(made.support)))
        row["supports, released"] = SUPPORTS.get(story_type, "1")
        for name in ("statements", "context", "vocabulary", "answers", "majority"):
            for source, figures_of in (("generated", made), ("released", released)):
                value = plain(getattr(figures_of, name))
                parts = value if isinstance(value, list) else [value]
                row[f"{name}, {source}"] = " ".join(f"{part:.3g}" for part in parts)
        rows.append(row)
    return rows


def write_stories(path: str, fields: Mapping[str, Any], count: int, seed: int) -> int:
    """Generate stories, write them in the released format, and return the number of questions.

    Raises:
        BadInput: on impossible settings, or a path that cannot be written.
    """
    made = babi.stories(babi.Babi.parse(fields), count, seed)
    babi.write(path, made)
    return sum(len(story.questions) for story in made)


def check_stories(path: str) -> list[dict[str, Any]]:
    """Solver against labels, one row a story type.

    Raises:
        BadInput: naming file and line, if a file is malformed.
    """
    return [
        {
            "type": report.story_type,
            "questions": report.questions,
            "right answers": report.right_answers,
            "right supports": report.right_supports,
            "disagreements": [str(one) for one in report.disagreements],
        }
        for report in babi.check(path)
    ]


def plain(value: Any) -> Any:
    """JSON-ready copy: numpy scalars and tuples become Python's, NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def sweep(
    task: str,
    *,
    results: str | Path = "results",
    execution: Execution = Execution(workers=1),  # noqa: B008 - frozen
    tolerance: float = TOLERANCE,
    on_progress: Progress = _silent,
    name: str | None = None,
    seeds: int = 3,
    attention: Sequence[str] = ("mha", "iha"),
    heads: Sequence[int] | str = "auto",
    **fields: Any,
) -> Results:
    """Train a grid of models on a task, in the setting of the paper's theorem unless told otherwise.

    Args:
        task: name of a task.
        execution: where and how to train, in this process if not given. More than one worker needs the calling
            script to be importable (`if __name__ == "__main__":`), as Python's multiprocessing does.
        seeds: trials at each point of the grid, numbered from 0.
        attention, heads: mechanisms and head counts; "auto" looks around the predicted threshold.
        fields: task fields by name (k=[1, 4, 9]) and others by dotted name with two underscores
            (model__query_width=8, training__steps=[500, 1000]); a list is an axis of the grid.

    Raises:
        BadInput: on anything that does not fit.
    """
    grid: dict[str, Any] = {}
    for key, value in fields.items():
        grid[key.replace("__", ".") if "__" in key else f"task.{key}"] = value
    made = task_sweep(task, {**grid, "model.attention": list(attention)}, heads, seeds, tolerance, name)
    run_sweeps([made], results, execution, on_progress)
    return Results(results, tolerance)


def task_sweep(
    task: str, grid: Mapping[str, Any], heads: Sequence[int] | str, seeds: int, tolerance: float, name: str | None
) -> Sweep:  # fmt: skip
    """A sweep of `task` from its default setting, with the fields of `grid` changed or swept."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise BadInput(f"seeds = {seeds}: at least 1 and at most {MOST_SEEDS:,} are allowed")
    axes = {key: list(value) if isinstance(value, (list, tuple, range)) else [value] for key, value in grid.items()}
    axes["model.heads"] = [heads] if isinstance(heads, str) else list(heads)
    axes["seed"] = list(range(seeds))
    model, training = defaults(task)
    return Sweep.parse(
        {
            "name": name or task,
            "task": {"name": task},
            "model": model,
            "training": training,
            "grid": axes,
            "tolerance": tolerance,
        }
    )


def retry_failed(results: str | Path, runs: Sequence[str] | None = None) -> int:
    """Plan failed trials again, all or those named by the first digits of their ids; returns how many.

    Raises:
        BadInput: if one is unknown, or has not failed.
    """
    store = Results(results).store
    if runs is None:
        return store.retry_failed()
    ids = [store.find(run) for run in runs]
    for key, status in store.statuses(ids).items():
        if status != "failed":
            raise BadInput(f"run {key} has not failed; it is {status}")
    return store.retry_failed(ids)


def recover(results: str | Path) -> str:
    """Save what can be read of a damaged store into a new one; see `experiments.recovery.recover`.

    Raises:
        BadInput: if there is none, it is not damaged, or it is in use.
    """
    saved = recovery.recover(Path(results))
    return (
        f"{saved.trials} trials, {saved.results} results and {saved.curves} learning curves are in {saved.path};"
        f" the damaged file is kept as {saved.kept}; the same sweep resumes"
    )


def run_sweeps(
    sweeps: Sequence[Sweep],
    results: str | Path,
    execution: Execution = Execution(),  # noqa: B008 - frozen
    on_progress: Progress = _silent,
    tensorboard: str | Path | None = None,
) -> Report:
    """Plan all trials of several sweeps, then run what is missing. Calling again resumes.

    Args:
        tensorboard: folder that learning curves are written to as trials end.
    """
    planned: list[tuple[Sweep, list[Trial]]] = [(made, made.trials()) for made in sweeps]
    store = Store(results)
    for made, trials in planned:
        store.plan(trials, made.name)
    everything = {trial.id: trial for _, trials in planned for trial in trials}
    trials = list(everything.values())
    tracker = TensorBoard(tensorboard, store, trials) if tensorboard is not None else None
    follow = on_progress if tracker is None else tracker.following(on_progress)
    report = run(trials, store, execution, follow)
    if tracker is not None:
        tracker.write()
    return report


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` found: how the training went, every verdict, the files drawn, and the HTML report."""

    report: Report
    findings: list[tuple[Claim, Finding]]
    figures: list[Path]
    summary: Path
    page: Path
    seconds: float

    @property
    def contradicted(self) -> bool:
        """Whether a law that this project states was contradicted."""
        return any(finding.contradicted for _, finding in self.findings)


def reproduce(
    preset: str = "quick",
    results: str | Path = "results",
    execution: Execution = Execution(),  # noqa: B008 - frozen
    on_progress: Progress = _silent,
) -> Reproduction:
    """Exact checks, the preset's sweeps, fits, verdicts and figures; writes summary.md and report.html."""
    started = time.perf_counter()
    report = run_sweeps(load_preset(preset), results, execution, on_progress)
    found = Results(results)
    findings = found.check()
    drawn, _ = found.draw()
    page = found.report(findings=findings)
    seconds = time.perf_counter() - started
    summary = found.folder / "summary.md"
    write_text(summary, _summary(preset, found, report, findings, drawn, seconds))
    return Reproduction(report, findings, drawn, summary, page, seconds)


def _summary(
    preset: str, found: Results, report: Report, findings: list[tuple[Claim, Finding]], drawn: list[Path], seconds: float
) -> str:  # fmt: skip
    lines = [
        f"# headcount: preset {preset}",
        "",
        f"{report.asked} trials ({report.already} were there already, {report.nan} ended in NaN, {report.failed} failed); "
        f"{seconds:.0f} s in all. Solved means a relative error of at most {found.tolerance:g}.",
        "",
        "| claim | verdict | predicted | measured |",
        "|---|---|---|---|",
    ]
    for claim, finding in findings:
        cells = (claim.id, str(finding.verdict), finding.predicted, finding.measured)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "Figures:", ""]
    lines += [f"- [{path.stem}](figures/{path.name})" for path in drawn if path.suffix == ".png"]
    lines += ["", "Environment:", ""]
    environments = found.rows["environment"].dropna().unique()
    lines += [f"- `{text}`" for text in environments]
    return "\n".join(lines) + "\n"


def finding_json(claim: Claim, finding: Finding) -> dict[str, Any]:
    """A finding as plain data, for machines."""
    data = asdict(finding)
    return plain({"claim": claim.id, "statement": claim.statement, "source": claim.source, **data})
