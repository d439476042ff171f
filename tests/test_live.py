"""Live code for real: the server of ``make live``, a page of it in Chromium, and its faults."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import ipywidgets
import nbformat
import psutil
import pytest
from ipywidgets.embed import dependency_state, embed_data
from playwright.sync_api import Browser, Page, expect
from project import REPOSITORY, add_site, chapter, code, command, make_project
from test_accessibility import axe, violations  # noqa: F401, a fixture
from test_browser import browser  # noqa: F401, a fixture

from staircase_lib import pages
from staircase_lib.chapters import read_chapters

pytestmark = pytest.mark.browser

PATIENCE = 90_000  # milliseconds: machines that test are busy
SPEC = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "description": "three bars",
    "data": {"values": [{"x": 1, "y": 2}, {"x": 2, "y": 4}, {"x": 3, "y": 1}]},
    "mark": "bar",
    "encoding": {
        "x": {"field": "x", "type": "ordinal"},
        "y": {"field": "y", "type": "quantitative"},
    },
}
PAGE = chapter(
    "Live",
    code("size = 10", "parameters"),
    code("squares = [k * k for k in range(size)]", "hide-input"),
    code("print(sum(squares), 'from', __import__('pathlib').Path.cwd().name)"),
    code("import sympy as sp\nx = sp.Symbol('x')\nsp.Integral(x**2, x)"),
    code(
        "from IPython.display import HTML, Markdown, display\n"
        f"display({{'application/vnd.vegalite.v5+json': {json.dumps(SPEC)}}}, raw=True)\n"
        "display(Markdown('**bold** and $x^2$\\n\\n$$\\ny = x\\n$$ (eq-y)'))\n"
        "display(HTML('<table class=\"dataframe\"><tr><td>cell</td></tr></table>'))",
        "hide-input",
    ),
    code(
        "import ipywidgets as widgets\n"
        "slider, told = widgets.IntSlider(2, 0, 9), widgets.Label('2 squared is 4')\n"
        "slider.observe(lambda c: setattr(told, 'value', "
        "f'{c.new} squared is {c.new**2}'), 'value')\n"
        "widgets.VBox([slider, told])"
    ),
    extra="staircase:\n  profiles:\n    smoke: {size: 3}\n",
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a built site: a page with code and, on it, one recorded output."""
    sources = {"page": PAGE, "plain": "# Plain\n", "saved": chapter("Saved", code("slider"))}
    root = make_project(tmp_path_factory.mktemp("live"), sources)
    add_site(root)
    chosen, saved = (c for c in read_chapters(root) if c.code)
    for notebook in (chosen.notebook, saved.notebook):
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    save_widget(saved.notebook)
    cells = [cell for cell in chosen.notebook.cells if cell.cell_type == "code"]
    cells[2].outputs = [nbformat.v4.new_output("stream", name="stdout", text="recorded\n")]
    row = {"chapter": "page", "stale": [], "profile": "cpu", "seconds": 12.0, "memory_mb": 1}
    row |= {"commit": "abc", "date": "2026-01-01T00:00", "versions": {}, "device": "CPU"}
    executed = {chosen.path: chosen.notebook, saved.path: saved.notebook}
    pages.render(root, "cpu", executed, [row])
    return root


def save_widget(notebook: Any) -> None:
    """Give the last cell of a notebook a slider as it is saved with its state."""
    slider = ipywidgets.IntSlider(7, 0, 9, description="kept")
    data = embed_data(views=[slider], state=dependency_state([slider]))  # not that of other tests
    notebook.metadata["widgets"] = {
        "application/vnd.jupyter.widget-state+json": data["manager_state"]
    }
    shown = {"application/vnd.jupyter.widget-view+json": data["view_specs"][0]}
    notebook.cells[-1].outputs = [
        nbformat.v4.new_output("display_data", data=shown | {"text/plain": "IntSlider(value=7)"})
    ]


def answer(request: Request) -> int:
    """Status with which a server answers."""
    try:
        with urlopen(request) as reply:
            return reply.status
    except HTTPError as error:
        return error.code


class Server:
    """``python -m staircase_lib live`` in a project."""

    def __init__(self, root: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "staircase_lib", "live", "--port", "0"],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        told = ""
        while "#key=" not in told:
            line = self.process.stdout.readline()
            assert line, f"the server ended: {told}"
            told += line
        found = re.search(r"(http://127\.0\.0\.1:\d+)(/site/\S+)#key=(\S+)", told)
        assert found is not None, told
        self.origin, self.page, self.key = found.groups()
        self.address = found[0]

    def kernels(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def status(self, **headers: str) -> int:
        """Answer to a request for the state of the server."""
        return answer(Request(f"{self.origin}/api/status", headers=headers))

    def end(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(30)


@pytest.fixture(scope="module")
def server(book: Path) -> Iterator[Server]:
    running = Server(book)
    yield running
    running.end()


def markup(page: Page) -> str:
    """The article, but for what follows from the room that there is."""
    return re.sub(r' tabindex="-?\d"', "", page.locator(".bd-article").inner_html())


class LivePage:
    """A page in a context of its own, with what it asks for and complains of."""

    def __init__(self, browser: Browser, address: str) -> None:  # noqa: F811
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)
        self.status = self.page.locator(".sc-live-status")

    def start(self) -> LivePage:
        self.page.get_by_role("button", name="Live code").click()
        expect(self.status).to_contain_text("Ready", timeout=PATIENCE)
        return self

    def cell(self, k: int) -> Any:
        return self.page.locator(".cell:not(.sc-live-small)").nth(k)

    def write(self, k: int, text: str) -> None:
        """Replace what stands in a cell, by the keyboard."""
        folded = self.cell(k).locator("details:not([open]) > summary")
        if folded.count():
            folded.click()
        self.cell(k).locator(".CodeMirror").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def run(self, k: int, shows: str | re.Pattern[str] = re.compile("^ran in ")) -> None:
        self.cell(k).get_by_role("button", name="Run").click()
        expect(self.cell(k).locator(".sc-live-told")).to_have_text(shows, timeout=PATIENCE)

    def output(self, k: int) -> Any:
        return self.cell(k).locator(".sc-live-output")


def test_a_page_runs_and_goes_back(browser: Browser, server: Server) -> None:  # noqa: F811
    live = LivePage(browser, server.address)
    page = live.page
    assert "key" not in page.url and server.key not in page.content()
    recorded = page.get_by_text("recorded", exact=True)
    before = markup(page)
    live.start()
    kernels = server.kernels()
    expect(recorded).to_be_visible()  # until its cell has run
    live.run(2)  # parameters and the hidden cell above it come first
    expect(live.output(2)).to_contain_text("285 from book")
    expect(recorded).to_be_hidden()

    live.write(2, "squares.append(1000); print(sum(squares))")
    page.keyboard.press("Shift+Enter")
    expect(live.output(2)).to_contain_text("1285", timeout=PATIENCE)
    live.run(2)
    expect(live.output(2)).to_contain_text("2285")  # one state for all cells

    live.write(0, "size = 4")
    live.run(2)  # the parameters have changed, so they run again; the hidden cell has not
    expect(live.output(2)).to_contain_text("3285")

    live.run(3)
    expect(live.output(3).locator("mjx-container mjx-mi").first).to_be_visible()
    live.run(4)
    expect(live.output(4).locator(".sc-chart[data-state=drawn] svg")).to_be_visible()
    expect(live.output(4).locator("strong")).to_have_text("bold")
    expect(live.output(4).locator("mjx-container")).to_have_count(2)
    expect(live.output(4).locator("table.dataframe td")).to_have_text("cell")
    live.run(5)
    live.output(5).get_by_role("slider").press("ArrowRight")
    expect(live.output(5).get_by_text("3 squared is 9")).to_be_visible(timeout=PATIENCE)

    page.get_by_role("button", name="Back to the page").click()
    expect(recorded).to_be_visible()
    assert markup(page) == before
    expect(page.get_by_role("button", name="Live code")).to_be_focused()
    elsewhere = [url for url in live.requests if not url.startswith((server.origin, "data:"))]
    assert elsewhere == [] and live.complaints == []
    assert psutil.wait_procs(kernels, timeout=30)[1] == []
    live.context.close()


def test_errors_restart_and_small_sizes(
    browser: Browser,  # noqa: F811
    server: Server,
    axe: str,  # noqa: F811
) -> None:
    live = LivePage(browser, server.address).start()
    expect(live.status).to_contain_text("12 s")
    live.write(1, "squares = 1 / 0")
    live.run(2, "")  # never got its turn
    expect(live.cell(1).locator(".sc-live-told")).to_contain_text("failed")
    expect(live.output(1)).to_contain_text("ZeroDivisionError")
    live.write(1, "squares = [size]")
    live.page.get_by_label("small sizes").check()
    live.run(2)
    expect(live.output(2)).to_contain_text("3 from")
    live.page.get_by_label("small sizes").uncheck()
    live.run(2)
    expect(live.output(2)).to_contain_text("10 from")
    live.write(2, "while True: pass")
    live.cell(2).get_by_role("button", name="Run").click()
    expect(live.cell(2).locator(".sc-live-told")).to_have_text("running…")
    live.page.get_by_role("button", name="Stop").click()
    expect(live.output(2)).to_contain_text("KeyboardInterrupt", timeout=PATIENCE)
    live.page.get_by_role("button", name="Restart").click()
    expect(live.status).to_contain_text("A new kernel", timeout=PATIENCE)
    live.write(2, "print('squares' in globals())")
    live.run(2)
    expect(live.output(2)).to_contain_text("True")  # what it needs has run again
    live.page.set_viewport_size({"width": 360, "height": 800})
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert live.page.evaluate(wide) <= 0
    assert violations(live, axe) == []
    live.context.close()


@pytest.mark.fault("live code: the kernel is killed", 0)
def test_a_killed_kernel_is_told_and_replaced(browser: Browser, server: Server) -> None:  # noqa: F811
    live = LivePage(browser, server.address).start()
    live.write(2, "import os; os.kill(os.getpid(), 9)")
    live.run(2, "ended before it was done")
    expect(live.status).to_contain_text("new one has started", timeout=PATIENCE)
    live.write(2, "print(len(squares))")
    live.run(2)
    expect(live.output(2)).to_contain_text("10")
    live.context.close()


@pytest.mark.fault("live code: the key is wrong", 0)
def test_without_the_right_key_nothing_runs(browser: Browser, server: Server) -> None:  # noqa: F811
    assert server.status(Authorization=f"token {server.key}") == 200
    assert server.status(Authorization="token wrong") == server.status() == 403
    for address, told in (
        (f"{server.origin}{server.page}#key=wrong", "does not accept this tab's key"),
        (f"{server.origin}{server.page}", "has no key"),
    ):
        live = LivePage(browser, address)
        live.page.get_by_role("button", name="Live code").click()
        expect(live.status).to_contain_text(told, timeout=PATIENCE)
        assert live.page.locator(".CodeMirror").count() == 0
        expect(live.page.get_by_text("recorded", exact=True)).to_be_visible()
        live.page.get_by_role("button", name="Back to the page").click()
        expect(live.status).to_have_count(0)
        live.context.close()


@pytest.mark.fault("live code: the server ends", 0)
def test_ctrl_c_ends_server_and_kernels_and_the_page_tells(
    browser: Browser,  # noqa: F811
    book: Path,
) -> None:
    server = Server(book)
    live = LivePage(browser, server.address).start()
    live.run(2)
    live.write(2, "import time; time.sleep(300)")
    live.cell(2).get_by_role("button", name="Run").click()
    kernels = server.kernels()
    assert kernels
    server.end(signal.SIGINT)
    assert server.process.returncode == 0
    _, alive = psutil.wait_procs(kernels, timeout=20)
    assert alive == []
    expect(live.status).to_contain_text("The server has ended", timeout=PATIENCE)
    expect(live.cell(2).locator(".CodeMirror")).to_contain_text("sleep")  # what was written stays
    live.page.get_by_role("button", name="Back to the page").click()
    expect(live.page.get_by_text("recorded", exact=True)).to_be_visible()
    live.page.get_by_role("button", name="Live code").click()
    expect(live.status).to_contain_text("The server has ended", timeout=PATIENCE)
    live.context.close()


def test_only_this_machine_and_no_other_site_is_let_in(server: Server) -> None:
    listening = [
        connection.laddr.ip
        for process in (psutil.Process(server.process.pid), *server.kernels())
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}
    headers = {"Authorization": f"token {server.key}"}
    for origin in ("null", "https://elsewhere.example"):  # what browsers ask before they send a key
        asked = {"Origin": origin, "Access-Control-Request-Headers": "authorization"}
        request = Request(f"{server.origin}/api/status", headers=asked, method="OPTIONS")
        with urlopen(request) as reply:
            assert reply.headers["Access-Control-Allow-Origin"] is None
    rebound = Request(
        f"{server.origin}/api/status", headers=headers | {"Host": "elsewhere.example"}
    )
    with pytest.raises(HTTPError, match="403"):
        urlopen(rebound)
    with urlopen(f"{server.origin}/site/_static/live_server.js") as reply:
        assert server.key not in reply.read().decode()
    for name, status in (("elsewhere.example", 403), ("localhost", 200)):
        asked = Request(server.origin + server.page, headers={"Host": name})
        assert answer(asked) == status
    for path, status in (("..%2f..%2f_toc.yml", 403), ("%2fetc%2fpasswd", 403), ("book/%00", 404)):
        assert answer(Request(f"{server.origin}/site/{path}")) == status


def test_published_pages_have_no_button(browser: Browser, book: Path, server: Server) -> None:  # noqa: F811
    html = book / "_build" / "html"
    for address in (
        (html / "book" / "page.html").as_uri(),
        f"{server.origin}/site/book/plain.html#key={server.key}",  # no code on it
    ):
        live = LivePage(browser, address)
        assert live.page.get_by_role("button", name="Live code").count() == 0
        assert not [url for url in live.requests if "vendor/thebe" in url] and live.complaints == []
        live.context.close()
    assert (html / "_static" / "live_server.js").read_text().startswith("/*")


def test_saved_widgets_are_shown_without_a_network(browser: Browser, book: Path) -> None:  # noqa: F811
    html = book / "_build" / "html"
    live = LivePage(browser, (html / "book" / "saved.html").as_uri())
    expect(live.page.get_by_role("slider")).to_have_attribute(
        "aria-valuenow", re.compile("^7"), timeout=PATIENCE
    )
    expect(live.page.get_by_text("kept")).to_be_visible()
    elsewhere = [url for url in live.requests if not url.startswith(("file:", "data:"))]
    assert elsewhere == [] and live.complaints == []
    live.context.close()
    others = (html / "book" / "page.html").read_text(encoding="utf-8")
    assert "embed-amd" not in others and "mybinder.org/v2" not in others


@pytest.mark.parametrize("port", ["-1", "65536", "web"])
def test_what_is_no_port_is_refused(tmp_path: Path, port: str) -> None:
    done = command(make_project(tmp_path, {"page": PAGE}), "live", f"--port={port}")
    assert done.returncode == 2 and "--port" in done.stderr.splitlines()[-1]


@pytest.mark.fault("live code: the book is not built", 8)
def test_without_pages_it_says_how_to_build_them(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", {"page": PAGE})
    done = command(root, "live")
    assert done.returncode == 8 and "make book PROFILE=smoke" in done.stderr
    assert (REPOSITORY / "Makefile").read_text().count("staircase_lib live") == 1
