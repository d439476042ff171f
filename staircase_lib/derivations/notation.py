r"""The letters of arXiv:2608.30315 and of this book: what each means, and the SymPy symbols.

``notation.toml`` explains every letter; :data:`SIGNS` are its rows, and the book's page of notation
shows them (:func:`table`). Symbols are made here and nowhere else, and only for letters that are
explained there: scalars are the fields of :data:`LETTERS`; entries of vectors, matrices and tables
come from the functions below and print as the paper writes them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any

import sympy as sp

__all__ = [
    "GROUPS",
    "LETTERS",
    "SIGNS",
    "Letters",
    "Sign",
    "coefficient",
    "entry",
    "frequency",
    "indexed",
    "matrix",
    "primed",
    "probability",
    "read_signs",
    "residual_entry",
    "symbol",
    "table",
    "unknown",
]

#: Groups of letters with their headings, in the order of the page.
GROUPS = {
    "data": "Data and signatures",
    "model": "Models and initialization",
    "training": "Training and what is measured",
    "attention": "Attention and Transformers",
    "proofs": "Letters of the derivations",
}


@dataclass(frozen=True)
class Sign:
    r"""A letter and what it means.

    Attributes
    ----------
    key : str
        What the functions of this module ask for: the name of a scalar, or an indexed letter with
        a ``_`` for each index, such as ``E__`` for :math:`E_{x,a}`.
    group : str
        One of :data:`GROUPS`.
    latex : str
        How it is set, without dollar signs.
    name : str
        What one calls it, in a few words; the book's search finds it.
    meaning : str
        What it is, in MyST.
    shape : str
        Shape or range, in MyST.
    first : str
        Where the book introduces it: a MyST role that links there.
    code : str
        Its name in the library; empty if it has none there.
    """

    key: str
    group: str
    latex: str
    name: str
    meaning: str
    shape: str
    first: str
    code: str = ""


def read_signs(rows: Iterable[Mapping[str, str]]) -> dict[str, Sign]:
    """Letters by their key, in order.

    Parameters
    ----------
    rows : iterable of mappings
        The fields of :class:`Sign` by name; only ``code`` may be left out.

    Raises
    ------
    ValueError
        If a letter lacks one of its fields or has one that is not known, is in no group, or is
        explained twice.
    """
    known = [each.name for each in fields(Sign)]
    needed = [name for name in known if name != "code"]
    signs: dict[str, Sign] = {}
    for row in rows:
        key = row.get("key", "")
        missing = [name for name in needed if not row.get(name, "").strip()]
        strange = [name for name in row if name not in known]
        if missing or strange:
            told = [f"its {name} is missing" for name in missing]
            told += [f"{name!r} is none of {known}" for name in strange]
            raise ValueError(f"letter {key!r} in notation.toml: {', '.join(told)}.")
        if row["group"] not in GROUPS:
            raise ValueError(
                f"letter {key!r} in notation.toml: expected a group of {list(GROUPS)}, got "
                f"{row['group']!r}."
            )
        if key in signs:
            raise ValueError(f"letter {key!r} in notation.toml: explained twice; keep one.")
        signs[key] = Sign(**row)
    return signs


def _declared() -> dict[str, Sign]:
    path = resources.files("staircase_lib.derivations").joinpath("notation.toml")
    return read_signs(tomllib.loads(path.read_text(encoding="utf-8"))["sign"])


#: Every letter by its key, from ``notation.toml`` beside this module.
SIGNS: dict[str, Sign] = _declared()


def _explained(key: str) -> None:
    """Refuse a letter that nobody has explained."""
    if key not in SIGNS:
        raise ValueError(
            f"letter {key!r}: expected one of notation.toml, which says what each means; explain "
            f"it there. Known are {', '.join(SIGNS)}."
        )


def symbol(key: str, latex: str = "", **assumptions: bool) -> sp.Symbol:
    """Symbol of a letter that stands alone.

    Parameters
    ----------
    key : str
        One of :data:`SIGNS`.
    latex : str
        The symbol's name if it is not the key.
    **assumptions : bool
        SymPy's; default positive.

    Raises
    ------
    ValueError
        If the letter is not explained.
    """
    _explained(key)
    return sp.Symbol(latex or key, **(assumptions or {"positive": True}))


def _letter(key: str, latex: str = "", **assumptions: bool) -> sp.Symbol:
    return field(default=symbol(key, latex, **assumptions))


@dataclass(frozen=True)
class Letters:
    """Scalar letters that several derivations share."""

    V: sp.Symbol = _letter("V")
    L: sp.Symbol = _letter("L")
    K: sp.Symbol = _letter("K")
    m: sp.Symbol = _letter("m", integer=True, nonnegative=True)
    d: sp.Symbol = _letter("d")
    h: sp.Symbol = _letter("h")
    gamma: sp.Symbol = _letter("gamma")
    scale: sp.Symbol = _letter("lambda")
    spread: sp.Symbol = _letter("rho")
    deviation: sp.Symbol = _letter("delta_v", real=True)
    softmax: sp.Symbol = _letter("s_v")
    signal: sp.Symbol = _letter("‖R‖", r"\lVert R\rVert")
    epsilon: sp.Symbol = _letter("epsilon")


#: The letters of the paper, for everybody.
LETTERS = Letters()


def entry(letter: str, *indices: int | str, upper: str = "") -> sp.Symbol:
    r"""Entry of a vector or matrix, such as :math:`W_{a,b}`; ``upper`` is a superscript.

    Raises
    ------
    ValueError
        If the letter with so many indices is not explained.
    """
    _explained(letter + "_" * len(indices))
    name = f"{letter}^{{{upper}}}" if upper else letter
    return sp.Symbol(name + "_{" + ",".join(map(str, indices)) + "}", real=True)


def matrix(letter: str, rows: int, columns: int, upper: str = "") -> sp.Matrix:
    """Matrix of a letter's entries, numbered from 0; see :func:`entry`."""
    return sp.Matrix(rows, columns, lambda a, b: entry(letter, a, b, upper=upper))


def indexed(letter: str, indices: Iterable[int], **assumptions: bool) -> tuple[sp.Symbol, ...]:
    r"""Numbered letters such as :math:`f_0,f_1`, one for each index; default real.

    Raises
    ------
    ValueError
        If the letter with an index is not explained.
    """
    _explained(letter + "_")
    return tuple(sp.Symbol(f"{letter}_{i}", **(assumptions or {"real": True})) for i in indices)


def unknown(letter: str) -> Any:
    r"""A function of one variable that is left open, such as :math:`A`.

    Raises
    ------
    ValueError
        If the letter is not explained.
    """
    _explained(letter)
    return sp.Function(letter)


def primed(letter: str) -> sp.Symbol:
    r"""Symbol for the derivative of an open function, such as :math:`A'`.

    Raises
    ------
    ValueError
        If the letter is not explained.
    """
    _explained(letter)
    return sp.Symbol(f"{letter}'")


def coefficient(k: int) -> sp.Symbol:
    r"""Coefficient :math:`c_k` of the activation :math:`\sigma(z)=\sum_{k=1}^K c_kz^k`."""
    return indexed("c", [k])[0]


def frequency(row: int) -> sp.Symbol:
    r"""Weight :math:`p_s` of the :math:`s`-th sequence of a small data set, counted from 1."""
    return indexed("p", [row + 1], nonnegative=True)[0]


def probability(tokens: tuple[int, ...], label: int) -> sp.Symbol:
    r"""Probability :math:`p_{x_1\dots x_L\to y}` of one sequence with one label."""
    name = "p_{" + "".join(map(str, tokens)) + r"\to " + f"{label}}}"
    return symbol("probability", name, nonnegative=True)


def residual_entry(row: int, label: int) -> sp.Symbol:
    r"""Residual :math:`r_{s,v}` of the :math:`s`-th sequence at token :math:`v`."""
    return entry("r", row + 1, label)


def table(group: str) -> str:
    """The letters of a group as a table in MyST, for a page of the book.

    Columns: the letter as it is set, its name and meaning, shape or range, name in code, and where
    it comes first. Names enter the book's index.

    Parameters
    ----------
    group : str
        One of :data:`GROUPS`.

    Raises
    ------
    KeyError
        If there is no such group.
    """
    if group not in GROUPS:
        raise KeyError(f"group: expected one of {list(GROUPS)}, got {group!r}.")
    lines = ["```{table}", ":class: letters", ""]
    lines += ["| letter | meaning | shape or range | in code | first in |", "|---|---|---|---|---|"]
    for sign in SIGNS.values():
        if sign.group == group:
            names = ", ".join(f"{{index}}`!{name}`" for name in sign.name.split(", "))
            code = f"`{sign.code}`" if sign.code else "–"
            cells = [f"${sign.latex}$", f"**{names}**: {sign.meaning}", sign.shape, code]
            lines.append("| " + " | ".join([*cells, sign.first]) + " |")
    return "\n".join([*lines, "```"])
