"""The built book: how long its chapters ran, what its pages weigh, how quickly a slider answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, row

from staircase_lib import book

SITE = ROOT / "_build" / "html"
PLACES = 24  # of a slider, from its first moment to its last
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

# Milliseconds from the input event until every chart of the page has its new picture, a step each.
STEPS = """async (places) => {
  await staircaseCharts.drawAll();
  const charts = [...staircaseCharts.drawn.values()];
  const found = [];
  for (const [box, chart] of staircaseCharts.drawn) {
    const input = box.querySelector(".sc-controls input[type=range]");
    if (!input) continue;
    const last = Number(input.max), times = [];
    for (let k = 0; k < places; k++) {
      input.value = Math.round((k * last) / (places - 1));
      const start = performance.now();
      input.dispatchEvent(new Event("input", { bubbles: true }));
      await Promise.all(charts.map(({ view }) => view.runAsync()));
      times.push(performance.now() - start);
    }
    found.push(times);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    if not (SITE / "index.html").is_file():
        pytest.skip("the book is not built: make book")
    return sorted((SITE / "book").rglob("*.html"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    if program is None:
        pytest.skip("Chromium is not here")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


def test_chapters(recorded: list[dict[str, Any]]) -> None:
    """Seconds of each chapter in the last build at `cpu`, two of them at a time."""
    rows = [found for found in book.status_rows(ROOT, "cpu") if "seconds" in found]
    if not rows:
        pytest.skip("no chapter has been executed at cpu: make book")
    for found in rows:
        recorded.append(
            row(
                "chapters",
                found["chapter"],
                [found["seconds"]],
                peak_memory_mb=found["memory_mb"],
                note=f"{found['date'][:10]}, {found['device']}",
            )
        )


def test_weight(recorded: list[dict[str, Any]], pages: list[Path]) -> None:
    megabytes = {page.stem: page.stat().st_size / 1e6 for page in pages}
    heaviest = max(megabytes, key=lambda name: megabytes[name])
    sizes = list(megabytes.values())
    note = f"{len(sizes)} pages, the heaviest {heaviest}; pictures and shared scripts apart"
    what = "HTML of a page, data of its charts included"
    recorded.append(row("pages", what, sizes, unit="MB", note=note))
    shared = [
        path.stat().st_size / 1e6
        for path in (SITE / "_static").rglob("*")
        if path.suffix in (".js", ".css") and path.is_file()
    ]
    recorded.append(row("pages", "scripts and styles of the whole site", [sum(shared)], unit="MB"))


def test_sliders(recorded: list[dict[str, Any]], pages: list[Path], browser: Any) -> None:
    """Every slider of every page, moved through its moments; all charts of the page react."""
    by_page: dict[str, list[float]] = {}
    for page in pages:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        tab = context.new_page()
        tab.goto(page.as_uri())
        if tab.locator(".sc-chart").count():
            times = [ms for slider in tab.evaluate(STEPS, PLACES) for ms in slider]
            if times:
                by_page[page.stem] = times
        context.close()
    assert by_page, "no page has a slider"
    every = [ms for times in by_page.values() for ms in times]
    slowest = max(by_page, key=lambda name: most(by_page[name]))
    for what, times in (
        ("a step of a slider, all pages", every),
        (f"a step of a slider, {slowest}", by_page[slowest]),
    ):
        note = f"until every chart of the page is drawn anew; 95 % within {most(times):.1f} ms"
        recorded.append(row("pages", what, times, unit="milliseconds", note=note))


def most(times: list[float]) -> float:
    """What 95 % of the times do not exceed."""
    return sorted(times)[int(0.95 * (len(times) - 1))]
