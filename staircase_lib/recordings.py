r"""Training runs recorded for a page without a kernel: what to look at, packed into small integers.

A recording holds, at moments evenly spaced in the logarithm of time, everything that the staircase
explorer shows of one run: loss, order shares of the gradient, alignment with the signature of every
order, the embeddings' plane and similarities, and the label signature of the model's own answers.
:func:`document` turns the recordings of several tasks into a value for JSON; every array in it is
fixed point, in 8 or 16 bits, and says its own range, so that what it lost is known
(:func:`resolution`).

Shapes: ``S`` moments, ``A`` anchors, ``L`` orders, ``Y`` labels that occur, ``C`` tokens that
occur, ``P`` pairs ``i < j`` of anchors.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from staircase_lib import alignment, gradients, models, signatures, stairs, training
from staircase_lib.tasks import Task, merge_permutations

__all__ = ["Recording", "document", "log_spaced", "pack", "record", "resolution"]

#: Most positions of a sequence whose signatures of every order are shown.
LONGEST = 3


@dataclass(frozen=True)
class Recording:
    r"""What the explorer shows of one run.

    Attributes
    ----------
    gamma : float
        Initialization rate.
    seed : int
    stair : float or None
        Predicted time of the first stair in steps, :math:`t^*/\eta`; None where order 0 drives
        nothing.
    steps : int64 array, shape (S,)
    values : dict of float64 arrays
        ``loss`` and ``accuracy`` (S,); ``shares`` and ``alignment`` (S, L), the latter ``nan``
        where undefined; ``points`` (S, A, 2), the anchors on their first two principal components
        in units of their root mean square length, and ``plane`` (S,), the share of variance
        there; ``embeddings`` (S, P), cosine similarities, and ``signatures`` (S, L - 1, P), those
        of the signatures of order 1 and higher, read with the embeddings of the moment;
        ``answers`` (S, A, Y), the zeroth-order label signature of the model's own answers.
    """

    gamma: float
    seed: int
    stair: float | None
    steps: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]


def log_spaced(steps: ArrayLike, per_decade: int) -> NDArray[np.int64]:
    """Positions of snapshots that are about evenly spaced in the logarithm of time.

    Parameters
    ----------
    steps : int array, shape (n,)
        Increasing, from 0.
    per_decade : int
        Moments wanted for a factor of ten; fewer where the snapshots are further apart.

    Returns
    -------
    int64 array
        Increasing; the first and the last snapshot are among them.
    """
    models.check_sizes(per_decade=per_decade)
    times = np.log10(np.maximum(np.asarray(steps, dtype=np.float64), 0.1))
    wanted = np.arange(0.0, times[-1], 1 / per_decade)
    nearest = np.abs(times[:, None] - wanted).argmin(axis=0)
    return np.unique(np.concatenate([[0], nearest, [len(times) - 1]]))


def record(
    task: Task, run: training.Run, *, gamma: float, slope: float = 0.5, per_decade: int = 16
) -> list[Recording]:
    r"""Recordings of a run of the feed-forward model, one for each of its seeds.

    Parameters
    ----------
    task : Task
        Of at most three positions, with at least three anchors.
    run : Run
        Of an :class:`~staircase_lib.models.EmbeddingFFN` with GELU that recorded ``W_E``, ``W_in``
        and ``W_U``.
    gamma : float
        Rate at which it was initialized.
    slope : float
        :math:`\sigma'(0)`, for the predicted stair.
    per_decade : int
        As in :func:`log_spaced`.

    Returns
    -------
    list of Recording

    Raises
    ------
    ValueError
        If the task is longer, has fewer anchors, or the run did not record every parameter.
    """
    if task.length > LONGEST or len(task.anchors) < 3:
        raise ValueError(
            f"task: expected at most {LONGEST} positions and at least 3 anchors, so that every "
            f"order can be drawn and correlated; got {task.length} and {len(task.anchors)}."
        )
    missing = {"W_E", "W_in", "W_U"} - set(run.snapshots)
    if missing:
        raise ValueError(
            f"run: expected snapshots of W_E, W_in and W_U, got none of {sorted(missing)}; name "
            f"them in TrainConfig(record=...)."
        )
    chosen = log_spaced(run.steps, per_decade)
    steps = run.steps[chosen]
    embeddings = run.snapshots["W_E"][chosen].astype(np.float64)  # (S, R, V, d)
    anchors = embeddings[:, :, task.anchors]
    similarity = alignment.cosine_similarity(anchors)  # (S, R, A, A)
    hidden = embeddings @ run.snapshots["W_in"][chosen]  # W^T E_x, (S, R, V, h)
    read = _signature_similarities(task, hidden)  # (S, R, L, A, A)
    points, plane = _plane(anchors)
    shares, answers = _by_model(task, run, chosen)
    metric = {name: run.metric(name).loc[steps].to_numpy() for name in ("loss", "accuracy")}
    pairs = (..., *np.triu_indices(len(task.anchors), 1))
    by_run = {
        **metric,
        "shares": shares,
        "alignment": alignment.pearson_offdiagonal(similarity[:, :, None], read),
        "points": points,
        "plane": plane,
        "embeddings": similarity[pairs],
        "signatures": read[:, :, 1:][pairs],
        "answers": answers,
    }
    stair = None
    if np.abs(stairs.driving_matrix(task)).max() > 1e-9:
        width = run.snapshots["W_E"].shape[-1]
        stair = stairs.first_stair(task).time(width, gamma, slope) / run.config.lr
    return [
        Recording(gamma, seed, stair, steps, {k: np.asarray(v)[:, r] for k, v in by_run.items()})
        for r, seed in enumerate(run.seeds)
    ]


def _signature_similarities(task: Task, hidden: NDArray) -> NDArray[np.float64]:
    """Similarities (S, R, L, A, A) of the signatures, their slots read with hidden (S, R, V, h)."""
    moments, runs = hidden.shape[:2]
    size = len(task.anchors)
    out = np.empty((moments, runs, task.length, size, size))
    for order in range(task.length):
        table: Any = signatures.label_signature(task, order, sparse=True)
        if order == 0:  # nothing to read: the same at every moment
            plain = signatures.contract(table, np.ones((task.vocab_size, 1)))
            out[:, :, 0] = alignment.cosine_similarity(plain)
            continue
        for s in range(moments):
            for r in range(runs):
                features = signatures.contract(table, hidden[s, r])
                out[s, r, order] = alignment.cosine_similarity(features)
    return out


def _plane(anchors: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points (S, R, A, 2) in the plane of the first two components, and its share of variance.

    The two axes within the plane are turned, moment by moment backwards from the last, so that
    the points move as little as possible: only the plane means something, not its axes.
    """
    points, explained = alignment.pca(anchors)
    length = np.sqrt((anchors**2).sum(axis=-1).mean(axis=-1))[..., None, None]
    points = points / np.where(length > 0, length, 1.0)
    for s in range(len(points) - 2, -1, -1):
        u, _, v = np.linalg.svd(points[s].swapaxes(-1, -2) @ points[s + 1])
        points[s] = points[s] @ (u @ v)
    return points, explained.sum(axis=-1)


@torch.no_grad()
def _by_model(
    task: Task, run: training.Run, chosen: NDArray
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Order shares (S, R, L) of the push on the anchors, and the model's answers (S, R, A, Y)."""
    merged = merge_permutations(task)  # exact: the model adds its tokens up
    width, hidden = run.snapshots["W_in"].shape[-2:]
    model = models.EmbeddingFFN(
        task.vocab_size, width, hidden, dtype=torch.float64, runs=len(run.seeds)
    )
    tokens = torch.tensor(merged.tokens)
    held = (merged.tokens[:, :, None] == task.anchors).sum(axis=1) * merged.weights[:, None]
    share = torch.tensor(held / held.sum(axis=0)).T  # (A, n): P(sequence | anchor)
    labels = torch.tensor(np.unique(task.labels))
    shares, answers = [], []
    for index in chosen:
        training.restore_(model, run, int(index))
        parts = gradients.gradient_by_order(model, merged)
        shares.append(gradients.order_shares(parts, task.anchors, centred=False).T.numpy())
        answered = share @ torch.softmax(model(tokens), dim=-1)  # (R, A, V)
        answers.append(answered[..., labels].numpy())
    return np.stack(shares), np.stack(answers)


# --- Packing -------------------------------------------------------------------------------------


def pack(values: ArrayLike, low: float, high: float, bits: int) -> dict[str, Any]:
    r"""An array as fixed-point integers, base64 of little-endian unsigned ones.

    A code :math:`c` stands for :math:`l+(h-l)\,c/(2^b-2)`; the highest, :math:`2^b-1`, for
    ``nan``.

    Parameters
    ----------
    values : float array
    low, high : float
        Range, finite, ``low < high``; it must hold every value, up to rounding.
    bits : {8, 16}

    Returns
    -------
    dict
        ``shape``, ``low``, ``high``, ``bits``, ``codes``; ready for JSON.

    Raises
    ------
    ValueError
        If a value is infinite or outside the range, or the range or the bits are not as above.
    """
    array = np.asarray(values, dtype=np.float64)
    if bits not in (8, 16):
        raise ValueError(f"bits: expected 8 or 16, got {bits!r}. Take 16 for numbers to be read.")
    if not (low < high and np.isfinite(float(high) - float(low))):
        raise ValueError(
            f"low, high: expected a finite range with low < high, got {low} and {high}. Take the "
            f"least and the greatest value that can occur."
        )
    if np.isinf(array).any():
        raise ValueError(
            f"values: expected finite numbers, or nan for undefined ones, got "
            f"{np.isinf(array).sum()} infinite ones of {array.size}. Replace these by nan."
        )
    margin = 1e-6 * (high - low)
    known = array[~np.isnan(array)]
    if known.size and not (low - margin <= known.min() and known.max() <= high + margin):
        raise ValueError(
            f"values: expected within low = {low:g} and high = {high:g}, got {known.min():g} to "
            f"{known.max():g}. Widen the range."
        )
    top = 2**bits - 2
    scaled = np.rint((np.clip(array, low, high) - low) / (high - low) * top)
    codes = np.where(np.isnan(scaled), top + 1, scaled).astype(f"<u{bits // 8}")
    return {
        "shape": list(array.shape),
        "low": float(low),
        "high": float(high),
        "bits": bits,
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }


def resolution(packed: dict[str, Any]) -> float:
    """Largest difference between a value and the one that its code stands for."""
    return (packed["high"] - packed["low"]) / (2 ** packed["bits"] - 2) / 2


def _packed(recording: Recording) -> dict[str, Any]:
    """A recording as a value for JSON."""
    v = recording.values
    radius = max(float(np.abs(v["points"]).max()), 1e-9)
    ranges = {
        "loss": (0.0, float(v["loss"].max()) or 1.0, 16),
        "accuracy": (0.0, 1.0, 16),
        "shares": (0.0, 1.0, 16),
        "alignment": (-1.0, 1.0, 16),
        "points": (-radius, radius, 16),
        "plane": (0.0, 1.0, 16),
        "embeddings": (-1.0, 1.0, 8),
        "signatures": (-1.0, 1.0, 8),
        "answers": (0.0, float(v["answers"].max()), 8),
    }
    return {
        "gamma": recording.gamma,
        "seed": recording.seed,
        "stair": None if recording.stair is None else round(recording.stair, 2),
        "steps": recording.steps.tolist(),
        "values": {name: pack(v[name], *ranges[name]) for name in ranges},
    }


def document(
    task: Task,
    recordings: Sequence[Recording],
    *,
    key: str,
    title: str,
    rule: str,
    names: Sequence[str],
    labels: Sequence[str] | None = None,
) -> dict[str, Any]:
    """A task with its signatures and its recordings, as a value for JSON.

    Parameters
    ----------
    task : Task
    recordings : sequence of Recording
    key : str
        Names the task in addresses.
    title, rule : str
        Shown to the reader: what it is called, and its definition in a line.
    names : sequence of str
        One for each of the ``V`` tokens.
    labels : sequence of str, optional
        One for each label that occurs, where a label means something else than the token of its
        number. Default: the tokens' names.

    Returns
    -------
    dict
        ``signatures`` holds ``order0`` (A, Y); ``order1`` (A, Y, C), if the task has that order;
        ``order2``, if it has, for the pairs of further tokens (row, column) that occur with
        each anchor, the position of the most probable label among the ``labels``, -1 for pairs
        that do not occur. ``similarity`` (P,) is that of the zeroth-order signatures.

    Raises
    ------
    ValueError
        If there is not one name a token and a label.
    """
    if len(names) != task.vocab_size:
        raise ValueError(f"names: expected {task.vocab_size}, one a token, got {len(names)}.")
    present = np.unique(task.labels)
    called = [names[y] for y in present.tolist()] if labels is None else list(labels)
    if len(called) != len(present):
        raise ValueError(
            f"labels: expected {len(present)}, one for each label that occurs, got {len(called)}."
        )
    occurring = np.unique(task.tokens)
    zeroth = signatures.label_signature(task, 0)
    shown: dict[str, Any] = {"order0": pack(zeroth[:, present], 0, zeroth.max(), 16)}
    if task.length > 1:
        first = signatures.label_signature(task, 1)[:, present][:, :, occurring]
        shown["order1"] = pack(first, 0, first.max(), 8)
    if task.length > 2:
        shown["order2"] = _answer_table(task, present, names)
    pairs = np.triu_indices(len(task.anchors), 1)
    return {
        "key": key,
        "title": title,
        "rule": rule,
        "orders": task.length,
        "anchors": [names[a] for a in task.anchors],
        "labels": called,
        "contexts": [names[x] for x in occurring],
        "chance": task.chance,
        "signatures": shown,
        "similarity": pack(alignment.cosine_similarity(zeroth)[pairs], -1, 1, 8),
        "runs": [_packed(recording) for recording in recordings],
    }


def _answer_table(task: Task, present: NDArray, names: Sequence[str]) -> dict[str, Any]:
    """Which label goes with an anchor and two further tokens, most probable first."""
    second = signatures.label_signature(task, 2)[:, present]  # (A, Y, V, V), symmetric in the slots
    either = second.sum(axis=1) > 0
    upper = np.triu(either.any(axis=0))
    rows, columns = np.flatnonzero(upper.any(axis=1)), np.flatnonzero(upper.any(axis=0))
    answers = np.where(either, second.argmax(axis=1), -1)[:, rows][:, :, columns]
    return {
        "rows": [names[x] for x in rows.tolist()],
        "columns": [names[x] for x in columns.tolist()],
        "answers": answers.tolist(),
    }
