"""``pdf`` and ``zip``: the built book on paper, and as one file to take along."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import terminal


def declare(commands: terminal.Commands) -> None:
    """Declare the two commands."""
    paper = terminal.add(
        commands,
        "pdf",
        "print the built book as one PDF",
        print_book,
        needs=(*terminal.BOOK_PACKAGES, "playwright", "pypdf"),
    )
    archive = terminal.add(commands, "zip", "pack the built book into one zip file", pack_book)
    for command, suffix in ((paper, "pdf"), (archive, "zip")):
        command.add_argument(
            "--output",
            type=Path,
            metavar="FILE",
            help=f"file to write (default: _build/context-staircase.{suffix})",
        )


def print_book(root: Path, options: argparse.Namespace) -> None:
    """Write the PDF and say where it is."""
    from .. import pages, paper

    pages.built_site(root)
    output = options.output or root / "_build" / "context-staircase.pdf"
    terminal.check_writable(output, b"%pdf-", "PDF")
    number = paper.print_book(root, output.resolve())
    _tell(output, f"{number} pages, ")


def pack_book(root: Path, options: argparse.Namespace) -> None:
    """Write the archive and say where it is."""
    from .. import pages, site_archive

    pages.built_site(root)
    output = options.output or root / "_build" / "context-staircase.zip"
    terminal.check_writable(output, b"pk\x03\x04", "zip file")
    site_archive.write_zip(root, output.resolve())
    _tell(output, "unpack it and open index.html; ")


def _tell(output: Path, what: str) -> None:
    size = output.stat().st_size / 1e6
    print(f"{output.resolve()}: {what}{size:.1f} MB")
