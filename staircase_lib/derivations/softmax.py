r"""The residual :math:`r=e_y-\mathrm{softmax}(f)` and its expansion for small logits.

Theorem 1 replaces the softmax by its value at zero logits. How good that is, to any order, follows
from one observation: along the ray :math:`\lambda f` the logarithm of the softmax has the cumulants
of the logits as derivatives,

.. math:: \frac{d}{d\lambda}\log s_v=f_v-\kappa_1,\qquad
          \frac{d^n}{d\lambda^n}\log s_v=-\kappa_n\quad(n\ge2),

where :math:`\kappa_n(\lambda)` is the :math:`n`-th cumulant of :math:`f_u` when :math:`u` is drawn
from :math:`\mathrm{softmax}(\lambda f)`; at :math:`\lambda=0` it is drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy as sp

from .notation import LETTERS, indexed

__all__ = [
    "cross_entropy",
    "cumulant",
    "expansion",
    "ordered_bell",
    "remainder_bound",
    "residual",
    "softmax",
    "softmax_derivative",
    "uniform_cumulants",
]


def softmax(logits: Sequence[sp.Expr]) -> list[sp.Expr]:
    r"""Softmax :math:`s_v=e^{f_v}/\sum_ue^{f_u}`."""
    total = sp.Add(*map(sp.exp, logits))
    return [sp.exp(f) / total for f in logits]


def cross_entropy(logits: Sequence[sp.Expr], label: int) -> sp.Expr:
    r"""Cross-entropy :math:`\ell=\log\sum_ue^{f_u}-f_y` (section 3.1)."""
    return sp.log(sp.Add(*map(sp.exp, logits))) - logits[label]


def residual(vocab_size: int, label: int) -> list[sp.Expr]:
    r"""Residual :math:`r_v=-\partial\ell/\partial f_v`, by differentiating the cross-entropy.

    Returns
    -------
    list of Expr
        In the symbols ``f_0, f_1, …``; equal to :math:`\mathbb 1\{v=y\}-s_v`.
    """
    f = indexed("f", range(vocab_size))
    return [-sp.diff(cross_entropy(f, label), each) for each in f]


def cumulant(n: int) -> sp.Symbol:
    r"""Symbol of the :math:`n`-th cumulant :math:`\kappa_n` of the logits, for :math:`n\ge2`."""
    return indexed("kappa", [n])[0]


def softmax_derivative(order: int) -> sp.Expr:
    r"""Derivative of order :math:`n` of the softmax along the ray :math:`\lambda f`.

    .. math:: \frac{d^n s_v}{d\lambda^n}=s_v\,B_n(\delta_v,-\kappa_2,\dots,-\kappa_n),\qquad
              \delta_v=f_v-\kappa_1

    with the complete Bell polynomial :math:`B_n`: the derivatives of an exponential whose exponent
    has the derivatives in the module's docstring.

    Notes
    -----
    This book; exact at every :math:`\lambda`, with the mean and the cumulants taken there.
    """
    if order == 0:
        return LETTERS.softmax
    steps = [LETTERS.deviation, *(-cumulant(n) for n in range(2, order + 1))]
    bell = (sp.bell(order, k, steps[: order - k + 1]) for k in range(1, order + 1))
    return LETTERS.softmax * sp.expand(sp.Add(*bell))


def expansion(order: int) -> list[sp.Expr]:
    r"""Terms of the softmax of small logits, up to an order.

    .. math:: s_v(\lambda f)=\frac1V+\frac{\lambda}{V}\delta_v
              +\frac{\lambda^2}{2V}\big(\delta_v^2-\kappa_2\big)+\dots,\qquad
              \delta_v=f_v-\tfrac1V\sum_uf_u

    Returns
    -------
    list of Expr
        Entry ``n`` is the term in :math:`\lambda^n`, with cumulants of the uniform distribution.
        The residual is :math:`\mathbb 1\{v=y\}` minus their sum.

    Notes
    -----
    Section 4.3 of the paper, whose Theorem 1 keeps the first term.
    """
    V, lam = LETTERS.V, LETTERS.scale
    return [
        lam**n * softmax_derivative(n).subs(LETTERS.softmax, 1 / V) / sp.factorial(n)
        for n in range(order + 1)
    ]


def uniform_cumulants(logits: Sequence[sp.Expr], order: int) -> dict[sp.Symbol, sp.Expr]:
    r"""Cumulants :math:`\kappa_2..\kappa_n` of explicit logits under the uniform distribution.

    From the power means :math:`\mu_j` by
    :math:`\kappa_n=\mu_n-\sum_{j=1}^{n-1}\binom{n-1}{j-1}\kappa_j\mu_{n-j}`.
    """
    size = len(logits)
    mean = [sp.Add(*(f**j for f in logits)) / size for j in range(order + 1)]
    kappa: list[sp.Expr] = [sp.S.Zero]
    for n in range(1, order + 1):
        lower = sum(sp.binomial(n - 1, j - 1) * kappa[j] * mean[n - j] for j in range(1, n))
        kappa.append(mean[n] - lower)
    return {cumulant(n): sp.expand(kappa[n]) for n in range(2, order + 1)}


def ordered_bell(n: int) -> int:
    r"""Number of ways to rank :math:`n` things with ties,
    :math:`\sum_kk!\,{n\brace k}` (1, 1, 3, 13, 75, …)."""
    from sympy.functions.combinatorial.numbers import stirling

    return sum(int(sp.factorial(k) * stirling(n, k)) for k in range(n + 1))


def remainder_bound(order: int) -> sp.Expr:
    r"""Bound of what the expansion to order :math:`n` leaves out.

    .. math:: \Big|s_v(\lambda f)-\sum_{j\le n}\dots\Big|\le
              \frac{a_{n+1}}{(n+1)!}\,(\lambda\rho)^{n+1},\qquad \rho=\max f-\min f,

    with the ordered Bell numbers :math:`a_n`.

    Notes
    -----
    This book. Write :math:`s_v=1/\sum_ue^{-\lambda(f_v-f_u)}`. By Faà di Bruno's formula its
    :math:`n`-th derivative is a sum of :math:`k!\,{n\brace k}` terms for each :math:`k`, each
    :math:`s_v` times :math:`k` means of powers of :math:`f_u-f_v` that add up to the power
    :math:`n`, hence at most :math:`\rho^n`; and :math:`s_v\le1`. Taylor's theorem does the rest.
    """
    n = order + 1
    return sp.Rational(ordered_bell(n), sp.factorial(n)) * (LETTERS.scale * LETTERS.spread) ** n
