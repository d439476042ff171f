"""What commands share: how one is declared, types of options, reports written whole."""

from __future__ import annotations

import argparse
import io
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..chapters import BookError, Exit, ParameterError, write_atomically

EXIT_CODES = """\
exit codes:
  0  done; for `run` and `book`: the last cell of every chapter ran
  1  something else failed: a page is broken, chapters stopped for several reasons
  2  the command line is wrong: unknown option or parameter, value of another type; for
     `measure`, `count` and `pretrain` also: the file holds nothing to work on
  3  a cell raised an error
  4  a kernel died: killed, out of memory, os._exit
  5  a cell took longer than --timeout
  6  a chapter ended itself before its last cell: sys.exit, exit, quit
  7  the kernel did not start
  8  a chapter, a file or a package that the command needs is missing
  9  a file cannot be written: full disk, read-only folder
  10  another process is writing there
  130, 143  interrupted by Ctrl-C, by SIGTERM; no kernel is left running
"""
BOOK_PACKAGES = ("ipykernel", "jupytext", "nbformat", "papermill", "yaml")
NEEDS_OF_REPORTS = ("altair", "vl_convert", "myst_nb")

Commands = Any  # what argparse's add_subparsers returns has no public name


def add(
    commands: Commands,
    name: str,
    summary: str,
    act: Callable[[Path, argparse.Namespace], None],
    *,
    needs: Sequence[str] = BOOK_PACKAGES,
    in_clone: bool = True,
) -> argparse.ArgumentParser:
    """Declare a command.

    Parameters
    ----------
    act : callable
        Does it, given the project's root (``Path()`` if not `in_clone`) and the options.
    needs : sequence of str
        Packages without which it is refused.
    in_clone : bool
        Whether it works on the book of a clone.
    """
    command = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(act=act, needs=needs, in_clone=in_clone)
    return command


def require(what: str, needs: Sequence[str], extra: str = "book") -> None:
    """Refuse a command whose packages are not installed."""
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise BookError(
            f"{what} needs {', '.join(missing)}, which context-staircase[{extra}] brings: in your "
            f'clone, pip install -e ".[{extra}]"',
            Exit.MISSING,
        )


def at_most(largest: int, least: int | None = None) -> Callable[[str], int]:
    """Type of an option: a whole number that is not larger, nor less, than anything sensible."""

    def whole_number(text: str) -> int:
        value = int(text)
        if value > largest:
            raise argparse.ArgumentTypeError(f"expected {largest:,} at most, got {value:,}")
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"expected {least:,} or more, got {value:,}")
        return value

    return whole_number


def positive(text: str) -> float:
    """Type of an option: a finite number above zero."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


class Counter:
    """Progress of a long count: a line every few seconds, not one a step."""

    def __init__(self, stream: Any, every: float = 5.0) -> None:
        self.stream, self.every, self.last = stream, every, time.monotonic()

    def __call__(self, done: int, total: int | None, what: str) -> None:
        if time.monotonic() - self.last >= self.every or done == total:
            self.last = time.monotonic()
            of = f" of {total:,}" if total else ""
            print(f"{done:,}{of} {what}", file=self.stream, flush=True)


def check_writable(file: Path, begins: bytes = b"<!doctype html", kind: str = "HTML page") -> None:
    """Refuse a file that cannot be written, before the work that would fill it.

    What is there already is only replaced if it is empty or of the same kind: `begins` stands in
    its beginning, in small letters.
    """
    place = file.resolve()  # of a link, what it leads to
    try:
        if place.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if place.exists() and not place.is_file():
            raise OSError(0, "it is no ordinary file")
        place.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place.parent).close()
        with place.open("rb") if place.exists() else io.BytesIO() as there:
            beginning = there.read(200).lower()
    except OSError as error:
        problem = f"--output {file}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None
    if beginning.strip() and begins not in beginning:
        raise ParameterError(f"--output {file}: is there and is no {kind}; give another file.")


def write_report(file: Path, page: str) -> None:
    """Write a page as a whole or not at all."""
    check_writable(file)
    try:
        write_atomically(file.resolve(), page)
    except OSError as error:
        problem = f"--output {file}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None
