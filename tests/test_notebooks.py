"""Chapters as notebooks: parameters checked beforehand, freshness, and every way to fail."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from project import chapter, code, command, make_project

from staircase_lib import book, chapters, claims, freshness
from staircase_lib.chapters import BookError, ParameterError

PROFILES = "staircase:\n  profiles:\n    smoke: {seeds: 2}\n  reads: [results/table.json]\n"
PARAMETERS = code(
    'seeds = 10\nrate: float = 0.5\ngammas = [1.0, 1.3]\nname = "gelu"\nexact = True', "parameters"
)
WORK = code("from staircase_lib import training\nvalue = training.train(seeds)  # trains\nvalue")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One chapter on a library where training imports models, and tasks stands apart."""
    return make_project(
        tmp_path,
        {"04_feed_forward": chapter("Feed-forward", PARAMETERS, WORK, extra=PROFILES)},
        {
            "__init__": "",
            "training": 'def train(seeds):\n    """Doc."""\n    from .models import size\n\n'
            "    return seeds * size  # comment\n",
            "models": "size = 3\n",
            "tasks": "unrelated = 1\n",
        },
    )


def only_chapter(root: Path) -> chapters.Chapter:
    return chapters.read_chapters(root)[0]


def parts(root: Path, profile: str = "cpu") -> dict:
    read = only_chapter(root)
    return book.chapter_parts(root, read, chapters.resolve_parameters(read, profile))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


# --- Parameters ----------------------------------------------------------------------------------


def test_profile_and_overrides_replace_defaults(project):
    read = only_chapter(project)
    assert chapters.resolve_parameters(read, "cpu") == read.parameters
    values = chapters.resolve_parameters(read, "smoke", {"rate": 1, "gammas": [2]})
    assert values == {"seeds": 2, "rate": 1.0, "gammas": [2.0], "name": "gelu", "exact": True}
    assert isinstance(values["rate"], float) and isinstance(values["gammas"][0], float)


def test_unknown_parameter_names_the_nearest_and_all_others(project):
    with pytest.raises(ParameterError) as error:
        chapters.resolve_parameters(only_chapter(project), "cpu", {"seed": 3})
    assert "Did you mean seeds?" in str(error.value)
    assert "rate (float, default 0.5)" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seeds", 2.5),
        ("seeds", True),
        ("seeds", "3"),
        ("rate", "1e-3"),
        ("rate", None),
        ("gammas", 1.0),
        ("gammas", [1.0, "x"]),
        ("gammas", [1.0, float("inf")]),
        ("rate", 10**400),
        ("exact", 1),
        ("name", 3),
    ],
)
def test_value_of_another_type_is_refused(project, name, value):
    with pytest.raises(ParameterError, match=f"parameter '{name}' expects"):
        chapters.resolve_parameters(only_chapter(project), "cpu", {name: value})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "rate",
            "1e-3",
            "expects float, came '1e-3' (str); YAML reads 1e-3 as text, write 1.0e-3.",
        ),
        ("rate", True, "expects float, came True (bool). Its"),
        ("rate", float("nan"), "expects float, came nan (float); numbers are to be finite"),
        (
            "name",
            "a\udcff",
            "expects str, came 'a\\udcff' (str); numbers are to be finite, and text",
        ),
        ("gammas", [0.5, "a"], "expects list of float, came [0.5, 'a'] (list of float and str). "),
    ],
)
def test_a_refused_value_is_told_with_its_type(project, name, value, told):
    with pytest.raises(ParameterError) as error:
        chapters.resolve_parameters(only_chapter(project), "cpu", {name: value})
    assert told in str(error.value)


@pytest.mark.parametrize(
    "cell",
    [
        "steps = 2 * 3",
        "a, b = 1, 2",
        "import os",
        "seeds = 1\nseeds = 2",
        "x = y = 1",
        "f()",
        "x = {[]: 1}",
    ],
)
def test_parameters_cell_holds_only_literals(cell):
    with pytest.raises(BookError, match="may hold only `name = literal`"):
        chapters.parse_parameters(cell, "04_feed_forward")


def test_command_line_values_take_the_type_of_the_default(project):
    read = only_chapter(project)
    texts = {"seeds": "3", "rate": "1e-3", "gammas": "[1, 2.5]", "name": "3", "exact": "false"}
    parsed = {name: chapters.parse_value(read, name, text) for name, text in texts.items()}
    values = chapters.resolve_parameters(read, "cpu", parsed)
    assert values == {
        "seeds": 3,
        "rate": 1e-3,
        "gammas": [1.0, 2.5],
        "name": "3",
        "exact": False,
    }


@pytest.mark.parametrize("text", ["{[]: 1}", "[" * 100_000, "1" * 5000, "-" * 100_000 + "1"])
def test_what_cannot_be_parsed_is_text_and_refused_as_text(project, text):
    read = only_chapter(project)
    assert chapters.parse_value(read, "seeds", text) == text


@pytest.mark.fault("the front matter names an unknown profile", 1)
def test_front_matter_with_an_unknown_profile_is_refused(project):
    edit(project / "book/04_feed_forward.md", "smoke:", "smokey:")
    with pytest.raises(BookError, match="smokey"):
        only_chapter(project)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PROFILES, "staircase:\n"),
        (PROFILES, "staircase:\n  profiles:\n  reads:\n"),
        ("smoke: {seeds: 2}", "smoke:"),
    ],
)
def test_what_is_left_empty_in_the_front_matter_is_none(project, old, new):
    edit(project / "book/04_feed_forward.md", old, new)
    assert chapters.resolve_parameters(only_chapter(project), "smoke")["seeds"] == 10


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  reads: [results/table.json]", "  reads: [results", "04_feed_forward.md, line 14: not"),
        ("[results/table.json]", "results/table.json", "`staircase` in the front matter expects"),
        ("smoke: {seeds: 2}", "smoke: 5", "`staircase` in the front matter expects"),
        ("gammas = [1.0, 1.3]", "gammas = [1.0,,]", "04_feed_forward, line 22: the parameters"),
        pytest.param(
            *(
                "exact = True",
                "exact = not True",
                "04_feed_forward, line 24: the parameters cell may",
            ),
            marks=pytest.mark.fault("a value is computed in the parameters cell", 1),
        ),
        pytest.param(
            *("# trains", "\n```\n\n```{code-cell}\n:tags: [a\n", "04_feed_forward.md: jupytext"),
            marks=pytest.mark.fault("a chapter cannot be read as a notebook", 1),
        ),
    ],
)
def test_a_mistake_in_a_chapter_is_told_with_its_file_and_line(project, old, new, told):
    edit(project / "book/04_feed_forward.md", old, new)
    with pytest.raises(BookError) as error:
        only_chapter(project)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("toc", "told"),
    [
        ("", "_toc.yml names no page"),
        pytest.param(
            *("root: a\nchapters: [\n", "_toc.yml, line 3: not valid YAML"),
            marks=pytest.mark.fault("the table of contents is not valid YAML", 1),
        ),
        ("root: a\nchapters:\n  - file: b.md\n", "_toc.yml, line 3: b.md: write it without .md"),
        ("root: a\nchapters:\n  - file:\n", "_toc.yml, line 3: `file:` or `root:` expects"),
        ("root: a\nchapters:\n  - file: 5\n", "_toc.yml, line 3: `file:` or `root:` expects"),
        ("root: a\nchapters:\n  - file: b\n  - file: a\n", "_toc.yml, line 4: a stands there"),
    ],
)
def test_a_mistake_in_the_table_of_contents_is_told_with_its_line(tmp_path, toc, told):
    (tmp_path / "_toc.yml").write_text(toc)
    with pytest.raises(BookError) as error:
        chapters.toc_pages(tmp_path)
    assert told in str(error.value)


@pytest.mark.fault("the table of contents names a page without a file", 8)
def test_a_page_without_a_file_is_named(project):
    (project / "book/04_feed_forward.md").unlink()
    with pytest.raises(BookError, match="book/04_feed_forward.md") as error:
        chapters.read_chapters(project)
    assert error.value.code == 8


# --- Freshness -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("book/04_feed_forward.md", "train(seeds)", "train(seeds + 1)", "cells changed"),
        ("book/04_feed_forward.md", "\nvalue\n", "\nvalue;\n", "cells changed"),
        ("book/04_feed_forward.md", "seeds = 10", "seeds = 11", "parameters changed: seeds"),
        ("staircase_lib/training.py", "seeds * size", "size + seeds", "staircase_lib.training"),
        ("staircase_lib/models.py", "3", "4", "staircase_lib.models"),
        ("staircase_lib/__init__.py", "", "import math\n", "modules changed: staircase_lib"),
        ("requirements.txt", "2.4.6", "2.4.7", "requirements changed"),
    ],
)
def test_what_a_chapter_computes_from_changes_its_key(project, file, old, new, reason):
    before = parts(project)
    edit(project / file, old, new) if old else (project / file).write_text(new)
    after = parts(project)
    assert freshness.execution_key(before) != freshness.execution_key(after)
    assert reason in "; ".join(freshness.changes(before, after))
    same_ledger_key = freshness.ledger_key(before) == freshness.ledger_key(after)
    assert same_ledger_key == (file == "requirements.txt")


def test_a_result_that_is_read_changes_the_execution_key_alone(project):
    before = parts(project)
    (project / "book/results").mkdir()
    (project / "book/results/table.json").write_text("[]")
    after = parts(project)
    assert freshness.changes(before, after) == ["reads changed: results/table.json"]
    assert freshness.ledger_key(before) == freshness.ledger_key(after)


def test_a_threshold_changes_the_key_of_the_chapter_that_measures_it(project, monkeypatch):
    chapter = project / "book/04_feed_forward.md"
    edit(chapter, "train(seeds)", 'claims.measure("0.1", {"r": train(seeds)})')
    declared = claims.Claim("0.1", "0", "A claim", (claims.Check("r", "r", ">=", 0.9, "plan"),))
    monkeypatch.setattr(claims, "CLAIMS", {"0.1": declared})
    before = parts(project)
    assert list(before["claims"]) == ["0.1"]
    monkeypatch.setitem(claims.CLAIMS, "0.2", dataclasses.replace(declared, id="0.2"))
    assert parts(project) == before
    loosened = dataclasses.replace(declared.checks[0], bound=0.5)
    monkeypatch.setitem(claims.CLAIMS, "0.1", dataclasses.replace(declared, checks=(loosened,)))
    assert freshness.changes(before, parts(project)) == ["claims changed: 0.1"]
    assert freshness.ledger_key(before) != freshness.ledger_key(parts(project))


def test_profile_changes_the_key(project):
    assert freshness.execution_key(parts(project)) != freshness.execution_key(
        parts(project, "smoke")
    )


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("book/04_feed_forward.md", "# Feed-forward", "# Feed-forward models\n\nMore prose."),
        ("book/04_feed_forward.md", "# trains", "# trains all seeds"),
        ("staircase_lib/training.py", "Doc.", "Train all seeds."),
        ("staircase_lib/training.py", "# comment", "# another comment"),
        ("staircase_lib/training.py", "seeds * size", "(seeds\n            * size)"),
        ("staircase_lib/tasks.py", "1", "2"),
    ],
)
def test_what_it_does_not_compute_from_changes_no_key(project, file, old, new):
    before = parts(project)
    edit(project / file, old, new)
    assert parts(project) == before


def test_canonical_code_keeps_what_docstrings_only_look_like():
    documented = 'def f():\n    "text"\n    return 1\n'
    assert freshness.code_digest(documented) == freshness.code_digest("def f():\n    return 1\n")
    assert freshness.code_digest('x = "text"') != freshness.code_digest('x = "other"')
    assert freshness.code_digest("x = None") != freshness.code_digest("x = 0")
    assert freshness.code_digest("x = 1") != freshness.code_digest("x = 1.0")
    assert freshness.cells_digest(['"shown"']) != freshness.cells_digest(['"other"'])


def test_canonical_code_is_the_same_on_every_python():
    source = (
        "from __future__ import annotations\nimport a.b as c\n\n\n@c.d\nclass A(B, metaclass=M):\n"
        "    x: int = -1\n\n    async def f(self, /, a, *b, k=(1, 2), **kw) -> str:\n"
        "        async with a as q:\n            return f'{a!r:>{k}} {{}}' u'é' 'b'\n\n"
        "match v:\n    case {'a': [1, *r], **o} if r:\n        pass\n"
        "    case A(x=None) | -1j:\n        del v[1:2, ...]\n"
        "try:\n    y = [i async for i in z if (w := i)]\nexcept* E as e:\n    raise X from e\n"
        "g = lambda *, p=b'\\xff': (yield)\n"
    )
    assert freshness.code_digest(source) == "f9398cadf3bd78b5"  # seen on 3.11, 3.12 and 3.13


def test_imports_are_found_wherever_they_stand():
    source = "if x:\n    import a.b\n\ndef f():\n    from ..c import d\n    from . import e\n"
    assert freshness.imported_names(source, "p.q.m") == {"a.b", "p.c", "p.c.d", "p.q", "p.q.e"}
    assert freshness.imported_names("from . import e", "p.q", is_package=True) == {"p.q", "p.q.e"}
    assert freshness.imported_names("%load_ext x\nimport a") == {"a"}


def test_a_module_is_parsed_again_only_when_its_text_is_another(project, monkeypatch):
    before = parts(project)
    parsed, parse = set(), ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *rest: parsed.add(text) or parse(text, *rest))
    modules = project / "staircase_lib"
    assert parts(project) == before
    assert not parsed & {path.read_text() for path in modules.iterdir()}
    edit(modules / "models.py", "3", "2718")
    assert parts(project) != before
    assert parsed & {path.read_text() for path in modules.iterdir()} == {"size = 2718\n"}
    edit(modules / "models.py", "2718", "3")
    assert parts(project) == before


@pytest.mark.fault("a write is interrupted half-way", 130)
def test_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "ledger.json"
    chapters.write_atomically(target, "old")

    def interrupt(self, *arguments, **options):
        with self.open("w") as file:
            file.write("ne")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        chapters.write_atomically(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


# --- Execution -----------------------------------------------------------------------------------


def test_a_run_writes_outputs_and_its_record(project, tmp_path):
    done = command(project, "run", "feed_forward", "-p", "seeds", "7", "--output", "out")
    assert done.returncode == 0, done.stderr
    notebook = json.loads((project / "out/04_feed_forward.ipynb").read_text())
    assert notebook["cells"][-1]["outputs"][0]["data"]["text/plain"] == ["21"]
    run = notebook["metadata"]["staircase_run"]
    assert set(notebook["metadata"]["staircase"]) == {"profiles"}  # which a live page offers
    assert run["parameters"]["seeds"] == 7 and run["parameters"]["rate"] == 0.5
    assert run["profile"] == "cpu" and run["memory_mb"] > 0 and run["versions"]["python"]


@pytest.mark.fault("a parameter that the chapter does not have", 2)
def test_a_wrong_parameter_is_refused_before_a_kernel_starts(project):
    done = command(project, "run", "feed_forward", "-p", "sede", "7", "--output", "out")
    assert done.returncode == 2
    assert "Did you mean seeds?" in done.stderr
    assert not (project / "out").exists()


def stop(what: str, exit_code: int, cell: str, cause: str) -> Any:
    """A cell that ends its notebook, as a fault of the table."""
    return pytest.param(cell, exit_code, cause, marks=pytest.mark.fault(what, exit_code))


@pytest.mark.parametrize(
    ("cell", "exit_code", "cause"),
    [
        stop("a cell raises", 3, "1 / 0", "ZeroDivisionError: division by zero"),
        stop("a cell is not Python", 3, "for", "SyntaxError"),
        pytest.param("%unknown", 3, "UsageError: Line magic function `%unknown` not found."),
        pytest.param("raise OSError('\\ud800')", 3, "its error could not be shown"),
        pytest.param("raise OSError('\\x1b[2J\\u202e')", 3, "OSError: \\x1b[2J\\u202e"),
        stop("a cell runs out of memory", 3, "bytearray(2**60)", "MemoryError"),
        stop("a cell calls `sys.exit(0)`", 6, "import sys; sys.exit(0)", "early (sys.exit(0))"),
        stop("a cell calls `exit()`", 6, "exit()", "ended the notebook early"),
        stop("a cell calls `quit()`", 6, "quit()", "ended the notebook early"),
        stop("a cell calls `os._exit`", 4, "import os; os._exit(0)", "the kernel died here"),
        stop(
            *("the kernel is killed (`SIGKILL`, as for want of memory)", 4),
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "the kernel died here",
        ),
        stop("a cell takes too long", 5, "import time; time.sleep(60)", "took longer than 2 s"),
    ],
)
def test_a_cell_that_stops_the_notebook_is_named(tmp_path, cell, exit_code, cause):
    pages = {"05_attention": chapter("Attention", code("a = 1"), code(cell), code("a"))}
    root = make_project(tmp_path, pages)
    done = command(root, "run", "attention", "--timeout", "2", "--output", "out")
    assert done.returncode == exit_code
    line = next(line for line in done.stderr.splitlines() if line.startswith("05_attention"))
    first = cell.splitlines()[0]
    assert f"code cell 2, line 19, `{first}`: " in line and cause in line
    assert (root / "out/05_attention.failed.ipynb").is_file()
    assert not (root / "out/05_attention.ipynb").exists()


@pytest.mark.fault("a cell tagged `raises-exception` raises", 3)
def test_an_error_that_a_tag_allows_still_fails(tmp_path):
    pages = {"05_attention": chapter("A", code("1 / 0", "raises-exception"), code("2"))}
    done = command(make_project(tmp_path, pages), "run", "attention", "--output", "out")
    assert done.returncode == 3
    assert "code cell 1" in done.stderr and "ZeroDivisionError" in done.stderr


def test_kernels_run_in_the_book_folder_with_one_thread(tmp_path):
    cell = code(
        "import os, pathlib\nassert pathlib.Path.cwd().name == 'book'\n"
        "assert os.environ['OMP_NUM_THREADS'] == os.environ['MKL_NUM_THREADS'] == '1'"
    )
    root = make_project(tmp_path, {"05_attention": chapter("Attention", cell)})
    done = command(root, "run", "attention", "--output", "out")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (root / "book").iterdir()) == ["05_attention.md", "_assets"]
