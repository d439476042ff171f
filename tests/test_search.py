"""The book's search, over pages opened from disk and over http, in Chromium."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser
from test_accessibility import axe, violations  # noqa: F401, a fixture
from test_browser import BOOK, Visit, browser  # noqa: F401, a fixture

pytestmark = pytest.mark.browser

SEARCH = BOOK / "search.html"
#: What a reader types, and where one of the first results has to lead.
EXPECTED = {
    "alignment": "glossary.html#term-alignment",
    "context staircase": "glossary.html#term-context-staircase",
    "PPMI": "glossary.html#term-PPMI",
    "gamma": "glossary.html#term-gamma",
    "initialization rate": "notation.html#",
    "residual signature": "notation.html#",
    "label_signature": "reference/",
    "4.1": "04_feed_forward.html#claim-4-1",
    "claim 4.10": "04_feed_forward.html#claim-4-10",
    "X.2": "04d_gradient_flow.html#claim-X-2",
    "Poisson exponential": "04_feed_forward.html",
    "summing out a slot steps down": "03_preliminary.html",
}
FIRST = 3


def results(visit: Visit, query: str) -> list[str]:
    """Where the results lead, in order, for a query typed into the page's own field."""
    field = visit.page.locator("main input[name=q], .bd-search-container input[name=q]").first
    field.fill(query)
    field.press("Enter")
    visit.page.wait_for_function(
        "document.querySelector('#search-results h2')?.innerText === 'Search Results'",
        timeout=20_000,
    )
    links = visit.page.locator("#search-results ul.search li > a")
    return links.evaluate_all("links => links.map(link => link.getAttribute('href'))")


@pytest.mark.parametrize("query", EXPECTED)
def test_letters_terms_and_claims_are_found_from_disk(browser: Browser, query: str):  # noqa: F811
    visit = Visit(browser, SEARCH)
    found = results(visit, query)
    assert any(EXPECTED[query] in link for link in found[:FIRST]), found[:6]
    assert visit.requests == []
    visit.close()


def test_what_is_nowhere_is_not_found(browser: Browser):  # noqa: F811
    visit = Visit(browser, SEARCH)
    assert results(visit, "quokka") == []
    assert "did not match" in visit.page.locator("#search-results .search-summary").inner_text()
    visit.close()


@pytest.mark.parametrize(
    ("query", "named"), [("4.1", "› claim 4.1"), ("alignment", "› term alignment")]
)
def test_a_result_says_where_it_leads_and_leads_there(
    browser: Browser,  # noqa: F811
    query: str,
    named: str,
):
    visit = Visit(browser, SEARCH)
    results(visit, query)
    first = visit.page.locator("#search-results ul.search li > a").first
    assert first.inner_text().endswith(named)
    first.click()
    visit.page.wait_for_load_state()
    anchor = visit.page.evaluate("location.hash.slice(1)")
    assert visit.page.evaluate("id => document.getElementById(id) !== null", anchor)
    visit.close()


def test_the_dialog_of_a_page_searches_by_keyboard(browser: Browser):  # noqa: F811
    visit = Visit(browser, BOOK / "book" / "map.html")
    visit.page.keyboard.press("Control+k")
    visit.page.keyboard.type("claim 4.4")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/search.html?*")
    link = visit.page.locator("#search-results ul.search li > a").first
    assert link.get_attribute("href") == "book/04_feed_forward.html#claim-4-4"
    visit.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_results_fit_and_are_for_everyone(browser: Browser, axe: str, width: int, scheme: str):  # noqa: F811
    visit = Visit(browser, SEARCH, width, color_scheme=scheme)
    assert len(results(visit, "signature")) > 5
    assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(visit, axe) == []
    visit.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The book served by http on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(BOOK))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_over_http_results_come_with_an_excerpt(browser: Browser, address: str):  # noqa: F811
    context = browser.new_context()
    context.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # asked by Chromium
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{address}/search.html?q=claim+4.1")
    excerpt = page.locator("#search-results ul.search li p.context").first
    assert "Addition" in excerpt.inner_text(timeout=20_000)
    assert complaints == []
    context.close()
