"""``claims``, ``status`` and ``record``: what builds have left behind."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..chapters import PROFILES
from . import terminal


def declare(commands: terminal.Commands) -> None:
    """Declare the three commands."""
    claims = terminal.add(
        commands,
        "claims",
        "print the ledger of claims: the recorded one, or that of a build",
        print_claims,
        needs=(),
    )
    claims.add_argument("--json", action="store_true", help="print the rows as JSON")
    claims.add_argument(
        "--profile", choices=PROFILES, help="the ledger of the last build at this profile"
    )

    status = terminal.add(
        commands,
        "status",
        "tell of each chapter whether it is fresh, or why not, and how it last ran",
        print_status,
    )
    status.add_argument("--profile", choices=PROFILES, default="cpu", help="profile (default: cpu)")

    terminal.add(
        commands,
        "record",
        "copy the ledger of a complete cpu build to book/results, to be committed",
        record_claims,
    )


def print_claims(root: Path, options: argparse.Namespace) -> None:
    """Print a ledger as a table or as JSON."""
    from .. import book

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
    from .. import book

    for row in book.status_rows(root, options.profile):
        print(f"{row['chapter']:24} {'; '.join(row['stale']) or 'fresh'}")
        if "date" in row:
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            print(
                f"{'':24} {options.profile}, {row['commit']}, {row['date']}, "
                f"{row['seconds']:.0f} s, {row['memory_mb']} MB, {row['device']}, {versions}"
            )


def record_claims(root: Path, options: argparse.Namespace) -> None:
    """Record the ledger of the cpu build."""
    from .. import book

    print(f"{book.record(root)} claims recorded in {book.RECORDED_LEDGER}")
