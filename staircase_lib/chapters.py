"""Chapters: which there are, what they declare, and their parameters with types.

A chapter is a MyST-Markdown notebook that ``_toc.yml`` names. Its numbers stand in one cell tagged
``parameters``, flat and literal (``seeds = 10``); a profile overrides some in the front matter::

    staircase:
      profiles:
        smoke: {seeds: 2, epochs: 50}
      reads: [results/ledger.json]

Everything is read and checked without a kernel.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The packages of the extra `book` are imported where used: --help and claims do without them.
if TYPE_CHECKING:
    from nbformat import NotebookNode

PROFILES = ("smoke", "cpu", "gpu", "paper")


class Exit(IntEnum):
    """Exit codes of the command line, one a kind of failure."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CELL = 3
    KERNEL = 4
    TIMEOUT = 5
    EARLY = 6
    NO_KERNEL = 7
    MISSING = 8
    CANNOT_WRITE = 9
    IN_USE = 10


class BookError(Exception):
    """The book cannot be built or a chapter not run; the message says where and why."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


class ParameterError(BookError):
    """A parameter that the chapter does not have, or a value of another type."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.USAGE)


def write_atomically(path: Path, text: str) -> None:
    """Write a file in one step: whoever reads it sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# --- Chapters ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chapter:
    """A page of the book, as read from its source.

    Attributes
    ----------
    name : str
        File name without extension, ``04_feed_forward``.
    path : Path
        The source file.
    notebook : NotebookNode
        Its cells, without outputs.
    parameters : dict
        Names and defaults of the cell tagged ``parameters``.
    profiles : dict
        For each profile the parameters that it overrides.
    reads : tuple of str
        Files that the code reads, relative to the chapter's folder; a name with ``*`` stands for
        all that match.
    """

    name: str
    path: Path
    notebook: NotebookNode
    parameters: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    reads: tuple[str, ...]

    @property
    def code(self) -> list[NotebookNode]:
        """The code cells in order, that of the parameters included."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]


def project_root(start: Path | None = None) -> Path:
    """The folder with ``_toc.yml`` at or above `start` (default: the current folder)."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "_toc.yml").is_file():
            return folder
    problem = f"No _toc.yml in {start} or above it: run this command in a clone of the book."
    raise BookError(problem, Exit.MISSING)


def toc_pages(root: Path) -> list[str]:
    """Pages that ``_toc.yml`` names, in reading order, without extension and relative to `root`."""
    text = (root / "_toc.yml").read_text(encoding="utf-8")
    pages: list[Any] = []

    def collect(entry: Any) -> None:
        if isinstance(entry, dict):
            pages.extend(entry[key] for key in ("root", "file") if key in entry)
            for key in ("parts", "chapters", "sections", "entries", "subtrees"):
                collect(entry.get(key))
        elif isinstance(entry, list):
            for item in entry:
                collect(item)

    collect(parse_yaml(text, "_toc.yml"))
    if not pages:
        raise BookError("_toc.yml names no page; expected `root: book/introduction` at least")
    for position, page in enumerate(pages):
        if not page or not isinstance(page, str):
            problem = f"`file:` or `root:` expects a page such as book/introduction, came {page!r}"
        elif page.endswith(".md"):
            problem = f"{page}: write it without .md"
        elif page in pages[:position]:
            problem = f"{page} stands there twice; remove one"
        else:
            continue
        entry = rf"[\s-]*(?:file|root):\s*{re.escape(str(page or ''))}\s*"
        lines = [i for i, line in enumerate(text.splitlines(), 1) if re.fullmatch(entry, line)]
        raise BookError(f"_toc.yml{f', line {lines[-1]}' if lines else ''}: {problem}")
    return pages


def parse_yaml(text: str, place: str, first_line: int = 1) -> Any:
    """`text` parsed; a mistake in it is a `BookError` that names `place` and the line."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + first_line}" if mark else ""
        what = getattr(error, "problem", None) or error
        raise BookError(f"{place}{line}: not valid YAML: {what}") from None


def read_chapters(root: Path) -> list[Chapter]:
    """Read every page of the table of contents; a page without a file is an error that names it."""
    paths = [root / f"{page}.md" for page in toc_pages(root)]
    missing = [str(path.relative_to(root)) for path in paths if not path.is_file()]
    if missing:
        problem = f"_toc.yml names files that do not exist: {', '.join(missing)}"
        raise BookError(problem, Exit.MISSING)
    return [read_chapter(path) for path in paths]


def read_chapter(path: Path) -> Chapter:
    """Read one chapter, with the parameters and profiles that it declares."""
    import jupytext
    import yaml

    name = path.stem
    text = path.read_text(encoding="utf-8")
    front: dict[str, Any] = {}
    header = re.match(r"---\n(.*?\n)---[ \t]*\n", text, re.DOTALL)
    if header and isinstance(found := parse_yaml(header[1], path.name, first_line=2), dict):
        front = found
    declared = _declared(name, front.pop("staircase", None))
    if header and front:  # without `staircase`: jupytext stumbles over keys that are left empty
        text = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n{text[header.end() :]}"
    try:
        notebook = jupytext.reads(text, fmt=".md")
    except Exception as error:  # whatever it is, it is about this text
        raise BookError(f"{path.name}: jupytext cannot read it: {error!r}") from None
    for index, cell in enumerate(notebook.cells):
        cell["id"] = (
            f"cell-{index}"  # jupytext draws them at random; the same text must give the same pages
        )
    if declared[0]:
        notebook.metadata["staircase"] = {"profiles": declared[0]}  # the page can offer them
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    if len(cells) > 1:
        raise BookError(f"{name}: {len(cells)} cells are tagged `parameters`; expected at most one")
    parameters = {}
    if cells:
        parameters = parse_parameters(cells[0].source, name, line_of(cells[0].source, path))
    return Chapter(name, path, notebook, parameters, *declared)


def _declared(name: str, declared: Any) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Profiles and result files of the front matter's `staircase`; what is left empty is none."""
    try:
        declared = dict(declared or {})
        profiles = {
            key: dict(values or {}) for key, values in (declared.get("profiles") or {}).items()
        }
        reads = declared.get("reads") or []
        if not isinstance(reads, list) or not all(isinstance(item, str) for item in reads):
            raise TypeError
    except (AttributeError, TypeError, ValueError):
        raise BookError(
            f"{name}: `staircase` in the front matter expects\n  profiles:\n    smoke: "
            f"{{seeds: 2}}\n  reads: [results/table.json]\ncame {declared!r}"
        ) from None
    unknown = (set(declared) - {"profiles", "reads"}) | (set(profiles) - set(PROFILES))
    if unknown:
        raise BookError(
            f"{name}: `staircase` in the front matter may hold `profiles` ({', '.join(PROFILES)}) "
            f"and `reads`; came {', '.join(sorted(map(str, unknown)))}"
        )
    return profiles, tuple(reads)


def find_chapter(chapters: Sequence[Chapter], name: str) -> Chapter:
    """The chapter called `name`: ``04_feed_forward``, or ``feed_forward`` for short."""
    for chapter in chapters:
        if name in (chapter.name, chapter.name.partition("_")[2]) and chapter.code:
            return chapter
    executable = [chapter.name for chapter in chapters if chapter.code]
    near = difflib.get_close_matches(name, executable, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    there = f"there are: {', '.join(executable)}"
    raise BookError(f"No chapter {name!r} with code; {hint}{there}", Exit.MISSING)


def line_of(cell: str, path: Path) -> int | None:
    """Line of the source file `path` at which a cell starts; None unless it stands there once."""
    text = path.read_text(encoding="utf-8")
    if text.count(f"\n{cell}\n") != 1:
        return None
    return text[: text.index(f"\n{cell}\n")].count("\n") + 2


# --- Parameters ----------------------------------------------------------------------------------


def parse_parameters(source: str, chapter: str, start: int | None = None) -> dict[str, Any]:
    """Names and defaults of a parameters cell, read without running it.

    `start` is the line of the chapter's file at which the cell starts, for messages.

    Raises
    ------
    BookError
        If a statement is anything but ``name = literal`` or ``name: type = literal``.
    """

    def place(line: int | None) -> str:
        return chapter if start is None or line is None else f"{chapter}, line {start + line - 1}"

    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise BookError(f"{place(error.lineno)}: the parameters cell: {error.msg}") from None
    parameters: dict[str, Any] = {}
    for statement in statements:
        target, value = None, None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        try:
            if not isinstance(target, ast.Name) or value is None or target.id in parameters:
                raise ValueError
            parameters[target.id] = ast.literal_eval(value)
        except (TypeError, ValueError):
            line = source.splitlines()[statement.lineno - 1]
            raise BookError(
                f"{place(statement.lineno)}: the parameters cell may hold only `name = literal`, "
                f"each name once; came `{line.strip()}`. Compute what follows from a parameter in "
                "the next cell."
            ) from None
    return parameters


def resolve_parameters(
    chapter: Chapter, profile: str, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Every parameter's value: the default, the profile's, or the caller's, each checked.

    Raises
    ------
    ParameterError
        For a name that the chapter does not have, or a value of another type than the default's.
    """
    values = dict(chapter.parameters)
    for name, value in {**chapter.profiles.get(profile, {}), **(overrides or {})}.items():
        if name not in values:
            near = difflib.get_close_matches(name, list(values), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ParameterError(
                f"{chapter.name}: no parameter {name!r}.{hint} {_describe(chapter.parameters)}"
            )
        try:
            values[name] = _as_type_of(chapter.parameters[name], value)
        except TypeError:
            hint = ""
            if isinstance(value, str) and re.fullmatch(r"[-+.\d]+e[-+]?\d+", value, re.IGNORECASE):
                hint = "; YAML reads 1e-3 as text, write 1.0e-3"
            elif _kind(value) == _kind(chapter.parameters[name]):
                hint = "; numbers are to be finite, and text to be UTF-8"
            raise ParameterError(
                f"{chapter.name}: parameter {name!r} expects {_kind(chapter.parameters[name])}, "
                f"came {value!r} ({_kind(value)}){hint}. {_describe(chapter.parameters)}"
            ) from None
    return values


def parse_value(chapter: Chapter, name: str, text: str) -> Any:
    """A value from the command line: text for text parameters, else a JSON or Python literal."""
    if isinstance(chapter.parameters.get(name), str):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def describe_profiles(
    chapter: Chapter, profile: str, overrides: Mapping[str, Any] | None = None
) -> str:
    """A table of a chapter's parameters: type, value that a run would take, and every profile's.

    Parameters
    ----------
    chapter : Chapter
    profile : str
        Profile of the run.
    overrides : mapping, optional
        Values that are given by name.

    Raises
    ------
    ParameterError
        As :func:`resolve_parameters`.
    """
    columns = {"this run": resolve_parameters(chapter, profile, overrides)}
    columns |= {name: resolve_parameters(chapter, name) for name in PROFILES}
    rows = [["parameter", "type", *columns]] + [
        [name, _kind(default), *(repr(values[name]) for values in columns.values())]
        for name, default in chapter.parameters.items()
    ]
    if len(rows) == 1:
        return _describe(chapter.parameters)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _as_type_of(default: Any, value: Any) -> Any:
    """`value` in the type of `default`; whole numbers pass as float, truth values do not.

    No number is a float without being finite, and no text is one that a notebook cannot hold.
    """
    if default is None:
        return value
    if isinstance(default, float) and type(value) in (int, float):
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise TypeError
        return float(value)
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise TypeError
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        return [_as_type_of(default[0], item) for item in value] if default else list(value)
    if type(value) is not type(default):
        raise TypeError
    return value


def _kind(value: Any) -> str:
    """Type of a value in words, of lists with that of their items: ``list of float and str``."""
    if not isinstance(value, (list, tuple)):
        return type(value).__name__
    return "list" + (" of " + " and ".join(sorted(set(map(_kind, value)))) if value else "")


def _describe(parameters: Mapping[str, Any]) -> str:
    if not parameters:
        return "This chapter has no parameters."
    rows = [f"{name} ({_kind(value)}, default {value!r})" for name, value in parameters.items()]
    return "Its parameters: " + ", ".join(rows) + "."
