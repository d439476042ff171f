r"""Direct, attention and FFN paths of a Transformer block (section 6 of arXiv:2608.30315).

A pre-norm block adds to the residual stream twice before the logits are read off it:

.. math:: u=e+A(N(e)),\qquad s=u+F(N(u)),\qquad f=U^\top N(s).

The stream is a sum of three contributions, the embedding itself, what attention wrote and what the
FFN wrote, and the gradient is the sum of the three ways back to the embedding. Two views:
:func:`scalar_chain` keeps :math:`A,F,f` as unknown functions of one variable, so that the chain
rule can be read; :class:`Block` writes everything out, normalisation included, for a small width.
"""

# SymPy's annotations leave open what its methods return.
# pyright: reportReturnType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy as sp
from sympy.core.function import AppliedUndef

from .feed_forward import activation
from .notation import LETTERS, entry, matrix, primed, symbol, unknown
from .softmax import softmax

__all__ = [
    "PATHS",
    "Block",
    "descent",
    "derived_parts",
    "path_parts",
    "rms_norm",
    "scalar_chain",
    "with_primes",
]

#: The paths of a gradient into an embedding: past the block, through attention, through the FFN.
PATHS = ("direct", "attention", "ffn")


def scalar_chain() -> tuple[sp.Expr, dict[str, sp.Expr]]:
    r"""The chain rule at the residual stream, for one-dimensional states and unknown functions.

    Returns
    -------
    gradient : Expr
        :math:`\partial f/\partial e`, by differentiating the composed function.
    parts : dict
        From each of :data:`PATHS` to its part, :math:`\partial f/\partial s` times the derivative
        of what that path wrote to the stream:

        .. math:: \partial_sf\cdot1,\qquad \partial_sf\cdot\partial_eA,\qquad
                  \partial_sf\cdot\partial_uF\,(1+\partial_eA).
    """
    A, F, f = (unknown(letter) for letter in "AFf")
    e, u, s = (symbol(letter, real=True) for letter in "eus")
    stream_u = e + A(e)
    stream_s = stream_u + F(stream_u)
    gradient = sp.diff(f(stream_s), e).doit()

    def at(slope: sp.Expr, x: sp.Symbol, value: sp.Expr) -> sp.Expr:
        return sp.Subs(slope, x, value)

    read = at(sp.diff(f(s), s), s, stream_s)
    wrote_a = sp.diff(A(e), e)
    wrote_f = at(sp.diff(F(u), u), u, stream_u) * (1 + wrote_a)
    return gradient, {"direct": read, "attention": read * wrote_a, "ffn": read * wrote_f}


def with_primes(expression: sp.Expr) -> sp.Expr:
    """Derivatives of unknown functions as primed symbols, wherever they are taken."""
    slopes = [
        node
        for node in expression.atoms(sp.Subs, sp.Derivative)
        if isinstance(node, sp.Subs) or isinstance(node.variables[0], sp.Symbol)
    ]
    names = {}
    for node in slopes:
        function = (node.expr if isinstance(node, sp.Subs) else node).atoms(AppliedUndef)
        outer = max(function, key=lambda applied: len(applied.atoms(AppliedUndef)))
        names[node] = primed(outer.func.__name__)
    return expression.xreplace(names)


def rms_norm(x: sp.Matrix) -> sp.Matrix:
    r"""Normalisation :math:`N(x)=x\big/\sqrt{\tfrac1d\sum_ax_a^2+\epsilon}` of a row."""
    mean = sp.Add(*(each**2 for each in x.flat())) / len(x)
    return x / sp.sqrt(mean + LETTERS.epsilon)


@dataclass(frozen=True)
class Block:
    r"""One pre-norm block with one attention head, read at the last position.

    Symbols for every parameter: embeddings ``E``, maps ``Q, K, V`` of attention (its output map
    taken into ``V``), ``W`` and ``Z`` of the FFN :math:`F(x)=Z^\top\sigma(W^\top x)` with a
    polynomial activation, unembedding ``U``. Positions could be added to the states and change
    nothing here.
    """

    vocab_size: int
    d: int
    h: int
    degree: int

    @property
    def E(self) -> sp.Matrix:
        """Embeddings, shape (V, d)."""
        return matrix("E", self.vocab_size, self.d)

    def attend(self, states: sp.Matrix) -> sp.Matrix:
        r"""What attention writes at the last position, :math:`\sum_la_l\,N(h_l)\,V`."""
        Q, K, V = (matrix(letter, self.d, self.d) for letter in "QKV")
        normed = [rms_norm(states.row(i)) for i in range(states.rows)]
        scores = [((normed[-1] * Q) * (n * K).T)[0] / sp.sqrt(self.d) for n in normed]
        out = sp.zeros(1, self.d)
        for a, n in zip(softmax(scores), normed, strict=True):
            out += a * n * V
        return out

    def feed(self, stream: sp.Matrix) -> sp.Matrix:
        """What the FFN writes."""
        W, Z = matrix("W", self.d, self.h), matrix("Z", self.h, self.d)
        return (rms_norm(stream) * W).applyfunc(lambda z: activation(z, self.degree)) * Z

    def read(self, stream: sp.Matrix) -> sp.Matrix:
        """Logits off the residual stream, shape (1, V)."""
        return rms_norm(stream) * matrix("U", self.d, self.vocab_size)

    def embed(self, tokens: Sequence[int]) -> sp.Matrix:
        """States, shape (L, d)."""
        return sp.Matrix([self.E.row(x) for x in tokens])


def _residual(model: Block) -> sp.Matrix:
    return sp.Matrix([entry("r", v) for v in range(model.vocab_size)])


def descent(model: Block, tokens: Sequence[int], token: int) -> sp.Matrix:
    r"""One sequence's part of :math:`-\partial\mathcal L/\partial E_\alpha`, shape (d, 1).

    The whole block differentiated as it stands, the residual :math:`r_v` left as symbols.
    """
    states = model.embed(tokens)
    middle = states.row(-1) + model.attend(states)
    logits = model.read(middle + model.feed(middle))
    back = (logits * _residual(model))[0]
    return sp.Matrix([sp.diff(back, x) for x in model.E.row(token)])


def path_parts(model: Block, tokens: Sequence[int], token: int) -> dict[str, sp.Matrix]:
    r"""The same by path: what each writer to the residual stream passes back.

    .. math:: \underbrace{J_E^\top g}_{\text{direct}}+\underbrace{J_A^\top g}_{\text{attention}}
              +\underbrace{(J_E+J_A)^\top J_F^\top g}_{\text{FFN}},\qquad
              g=(\partial f/\partial s)^\top r

    with :math:`J_E,J_A` the derivatives for :math:`E_\alpha` of the last token's embedding and of
    attention's output, and :math:`J_F=\partial F/\partial u`.

    Notes
    -----
    Section 6.1 of the paper.
    """
    states = model.embed(tokens)
    alpha = model.E.row(token).flat()
    u, s = (matrix(letter, 1, model.d) for letter in ("u", "s"))
    written = model.attend(states)
    middle = states.row(-1) + written
    stream = middle + model.feed(middle)
    g = sp.Matrix([sp.diff((model.read(s) * _residual(model))[0], x) for x in s])
    g = g.xreplace(dict(zip(s.flat(), stream.flat(), strict=True)))
    J_E = sp.Matrix(states.row(-1).flat()).jacobian(alpha)
    J_A = sp.Matrix(written.flat()).jacobian(alpha)
    J_F = sp.Matrix(model.feed(u).flat()).jacobian(u.flat())
    J_F = J_F.xreplace(dict(zip(u.flat(), middle.flat(), strict=True)))
    return {
        "direct": J_E.T * g,
        "attention": J_A.T * g,
        "ffn": (J_E + J_A).T * (J_F.T * g),
    }


def derived_parts(model: Block, tokens: Sequence[int], token: int) -> dict[str, sp.Matrix]:
    """The paths, without a formula: the writers' copies are differentiated one at a time.

    The stream gets a copy of the embeddings for each writer; differentiating for one copy and then
    setting all equal leaves that writer's part.
    """
    tables = {path: matrix("E", model.vocab_size, model.d, upper=path) for path in PATHS}
    rows = {path: sp.Matrix([table.row(x) for x in tokens]) for path, table in tables.items()}
    inside = rows["ffn"].row(-1) + model.attend(rows["ffn"])
    stream = rows["direct"].row(-1) + model.attend(rows["attention"]) + model.feed(inside)
    back = (model.read(stream) * _residual(model))[0]
    equal = {
        copy: value
        for table in tables.values()
        for copy, value in zip(table.flat(), model.E.flat(), strict=True)
    }
    return {
        path: sp.Matrix([sp.diff(back, x) for x in tables[path].row(token)]).xreplace(equal)
        for path in PATHS
    }
