"""Whether a symbolic identity holds: simplified to zero, and at random rational points."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy as sp

__all__ = ["agree_at", "rational_point", "value_at", "vanishes"]

Expression = sp.Expr | sp.MatrixBase

#: Digits to which an expression with exponentials or roots is evaluated at a point.
DIGITS = 60


def _entries(expression: Expression) -> Sequence[sp.Expr]:
    return expression.flat() if isinstance(expression, sp.MatrixBase) else [expression]


def vanishes(difference: Expression) -> bool:
    """Whether an expression, or every entry of a matrix, simplifies to zero.

    Polynomials need expanding only; whatever that leaves goes through :func:`sympy.simplify`.
    """
    for entry in _entries(difference):
        left = sp.expand(entry)
        if left != 0 and sp.simplify(left) != 0:
            return False
    return True


def rational_point(symbols: Iterable[sp.Basic], seed: int) -> dict[sp.Basic, sp.Expr]:
    """A random positive rational number for every symbol, the same for the same names and seed."""
    draw = random.Random(seed)
    ordered = sorted(symbols, key=str)
    return {x: sp.Rational(draw.randint(1, 12), draw.randint(5, 12)) for x in ordered}


def value_at(expression: sp.Expr, point: Mapping[sp.Basic, sp.Expr]) -> sp.Expr:
    """Value of an expression at a point: rational if it is a rational function, else a float of
    ``DIGITS`` digits and some to spare.

    Every subexpression is evaluated once, however often it occurs; derivatives of nested
    functions would take exponentially long otherwise.

    Raises
    ------
    ValueError
        If the point leaves a symbol without a value.
    """
    missing = sorted(map(str, expression.free_symbols - set(point)))
    if missing:
        raise ValueError(f"point: expected a value for every symbol, none for {missing}.")
    digits = DIGITS + 20
    exact = expression.is_rational_function()
    known: dict[sp.Basic, Any] = {
        symbol: number if exact else sp.N(number, digits) for symbol, number in point.items()
    }

    def value(node: sp.Basic) -> Any:
        if node not in known:
            made = node.func(*map(value, node.args)) if node.args else node
            known[node] = made if made.is_Number else sp.N(made, digits)
        return known[node]

    return value(expression)


def agree_at(left: Expression, right: Expression, point: Mapping[sp.Basic, sp.Expr]) -> bool:
    """Whether two expressions, or matrices entry by entry, are equal at a rational point.

    Exactly if both are rational functions; with exponentials or roots, to ``DIGITS`` digits.
    Errors as in :func:`value_at`.
    """
    for pair in zip(_entries(left), _entries(right), strict=True):
        a, b = (value_at(each, point) for each in pair)
        near = sp.Float(10) ** -DIGITS * max(abs(a), abs(b), 1)
        if a != b and (a.is_Rational and b.is_Rational or abs(a - b) > near):
            return False
    return True
