r"""Who is listened to, and who moves: attention and embedding speed through training.

For the attention model of section 5 of arXiv:2608.30315. Theorem 3 lets a token's embedding move
by its value part in proportion to the attention that the token receives; here both sides are read
off a training run.

Shapes: ``S`` snapshots, ``R`` runs, ``n`` sequences, ``L`` positions, ``V`` vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from staircase_lib.models import AttentionOnly
from staircase_lib.tasks import Task
from staircase_lib.training import Run, restore_

__all__ = ["attention_share", "attention_through_training", "embedding_speed"]


@torch.no_grad()
def attention_through_training(model: AttentionOnly, task: Task, run: Run) -> NDArray[np.float64]:
    """Attention of the last position in every sequence, at every snapshot.

    Parameters
    ----------
    model : AttentionOnly
        Of the run's shapes; it ends with the parameters of the last snapshot.
    task : Task
    run : Run
        Must have recorded every parameter.

    Returns
    -------
    float64 array, shape (S, R, n, L)
        Sums to one over the positions. ``R = 1`` for a model without runs.

    Raises
    ------
    ValueError
        If a parameter was not recorded.
    """
    tokens = torch.tensor(task.tokens, device=model.W_E.device)
    found = []
    for index in range(len(run.steps)):
        restore_(model, run, index)
        found.append(model.attention(tokens).double().cpu().numpy())
    attention = np.stack(found)
    return attention[:, None] if model.runs is None else attention


def attention_share(
    task: Task, attention: ArrayLike, tokens: ArrayLike | None = None
) -> NDArray[np.float64]:
    r"""Share of the attention that goes to some tokens where it could also go to others.

    .. math:: \frac{\sum_{s\in B}w_s\sum_{l:\,x_{s,l}\in T}a_{s,l}}{\sum_{s\in B}w_s}

    with :math:`T` the asked tokens and :math:`B` the sequences that hold both tokens of :math:`T`
    and others. The remaining share goes to those others.

    Parameters
    ----------
    task : Task
    attention : float array, shape (..., n, L)
        Non-negative, summing to one over the positions.
    tokens : array of int, optional
        :math:`T`; default: the task's anchors.

    Returns
    -------
    float64 array over the leading axes
        Of uniform attention: the share of positions in :math:`B` that hold a token of :math:`T`.

    Raises
    ------
    ValueError
        If the shape is not the task's, or no sequence holds both kinds, so that there is nothing
        to choose between.
    """
    a = np.asarray(attention, dtype=np.float64)
    if a.shape[-2:] != task.tokens.shape:
        raise ValueError(
            f"attention: expected shape (..., {', '.join(map(str, task.tokens.shape))}), one "
            f"weight a position of every sequence, got {a.shape}; take it from model.attention."
        )
    asked = np.isin(task.tokens, task.anchors if tokens is None else np.asarray(tokens))
    mixed = asked.any(axis=1) & ~asked.all(axis=1)
    weights = np.where(mixed, task.weights, 0.0)
    if weights.sum() == 0:
        kind = "only" if asked.any() else "none"
        raise ValueError(
            f"tokens: expected some sequences with both asked and other tokens, but {kind} asked "
            f"tokens occur in each of {task.name or 'the task'}; a share needs a choice."
        )
    return (a * asked).sum(axis=-1) @ weights / weights.sum()


def embedding_speed(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How fast each token's embedding moves between snapshots.

    Parameters
    ----------
    run : Run
        Must have recorded ``W_E``; two snapshots or more.

    Returns
    -------
    steps : float64 array, shape (S - 1,)
        Middle of each interval.
    speed : float64 array, shape (S - 1, R, V)
        Euclidean norm of the change of the embedding, divided by the steps that it took. A token
        that goes back and forth within an interval moves more than this shows.

    Raises
    ------
    ValueError
        If there is only one snapshot.
    """
    if len(run.steps) < 2:
        raise ValueError(
            f"run: expected two snapshots or more, got {len(run.steps)}; lower snapshot_every."
        )
    taken = np.diff(run.steps)
    change = np.linalg.norm(np.diff(run.snapshots["W_E"].astype(np.float64), axis=0), axis=-1)
    return run.steps[:-1] + taken / 2, change / taken[:, None, None]
