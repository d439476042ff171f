"""``run`` and ``book``: chapters executed, the site built."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..chapters import PROFILES, BookError, Chapter, Exit
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
        type=terminal.at_most(10_000, least=1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="chapters that run at the same time (default: the number of cores)",
    )
    for command in (run, book):
        command.add_argument(
            "--timeout",
            type=terminal.at_most(10**7, least=1),
            default=CELL_TIMEOUT,
            metavar="SECONDS",
            help=f"give up when one cell takes longer (default: {CELL_TIMEOUT})",
        )
        command.add_argument(
            "--estimate", action="store_true", help="say how long it will take, and run nothing"
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
    if options.estimate:
        print(_estimate_in_words(root, options.profile, chapter, overrides))
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
        if target.is_dir():
            raise IsADirectoryError(0, f"{target.name} there is a folder")
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

    if options.estimate:
        print(_book_in_words(root, options.profile, options.jobs))
        return
    first_page = book.build_book(root, options.profile, options.jobs, options.timeout)
    print(f"The book: {first_page.as_uri()}")


def _estimate_in_words(
    root: Path, profile: str, chapter: Chapter, overrides: Mapping[str, Any]
) -> str:
    """How long a chapter will take, and how that is known."""
    from .. import book, chapters, estimates

    usual = chapters.resolve_parameters(chapter, profile)
    wanted = chapters.resolve_parameters(chapter, profile, overrides)
    known = book.known_run(root, profile, chapter)
    if known is None:
        return (
            f"{chapter.name} at profile {profile}: not known; no such run is on record here. Run "
            f"it at profile smoke for a first idea."
        )
    found = estimates.scaled(known, usual, wanted)
    low, high = estimates.duration(found.low), estimates.duration(found.high)
    about = f"about {low}" if low == high else f"{low} to {high}"
    lines = [f"{chapter.name} at profile {profile}: {about}, {known.memory_mb:,} MB"]
    lines.append(f"  {estimates.duration(known.seconds)}: {known.source}")
    lines += [
        f"  {name} {usual[name]} → {wanted[name]}: {factor:.3g} times the work that it governs"
        for name, factor in found.factors.items()
    ]
    lines += [
        f"  {name} {usual[name]} → {wanted[name]}: not counted; appendix A tells how cost grows"
        for name in found.uncounted
    ]
    return "\n".join(lines)


def _book_in_words(root: Path, profile: str, jobs: int) -> str:
    """How long a build will take, chapter by chapter."""
    from .. import book, chapters, estimates

    lines, seconds, memory, unknown = [], [], [], []
    for chapter in chapters.read_chapters(root):
        if not chapter.code or not book.staleness(root, profile, chapter):
            continue
        known = book.known_run(root, profile, chapter)
        if known is None:
            unknown.append(chapter.name)
            continue
        seconds.append(known.seconds)
        memory.append(known.memory_mb)
        time = estimates.duration(known.seconds)
        lines.append(f"{chapter.name:28} {time:>7} {known.memory_mb:>6,} MB  {known.source}")
    if unknown:
        lines.append(f"not known: {', '.join(unknown)}")
    if not seconds and not unknown:
        return "every chapter is fresh; rendering the pages takes less than a minute"
    if not seconds:
        return lines[-1]
    wall = estimates.makespan(sorted(seconds, reverse=True), jobs)
    most = sum(sorted(memory)[-jobs:])
    lines.append(
        f"{len(seconds)} chapters, {jobs} at a time: about {estimates.duration(wall)}, then the "
        f"pages; {most:,} MB at most"
    )
    return "\n".join(lines)
