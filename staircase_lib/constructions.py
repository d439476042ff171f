r"""What signatures alone give, before any training: embeddings, and a rule that predicts.

Section 7 of arXiv:2608.30315 asks what signatures are good for, and takes them out of training:
embeddings are made from first-order signatures and held fixed, and labels are predicted by adding
the zeroth-order signatures of a sequence's tokens.

Shapes: ``n`` sequences, ``L`` positions, ``V`` vocabulary, ``d`` embedding width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staircase_lib.signatures import label_signature
from staircase_lib.tasks import Task

__all__ = ["additive_scores", "margins", "signature_embeddings", "signature_table"]


def signature_table(task: Task, order: int = 0) -> NDArray[np.float64]:
    """Label signature of every token, flattened, shape (V, F).

    Parameters
    ----------
    task : Task
    order : int

    Returns
    -------
    float64 array, shape (V, V ** (order + 1))
        Rows of tokens that never occur are zero; the others sum to one. Of order 0: token, label.
    """
    occurring = np.flatnonzero(task.token_probability(np.arange(task.vocab_size)))
    rows = label_signature(task, order, occurring).reshape(len(occurring), -1)
    table = np.zeros((task.vocab_size, rows.shape[1]))
    table[occurring] = rows
    return table


def signature_embeddings(
    task: Task, order: int, d: int, generators: list[np.random.Generator]
) -> NDArray[np.float64]:
    r"""Embeddings made from signatures: flattened, then one random projection a run.

    :math:`T_\alpha=S^{(m)}_\alpha G` with independent standard normal entries of :math:`G`, which
    preserves angles between signatures up to an error of the order :math:`d^{-1/2}`.

    Parameters
    ----------
    task : Task
    order : int
    d : int
        Width of the embeddings.
    generators : list of numpy.random.Generator
        One for each of the ``R`` runs.

    Returns
    -------
    float64 array, shape (R, V, d)
        For :class:`~staircase_lib.models.FixedEmbeddingFFN`; rows of tokens that never occur are
        zero.

    Raises
    ------
    ValueError
        If the width is not positive or there is no generator.

    Notes
    -----
    Section 7 and appendix A of the paper (claim 7.2).
    """
    if d < 1 or not generators:
        raise ValueError(
            f"d, generators: expected a positive width and at least one generator, got {d} and "
            f"{len(generators)}."
        )
    table = signature_table(task, order)
    # Features that no token has would only cost random numbers.
    table = table[:, table.any(axis=0)]
    return np.stack([table @ g.standard_normal((table.shape[1], d)) for g in generators])


def additive_scores(task: Task, table: ArrayLike) -> NDArray[np.float64]:
    r"""Score of every label by adding what each token says, :math:`\sum_lT_{x_l}(y)`.

    Parameters
    ----------
    task : Task
    table : float array, shape (V, V')
        One row a token, for example :func:`signature_table`, its rows weighted or exchanged.

    Returns
    -------
    float64 array, shape (n, V')

    Raises
    ------
    ValueError
        If the table has not one row for every token.
    """
    rows = np.asarray(table, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != task.vocab_size:
        raise ValueError(
            f"table: expected shape ({task.vocab_size}, labels), one row a token, got {rows.shape}."
        )
    return sum((rows[column] for column in task.tokens.T), np.zeros((len(task.tokens), 1)))


def margins(scores: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Score of the right label minus the highest other score, for each sequence.

    Parameters
    ----------
    scores : float array, shape (..., n, V)
    labels : int array, shape (n,)

    Returns
    -------
    float64 array, shape (..., n)
        Positive where the highest score answers rightly and alone; zero at a tie, up to the
        rounding of the scores.

    Raises
    ------
    ValueError
        If shapes disagree, a label has no score, or there is one label only.
    """
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if s.ndim < 2 or y.shape != s.shape[-2:-1] or s.shape[-1] < 2:
        raise ValueError(
            f"scores, labels: expected shapes (..., n, V) with V >= 2 and (n,), got {s.shape} and "
            f"{y.shape}."
        )
    if y.size and not 0 <= y.min() <= y.max() < s.shape[-1]:
        raise ValueError(
            f"labels: expected ids in [0, {s.shape[-1]}), got values from {y.min()} to {y.max()}."
        )
    right = np.arange(s.shape[-1]) == y[:, None]
    own = np.where(right, s, -np.inf).max(axis=-1)
    return own - np.where(right, -np.inf, s).max(axis=-1)
