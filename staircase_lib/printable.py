r"""Text of unknown origin, made fit to be shown.

A token may hold control characters, direction marks, half a surrogate pair, or no end. Here they
become escapes that a reader sees and no terminal, page or chart obeys. HTML is left as it is:
whoever writes HTML escapes it.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

__all__ = ["printable", "printable_json"]


def printable(text: str, longest: int | None = None) -> str:
    r"""Text with everything but printable characters and the plain space as escapes.

    Parameters
    ----------
    text : str
    longest : int, optional
        Longer texts lose their middle, in whose place stands ``…``.

    Returns
    -------
    str
        For example ``\u202e`` for the mark that reverses what follows.
    """
    shown = [c if c.isprintable() else _escaped(c) for c in text]
    if longest is not None and sum(map(len, shown)) > longest:
        tail = _fitting(shown[::-1], longest // 3)[::-1]
        shown = [*_fitting(shown, longest - longest // 3 - 1), "…", *tail]
    return "".join(shown)


def _fitting(pieces: list[str], room: int) -> list[str]:
    """As many of the first pieces as fit."""
    ends = accumulate(map(len, pieces))
    return [piece for piece, end in zip(pieces, ends, strict=True) if end <= room]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def printable_json(value: Any) -> str:
    r"""Indented JSON that a terminal can show, and that reads back as the same value.

    Letters of all scripts stay; what is not printable is written as ``\uNNNN``.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    # Raw line ends stand between values only: within strings JSON has escaped them.
    kept = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    return "".join(kept)
