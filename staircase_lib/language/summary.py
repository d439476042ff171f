r"""What order-0 counts of a corpus say about its tokens: predictability and neighbours.

Shapes: ``A`` rows (tokens), ``V`` labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

__all__ = ["nearest_neighbours", "predictability"]


def predictability(counts: Any, least: int = 100) -> pd.DataFrame:
    r"""Entropy of what follows each token.

    .. math:: H_\alpha=-\sum_yP(y\mid\alpha)\log_2P(y\mid\alpha)

    Parameters
    ----------
    counts : sparse array, shape (A, V)
        From :func:`staircase_lib.language.counting.count_signatures`, order 0.
    least : int
        Rows with fewer counts are left out: their entropy would be one of too small a sample, which
        is biased downwards by about ``(distinct labels - 1) / (2 count log 2)`` bits.

    Returns
    -------
    DataFrame
        Columns ``token`` (row), ``count``, ``labels`` (distinct), ``bits``; most predictable first,
        ties by row.
    """
    table = sparse.csr_array(counts, dtype=np.float64, copy=True)
    total = np.asarray(table.sum(axis=1)).ravel()
    scale = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    distinct = np.diff(table.indptr)
    table.data *= np.repeat(scale, distinct)
    table.data *= -np.log2(table.data)
    bits = np.asarray(table.sum(axis=1)).ravel()
    found: Any = pd.DataFrame(
        {
            "token": np.arange(len(total)),
            "count": total.astype(np.int64),
            "labels": distinct,
            "bits": np.maximum(bits, 0.0),
        }
    )
    found = found[found["count"] >= max(least, 1)]
    return found.sort_values(["bits", "token"], ignore_index=True)


def nearest_neighbours(
    signature: Any, tokens: ArrayLike, k: int = 5, among: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows with the most similar signatures, by cosine.

    Parameters
    ----------
    signature : sparse or dense array, shape (A, V)
        From :func:`staircase_lib.language.counting.corpus_signature`.
    tokens : array of int, shape (T,)
        Rows whose neighbours are asked for.
    k : int
        Neighbours of each; fewer if there are not so many.
    among : array of int, optional
        Rows that may be neighbours. Default: all.

    Returns
    -------
    neighbours : int64 array, shape (T, k)
        Most similar first; never the row itself.
    similarity : float64 array, shape (T, k)
        Their cosines; zero for rows of zeros.

    Raises
    ------
    ValueError
        If a row is outside the table or k is not positive.
    """
    rows: Any = sparse.csr_array(signature, dtype=np.float64)
    asked = np.atleast_1d(np.asarray(tokens, dtype=np.int64))
    pool = np.arange(rows.shape[0]) if among is None else np.unique(np.asarray(among, np.int64))
    for name, values in (("tokens", asked), ("among", pool)):
        if values.size and (values.min() < 0 or values.max() >= rows.shape[0]):
            raise ValueError(f"{name}: expected rows in [0, {rows.shape[0]}), got {values}.")
    if k < 1:
        raise ValueError(f"k: expected a positive integer, got {k!r}.")
    norm = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    inverse = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0)
    cosine = (rows[asked] @ rows[pool].T).toarray() * inverse[asked, None] * inverse[pool]
    cosine[asked[:, None] == pool] = -np.inf
    k = min(k, len(pool) - int(np.isin(asked, pool).any()))
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return pool[order], np.take_along_axis(cosine, order, axis=1)
