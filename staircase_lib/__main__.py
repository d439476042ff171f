"""The command line: ``python -m staircase_lib COMMAND``; ``--help`` tells more on each."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .chapters import BookError, Exit, project_root
from .commands import (
    count,
    execution,
    ledger,
    live,
    measure,
    notebooks,
    offline,
    pretrain,
    terminal,
)
from .notebooks import CANNOT_WRITE


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="python -m staircase_lib",
        description="Run the chapters of Context Staircase, build the book, read its claims.",
        epilog=terminal.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (execution, live, notebooks, offline, ledger, measure, count, pretrain):
        module.declare(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    chosen = make_parser().parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    chosen.typed = shlex.join(["python", "-m", "staircase_lib", *given])
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        terminal.require(chosen.command, chosen.needs)
        chosen.act(project_root() if chosen.in_clone else Path(), chosen)
    except BookError as error:
        print(error, file=sys.stderr)
        return error.code
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        nowhere = "No usable temporary directory" in str(error)  # tempfile's words for a full disk
        if error.errno not in CANNOT_WRITE and not nowhere:
            raise
        place = error.filename or "a file"
        print(f"cannot open or write {place}: {error.strerror}; nothing is lost", file=sys.stderr)
        return Exit.CANNOT_WRITE
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return 128 + (interrupt.args or (signal.SIGINT,))[0]
    return 0


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
