r"""Probability signatures of tokens (section 3.2 of arXiv:2608.30315).

Draw a sequence from the task, then one position :math:`i` uniformly, and condition on
:math:`x_i=\alpha`. Draw :math:`m` *distinct* other positions uniformly, in random order. The
**label signature** is the joint distribution of the label and the tokens found there,

.. math:: S^{(m)}_\alpha(y, x_1,\dots,x_m) = P(y, x_1,\dots,x_m \mid \alpha),

and the **context signature** :math:`C^{(m)}_\alpha` is its marginal without the label. A token
that occurs twice in a sequence counts twice. Every value is an exact weighted sum over the task's
rows.

Shapes: ``A`` asked tokens, ``V`` vocabulary, one further ``V`` axis for each of the ``m`` context
slots. This module imports NumPy and SciPy only.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

from staircase_lib.tasks import Task

__all__ = [
    "attention_signature",
    "context_signature",
    "contract",
    "fourier_component",
    "information",
    "label_signature",
    "project",
]

#: Dense arrays above this many bytes are refused with advice to ask for a sparse one.
MAX_DENSE_BYTES = 4 * 2**30


def _check_order(task: Task, order: int) -> None:
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or order < 0:
        raise ValueError(f"order: expected a non-negative integer, got {order!r}.")
    if order >= task.length:
        raise ValueError(
            f"order: expected less than the sequence length L={task.length}, got {order}; a token "
            f"has only {task.length - 1} others around it."
        )


def _asked_tokens(task: Task, tokens: ArrayLike | None) -> NDArray[np.int64]:
    if tokens is None:
        return task.anchors
    asked = np.atleast_1d(np.asarray(tokens))
    if asked.ndim != 1 or asked.size == 0 or not np.issubdtype(asked.dtype, np.integer):
        raise ValueError(
            f"tokens: expected a non-empty list of token ids, got {np.asarray(tokens)!r}."
        )
    if asked.min() < 0 or asked.max() >= task.vocab_size:
        raise ValueError(
            f"tokens: expected ids in [0, {task.vocab_size}), got values from {asked.min()} "
            f"to {asked.max()}."
        )
    if len(np.unique(asked)) != len(asked):
        raise ValueError(f"tokens: expected distinct ids, got {asked.tolist()}.")
    absent = asked[task.token_probability(asked) == 0]
    if absent.size:
        raise ValueError(
            f"tokens: {absent.tolist()} never occur in the task, so nothing can be conditioned "
            f"on them; ask for tokens that occur."
        )
    return asked.astype(np.int64)


def _signature(
    task: Task, order: int, tokens: ArrayLike | None, with_label: bool, as_sparse: bool
) -> NDArray[np.float64] | coo_array:
    _check_order(task, order)
    asked = _asked_tokens(task, tokens)
    row_of = np.full(task.vocab_size, -1)
    row_of[asked] = np.arange(len(asked))
    shape = (len(asked),) + (task.vocab_size,) * (order + with_label)
    if not as_sparse and 8 * math.prod(shape) > MAX_DENSE_BYTES:
        raise MemoryError(
            f"a dense order-{order} signature of shape {shape} takes "
            f"{8 * math.prod(shape) / 2**30:.1f} GiB; ask for fewer tokens or sparse=True."
        )
    if math.prod(shape) >= 2**63:
        raise MemoryError(f"an order-{order} signature of shape {shape} cannot be indexed.")

    positions = range(task.length)
    keys, values = [], []
    for i in positions:
        rows = row_of[task.tokens[:, i]]
        here = (rows >= 0) & (task.weights > 0)
        leading = [rows[here]] + ([task.labels[here]] if with_label else [])
        for context in permutations([j for j in positions if j != i], order):
            columns = [*leading, *(task.tokens[here, j] for j in context)]
            keys.append(np.ravel_multi_index(columns, shape))
            values.append(task.weights[here])
    key, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    total = np.bincount(inverse, weights=np.concatenate(values), minlength=len(key))
    index = np.unravel_index(key, shape)
    # Each row is divided by its own sum: exact normalisation whatever P(alpha) is.
    total /= np.bincount(index[0], weights=total)[index[0]]
    if as_sparse:
        return coo_array((total, index), shape=shape)
    dense = np.zeros(shape)
    dense[index] = total
    return dense


def label_signature(
    task: Task, order: int, tokens: ArrayLike | None = None, *, sparse: bool = False
) -> NDArray[np.float64]:
    r"""Label signature :math:`S^{(m)}_\alpha(y,x_1,\dots,x_m)`.

    Parameters
    ----------
    task : Task
    order : int
        ``m``, the number of context tokens; ``0 <= m < L``.
    tokens : array of int, optional
        Asked tokens; default: the task's anchors.
    sparse : bool
        Return a ``scipy.sparse.coo_array`` of the same shape, for vocabularies whose dense array
        does not fit.

    Returns
    -------
    float64 array, shape (A, V, V, ...)
        Asked token, label, then one axis per context slot. Non-negative; each row sums to one.

    Raises
    ------
    ValueError
        If the order is not below the sequence length or a token is unknown or never occurs.
    MemoryError
        If the dense array would be larger than ``MAX_DENSE_BYTES``.

    Notes
    -----
    Section 3.2 of the paper. Cost: :math:`O(n\,L!/(L-1-m)!)`.
    """
    return _signature(task, order, tokens, True, sparse)  # type: ignore[return-value]


def context_signature(
    task: Task, order: int, tokens: ArrayLike | None = None, *, sparse: bool = False
) -> NDArray[np.float64]:
    r"""Context (co-occurrence) signature :math:`C^{(m)}_\alpha(x_1,\dots,x_m)`.

    Parameters, errors and normalisation as in :func:`label_signature`.

    Returns
    -------
    float64 array, shape (A, V, ...)
        Asked token, then one axis per context slot; each row sums to one. Of order 0, a column
        of ones with shape (A,).
    """
    return _signature(task, order, tokens, False, sparse)  # type: ignore[return-value]


def attention_signature(
    task: Task, attention: ArrayLike, tokens: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Position-specific label signatures, each sequence counted by its attention on the token.

    .. math:: A_{\alpha,l}=\sum_{s:\,x_{s,l}=\alpha}w_s\,a_{s,l},\qquad
              \tilde S_{\alpha,l}(y)=
              \frac1{A_{\alpha,l}}\sum_{s:\,x_{s,l}=\alpha,\,y_s=y}w_s\,a_{s,l}

    Parameters
    ----------
    task : Task
    attention : float array, shape (n, L)
        Non-negative weight of each position in each sequence. Uniform attention leaves the plain
        position-specific signature :math:`P(y\mid x_l=\alpha)`.
    tokens : array of int, optional
        Asked tokens; default: the task's anchors.

    Returns
    -------
    mass : float64 array, shape (A, L)
        Attention mass that each token receives at each position.
    signature : float64 array, shape (A, L, V)
        Each row sums to one; zeros where the mass is zero.

    Raises
    ------
    ValueError
        If the attention is negative, not finite or of another shape, or a token is unknown.

    Notes
    -----
    Section 5.1 of the paper (claim 5.2).
    """
    a = np.asarray(attention, dtype=np.float64)
    if a.shape != task.tokens.shape or not np.isfinite(a).all() or (a < 0).any():
        raise ValueError(
            f"attention: expected finite, non-negative weights of shape {task.tokens.shape}, one a "
            f"position of every sequence, got shape {a.shape}; take them from model.attention."
        )
    asked = _asked_tokens(task, tokens)
    row_of = np.full(task.vocab_size, -1)
    row_of[asked] = np.arange(len(asked))
    joint = np.zeros((len(asked), task.length, task.vocab_size))
    for position in range(task.length):
        rows = row_of[task.tokens[:, position]]
        here = rows >= 0
        weight = task.weights[here] * a[here, position]
        np.add.at(joint, (rows[here], position, task.labels[here]), weight)  # pyright: ignore
    mass = joint.sum(axis=-1)
    return mass, joint / np.where(mass > 0, mass, 1.0)[..., None]


def information(task: Task, order: int, tokens: ArrayLike | None = None) -> float:
    r"""Bits about the label that lie in which token it is, given ``m`` context tokens.

    .. math:: I\big(y;\alpha\mid x_1..x_m\big)=\sum P\,\log_2
              \frac{P(y,\alpha,x_1..x_m)\;P(x_1..x_m)}{P(y,x_1..x_m)\;P(\alpha,x_1..x_m)}

    computed from :math:`S^{(m)}` and the tokens' probabilities. It is zero exactly when the
    order-``m`` signatures say the same of all asked tokens wherever their contexts meet: zero at
    order 0 for modular addition, where one number tells nothing, and all of the label at order 1.
    For all tokens of a task together it is what the ``(m+1)``-th token adds to ``m`` others.

    Parameters
    ----------
    task : Task
    order : int
        ``m``; ``0 <= m < L``.
    tokens : array of int, optional
        Asked tokens; default: the task's anchors.

    Returns
    -------
    float
        Not negative; at most the entropy of the label.

    Raises
    ------
    ValueError
        As :func:`label_signature`.
    """
    signature = _signature(task, order, tokens, True, True)
    assert isinstance(signature, coo_array)
    asked, label, *context = signature.coords
    share = task.token_probability(_asked_tokens(task, tokens))
    joint = signature.data * (share / share.sum())[asked]

    def marginal(*kept: NDArray) -> NDArray[np.float64]:
        """Probability of the kept coordinates, for every entry."""
        if not kept:
            return np.ones_like(joint)
        _, group = np.unique(np.stack(kept), axis=1, return_inverse=True)
        total = np.zeros(len(joint))
        np.add.at(total, group.ravel(), joint)
        return total[group.ravel()]

    ratio = joint * marginal(*context) / (marginal(label, *context) * marginal(asked, *context))
    return max(0.0, float(joint @ np.log2(ratio)))


def _check_slots(signature: NDArray[np.float64]) -> None:
    if signature.ndim < 3:
        raise ValueError(
            f"signature: expected a label signature with at least one context slot, shape "
            f"(A, V, V, ...), got shape {signature.shape}; order 0 has no slot to contract."
        )


def project(signature: NDArray[np.float64], probes: ArrayLike) -> NDArray[np.float64]:
    r"""Contract every context slot with probe vectors, :math:`\sum_{x} S_\alpha(y,x)\,p_j(x)`.

    Signatures of order two and more of different anchors have disjoint supports and cannot be
    compared as they are; their projections can.

    Parameters
    ----------
    signature : float array, shape (A, V, V, ...)
    probes : array, shape (V, k)
        One column per probe; every slot is contracted with each of them.

    Returns
    -------
    array, shape (A, V * k**m)
        One feature row per token, ready for
        :func:`~staircase_lib.alignment.cosine_similarity`.
    """
    _check_slots(signature)
    p = np.asarray(probes)
    if p.ndim != 2 or p.shape[0] != signature.shape[-1]:
        raise ValueError(
            f"probes: expected shape (V, k) with V={signature.shape[-1]}, got {p.shape}."
        )
    out = signature
    for _ in range(signature.ndim - 2):
        # The contracted axis leaves from position 2 and its probe axis joins at the end.
        out = np.tensordot(out, p, axes=(2, 0))
    return out.reshape(len(signature), -1)


def contract(signature: NDArray[np.float64] | coo_array, vectors: ArrayLike) -> NDArray:
    r"""Read a signature with given vectors for its context tokens.

    .. math:: \sum_{x_1..x_m}S^{(m)}_\alpha(y,x_1..x_m)\;v_{x_1}\odot\dots\odot v_{x_m}

    In Theorem 1 the signature of order ``m`` reaches an embedding in this form, with
    :math:`v_x=W^\top E_x` (every factor once). Unlike :func:`project` there is one number a
    component of the vectors, not one for every choice of ``m`` components.

    Parameters
    ----------
    signature : array or sparse array, shape (A, V, V, ...)
        Label signature of any order; :func:`label_signature` with ``sparse=True`` costs least.
    vectors : float array, shape (V, h)

    Returns
    -------
    float64 array, shape (A, Y * h)
        One feature row per asked token, over the ``Y`` labels that occur; order 0 gives the
        signature itself, shape (A, Y).

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    entries: Any = signature if isinstance(signature, coo_array) else coo_array(signature)
    v = np.asarray(vectors, dtype=np.float64)
    if len(entries.shape) < 2 or v.ndim != 2 or v.shape[0] != entries.shape[-1]:
        raise ValueError(
            f"signature, vectors: expected shapes (A, V, V, ...) and (V, h), got {entries.shape} "
            f"and {v.shape}."
        )
    asked, label, *context = entries.coords
    occurring, place = np.unique(label, return_inverse=True)
    product = np.ones((len(asked), v.shape[1] if context else 1))
    for slot in context:
        product *= v[slot]
    rows = asked.astype(np.int64) * len(occurring) + place.ravel()
    shape = (entries.shape[0] * len(occurring), len(asked))
    summed = csr_array((entries.data, (rows, np.arange(len(asked)))), shape=shape) @ product
    return summed.reshape(entries.shape[0], -1)


def fourier_component(
    signature: NDArray[np.float64], frequency: int, contexts: ArrayLike
) -> NDArray[np.complex128]:
    r"""Fourier component of the last context slot over context tokens in cyclic order.

    .. math:: \hat S_\alpha(y,\dots;k)=\sum_{x=0}^{N-1} S_\alpha(y,\dots,c_x)\,e^{-2\pi i k x/N}

    At :math:`k=0`, with every context token that occurs listed, this is the signature of one order
    less (section 4.4 of the paper, claim 4.10).

    Parameters
    ----------
    signature : float array, shape (A, V, V, ...)
    frequency : int
        ``k``.
    contexts : array of int, shape (N,)
        Token ids :math:`c_0,\dots,c_{N-1}` in their cyclic order.

    Returns
    -------
    complex128 array, shape (A, V, ...)
        One context slot less.
    """
    _check_slots(signature)
    c = np.asarray(contexts)
    if c.ndim != 1 or c.size == 0 or not np.issubdtype(c.dtype, np.integer):
        raise ValueError(f"contexts: expected a non-empty list of token ids, got shape {c.shape}.")
    if c.min() < 0 or c.max() >= signature.shape[-1]:
        raise ValueError(
            f"contexts: expected ids in [0, {signature.shape[-1]}), got values from {c.min()} "
            f"to {c.max()}."
        )
    wave = np.exp(-2j * np.pi * frequency * np.arange(len(c)) / len(c))
    return (signature[..., c] @ wave).astype(np.complex128)
