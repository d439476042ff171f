"""The library reference: complete, documented, and with the chapters that use an entry."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from project import REPOSITORY, add_site, chapter, make_project

from staircase_lib import pages

sys.path.insert(0, str(REPOSITORY / "book" / "_extensions"))
import library_reference as reference

LIBRARY = REPOSITORY / "staircase_lib"
PAGES = REPOSITORY / "book" / "reference"
# Modules with public names that serve the making of this book alone.
OF_THE_BOOK = {"estimates", "printable", "registries", "settings", "standalone"}


def offered() -> list[str]:
    """Modules that say in ``__all__`` what they offer, by dotted name within the library."""
    names = []
    for path in sorted(LIBRARY.rglob("*.py")):
        if re.search(r"^__all__\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            dotted = ".".join(path.relative_to(LIBRARY).with_suffix("").parts)
            names.append(dotted.removesuffix(".__init__"))
    return names


def test_every_module_that_offers_something_is_on_one_page():
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    listed = re.findall(r"^\.\. library-module:: staircase_lib\.(\S+)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    missing = set(offered()) - set(listed) - OF_THE_BOOK
    assert not missing, f"name in book/reference/*.md: {sorted(missing)}"
    assert listed == re.findall(r"^## `(\S+)`$", text, re.MULTILINE), "headings are as the modules"


@pytest.mark.parametrize("name", [name for name in offered() if name not in OF_THE_BOOK])
def test_everything_public_is_documented(name):
    module = importlib.import_module(f"staircase_lib.{name}")
    assert reference.public_names(module)
    assert reference.undocumented(module) == []


MODULE = '''"""A module."""
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["second", "first", "cached", "SAID", "UNSAID", "Table", "Bare"]

#: How many.
SAID = 3
UNSAID = 4

def first():
    """It is said."""

def second():
    pass

@lru_cache
def cached():
    """It is said, too."""

@dataclass
class Table:
    """Said."""
    rows: int = 0

@dataclass
class Bare:
    rows: int = 0
'''


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "sample_of_reference.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sample_of_reference", raising=False)
    return importlib.import_module("sample_of_reference")


def test_what_is_not_documented_is_refused(sample):
    assert reference.undocumented(sample) == ["UNSAID", "second", "Bare"]
    order = ["SAID", "UNSAID", "first", "second", "cached", "Table", "Bare"]
    assert reference.public_names(sample) == order


CELLS = [
    "from staircase_lib import tasks, signatures as sig\nimport numpy as np",
    "%matplotlib inline",
    "task = tasks.addition(3)\nprint(sig.label_signature(task, order=0), np.tasks.parity)",
    "from staircase_lib.alignment import pca as axes\nfrom .tasks import parity",
    "import staircase_lib.models\nstaircase_lib.models.seeded([0])\nother.tasks.min_max()",
]


def test_used_names_are_imports_and_attributes_of_the_library_only():
    found = reference.used_names(CELLS)
    prefix = "staircase_lib."
    assert {name for name in found if name.count(".") == 2} == {
        *(prefix + "tasks.addition", prefix + "signatures.label_signature"),
        *(prefix + "alignment.pca", prefix + "models.seeded"),
    }


def test_pages_are_named_in_the_order_of_the_book_and_through_reexports(tmp_path):
    pages = {"b": "from staircase_lib import figures\nfigures.pca_scatter()", "a": CELLS[0]}
    for name, source in pages.items():
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    (tmp_path / "c.md").write_text("Prose about `tasks.addition`.\n")
    files = tuple((name, str(next(tmp_path.glob(f"{name}.*")))) for name in ("b", "a", "c"))
    users = reference.pages_of_names(files)
    assert users["staircase_lib.figures.pca_scatter"] == ["b"]
    assert users["staircase_lib.figures.geometry.pca_scatter"] == ["b"]
    assert users["staircase_lib.tasks"] == ["a"]
    assert "staircase_lib.tasks.addition" not in users


def test_chapters_of_this_book_are_found():
    pages = [f"book/{path.stem}" for path in sorted((REPOSITORY / "book").glob("0*.md"))]
    users = reference.pages_of_names(
        tuple((page, str(REPOSITORY / f"{page}.md")) for page in pages)
    )
    assert "book/04_feed_forward" in users["staircase_lib.training.train"]
    assert "book/02_related_work" not in users["staircase_lib.training.train"]


class Options:
    """The part of a Sphinx configuration that links to the source need."""

    def __init__(self, address: str) -> None:
        self.html_theme_options = {"repository_url": address, "repository_branch": "trunk"}


def test_source_is_linked_only_where_the_repository_has_an_address():
    for none in ("", reference.NO_REPOSITORY):
        assert reference.source_link(Options(none), "staircase_lib.tasks", "Task") is None  # pyright: ignore
    options = Options("https://example.org/them/book/")
    link = reference.source_link(options, "staircase_lib.figures", "pca_scatter")  # pyright: ignore
    start = "https://example.org/them/book/blob/trunk/staircase_lib/figures/geometry.py#L"
    assert link is not None and link.startswith(start)
    line = int(link.removeprefix(start).partition("-")[0])
    source = (LIBRARY / "figures" / "geometry.py").read_text(encoding="utf-8").splitlines()
    assert source[line - 1].startswith("def pca_scatter(")
    assert reference.source_link(options, "staircase_lib.claims", "CLAIM_MIME") is None  # pyright: ignore


def test_signatures_are_written_as_in_the_code():
    written = "(x: ~numpy.ndarray[tuple[~typing.Any, ...], ~numpy.dtype[~numpy.int64]] = <factory>)"
    assert reference.shorten(None, "", "", None, None, written, None) == (  # pyright: ignore
        "(x: NDArray[~numpy.int64] = ...)",
        None,
    )


def test_a_rendered_page_has_every_entry_its_chapters_and_no_warning(tmp_path):
    """A book of two pages, rendered as strictly as this one."""
    listed = "# Reference\n\n```{eval-rst}\n.. library-module:: staircase_lib.alignment\n```\n"
    root = make_project(tmp_path / "book", {"start": chapter("A start"), "reference": listed})
    add_site(root)
    cell = nbformat.v4.new_code_cell(
        "from staircase_lib import alignment as a\na.pca(x)", execution_count=1
    )
    title = nbformat.v4.new_markdown_cell("# A start")
    start = nbformat.v4.new_notebook(
        cells=[title, cell], metadata={"language_info": {"name": "python"}}
    )
    start.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    site = pages.render(root, "smoke", {root / "book" / "start.md": start}).parent
    text = (site / "book" / "reference.html").read_text(encoding="utf-8")
    module = importlib.import_module("staircase_lib.alignment")
    entries = re.findall(r'<dt class="sig[^>]* id="staircase_lib\.alignment\.(\w+)"', text)
    assert set(module.__all__) <= set(entries)
    used = re.findall(r'sc-used-in.*?href="([^"]+)".*?>(A start)<', text, re.DOTALL)
    assert used == [("start.html", "A start")], "pca alone is used"
    assert ">[source]<" not in text, "no address of a repository is set"
    assert 'class="math' in text
    assert "fit_probe" in (site / "searchindex.js").read_text(encoding="utf-8")


def test_a_public_name_without_a_docstring_fails_the_build(tmp_path, sample):
    listed = "# Start\n\n```{eval-rst}\n.. library-module:: sample_of_reference\n```\n"
    root = make_project(tmp_path / "book", {"start": listed})
    add_site(root)
    environment = {**os.environ, "PYTHONPATH": str(Path(sample.__file__ or "").parent)}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy"]
    (root / "book" / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(REPOSITORY / 'book' / '_extensions')!r})\n"
        "extensions = ['myst_parser', 'sphinx_external_toc', 'library_reference']\n"
        f"external_toc_path = {str(root / 'toc.yml')!r}\nhtml_theme_options = {{}}\n"
    )
    (root / "toc.yml").write_text("root: start\n")
    command += [str(root / "book"), str(root / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    for name in ("UNSAID", "second", "Bare"):
        assert f"sample_of_reference.{name}: public, but without a docstring" in done.stderr
    assert "first" not in done.stderr


def test_a_changed_docstring_makes_the_pages_anew(tmp_path):
    modules = {"__init__": "", "thing": '"""A thing."""\n'}
    root = make_project(tmp_path / "book", {"start": "# Start\n"}, modules)
    add_site(root)
    source = pages.write_source(root, "smoke", {})
    before = pages._site_inputs(root, source)
    assert pages._site_inputs(root, source) == before
    (root / "staircase_lib" / "thing.py").write_text('"""Another thing."""\n')
    assert pages._site_inputs(root, source) != before


def test_warnings_of_docstrings_are_told_with_their_entry(tmp_path):
    line = "/a/staircase_lib/tasks.py:docstring of staircase_lib.tasks.parity:12: WARNING: no x"
    told = pages.explain_warning(line, tmp_path, tmp_path)
    assert told == "docstring of staircase_lib.tasks.parity: no x"
