"""Token ids that a command reads, or makes from a text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import terminal

#: Tokens of a tokenizer that is trained, unless asked for otherwise.
VOCAB_SIZE = 16384


def add_corpus(command: argparse.ArgumentParser) -> None:
    """The options of commands that read token ids, or make them from a text."""
    command.add_argument(
        "corpus",
        metavar="CORPUS",
        help="text file, .jsonl, .parquet, folder of these, hf:NAME, a named corpus such as "
        "default, or token ids: a folder of ours, .npy, .bin, or a folder of these",
    )
    command.add_argument(
        "--vocab-size",
        type=terminal.at_most(2**31, least=1),
        metavar="V",
        help=f"tokens (default: {VOCAB_SIZE}, or those of --tokenizer)",
    )
    command.add_argument("--words", action="store_true", help="whole words as tokens, not a BPE's")
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a vocabulary that is there: tokenizer.json, a folder with one, hf:NAME, or qwen",
    )
    command.add_argument("--dtype", metavar="TYPE", help="of ids in .bin files, such as uint16")
    command.add_argument(
        "--separator", type=int, metavar="ID", help="between documents, of ids in .npy and .bin"
    )
    command.add_argument(
        "--field", default="text", help="key or column with the text (default: text)"
    )
    command.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="characters to read, of each text of a named corpus (default: all)",
    )


def are_there(options: argparse.Namespace, folder: Path) -> bool:
    """Whether the token ids have been made already."""
    return any((p / "header.json").is_file() for p in (Path(options.corpus), folder / "tokens"))


def tokens(options: argparse.Namespace, folder: Path, progress: Callable[[int], None]) -> Any:
    """Token ids of the corpus: those that are there, or made from its text."""
    from ..language.id_files import holds_ids, import_ids
    from ..language.tokens import open_tokens, prepare

    corpus, shipped, size = options.corpus, options.tokenizer, options.vocab_size
    ours = (Path(corpus) / "header.json").is_file()
    if options.limit is not None and (ours or holds_ids(corpus)):
        raise ValueError("limit: expected with text only, not with ids, which are there already.")
    if ours:
        return open_tokens(corpus)
    print(f"tokens of {corpus} in {folder}", file=sys.stderr, flush=True)
    if holds_ids(corpus):
        given = {name: getattr(options, name) for name in ("dtype", "separator", "tokenizer")}
        return import_ids(corpus, folder / "tokens", size, **given, progress=progress)
    for name in ("dtype", "separator"):
        if getattr(options, name) is not None:
            raise ValueError(f"{name}: expected with ids in .npy or .bin only, not with text.")
    if shipped is not None and size is not None:
        raise ValueError("vocab-size: expected without --tokenizer, which has its own size.")
    return prepare(
        corpus,
        folder / "tokens",
        size or VOCAB_SIZE,
        words=options.words,
        tokenizer=shipped,
        field=options.field,
        limit=options.limit,
        progress=progress,
    )
