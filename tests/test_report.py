"""The HTML report: what it says, that it shows strings as text, and that it works in a browser without a network."""

import html
import json
import re
import shutil
import sys

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from headcount import api, cli
from headcount.experiments import Store, Sweep
from headcount.experiments.training import Outcome
from headcount.figures import FIGURES, report
from headcount.theory.claims import LEDGER, Finding, Verdict
from headcount.theory.floors import predicted_heads

HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
ENVIRONMENT = {"python": "3.11", "torch": "2.13", "device": "cpu", "threads": 1, "schema": 1}
SIZES = [1, 2, 4, 5, 9]
DRAWN = ["error-heads", "heads-k", "heads-n", "border", "task-samples"]
"""Figures on the pages here: the store has rows for the first two, and the last needs none."""


def sweep(name, **grid):
    return Sweep.parse(
        {
            "name": name,
            "task": {"name": "polynomial", "tokens": 11},
            "model": {"score": "linear", "content": "positions", "value_content": "features"},
            "grid": {"task.k": SIZES, "model.heads": "auto", "seed": [0, 1], **grid},
        }
    )


def outcome_of(trial):
    """What the law says, without training: solved from the predicted head count on."""
    solved = trial.model.heads >= predicted_heads(trial.task, trial.model.attention, 0.1)
    error = 0.003 + 0.001 * trial.seed if solved else 0.9 - 0.01 * trial.model.heads
    return Outcome("done", error=error, best_error=error, best_stderr=0.001, best_step=10, parameters=97, seconds=0.5)


def fill(store, trials, outcome, name):
    store.plan(trials, name)
    store.claim([trial.id for trial in trials])
    store.finish(trials, [outcome(trial) for trial in trials], ENVIRONMENT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store that holds the law for both mechanisms, failed, NaN and planned trials, and hostile names."""
    place = tmp_path_factory.mktemp("results")
    store = Store(place)
    for attention in ("mha", "iha"):
        made = sweep(f"polynomial-{attention}", **{"model.attention": [attention]})
        fill(store, made.trials(), outcome_of, made.name)
    graph = place / "<img src=x onerror=document.title=1>.edges"
    graph.write_text("".join(f"{i} {(i + 1) % 11}\n" for i in range(11)))
    broken = sweep(
        HOSTILE, **{"task.operator": ["file"], "task.graph": [str(graph)], "task.k": [3], "model.heads": [2]}
    )
    text = f"Traceback (most recent call last):\n  File 'x.py'\nRuntimeError: {HOSTILE}\n"
    fill(store, broken.trials(), lambda trial: Outcome("failed", cause="RuntimeError", traceback=text), HOSTILE)
    diverged = sweep("diverged", **{"training.learning_rate": [9.0], "task.k": [2], "model.heads": [2]}).trials()
    fill(store, diverged, lambda trial: Outcome("nan", parameters=97), "diverged")
    store.plan(sweep("later", **{"task.k": [7], "model.heads": [7]}).trials(), "later")
    store.close()
    return place


@pytest.fixture(scope="module")
def exact(folder):
    """Findings that no row changes."""
    return api.Results(folder).check(trained=False)


@pytest.fixture(scope="module")
def page(folder, exact):
    return write_report(folder, exact)


def write_report(folder, exact, path=None):
    results, order = api.Results(folder), list(LEDGER)
    findings = sorted([*exact, *results.check(exact=False)], key=lambda pair: order.index(pair[0].id))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "FIGURES", {name: FIGURES[name] for name in DRAWN})
        return results.report(path, findings)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr(report, "draw_inline", lambda evidence: ([], []))


@pytest.fixture(scope="module")
def text(page):
    return page.read_text(encoding="utf-8")


def shown(text):
    """What a reader sees: no tags, no scripts, no styles."""
    bare = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def test_every_claim_is_there_with_verdict_and_commands(text):
    words = shown(text)
    for claim in LEDGER.values():
        assert text.count(f'id="claim-{claim.id}"') == 1
        for part in (claim.statement, claim.derivation, claim.source, claim.printed, claim.corrected, claim.rerun):
            assert " ".join(part.split()) in words, (claim.id, part)
    assert re.search(r'id="claim-law-poly-mha" data-verdict="SUPPORTED"', text)
    assert re.search(r'id="claim-law-cpm3-mha" data-verdict="NO EVIDENCE"', text)
    assert "headcount sweep --preset quick --only workspace-mha" in words


def test_laws_show_what_was_predicted_found_and_learned(text):
    rows = re.findall(r"<tr>(?:<td[^>]*>[^<]*</td>)+</tr>", text)
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    for k in SIZES:
        assert [str(k)] * 3 + ["yes", str(k), "2 of 2", str(k - 1)] in [line[:7] for line in cells]
    root = {1: 1, 2: 2, 4: 2, 5: 3, 9: 3}
    for k, heads in root.items():
        assert [str(k), str(heads), str(heads), "yes"] in [line[:4] for line in cells]
    assert text.count(">5 of 5<") == 2


def test_numbers_failures_and_what_was_not_tested(text, folder):
    rows = api.Results(folder).rows
    words = shown(text)
    counts = rows["status"].value_counts()
    assert f"Trials {len(rows)} {counts['done']} done, 2 not finished" in words
    assert "Failures 4 2 failed, 2 ended in NaN" in words
    assert f"2 failed: RuntimeError: {HOSTILE}" in words
    assert "2 ended in NaN: the last weights are not finite" in words
    assert "2 trials are planned or running" in words
    untested = words[words.index("What was not tested, and why") :]
    assert "NO EVIDENCE law-cpm3-mha" in untested
    assert "Figures without rows heads-n, border, relation" in untested
    for key, value in ENVIRONMENT.items():
        assert key in words
        assert str(value) in words


def test_strings_are_shown_as_text(text):
    """The page's own script is the only one; hostile names, paths and tracebacks are escaped."""
    assert len(re.findall(r"<script", text)) == 1
    assert "<img src=x" not in text
    assert text.count(html.escape(HOSTILE, quote=False).split("'")[0]) >= 3
    assert text.count("&lt;img src=x onerror=document.title=1&gt;.edges") >= 1


def test_nothing_is_loaded_from_outside(text):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert f"script-src '{report.digest(script)}'" in policy
    assert f"style-src '{report.digest(style)}'" in policy
    sources = re.findall(r'\b(?:src|href)="([^"]*)"', text)
    assert all(source.startswith(("#", "data:")) for source in sources)
    assert "url(" not in style
    assert "@import" not in style


def test_equal_stores_give_equal_bytes(text, folder, exact, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert write_report(copy, exact, tmp_path / "other.html").read_text(encoding="utf-8") == text


def test_command_writes_the_page(folder, undrawn, monkeypatch, capsys, tmp_path):
    target = tmp_path / "page.html"
    monkeypatch.setattr(api.Results, "check", lambda self: [])
    monkeypatch.setattr(sys, "argv", ["headcount", "report", "--results", str(folder), "--output", str(target)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert capsys.readouterr().out.strip() == str(target)
    assert target.read_text(encoding="utf-8").rstrip().endswith("</html>")
    for arguments, sentence in (
        (["--results", str(tmp_path / "none")], "no results in"),
        (["--results", str(folder), "--output", str(tmp_path / "no" / "page.html")], "cannot be written"),
    ):
        monkeypatch.setattr(sys, "argv", ["headcount", "report", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        assert sentence in capsys.readouterr().err


def test_reproduce_ends_in_the_page(undrawn, monkeypatch, tmp_path):
    monkeypatch.setattr(api, "load_preset", lambda name: [])
    monkeypatch.setattr(api.Results, "check", lambda self: [])
    monkeypatch.setattr(api.Results, "draw", lambda self: ([], []))
    done = api.reproduce(results=tmp_path, execution=api.Execution(workers=1))
    assert done.page == tmp_path / "report.html"
    assert done.page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_empty_store(undrawn, tmp_path):
    Store(tmp_path).close()
    results = api.Results(tmp_path)
    words = shown(results.report(findings=results.check(exact=False)).read_text(encoding="utf-8"))
    assert "The store holds no trial yet" in words
    assert "No trial is stored." in words
    assert "NO EVIDENCE law-poly-mha" in words


def test_a_contradicted_law_is_said_on_top(folder, undrawn):
    results = api.Results(folder)
    finding = Finding(Verdict.REFUTED, "1", "2", {"thresholds": [], "fit refused": "too few points"}, contradicted=True)
    words = shown(report.render(results.evidence, [(LEDGER["law-poly-mha"], finding)], {}))
    assert words.index("1 of this project's own laws is contradicted") < words.index("Verdicts Every claim")


def test_a_long_run_table_says_what_it_leaves_out(folder):
    rows = api.Results(folder).rows
    table = report.run_table(rows, most=10)
    assert (len(table.rows), table.left_out) == (10, len(rows) - 10)
    status = table.columns.index("status")
    assert [row[status] for row in table.rows].count("failed") == 2
    assert [row[status] for row in table.rows].count("nan") == 2


def test_presets_are_named_only_where_they_hold_the_rows(folder, tmp_path):
    assert api.Results(folder)._presets() == {}
    store = Store(tmp_path)
    made = next(one for one in api.load_preset("smoke"))
    store.plan(made.trials(), made.name)
    assert api.Results(tmp_path)._presets() == {made.name: "smoke"}


@pytest.mark.parametrize(
    ("value", "words"),
    [(3, "3"), (12345.0, "12,345"), (0.123456, "0.1235"), (float("nan"), "\N{EN DASH}"), (None, "\N{EN DASH}"),
     (True, "yes"), (float("inf"), "inf"), ((1, (2, 3)), "1, (2, 3)"), ({"a": 1.5}, "a: 1.5"), ("<b>", "<b>")],
)  # fmt: skip
def test_cells(value, words):
    assert report.cell(value) == words


def test_evidence_becomes_tables_and_values():
    assert report.block("x", [{"a": 1, "b": "u"}]).table.rows == [["1", "u"]]
    assert report.block("x", {"p": {"a": 1}, "q": {"a": 2}}).table.rows == [["p", "1"], ["q", "2"]]
    assert report.block("x", {"p": 1, "q": (2, 3)}).table.rows == [["p", "1"], ["q", "2, 3"]]
    assert [part.name for part in report.block("x", {"p": [{"a": 1}], "q": 2}).parts] == ["p", "q"]
    assert report.block("x", []).text == "none"


# --------------------------------------------------------------------------------------------------
# In a browser


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium and chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    window.get(page.as_uri())
    yield window
    window.quit()


def visible_rows(browser):
    return browser.execute_script("return [...document.querySelectorAll('#run-table tbody tr:not([hidden])')].length")


def column(browser, index):
    script = (
        "return [...document.querySelectorAll('#run-table tbody tr')].map((row) => row.cells[arguments[0]].textContent)"
    )
    return browser.execute_script(script, index)


def test_opens_from_disk_without_errors_or_requests(browser, page):
    assert browser.title == "headcount report"
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    asked = {one["request"]["url"] for one in requests if one["documentURL"] == page.as_uri()}
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    pictures = browser.execute_script(
        "return [...document.images].map((image) => image.complete && image.naturalWidth > 0)"
    )
    assert pictures == [True] * 3


def test_filters_and_search_change_the_rows(browser, folder):
    rows = api.Results(folder).rows
    assert visible_rows(browser) == len(rows)
    Select(browser.find_element(By.CSS_SELECTOR, "#run-tools select[data-column='1']")).select_by_visible_text("iha")
    assert visible_rows(browser) == (rows["model.attention"] == "iha").sum()
    search = browser.find_element(By.CSS_SELECTOR, "#run-tools input")
    search.send_keys("k 9,")
    expected = ((rows["model.attention"] == "iha") & (rows["task.k"] == 9)).sum()
    assert 0 < visible_rows(browser) == expected
    assert browser.find_element(By.ID, "run-count").text == f"{expected} of {len(rows)} rows shown"
    browser.find_element(By.ID, "run-reset").click()
    assert visible_rows(browser) == len(rows)


def test_columns_sort_both_ways_with_missing_values_last(browser):
    heads = browser.find_elements(By.CSS_SELECTOR, "#run-table th")
    index = [head.text.split()[0] for head in heads].index("best")
    for order in ("ascending", "descending"):
        heads[index].find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
        assert heads[index].get_attribute("aria-sort") == order
        cells = column(browser, index)
        numbers = [float(cell) for cell in cells if cell != "\N{EN DASH}"]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert len(set(numbers)) > 2
        assert cells[: len(numbers)].count("\N{EN DASH}") == 0 < cells.count("\N{EN DASH}")


def test_claims_open_by_keyboard_link_and_button(browser):
    claim = browser.find_element(By.ID, "claim-border")
    summary = claim.find_element(By.TAG_NAME, "summary")
    summary.send_keys(Keys.ENTER)
    assert claim.get_attribute("open")
    assert "border-rank" in claim.text
    browser.execute_script("location.hash = '#claim-width'")
    WebDriverWait(browser, 5).until(lambda window: window.find_element(By.ID, "claim-width").get_attribute("open"))
    browser.find_element(By.CSS_SELECTOR, "#claim-tools [data-verdict='SUPPORTED']").click()
    left = [one for one in browser.find_elements(By.CLASS_NAME, "claim") if one.is_displayed()]
    assert left
    assert all(one.get_attribute("data-verdict") == "SUPPORTED" for one in left)
    browser.find_element(By.CSS_SELECTOR, "#claim-tools [data-verdict='']").click()
    browser.find_element(By.ID, "open-all").click()
    assert all(one.get_attribute("open") for one in browser.find_elements(By.CLASS_NAME, "claim"))


def test_copy_button_answers(browser):
    button = browser.find_element(By.CSS_SELECTOR, "#claim-superset .copy")
    button.send_keys(Keys.ENTER)
    WebDriverWait(browser, 5).until(lambda _: button.text in ("Copied", "Selected"))


def test_theme_follows_the_button(browser):
    background = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(background)
    toggle = browser.find_element(By.ID, "theme")
    word = toggle.text
    toggle.send_keys(Keys.ENTER)
    assert browser.execute_script(background) != before
    assert toggle.text != word
    toggle.send_keys(Keys.ENTER)
    assert browser.execute_script(background) == before


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_page_never_scrolls_sideways(browser, width):
    """With every claim and every other part open."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    across, window = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert window == width
    assert across <= width


def test_no_hostile_script_ran(browser):
    assert browser.title == "headcount report"
    assert browser.get_log("browser") == []
