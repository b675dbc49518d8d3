"""The front door: a few lines for each command, no logic."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headcount import api
from headcount.config import BadInput, choose
from headcount.doctor import diagnose
from headcount.experiments import TOLERANCE, Execution, RayCluster, Report, Sweep, load_preset, preset_names
from headcount.experiments.sweep import WINDOWS, set_field
from headcount.tasks import TASKS
from headcount.theory.claims import LEDGER, Claim, Finding

app = typer.Typer(
    help="How many heads, and how many parameters, does an attention mechanism need for a task?",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip

FAULT = 70
BROKEN = 3
"""Exit codes beside 0, 1 (a law is contradicted, a label is wrong) and 2 (bad use): a fault of the program; and
trials or worker processes that failed."""

ResultsOption = Annotated[str, typer.Option("--results", help="Folder of the store, figures and summary.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="Processes; one a core if not given.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Fuse steps with torch.compile; pays where a group trains for minutes.")
]
ExecutorOption = Annotated[
    str, typer.Option("--executor", help="local, or ray: processes of this machine, or a Ray cluster.")
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="With ray: auto, host:port, ray://host:port; one started here if not given."),
]
CpusOption = Annotated[
    float | None, typer.Option("--cpus-per-group", help="With ray: cores for each group; 1 if not given.")
]
GpusOption = Annotated[
    float | None,
    typer.Option("--gpus-per-group", help="With ray: GPUs, or a part of one, for each group; 0 if not given."),
]
FailFastOption = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first trial that fails.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _console() -> Console:
    # Without a terminal rich assumes 80 columns and cuts; files and pipes take long lines.
    # Cells hold what users name; [ in it is no markup.
    return Console(markup=False) if sys.stdout.isatty() else Console(width=160, soft_wrap=True, markup=False)


def main() -> None:
    """Entry point: turns bad input into one sentence and exit code 2."""
    # Everything here is small matrices: a second thread gains little and stalls when the cores are busy.
    torch.set_num_threads(1)
    try:
        app()
    except BadInput as error:
        print(f"headcount: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception:
        traceback.print_exc()
        print("headcount: this is a fault of the program, not of what you typed", file=sys.stderr)
        raise SystemExit(FAULT) from None


def parse_values(text: str) -> list[Any]:
    """Values of one axis: a comma list of numbers, words, and ranges from:to or from:to:step, ends included.

    Raises:
        BadInput: if a range is not one.
    """
    values: list[Any] = []
    for part in text.split(","):
        part = part.strip()
        if ":" in part:
            try:
                first, last, *step = (int(number) for number in part.split(":"))
                span = range(first, last + 1, *step)
            except (TypeError, ValueError):
                raise BadInput(f"'{part}' is not a range; write from:to or from:to:step") from None
            if not span:
                raise BadInput(f"range '{part}' is empty; it runs from the smaller to the larger number")
            if len(span) > 10_000:
                raise BadInput(f"range '{part}' has {len(span):,} values; at most 10,000 are allowed")
            values.extend(span)
        else:
            values.append(_parse_value(part))
    return values


def parse_heads(text: str) -> list[int] | str:
    """Head counts, or the name of a window around the predicted threshold.

    Raises:
        BadInput: if it is neither.
    """
    values = parse_values(text)
    if all(isinstance(value, int) for value in values):
        return values
    return choose(text, WINDOWS, "choice of heads")


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@contextlib.contextmanager
def _progress() -> Iterator[api.Progress]:
    """Show how far long work is, and end it in one sentence when interrupted or told to end."""
    received: list[int] = []
    try:
        with _stoppable(received), _bar() as progress:
            yield progress
    except KeyboardInterrupt:
        print("headcount: stopped; what was finished is stored, the same command resumes", file=sys.stderr)
        raise SystemExit(128 + (received or [signal.SIGINT])[0]) from None


@contextlib.contextmanager
def _stoppable(received: list[int]) -> Iterator[None]:
    """Ctrl-C and SIGTERM give back what is claimed and end; a second one ends at once, without that."""

    def stop(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(128 + number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # Nothing is left to hurry: while Python ends, one more signal would only change the exit code.
            signal.signal(number, signal.SIG_IGN if received else handler)


@contextlib.contextmanager
def _bar() -> Iterator[api.Progress]:
    """A rich bar with the time left on a terminal; elsewhere a plain line every ten seconds."""
    if not sys.stderr.isatty():
        last = started = time.monotonic()

        def lines(done: int, total: int, label: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= 10 or done == total:
                last = now
                # Of the first hundredth nothing follows: processes start, and programs are compiled.
                left = f"{(now - started) * (total - done) / done:4.0f}" if done >= 0.01 * total > 0 else "   ?"
                print(
                    f"{done / max(total, 1):5.0%}  {now - started:4.0f} s  {left} s left  {label}",
                    file=sys.stderr,
                    flush=True,
                )

        yield lines
        return
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("")

        def move(done: int, total: int, label: str) -> None:
            progress.update(bar, completed=done, total=max(total, 1), description=label)

        yield move


def _say(report: Report) -> None:
    text = f"{report.asked} trials: {report.already} already there, {report.ran} run in {report.seconds:.0f} s"
    causes = ", ".join(f"{cause} {count}" for cause, count in report.causes.items())
    extras = (
        (report.nan, "ended in NaN"),
        (report.failed, f"failed ({causes}), see 'headcount runs --status failed' (--retry-failed runs them again)"),
        (report.died, "worker processes died"),
        (report.elsewhere, "left to other processes"),
        (report.left, "not run"),
    )
    print(", ".join([text, *(f"{count} {words}" for count, words in extras if count)]))


def _print_findings(findings: list[tuple[Claim, Finding]]) -> None:
    table = Table("claim", "predicted", "measured", "verdict", show_lines=True)
    colours = {"SUPPORTED": "green", "HOLDS": "green", "HOLDS WITH A CONDITION": "yellow", "REFUTED": "red"}
    for claim, finding in findings:
        colour = colours.get(str(finding.verdict), "default")
        corrected = f"; corrected form {finding.corrected}" if finding.corrected else ""
        verdict = Text.assemble((str(finding.verdict), colour), corrected)
        table.add_row(claim.id, finding.predicted, finding.measured, verdict)
    _console().print(table)


@app.command()
def sweep(
    task: Annotated[str | None, typer.Argument(help="A task, see 'headcount tasks'; or use --preset.")] = None,
    k: Annotated[str | None, typer.Option(help="Terms of the polynomial: 1,4,9 or 1:25.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Sequence length N.")] = None,
    operator: Annotated[str | None, typer.Option(help="cyclic, orthogonal, gaussian, karate, les-miserables, davis, florentine.")] = None,
    graph: Annotated[str | None, typer.Option(help="Your own graph: edge list, .graphml, or .npy matrix.")] = None,
    normalisation: Annotated[str | None, typer.Option(help="Of a graph: self-loops, plain, none.")] = None,
    target: Annotated[str | None, typer.Option(help="Of cpm3: workspace or count.")] = None,
    heads: Annotated[str | None, typer.Option(help="Head counts: 1:10, 2,4,8; or boundary or auto (if not given), around the predicted threshold.")] = None,
    attention: Annotated[str | None, typer.Option(help="Mechanisms, see 'headcount models'; mha,iha if not given.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Trials at each point; 3 if not given.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any field: training.steps=500, model.query_width=4,8.")] = None,
    preset: Annotated[str | None, typer.Option(help="Sweeps of a preset, or of a TOML file of that form.")] = None,
    only: Annotated[str | None, typer.Option(help="With --preset: these sweeps, by name.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="Relative error that counts as solved, for heads auto; 0.1 if not given.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run trials again that failed before.")] = False,
    tensorboard: Annotated[str | None, typer.Option(help="Folder to write learning curves to, for TensorBoard.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that a trial may take; one that takes longer has failed.")] = None,
    results: ResultsOption = "results",
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    cpus_per_group: CpusOption = None,
    gpus_per_group: GpusOption = None,
    fail_fast: FailFastOption = False,
    compiled: CompileOption = False,
) -> None:  # fmt: skip
    """Train a grid of models. Calling again resumes; finished trials are never repeated."""
    axes: dict[str, Any] = {}
    named = {
        "task.k": k,
        "task.tokens": tokens,
        "task.operator": operator,
        "task.normalisation": normalisation,
        "task.target": target,
    }
    axes.update({key: parse_values(text) for key, text in named.items() if text is not None})
    if graph is not None:
        axes |= {"task.operator": ["file"], "task.graph": [graph]}
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        if not equals:
            raise BadInput(f"--set takes key=value, as in training.steps=500; got '{setting}'")
        set_field({"task": {}, "model": {}, "training": {}}, key.strip(), None)
        axes[key.strip()] = parse_values(text)
    options = {"heads": heads, "attention": attention, "seeds": seeds, "tolerance": tolerance}
    sweeps = _chosen_sweeps(
        task, preset, only, axes, {key: value for key, value in options.items() if value is not None}
    )
    cluster = _cluster(executor, address, cpus_per_group, gpus_per_group)
    execution = Execution(device, workers, timeout, fail_fast, compiled, cluster)
    if dry_run:
        for made in sweeps:
            print(f"{made.name}: {len(made.trials())} trials  {made.about}")
        return
    if retry_failed:
        print(f"{api.retry_failed(results)} failed trials are planned again")
    with _progress() as progress:
        report = api.run_sweeps(sweeps, results, execution, progress, tensorboard)
    _say(report)
    _note_order(sweeps)
    _print_accuracy(api.accuracy_table(api.Results(results), [made.name for made in sweeps]))
    print(f"next: headcount check --results {results}")
    if report.broken:
        raise typer.Exit(BROKEN)


def _cluster(executor: str, address: str | None, cpus: float | None, gpus: float | None) -> RayCluster | None:
    given = {"address": address, "cpus-per-group": cpus, "gpus-per-group": gpus}
    if choose(executor, ("local", "ray"), "executor") == "local":
        if wrong := next((name for name, value in given.items() if value is not None), None):
            raise BadInput(f"--{wrong} goes with --executor ray")
        return None
    return RayCluster(address, 1 if cpus is None else cpus, 0 if gpus is None else gpus)


def _chosen_sweeps(
    task: str | None, preset: str | None, only: str | None, axes: dict[str, Any], options: dict[str, Any]
) -> list[Sweep]:  # fmt: skip
    if task is None and preset is None:
        raise BadInput(f"name a task ({', '.join(sorted(TASKS))}) or a --preset ({', '.join(preset_names())})")
    if task is not None and preset is not None:
        # A task's own presets bear its name: 'relation --preset quick' is 'relation-quick'.
        preset = choose(f"{choose(task, TASKS, 'task')}-{preset}", preset_names(), "preset")
    if preset is None:
        if only is not None:
            raise BadInput("--only chooses sweeps of a --preset")
        choose(task or "", TASKS, "task")
        for key, option in (("seed", "--seeds"), ("model.heads", "--heads"), ("model.attention", "--attention"), ("task.name", "TASK")):  # fmt: skip
            if key in axes:
                raise BadInput(f"'{key}' is set by {option}")
        grid = {**axes, "model.attention": parse_values(options.get("attention", "mha,iha"))}
        heads = parse_heads(options.get("heads", "auto"))
        return [
            api.task_sweep(task or "", grid, heads, options.get("seeds", 3), options.get("tolerance", TOLERANCE), None)
        ]
    if options:
        raise BadInput(
            f"--{next(iter(options))} is of a task's sweep; change a preset's sweeps with --set, as in --set seed=0,1"
        )
    sweeps = load_preset(preset)
    if only is not None:
        names = [choose(name.strip(), [made.name for made in sweeps], "sweep") for name in only.split(",")]
        sweeps = [made for made in sweeps if made.name in names]
    return [made.changed(grid={**made.grid, **axes}) for made in sweeps]


def _print_accuracy(rows: pd.DataFrame) -> None:
    """Accuracy beside chance and the best shortcut, for tasks with discrete answers."""
    if rows.empty:
        return
    table = Table(*rows.columns)
    for cells in rows.itertuples(index=False):
        table.add_row(
            *(
                f"{cell:.3f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else str(cell)
                for cell in cells
            )
        )
    _console().print(table)


def _note_order(sweeps: list[Sweep]) -> None:
    tasks = {trial.task for made in sweeps for trial in made.trials()[:1] if trial.task.name == "cpm3"}
    for task in tasks:
        kind = "order-sensitive" if task.order_sensitive else "symmetric in the pair (G = 1 mod M)"
        print(f"cpm3 with G = {task.multiplier}, M = {task.modulus} is {kind}")


runs_app = typer.Typer(invoke_without_command=True, help="What the store holds; failed runs; a damaged store.")
app.add_typer(runs_app, name="runs")


@runs_app.callback()
def runs_table(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help="Only rows of this status: planned, running, done, nan, failed.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 20,
    results: ResultsOption = "results",
) -> None:  # fmt: skip
    """What the store holds: counts by sweep and status, and the latest rows."""
    if context.invoked_subcommand is not None:
        return
    found = api.Results(results)
    rows = found.rows
    statuses = ("planned", "running", "done", "nan", "failed")
    if status is not None:
        rows = rows[rows["status"] == choose(status, statuses, "status")]
    if rows.empty:
        print("no rows")
        return
    counts = rows.groupby(["sweep", "status"]).size().unstack(fill_value=0)
    table = Table("sweep", *counts.columns)
    for name, numbers in counts.iterrows():
        table.add_row(str(name), *(str(number) for number in numbers))
    _console().print(table)
    columns = ["id", "sweep", "status", "task.name", "model.attention", "model.heads", "seed", "best_error"]
    detail = Table(*columns)
    for cells in rows[columns].tail(limit).itertuples(index=False):
        detail.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    _console().print(detail)
    for _, row in rows[rows["traceback"].notna()].tail(1).iterrows():
        print(f"last failure, {row['id']}, {row['cause']}:\n{row['traceback']}")


@runs_app.command("show")
def runs_show(
    run: Annotated[str, typer.Argument(help="Id of a run, or its first digits.")],
    results: ResultsOption = "results",
) -> None:
    """One run: configuration, status, numbers, learning curve, machine, and the traceback of a failure."""
    print(api.Results(results).run_text(run))


@runs_app.command("retry")
def runs_retry(
    runs: Annotated[list[str] | None, typer.Argument(help="Ids of failed runs, or their first digits.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed runs.")] = False,
    results: ResultsOption = "results",
) -> None:
    """Plan failed runs again; the sweep they belong to then trains them."""
    if failed == bool(runs):
        raise BadInput("name failed runs by id, or all of them with --failed")
    print(f"{api.retry_failed(results, runs)} failed trials are planned again")


@runs_app.command("recover")
def runs_recover(results: ResultsOption = "results") -> None:
    """Save what can be read of a damaged store into a new one; the damaged file is kept under another name."""
    print(api.recover(results))


@app.command()
def export(
    form: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
    output: Annotated[str | None, typer.Option("--output", help="File to write; results/rows.FORMAT if not given.")] = None,
    results: ResultsOption = "results",
) -> None:  # fmt: skip
    """Write all rows to one file that pandas reads in one line."""
    found = api.Results(results)
    target = Path(output) if output else found.folder / f"rows.{form}"
    count = found.export(form, target)
    print(f"{count} rows in {target}")


@app.command()
def check(
    claims: Annotated[list[str] | None, typer.Argument(help="Claims by id; all if none is named.")] = None,
    tolerance: Annotated[float, typer.Option(help="Relative error that counts as solved.")] = TOLERANCE,
    as_json: JsonOption = False,
    results: ResultsOption = "results",
) -> None:
    """Claims against stored evidence. Exit code 1 if a law that this project states is contradicted."""
    findings = api.Results(results, tolerance).check(claims or [])
    if as_json:
        print(json.dumps([api.finding_json(*pair) for pair in findings], indent=1))
    else:
        _print_findings(findings)
    if any(finding.contradicted for _, finding in findings):
        raise typer.Exit(1)


claims_app = typer.Typer(invoke_without_command=True, help="The ledger: every claim, its verdict, and how to rerun it.")
app.add_typer(claims_app, name="claims")


@claims_app.callback()
def claims_table(context: typer.Context, as_json: JsonOption = False, results: ResultsOption = "results") -> None:
    """The ledger: every claim with its source, latest stored verdict and key figure."""
    if context.invoked_subcommand is not None:
        return
    rows = api.ledger(results)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("id", "claim", "source", "verdict", "key figure", show_lines=True)
    for row in rows:
        table.add_row(row["claim"], row["statement"], row["source"], row["verdict"], row["measured"])
    _console().print(table)


@claims_app.command("show")
def claims_show(
    claim: Annotated[str, typer.Argument(help="Id of a claim.")],
    as_json: JsonOption = False,
    results: ResultsOption = "results",
) -> None:
    """One claim: statement, derivation, evidence with numbers, counterexample, and how to rerun it."""
    found, finding = api.explain(claim, results)
    print(json.dumps(api.finding_json(found, finding), indent=1) if as_json else api.finding_text(found, finding))


@claims_app.command("verify")
def claims_verify(
    claims: Annotated[list[str] | None, typer.Argument(help="Claims by id; all exact ones if none is named.")] = None,
    as_json: JsonOption = False,
    results: ResultsOption = "results",
) -> None:
    """Rerun the claims that need no training, and store their verdicts."""
    started = time.monotonic()
    findings = api.verify(claims or [], results)
    if as_json:
        print(json.dumps([api.finding_json(*pair) for pair in findings], indent=1))
    else:
        _print_findings(findings)
        print(f"{len(findings)} claims in {time.monotonic() - started:.0f} s")
    if any(finding.contradicted for _, finding in findings):
        raise typer.Exit(1)


@claims_app.command("document")
def claims_document(
    output: Annotated[str, typer.Option("--output", help="Markdown file to write.")] = "docs/claims.md",
) -> None:
    """Write the ledger as Markdown: statements, derivations, and the verdicts of the exact claims."""
    api.write_text(Path(output), api.ledger_document())
    print(output)


tasks_app = typer.Typer(invoke_without_command=True, help="The tasks: what each asks, and what shortcuts reach.")
app.add_typer(tasks_app, name="tasks")
SettingsOption = Annotated[list[str] | None, typer.Option("--set", help="A field of the task: m_low=5.")]


@tasks_app.callback()
def tasks_table(context: typer.Context, as_json: JsonOption = False) -> None:
    """Every task with what it asks, what theory says, chance, and the best shortcut (measured now)."""
    if context.invoked_subcommand is not None:
        return
    rows = [api.describe_task(name) for name in TASKS]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("task", "asks", "theory", "chance", "best shortcut", show_lines=True)
    for row in rows:
        table.add_row(row["task"], row["asks"], row["theory"], row["chance"], row["shortcut"])
    _console().print(table)


@tasks_app.command("show")
def tasks_show(
    name: Annotated[str, typer.Argument(help="A task.")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    n: Annotated[int, typer.Option("--n", min=1, max=1000, help="Examples.")] = 3,
    settings: SettingsOption = None,
) -> None:
    """Readable examples: story, matrix or sequence, with the answer and why."""
    print(api.show_task(name, _fields(settings), seed, n))


@tasks_app.command("stats")
def tasks_stats(
    name: Annotated[str, typer.Argument(help="A task.")],
    examples: Annotated[int, typer.Option(min=2, max=1_000_000)] = 4096,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    settings: SettingsOption = None,
) -> None:
    """Label balance, lengths, shortcut floors, duplicates, and overlap between training and test."""
    print(json.dumps(api.task_statistics(name, _fields(settings), examples, seed), indent=1))


def _fields(settings: list[str] | None) -> dict[str, Any]:
    pairs = [setting.partition("=") for setting in settings or []]
    if wrong := next((key for key, equals, _ in pairs if not equals), None):
        raise BadInput(f"--set takes key=value; got '{wrong}'")
    return {key.strip(): _parse_value(text) for key, _, text in pairs}


models_app = typer.Typer(invoke_without_command=True, help="The attention mechanisms: equations and cost.")
app.add_typer(models_app, name="models")


@models_app.callback()
def models_table(
    context: typer.Context,
    tokens: Annotated[int, typer.Option(min=1)] = 64,
    width: Annotated[int, typer.Option(min=1)] = 128,
    heads: Annotated[int, typer.Option(min=1)] = 8,
    as_json: JsonOption = False,
) -> None:
    """Every mechanism: parameters and FLOPs of one layer at these sizes, memory growth, fold into MHA, source."""
    if context.invoked_subcommand is not None:
        return
    rows = api.describe_models(tokens, width, heads)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("mechanism", "in words", "parameters", "FLOPs", "memory", "folds into MHA", "source")
    for row in rows:
        table.add_row(
            row["attention"],
            row["label"],
            f"{row['parameters']:,}",
            f"{row['flops']:,}",
            row["memory"],
            row["folds"],
            row["source"],
        )
    _console().print(table)


@models_app.command("show")
def models_show(name: Annotated[str, typer.Argument(help="A mechanism.")]) -> None:
    """One mechanism: equations, fields with defaults, memory, source."""
    print(api.model_text(name))


babi_app = typer.Typer(no_args_is_help=True, help="bAbI stories in the released file format.")
app.add_typer(babi_app, name="babi")


@babi_app.command("read")
def babi_read(path: Annotated[str, typer.Argument(help="A file, qaN_..txt.")], as_json: JsonOption = False) -> None:
    """Read a file and say what it holds: stories, questions, lengths, vocabulary, answers."""
    figures_of = api.read_stories(path)
    print(
        json.dumps(figures_of, indent=1)
        if as_json
        else "\n".join(f"{key}: {value}" for key, value in figures_of.items())
    )


@babi_app.command("write")
def babi_write(
    path: Annotated[str, typer.Argument(help="File to write.")],
    story_type: Annotated[int, typer.Option("--type", help="Story type, 1 to 20.")],
    count: Annotated[int, typer.Option("--stories", min=1, max=1_000_000)] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    settings: SettingsOption = None,
) -> None:
    """Generate stories and write them in the released format."""
    questions = api.write_stories(path, {"story_type": story_type, **_fields(settings)}, count, seed)
    print(f"{count} stories with {questions} questions in {path}")


@babi_app.command("compare")
def babi_compare(
    count: Annotated[int, typer.Option("--stories", min=1, max=100_000, help="Stories of each type.")] = 400,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Generated stories beside the released files: statements, words of context, vocabulary, answers, supports."""
    rows = api.compare_stories(count, seed)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(cell) for cell in row.values()))
    _console().print(table)


@babi_app.command("check")
def babi_check(
    path: Annotated[str, typer.Argument(help="A file, or a folder of qaN_..txt files.")],
    as_json: JsonOption = False,
) -> None:
    """Solve real files from their text and compare answers and supports. Exit code 1 on any disagreement."""
    rows = api.check_stories(path)
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        table = Table("type", "questions", "right answers", "right supports", "first disagreement")
        for row in rows:
            first = row["disagreements"][0] if row["disagreements"] else ""
            table.add_row(*(str(row[key]) for key in ("type", "questions", "right answers", "right supports")), first)
        _console().print(table)
    if any(row["disagreements"] for row in rows):
        raise typer.Exit(1)


@app.command()
def figures(
    names: Annotated[list[str] | None, typer.Argument(help="Figures and tables by name, or all.")] = None,
    results: ResultsOption = "results",
) -> None:
    """Draw figures (PNG, PDF, SVG) and write tables (Markdown, LaTeX) from the store alone."""
    written, missing = api.Results(results).draw(*(names or []))
    for path in written:
        print(path)
    for name in missing:
        print(f"{name}: no rows yet; run the sweeps of a preset first")


@app.command()
def report(
    output: Annotated[str | None, typer.Option("--output", help="File to write; results/report.html if not given.")] = None,
    results: ResultsOption = "results",
) -> None:  # fmt: skip
    """Write one HTML page of verdicts, laws, figures and runs that opens offline; trains nothing."""
    print(api.Results(results).report(output))


@app.command()
def reproduce(
    preset: Annotated[str, typer.Option(help="smoke, quick, paper, or a TOML file of that form.")] = "quick",
    results: ResultsOption = "results",
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    cpus_per_group: CpusOption = None,
    gpus_per_group: GpusOption = None,
    fail_fast: FailFastOption = False,
    compiled: CompileOption = False,
) -> None:
    """Everything: exact checks, sweeps, fits, verdicts, figures, and one summary."""
    cluster = _cluster(executor, address, cpus_per_group, gpus_per_group)
    execution = Execution(device, workers, None, fail_fast, compiled, cluster)
    with _progress() as progress:
        done = api.reproduce(preset, results, execution, progress)
    _say(done.report)
    _print_findings(done.findings)
    print(
        f"{sum(path.suffix == '.png' for path in done.figures)} figures, {done.summary} and {done.page}; {done.seconds:.0f} s in all"
    )
    if done.report.broken:
        raise typer.Exit(BROKEN)
    if done.contradicted:
        raise typer.Exit(1)


@app.command()
def doctor(as_json: JsonOption = False, results: ResultsOption = "results") -> None:
    """Check versions, devices, memory and the store, and try training, a proof, and writing. Exit code 1 if one fails."""
    made = []
    for check in diagnose(results):
        made.append(check)
        if not as_json:
            print(f"{check.status:4}  {check.name:12}  {check.found}")
    if as_json:
        print(json.dumps([check._asdict() for check in made], indent=1))
    if any(check.status == "FAIL" for check in made):
        raise typer.Exit(1)


@app.command()
def presets() -> None:
    """The presets: what each sweeps, and how many trials that is."""
    for name in preset_names():
        sweeps = load_preset(name)
        print(f"{name}: {sum(len(made.trials()) for made in sweeps):,} trials")
        for made in sweeps:
            print(f"  {made.name}: {len(made.trials()):,} trials  {made.about}")


__all__ = ["LEDGER", "app", "main"]
