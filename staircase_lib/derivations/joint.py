r"""Signatures of a generic distribution, symbol by symbol (section 3.2 of arXiv:2608.30315).

The distribution of a sequence and its label is left open: every outcome has a probability of its
own, a non-negative symbol. What holds here holds for every task. To stay polynomial the functions
return :math:`P(\alpha)\,S^{(m)}_\alpha`, the probability that a uniformly drawn position holds
:math:`\alpha` *and* the label and context are as given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import sympy as sp

from .notation import entry, probability

__all__ = [
    "Joint",
    "context_signature",
    "label_signature",
    "marginal",
    "norm_gap",
    "slot_gap",
    "squared_norm",
    "token_probability",
]

Signature = dict[tuple[int, ...], sp.Expr]


@dataclass(frozen=True)
class Joint:
    """A generic distribution of sequences of some length over a small vocabulary, and labels."""

    length: int
    vocab_size: int

    def outcomes(self) -> Iterator[tuple[tuple[int, ...], int, sp.Symbol]]:
        """Every sequence and label, with the symbol of its probability."""
        for tokens in product(range(self.vocab_size), repeat=self.length):
            for label in range(self.vocab_size):
                yield tokens, label, probability(tokens, label)


def token_probability(joint: Joint, token: int) -> sp.Expr:
    r"""Probability :math:`P(\alpha)` that a uniformly drawn position holds :math:`\alpha`."""
    counted = (p * tokens.count(token) for tokens, _, p in joint.outcomes())
    return sp.Add(*counted) / joint.length


def label_signature(joint: Joint, token: int, order: int) -> Signature:
    r"""Label signature times token probability, :math:`P(\alpha)\,S^{(m)}_\alpha(y,x_1..x_m)`.

    .. math:: \frac1L\sum_i\frac{(L-1-m)!}{(L-1)!}\sum_{(i_1..i_m)\not\ni i}
              P(x_i=\alpha,\,y,\,x_{i_1}=x_1,\dots,x_{i_m}=x_m)

    over ordered choices of distinct positions.

    Returns
    -------
    dict
        From ``(y, x_1, …, x_m)`` to an expression; entries that vanish identically are absent.

    Notes
    -----
    Section 3.2 of the paper.
    """
    if not 0 <= order < joint.length:
        raise ValueError(f"order: expected 0 to {joint.length - 1}, got {order}.")
    collected: dict[tuple[int, ...], list[sp.Expr]] = {}
    draws = joint.length * sp.ff(joint.length - 1, order)
    for tokens, label, p in joint.outcomes():
        for i in (i for i, x in enumerate(tokens) if x == token):
            others = [j for j in range(joint.length) if j != i]
            for context in permutations(others, order):
                key = (label, *(tokens[j] for j in context))
                collected.setdefault(key, []).append(p)
    return {key: sp.Add(*terms) / draws for key, terms in collected.items()}


def context_signature(joint: Joint, token: int, order: int) -> Signature:
    r"""Context signature times token probability, :math:`P(\alpha)\,C^{(m)}_\alpha`: the label
    summed out."""
    return marginal(label_signature(joint, token, order), axis=0)


def marginal(signature: Signature, axis: int = -1) -> Signature:
    """The signature with one slot summed out: the last, or the label with ``axis=0``."""
    out: dict[tuple[int, ...], list[sp.Expr]] = {}
    for key, value in signature.items():
        at = axis % len(key)
        out.setdefault(key[:at] + key[at + 1 :], []).append(value)
    return {key: sp.expand(sp.Add(*values)) for key, values in out.items()}


def squared_norm(signature: Signature) -> sp.Expr:
    """Sum of the squares of all entries."""
    return sp.Add(*(value**2 for value in signature.values()))


def slot_gap(size: int) -> tuple[sp.Expr, sp.Expr, sp.Expr]:
    r"""Square of a sum, sum of squares and mixed products over one slot.

    .. math:: \Big(\sum_xa_x\Big)^2=\sum_xa_x^2+2\sum_{x<x'}a_xa_{x'}

    The last is non-negative whenever the :math:`a_x` are: why a norm cannot grow with the order.
    """
    a = [entry("a", x) for x in range(size)]
    pairs = sp.Add(*(2 * a[i] * a[j] for i in range(size) for j in range(i + 1, size)))
    return sp.Add(*a) ** 2, sp.Add(*(x**2 for x in a)), pairs


def norm_gap(signature: Signature) -> sp.Expr:
    r"""How much the squared norm falls from order :math:`m-1` to the given order :math:`m`.

    .. math:: \lVert S^{(m-1)}\rVert^2-\lVert S^{(m)}\rVert^2
              =\sum_{y,x_1..x_{m-1}}\ \sum_{x\ne x'}S^{(m)}(..,x)\,S^{(m)}(..,x')

    The right side, a sum of products of non-negative entries.

    Notes
    -----
    Section 3.2 of the paper (norms); the identity is this book's.
    """
    slots: dict[tuple[int, ...], list[sp.Expr]] = {}
    for key, value in signature.items():
        slots.setdefault(key[:-1], []).append(value)
    products = [
        values[i] * values[j]
        for values in slots.values()
        for i in range(len(values))
        for j in range(len(values))
        if i != j
    ]
    return sp.Add(*products)
