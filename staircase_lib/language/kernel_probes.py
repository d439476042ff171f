r"""Probes of signatures, of order 0 and of the first order (claim 6.6).

Is the similarity of tokens that a probe has not seen predicted by their signatures? With unit
vectors :math:`z_\alpha` along the centred embeddings, an unseen token's is predicted linearly from
its signature, by kernel ridge regression on the seen tokens:
:math:`\hat z_\alpha=\sum_\beta B_{\alpha\beta}z_\beta`, the weights :math:`B` a function of
signatures only. So similarities alone enter, :math:`\hat T=BTB^\top`, in closed form. The kernel is

.. math:: k_\mu=(1-\mu)\,k_0+\mu\,k_1,\qquad
          k_0(\alpha,\beta)=\sum_y\sqrt{S^{(0)}_\alpha(y)S^{(0)}_\beta(y)},\qquad
          k_1(\alpha,\beta)=\sum_{c,y}\sqrt{S^{(1)}_\alpha(y,c)S^{(1)}_\beta(y,c)},

each centred and scaled to the same mean diagonal, :math:`S^{(1)}_\alpha(y,c)` the distribution of
the next token and the previous one. Summed over :math:`c` it is :math:`S^{(0)}`: a probe of the
first order can always fall back on order 0, and :math:`\mu` says how far it does. It is chosen
together with the ridge on the seen tokens, by generalised cross-validation; order 0 is
:math:`\mu=0`. This mixture is what lets the first order be seen at all. On its own, :math:`k_1`
compares tokens by exact pairs of neighbours, of which there are so many that two tokens share few:
it predicts worse than order 0 at every step. Fewer counts' noise does not cure that (shrinking
:math:`S^{(1)}` to the product of its marginals changes nothing), low rank and coarse contexts do in
part; in the mixture they are no longer needed. Roots, that is Bhattacharyya coefficients, predict
better than probabilities, whose few large entries rule.

Shapes: ``V`` vocabulary, ``A`` chosen tokens, ``d`` width, ``R`` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.alignment import cosine_similarity
from staircase_lib.language.corpus_counts import CorpusCounts
from staircase_lib.language.similarity import centre, correlation, tidy_row, with_runs

__all__ = ["KernelProbe", "kernel_probe", "probe_rows", "signature_probes"]

_SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)  # of the first-order kernel
_RIDGES = 10.0 ** np.arange(-4, 2.01, 0.5)


@dataclass(frozen=True)
class _Fold:
    """One division into seen and unseen tokens, for every mixture of kernels.

    ``values (K, n)`` and ``vectors (K, n, n)`` belong to the centred kernels of the seen tokens,
    ``cross (K, m, n)`` are the unseen tokens' kernels in that basis.
    """

    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]
    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    cross: NDArray[np.float64]


@dataclass(frozen=True)
class KernelProbe:
    """A probe of one kind of signature, ready for the similarities of any checkpoint.

    Attributes
    ----------
    shares : tuple of float
        Share of the second kernel in each mixture; (0.0,) if there is one kernel only.
    """

    shares: tuple[float, ...]
    _folds: tuple[_Fold, ...]

    def held_out(self, similarity: ArrayLike) -> dict[str, float]:
        r"""Errors on tokens that the probe has not seen.

        Parameters
        ----------
        similarity : float array, shape (A, A)
            Cosines of centred embeddings, ones on the diagonal.

        Returns
        -------
        dict
            ``mse``: mean squared error over the pairs of unseen tokens, all folds together, and
            ``correlation`` of prediction and truth there; ``mse with seen``: over the pairs of an
            unseen and a seen token; ``mean mse``: error over unseen pairs of predicting the mean
            similarity of the seen ones; ``share``: mean over the folds of the chosen share of the
            second kernel.
        """
        T = np.asarray(similarity, dtype=np.float64)
        expected = len(self._folds[0].seen) + len(self._folds[0].unseen)
        if T.shape != (expected, expected):
            raise ValueError(
                f"similarity: expected shape {(expected, expected)}, one row a chosen token, got "
                f"{T.shape}."
            )
        truth, guess, mean, half, shares = [], [], [], [], []
        for fold in self._folds:
            seen = T[np.ix_(fold.seen, fold.seen)]
            best, B = _fitted(fold, seen)
            shares.append(self.shares[best])
            pairs = np.triu_indices(len(fold.unseen), 1)
            truth.append(T[np.ix_(fold.unseen, fold.unseen)][pairs])
            guess.append((B @ seen @ B.T)[pairs])
            known = seen[np.triu_indices(len(seen), 1)].mean()
            mean.append(np.full(len(pairs[0]), known))
            half.append((B @ seen - T[np.ix_(fold.unseen, fold.seen)]).ravel())
        t, g = np.concatenate(truth), np.concatenate(guess)
        return {
            "mse": float(((g - t) ** 2).mean()),
            "correlation": correlation(g, t, np.full(len(t), 1 / len(t))),
            "mse with seen": float((np.concatenate(half) ** 2).mean()),
            "mean mse": float(((np.concatenate(mean) - t) ** 2).mean()),
            "share": float(np.mean(shares)),
        }


def _fitted(fold: _Fold, seen: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
    """Mixture and weights (m, n) chosen by generalised cross-validation on the seen tokens."""
    n = len(seen)
    # Squared length of the targets along each eigenvector; the constant one has none.
    along = ((centre(seen) @ fold.vectors) * fold.vectors).sum(axis=-2)  # (K, n)
    shrink = _RIDGES / (fold.values[..., None] + _RIDGES)  # (K, n, ridges)
    freedom = n - 1 - (1 - shrink).sum(axis=-2)
    score = (shrink**2 * along[..., None]).sum(axis=-2) / np.maximum(freedom, 1e-9) ** 2
    k, r = np.unravel_index(np.argmin(score), score.shape)
    solved = fold.cross[k] / (fold.values[k] + _RIDGES[r]) @ fold.vectors[k].T
    return int(k), 1 / n + solved


def kernel_probe(
    kernels: Sequence[ArrayLike],
    *,
    shares: Sequence[float] = _SHARES,
    folds: int = 5,
    seed: int = 0,
) -> KernelProbe:
    """A probe from inner products of one or two kinds of features.

    Parameters
    ----------
    kernels : one or two float arrays, shape (A, A)
        Inner products of the features; they are centred and scaled to mean diagonal one.
    shares : sequence of float
        Shares of the second kernel to choose from.
    folds : int
        Over tokens.
    seed : int
        Of the division into folds, the same for all probes with the same number of tokens.

    Raises
    ------
    ValueError
        If there are fewer than four tokens a fold or the shapes disagree.
    """
    A = len(np.asarray(kernels[0]))
    if any(np.shape(k) != (A, A) for k in kernels) or not 1 <= len(kernels) <= 2:
        raise ValueError(
            f"kernels: expected one or two of the same square shape, got "
            f"{[np.shape(k) for k in kernels]}."
        )
    if not 2 <= folds <= A // 4:
        raise ValueError(
            f"folds: expected between 2 and a quarter of the {A} tokens, got {folds}; choose more "
            f"tokens."
        )
    scaled = []
    for kernel in kernels:
        centred = centre(np.asarray(kernel, dtype=np.float64))
        scaled.append(centred / max(np.trace(centred) / A, 1e-300))
    shares = (0.0,) if len(scaled) == 1 else tuple(shares)
    order = np.random.default_rng(seed).permutation(A)
    divided = []
    for unseen in np.array_split(order, folds):
        seen = np.setdiff1d(order, unseen)
        values, vectors, cross = [], [], []
        for share in shares:
            kernel = scaled[0] if len(scaled) == 1 else (1 - share) * scaled[0] + share * scaled[1]
            inner = kernel[np.ix_(seen, seen)]
            means = inner.mean(axis=0)
            w, Q = np.linalg.eigh(centre(inner))
            outer = kernel[np.ix_(unseen, seen)] - means
            outer = outer - outer.mean(axis=1, keepdims=True)
            values.append(np.maximum(w, 0.0))
            vectors.append(Q)
            cross.append(outer @ Q)
        divided.append(_Fold(seen, unseen, np.array(values), np.array(vectors), np.array(cross)))
    return KernelProbe(shares, tuple(divided))


def _class_of(counts: CorpusCounts, contexts: int | None) -> NDArray[np.int64]:
    """Class of each token of the vocabulary as a context: the most frequent alone, the rest one."""
    if contexts is None:
        return np.arange(counts.vocab_size)
    frequent = np.argsort(-counts.occurrences, kind="stable")[:contexts]
    classes = np.full(counts.vocab_size, contexts, dtype=np.int64)
    classes[frequent] = np.arange(len(frequent))
    return classes


def _first_order(counts: CorpusCounts, contexts: int | None) -> tuple[NDArray, NDArray]:
    """Bhattacharyya coefficients (A, A) of the first-order signatures, and of the products of
    their marginals, in which next and previous token are independent."""
    A, V = len(counts.tokens), counts.vocab_size
    token, before, after = (axis.astype(np.int64) for axis in counts.triples.coords)
    number = np.asarray(counts.triples.data, dtype=np.float64)
    classes = _class_of(counts, contexts)[before]
    total = np.maximum(np.bincount(token, number, A), 1.0)

    def coefficients(features: NDArray[np.int64]) -> NDArray[np.float64]:
        found, columns = np.unique(features, return_inverse=True)
        entries = (number / total[token], (token, columns))
        table: Any = sparse.csr_array(sparse.coo_array(entries, shape=(A, len(found))))
        table.data = np.sqrt(table.data)  # the conversion has added up what fell together
        return np.asarray((table @ table.T).toarray())

    return coefficients(classes * V + after), coefficients(after) * coefficients(classes)


def signature_probes(
    counts: CorpusCounts, *, contexts: int | None = None, folds: int = 5, seed: int = 0
) -> dict[str, KernelProbe]:
    """Probes of the signatures of a corpus and their controls, made once for all checkpoints.

    Parameters
    ----------
    counts : CorpusCounts
        With triples.
    contexts : int, optional
        Previous tokens that are told apart, the most frequent ones; all others are one context.
        Default: all are told apart.
    folds, seed : int
        As in :func:`kernel_probe`.

    Returns
    -------
    dict of str to KernelProbe
        ``"order 0"``; ``"order 1"``; ``"order 1, independent"``, from :math:`S^{(0)}` and the
        previous token's distribution as if they were independent; ``"order 1, other contexts"``,
        order 0 and another token's first order; ``"order 1, shuffled"``, both of another token.
    """
    if counts.triples is None:
        raise ValueError("counts: expected triples, for order 1; count_corpus(…, triples=True).")
    zero = counts.gram("root")
    joint, independent = _first_order(counts, contexts)
    shuffled = np.random.default_rng([seed, 1]).permutation(len(zero))
    other = np.ix_(shuffled, shuffled)
    kinds = {
        "order 0": [zero],
        "order 1": [zero, joint],
        "order 1, independent": [zero, independent],
        "order 1, other contexts": [zero, joint[other]],
        "order 1, shuffled": [zero[other], joint[other]],
    }
    return {name: kernel_probe(kernels, folds=folds, seed=seed) for name, kernels in kinds.items()}


def probe_rows(embeddings: ArrayLike, probes: dict[str, KernelProbe]) -> list[dict[str, Any]]:
    """Held-out errors of the probes at a checkpoint (claim 6.6).

    Parameters
    ----------
    embeddings : float array, shape (A, d) or (R, A, d)
        Rows of the chosen tokens.
    probes : dict of str to KernelProbe
        From :func:`signature_probes`.

    Returns
    -------
    list of dict
        ``measure`` is ``"probe mse"``, ``"probe mse with seen"``, ``"probe correlation"`` or
        ``"probe share"`` (of order 1 in the kernel), ``signature`` the probe's name. The error of
        the mean has ``signature`` ``"mean"``.
    """
    rows = []
    for run, E in enumerate(with_runs(embeddings, 2, "embeddings")):
        similarity = cosine_similarity(E - E.mean(axis=0))
        mean = float("nan")
        for name, probe in probes.items():
            found = probe.held_out(similarity)
            mean = found.pop("mean mse")
            rows += [
                tidy_row(f"probe {what}", name, "as defined", run, None, value)
                for what, value in found.items()
                if what != "share" or len(probe.shares) > 1
            ]
        rows.append(tidy_row("probe mse", "mean", "as defined", run, None, mean))
    return rows
