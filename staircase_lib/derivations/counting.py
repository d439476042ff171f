r"""How many terms each order of Theorem 1 has: the prefactor behind Proposition 2.

At large embedding scale only the activation's highest power counts, and it brings every order to
the same scale. What then separates the orders is how many products of embeddings they hold. The
derivative of the :math:`K`-th power leaves :math:`K-1` factors; each is the anchor or one of the
context tokens. Order :math:`m` needs its :math:`m` context slots all used.
"""

# SymPy's annotations leave open what its constructors return.
# pyright: reportReturnType=false

from __future__ import annotations

from itertools import product

import sympy as sp
from sympy.functions.combinatorial.numbers import stirling

__all__ = ["by_enumeration", "factor_maps", "highest_order_wins_from", "prefactor", "ratio"]


def factor_maps(degree: int, order: int) -> int:
    r"""Maps of :math:`K-1` factors onto the anchor and :math:`m` slots that use every slot.

    .. math:: n(K,m)=\sum_{j=0}^{m}(-1)^{m-j}\binom mj(j+1)^{K-1}=m!\,{K\brace m+1}

    By inclusion–exclusion over the slots that are allowed. The second form: a partition of
    :math:`K` things, the :math:`K-1` factors and a mark for the anchor, into :math:`m+1` classes,
    times the ways to name the :math:`m` classes without the mark.

    Notes
    -----
    This book; Proposition 2, section 4.3 of the paper, argues from its growth in :math:`K`.
    """
    terms = (
        (-1) ** (order - j) * sp.binomial(order, j) * (j + 1) ** (degree - 1)
        for j in range(order + 1)
    )
    return int(sum(terms))


def by_enumeration(degree: int, order: int) -> int:
    """The number of :func:`factor_maps`, by writing all maps down."""
    slots = set(range(1, order + 1))
    return sum(slots <= set(targets) for targets in product(range(order + 1), repeat=degree - 1))


def prefactor(length: int, degree: int, order: int) -> int:
    r"""Terms of order :math:`m` at degree :math:`K`.

    .. math:: N(L,K,m)=\binom{L-1}m\,n(K,m),\qquad \sum_mN(L,K,m)=L^{K-1}

    The sum says that nothing is lost: each of the :math:`K-1` factors is one of :math:`L` tokens.

    Notes
    -----
    Proposition 2, section 4.3 of the paper; the count is this book's.
    """
    return int(sp.binomial(length - 1, order)) * factor_maps(degree, order)


def ratio(length: int, degree: int, order: int) -> sp.Rational:
    r"""Prefactor of order :math:`m` over that of order :math:`m-1`.

    .. math:: \frac{N(L,K,m)}{N(L,K,m-1)}=(L-m)\,{K\brace m+1}\Big/{K\brace m}
    """
    upper, lower = stirling(degree, order + 1), stirling(degree, order)
    return (length - order) * sp.Rational(upper) / lower


def highest_order_wins_from(length: int) -> int:
    r"""Smallest degree :math:`K` from which order :math:`L-1` has the most terms.

    Notes
    -----
    This book. For fixed :math:`K` the Stirling numbers :math:`{K\brace j}` are log-concave in
    :math:`j` (their generating polynomial has real roots only), and so is
    :math:`(L-1)!/(L-1-m)!`; so is their product :math:`N(L,K,m)`, and its maximum is at
    :math:`m=L-1` as soon as the last :func:`ratio`, :math:`q={K\brace L}/{K\brace L-1}`, exceeds
    one. That ratio grows with :math:`K`: the recurrence
    :math:`{K+1\brace j}=j{K\brace j}+{K\brace j-1}` gives

    .. math:: q'=\frac{L\,q+1}{(L-1)+1/q_-},\qquad q_-={K\brace L-1}\Big/{K\brace L-2}\ge q,

    and :math:`q'>q` is :math:`q+1>q/q_-`, true because :math:`q/q_-\le1`. So there is one crossing,
    and the search below stops at it.
    """
    if length < 2:
        raise ValueError(f"length: expected at least 2 for two orders to compare, got {length}.")
    degree = length
    while ratio(length, degree, length - 1) <= 1:
        degree += 1
    return degree
