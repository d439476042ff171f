"""``run`` and ``book``: chapters executed, the site built."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from ..chapters import PROFILES, BookError, Exit
from ..notebooks import CELL_TIMEOUT
from . import terminal


def declare(commands: terminal.Commands) -> None:
    """Declare both commands."""
    run = terminal.add(
        commands, "run", "execute one chapter and write it as a notebook with outputs", run_chapter
    )
    run.add_argument(
        "chapter", metavar="CHAPTER", help="04_feed_forward, or feed_forward for short"
    )
    run.add_argument(
        "--profile", choices=PROFILES, default="cpu", help="sizes to run at (default: cpu)"
    )
    run.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="give a parameter of the chapter a value; lists as JSON; may be repeated",
    )
    run.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write to (default: _build/runs)"
    )
    run.add_argument(
        "--show",
        action="store_true",
        help="print the parameters, with their values at every profile, and run nothing",
    )
    run.add_argument(
        "--log-output", action="store_true", help="print what the cells print, as they run"
    )

    book = terminal.add(
        commands, "book", "execute every stale chapter and build the site", build_book
    )
    book.add_argument(
        "--profile", choices=PROFILES, default="cpu", help="sizes to run at (default: cpu)"
    )
    book.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="chapters that run at the same time (default: the number of cores)",
    )
    for command in (run, book):
        command.add_argument(
            "--timeout",
            type=int,
            default=CELL_TIMEOUT,
            metavar="SECONDS",
            help=f"give up when one cell takes longer (default: {CELL_TIMEOUT})",
        )


def run_chapter(root: Path, options: argparse.Namespace) -> None:
    """Execute one chapter with the given parameters."""
    from .. import book, chapters, notebooks

    chapter = chapters.find_chapter(chapters.read_chapters(root), options.chapter)
    overrides = {
        name: chapters.parse_value(chapter, name, text) for name, text in options.parameters
    }
    if options.show:
        print(chapters.describe_profiles(chapter, options.profile, overrides))
        return
    folder = options.output or root / "_build" / "runs"
    target = folder.resolve() / f"{chapter.name}.ipynb"
    job = book.make_job(
        root,
        options.profile,
        chapter,
        target.with_suffix(".failed.ipynb"),
        overrides=overrides,
        timeout=options.timeout,
        log_output=options.log_output,
    )
    values = {**chapter.parameters, **job.parameters}
    parts = book.chapter_parts(root, chapter, values)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"--output {folder}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None
    print(f"{chapter.name}  running…", flush=True)
    _, outcome = notebooks.execute_all([job], workers=1)
    assert isinstance(outcome, notebooks.Outcome)
    if outcome.failure is not None:
        raise BookError(outcome.report, outcome.failure.code)
    book.keep(outcome, options.profile, parts, target)
    print(f"{chapter.name}  done in {outcome.seconds:.0f} s: {target}")


def build_book(root: Path, options: argparse.Namespace) -> None:
    """Build the site and say where it is."""
    from .. import book

    first_page = book.build_book(root, options.profile, max(1, options.jobs), options.timeout)
    print(f"The book: {first_page.as_uri()}")
