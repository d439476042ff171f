"""Built pages in Chromium: nothing is fetched from elsewhere, nothing fails, charts react.

Looked at are a gallery with every kind of chart, built here with the book's configuration, and
the pages of the built book where ``_build/html`` is there (``make book`` comes first in
``.ci/run``). Pages are opened from disk, as a reader without a server does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gallery_site
import pytest
from chart_gallery import STEPS
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, sync_playwright
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


@pytest.fixture(scope="session")
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
        if message.type == "error" or message.text.startswith("WARN"):  # Vega's own warnings
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
    assert visit.signal(other, "snapshot") == 3, "charts of a clock share the moment"
    assert visit.signal(curves, "now") == STEPS[3]
    assert other.locator("output").inner_text() == str(STEPS[3])
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
    visit.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    visit.page.emulate_media(media="print")
    boxes = visit.page.locator(".sc-chart")
    assert boxes.first.locator(".sc-picture").count() == 0  # drawn on a light ground: prints itself
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
    for k in range(marks.count()):
        marks.nth(k).hover(force=True)
        tip = page.locator("#vg-tooltip-element")
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
