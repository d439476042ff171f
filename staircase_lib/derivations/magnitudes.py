r"""Proposition 1 (section 4.3 of arXiv:2608.30315): the size of each order at initialization.

All entries of :math:`E`, :math:`W`, :math:`U` are independent normal numbers, with standard
deviations :math:`d^{-\gamma}`, :math:`d^{-\gamma}`, :math:`h^{-\gamma}`. One entry of the vector

.. math:: W\Big[z_{x_1}^{j_1}\odot\dots\odot z_{x_n}^{j_n}\odot U R\Big],\qquad z_x=W^\top E_x,

a monomial term of Theorem 1 with distinct tokens :math:`x_1..x_n` and a fixed residual signature
:math:`R`, has mean zero; its variance is computed here exactly, not up to constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy as sp

from .notation import LETTERS, entry

__all__ = [
    "gaussian_mean",
    "order_ratio",
    "power_of_d",
    "term_entry",
    "term_variance",
]


def gaussian_mean(expression: sp.Expr, deviations: Mapping[sp.Symbol, sp.Expr]) -> sp.Expr:
    r"""Mean of a polynomial of independent centred normal variables.

    Monomial by monomial: :math:`\mathbb E\,x^{2n}=(2n-1)!!\,s^{2n}`, odd powers vanish.

    Parameters
    ----------
    expression : Expr
        Polynomial in the keys of `deviations`.
    deviations : mapping of Symbol to Expr
        Standard deviation of every variable.
    """
    variables = list(deviations)
    total = sp.S.Zero
    for powers, factor in sp.Poly(expression, *variables).terms():
        if all(n % 2 == 0 for n in powers):
            moments = (
                sp.factorial2(n - 1) * deviations[x] ** n
                for x, n in zip(variables, powers, strict=True)
                if n
            )
            total += sp.Mul(factor, *moments)
    return sp.expand(total)


def term_entry(d: int, h: int, powers: Sequence[int], labels: int = 1) -> sp.Expr:
    r"""First entry of :math:`W[z_{x_1}^{j_1}\odot\cdots\odot U R]`, written out for given widths.

    Entries are the symbols :math:`W_{a,b}`, :math:`E_{x,a}`, :math:`U_{b,v}`, :math:`R_v`.
    """
    out = sp.S.Zero
    for b in range(h):
        z = [
            sp.Add(*(entry("W", a, b) * entry("E", x, a) for a in range(d)))
            for x in range(len(powers))
        ]
        signal = sp.Add(*(entry("U", b, v) * entry("R", v) for v in range(labels)))
        out += (
            entry("W", 0, b)
            * sp.Mul(*(each**j for each, j in zip(z, powers, strict=True)))
            * (signal)
        )
    return out


def term_variance(powers: Sequence[int]) -> sp.Expr:
    r"""Variance of one entry of a monomial term at initialization.

    .. math:: h\cdot h^{-2\gamma}\lVert R\rVert^2\cdot d^{-2\gamma(2n+1)}
              \prod_{i=1}^{n}(d+2i)\ \prod_x(2j_x-1)!!,\qquad n=\sum_xj_x

    Parameters
    ----------
    powers : sequence of int
        :math:`j_x` of the distinct tokens in the term.

    Notes
    -----
    This book. Given the column :math:`w` of :math:`W`, each :math:`z_x` is normal with variance
    :math:`|w|^2d^{-2\gamma}`; what remains is
    :math:`\mathbb E[w_a^2|w|^{2n}]=d^{-2\gamma(n+1)}\prod_{i=1}^n(d+2i)`, a moment of the
    chi-squared distribution. The :math:`h` summands are uncorrelated because the rows of
    :math:`U` are.
    """
    d, h, gamma = LETTERS.d, LETTERS.h, LETTERS.gamma
    n = sum(powers)
    chi = sp.Mul(*(d + 2 * i for i in range(1, n + 1)))
    pairings = sp.Mul(*(sp.factorial2(2 * j - 1) for j in powers))
    unembedding = h ** (1 - 2 * gamma) * LETTERS.signal**2
    return unembedding * d ** (-2 * gamma * (2 * n + 1)) * chi * pairings


def power_of_d(expression: sp.Expr) -> sp.Expr:
    r"""Exponent with which a positive quantity grows in :math:`d`, hidden width equal to it.

    The limit of :math:`d\,\frac{\partial}{\partial d}\log(\cdot)` as :math:`d\to\infty`.
    """
    d = LETTERS.d
    logarithm = sp.expand_log(sp.log(expression.subs(LETTERS.h, d)), force=True)
    return sp.factor(sp.limit(sp.expand(d * sp.diff(logarithm, d)), d, sp.oo))


def order_ratio(order: int) -> sp.Expr:
    r"""Standard deviation of the leading term of order :math:`m` over that of order 0.

    .. math:: \sqrt{\frac{\mathrm{Var}[m]}{\mathrm{Var}[0]}}
              =d^{-2\gamma m}\sqrt{\textstyle\prod_{i=1}^m(d+2i)}\ \sim\ d^{\,m(1/2-2\gamma)}

    The leading term has the lowest power that uses :math:`m` context tokens, :math:`k=m+1`, each
    token once; coefficients :math:`c_k` and the signatures' norms do not depend on :math:`d`.

    Notes
    -----
    Proposition 1, section 4.3 of the paper; the exponent is this book's. It needs
    :math:`c_{m+1}\ne0`: with :math:`c_2=0` order 1 starts at :math:`k=3` and is as small as
    order 2.
    """
    return sp.sqrt(sp.simplify(term_variance([1] * order) / term_variance([])))
