r"""Do the signatures of words show what the words mean: an order, a cycle, a category?

Each statistic takes the signatures of a few words, or their cosine similarities, *in the natural
order of the words*, and returns one number. Only directions count, as in the paper's alignment.
What chance would give is computed, from other orders of the same words or from the sizes of the
categories, and not guessed.

Shapes: ``n`` words, ``F`` labels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from staircase_lib.alignment import pca, pearson_offdiagonal

__all__ = [
    "adjacent_share",
    "chance_accuracy",
    "chance_correlation",
    "closing",
    "layout_correlation",
    "neighbour_accuracy",
    "path_correlation",
    "path_scores",
    "share_of_orders",
]

Layout = Literal["line", "circle"]


def path_scores(rows: ArrayLike, k: int = 1) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Principal components of the rows' directions.

    Parameters
    ----------
    rows : float array, shape (n, F)
        Scaled to unit length first; a row of zeros stays one.
    k : int

    Returns
    -------
    points : float64 array, shape (n, k)
    explained : float64 array, shape (k,)
        As :func:`staircase_lib.alignment.pca`.
    """
    x = np.asarray(rows, dtype=np.float64)
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return pca(x / np.where(norm > 0, norm, 1.0), k)


def path_correlation(rows: ArrayLike) -> float:
    r"""How well the first principal component of the rows orders the words.

    Parameters
    ----------
    rows : float array, shape (n, F), n >= 3
        Signatures in natural order.

    Returns
    -------
    float
        Absolute value of Spearman's rank correlation with the natural order; ``nan`` if all rows
        have one direction. Its mean over random orders is about :math:`0.8/\sqrt{n-1}`.
    """
    ranks = rankdata(path_scores(rows)[0][:, 0].round(12))
    if len(ranks) < 3:
        raise ValueError(f"rows: expected at least three words, got {len(ranks)}.")
    return abs(float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])) if np.ptp(ranks) else np.nan


def chance_correlation(n: int, share: float = 0.05, *, draws: int = 20000, seed: int = 0) -> float:
    """What :func:`path_correlation` exceeds in a share of the random orders of ``n`` words."""
    generator = np.random.default_rng(seed)
    orders = generator.permuted(np.tile(np.arange(n), (draws, 1)), axis=1)
    natural = np.arange(n) - (n - 1) / 2
    found = np.abs(orders @ natural) / (natural**2).sum()
    return float(np.quantile(found, 1 - share, method="higher"))


def _distances(layout: Layout, n: int) -> NDArray[np.float64]:
    along = np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(np.float64)
    if layout == "line":
        return along
    if layout == "circle":
        return np.minimum(along, n - along)
    raise ValueError(f"layout: expected line or circle, got {layout!r}.")


def _square(similarity: ArrayLike, least: int) -> NDArray[np.float64]:
    s = np.asarray(similarity, dtype=np.float64)
    if s.ndim != 2 or s.shape[0] != s.shape[1] or len(s) < least:
        raise ValueError(
            f"similarity: expected a square matrix of at least {least} words, got {s.shape}."
        )
    return s


def layout_correlation(similarity: ArrayLike, layout: Layout) -> float:
    """Correlation of similarity with closeness on a line or on a circle.

    Parameters
    ----------
    similarity : float array, shape (n, n), n >= 4
        Words in natural order.
    layout : {"line", "circle"}
        Words one step apart; on the circle the last one is next to the first.

    Returns
    -------
    float
        Pearson correlation, over the pairs of words, of similarity and *minus* the number of steps.
    """
    s = _square(similarity, 4)
    return float(pearson_offdiagonal(s, -_distances(layout, len(s))))


def share_of_orders(
    similarity: ArrayLike, layout: Layout, *, draws: int = 2000, seed: int = 0
) -> float:
    """Share of random orders of the words that fit the layout at least as well as the natural one.

    Parameters
    ----------
    similarity, layout
        As for :func:`layout_correlation`.
    draws : int
        Random orders; the natural one is counted as one more, so that the share is never zero.
    seed : int

    Returns
    -------
    float
        In (0, 1]: uniform if the natural order is as good as any (the p-value of
        Mantel's test, :cite:`mantel1967detection`).
        Turning and mirroring a circle changes nothing, so the share cannot fall far below
        ``2 n / n!``; ``nan`` where the correlation is.
    """
    s = _square(similarity, 4)
    n = len(s)
    own = layout_correlation(s, layout)
    if np.isnan(own):
        return np.nan
    generator = np.random.default_rng(seed)
    orders = generator.permuted(np.tile(np.arange(n), (draws, 1)), axis=1)
    others = pearson_offdiagonal(
        s[orders[:, :, None], orders[:, None, :]], -_distances(layout, n)[None]
    )
    return float((1 + (np.asarray(others) >= own - 1e-9).sum()) / (1 + draws))


def closing(similarity: ArrayLike) -> float:
    """By how much a circle fits better than a line: positive if the ends meet."""
    return layout_correlation(similarity, "circle") - layout_correlation(similarity, "line")


def _nearest(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    others = similarity.copy()
    np.fill_diagonal(others, -np.inf)
    return others.argmax(axis=1)


def adjacent_share(similarity: ArrayLike) -> float:
    """Share of words whose most similar other word stands next to them on the circle.

    Chance is ``2 / (n - 1)``.
    """
    s = _square(similarity, 4)
    steps = _distances("circle", len(s))[np.arange(len(s)), _nearest(s)]
    return float((steps == 1).mean())


def neighbour_accuracy(similarity: ArrayLike, categories: ArrayLike) -> float:
    """Share of words whose most similar other word is of their own category.

    Parameters
    ----------
    similarity : float array, shape (n, n)
    categories : array of names, shape (n,)

    Returns
    -------
    float
        Leave-one-out accuracy of the nearest neighbour; :func:`chance_accuracy` is what random
        neighbours would have.
    """
    s = _square(similarity, 2)
    names = np.asarray(categories)
    if names.shape != (len(s),):
        raise ValueError(f"categories: expected {len(s)}, one a word, got {names.shape}.")
    return float((names[_nearest(s)] == names).mean())


def chance_accuracy(categories: ArrayLike) -> float:
    """Probability that a random other word is of the same category."""
    sizes = np.unique(np.asarray(categories), return_counts=True)[1]
    n = sizes.sum()
    return float((sizes * (sizes - 1)).sum() / (n * (n - 1)))
