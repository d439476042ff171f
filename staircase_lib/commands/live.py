"""``live``: the book with running code."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import terminal

NEEDS = (*terminal.BOOK_PACKAGES, "jupyter_server")


def declare(commands: terminal.Commands) -> None:
    """Declare the command."""
    live = terminal.add(
        commands,
        "live",
        "serve the built book on this machine with code that runs in the page",
        serve,
        needs=NEEDS,
    )
    live.add_argument(
        "--port",
        type=terminal.at_most(65535, least=0),
        default=8001,
        help="to listen on; the next free one if it is taken (default: 8001; 0: any)",
    )


def serve(root: Path, options: argparse.Namespace) -> None:
    """Serve until interrupted."""
    from .. import live

    live.serve(root, options.port)
