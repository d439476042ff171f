r"""An equation as a display with a number and a name that the text can refer to.

A cell that ends in :func:`numbered` puts ``$$ … $$ (label)`` on the page, which MyST numbers and
``{eq}`label``` refers to; JupyterLab shows the same with the label's name behind it. The chapter's
front matter needs ``mystnb: render_markdown_format: myst``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import sympy as sp

__all__ = ["Display", "numbered"]

#: Rough width of a line in letters; displays are broken between terms to stay below it.
LINE = 58


@dataclass(frozen=True)
class Display:
    """A numbered display; ``latex`` is its content, ``label`` what the text refers to."""

    latex: str
    label: str

    def _repr_markdown_(self) -> str:
        return f"$$\n{self.latex}\n$$ ({self.label})"

    def __repr__(self) -> str:
        return f"({self.label})  {self.latex}"


def _letters(latex: str) -> int:
    """About how many letters wide a piece of TeX is set."""
    shown = re.sub(r"\\(left|right|displaystyle|limits|[,!;: ])", "", latex)
    shown = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1", shown)
    shown = re.sub(r"\\[a-zA-Z]+", "x", shown)
    return len(re.sub(r"[{}^_\s]", "", shown))


def _terms(expression: sp.Expr | str) -> list[str]:
    """The summands, each as TeX with its sign in front."""
    if isinstance(expression, str):
        return [expression]
    parts = expression.as_ordered_terms() if isinstance(expression, sp.Add) else [expression]
    signed = []
    for part in parts:
        latex = sp.latex(part)
        signed.append(latex if latex.startswith("-") else f"+ {latex}")
    return signed


def _lines(terms: Sequence[str]) -> list[str]:
    """Summands gathered into lines no wider than :data:`LINE`, if a summand allows."""
    lines = [terms[0].removeprefix("+ ")]
    for term in terms[1:]:
        if _letters(lines[-1]) + _letters(term) > LINE:
            lines.append(term)
        else:
            lines[-1] += f" {term}"
    return lines


def numbered(
    label: str,
    left: sp.Expr | str,
    *right: sp.Expr | str | Sequence[sp.Expr | str],
    relation: str = "=",
) -> Display:
    r"""A numbered display ``left = right = …``, one line for each right side, long ones broken.

    Parameters
    ----------
    label : str
        Name for ``{eq}`label```; unique in the book.
    left : Expr or str
        An expression, or TeX.
    *right : Expr, str, or list of them
        What it is equal to, line by line; a list is a sum that keeps its order.
    relation : str
        TeX of the relation sign.

    Returns
    -------
    Display
    """
    if not right:
        raise ValueError(f"{label}: expected at least one right side, got none.")
    rows = []
    for number, side in enumerate(right):
        parts = [side] if isinstance(side, (str, sp.Basic)) else list(side)
        terms = [term for part in parts for term in _terms(part)]
        first, *rest = _lines(terms)
        start = (left if isinstance(left, str) else sp.latex(left)) if number == 0 else ""
        rows.append(f"{start} &{relation} {first}")
        rows.extend(rf"&\quad {line}" for line in rest)
    body = " \\\\\n".join(rows)
    return Display(f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}", label)
