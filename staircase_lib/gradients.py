r"""Exact decompositions of the embedding gradient: by signature order, by path of attention.

**Feed-forward model** (Theorem 1, section 4.3). The descent direction of the weighted mean
cross-entropy of :math:`f(X)=U^\top\sigma(W^\top\sum_l E_{x_l})` is

.. math:: -\nabla_{E_\alpha}\mathcal L=\sum_s w_s\sum_{i:\,x_{s,i}=\alpha}
          W\,\big[\sigma'(z_{s})\odot U r_s\big],\qquad r_s=e_{y_s}-\mathrm{softmax}\,f(X_s).

How much of :math:`\sigma'(z_s)` needs exactly the context positions :math:`T` beside position
:math:`i` follows by inclusion–exclusion over the subsets :math:`Q\subseteq T`, an absent position
being a zero embedding. Order :math:`m` collects all :math:`|T|=m`. For a polynomial activation
this is the sum over the monomials that use exactly those positions, the theorem's order-:math:`m`
term with the residual in place of its small-logit limit; for any other activation it is the
definition. Either way the orders sum to the gradient exactly, at any scale and time.
:func:`gradient_from_signatures` is the theorem's own statement, which knows signatures and no
residuals.

**Attention** (Theorem 3, section 5.1). With :math:`h_l=E_{x_l}+P_l`, attention :math:`a_l`,
:math:`b=W_VW_Ur` and :math:`g_l=a_l\,(h_l-\sum_ja_jh_j)\cdot b`, the descent direction for the
embedding at position :math:`l` is

.. math:: \underbrace{a_l\,b}_{\text{value}}
          +\underbrace{\tfrac1{\sqrt d}\,g_l\,W_KW_Q^\top h_L}_{\text{key}}
          +\underbrace{\tfrac{\mathbb 1_{l=L}}{\sqrt d}\,W_QW_K^\top\!\sum_j g_jh_j}_{\text{query}}.
"""

from __future__ import annotations

from itertools import combinations
from math import comb, factorial, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from staircase_lib.models import AttentionOnly, EmbeddingFFN
from staircase_lib.signatures import label_signature
from staircase_lib.tasks import Task

__all__ = ["gradient_by_order", "gradient_by_path", "gradient_from_signatures", "order_shares"]


def _coefficients(model: EmbeddingFFN) -> list[float] | None:
    """Coefficients :math:`c_1..c_K` of a polynomial activation, None for any other."""
    if isinstance(model.activation, str):
        return [1.0] if model.activation == "identity" else None
    return [float(c) for c in model.activation]


def _slopes_by_inclusion(model: EmbeddingFFN, z: list[Tensor]) -> list[list[Tensor]]:
    """Part ``[i][m]`` of the activation's slope at the sum of all ``z`` that needs exactly ``m``
    positions beside ``i``, for any activation."""
    length = len(z)
    # summed[i][q]: slopes summed over the sets of q context positions beside i
    summed = [[torch.zeros_like(z[0]) for _ in range(length)] for _ in range(length)]
    for size in range(1, length + 1):
        for subset in combinations(range(length), size):
            with torch.enable_grad():
                total = torch.stack([z[j] for j in subset]).sum(0).detach().requires_grad_()
                (slope,) = torch.autograd.grad(model.sigma(total).sum(), total)
            for i in subset:
                summed[i][size - 1] += slope
    parts = [[torch.zeros_like(z[0]) for _ in range(length)] for _ in range(length)]
    for i in range(length):
        for m in range(length):
            for q in range(m + 1):
                # each q-set lies in comb(L-1-q, m-q) sets of size m
                sign = (-1) ** (m - q) * comb(length - 1 - q, m - q)
                parts[i][m] += sign * summed[i][q]
    return parts


def _scaled_powers(z: Tensor, top: int) -> list[Tensor]:
    """:math:`z^n/n!` for n up to ``top``; a product of such series has the multinomials in it."""
    powers = [torch.ones_like(z)]
    for n in range(1, top + 1):
        powers.append(powers[-1] * z / n)
    return powers


def _add_product(
    total: list[Tensor], series: list[Tensor], powers: list[Tensor], lowest: int
) -> None:
    """Add a series times the positive powers of one further factor, in place and to the same
    degree; terms of the series below ``lowest`` are known to vanish."""
    for n in range(lowest + 1, len(total)):
        for r in range(1, n - lowest + 1):
            total[n].addcmul_(series[n - r], powers[r])


def _slope_of(series: list[Tensor], coefficients: list[float]) -> Tensor:
    r""":math:`\sum_k k\,c_k\,(k-1)!\,s_{k-1}`: the slope whose powers a series lists."""
    slope = torch.zeros_like(series[0])
    for n, (c, s) in enumerate(zip(coefficients, series, strict=True)):
        slope.add_(s, alpha=c * factorial(n + 1))
    return slope


def _slopes_by_formula(coefficients: list[float], z: list[Tensor]) -> list[list[Tensor]]:
    """The same as :func:`_slopes_by_inclusion` for a polynomial, its monomials added up: nothing
    cancels, so that high orders keep their digits however small the embeddings are."""
    length, degrees = len(z), range(len(coefficients))
    powers = [_scaled_powers(x, len(coefficients) - 1) for x in z]
    parts = []
    for i in range(length):
        by_order = [powers[i]]
        by_order += [[torch.zeros_like(z[0]) for _ in degrees] for _ in range(length - 1)]
        for j in range(length):
            if j != i:
                for m in range(length - 1, 0, -1):  # position j joins the sets of m - 1 others
                    _add_product(by_order[m], by_order[m - 1], powers[j], m - 1)
        parts.append([_slope_of(series, coefficients) for series in by_order])
    return parts


def _check(model: EmbeddingFFN | AttentionOnly, kind: type, task: Task) -> None:
    if not isinstance(model, kind):
        article = "an" if kind.__name__[0] in "AE" else "a"
        raise TypeError(f"model: expected {article} {kind.__name__}, got {type(model).__name__}.")
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )


def _residual(
    model: EmbeddingFFN | AttentionOnly, task: Task, rows: slice
) -> tuple[Tensor, Tensor]:
    """Tokens (n, L) of some rows and their weighted residuals (R, n, V)."""
    like = model.W_E
    tokens = torch.tensor(task.tokens[rows], device=like.device)
    labels = torch.tensor(task.labels[rows], device=like.device)
    weights = torch.tensor(task.weights[rows], device=like.device, dtype=like.dtype)
    residual = -torch.softmax(model(tokens), dim=-1)
    residual[..., torch.arange(len(labels)), labels] += 1.0
    return tokens, residual * weights[:, None]


@torch.no_grad()
def gradient_by_order(model: EmbeddingFFN, task: Task, *, block: int = 4096) -> Tensor:
    r"""Each signature order's part of :math:`-\partial\mathcal L/\partial E`.

    Parameters
    ----------
    model : EmbeddingFFN
        At any point of training; with or without a run axis.
    task : Task
        Repeated tokens and weights included. The model ignores order, so exchangeability of the
        positions is not needed.
    block : int
        Sequences at a time; memory is linear in it.

    Returns
    -------
    Tensor, shape (L, V, d), or (L, R, V, d) with runs
        Entry ``m`` belongs to order ``m``; the sum over ``m`` is minus the gradient of the weighted
        mean cross-entropy.

    Raises
    ------
    TypeError
        If the model is not an :class:`~staircase_lib.models.EmbeddingFFN`.
    ValueError
        If the model's vocabulary is not the task's.

    Notes
    -----
    Theorem 1 of the paper. A polynomial's monomials are added up; for any other activation the
    slope is needed once for each of the :math:`2^L-1` non-empty sets of positions, shared by all
    orders, and orders smaller than the rounding of order 0 are lost.
    At :math:`L=4` this costs about ten backward passes (one core, :math:`d=128`, :math:`K=4`).
    """
    _check(model, EmbeddingFFN, task)
    W_E, W_in, W_U = model.W_E, model.W_in, model.W_U
    length = task.length
    projected = W_E @ W_in  # (R, V, h)
    gathered = projected.new_zeros(length, *projected.shape)  # before the map back through W
    coefficients = _coefficients(model)
    for start in range(0, len(task.labels), block):
        tokens, residual = _residual(model, task, slice(start, start + block))
        z = [projected.index_select(-2, column) for column in tokens.T]  # L of (R, n, h)
        back = residual @ W_U.transpose(-1, -2)  # (R, n, h)
        slopes = (
            _slopes_by_inclusion(model, z)
            if coefficients is None
            else _slopes_by_formula(coefficients, z)
        )
        for i in range(length):
            for m in range(length):
                gathered[m].index_add_(-2, tokens[:, i], slopes[i][m] * back)
    return gathered @ W_in.transpose(-1, -2)


@torch.no_grad()
def gradient_from_signatures(model: EmbeddingFFN, task: Task, *, block: int = 16384) -> Tensor:
    r"""Theorem 1: each order's part of the descent direction while logits are small.

    .. math:: \sum_{k=m+1}^{K}k\,c_k\binom{L-1}m\sum_{j}\frac{(k-1)!}{j_0!\cdots j_m!}\,
              W\Big[z_\alpha^{j_0}\odot\!\sum_{x_1..x_m}\!z_{x_1}^{j_1}\odot\cdots\odot
              z_{x_m}^{j_m}\odot U\,L\,P(\alpha)\big(S^{(m)}_\alpha-\tfrac1VC^{(m)}_\alpha\big)\Big]

    with :math:`z_x=W^\top E_x`, over :math:`j_0\ge0,\ j_1,\dots,j_m\ge1` that sum to
    :math:`k-1`. :math:`P(\alpha)` is the probability that a uniformly drawn position holds
    :math:`\alpha`, so :math:`L\,P(\alpha)` is how often it occurs in a sequence.

    Parameters
    ----------
    model : EmbeddingFFN
        With a polynomial activation, or ``"identity"``.
    task : Task
        Any: the model adds its tokens up, so it sees the multiset of a sequence only, and the
        signatures, which average over all ordered draws of distinct positions, hold all that its
        gradient depends on. Exchangeable positions are not needed.
    block : int
        Signature entries at a time.

    Returns
    -------
    Tensor, shape (L, V, d), or (L, R, V, d) with runs
        As :func:`gradient_by_order`, from which it differs relatively by the size of the logits.

    Raises
    ------
    TypeError
        If the model tells positions apart: its gradient needs position-dependent signatures.
    ValueError
        If the activation is no polynomial or the vocabulary is not the task's.

    Notes
    -----
    Memory: the non-zero entries of one signature; no array of :math:`V^{m+1}` entries.
    """
    if isinstance(model, AttentionOnly):
        raise TypeError(
            "model: expected an EmbeddingFFN, got AttentionOnly, which tells positions apart; the "
            "signatures of Theorem 1 do not. Use gradient_by_path."
        )
    _check(model, EmbeddingFFN, task)
    c = _coefficients(model)
    if c is None:
        raise ValueError(
            f"model: expected a polynomial activation c_1..c_K, got {model.activation!r}; "
            f"gradient_by_order takes any activation."
        )
    W_E, W_in, W_U = model.W_E, model.W_in, model.W_U
    projected = W_E @ W_in  # (R, V, h)
    push = (W_U - W_U.mean(dim=-1, keepdim=True)).transpose(-1, -2)  # U (e_y - 1/V), (R, V, h)
    gathered = projected.new_zeros(task.length, *projected.shape)
    occurring = np.unique(task.tokens[task.weights > 0])
    count = task.length * task.token_probability(occurring)  # occurrences in a sequence
    for m in range(min(task.length, len(c))):
        signature: Any = label_signature(task, m, occurring, sparse=True)
        value = signature.data * count[signature.coords[0]]
        for start in range(0, len(value), block):
            rows = slice(start, start + block)
            a, y, *x = (
                torch.tensor(i[rows].astype(np.int64), device=W_E.device) for i in signature.coords
            )
            a = torch.tensor(occurring, device=W_E.device)[a]
            z = [projected.index_select(-2, token) for token in (a, *x)]
            series = _scaled_powers(z[0], len(c) - 1)
            for slots, factor in enumerate(z[1:]):
                longer = [torch.zeros_like(z[0]) for _ in c]
                _add_product(longer, series, _scaled_powers(factor, len(c) - 1), slots)
                series = longer
            slope = comb(task.length - 1, m) * _slope_of(series, c)
            weight = torch.tensor(value[rows], device=W_E.device, dtype=W_E.dtype)[:, None]
            gathered[m].index_add_(-2, a, weight * slope * push.index_select(-2, y))
    return gathered @ W_in.transpose(-1, -2)


@torch.no_grad()
def gradient_by_path(model: AttentionOnly, task: Task, *, block: int = 4096) -> dict[str, Tensor]:
    r"""Value, key and query parts of :math:`-\partial\mathcal L/\partial E`, by position.

    Parameters
    ----------
    model : AttentionOnly
        At any point of training; with or without a run axis.
    task : Task
    block : int
        Sequences at a time; memory is linear in it.

    Returns
    -------
    dict of Tensor, each of shape (L, V, d), or (L, R, V, d) with runs
        Keys ``"value"``, ``"key"``, ``"query"``. Entry ``l`` is what reaches a token through its
        occurrences at position ``l``; the query part is zero at every position but the last. The
        sum over paths and positions is minus the gradient of the weighted mean cross-entropy.

    Raises
    ------
    TypeError
        If the model is not an :class:`~staircase_lib.models.AttentionOnly`.
    ValueError
        If the model's vocabulary is not the task's.

    Notes
    -----
    Theorem 3 of the paper (claims 5.1 and 5.2).
    """
    _check(model, AttentionOnly, task)
    W_E, W_Q, W_K = model.W_E, model.W_Q, model.W_K
    length = task.length
    parts = {name: W_E.new_zeros(length, *W_E.shape) for name in ("value", "key", "query")}
    readout = (model.W_V @ model.W_U).transpose(-1, -2)  # (R, V, d)
    for start in range(0, len(task.labels), block):
        tokens, residual = _residual(model, task, slice(start, start + block))
        h = W_E.index_select(-2, tokens.reshape(-1)).unflatten(-2, tuple(tokens.shape))
        h = h + model.W_P[..., None, :length, :]  # (R, n, L, d)
        a = model.attention(tokens)  # (R, n, L)
        b = residual @ readout  # (R, n, d)
        mixed = (a.unsqueeze(-2) @ h).squeeze(-2)  # (R, n, d)
        g = a * ((h - mixed.unsqueeze(-2)) @ b.unsqueeze(-1)).squeeze(-1) / sqrt(model.d)
        towards_query = h[..., -1, :] @ W_Q @ W_K.transpose(-1, -2)  # (R, n, d)
        towards_keys = (g.unsqueeze(-2) @ h).squeeze(-2) @ W_K @ W_Q.transpose(-1, -2)
        for position, column in enumerate(tokens.T):
            here = (..., position, None)
            parts["value"][position].index_add_(-2, column, a[here] * b)
            parts["key"][position].index_add_(-2, column, g[here] * towards_query)
        parts["query"][-1].index_add_(-2, tokens[:, -1], towards_keys)
    return parts


def order_shares(parts: Tensor, tokens: ArrayLike, *, centred: bool = True) -> Tensor:
    r"""Share of each order in the gradient of some tokens' embeddings.

    .. math:: \frac{\lVert G^{(m)}\rVert}{\sum_k\lVert G^{(k)}\rVert}

    with the Frobenius norm over the tokens' rows. Parts of different orders may point against each
    other, so these are shares of what is pushed, not of what remains.

    Parameters
    ----------
    parts : Tensor, shape (L, V, d) or (L, R, V, d)
        From :func:`gradient_by_order`.
    tokens : array of int, shape (A,)
        The tokens whose rows count.
    centred : bool
        Subtract the mean over the tokens first: what is left tells the tokens apart.

    Returns
    -------
    Tensor, shape (L,) or (L, R)
        Sums to one over the orders; zeros where every part vanishes.
    """
    rows = parts[..., torch.tensor(tokens, device=parts.device), :]
    if centred:
        rows = rows - rows.mean(dim=-2, keepdim=True)
    norms = torch.linalg.matrix_norm(rows)
    total = norms.sum(dim=0)
    return norms / torch.where(total > 0, total, torch.ones_like(total))
