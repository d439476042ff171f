r"""How closely an embedding geometry follows a signature.

The geometry of ``n`` tokens is the matrix of their pairwise cosine similarities. The paper's
alignment :math:`r_m(t)` is the Pearson correlation, over token pairs, of the embeddings'
similarities and those of the order-:math:`m` signatures (section 4.1 of arXiv:2608.30315).

Shapes: ``n`` tokens, ``F`` features; leading axes (snapshots, runs) are carried along.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.model_selection import KFold

__all__ = [
    "Probe",
    "alignment",
    "cosine_similarity",
    "effective_dimension",
    "fit_probe",
    "mean_cosine",
    "pca",
    "pearson_offdiagonal",
]

#: Share of entries that are not zero below which a probe's features are multiplied as sparse ones
#: (a signature of order one of a deterministic task has one label for each context).
_SPARSE = 0.1


def _rows(values: ArrayLike, what: str) -> NDArray:
    x = np.asarray(values)
    if x.ndim < 2 or x.shape[-2] == 0:
        raise ValueError(f"{what}: expected shape (..., n, F) with n >= 1, got {x.shape}.")
    if not np.isfinite(x).all():
        raise ValueError(
            f"{what}: expected finite numbers, got {int((~np.isfinite(x)).sum())} that are not; "
            f"did the run diverge?"
        )
    return x if np.iscomplexobj(x) else x.astype(np.float64)


def cosine_similarity(X: ArrayLike) -> NDArray[np.float64]:
    """Cosine similarity of every pair of rows.

    Parameters
    ----------
    X : array, shape (..., n, F)
        Real or complex rows; of complex rows the real part of the Hermitian product counts, which
        is the cosine of the rows of stacked real and imaginary parts.

    Returns
    -------
    float64 array, shape (..., n, n)
        Symmetric, in [-1, 1], ones on the diagonal. A row of zeros has no direction: its
        similarity to every other row is 0.
    """
    x = _rows(X, "X")
    # Scaled by the largest entry first, so that tiny embeddings do not underflow when squared.
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
    x = x / np.where(largest > 0, largest, 1.0)
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    unit = x / np.where(norm > 0, norm, 1.0)
    similarity = np.clip((unit @ unit.conj().swapaxes(-1, -2)).real, -1.0, 1.0)
    diagonal = np.arange(x.shape[-2])
    similarity[..., diagonal, diagonal] = 1.0
    return similarity


def mean_cosine(X: ArrayLike) -> NDArray[np.float64]:
    """Mean cosine similarity over the pairs ``i < j``: one after a collapse onto one direction.

    Parameters
    ----------
    X : array, shape (..., n, d)

    Returns
    -------
    float64 array over the leading axes
        ``nan`` for a single row, which has no pairs.
    """
    similarity = cosine_similarity(X)
    pairs = np.triu_indices(similarity.shape[-1], 1)
    if not len(pairs[0]):
        return np.full(similarity.shape[:-2], np.nan)
    return similarity[..., pairs[0], pairs[1]].mean(axis=-1)


def pearson_offdiagonal(A: ArrayLike, B: ArrayLike) -> float:
    """Pearson correlation of two similarity matrices over the pairs ``i < j``.

    Parameters
    ----------
    A, B : array, shape (n, n), n >= 3
        Leading axes are allowed and broadcast.

    Returns
    -------
    float, or an array over the leading axes
        ``nan`` where one side is constant over the pairs to rounding (a standard deviation below
        1e-9): correlation is undefined there, as for the zeroth-order signature of modular
        addition.
    """
    a, b = _rows(A, "A"), _rows(B, "B")
    n = a.shape[-1]
    if a.shape[-2:] != (n, n) or b.shape[-2:] != (n, n) or n < 3:
        raise ValueError(
            f"A, B: expected two square matrices of the same size, at least 3 by 3, "
            f"got {a.shape} and {b.shape}."
        )
    pairs = np.triu_indices(n, 1)
    a, b = a[..., pairs[0], pairs[1]], b[..., pairs[0], pairs[1]]
    a = a - a.mean(axis=-1, keepdims=True)
    b = b - b.mean(axis=-1, keepdims=True)
    spread_a, spread_b = a.std(axis=-1), b.std(axis=-1)
    defined = (spread_a > 1e-9) & (spread_b > 1e-9)
    scale = np.where(defined, spread_a * spread_b, 1.0)
    r = np.where(defined, np.clip((a * b).mean(axis=-1) / scale, -1.0, 1.0), np.nan)
    return float(r) if r.ndim == 0 else r  # type: ignore[return-value]


def alignment(embeddings: ArrayLike, features: ArrayLike) -> NDArray[np.float64]:
    r"""Alignment :math:`r_m`: correlation of embedding and signature similarities.

    Parameters
    ----------
    embeddings : array, shape (..., n, d)
    features : array, shape (..., n, F)
        One row per token, for instance a zeroth-order signature or a projected higher one.

    Returns
    -------
    float64 array over the leading axes
    """
    return np.asarray(
        pearson_offdiagonal(cosine_similarity(embeddings), cosine_similarity(features))
    )


def pca(X: ArrayLike, k: int = 2) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Principal components of the rows.

    Parameters
    ----------
    X : real array, shape (..., n, F)
    k : int
        Number of components, at most ``min(n, F)``.

    Returns
    -------
    points : float64 array, shape (..., n, k)
        Centred scores. Each component's sign is chosen so that it grows with the row number, which
        keeps pictures of different seeds and snapshots comparable.
    explained : float64 array, shape (..., k)
        Share of the variance; zeros if all rows are equal.
    """
    x = _rows(X, "X")
    if not 1 <= k <= min(x.shape[-2:]):
        raise ValueError(f"k: expected between 1 and {min(x.shape[-2:])}, got {k}.")
    x = x - x.mean(axis=-2, keepdims=True)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    points = u[..., :k] * s[..., None, :k]
    order = np.arange(x.shape[-2]) - (x.shape[-2] - 1) / 2
    trend = np.einsum("...nk,n->...k", points, order)
    points = points * np.where(trend < 0, -1.0, 1.0)[..., None, :]
    total = (s**2).sum(axis=-1, keepdims=True)
    return points, s[..., :k] ** 2 / np.where(total > 0, total, 1.0)


def effective_dimension(X: ArrayLike) -> NDArray[np.float64]:
    r"""Participation ratio of the variances along the principal components of the rows.

    .. math:: \Big(\sum_k\lambda_k\Big)^2\Big/\sum_k\lambda_k^2

    Parameters
    ----------
    X : real array, shape (..., n, F)
        Centred first; :math:`\lambda_k` are the eigenvalues of their covariance.

    Returns
    -------
    float64 array over the leading axes
        1 for points on a straight line, 2 for a full circle, at most ``min(n - 1, F)``; 0 if all
        rows are equal.
    """
    shares = pca(X, min(np.shape(X)[-2:]))[1]
    total = (shares**2).sum(axis=-1)
    return np.where(total > 0, 1.0 / np.where(total > 0, total, 1.0), 0.0)


@dataclass(frozen=True)
class Probe:
    """A cross-validated probe of a signature.

    Attributes
    ----------
    probe : float64 array, shape (P,) or (P, rank)
        Fitted on all tokens.
    predicted : float64 array, shape (n, n)
        Held-out predictions: each pair from the folds in which at least one of its tokens was
        held out, averaged over them; ones on the diagonal.
    mse : float
        Mean squared error of ``predicted`` over the pairs ``i < j``.
    correlation : float
        Pearson correlation of ``predicted`` and the target over the pairs; ``nan`` if a side is
        constant.
    baseline_mse : float
        Error of predicting, in each fold, the mean similarity of the training pairs.
    fitted_correlation : float
        Correlation of the probe fitted on all tokens, in sample.
    """

    probe: NDArray[np.float64]
    predicted: NDArray[np.float64]
    mse: float
    correlation: float
    baseline_mse: float
    fitted_correlation: float


def _contract(features: NDArray, probe: NDArray, slots: int) -> NDArray:
    """The last axes (P, ..., P) contracted with each column of (P, rank), which comes last."""
    out = features @ probe
    for _ in range(slots - 1):
        out = np.einsum("...pr,pr->...r", out, probe)
    return out


def _fit(
    features: NDArray, target: NDArray, start: NDArray, ridge: float, iterations: int
) -> NDArray[np.float64]:
    """Probe (P, rank) that minimises the squared similarity error over pairs plus a ridge."""
    n, rank, slots = len(target), start.shape[1], features.ndim - 2
    off = ~np.eye(n, dtype=bool)
    last: Any = features.reshape(-1, len(start))  # the last slot as columns
    if np.count_nonzero(last) < _SPARSE * last.size:
        last = csr_array(last)
    transposed = last.T.tocsr() if isinstance(last, csr_array) else last.T

    def objective(flat: NDArray) -> tuple[float, NDArray]:
        p = flat.reshape(-1, rank)
        # All slots but one, (n, F, P, rank), serve the contraction and its derivative.
        left = (last @ p).reshape(*features.shape[:-1], rank)
        for _ in range(slots - 2):
            left = np.einsum("...pr,pr->...r", left, p)
        g = left if slots == 1 else np.einsum("nfpr,pr->nfr", left, p)
        g = g.reshape(n, -1)
        norm = np.sqrt(np.einsum("nk,nk->n", g, g))[:, None] + 1e-30
        unit = g / norm
        error = np.where(off, unit @ unit.T - target, 0.0)
        loss = np.vdot(error, error) / off.sum() + ridge * np.vdot(p, p) / p.size
        d_unit = 4 / off.sum() * (error @ unit)
        d_g = (d_unit - unit * np.einsum("nk,nk->n", d_unit, unit)[:, None]) / norm
        if slots == 1:
            d_p = transposed @ d_g.reshape(-1, rank)
        else:  # the slots are interchangeable
            d_p = slots * np.einsum("nfpr,nfr->pr", left, d_g.reshape(n, -1, rank))
        d_p = d_p + 2 * ridge / p.size * p
        return float(loss), d_p.ravel()

    result = minimize(
        objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": iterations}
    )
    return result.x.reshape(-1, rank)


def _predict(features: NDArray, probe: NDArray) -> NDArray[np.float64]:
    g = _contract(features, probe, features.ndim - 2)
    return cosine_similarity(g.reshape(len(features), -1))


def fit_probe(
    signature: ArrayLike,
    similarity: ArrayLike,
    *,
    folds: int = 5,
    rank: int = 1,
    ridge: float = 1e-4,
    iterations: int = 200,
    seed: int = 0,
) -> Probe:
    r"""Probe vectors whose contraction with a signature reproduces a similarity matrix.

    A label signature of order one is contracted over its context slot,
    :math:`g_\alpha(y)=\sum_x S^{(1)}_\alpha(y,x)\,p(x)`; one of order zero is reweighted over its
    labels, :math:`g_\alpha(y)=p(y)\,S^{(0)}_\alpha(y)`; of order :math:`m\ge2` every slot is
    contracted with the same probe,

    .. math:: g_\alpha(y)=\sum S^{(m)}_\alpha(y,x_1..x_m)\,p(x_1)\cdots p(x_m),

    so that every order from one up is read with the same number of parameters. The probe
    :math:`p` minimises the mean squared difference of the cosine similarities of :math:`g` and
    the given ones over pairs of training tokens. With ``folds`` folds over *tokens*, every pair is
    predicted by probes that have not seen at least one of its two tokens.

    Parameters
    ----------
    signature : float array, shape (n, F) or (n, F, P, ...)
        Order zero, or one axis of size P for every context slot; labels and context tokens that
        are zero for every token are dropped.
    similarity : float array, shape (n, n)
        The target, usually the embeddings' cosine similarities.
    folds : int
        At least 2, at most ``n / 2``; the paper uses five.
    rank : int
        Number of probe vectors, their features side by side; ignored for order zero.
    ridge : float
        Weight of the probe's mean square, at features scaled to unit mean square.
    iterations : int
        Limit of L-BFGS steps.
    seed : int
        Of the folds and the start.

    Returns
    -------
    Probe

    Raises
    ------
    ValueError
        If shapes disagree or folds are out of range.

    Notes
    -----
    "Optimized first-order signature" of section 4.2 of the paper (claim 4.6). The start is the
    constant probe, whose first-order contraction is exactly the zeroth-order signature, plus a
    little noise.
    """
    s = np.asarray(signature, dtype=np.float64)
    target = _rows(similarity, "similarity")
    n = len(target)
    if s.ndim < 2 or len(set(s.shape[2:])) > 1 or len(s) != n or target.shape != (n, n):
        raise ValueError(
            f"signature, similarity: expected shapes (n, F) or (n, F, P, ...) and (n, n), "
            f"got {s.shape} and {target.shape}."
        )
    if not 2 <= folds <= n // 2:
        raise ValueError(
            f"folds: expected between 2 and n/2 = {n // 2}, so that training tokens form pairs, "
            f"got {folds}."
        )
    if s.ndim == 2:  # a weight per label: features (n, V, V) diagonal over the last two axes
        s = s[:, s.any(axis=0)]
        s, rank = s[:, :, None] * np.eye(s.shape[1]), 1
    else:
        slots = range(2, s.ndim)
        # The probe is the same in every slot, so only the part symmetric in the slots counts.
        s = np.mean([s.transpose(0, 1, *order) for order in permutations(slots)], axis=0)
        s = s[:, s.any(axis=(0, *slots))]
        used = s.any(axis=(0, 1, *slots[1:]))
        for slot in slots:
            s = np.compress(used, s, axis=slot)
    s = s / np.sqrt((s**2).reshape(n, -1).sum(axis=1).mean())
    start = 1.0 + 0.1 * np.random.default_rng(seed).standard_normal((s.shape[2], rank))

    predicted, count, baseline = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for train, test in KFold(folds, shuffle=True, random_state=seed).split(s):
        inner = np.ix_(train, train)
        probe = _fit(s[train], target[inner], start, ridge, iterations)
        held = np.zeros(n, dtype=bool)
        held[test] = True
        unseen = held[:, None] | held[None, :]
        pairs = target[inner][np.triu_indices(len(train), 1)]
        predicted += np.where(unseen, _predict(s, probe), 0.0)
        baseline += np.where(unseen, pairs.mean(), 0.0)
        count += unseen
    predicted, baseline = predicted / count, baseline / count
    np.fill_diagonal(predicted, 1.0)
    upper = np.triu_indices(n, 1)
    probe = _fit(s, target, start, ridge, iterations)
    return Probe(
        probe=probe[:, 0] if rank == 1 else probe,
        predicted=predicted,
        mse=float(((predicted - target)[upper] ** 2).mean()),
        correlation=pearson_offdiagonal(predicted, target),
        baseline_mse=float(((baseline - target)[upper] ** 2).mean()),
        fitted_correlation=pearson_offdiagonal(_predict(s, probe), target),
    )
