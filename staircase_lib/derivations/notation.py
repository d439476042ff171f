r"""The letters of arXiv:2608.30315 as SymPy symbols, made here and nowhere else.

Scalars are the fields of :data:`LETTERS`, each with its meaning; entries of vectors, matrices and
tables come from the functions below and print as the paper writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import sympy as sp

__all__ = [
    "LETTERS",
    "Letters",
    "coefficient",
    "entry",
    "frequency",
    "legend",
    "probability",
    "residual_entry",
]


def _letter(latex: str, meaning: str, code: str = "", **assumptions: bool) -> sp.Symbol:
    symbol = sp.Symbol(latex, **(assumptions or {"positive": True}))
    return field(default=symbol, metadata={"meaning": meaning, "code": code})


@dataclass(frozen=True)
class Letters:
    """Scalar letters; :func:`legend` lists them with their meanings."""

    V: sp.Symbol = _letter("V", "vocabulary size", "vocab_size")
    L: sp.Symbol = _letter("L", "sequence length", "length")
    K: sp.Symbol = _letter("K", "degree of a polynomial activation", "degree")
    m: sp.Symbol = _letter("m", "signature order", "order", integer=True, nonnegative=True)
    d: sp.Symbol = _letter("d", "embedding width", "d")
    h: sp.Symbol = _letter("h", "hidden width", "hidden")
    gamma: sp.Symbol = _letter("gamma", "initialization rate", "gamma")
    scale: sp.Symbol = _letter("lambda", "common factor of all logits, or of all embeddings")
    spread: sp.Symbol = _letter("rho", "largest minus smallest logit")
    deviation: sp.Symbol = _letter("delta_v", "logit of token v minus the mean logit", real=True)
    softmax: sp.Symbol = _letter("s_v", "softmax of the logits at token v")
    signal: sp.Symbol = _letter(
        r"\lVert R\rVert", "Euclidean norm of a residual signature over its labels"
    )
    epsilon: sp.Symbol = _letter("epsilon", "offset inside a normalisation")


LETTERS = Letters()


def legend() -> list[tuple[sp.Symbol, str, str]]:
    """Symbol, name in code and meaning of every scalar letter, in order."""
    return [
        (getattr(LETTERS, f.name), f.metadata["code"], f.metadata["meaning"])
        for f in fields(Letters)
    ]


def entry(letter: str, *indices: int | str, upper: str = "") -> sp.Symbol:
    r"""Entry of a vector or matrix, such as :math:`W_{a,b}`; ``upper`` is a superscript."""
    name = f"{letter}^{{{upper}}}" if upper else letter
    return sp.Symbol(name + "_{" + ",".join(map(str, indices)) + "}", real=True)


def coefficient(k: int) -> sp.Symbol:
    r"""Coefficient :math:`c_k` of the activation :math:`\sigma(z)=\sum_{k=1}^K c_kz^k`."""
    return sp.Symbol(f"c_{k}", real=True)


def frequency(row: int) -> sp.Symbol:
    r"""Weight :math:`p_s` of the :math:`s`-th sequence of a small data set, counted from 1."""
    return sp.Symbol(f"p_{row + 1}", nonnegative=True)


def probability(tokens: tuple[int, ...], label: int) -> sp.Symbol:
    r"""Probability :math:`p_{x_1\dots x_L\to y}` of one sequence with one label."""
    return sp.Symbol("p_{" + "".join(map(str, tokens)) + r"\to " + f"{label}}}", nonnegative=True)


def residual_entry(row: int, label: int) -> sp.Symbol:
    r"""Residual :math:`r_{s,v}` of the :math:`s`-th sequence at token :math:`v`."""
    return sp.Symbol(f"r_{{{row + 1},{label}}}", real=True)
