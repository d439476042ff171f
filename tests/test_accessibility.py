"""Every page of the built book by axe-core: no violation that is serious or critical."""

from __future__ import annotations

import tarfile
from typing import Any

import pytest
from playwright.sync_api import Browser
from test_browser import BOOK, BOOK_PAGES, Visit, browser  # noqa: F401, a fixture

from staircase_lib import registries

pytestmark = pytest.mark.browser

AXE = "axe-core@4.10.2"
AXE_SHA256 = "9ea2d2d6917da998122bdacfd3b473e31ead53f4b87146c716a12edf89158100"
READERS = {"desktop, light": (1440, "light"), "phone, dark": (360, "dark")}


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, as npm publishes it."""
    with tarfile.open(registries.archive("npm", AXE, AXE_SHA256)) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


def violations(visit: Any, axe: str) -> list[str]:
    """Serious and critical violations on the page, each with the first place where it is."""
    visit.page.wait_for_timeout(300)  # charts that are fitted to the width once more
    visit.page.evaluate(axe)
    found: list[dict[str, Any]] = visit.page.evaluate(
        "axe.run({ resultTypes: ['violations'], preload: false }).then((told) => told.violations)"
    )
    return [
        f"{rule['id']}, {len(rule['nodes'])} places: {rule['nodes'][0]['html'][:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", [name for name in BOOK_PAGES if name != "index.html"])
def test_pages_are_for_everyone(browser: Browser, axe: str, name: str, reader: str):  # noqa: F811
    """``index.html`` leads on to the first page at once."""
    width, scheme = READERS[reader]
    visit = Visit(browser, BOOK / name, width, color_scheme=scheme)
    visit.draw_all()
    assert violations(visit, axe) == []
    visit.close()


def test_a_violation_would_be_found(browser: Browser, axe: str, tmp_path):  # noqa: F811
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><html lang='en'><title>t</title><main><h1>Title</h1>"
        "<img src='data:,'><p style='color: #ccc; background: #fff'>pale</p>"
        "<div style='width: 9em; overflow: auto'><pre>" + "long " * 50 + "</pre></div></main>"
    )
    visit = Visit(browser, page)
    found = [line.partition(",")[0] for line in violations(visit, axe)]
    assert found == ["color-contrast", "image-alt", "scrollable-region-focusable"]
    visit.close()
