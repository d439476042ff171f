"""What the comparisons of a language model with the signatures of its corpus share.

Claims 6.5 to 6.7 of the paper compare *similarity structures*: the cosines of all pairs of vectors
of a model (:mod:`~staircase_lib.language.next_token_alignment`,
:mod:`~staircase_lib.language.kernel_probes`, :mod:`~staircase_lib.language.attention_path`) with
those of vectors that the corpus alone gives (:mod:`~staircase_lib.language.corpus_counts`). Their
functions ``..._rows`` return tidy rows with the same columns, those of :func:`tidy_row`.

Signatures are long and sparse, so similarities are found from inner products, without centred
vectors that would be dense.

Shapes: ``n`` vectors; a model that trains as a batch of ``R`` runs has a leading axis of runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

__all__ = ["centre", "correlation", "cosines", "inner_products", "tidy_row", "with_runs"]


def inner_products(rows: Any, share: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
    """Inner products of rows, each less its mass times a share; sparse rows stay so.

    Parameters
    ----------
    rows : array or sparse array, shape (n, F)
    share : float array, shape (F,), optional
        For instance :math:`P(y)`, which takes probabilities to centred signatures. Default: zeros.

    Returns
    -------
    float64 array, shape (n, n)
    """
    product = rows @ rows.T
    product = product.toarray() if sparse.issparse(product) else product
    product = np.asarray(product, dtype=np.float64)
    if share is None:
        return product
    along, mass = rows @ share, np.asarray(rows.sum(axis=1)).ravel()
    across = np.outer(along, mass)
    return product - across - across.T + (share @ share) * np.outer(mass, mass)


def centre(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inner products, shape (n, n), after the mean vector is taken off."""
    rows = gram.mean(axis=0)
    return gram - rows - rows[:, None] + rows.mean()


def cosines(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines from inner products, shape (n, n); a vector of zeros is similar to nothing."""
    square = np.diag(gram)
    small = square <= 1e-14 * max(float(square.max(initial=0.0)), 1e-300)
    inverse = np.where(small, 0.0, 1 / np.sqrt(np.where(small, 1.0, square)))
    return np.clip(gram * inverse[:, None] * inverse, -1.0, 1.0)


def correlation(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    """Weighted Pearson correlation; nan where a side is constant to rounding.

    Parameters
    ----------
    x, y : float64 array, shape (pairs,)
    weights : float64 array, shape (pairs,)
        Summing to one.
    """
    x, y = x - weights @ x, y - weights @ y
    spread_x, spread_y = np.sqrt(weights @ x**2), np.sqrt(weights @ y**2)
    if not (spread_x > 1e-9 and spread_y > 1e-9):
        return float("nan")
    return float(np.clip((weights * x) @ y / (spread_x * spread_y), -1.0, 1.0))


def with_runs(values: ArrayLike, axes: int, what: str) -> NDArray[np.float64]:
    """Values with a leading axis of runs, whether they had one or not.

    Parameters
    ----------
    values : array with `axes` axes, or one more
    axes : int
        Of the values of one run.
    what : str
        What they are called in the messages of errors.

    Raises
    ------
    ValueError
        If there are more or fewer axes, no values, or some that are not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == axes:
        array = array[None]
    if array.ndim != axes + 1 or 0 in array.shape:
        raise ValueError(
            f"{what}: expected {axes} axes, or {axes + 1} with runs first, got shape "
            f"{np.shape(values)}."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: expected finite numbers, got some that are not; did it diverge?")
    return array


def tidy_row(
    measure: str, signature: str, variant: str, run: int, block: int | None, value: float
) -> dict[str, Any]:
    """A number, with the columns that all comparisons have.

    Parameters
    ----------
    measure : str
        What was measured, for instance ``"alignment"``.
    signature : str
        What the model was compared with, which may be a control.
    variant : str
        How; ``"as defined"``, or what differs from the definition.
    run : int
    block : int, optional
        Of the Transformer; None where the measure is none of a block.
    value : float
    """
    return {
        "measure": measure,
        "signature": signature,
        "variant": variant,
        "run": run,
        "block": block,
        "value": float(value),
    }
