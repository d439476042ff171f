"""``notebooks``: executed chapters for Binder, Colab and whoever takes them along."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..chapters import PROFILES
from . import terminal


def declare(commands: terminal.Commands) -> None:
    """Declare the command."""
    notebooks = terminal.add(
        commands,
        "notebooks",
        "write the executed chapters of the last build as notebooks that run in Colab, too",
        write,
    )
    notebooks.add_argument("--output", type=Path, required=True, help="folder for the notebooks")
    notebooks.add_argument(
        "--profile", choices=PROFILES, default="cpu", help="profile of the build (default: cpu)"
    )
    notebooks.add_argument(
        "--repository",
        metavar="URL",
        help="the repository that Colab fetches (default: `repository: url` of _config.yml)",
    )


def write(root: Path, options: argparse.Namespace) -> None:
    """Write the notebooks and tell where they are."""
    from .. import published

    url, branch = published.repository(root)
    written = published.write_notebooks(
        root, options.profile, options.output, options.repository or url, branch
    )
    print(f"{len(written)} notebooks in {options.output}")
