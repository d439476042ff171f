"""Pages: executed chapters and plain ones, rendered by Jupyter Book into ``_build/html/``.

Jupyter Book gets ``_build/<profile>/source/``, a book of its own with the root's ``_config.yml``
but execution off. Any warning fails the build and is told with its chapter and line.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import freshness
from .chapters import BookError, Exit, line_of, parse_yaml, write_atomically

if TYPE_CHECKING:
    from nbformat import NotebookNode

SOURCE_SUFFIXES = {".md", ".py", ".js", ".css", ".bib", ".toml"}


def render(
    root: Path,
    profile: str,
    executed: Mapping[Path, NotebookNode],
    runs: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Build the site, unless nothing that it is made from has changed; returns its first page.

    Parameters
    ----------
    executed : mapping
        For each source of an executed chapter the notebook to show in its place.
    runs : sequence of mappings
        How each chapter was executed, for the page that shows it.

    Raises
    ------
    BookError
        If Jupyter Book warns of anything: a broken cross-reference, a missing citation.
    """
    source = write_source(root, profile, executed)
    (source / "runs.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    inputs = _site_inputs(root, source)
    record_file = root / "_build" / "site.json"
    html = root / "_build" / "html"
    try:
        known = json.loads(record_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent or damaged
        known = None
    if known == {"inputs": inputs, "files": _file_stamps(html)}:
        print("pages up to date", flush=True)
        record_file.touch()
        return html / "index.html"
    print("pages…", flush=True)
    _run_jupyter_book(root, source, html)
    write_atomically(record_file, json.dumps({"inputs": inputs, "files": _file_stamps(html)}))
    return html / "index.html"


def built_site(root: Path) -> Path:
    """Folder of the built site, if it is there and nothing was changed since.

    Raises
    ------
    BookError
        If ``make book`` has to come first.
    """
    html, record = root / "_build" / "html", root / "_build" / "site.json"
    if not (html / "index.html").is_file() or not record.is_file():
        raise BookError(f"No built site in {html}: run `make book` first.", Exit.MISSING)
    sources = [root / "_config.yml", root / "_toc.yml"]
    sources += [path for path in (root / "book").rglob("*") if path.suffix in SOURCE_SUFFIXES]
    sources += (root / freshness.PACKAGE).rglob("*.py")
    built = record.stat().st_mtime_ns
    for path in sorted(path for path in sources if path.is_file()):
        if path.stat().st_mtime_ns > built:
            changed = path.relative_to(root)
            raise BookError(f"The site in {html} is older than {changed}: run `make book` first.")
    return html


def write_source(root: Path, profile: str, executed: Mapping[Path, NotebookNode]) -> Path:
    """Write what Jupyter Book renders: executed chapters, plain pages, assets, configuration."""
    import nbformat
    import yaml

    source = root / "_build" / profile / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(
        root / "book",
        source / "book",
        ignore=shutil.ignore_patterns("_extensions", ".*", "__pycache__", "*.ipynb"),
    )
    shutil.copy(root / "_toc.yml", source)
    for path, notebook in executed.items():
        page = source / path.relative_to(root)
        page.unlink()
        page.with_suffix(".ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
    config = parse_yaml((root / "_config.yml").read_text(encoding="utf-8"), "_config.yml") or {}
    config.setdefault("execute", {})["execute_notebooks"] = "off"
    extensions = config.get("sphinx", {}).get("local_extensions", {})
    extensions.update({name: str(root / path) for name, path in extensions.items()})
    if profile != "cpu":
        config.setdefault("html", {})["announcement"] = (
            f"Built with profile {profile}: its sizes are not those of the published book."
        )
    (source / "_config.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return source


def _site_inputs(root: Path, source: Path) -> str:
    """Digest of everything that the pages are made from."""
    files = [path for path in source.rglob("*") if path.is_file()]
    files += [*(root / "book" / "_extensions").glob("*.py"), root / "requirements.txt"]
    files += (root / freshness.PACKAGE).rglob("*.py")  # the renderer, and docstrings
    files += (root / freshness.PACKAGE).glob("*.toml")  # claims, which the map of the paper lists
    files += (root / "tests").glob("test_*.py")  # and the marks of what tests they have
    lines = [f"{path.relative_to(root)} {freshness.file_digest(path)}" for path in sorted(files)]
    return freshness.digest("\n".join(lines))


def _file_stamps(folder: Path) -> dict[str, list[int]]:
    """Size and time of every file of the site, to notice a page lost or rewritten."""
    stamps = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            stamps[str(path.relative_to(folder))] = [status.st_size, status.st_mtime_ns]
    return stamps


def _run_jupyter_book(root: Path, source: Path, html: Path) -> None:
    """Run Jupyter Book from nothing, since what it keeps hides warnings; put the pages in place."""
    products = source.parent / "_build"
    shutil.rmtree(products, ignore_errors=True)
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(source)]
    command += ["--path-output", str(source.parent), "-W", "-n", "--keep-going"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (source.parent / "jupyter-book.log").write_text(done.stdout, encoding="utf-8")
    problems = [
        told for line in done.stdout.splitlines() if (told := explain_warning(line, root, source))
    ]
    if done.returncode or problems or not (products / "html" / "index.html").is_file():
        log = (source.parent / "jupyter-book.log").relative_to(root)
        shown = problems or done.stdout.splitlines()[-15:]
        raise BookError(
            "\n".join([*dict.fromkeys(shown), f"  all that Jupyter Book printed: {log}"])
        )
    old = html.with_name("html.old")
    shutil.rmtree(old, ignore_errors=True)
    if html.exists():
        html.rename(old)
    (products / "html").rename(html)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(products, ignore_errors=True)


def explain_warning(line: str, root: Path, source: Path) -> str | None:
    """A warning of Sphinx in terms of the chapter's own file; None for any other line.

    Parameters
    ----------
    line : str
        As printed: ``…/source/book/04_feed_forward.ipynb:30005: WARNING: undefined label``, where
        the number is 10,000 for each cell, plus the line in it, plus 1.
    root : Path
        The project.
    source : Path
        The folder that Jupyter Book rendered.
    """
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    place = r"(?P<file>[^:]+):(?:docstring of (?P<entry>[\w.]+):)?(?:(?P<line>\d+):)?"
    pattern = rf"(?:{place} )?(?:WARNING|ERROR|CRITICAL): (?P<text>.+)"
    match = re.match(pattern, line)
    if match is None:
        return None
    if not match["file"]:
        return match["text"]
    if match["entry"]:
        return f"docstring of {match['entry']}: {match['text']}"
    path, number = Path(match["file"]), int(match["line"] or 0)
    if path.is_relative_to(source):
        path = root / path.relative_to(source)
    chapter = path.with_suffix(".md")
    if path.suffix == ".ipynb" and number >= 10_000:
        import nbformat

        index, row = divmod(number, 10_000)
        rendered = nbformat.read(source / path.relative_to(root), as_version=4)
        start = line_of(rendered.cells[index - 1].source, chapter)
        place = f"cell {index}" if start is None else f"cell {index}, line {start + row - 2}"
    else:
        place = f"line {number}" if number else "somewhere"
    return f"{chapter.stem}, {place}: {match['text']}"
