"""The command line: ``python -m staircase_lib COMMAND``; ``--help`` tells more on each."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from .chapters import PROFILES, BookError, ParameterError, project_root, write_atomically
from .notebooks import CELL_TIMEOUT

EXIT_CODES = """\
exit codes:
  0  done; for `run` and `book`: the last cell of every chapter ran
  1  a chapter failed, a page is broken, or something that the command reads is missing
  2  the command line is wrong: unknown option or parameter, value of another type; for
     `measure` also: the file holds no task
  130, 143  interrupted by Ctrl-C, by SIGTERM; no kernel is left running
"""
BOOK_PACKAGES = ("ipykernel", "jupytext", "nbformat", "papermill", "yaml")
NEEDS = {"claims": (), "measure": ("torch", "pandas", "altair", "vl_convert", "myst_nb")}
ANYWHERE = ("measure",)  # commands that need no clone of the book


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="python -m staircase_lib",
        description="Run the chapters of Context Staircase, build the book, read its claims.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    run = add("run", "execute one chapter and write it as a notebook with outputs")
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
    run.add_argument("--show", action="store_true", help="print what the cells print, as they run")

    book = add("book", "execute every stale chapter and build the site")
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

    claims = add("claims", "print the ledger of claims: the recorded one, or that of a build")
    claims.add_argument("--json", action="store_true", help="print the rows as JSON")
    claims.add_argument(
        "--profile", choices=PROFILES, help="the ledger of the last build at this profile"
    )

    status = add(
        "status", "tell of each chapter whether it is fresh, or why not, and how it last ran"
    )
    status.add_argument("--profile", choices=PROFILES, default="cpu", help="profile (default: cpu)")

    measure = add("measure", "measure a task of your own: signatures, predicted stairs, training")
    measure.add_argument(
        "task",
        type=Path,
        metavar="TASK",
        help="CSV or Parquet: columns x1, x2, … (or one column sequence), label, optional weight",
    )
    measure.add_argument("--output", type=Path, metavar="FILE", help="report (default: TASK.html)")
    measure.add_argument("--json", action="store_true", help="print the numbers as JSON as well")
    measure.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds (default: 10)")
    measure.add_argument("--steps", type=int, metavar="N", help="steps of AdamW (default: 1500)")
    measure.add_argument("--lr", type=float, help="learning rate of AdamW (default: 0.002)")
    measure.add_argument(
        "--gamma", type=float, help="initialization rate; larger is smaller (default: 1.3)"
    )
    measure.add_argument("--d", type=int, help="width of the model (default: 128)")
    measure.add_argument(
        "--orders", type=int, metavar="M", help="highest signature order (default: as time allows)"
    )
    measure.add_argument("--anchors", metavar="A,B,…", help="tokens to follow (default: all)")
    measure.add_argument(
        "--most-anchors",
        type=int,
        default=40,
        metavar="N",
        help="without --anchors, follow the N most frequent tokens (default: 40)",
    )
    measure.add_argument(
        "--by-position",
        action="store_true",
        help="the same word at another position is another token (the model sees no positions)",
    )

    add("record", "copy the ledger of a complete cpu build to book/results, to be committed")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = make_parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        needed = NEEDS.get(options.command, BOOK_PACKAGES)
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise BookError(
                f"{options.command} needs {', '.join(missing)}, which context-staircase[book] "
                'brings: in your clone, pip install -e ".[book]"'
            )
        root = Path() if options.command in ANYWHERE else project_root()
        COMMANDS[options.command](root, options)
    except BookError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ParameterError) else 1
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return 128 + (interrupt.args or (signal.SIGINT,))[0]
    return 0


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


def run_chapter(root: Path, options: argparse.Namespace) -> None:
    """Execute one chapter with the given parameters."""
    from . import book, chapters, notebooks

    chapter = chapters.find_chapter(chapters.read_chapters(root), options.chapter)
    overrides = {
        name: chapters.parse_value(chapter, name, text) for name, text in options.parameters
    }
    folder = options.output or root / "_build" / "runs"
    target = folder.resolve() / f"{chapter.name}.ipynb"
    job = book.make_job(
        root,
        options.profile,
        chapter,
        target.with_suffix(".failed.ipynb"),  # moved from there when it succeeds
        overrides=overrides,
        timeout=options.timeout,
        show=options.show,
    )
    values = {**chapter.parameters, **job.parameters}
    parts = book.chapter_parts(root, chapter, values)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BookError(f"--output {folder}: cannot write there: {error.strerror}") from None
    print(f"{chapter.name}  running…", flush=True)
    _, outcome = notebooks.execute_all([job], workers=1)
    assert isinstance(outcome, notebooks.Outcome)
    if outcome.failure is not None:
        raise BookError(outcome.report)
    book.keep(outcome, options.profile, parts, target)
    print(f"{chapter.name}  done in {outcome.seconds:.0f} s: {target}")


def build_book(root: Path, options: argparse.Namespace) -> None:
    """Build the site and say where it is."""
    from . import book

    first_page = book.build_book(root, options.profile, max(1, options.jobs), options.timeout)
    print(f"The book: {first_page.as_uri()}")


def print_claims(root: Path, options: argparse.Namespace) -> None:
    """Print a ledger as a table or as JSON."""
    from . import book

    rows = book.read_ledger(root, options.profile)
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for row in rows:
        value, low, high = (
            "undefined" if row[name] is None else f"{row[name]:.4g}"
            for name in ("value", "low", "high")
        )
        print(f"{row['id']:5} {row['verdict']:14} {row['statement']}")
        print(
            f"      {row['statistic']}: {value} [{low}, {high}], threshold {row['threshold']}, "
            f"{row['seeds']} seeds, {row['profile']}, {row['commit']}"
        )


def print_status(root: Path, options: argparse.Namespace) -> None:
    """Print a line for each chapter that has code."""
    from . import book

    for row in book.status_rows(root, options.profile):
        print(f"{row['chapter']:24} {'; '.join(row['stale']) or 'fresh'}")
        if "date" in row:
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            print(
                f"{'':24} {options.profile}, {row['commit']}, {row['date']}, "
                f"{row['seconds']:.0f} s, {row['memory_mb']} MB, {versions}"
            )


def record_claims(root: Path, options: argparse.Namespace) -> None:
    """Record the ledger of the cpu build."""
    from . import book

    print(f"{book.record(root)} claims recorded in {book.RECORDED_LEDGER}")


def measure_task(root: Path, options: argparse.Namespace) -> None:
    """Measure a task out of a file and write the report."""
    from .task_files import TaskFileError, read_task

    try:
        named = read_task(
            options.task,
            anchors=options.anchors.split(",") if options.anchors else None,
            most_anchors=options.most_anchors,
            by_position=options.by_position,
        )
    except TaskFileError as error:
        raise ParameterError(str(error)) from None
    report = options.output or options.task.with_suffix(".html")
    check_writable(report)

    from . import measurement

    given = {name: getattr(options, name) for name in ("d", "gamma", "steps", "lr", "orders")}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        settings = measurement.Settings(seeds=tuple(range(options.seeds)), **given)
        measurement.most_rows(named.task, settings)
    except ValueError as error:
        raise ParameterError(f"--{error}") from None
    print(f"{options.task}: {named.task}", *named.remarks, sep="\n", file=sys.stderr)

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    try:
        measured = measurement.measure(named.task, settings, named.names, progress=tell)
    except FloatingPointError as error:
        raise BookError(str(error)) from None
    for note in measured.notes:
        print(note, file=sys.stderr)

    from .report import numbers_json, write_html

    try:
        write_atomically(report, write_html(measured))
    except OSError as error:
        raise BookError(f"--output {report}: cannot write there: {error.strerror}") from None
    if options.json:
        print(numbers_json(measured))
    else:
        print(f"The report: {report.resolve().as_uri()}")


def check_writable(file: Path) -> None:
    """Refuse a file that cannot be written, before the work that would fill it."""
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise BookError(f"--output {file}: cannot write there: {error.strerror}") from None


COMMANDS = {
    "measure": measure_task,
    "run": run_chapter,
    "book": build_book,
    "claims": print_claims,
    "status": print_status,
    "record": record_claims,
}

if __name__ == "__main__":
    sys.exit(main())
