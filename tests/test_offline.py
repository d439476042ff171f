"""The site without its author's server: in a folder of another site, and unpacked from the zip."""

from __future__ import annotations

import functools
import http.server
import os
import re
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route
from project import command
from test_browser import (  # noqa: F401, two fixtures
    BOOK,
    BOOK_PAGES,
    Visit,
    browser,
    gallery,
    look,
)

from staircase_lib import site_archive

pytestmark = pytest.mark.browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: F811
    """The gallery as a folder of a site that has nothing else."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "some").mkdir()
    (folder / "some" / "path").symlink_to(gallery, target_is_directory=True)
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/some/path/"
    server.shutdown()


class Address(str):
    """Where a page is served, in the place of a file."""

    def as_uri(self) -> str:
        return str(self)


class Served(Visit):
    """A visit that may ask for what is inside the book's own folder, and for nothing else."""

    def __init__(self, browser: Browser, folder: str, page: str) -> None:  # noqa: F811
        self.folder = folder
        super().__init__(browser, Address(folder + page))  # pyright: ignore[reportArgumentType]

    def _only_from_disk(self, route: Route) -> None:
        if route.request.url.startswith((self.folder, "data:", "blob:")):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


@pytest.mark.parametrize("page", ["index.html", "charts.html"])
def test_pages_work_in_a_folder_of_another_site(browser: Browser, address: str, page: str):  # noqa: F811
    visit = Served(browser, address, page)
    visit.page.wait_for_function("window.MathJax?.startup?.promise?.then(() => true)")
    visit.draw_all()
    assert visit.page.locator("mjx-container").count()
    if page == "charts.html":
        assert visit.page.locator(".sc-chart[data-state=drawn]").count() >= 5
    visit.check()
    visit.context.close()


def test_search_and_links_stay_in_the_folder(browser: Browser, address: str):  # noqa: F811
    visit = Served(browser, address, "search.html?q=signature")
    found = visit.page.locator("#search-results li a").first
    found.wait_for()
    found.click()
    visit.page.wait_for_selector(".bd-article h1")
    assert visit.page.url.startswith(address)
    links = visit.page.locator(".bd-sidebar-primary a.reference.internal")
    assert links.count()
    for k in range(links.count()):
        assert links.nth(k).evaluate("a => a.href").startswith(address)
    assert visit.requests == []
    visit.close()


def test_a_request_beside_the_folder_would_be_noticed(browser: Browser, address: str):  # noqa: F811
    visit = Served(browser, address, "index.html")
    visit.page.evaluate("fetch('/elsewhere.js').catch(() => null)")
    assert visit.requests == [address.replace("some/path/", "elsewhere.js")]
    visit.context.close()


@pytest.mark.parametrize("name", BOOK_PAGES)
def test_no_page_of_the_book_has_an_address_from_the_root(name: str):
    text = (BOOK / name).read_text(encoding="utf-8")
    assert re.findall(r"""\b(?:href|src|action)=["']/[^"']*""", text) == []


@pytest.mark.parametrize("name", BOOK_PAGES)
def test_an_address_within_a_page_of_the_book_is_one_place(name: str):
    text = re.sub(r"<script.*?</script>", "", (BOOK / name).read_text(encoding="utf-8"), flags=re.S)
    ids = Counter(re.findall(r'<[^>]* id="([^"]*)"', text))
    assert [one for one, times in ids.items() if times > 1] == []


@pytest.fixture(scope="module")
def project(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A project whose built site is the gallery."""
    root = tmp_path_factory.mktemp("project")
    (root / "_build").mkdir()
    (root / "_build" / "html").symlink_to(gallery, target_is_directory=True)
    for name, text in {
        "_toc.yml": "root: index\n",
        "_config.yml": "",
        "_build/site.json": "{}",
    }.items():
        (root / name).write_text(text)
    return root


def test_the_archive_is_the_whole_site_and_the_same_each_time(project: Path, tmp_path: Path):
    for name in ("one.zip", "two.zip"):
        size = site_archive.write_zip(project, tmp_path / name)
        assert size == (tmp_path / name).stat().st_size
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    site = project / "_build" / "html"
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
        assert {name.removeprefix("context-staircase/") for name in names} == files | {"README.txt"}
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert names[0] == "context-staircase/README.txt" and names[1:] == sorted(names[1:])
        assert b"open index.html" in archive.read(names[0])


def test_the_unpacked_archive_opens_from_disk(browser: Browser, project: Path, tmp_path: Path):  # noqa: F811
    told = command(project, "zip", "--output", str(tmp_path / "book.zip"), check=True).stdout
    assert str(tmp_path / "book.zip") in told and "MB" in told
    with zipfile.ZipFile(tmp_path / "book.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    folder = tmp_path / "unpacked" / "context-staircase"
    for page in ("index.html", "curves.html"):
        look(browser, folder / page, 1440)


@pytest.mark.parametrize("name, kind", [("zip", "zip file"), ("pdf", "PDF")])
def test_what_is_no_such_file_is_not_replaced(project: Path, tmp_path: Path, name: str, kind: str):
    (tmp_path / "notes.txt").write_text("pk, a note of mine\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    done = command(project, name, "--output", str(tmp_path / "notes.txt"))
    assert done.returncode == 2 and f"is there and is no {kind}" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "pk, a note of mine\n"
    for place, what in (("folder", "a folder"), ("pipe", "no ordinary file"), ("notes.txt/x", "")):
        done = command(project, name, "--output", str(tmp_path / place))
        assert done.returncode == 9 and "cannot write there" in done.stderr, done.stderr
        assert what in done.stderr
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "folder").is_dir()


def test_an_archive_is_replaced_behind_a_link(project: Path, tmp_path: Path):
    (tmp_path / "link.zip").symlink_to(tmp_path / "book.zip")
    for _ in range(2):
        command(project, "zip", "--output", str(tmp_path / "link.zip"), check=True)
    assert (tmp_path / "link.zip").is_symlink() and zipfile.is_zipfile(tmp_path / "book.zip")


def test_an_archive_of_nothing_is_refused(tmp_path: Path):
    (tmp_path / "_toc.yml").write_text("root: index\n")
    done = command(tmp_path, "zip")
    assert done.returncode == 8 and "run `make book` first" in done.stderr
    assert not (tmp_path / "_build").exists()
