"""Built pages in Chromium: nothing is fetched from elsewhere, nothing fails, charts react.

Looked at are a gallery with every kind of chart, built here with the book's configuration, and
the pages of the built book where ``_build/html`` is there (``make book`` comes first in
``.ci/run``). Pages are opened from disk, as a reader without a server does.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gallery_site
import pytest
from chart_gallery import STEPS, N, similarities
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright
from test_corpus_report import write_hostile_report

pytestmark = pytest.mark.browser

BOOK = gallery_site.ROOT / "_build" / "html"
WIDTHS = {"phone": 360, "desktop": 1440}
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
BOOK_PAGES = sorted(
    str(path.relative_to(BOOK))
    for path in BOOK.rglob("*.html")
    if not {"_static", "_sources"} & set(path.parts) and path.name not in ("genindex.html",)
)

# The cells that Vega has computed for the chart in a box, whatever it calls that table.
SHOWN_VALUES = """box => {
  const view = staircaseCharts.drawn.get(box).view;
  const names = Object.keys(view.getState({ signals: () => false, data: () => true }).data);
  const tables = names.map((name) => view.data(name));
  return tables.find((rows) => rows.some?.((row) => "row" in row)).map((row) => row.value);
}"""


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gallery_site.build(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="module")  # other files import it, and two at a time cannot run in a process
def browser() -> Iterator[Browser]:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    if program is None:
        pytest.fail(
            "these tests drive Chromium, and none was found: install Debian's package "
            "(apt-get install chromium), or name a program in the variable CHROMIUM"
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page, opened with every request to elsewhere blocked and every complaint recorded."""

    def __init__(self, browser: Browser, path: Path, width: int = 1440, **options: Any) -> None:
        size: Any = {"width": width, "height": 900}
        options = {"color_scheme": "light", **options}
        self.context = browser.new_context(viewport=size, **options)
        self.context.set_default_timeout(90_000)  # a crowded machine draws slowly
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context.route("**/*", self._only_from_disk)
        self.page: Page = self.context.new_page()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", lambda request: self.complaints.append(request.url))
        self.page.on("dialog", lambda dialog: self._refuse(dialog))
        self.page.goto(path.as_uri())

    def _only_from_disk(self, route: Route) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") or message.text.startswith("WARN"):  # Vega's own
            self.complaints.append(message.text)

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def draw_all(self) -> None:
        """Scroll to each chart, as a reader does, and wait until it is drawn."""
        self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        boxes = self.page.locator(".sc-chart")
        for k in range(boxes.count()):
            box = boxes.nth(k)
            box.scroll_into_view_if_needed()
            self.page.wait_for_function("box => box.dataset.state", arg=box.element_handle())

    def chart(self, name: str) -> Any:
        """The box of the gallery's chart `name`, drawn."""
        box = self.page.locator(f"#fig-{name} .sc-chart")
        box.scroll_into_view_if_needed()
        self.page.wait_for_function("box => box.dataset.state", arg=box.element_handle())
        return box

    def signal(self, box: Any, name: str) -> Any:
        return box.evaluate("(b, n) => staircaseCharts.drawn.get(b).view.signal(n)", name)

    def until(self, box: Any, name: str, value: Any) -> None:
        """Wait for a signal of a chart; charts out of sight follow when there is time."""
        signal = "([b, n, v]) => staircaseCharts.drawn.get(b).view.signal(n) === v"
        self.page.wait_for_function(signal, arg=[box.element_handle(), name, value], timeout=5000)

    def close(self) -> None:
        assert self.complaints == []
        self.context.close()

    def check(self) -> None:
        assert self.requests == [], "a page asked another host"
        assert self.complaints == []
        states = self.page.locator(".sc-chart").evaluate_all("bs => bs.map(b => b.dataset.state)")
        assert set(states) <= {"drawn"}, "a chart was not drawn"
        assert self.page.locator("mjx-merror, [data-mjx-error]").count() == 0
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.page.evaluate(overflow) <= 0, "the page scrolls sideways"


def look(browser: Browser, path: Path, width: int) -> None:
    visit = Visit(browser, path, width)
    visit.page.wait_for_selector("#main-content")  # index.html passes on to the first chapter
    visit.page.wait_for_function(
        "!window.MathJax || MathJax.startup?.promise?.then(() => true)"  # a bare object at first
    )
    visit.draw_all()
    visit.check()
    visit.context.close()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("page", ["index.html", "charts.html", "curves.html"])
def test_gallery_page_is_whole(browser: Browser, gallery: Path, page: str, width: int) -> None:
    look(browser, gallery / page, width)


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("page", BOOK_PAGES)
def test_book_page_is_whole(browser: Browser, page: str, width: int) -> None:
    look(browser, BOOK / page, width)


def test_a_broken_page_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """Each part of the check can fail."""
    bad = {
        "request": '<img src="https://example.org/a.png">',
        "error": "<script>throw new Error('x')</script>",
        "sideways": '<div style="width:3000px">x</div>',
        "formula": "<mjx-merror>x</mjx-merror>",
        "warning": "<script>console.warn('x')</script>",
        "undrawn": '<div class="sc-chart" data-state="failed"></div>',
    }
    for name, body in bad.items():
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><body>{body}", encoding="utf-8")
        visit = Visit(browser, tmp_path / f"{name}.html")
        with pytest.raises(AssertionError):
            visit.check()
        visit.context.close()


def test_charts_wait_until_they_are_near(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    last = visit.page.locator(".sc-chart").last
    assert last.get_attribute("data-state") is None
    assert last.locator(".sc-view").bounding_box()["height"] > 200  # pyright: ignore
    visit.draw_all()
    assert last.get_attribute("data-state") == "drawn"
    visit.close()


def test_slider_by_keyboard_changes_the_picture_and_the_other_charts(
    browser: Browser, gallery: Path
) -> None:
    visit = Visit(browser, gallery / "charts.html")
    box, other = visit.chart("heatmap"), visit.chart("heatmap-panels")
    curves = visit.chart("accuracy")
    assert visit.signal(curves, "now") == -1
    before = box.evaluate(SHOWN_VALUES)
    slider = box.get_by_role("slider", name="epoch")
    slider.focus()
    slider.press("Home")
    for _ in range(3):
        slider.press("ArrowRight")
    assert visit.signal(box, "snapshot") == 3
    assert slider.get_attribute("aria-valuetext") == f"epoch {STEPS[3]}"
    assert box.locator("output").inner_text() == str(STEPS[3])
    assert box.evaluate(SHOWN_VALUES) != before
    visit.until(other, "snapshot", 3)  # charts of a clock share the moment
    visit.until(curves, "now", STEPS[3])
    assert other.locator("output").inner_text() == str(STEPS[3])
    visit.close()


def test_play_moves_through_the_snapshots_and_stops_at_the_last(
    browser: Browser, gallery: Path
) -> None:
    visit = Visit(browser, gallery / "charts.html")
    box = visit.chart("scatter")
    slider = box.get_by_role("slider", name="epoch")
    slider.press("End")
    for _ in range(3):
        slider.press("ArrowLeft")
    box.get_by_role("button", name="Play epoch").press("Enter")
    assert box.get_by_role("button", name="Pause epoch").count() == 1
    visit.until(box, "snapshot", len(STEPS) - 1)
    box.get_by_role("button", name="Play epoch").wait_for()  # at the end it stops by itself
    box.get_by_role("button", name="Play epoch").press("Enter")  # from the start again
    visit.until(box, "snapshot", 2)
    slider.press("ArrowRight")  # a reader who takes over stops it
    at = visit.signal(box, "snapshot")
    visit.page.wait_for_timeout(700)
    assert visit.signal(box, "snapshot") == at
    visit.close()


def test_with_little_motion_play_is_one_step_a_press(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html", reduced_motion="reduce")
    box = visit.chart("scatter")
    box.get_by_role("slider", name="epoch").press("Home")
    box.get_by_role("button", name="Next epoch").press("Enter")
    visit.page.wait_for_timeout(700)
    assert visit.signal(box, "snapshot") == 1
    visit.close()


EVENTS = """() => {
  window.heard = [];
  for (const name of ["sc-moment", "sc-token"])
    document.addEventListener(name, (event) => heard.push([name, event.detail]));
}"""


def test_moments_and_tokens_are_events_of_the_page(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    box = visit.chart("scatter")
    visit.page.evaluate(EVENTS)
    box.get_by_role("slider", name="epoch").press("Home")
    assert visit.page.evaluate("heard") == [["sc-moment", {"clock": "", "step": 0}]]
    tell = "([n, d]) => document.dispatchEvent(new CustomEvent(n, { detail: d }))"
    visit.page.evaluate(tell, ["sc-moment", {"clock": "", "step": STEPS[5]}])
    visit.page.evaluate(tell, ["sc-token", {"group": "token", "token": "3"}])
    visit.page.evaluate(tell, ["sc-token", {"group": "other", "token": "4"}])
    visit.until(box, "snapshot", 5)
    visit.until(box, "token", "3")
    assert box.get_by_role("combobox", name="mark token").input_value() == "3"
    visit.close()


# How many frames, rings and names mark a token in a chart, read from what Vega has drawn.
MARKED = """b => {
  const found = [];
  const hollow = ({ fill }) => !fill || fill === "transparent";
  const look = (item) => {
    if (item.marktype && item.items.length && item.items[0].datum)
      for (const one of item.items)
        if (one.fontWeight === 700 && one.text || one.strokeWidth === 2 && hollow(one))
          found.push(item.marktype);
    for (const inner of item.items || []) look(inner);
  };
  look(staircaseCharts.drawn.get(b).view.scenegraph().root);
  return found.sort();
}"""
BARS = (
    "b => [...b.querySelectorAll('.mark-rect.role-mark path')].map(p => p.getAttribute('opacity'))"
)


def test_a_token_pointed_at_is_marked_in_every_chart(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    scatter, heatmap = visit.chart("scatter"), visit.chart("heatmap-panels")
    visit.draw_all()
    dots = scatter.locator(".mark-symbol.role-mark path")
    scatter.scroll_into_view_if_needed()
    assert heatmap.evaluate(MARKED) == []
    dots.nth(4).hover()
    visit.until(scatter, "token", "4")
    visit.until(heatmap, "token", "4")
    assert scatter.evaluate(MARKED) == ["symbol", "text"], "a ring and its name"
    assert heatmap.evaluate(MARKED) == ["rect"] * 4, "row and column in both panels"
    visit.page.mouse.move(2, 2)
    visit.until(heatmap, "token", "")
    dots.nth(7).click()
    visit.page.mouse.move(2, 2)
    visit.until(heatmap, "token", "7")  # kept
    assert visit.signal(visit.chart("heatmap"), "token") == "7"  # its first token is called 1
    visit.page.keyboard.press("Escape")
    visit.until(heatmap, "token", "")
    scatter.scroll_into_view_if_needed()
    dots.nth(7).click()
    dots.nth(7).click()
    visit.page.mouse.move(2, 2)
    visit.until(heatmap, "token", "")  # a second click lets go
    visit.close()


def test_a_token_is_marked_by_keyboard_in_both_themes(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    box, bars = visit.chart("heatmap-panels"), visit.chart("distributions")
    visit.draw_all()
    menu = box.get_by_role("combobox", name="mark token")
    menu.focus()
    menu.press("7")  # as a reader chooses by keyboard
    visit.until(bars, "token", "7")
    opacity = bars.evaluate(BARS)  # of the panels 1, 7, 13, 19
    assert set(opacity[:60]) == {"0.25"} and set(opacity[60:120]) <= {None, "1"}
    view = box.evaluate_handle("b => staircaseCharts.drawn.get(b).view")
    visit.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    visit.page.wait_for_function(
        "([b, v]) => staircaseCharts.drawn.get(b).view !== v", arg=[box.element_handle(), view]
    )
    visit.until(box, "token", "7")
    assert box.get_by_role("combobox", name="mark token").input_value() == "7"
    assert box.evaluate(MARKED) == ["rect"] * 4
    visit.close()


def table_of(visit: Visit, name: str) -> list[list[str]]:
    """The file that a chart's button gives, read as CSV."""
    box = visit.chart(name)
    box.get_by_role("button", name="Data").press("Enter")
    dialog = box.get_by_role("dialog", name="Data of this chart")
    with visit.page.expect_download() as caught:
        dialog.get_by_role("button", name="Download").first.click()
    dialog.get_by_role("button", name="Close").click()
    box.locator("dialog").wait_for(state="detached")
    text = Path(caught.value.path()).read_text(encoding="utf-8-sig")
    return list(csv.reader(text.splitlines()))


def test_the_data_of_charts_are_tables_to_take_along(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    head, *rows = table_of(visit, "heatmap-panels")
    assert head == ["panel", "epoch", "token", "with", "cosine similarity"]
    assert len(rows) == (len(STEPS) + 1) * N * N, "a fixed panel once, the other at every step"
    given = similarities(1.0)
    pick = {tuple(r[:4]): float(r[4]) for r in rows}
    for t, i, j in ((0, 0, 1), (7, 3, 12), (len(STEPS) - 1, 19, 2)):
        assert abs(pick["embeddings", str(STEPS[t]), str(i), str(j)] - given[t, i, j]) < 1 / 200
    assert ("signature S⁰", "", "0", "0") in pick
    head, *rows = table_of(visit, "scatter")
    axes = ["first component (relative)", "second component (relative)"]
    assert head == ["epoch", "token", *axes] and len(rows) == len(STEPS) * N
    visit.page.goto((gallery / "curves.html").as_uri())
    head, *rows = table_of(visit, "alignment")
    assert head == ["epoch", "signature", "alignment r", "seed"]
    assert len(rows) == 3 * 5 * len(STEPS) and {row[1] for row in rows} == {"r_0", "r_1", "r_2"}
    head, *rows = table_of(visit, "phase")  # all points, though the chart shows a few
    assert head == ["value", "γ", "width d", "quantity", "length"] and len(rows) == 2 * 4 * 3 * 2
    head, *rows = table_of(visit, "tokens")
    assert head == ["token", "occurrences", "bits", "group"]
    names = {row[0] for row in rows}
    assert {"<!--", "word1"} <= names and len(rows) == 70
    assert "'=LINK('\"&amp;\\u003c')" in names, "text, where a spreadsheet ran it"
    assert visit.page.evaluate("window.hacked") is None
    visit.close()


def test_a_table_in_the_page_has_its_first_rows(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html", width=360)
    box = visit.chart("heatmap")
    box.get_by_role("button", name="Data").click()
    dialog = box.get_by_role("dialog", name="Data of this chart")
    rows = f"the first 300 of {len(STEPS) * N * N:,} rows"
    assert rows in dialog.inner_text() and dialog.locator("tbody tr").count() == 300
    assert dialog.bounding_box()["width"] <= 360  # pyright: ignore
    visit.page.keyboard.press("Escape")
    box.locator("dialog").wait_for(state="detached")
    visit.close()


def test_pictures_to_take_along_show_the_chart_as_it_stands(
    browser: Browser, gallery: Path
) -> None:
    visit = Visit(browser, gallery / "charts.html", color_scheme="dark")
    visit.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    box = visit.chart("scatter")
    box.get_by_role("slider", name="epoch").press("Home")
    for _ in range(4):
        box.get_by_role("slider", name="epoch").press("ArrowRight")
    with visit.page.expect_download() as caught:
        box.get_by_role("button", name="SVG").click()
    svg = Path(caught.value.path()).read_text(encoding="utf-8")
    assert caught.value.suggested_filename == "scatter.svg"
    assert f"epoch {STEPS[4]}<" in svg and 'fill="white"' in svg and "#24292F" in svg
    assert "#e6edf3" not in svg, "light colours, though the page is dark"
    with visit.page.expect_download() as caught:
        box.get_by_role("button", name="PNG").click()
    head = Path(caught.value.path()).read_bytes()[:24]
    width = int(svg.split('width="')[1].split('"')[0])
    assert abs(int.from_bytes(head[16:20], "big") / 96 - width * 300 / 96 / 96) < 0.1, "300 dpi"
    visit.close()


def test_a_box_for_a_chart_that_comes_later(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    spec = visit.chart("heatmap").locator("script.sc-spec").inner_text()
    visit.page.evaluate(
        "s => { const box = staircaseCharts.box(JSON.parse(s)); box.id = 'later';"
        " document.querySelector('#main-content').prepend(box); }",
        spec,
    )
    box = visit.page.locator("#later")
    box.scroll_into_view_if_needed()
    visit.page.wait_for_selector("#later[data-state=drawn] canvas")
    assert box.get_by_role("button", name="Data").count() == 1
    box.evaluate("b => b.remove()")
    visit.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    gone = "![...staircaseCharts.drawn.keys()].some((box) => box.id === 'later')"
    visit.page.wait_for_function(gone)
    visit.close()


def test_moment_is_drawn_in_curves(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "curves.html")
    box = visit.chart("loss")
    assert visit.signal(box, "now") == -1
    box.evaluate(
        "async b => { await staircaseCharts.drawn.get(b).view.signal('now', 30).runAsync() }"
    )
    rule = box.locator("g.mark-rule line[opacity='0.7'], g.mark-rule line[stroke-opacity='0.7']")
    assert rule.count() == 1
    visit.close()


# Lines and texts of the loss panel, as the reader sees them.
LOSS_LINES = (
    "b => [...b.querySelectorAll('.concat_1_group .mark-line path')].map(p => p.getAttribute('d'))"
)
TITLES = "b => [...b.querySelectorAll('.role-title-text text')].map(t => t.textContent)"
CELLS = """b => [...b.querySelectorAll('.concat_0_group .mark-text.role-mark text')]
  .map(t => t.textContent)"""


def test_phase_diagram_is_explored_by_keyboard_click_and_menu(
    browser: Browser, gallery: Path
) -> None:
    visit = Visit(browser, gallery / "curves.html")
    box = visit.chart("phase")
    before, cells = box.evaluate(LOSS_LINES), box.evaluate(CELLS)
    assert len(before) == 3 and len(cells) == 12
    assert any("γ = 0.9, d = 32, L = 2" in title for title in box.evaluate(TITLES))
    slider = box.get_by_role("slider", name="rate γ")
    slider.focus()
    slider.press("Home")
    moved = box.evaluate(LOSS_LINES)
    assert len(moved) == 3 and moved != before, "the slider opens another point"
    assert any("γ = 0.5, d = 32, L = 2" in title for title in box.evaluate(TITLES))
    box.get_by_role("radio", name="64").check()
    assert any("γ = 0.5, d = 64, L = 2" in title for title in box.evaluate(TITLES))
    cell = box.get_by_label("value: >2.4k")  # Vega names the cells by their tooltip
    cell.click(position={"x": 6, "y": 6})
    assert any("γ = 1.1, d = 64, L = 2" in title for title in box.evaluate(TITLES))
    assert slider.input_value() == "1.1", "a click moves the slider"
    assert box.evaluate(LOSS_LINES) not in (before, moved)
    box.get_by_label("text: 606").click()  # on the number itself
    assert any("γ = 0.9, d = 16, L = 2" in title for title in box.evaluate(TITLES))
    box.get_by_role("radio", name="3", exact=True).check()
    assert box.evaluate(CELLS) != cells, "another length, another map"
    assert any("L = 3" in title for title in box.evaluate(TITLES))
    box.get_by_role("combobox").select_option(index=1)
    assert set(box.evaluate(CELLS)) == {"</s"}
    visit.close()


def test_phase_diagram_keeps_its_choices_when_it_is_drawn_again(
    browser: Browser, gallery: Path
) -> None:
    visit = Visit(browser, gallery / "curves.html")
    box = visit.chart("phase")
    box.get_by_role("slider", name="rate γ").press("Home")
    box.get_by_role("radio", name="16").check()
    box.get_by_role("radio", name="3", exact=True).check()
    view = box.evaluate_handle("b => staircaseCharts.drawn.get(b).view")
    visit.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    visit.page.wait_for_function(
        "([b, v]) => staircaseCharts.drawn.get(b).view !== v", arg=[box.element_handle(), view]
    )
    assert any("γ = 0.5, d = 16, L = 3" in title for title in box.evaluate(TITLES))
    visit.close()


def test_theme_changes_colours_and_keeps_the_slider(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    box = visit.chart("scatter")
    ink = "b => getComputedStyle(b.querySelector('.role-axis-title text')).fill"
    light = box.evaluate(ink)
    box.get_by_role("slider").press("Home")
    drawn = "b => staircaseCharts.drawn.get(b).view"
    for theme in ("dark", "light"):
        view = box.evaluate_handle(drawn)
        visit.page.evaluate("t => { document.documentElement.dataset.theme = t }", theme)
        visit.page.wait_for_function(
            "([b, v]) => staircaseCharts.drawn.get(b).view !== v", arg=[box.element_handle(), view]
        )
        assert visit.signal(box, "snapshot") == 0
        assert box.get_by_role("slider").input_value() == "0"
        assert box.locator("output").inner_text() == "0"
        assert (box.evaluate(ink) == light) == (theme == "light")
    visit.close()


def test_narrow_charts_fit_their_box(browser: Browser, gallery: Path) -> None:
    for page in ("charts.html", "curves.html"):
        visit = Visit(browser, gallery / page, width=360)
        visit.draw_all()
        wide = visit.page.locator(".sc-view").evaluate_all(
            "vs => vs.filter(v => v.scrollWidth > v.clientWidth + 1).map(v => v.ariaLabel)"
        )
        assert len(wide) <= 1, wide  # only the chart with a hostile name of 37 letters may scroll
        visit.close()


def test_pictures_stand_in_where_vega_or_scripts_are_missing(
    browser: Browser, gallery: Path
) -> None:
    without = Visit(browser, gallery / "charts.html", java_script_enabled=False)
    assert without.page.locator(".sc-chart noscript img").first.is_visible()
    without.context.close()
    broken = browser.new_context(viewport={"width": 1440, "height": 900})
    broken.route("**/vega-embed.js*", lambda route: route.abort())
    page = broken.new_page()
    page.goto((gallery / "charts.html").as_uri())
    page.wait_for_selector(".sc-chart[data-state=failed] .sc-picture img")
    broken.close()


def test_undrawn_and_dark_charts_print_as_pictures(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    visit.chart("heatmap")
    visit.chart("scatter")
    visit.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    visit.page.emulate_media(media="print")
    boxes = visit.page.locator(".sc-chart")
    drawn = visit.page.locator("#fig-scatter .sc-chart")
    assert drawn.locator(".sc-picture").count() == 0  # drawn on a light ground: prints itself
    assert not drawn.locator(".sc-tools").is_visible()
    assert boxes.first.locator(".sc-picture img").is_visible(), "a canvas is too coarse for paper"
    assert boxes.last.locator(".sc-picture img").is_visible()
    assert not boxes.last.locator(".sc-view").is_visible()
    visit.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert visit.page.locator(".sc-picture").count() == 0
    visit.close()


def test_figures_are_numbered_and_charts_are_named(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "charts.html")
    captions = visit.page.locator("figcaption .caption-number").all_inner_texts()
    assert len(captions) == 7 and all(text.startswith("Fig. ") for text in captions)
    image = visit.page.get_by_role("img", name="Heatmap of cosine similarity between 20 tokens")
    assert image.count() == 2
    assert visit.page.locator(".sc-claim").evaluate("e => getComputedStyle(e).borderLeftColor")
    visit.close()


OBEYED = "\u202e\u2066\u200f\x1b\x07"  # what a reader must never meet as such


def hover_all(page: Page, box: Any) -> set[str]:
    """Point at each mark of a chart; the tooltips' texts, none of which may hold markup."""
    told = set()
    marks = box.locator(".mark-symbol.role-mark path")
    tip = page.locator("#vg-tooltip-element.visible")
    for k in range(marks.count()):
        page.mouse.move(0, 0)
        expect(tip).to_have_count(0)
        marks.nth(k).hover(force=True)
        with suppress(AssertionError):  # a mark that lies under another has no tooltip of its own
            expect(tip).not_to_be_empty(timeout=1500)
        if tip.count() == 0:
            continue
        assert tip.locator("img, script").count() == 0
        told.add(tip.inner_text())
    return told


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_report(tmp_path_factory.mktemp("hostile"))


@pytest.mark.fault("tokens hold HTML, script, control characters or direction marks", 0)
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_of_hostile_tokens_is_whole(
    browser: Browser, hostile_report: Path, theme: Any, width: int
) -> None:
    visit = Visit(browser, hostile_report, width)
    visit.page.emulate_media(color_scheme=theme)
    visit.page.wait_for_selector("body[data-charts=drawn]")
    assert visit.requests == [] and visit.complaints == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert visit.page.evaluate(overflow) <= 0
    assert visit.page.locator(".sc-view svg, .sc-view canvas").count() == 4
    text = visit.page.evaluate("document.body.innerText") + visit.page.title()
    assert not set(OBEYED) & set(text) and "\\u202e" in text
    told = hover_all(visit.page, visit.page.locator("#predictability"))
    assert len(told) >= 8 and any("</script>" in tip for tip in told)
    assert not set(OBEYED) & set("".join(told))
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = visit.page.evaluate(
        "getComputedStyle(document.querySelector('.role-axis-title text')).fill"
    )
    dark = ("rgb(20, 24, 29)", "rgb(230, 237, 243)")
    assert (ground, ink) == dark if theme == "dark" else ground == "rgb(255, 255, 255)" != ink
    assert visit.page.evaluate("window.hacked") is None
    visit.close()


def test_a_report_runs_no_script_but_its_own(
    browser: Browser, hostile_report: Path, tmp_path: Path
) -> None:
    """Were a token not escaped, the page's rules would still stop it."""
    page = hostile_report.read_text(encoding="utf-8")
    (tmp_path / "bad.html").write_text(
        page.replace("<main>", "<main><script>window.hacked=1</script><img src=x onerror=hacked=2>")
    )
    visit = Visit(browser, tmp_path / "bad.html")
    visit.page.wait_for_selector("body[data-charts=drawn]")
    assert visit.page.evaluate("window.hacked") is None and visit.complaints
    visit.context.close()


def test_hostile_tokens_in_a_chart_of_a_page_stay_text(browser: Browser, gallery: Path) -> None:
    visit = Visit(browser, gallery / "curves.html")
    told = hover_all(visit.page, visit.chart("tokens"))
    assert len(told) >= 20 and any("<img" in tip for tip in told)
    shown = visit.chart("token-map").inner_text()
    for text in (*told, shown, visit.chart("token-heatmap").get_attribute("aria-label") or ""):
        assert not set(OBEYED) & set(text)
    assert visit.page.evaluate("window.hacked") is None
    visit.close()


def test_names_come_with_the_room(browser: Browser, gallery: Path) -> None:
    named = "b => [...b.querySelectorAll('.mark-text.role-mark text')].map(t => t.textContent)"
    seen = []
    for width in WIDTHS.values():
        visit = Visit(browser, gallery / "curves.html", width)
        seen.append(visit.chart("token-map").evaluate(named))
        visit.context.close()
    assert 0 < len(seen[0]) < len(seen[1]) and set(seen[0]) <= set(seen[1])
