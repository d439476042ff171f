r"""Why adding zeroth-order signatures solves min-max (section 7 of arXiv:2608.30315).

Sequences are (operator, a, b) with :math:`a,b` independent and uniform on :math:`0..N-1` and both
operators equally likely; see :func:`staircase_lib.tasks.min_max`. The rule scores a label
:math:`y` by

.. math:: T(y)=\lambda\,S^{(0)}_{\mathrm{op}}(y)+S^{(0)}_a(y)+S^{(0)}_b(y)

and answers the highest score. The margin of a sequence is the score of the right label minus the
highest other score.
"""

# SymPy's annotations leave open what its operators return.
# pyright: reportReturnType=false, reportOperatorIssue=false

from __future__ import annotations

from fractions import Fraction
from itertools import product

import sympy as sp

from .notation import symbol

__all__ = [
    "A",
    "B",
    "N",
    "Y",
    "least_margin",
    "margins",
    "margins_by_enumeration",
    "number_signature",
    "operator_signature",
    "weight",
    "weight_limit",
]

#: How many numbers there are.
N = symbol("N", positive=True, integer=True)
A, B = (symbol("operands", name, nonnegative=True, integer=True) for name in "ab")
#: The label.
Y = symbol("y", nonnegative=True, integer=True)
#: Weight of the operator's signature in the sum.
weight = symbol("operator weight", "lambda")


def operator_signature(operator: str, label: sp.Expr = Y) -> sp.Expr:
    r""":math:`S^{(0)}` of an operator, by counting pairs.

    .. math:: S^{(0)}_{\min}(y)=\frac{(N-y)^2-(N-y-1)^2}{N^2}=\frac{2(N-y)-1}{N^2},\qquad
              S^{(0)}_{\max}(y)=\frac{2y+1}{N^2}

    The smaller of two numbers is at least :math:`y` in :math:`(N-y)^2` of :math:`N^2` pairs.

    Parameters
    ----------
    operator : {"min", "max"}
    label : Expr
    """
    if operator not in ("min", "max"):
        raise ValueError(f"operator: expected 'min' or 'max', got {operator!r}.")
    at_least = (N - label) ** 2 if operator == "min" else (label + 1) ** 2
    beyond = (N - label - 1) ** 2 if operator == "min" else label**2
    return sp.factor((at_least - beyond) / N**2)


def number_signature() -> tuple[sp.Expr, sp.Expr]:
    r""":math:`S^{(0)}` of a number: a level for every label, and a spike on its own.

    .. math:: S^{(0)}_a(y)=\frac1{2N}+\frac12\,\mathbb 1[y=a]

    A label other than :math:`a` is the partner, and one of the two operators asks for it. The
    label :math:`a` is the smaller of the pair for :math:`N-a` partners and the larger for
    :math:`a+1`, and :math:`a` drops out of the sum.

    Returns
    -------
    level, spike : Expr
    """
    half = sp.Rational(1, 2)
    level = half / N
    own = half * (N - A) / N + half * (A + 1) / N
    return level, sp.simplify(own - level)


def margins() -> dict[str, sp.Expr]:
    r"""Score of the right label minus that of a competitor, for the operator *min*.

    By the reflection :math:`y\to N-1-y` the same holds for *max*. Keys:

    ``"other number"``
        :math:`a<b`, against :math:`b`.
    ``"third label"``
        :math:`a<b`, against a label :math:`y` that is neither.
    ``"equal numbers"``
        :math:`a=b`, against any other label.
    """
    _, spike = number_signature()

    def slope(other: sp.Expr) -> sp.Expr:
        return weight * (operator_signature("min", A) - operator_signature("min", other))

    found = {
        "other number": slope(B),
        "third label": spike + slope(Y),
        "equal numbers": 2 * spike + slope(Y),
    }
    return {name: sp.expand(margin) for name, margin in found.items()}


def least_margin() -> dict[str, sp.Expr]:
    r"""Each of :func:`margins` where it is smallest.

    The first grows with :math:`b-a`, so neighbours decide. The others grow with :math:`y-a`: the
    competitor is :math:`y=0`, and the right label as large as it can be, :math:`a=N-2` below a
    larger number, :math:`a=N-1` for equal ones.
    """
    worst = {
        "other number": {B: A + 1},
        "third label": {Y: 0, A: N - 2},
        "equal numbers": {Y: 0, A: N - 1},
    }
    return {name: sp.factor(margin.subs(worst[name])) for name, margin in margins().items()}


def weight_limit(n_numbers: int) -> Fraction:
    r"""Largest weight of the operator below which the rule is right on every sequence.

    .. math:: 0<\lambda<\min\Big(\frac{N^2}{4(N-2)},\ \frac{N^2}{2(N-1)}\Big)

    The zeros of the last two of :func:`least_margin`; the first of them needs :math:`N\ge3`.

    Raises
    ------
    ValueError
        If there are fewer than two numbers: no two labels compete.
    """
    if n_numbers < 2:
        raise ValueError(f"n_numbers: expected at least 2 labels that compete, got {n_numbers}.")
    names = ["equal numbers"] + ["third label"] * (n_numbers > 2)
    zeros = [sp.solve(least_margin()[name], weight)[0].subs(N, n_numbers) for name in names]
    return min(Fraction(int(zero.p), int(zero.q)) for zero in zeros)


def margins_by_enumeration(
    n_numbers: int, operator_weight: Fraction | int = 1
) -> dict[tuple[str, int, int], Fraction]:
    """Margin of every sequence in exact fractions, signatures counted from the task itself."""
    numbers = range(n_numbers)
    answer = {"min": min, "max": max}
    count = {token: [0] * n_numbers for token in [*answer, *numbers]}
    for operator, a, b in product(answer, numbers, numbers):
        y = answer[operator](a, b)
        for token in (operator, a, b):
            count[token][y] += 1
    signature = {t: [Fraction(c, sum(row)) for c in row] for t, row in count.items()}
    found = {}
    for operator, a, b in product(answer, numbers, numbers):
        y = answer[operator](a, b)
        score = [
            operator_weight * signature[operator][v] + signature[a][v] + signature[b][v]
            for v in numbers
        ]
        found[operator, a, b] = score[y] - max(
            (s for v, s in enumerate(score) if v != y), default=Fraction(0)
        )
    return found
