"""Notebooks for Binder and Colab, and the buttons that lead to them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import papermill
import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from project import REPOSITORY, add_site, chapter, code, command, make_project

from staircase_lib import pages, published
from staircase_lib.chapters import BookError, ParameterError, read_chapters

ADDRESS = "https://github.com/someone/context-staircase"
PAGE = chapter("Page", code("size = 2  # ours: small", "parameters"), code("print(size + 1)"))
LINK = re.compile(r'href="(https://(?:mybinder|colab)[^"]+)"')


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose repository has an address, with its site."""
    root = make_project(tmp_path_factory.mktemp("published"), {"page": PAGE})
    add_site(root)
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    config["repository"]["url"] = ADDRESS  # the one setting
    (root / "_config.yml").unlink()
    (root / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (chosen,) = read_chapters(root)
    chosen.notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    pages.render(root, "cpu", {chosen.path: chosen.notebook})
    return root


def fetch_cell(url: str = ADDRESS) -> str:
    notebook = published.with_fetch_cell(nbformat.v4.new_notebook(), url, "notebooks")
    return notebook.cells[0].source


class Shell:
    """Records what a cell asks of IPython."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def system(self, line: str) -> None:
        self.asked.append(line)

    def run_line_magic(self, name: str, line: str) -> None:
        self.asked.append(f"%{name} {line}")


def run(source: str) -> list[str]:
    shell = Shell()
    program = TransformerManager().transform_cell(source)
    exec(compile(ast.parse(program), "cell", "exec"), {"get_ipython": lambda: shell})
    return shell.asked


def test_buttons_open_the_notebook_that_is_written(project: Path, tmp_path: Path) -> None:
    page = (project / "_build/html/book/page.html").read_text(encoding="utf-8")
    binder, colab = LINK.findall(page)
    place = "someone/context-staircase"
    assert (
        binder == f"https://mybinder.org/v2/gh/{place}/notebooks?urlpath=lab/tree/book/page.ipynb"
    )
    assert colab == (
        f"https://colab.research.google.com/github/{place}/blob/notebooks/book/page.ipynb"
    )
    assert f'href="{ADDRESS}"' in page and f"{ADDRESS}/issues" in page
    done = command(project, "notebooks", "--output", str(tmp_path / "book"))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "book").iterdir()] == ["page.ipynb"]


def test_the_branch_of_the_buttons_is_the_one_that_the_workflow_writes() -> None:
    workflow = (REPOSITORY / ".github/workflows/book.yml").read_text(encoding="utf-8")
    branch = published.repository(REPOSITORY)[1]
    assert f"git push --force origin HEAD:{branch}\n" in workflow
    assert "-m staircase_lib notebooks --output book" in workflow


def test_without_an_address_there_are_no_buttons() -> None:
    """Neither with the empty setting nor with what Jupyter Book fills in; nor without notebooks."""
    program = (
        "import sys; sys.path.insert(0, 'book/_extensions'); import launch_buttons as l\n"
        "from types import SimpleNamespace as N\n"
        "for url in ('', None, l.NO_REPOSITORY, 'https://github.com/a/b'):\n"
        "    options = {'repository_url': url, 'launch_buttons': {'colab_url': 'x'}}\n"
        "    l.choose_buttons(N(srcdir='/nowhere'), N(html_theme_options=options))\n"
        "    print(options['use_repository_button'], options['launch_buttons'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["False {}"] * 3 + ["True {}"], done.stderr


def test_addresses_are_put_right_or_refused() -> None:
    program = (
        "import sys; sys.path.insert(0, 'book/_extensions'); import launch_buttons as l\n"
        "from types import SimpleNamespace as N\n"
        "for url in sys.argv[1:]:\n"
        "    options = {'repository_url': url}\n"
        "    try:\n"
        "        l.choose_buttons(N(srcdir='/nowhere'), N(html_theme_options=options))\n"
        "        print(options['repository_url'], options['use_issues_button'])\n"
        "    except l.ConfigError as error: print('expected' in str(error))\n"
    )
    good = [f"{ADDRESS}.git", f"{ADDRESS}/", "https://git.example.org/a/b"]
    bad = ["javascript:alert(1)", "https://github.com/a", 'https://a.b/c/d"><script>', " "]
    done = subprocess.run(
        [sys.executable, "-c", program, *good, *bad], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        *[f"{ADDRESS} True"] * 2,
        "https://git.example.org/a/b False",
        *["True"] * len(bad),
    ], done.stderr


def test_the_fetch_cell_does_nothing_here_and_fetches_in_colab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(fetch_cell()) == []
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    for url in (ADDRESS, f"{ADDRESS}.git", f"{ADDRESS}/"):
        there, clone, inside, install = run(fetch_cell(url))
        assert (there, inside) == ("%cd -q /content", "%cd -q context-staircase/book")
        assert clone.endswith(f"--branch notebooks {ADDRESS}")
        extras = re.search(r'"\.\.\[(.+?)\]"', install)
        assert extras is not None
        declared = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
        for name in extras[1].split(","):
            assert re.search(rf"^{name} = \[", declared, re.MULTILINE), name


@pytest.mark.parametrize(
    "url",
    [
        "",
        "github.com/a/b",
        "https://github.com/a",
        "https://a.b/c/d; rm -rf ~",
        "file:///a/b",
        "https://a.b/c/..",
        "https://a.b/c/-d",
        "https://a.b/c/d\n",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ParameterError, match="https://HOST/OWNER/NAME"):
        fetch_cell(url)


def test_papermill_runs_a_published_notebook_with_its_parameters(
    project: Path, tmp_path: Path
) -> None:
    (written,) = published.write_notebooks(project, "cpu", tmp_path, ADDRESS, "notebooks")
    with contextlib.redirect_stderr(io.StringIO()):
        done: Any = papermill.execute_notebook(
            written, tmp_path / "out.ipynb", {"size": 41}, progress_bar=False, kernel_name="python3"
        )
    assert done.cells[-1].outputs[0].text == "42\n"
    assert done.cells[0].id == "fetch" and not done.cells[0].outputs


@pytest.mark.parametrize("damage", ["", "no notebook", "[1]", '{"nbformat": 4}'])
def test_a_damaged_notebook_is_told_before_any_is_written(tmp_path: Path, damage: str) -> None:
    source = tmp_path / "_build/cpu/source/book"
    source.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(), source / "a.ipynb")
    (source / "b.ipynb").write_text(damage)
    with pytest.raises(BookError, match="b.ipynb is damaged.*make book") as told:
        published.write_notebooks(tmp_path, "cpu", tmp_path / "out", ADDRESS, "notebooks")
    assert told.value.code == 8 and not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_told(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command(project, "notebooks", "--output", str(tmp_path / "file" / "book"))
    assert done.returncode == 9 and "cannot write there" in done.stderr, done.stderr


def test_without_a_build_it_says_what_makes_notebooks(tmp_path: Path) -> None:
    with pytest.raises(BookError, match="make book PROFILE=smoke"):
        published.write_notebooks(tmp_path, "smoke", tmp_path, ADDRESS, "notebooks")


def test_the_binder_folder_names_what_is_there() -> None:
    binder = REPOSITORY / "binder"
    lines = (binder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (listed,) = (line.split()[1] for line in lines if line.startswith("-r "))
    assert (binder / listed).resolve() == REPOSITORY / "requirements.txt"
    assert any("whl/cpu" in line for line in lines)  # no CUDA libraries in the image
    assert re.fullmatch(r"python-3\.1[123]\n", (binder / "runtime.txt").read_text())
    after = binder / "postBuild"
    assert after.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(after)]).returncode == 0
