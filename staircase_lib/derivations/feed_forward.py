r"""Theorem 1 (section 4.3 of arXiv:2608.30315), from the cross-entropy to the sum over orders.

The model is :math:`f(X)=U^\top\sigma(W^\top\sum_lE_{x_l})` with a polynomial activation and
symbols for all parameters. Two roads lead to the descent direction
:math:`-\nabla_{E_\alpha}\mathcal L`:

* **derived**: :func:`descent` differentiates the loss as it stands, exponentials and all;
  :func:`derived_orders` differentiates the logits, expands, and sorts every monomial by the set of
  context positions that occur in it;
* **stated**: :func:`theorem_1` is the displayed sum, contractions of residual signatures.

The tests and appendix B of the book hold one against the other.
"""

# SymPy's annotations leave open what its constructors return.
# pyright: reportReturnType=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import sympy as sp

from .notation import coefficient, entry, frequency, indexed, matrix, residual_entry
from .softmax import cross_entropy

__all__ = [
    "Example",
    "FeedForward",
    "activation",
    "derived_orders",
    "derived_sets",
    "descent",
    "examples",
    "multinomial_step",
    "order_slope",
    "order_slope_by_exclusion",
    "residual_signature",
    "residual_values",
    "symmetrization_step",
    "theorem_1",
]

Vector = sp.Matrix
Positions = frozenset[int]


def activation(z: sp.Expr, degree: int) -> sp.Expr:
    r"""Polynomial activation :math:`\sigma(z)=\sum_{k=1}^Kc_kz^k`."""
    return sp.Add(*(coefficient(k) * z**k for k in range(1, degree + 1)))


@dataclass(frozen=True)
class FeedForward:
    r"""The model with a symbol for every parameter.

    Attributes
    ----------
    vocab_size, d, h, degree : int
    position_weights : tuple of Expr
        If given, :math:`f(X)=U^\top\sigma(W^\top\sum_l\omega_lE_{x_l})`: a model that knows
        positions, for which the exchangeable form of Theorem 1 is wrong.
    """

    vocab_size: int
    d: int
    h: int
    degree: int
    position_weights: tuple[sp.Expr, ...] = ()

    @property
    def E(self) -> sp.Matrix:
        """Embeddings, shape (V, d)."""
        return matrix("E", self.vocab_size, self.d)

    @property
    def W(self) -> sp.Matrix:
        """Hidden weights, shape (d, h)."""
        return matrix("W", self.d, self.h)

    @property
    def U(self) -> sp.Matrix:
        """Unembedding, shape (h, V)."""
        return matrix("U", self.h, self.vocab_size)

    def copies(self, length: int) -> sp.Matrix:
        """A vector of its own for every position, shape (L, d), before rows of the table are put
        in."""
        return sp.Matrix(length, self.d, lambda i, a: entry("e", a, upper=f"({i + 1})"))

    def logits(self, vectors: sp.Matrix) -> list[sp.Expr]:
        """Logits from the embedding vectors of a sequence, shape (L, d)."""
        omega = self.position_weights or (sp.S.One,) * vectors.rows
        total = [
            sp.Add(*(omega[i] * vectors[i, a] for i in range(vectors.rows))) for a in range(self.d)
        ]
        hidden = [
            activation(sp.Add(*(self.W[a, b] * total[a] for a in range(self.d))), self.degree)
            for b in range(self.h)
        ]
        return [
            sp.Add(*(self.U[b, v] * hidden[b] for b in range(self.h)))
            for v in range(self.vocab_size)
        ]

    def embed(self, tokens: Sequence[int]) -> sp.Matrix:
        """The rows of the table for a sequence, shape (L, d)."""
        return sp.Matrix([self.E.row(x) for x in tokens])


@dataclass(frozen=True)
class Example:
    """A sequence with its label and weight in the training distribution."""

    tokens: tuple[int, ...]
    label: int
    weight: sp.Expr


def examples(*rows: tuple[tuple[int, ...], int]) -> list[Example]:
    """A small data set from (tokens, label) pairs, with symbols :math:`p_1,p_2,…` for weights."""
    return [Example(tokens, label, frequency(s)) for s, (tokens, label) in enumerate(rows)]


# --- Derived -------------------------------------------------------------------------------------


def descent(model: FeedForward, data: Sequence[Example], token: int) -> Vector:
    r"""Descent direction :math:`-\partial\mathcal L/\partial E_\alpha` of the mean cross-entropy.

    Differentiated as it stands, exponentials and all; nothing is assumed.
    """
    loss = sp.Add(
        *(s.weight * cross_entropy(model.logits(model.embed(s.tokens)), s.label) for s in data)
    )
    return sp.Matrix([-sp.diff(loss, x) for x in model.E.row(token)])


def residual_values(model: FeedForward, data: Sequence[Example]) -> dict[sp.Symbol, sp.Expr]:
    r"""What the residual symbols stand for: :math:`r_{s,v}=\mathbb 1\{v=y_s\}-s_v(X_s)`."""
    values = {}
    for s, example in enumerate(data):
        f = indexed("f", range(model.vocab_size))
        logits = model.logits(model.embed(example.tokens))
        for v, each in enumerate(f):
            slope = -sp.diff(cross_entropy(f, example.label), each)
            values[residual_entry(s, v)] = slope.subs(dict(zip(f, logits, strict=True)))
    return values


def derived_sets(
    model: FeedForward, tokens: Sequence[int], position: int, output: sp.Expr
) -> dict[Positions, Vector]:
    r"""Gradient of one output for the embedding at one position, sorted by context used.

    Every position first gets a vector of its own, so that a monomial shows which positions it
    holds even if the sequence repeats a token; then the rows of the table are put in.

    Parameters
    ----------
    model : FeedForward
    tokens : sequence of int
    position : int
        Where the gradient is taken; the token there is :math:`\alpha`.
    output : Expr
        A linear combination of ``model.logits(model.copies(L))``.

    Returns
    -------
    dict
        From the set of context positions to the part, shape (d, 1), that needs exactly them.
    """
    copies = model.copies(len(tokens))
    table = {copies[i, a]: model.E[x, a] for i, x in enumerate(tokens) for a in range(model.d)}
    parts: dict[Positions, Vector] = {}
    for a in range(model.d):
        slope = sp.Poly(sp.diff(output, copies[position, a]), *copies)
        for powers, factor in slope.terms():
            used = frozenset(at // model.d for at, power in enumerate(powers) if power) - {position}
            monomial = sp.Mul(
                factor,
                *(table[copy] ** power for copy, power in zip(copies.flat(), powers, strict=True)),
            )
            part = parts.setdefault(used, sp.zeros(model.d, 1))
            part[a] += monomial
    return parts


def derived_orders(model: FeedForward, data: Sequence[Example], token: int) -> list[Vector]:
    r"""Parts of :math:`-\partial\mathcal L/\partial E_\alpha` by the number of context positions.

    The chain rule over the logits, residuals left as symbols, and over the positions that hold
    :math:`\alpha`; then :func:`derived_sets`, gathered by the size of the set.

    Returns
    -------
    list of Matrix, shape (d, 1) each
        Entry ``m`` is order ``m``; they sum to :func:`descent` once :func:`residual_values` are
        put in.
    """
    length = len(data[0].tokens)
    orders = [sp.zeros(model.d, 1) for _ in range(length)]
    for s, example in enumerate(data):
        logits = model.logits(model.copies(length))
        back = sp.Add(*(residual_entry(s, v) * f for v, f in enumerate(logits)))
        for i in (i for i, x in enumerate(example.tokens) if x == token):
            for used, part in derived_sets(model, example.tokens, i, back).items():
                orders[len(used)] += example.weight * part
    return orders


# --- Stated --------------------------------------------------------------------------------------


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    r"""Powers :math:`(j_0,j_1,\dots,j_m)` with :math:`j_0\ge0` and the others at least 1."""
    if parts == 0:
        yield (total,)
        return
    for last in range(1, total - parts + 2):
        for rest in compositions(total - last, parts - 1):
            yield (*rest, last)


def order_slope(degree: int, z: Sequence[sp.Expr]) -> sp.Expr:
    r"""The part of the activation's slope that needs all :math:`m` context tokens.

    .. math:: \varphi_m(z_0;z_1..z_m)=\sum_{k=m+1}^Kk\,c_k
              \sum_{\substack{j_0\ge0,\;j_1..j_m\ge1\\j_0+\dots+j_m=k-1}}
              \frac{(k-1)!}{j_0!\cdots j_m!}\,z_0^{j_0}z_1^{j_1}\cdots z_m^{j_m}

    Parameters
    ----------
    degree : int
        :math:`K`.
    z : sequence of Expr
        Pre-activations :math:`z_0` of the anchor, :math:`z_1..z_m` of the context tokens.

    Notes
    -----
    Theorem 1, section 4.3 of the paper.
    """
    order = len(z) - 1
    terms = []
    for k in range(order + 1, degree + 1):
        for powers in compositions(k - 1, order):
            ways = sp.factorial(k - 1)
            for j in powers:
                ways /= sp.factorial(j)
            product = sp.Mul(*(each**j for each, j in zip(z, powers, strict=True)))
            terms.append(k * coefficient(k) * ways * product)
    return sp.Add(*terms)


def order_slope_by_exclusion(degree: int, z: Sequence[sp.Expr]) -> sp.Expr:
    r"""The same part by inclusion–exclusion, which needs no polynomial.

    .. math:: \varphi_m=\sum_{Q\subseteq\{1..m\}}(-1)^{m-|Q|}\,\sigma'\Big(z_0+\sum_{q\in Q}z_q\Big)

    Notes
    -----
    This book; the definition of an order for GELU and every other activation
    (:mod:`staircase_lib.gradients`).
    """
    x = sp.Dummy()
    slope = sp.diff(activation(x, degree), x)
    anchor, *context = z
    order = len(context)
    return sp.Add(
        *(
            (-1) ** (order - size) * slope.subs(x, sp.Add(anchor, *chosen))
            for size in range(order + 1)
            for chosen in combinations(context, size)
        )
    )


def multinomial_step(power: int, z: Sequence[sp.Expr]) -> sp.Eq:
    r"""The terms of :math:`(z_0+\dots+z_m)^{k-1}` that hold every context slot.

    .. math:: \sum_{Q\subseteq\{1..m\}}(-1)^{m-|Q|}\Big(z_0+\sum_{q\in Q}z_q\Big)^{k-1}
              =\sum_{j_0\ge0,\,j_1..j_m\ge1}\frac{(k-1)!}{j_0!\cdots j_m!}\,
              z_0^{j_0}\cdots z_m^{j_m}

    Parameters
    ----------
    power : int
        :math:`k-1`.
    z : sequence of Expr
        :math:`z_0,\dots,z_m`.
    """
    k = power + 1
    only = {coefficient(j): sp.Integer(j == k) / k for j in range(1, k + 1)}
    left, right = order_slope_by_exclusion(k, z), order_slope(k, z)
    return sp.Eq(left.xreplace(only), right.xreplace(only), evaluate=False)


def symmetrization_step(length: int, order: int, degree: int) -> sp.Eq:
    r"""A sum over sets of positions as a mean over ordered draws.

    .. math:: \sum_{|T|=m}\varphi_m(z_0;z_T)=\binom{L-1}m\,
              \frac{(L-1-m)!}{(L-1)!}\sum_{(i_1..i_m)}\varphi_m(z_0;z_{i_1},\dots,z_{i_m})

    over sets :math:`T` of context positions on the left and ordered choices of distinct ones on the
    right: :math:`\varphi_m` does not care about the order of its slots.
    """
    z = [entry("z", i) for i in range(length)]
    sets = (order_slope(degree, [z[0], *chosen]) for chosen in combinations(z[1:], order))
    draws = [order_slope(degree, [z[0], *chosen]) for chosen in permutations(z[1:], order)]
    mean = sp.Add(*draws) / sp.ff(length - 1, order)
    return sp.Eq(sp.Add(*sets), sp.binomial(length - 1, order) * mean, evaluate=False)


def residual_signature(
    data: Sequence[Example], token: int, order: int, vocab_size: int
) -> dict[tuple[int, ...], Vector]:
    r"""Residual signature :math:`R^{(m)}_\alpha(v,x_1..x_m)` in residual symbols.

    .. math:: R^{(m)}_\alpha(v,x_1..x_m)=\sum_sp_s\,r_{s,v}\sum_{i:\,x_{s,i}=\alpha}
              \frac{(L-1-m)!}{(L-1)!}\,\#\{(i_1..i_m)\not\ni i:\ x_{s,i_j}=x_j\}

    Returns
    -------
    dict
        From ``(x_1, …, x_m)`` to the vector over labels :math:`v`.
    """
    length = len(data[0].tokens)
    draws = sp.ff(length - 1, order)
    out: dict[tuple[int, ...], Vector] = {}
    for s, example in enumerate(data):
        r = sp.Matrix([residual_entry(s, v) for v in range(vocab_size)])
        for i in (i for i, x in enumerate(example.tokens) if x == token):
            others = [j for j in range(length) if j != i]
            for context in permutations(others, order):
                key = tuple(example.tokens[j] for j in context)
                zero = sp.zeros(vocab_size, 1)
                out[key] = out.get(key, zero) + example.weight * r / draws
    return out


def theorem_1(model: FeedForward, data: Sequence[Example], token: int) -> list[Vector]:
    r"""Theorem 1 with the exact residual: each order's part of the descent direction.

    .. math:: -\nabla_{E_\alpha}\mathcal L=\sum_{m=0}^{L-1}\binom{L-1}m\,
              W\sum_{x_1..x_m}\varphi_m(z_\alpha;z_{x_1}..z_{x_m})\odot
              U\,R^{(m)}_\alpha(\cdot,x_1..x_m),\qquad z_x=W^\top E_x

    with :math:`\varphi_m` from :func:`order_slope`. Exact at any scale; with small logits
    :math:`R^{(m)}_\alpha\to L\,P(\alpha)\,[S^{(m)}_\alpha-\frac1VC^{(m)}_\alpha]`, the paper's
    statement.

    Returns
    -------
    list of Matrix, shape (d, 1) each
        Entry ``m`` is order ``m``.

    Notes
    -----
    Theorem 1, section 4.3 of the paper. The positions of the model must be exchangeable;
    ``position_weights`` are ignored here, which is what makes the formula fail with them.
    """
    length = len(data[0].tokens)
    z = model.E * model.W  # (V, h)
    orders = []
    for order in range(length):
        total = sp.zeros(model.h, 1)
        for context, R in residual_signature(data, token, order, model.vocab_size).items():
            back = model.U * R
            for b in range(model.h):
                slots = [z[token, b], *(z[x, b] for x in context)]
                total[b] += order_slope(model.degree, slots) * back[b]
        orders.append(sp.binomial(length - 1, order) * model.W * total)
    return orders
