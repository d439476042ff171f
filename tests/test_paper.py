"""The book on paper: complete, nothing clipped, every link a jump; faults are told."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from project import REPOSITORY, make_project
from pypdf import PdfReader
from pypdf.generic import ArrayObject
from test_browser import BOOK, Visit, browser, gallery  # noqa: F401, two fixtures

from staircase_lib import pages, paper
from staircase_lib.chapters import BookError, Exit

pytestmark = pytest.mark.browser

STYLE = (REPOSITORY / "book" / "_assets" / "print.css").read_text(encoding="utf-8")
FILLER = "<p>" + "Some words that fill the sheet. " * 300 + "</p>"
PAGES = {
    "start": f"""<section id="start"><h1>Start</h1>
        <p>See <a href="second.html#far">far</a>, <a href="#near">near</a>,
        <a href="second.html">the second</a>, <a href="second.html#inside">what is folded</a>,
        <a href="../report.html">a report</a>, <a href="https://example.org/">elsewhere</a>.</p>
        {FILLER}<section id="near"><h2>Near <a class="headerlink" href="#near">#</a></h2>
        </section></section>""",
    "second": f"""<section id="second"><h1>Second page</h1>
        <pre>{"long_name_" * 40}</pre>
        <table><tr>{"".join(f"<td>column{k}</td>" for k in range(14))}</tr></table>
        <details class="hide"><summary>Show the code</summary><p id="inside">FOLDED</p></details>
        <details class="solution"><summary>Solution</summary><p>AN ANSWER</p></details>
        {FILLER}<section id="far"><h2>Far away</h2><p><a href="start.html#near">Back.</a></p>
        </section></section>""",
}
HTML = """<!doctype html><html lang="en"><meta charset="utf-8"><title>x</title>
<style>pre {{ overflow-x: auto }} {style}</style>
<body><div class="bd-header">MENU</div><div class="bd-main"><div class="bd-content">
<article class="bd-article">{body}</article></div></div></body></html>"""


def site(folder: Path, bodies: dict[str, str]) -> Path:
    """A project whose built site has these pages."""
    root = make_project(folder, {name: f"# {name}\n" for name in bodies})
    (root / "_config.yml").write_text("title: A Little Book\nauthor: Someone\n")
    contents = "format: jb-book\nroot: book/start\nparts:\n  - caption: Rest\n    chapters:\n"
    others = "".join(f"      - file: book/{name}\n" for name in bodies if name != "start")
    (root / "_toc.yml").write_text(contents + others if others else contents.splitlines()[1] + "\n")
    html = root / "_build" / "html"
    (html / "book").mkdir(parents=True)
    (html / "index.html").write_text("start")
    (html / "report.html").write_text("report")
    for name, body in bodies.items():
        text = HTML.format(style=STYLE, body=body)
        (html / "book" / f"{name}.html").write_text(text, encoding="utf-8")
    (root / "_build" / "site.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> PdfReader:
    root = site(tmp_path_factory.mktemp("paper") / "book", PAGES)
    paper.print_book(root, root / "out" / "book.pdf")
    return PdfReader(root / "out" / "book.pdf")


def text_of(pdf: PdfReader) -> list[str]:
    return [" ".join(page.extract_text().split()) for page in pdf.pages]


def jumps(pdf: PdfReader, k: int) -> list[int]:
    """Pages that the links of a page lead to, as they come."""
    numbers = {page.indirect_reference.idnum: n for n, page in enumerate(pdf.pages)}  # pyright: ignore
    notes = [note.get_object() for note in pdf.pages[k].get("/Annots", ())]
    return [
        numbers[note["/Dest"][0].idnum]
        for note in notes
        if isinstance(note.get("/Dest"), ArrayObject)
    ]


def test_the_document_holds_every_heading_and_nothing_of_the_screen(printed):
    pages = text_of(printed)
    whole = " ".join(pages)
    assert pages[0].startswith("A Little Book") and "Someone" in pages[0]
    for heading in ("Start", "Near", "Second page", "Far away"):
        assert heading in pages[1], "named in the contents"
        assert any(heading in page for page in pages[2:])
    assert "AN ANSWER" in whole
    assert "MENU" not in whole and "FOLDED" not in whole
    code = "".join(pages).replace(" ", "")
    assert "long_name_" * 40 in code, "a long line is broken, not cut"


def test_pages_are_numbered_and_the_contents_tell_the_numbers(printed):
    pages = text_of(printed)
    assert pages[1].endswith("A Little Book ii")
    body = pages[2:]
    assert [page.rsplit(" ", 1)[1] for page in body] == [str(k + 1) for k in range(len(body))]
    assert printed.page_labels[:4] == ["i", "ii", "1", "2"]
    second = next(k for k, page in enumerate(body, 1) if page.startswith("Second page"))
    assert re.search(rf"Second page ?{second}\b", pages[1])


def test_every_link_of_the_book_is_a_jump(printed):
    pages = text_of(printed)
    body = next(k for k, page in enumerate(pages) if k > 1 and page.startswith("Start"))
    second = next(k for k, page in enumerate(pages) if k > 1 and page.startswith("Second page"))
    near = next(k for k, page in enumerate(pages) if k > 1 and "Near" in page)
    far = next(k for k, page in enumerate(pages) if k > 1 and "Far away" in page)
    assert body < near < second < far
    assert jumps(printed, body) == [far, near, second, second]
    assert near in jumps(printed, far), "from one page to another"
    assert jumps(printed, 1) == [body, near, second, far]
    addresses = [
        str(note.get_object().get("/A", {}).get("/URI", ""))
        for page in printed.pages
        for note in page.get("/Annots", ())
    ]
    assert [address for address in addresses if address] == ["https://example.org/"]


def test_bookmarks_are_parts_pages_and_sections(printed):
    def told(entries):
        return [told(e) if isinstance(e, list) else e.title for e in entries]

    assert told(printed.outline) == [
        *("Start", ["Near"], "Rest", ["Second page", ["Far away"]]),
    ]


def test_fonts_are_in_the_document(printed):
    for page in printed.pages:
        for font in page["/Resources"].get("/Font", {}).values():  # pyright: ignore
            kind = font.get_object()
            if kind["/Subtype"] == "/Type3":
                continue
            inner = kind["/DescendantFonts"][0].get_object()
            assert {"/FontFile", "/FontFile2", "/FontFile3"} & set(inner["/FontDescriptor"])


def test_the_same_site_gives_the_same_document(tmp_path: Path):
    root = site(tmp_path / "book", PAGES)
    for name in ("one.pdf", "two.pdf"):
        paper.print_book(root, tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ('<div style="width:900px">WIDE</div>', "WIDE"),
        ('<div style="overflow:hidden;width:90px"><p style="width:400px">CUT</p></div>', "CUT"),
        ('<div style="position:relative;left:600px;width:200px">MOVED</div>', "MOVED"),
        (f"<table><tr>{'<td>' + 'y' * 300 + '</td>'}</table>", "too small to read, table"),
        ('<div class="sc-chart">no script</div>', "not drawn"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, body: str, what: str):
    root = site(tmp_path / "book", {"start": f"<h1>Start</h1>{body}"})
    with pytest.raises(BookError, match=what) as caught:
        paper.print_book(root, tmp_path / "x.pdf")
    assert "start: " in str(caught.value)
    assert not (tmp_path / "x.pdf").exists()


def test_a_link_to_nowhere_is_told(tmp_path: Path):
    links = "second.html#absent", "#gone", "elsewhere.html", "../../../outside.html", "#a=b"
    body = "<h1>Start</h1>" + "".join(f'<p><a href="{to}">x</a></p>' for to in links)
    root = site(tmp_path / "book", {"start": body, "second": "<h1>Second</h1>"})
    with pytest.raises(BookError, match="start: #gone") as caught:
        paper.print_book(root, tmp_path / "x.pdf")
    told = str(caught.value)
    assert all(name in told for name in ("second.html#absent", "outside.html", "elsewhere.html"))
    assert "a=b" not in told


def test_without_a_browser_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(BookError, match="no-such-browser was not found. Install") as caught:
        paper.chromium()
    assert caught.value.code == Exit.MISSING


def test_a_site_that_is_missing_or_old_is_refused(tmp_path: Path):
    root = site(tmp_path / "book", {"start": "<h1>Start</h1>"})
    assert pages.built_site(root) == root / "_build" / "html"
    later = time.time() + 10
    os.utime(root / "book" / "start.md", (later, later))
    with pytest.raises(BookError, match="older than book/start.md: run `make book`"):
        pages.built_site(root)
    shutil.rmtree(root / "_build" / "html")
    with pytest.raises(BookError, match="No built site") as caught:
        pages.built_site(root)
    assert caught.value.code == Exit.MISSING


def test_contents_come_in_the_order_of_the_book():
    parts: Sequence[tuple[str, list[str]]] = paper.read_parts(REPOSITORY)
    assert parts[0] == ("", ["book/introduction"])
    names = [name for _, part in parts for name in part]
    assert len(names) == len(set(names)) and "book/reference/tasks" in names
    assert [paper.roman(k) for k in (1, 2, 4, 9, 14)] == ["i", "ii", "iv", "ix", "xiv"]


#: Pages with the widest formulas, tables, code and signatures.
WIDEST = ("introduction", "04d_gradient_flow", "08_conclusion", "reference/derivations")


@pytest.mark.skipif(not (BOOK / "index.html").is_file(), reason="the book is not built")
def test_the_widest_pages_of_the_book_fit():
    files = [BOOK / "book" / f"{name}.html" for name in WIDEST]
    for sheet in paper.print_pages(paper.chromium(), files):
        assert sheet.clipped == [] and sheet.lost == []
        assert sheet.headings[0]["level"] == 1


def test_who_reads_in_the_dark_prints_dark_letters_on_white(browser: Browser, gallery: Path):  # noqa: F811
    visit = Visit(browser, gallery / "charts.html", color_scheme="dark")
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"
    visit.page.emulate_media(media="print")
    seen = "s => getComputedStyle(document.querySelector(s))"
    letters = visit.page.evaluate(f"({seen})('.bd-article p').color")
    assert max(map(int, re.findall(r"\d+", letters)[:3])) < 90, letters
    paper_colour = visit.page.evaluate(f"({seen})('body').backgroundColor")
    assert paper_colour == "rgb(255, 255, 255)"
    assert not visit.page.locator(".bd-header-article").first.is_visible()
    visit.close()
