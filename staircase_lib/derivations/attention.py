r"""Theorem 3 (section 5.1 of arXiv:2608.30315): value, key and query parts of the gradient.

One causal self-attention layer read at the last position, with learned positions, no residual:

.. math:: f(X)=U^\top V^\top\sum_la_lh_l,\qquad h_l=E_{x_l}+P_l,\qquad
          a=\mathrm{softmax}_l\big(h_L^\top Q\,K^\top h_l/\sqrt d\big).

Every state :math:`h_l` enters three times: as a value that is averaged, as a key that is compared,
and, at the last position, as the query. **Derived**: each role gets a copy of the states of its
own, the logits are differentiated for one role at a time, then the copies are set equal
(:func:`derived_parts`). **Stated**: :func:`theorem_3`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from .feed_forward import Example
from .notation import entry, indexed, matrix, residual_entry
from .softmax import cross_entropy, softmax

__all__ = [
    "ROLES",
    "Attention",
    "derived_parts",
    "descent",
    "residual_values",
    "score_slope",
    "theorem_3",
    "value_signature",
]

#: The roles in which attention takes a state: what is read, what is asked, who asks.
ROLES = ("value", "key", "query")


@dataclass(frozen=True)
class Attention:
    """The model with a symbol for every parameter."""

    vocab_size: int
    d: int
    length: int

    @property
    def E(self) -> sp.Matrix:
        """Embeddings, shape (V, d)."""
        return matrix("E", self.vocab_size, self.d)

    @property
    def P(self) -> sp.Matrix:
        """Learned positions, shape (L, d)."""
        return matrix("P", self.length, self.d)

    @property
    def Q(self) -> sp.Matrix:
        """Query map, shape (d, d)."""
        return matrix("Q", self.d, self.d)

    @property
    def K(self) -> sp.Matrix:
        """Key map, shape (d, d)."""
        return matrix("K", self.d, self.d)

    @property
    def V(self) -> sp.Matrix:
        """Value map, shape (d, d)."""
        return matrix("V", self.d, self.d)

    @property
    def U(self) -> sp.Matrix:
        """Unembedding, shape (d, V)."""
        return matrix("U", self.d, self.vocab_size)

    def embed(self, tokens: Sequence[int]) -> sp.Matrix:
        """States :math:`h_l`, shape (L, d)."""
        return sp.Matrix([self.E.row(x) + self.P.row(i) for i, x in enumerate(tokens)])

    def copies(self, role: str) -> sp.Matrix:
        """States with symbols of their own for one role, shape (L, d)."""
        return matrix("h", self.length, self.d, upper=role)

    def scores(self, keys: sp.Matrix, query: sp.Matrix) -> list[sp.Expr]:
        r"""Scores :math:`h_L^\top QK^\top h_l/\sqrt d`, one per position."""
        asked = (query * self.Q) * self.K.T
        return [(asked * keys.row(i).T)[0] / sp.sqrt(self.d) for i in range(keys.rows)]

    def logits(self, values: sp.Matrix, keys: sp.Matrix, query: sp.Matrix) -> list[sp.Expr]:
        """Logits from the states in each role; ``query`` has shape (1, d)."""
        weights = softmax(self.scores(keys, query))
        mixed = sp.zeros(1, self.d)
        for i, a in enumerate(weights):
            mixed += a * values.row(i)
        return list(mixed * self.V * self.U)


def score_slope(length: int) -> tuple[sp.Expr, sp.Expr]:
    r"""How an average under attention moves with the first score.

    .. math:: \frac{\partial}{\partial s_j}\sum_la_ly_l=a_j\Big(y_j-\sum_la_ly_l\Big)

    Returns
    -------
    derived, stated : Expr
        Left side for :math:`j=1`, by differentiating the softmax, and right side, in the symbols
        :math:`s_l,y_l`.

    Notes
    -----
    The step that brings :math:`h_l-\bar h` into the key and query parts of Theorem 3.
    """
    s = [entry("s", i + 1) for i in range(length)]
    y = [entry("y", i + 1) for i in range(length)]
    weights = softmax(s)
    mean = sp.Add(*(a * each for a, each in zip(weights, y, strict=True)))
    return sp.diff(mean, s[0]), weights[0] * (y[0] - mean)


def _logits(model: Attention, tokens: Sequence[int]) -> list[sp.Expr]:
    states = model.embed(tokens)
    return model.logits(states, states, states.row(-1))


def descent(model: Attention, data: Sequence[Example], token: int) -> sp.Matrix:
    r"""Descent direction :math:`-\partial\mathcal L/\partial E_\alpha`, differentiated as it
    stands, residuals as symbols."""
    back = sp.Add(
        *(
            example.weight * residual_entry(s, v) * f
            for s, example in enumerate(data)
            for v, f in enumerate(_logits(model, example.tokens))
        )
    )
    return sp.Matrix([sp.diff(back, x) for x in model.E.row(token)])


def residual_values(model: Attention, data: Sequence[Example]) -> dict[sp.Symbol, sp.Expr]:
    r"""What the residual symbols stand for, :math:`r_{s,v}=-\partial\ell_s/\partial f_v`."""
    values = {}
    for s, example in enumerate(data):
        f = indexed("f", range(model.vocab_size))
        put: Any = dict(zip(f, _logits(model, example.tokens), strict=True))
        loss = cross_entropy(f, example.label)
        values |= {residual_entry(s, v): -sp.diff(loss, x).subs(put) for v, x in enumerate(f)}
    return values


def derived_parts(model: Attention, data: Sequence[Example], token: int) -> dict[str, sp.Matrix]:
    r"""Parts of :math:`-\partial\mathcal L/\partial E_\alpha` by the role of the state.

    Returns
    -------
    dict
        From each of :data:`ROLES` to a vector, shape (d, 1); they sum to :func:`descent`.
    """
    parts = {role: sp.zeros(model.d, 1) for role in ROLES}
    states = {role: model.copies(role) for role in ROLES}
    logits = model.logits(states["value"], states["key"], states["query"].row(-1))
    for s, example in enumerate(data):
        back = sp.Add(*(residual_entry(s, v) * f for v, f in enumerate(logits)))
        actual = model.embed(example.tokens)
        equal = {
            copy: value
            for role in ROLES
            for copy, value in zip(states[role].flat(), actual.flat(), strict=True)
        }
        for role in ROLES:
            for i in (i for i, x in enumerate(example.tokens) if x == token):
                slope = sp.Matrix([sp.diff(back, x) for x in states[role].row(i)])
                parts[role] += example.weight * slope.xreplace(equal)
    return parts


def theorem_3(model: Attention, data: Sequence[Example], token: int) -> dict[str, sp.Matrix]:
    r"""Theorem 3 with the exact residual.

    With :math:`b=V\,U\,r` and :math:`\bar h=\sum_la_lh_l`, a sequence contributes

    .. math:: \underbrace{\sum_{l:\,x_l=\alpha}a_l\,b}_{\text{value}}
              +\underbrace{\sum_{l:\,x_l=\alpha}\tfrac{a_l}{\sqrt d}\,
              \big(b^\top(h_l-\bar h)\big)\,KQ^\top h_L}_{\text{key}}
              +\underbrace{\mathbb 1\{x_L=\alpha\}\sum_l\tfrac{a_l}{\sqrt d}\,
              \big(b^\top(h_l-\bar h)\big)\,QK^\top h_l}_{\text{query}}

    Returns
    -------
    dict
        As :func:`derived_parts`.

    Notes
    -----
    Theorem 3, section 5.1 of the paper.
    """
    parts = {role: sp.zeros(model.d, 1) for role in ROLES}
    for s, example in enumerate(data):
        states = model.embed(example.tokens)
        last = states.row(-1)
        weights = softmax(model.scores(states, last))
        mean = sp.zeros(1, model.d)
        for i, a in enumerate(weights):
            mean += a * states.row(i)
        r = sp.Matrix([residual_entry(s, v) for v in range(model.vocab_size)])
        b = model.V * model.U * r
        for i, a in enumerate(weights):
            gain = a / sp.sqrt(model.d) * ((states.row(i) - mean) * b)[0]
            if example.tokens[i] == token:
                parts["value"] += example.weight * a * b
                parts["key"] += example.weight * gain * (model.K * model.Q.T * last.T)
            if example.tokens[-1] == token:
                query = model.Q * model.K.T * states.row(i).T
                parts["query"] += example.weight * gain * query
    return parts


def value_signature(
    model: Attention, data: Sequence[Example], token: int, position: int
) -> sp.Matrix:
    r"""Attention-weighted residual signature at one position.

    .. math:: R_{\alpha,l}(v)=\sum_{s:\,x_{s,l}=\alpha}p_s\,a_l(X_s)\,r_{s,v},\qquad
              \text{value part}=V\,U\sum_lR_{\alpha,l}

    Notes
    -----
    Claim 5.2; section 5.1 of the paper.
    """
    out = sp.zeros(model.vocab_size, 1)
    for s, example in enumerate(data):
        if example.tokens[position] == token:
            states = model.embed(example.tokens)
            a = softmax(model.scores(states, states.row(-1)))[position]
            r = [residual_entry(s, v) for v in range(model.vocab_size)]
            out += example.weight * a * sp.Matrix(r)
    return out
