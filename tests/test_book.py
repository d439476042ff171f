"""Real builds of tiny books: what has to fail fails and says where, what need not run does not."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from project import REPOSITORY, add_site, chapter, code, command, make_project, run

from staircase_lib import book, chapters, claims, freshness

ROW = """\
from IPython.display import display
row = {{"id": "{id}", "statement": "s", "statistic": "r", "value": {value}, "low": None,
       "high": 1.0, "seeds": 2, "threshold": "≥ 0.5", "verdict": "reproduced",
       "evidence": "claim-here", "checks": [], "controls": [], "note": ""}}
display({{"application/vnd.staircase.claim+json": row, "text/plain": "row"}}, raw=True)"""
LEDGER = code('ledger_path = "results/ledger.json"', "parameters") + code(
    "import json\n[row['id'] for row in json.load(open(ledger_path))]"
)
COUNTED = code("open('runs.txt', 'a').write('x')\nvalue = 1\nvalue")
PAGES = {
    "introduction": chapter(
        "Introduction", "\nText {cite}`saxe2013exact`, {ref}`claim-here`.\n", COUNTED
    ),
    "02_related_work": "# Related work\n\nPlain $x^2$ text.\n",
    "04_feed_forward": chapter(
        "Feed-forward",
        "\n(claim-here)=\n## Claim\n",
        code(ROW.format(id="4.10", value=0.9)),
        code(ROW.format(id="4.9", value=0.8)),
    ),
    "08_conclusion": chapter(
        "Conclusion", LEDGER, extra="staircase:\n  reads: [results/ledger.json]\n"
    ),
    "bibliography": "# Bibliography\n\n```{bibliography}\n```\n",
}


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def build(root: Path):
    return command(root, "book", "--profile", "smoke", "--jobs", "2")


def runs(root: Path) -> int:
    return len((root / "book/runs.txt").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A book that was built once; a test that changes it changes it back."""
    root = make_project(tmp_path_factory.mktemp("site"), PAGES)
    add_site(root)
    done = build(root)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


# --- What a build makes --------------------------------------------------------------------------


def test_site_shows_outputs_and_citations(site):
    html = (site / "_build/html/book/introduction.html").read_text()
    assert "Saxe" in html and 'href="04_feed_forward.html#claim-here"' in html
    assert "introduction.html" in (site / "_build/html/index.html").read_text()
    assert "4.10" in (site / "_build/html/book/08_conclusion.html").read_text()


def test_ledger_merges_claims_in_order_and_says_where_from(site):
    rows = json.loads((site / "_build/smoke/ledger.json").read_text())
    assert [row["id"] for row in rows] == ["4.9", "4.10"]
    assert rows[0]["evidence"] == "04_feed_forward.html#claim-here"
    assert rows[0]["profile"] == "smoke" and rows[0]["chapter"] == "04_feed_forward"
    read = chapters.read_chapters(site)[2]
    assert rows[0]["key"] == freshness.ledger_key(book.chapter_parts(site, read, {}))


def test_papermill_runs_what_the_site_offers_for_download(site, tmp_path):
    published = site / "_build/html/_sources/book/08_conclusion.ipynb"
    assert '"parameters"' in published.read_text()
    (tmp_path / "ledger.json").write_text('[{"id": "of another ledger"}]')
    again = tmp_path / "again.ipynb"
    given = ["-p", "ledger_path", str(tmp_path / "ledger.json"), "--kernel", "python3"]
    run([sys.executable, "-m", "papermill", *map(str, (published, again)), *given], site, True)
    assert "of another ledger" in json.dumps(json.loads(again.read_text())["cells"][-1]["outputs"])


def test_no_page_loads_anything_from_another_host(site):
    pages = list((site / "_build/html").rglob("*.html"))
    assert len(pages) > 5
    loads = re.compile(r'<(?:script|link|img|iframe)[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    for page in pages:
        assert not loads.findall(page.read_text()), page
    assert loads.findall('<script src="https://cdn.example/x.js">')
    for asset in ("mathjax/tex-mml-chtml.js", "vega-embed.js"):
        assert (site / "_build/html/_static/vendor" / asset).stat().st_size > 100_000


def test_no_inline_script_stands_twice_in_a_page(site):
    html = (site / "_build/html/book/introduction.html").read_text()
    bodies = re.findall(r"<script(?![^>]*src)[^>]*>(.+?)</script>", html, re.DOTALL)
    assert bodies and len(bodies) == len(set(bodies))


# --- What a second build does --------------------------------------------------------------------


def test_nothing_changed_runs_and_renders_nothing(site):
    before = runs(site)
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert runs(site) == before
    assert done.stdout.count("fresh") == 3 and "pages up to date" in done.stdout


def test_prose_and_comments_are_rendered_without_running(site):
    before = runs(site)
    page = site / "book/introduction.md"
    rewrite(page, "Text {cite}", "Wholly new prose {cite}")
    rewrite(page, "value = 1", "value = 1  # a remark")
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert runs(site) == before
    html = (site / "_build/html/book/introduction.html").read_text()
    assert "Wholly new prose" in html and "a remark" in html


@pytest.mark.fault("a page of the site is lost", 0)
def test_a_lost_page_is_rendered_again(site):
    page = site / "_build/html/book/introduction.html"
    page.unlink()
    assert build(site).returncode == 0
    assert page.is_file()


def test_code_is_run_again_and_so_is_what_reads_its_claims(site):
    rewrite(site / "book/04_feed_forward.md", "0.9", "0.7")
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\S+)  running", done.stdout) == ["04_feed_forward", "08_conclusion"]


@pytest.mark.fault("executed notebooks are damaged, truncated or emptied", 0)
def test_damaged_products_count_as_absent(site):
    read = chapters.read_chapters(site)[0]
    executed = book.executed_path(site, "smoke", read)
    good = json.loads(executed.read_text())
    run = good["metadata"]["staircase_run"]
    assert book.staleness(site, "smoke", read) == []
    damaged = ["{", "null", "\0", json.dumps({**good, "cells": []})]
    for record in (None, {}, {**run, "parts": None}, {**run, "seconds": "x"}, {**run, "more": 1}):
        damaged.append(json.dumps({**good, "metadata": {"staircase_run": record}}))
    for text in damaged:
        executed.write_text(text)
        assert book.staleness(site, "smoke", read) == ["never executed"], text
    (site / "_build/site.json").write_text("{")
    before = runs(site)
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert runs(site) == before + 1 and "pages…" in done.stdout


# --- What fails ----------------------------------------------------------------------------------


@pytest.mark.fault("a reference or a citation leads nowhere", 1)
def test_broken_references_fail_every_time_and_leave_the_old_site(site):
    page = site / "book/introduction.md"
    text = page.read_text()
    pages = (site / "_build/html/book/introduction.html").read_text()
    broken = {
        "See {ref}`nowhere`.": "undefined label: 'nowhere'",
        "See {eq}`nothing`.": "equation not found: nothing",
        "See {cite}`nobody`.": 'could not find bibtex key "nobody"',
        "See [it](nofile.md).": "cross-reference target not found: 'nofile.md'",
    }
    try:
        page.write_text(text + "\n" + "\n\n".join(broken) + "\n")
        lines = page.read_text().splitlines()
        for _ in range(2):
            done = build(site)
            assert done.returncode == 1
            for prose, problem in broken.items():
                place = f"introduction, cell 3, line {lines.index(prose) + 1}: "
                told = [line for line in done.stderr.splitlines() if line.startswith(place)]
                assert len(told) == 1 and problem in told[0], done.stderr
        assert (site / "_build/html/book/introduction.html").read_text() == pages
    finally:
        page.write_text(text)


@pytest.mark.fault("one chapter of a build fails", 3)
def test_a_failing_cell_fails_the_build_and_keeps_what_ran(tmp_path):
    pages = {
        "introduction": chapter("Introduction", COUNTED),
        "04_feed_forward": chapter("Feed-forward", code("a = 1"), code("a + undefined")),
        "08_conclusion": chapter("Conclusion", LEDGER),
    }
    root = make_project(tmp_path, pages)
    done = build(root)
    assert done.returncode == 3
    assert "04_feed_forward, code cell 2, line 19, `a + undefined`: NameError" in done.stderr
    failed = json.loads((root / "_build/smoke/failed/04_feed_forward.ipynb").read_text())
    assert "NameError" in json.dumps(failed)
    assert "08_conclusion" not in done.stdout
    rewrite(root / "book/04_feed_forward.md", "a + undefined", "a / 0")
    assert build(root).returncode == 3
    assert runs(root) == 1


def test_a_missing_page_fails_before_anything_runs(tmp_path):
    root = make_project(tmp_path, {"introduction": chapter("Introduction", COUNTED)})
    with (root / "_toc.yml").open("a") as file:
        file.write("chapters:\n  - file: book/05_attention\n")
    done = build(root)
    assert done.returncode == 8
    assert "book/05_attention.md" in done.stderr
    assert not (root / "book/runs.txt").exists()


@pytest.mark.fault("a profile sets a parameter that the chapter does not have", 2)
def test_a_wrong_profile_fails_before_anything_runs(tmp_path):
    extra = "staircase:\n  profiles:\n    smoke: {sede: 2}\n"
    root = make_project(
        tmp_path,
        {
            "introduction": chapter("Introduction", COUNTED),
            "05_attention": chapter("A", code("seed = 1", "parameters"), extra=extra),
        },
    )
    done = build(root)
    assert done.returncode == 2
    assert "05_attention: no parameter 'sede'. Did you mean seed?" in done.stderr
    assert not (root / "book/runs.txt").exists()


@pytest.mark.fault("a second build of the same clone", 10)
def test_a_second_build_at_the_same_time_is_refused(tmp_path):
    root = make_project(tmp_path, {"introduction": chapter("Introduction", COUNTED)})
    with book.build_lock(root):
        done = build(root)
        assert done.returncode == 10 and not (root / "book/runs.txt").exists()
        assert f"another build is running (pid {os.getpid()}); wait for it" in done.stderr
    build(root)
    assert runs(root) == 1


@pytest.mark.fault("two chapters measure the same claim", 1)
def test_a_claim_measured_twice_is_refused(tmp_path):
    cell = code(ROW.format(id="4.1", value=1.0))
    root = make_project(tmp_path, {"introduction": chapter("A", cell), "05_x": chapter("B", cell)})
    done = build(root)
    assert done.returncode == 1
    assert "claim 4.1 is measured in introduction and in 05_x" in done.stderr


@pytest.mark.parametrize("cell", ["1", "1 / 0", "1 + 1\n```\n\n{ref}`nowhere`\n\n```{code-cell}"])
def test_plain_jupyter_book_executes_and_fails_where_it_has_to(tmp_path, cell):
    root = make_project(tmp_path, {"introduction": chapter("Introduction", code(cell))})
    add_site(root)
    program = Path(sys.executable).with_name("jupyter-book")
    done = run([str(program), "build", "."], root)
    assert (done.returncode == 0) == (cell == "1"), done.stdout + done.stderr
    if cell == "1":
        html = (root / "_build/html/book/introduction.html").read_text()
        assert 'class="output text_plain' in html
        assert (root / "_build/html/_static/vendor/mathjax/tex-mml-chtml.js").is_file()


# --- This book's ledger --------------------------------------------------------------------------


def ledger_faults(root: Path, rows: list[dict]) -> list[str]:
    """What is wrong with recorded rows: other code, other thresholds, wrong verdicts."""
    known = {read.name: read for read in chapters.read_chapters(root)}
    faults = []
    for row in rows:
        read = known[row["chapter"]]
        parameters = chapters.resolve_parameters(read, "cpu")
        key = freshness.ledger_key(book.chapter_parts(root, read, parameters))
        if row["key"] != key or row["profile"] != "cpu":
            faults.append(f"claim {row['id']}: stale, {row['chapter']} has changed; `make record`")
        declared = claims.CLAIMS[row["id"]].checks
        if [check["name"] for check in row["checks"]] != [check.name for check in declared]:
            faults.append(f"claim {row['id']}: its checks are not those that are declared")
            continue
        for came, check in zip(row["checks"], declared, strict=True):
            if came["threshold"] != check.threshold:
                faults.append(f"claim {row['id']}, {check.name}: another threshold is declared")
            numbers = [
                float("nan") if came[name] is None else came[name]
                for name in ("value", "low", "high")
            ]
            if came["verdict"] != claims.judge(check, *numbers):
                faults.append(
                    f"claim {row['id']}, {check.name}: verdict does not follow from values"
                )
    return faults


@pytest.fixture(scope="module")
def recorded() -> list[dict]:
    rows = book.read_ledger(REPOSITORY, None)
    assert rows
    return rows


def test_recorded_claims_are_fresh_and_judged_by_the_declared_thresholds(recorded):
    assert ledger_faults(REPOSITORY, recorded) == []


def test_every_declared_claim_is_recorded(recorded):
    assert {row["id"] for row in recorded} == set(claims.CLAIMS)


@pytest.mark.fault("a recorded claim was changed by hand", 1)
def test_a_recorded_claim_that_was_tampered_with_is_noticed(recorded):
    for change in ({"key": "0" * 16}, {"profile": "smoke"}):
        assert ledger_faults(REPOSITORY, [{**recorded[0], **change}])
    check = recorded[0]["checks"][0]
    for change in ({"threshold": "≥ 0"}, {"verdict": "partly"}, {"value": None}):
        row = {**recorded[0], "checks": [{**check, **change}, *recorded[0]["checks"][1:]]}
        assert ledger_faults(REPOSITORY, [row])
