r"""Exact decomposition of the embedding gradient by signature order (Theorem 1, section 4.3).

For :math:`f(X)=U^\top\sigma(W^\top\sum_l E_{x_l})` the descent direction of the weighted mean
cross-entropy is

.. math:: -\nabla_{E_\alpha}\mathcal L=\sum_s w_s\sum_{i:\,x_{s,i}=\alpha}
          W\,\big[\sigma'(z_{s})\odot U r_s\big],\qquad r_s=e_{y_s}-\mathrm{softmax}\,f(X_s).

How much of :math:`\sigma'(z_s)` needs exactly the context positions :math:`T` beside position
:math:`i` follows by inclusion–exclusion over the subsets :math:`Q\subseteq T`, an absent position
being a zero embedding. Order :math:`m` collects all :math:`|T|=m`. For a polynomial activation
this is the sum over the monomials that use exactly those positions, the theorem's order-:math:`m`
term with the residual in place of its small-logit limit; for any other activation it is the
definition. Either way the orders sum to the gradient exactly, at any scale and time.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from staircase_lib.models import EmbeddingFFN
from staircase_lib.tasks import Task

__all__ = ["gradient_by_order", "order_shares"]


def _slope(model: EmbeddingFFN, z: Tensor) -> Tensor:
    """Derivative of the activation, elementwise."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(model.sigma(z).sum(), z)[0]


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
    Theorem 1 of the paper. The activation's slope is needed once for each of the
    :math:`2^L-1` non-empty sets of positions, shared by all orders.
    """
    if not isinstance(model, EmbeddingFFN):
        raise TypeError(f"model: expected an EmbeddingFFN, got {type(model).__name__}.")
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )
    W_E, W_in, W_U = model.W_E, model.W_in, model.W_U
    length = task.length
    projected = W_E @ W_in  # (R, V, h)
    gathered = projected.new_zeros(length, *projected.shape)  # before the map back through W
    subsets = [
        frozenset(c) for size in range(1, length + 1) for c in combinations(range(length), size)
    ]
    for start in range(0, len(task.labels), block):
        rows = slice(start, start + block)
        tokens = torch.tensor(task.tokens[rows], device=W_E.device)
        labels = torch.tensor(task.labels[rows], device=W_E.device)
        weights = torch.tensor(task.weights[rows], device=W_E.device, dtype=W_E.dtype)
        z = [projected.index_select(-2, column) for column in tokens.T]  # L of (R, n, h)

        residual = -torch.softmax(model(tokens), dim=-1)  # (R, n, V)
        residual[..., torch.arange(len(labels)), labels] += 1.0
        back = (residual * weights[:, None]) @ W_U.transpose(-1, -2)  # (R, n, h)

        # summed[i][q]: slopes summed over the sets of q context positions beside i
        summed = [[torch.zeros_like(z[0]) for _ in range(length)] for _ in range(length)]
        for subset in subsets:
            slope = _slope(model, torch.stack([z[j] for j in subset]).sum(0))
            for i in subset:
                summed[i][len(subset) - 1] += slope
        for i in range(length):
            for m in range(length):
                part = torch.zeros_like(z[0])
                for q in range(m + 1):
                    # each q-set lies in comb(L-1-q, m-q) sets of size m
                    sign = (-1) ** (m - q) * comb(length - 1 - q, m - q)
                    part += sign * summed[i][q]
                gathered[m].index_add_(-2, tokens[:, i], part * back)
    return gathered @ W_in.transpose(-1, -2)


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
    rows = parts[..., torch.as_tensor(tokens), :]
    if centred:
        rows = rows - rows.mean(dim=-2, keepdim=True)
    norms = torch.linalg.matrix_norm(rows)
    total = norms.sum(dim=0)
    return norms / torch.where(total > 0, total, torch.ones_like(total))
