r"""What a staircase is, in numbers that a training run either shows or does not (X.8 of this book).

A **staircase** has four visible parts. The first stair writes the geometry of the zeroth-order
signature into the embeddings (:func:`early_alignment`) or, where that signature is the same for
all tokens, makes them collapse onto one direction while nothing is learned (:func:`collapse`). The
gradient belongs to order 0 at the start (:func:`start`), then to higher orders
(:func:`handover`), and order 1 comes before order 2 (:func:`sequence`).

Each function returns one number a run. None needs to know how the run was trained.

Shapes: ``T`` snapshots, ``K`` of them decomposed, ``L`` orders, ``R`` runs, ``V`` vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from staircase_lib.alignment import alignment, mean_cosine
from staircase_lib.gradients import gradient_by_order, order_shares
from staircase_lib.models import Activation, EmbeddingFFN
from staircase_lib.signatures import label_signature
from staircase_lib.tasks import Task
from staircase_lib.training import Run, restore_

__all__ = [
    "collapse",
    "early_alignment",
    "early_embeddings",
    "handover",
    "sequence",
    "shares_along",
    "start",
]


def shares_along(
    run: Run, task: Task, activation: Activation = "gelu", *, points: int = 40
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Share of every order in the true gradient of the anchors, through a run.

    Parameters
    ----------
    run : Run
        Of an :class:`~staircase_lib.models.EmbeddingFFN`, with snapshots of ``W_E``, ``W_in`` and
        ``W_U``.
    task : Task
        The task whose gradient is decomposed; the one trained on.
    activation : str or sequence of float
        The model's.
    points : int
        About how many snapshots, spread evenly in the logarithm of the step.

    Returns
    -------
    steps : int64 array, shape (K,)
        From the first snapshot to the last.
    shares : float64 array, shape (K, L, R)
        Not centred: what pushes the anchors, be it all in one direction. Sums to one over L.

    Raises
    ------
    ValueError
        If the run has not recorded one of the three matrices.

    Notes
    -----
    :func:`~staircase_lib.gradients.gradient_by_order` in float64, whatever the run's precision.
    """
    missing = [name for name in ("W_E", "W_in", "W_U") if name not in run.snapshots]
    if missing:
        raise ValueError(
            f"run: expected snapshots of W_E, W_in and W_U, without {missing}; train with "
            f"TrainConfig(record=('W_E', 'W_in', 'W_U'))."
        )
    _, runs, vocab_size, d = run.snapshots["W_E"].shape
    hidden = run.snapshots["W_in"].shape[-1]
    model = EmbeddingFFN(vocab_size, d, hidden, activation, torch.float64, runs=runs)
    wanted = [0, *np.geomspace(1, max(run.steps[-1], 1), points)]
    chosen = sorted({run.at(int(round(step))) for step in wanted})
    shares = []
    for index in chosen:
        restore_(model, run, index)
        parts = gradient_by_order(model, task)
        shares.append(order_shares(parts, task.anchors, centred=False).numpy())
    return run.steps[chosen], np.stack(shares)


def _at_snapshots(run: Run, metric: str) -> NDArray[np.float64]:
    return run.metric(metric).loc[run.steps].to_numpy()


def early_embeddings(run: Run, task: Task, *, gone: float = 0.05) -> NDArray[np.floating]:
    """The anchors' embeddings at the last snapshot before a share of the loss is gone.

    Parameters
    ----------
    run : Run
        With snapshots of ``W_E``.
    task : Task
    gone : float
        Share of the loss at the first snapshot.

    Returns
    -------
    array, shape (R, A, d)
        From the last snapshot for a run that never gets there.
    """
    loss = _at_snapshots(run, "loss")
    fallen = loss <= (1 - gone) * loss[0]
    first = np.where(fallen.any(axis=0), fallen.argmax(axis=0), len(loss))
    runs = np.arange(loss.shape[1])
    return run.snapshots["W_E"][np.maximum(first - 1, 0), runs][:, task.anchors]


def early_alignment(run: Run, task: Task, *, gone: float = 0.05) -> NDArray[np.float64]:
    r"""Alignment :math:`r_0` of :func:`early_embeddings`.

    Parameters
    ----------
    run : Run
    task : Task
        Its anchors' zeroth-order signatures must differ.
    gone : float

    Returns
    -------
    float64 array, shape (R,)
    """
    return alignment(early_embeddings(run, task, gone=gone), label_signature(task, 0))


def collapse(run: Run, task: Task, *, factor: float = 1.5) -> NDArray[np.float64]:
    """Largest mean cosine of the anchors at a snapshot where nothing has been learned.

    Parameters
    ----------
    run : Run
        With snapshots of ``W_E``.
    task : Task
    factor : float
        "Nothing learned" is an accuracy of at most this times chance.

    Returns
    -------
    float64 array, shape (R,)
        ``nan`` for a run without such a snapshot.
    """
    mean = mean_cosine(run.snapshots["W_E"][:, :, task.anchors])
    ignorant = _at_snapshots(run, "accuracy") <= factor * task.chance
    largest = np.where(ignorant, mean, -np.inf).max(axis=0)
    return np.where(np.isfinite(largest), largest, np.nan)


def start(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of order 0 at the first snapshot; shape (R,) from shares of shape (K, L, R)."""
    return shares[0, 0]


def handover(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least share of order 0 at any snapshot; below a half the others outweigh it together."""
    return shares[:, 0].min(axis=0)


def sequence(shares: NDArray[np.float64], *, level: float = 0.1) -> NDArray[np.float64]:
    """How far order 1 is ahead of order 2 when it arrives.

    Parameters
    ----------
    shares : float64 array, shape (K, L, R), L >= 3
    level : float
        Order 1 arrives when it first holds this share.

    Returns
    -------
    float64 array, shape (R,)
        Order 1's part of what both hold at its arrival: 1 if it comes alone, a half if both come
        together, 0 if it never arrives.
    """
    arrived = shares[:, 1] >= level
    first, run = arrived.argmax(axis=0), np.arange(shares.shape[2])
    part = shares[first, 1, run] / np.maximum(shares[first, 1:3, run].sum(axis=-1), level)
    return np.where(arrived.any(axis=0), part, 0.0)
