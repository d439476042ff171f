r"""Any task from its definition to the comparison of theory and training (X.4 of this book).

:func:`measure` trains after :func:`~staircase_lib.prediction.predict` has said what to expect: once
by gradient flow as far as the first stair, which the theory dates, and once by AdamW through the
whole staircase. It puts both beside the prediction.

Where tokens cannot be told apart there is no correlation, and ``Measurement.notes`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from staircase_lib import alignment, gradients, models, signatures, stairs, training
from staircase_lib.prediction import Prediction, Settings, predict
from staircase_lib.tasks import Task, from_arrays, merge_permutations

__all__ = ["Measurement", "estimate", "measure", "most_rows", "sample", "shuffled"]

_MOST_READINGS = 5e9
_MOST_READ_AT_ONCE = 2e7
_MOST_SLOPES = 3e9
_MOST_LOGITS = 1e8
_MOST_WEIGHTS = 100_000_000
_SNAPSHOT_BYTES = 5e8


@dataclass(frozen=True)
class Measurement:
    """A prediction and what training made of it.

    Attributes
    ----------
    prediction : Prediction
    names : tuple of str
        One for each token of the vocabulary.
    first : DataFrame
        A row a seed, at the first stair under gradient flow: ``seed``, ``predicted`` and
        ``measured`` time, ``correlation`` with the predicted directions, ``shuffled``, the
        same with the directions predicted from shuffled labels, ``cosine``, the mean over pairs of
        anchors. Empty without a predicted stair; ``nan`` where undefined.
    flow : DataFrame
        Loss until then: ``seed``, ``time`` (per cent of the predicted), ``value`` (nats).
    run : Run
        The training with AdamW.
    alignment : DataFrame
        ``step``, ``seed``, ``order``, ``value``: :math:`r_m`, the signature's context slots read
        with the embeddings that the model has at that step
        (:func:`~staircase_lib.signatures.contract`); ``wrong``: the same with the signatures
        handed to the wrong anchors. ``nan`` where undefined, empty with less than three anchors.
    shares : DataFrame
        ``step``, ``seed``, ``order``, ``share`` of each order in what separates the anchors'
        gradients; empty where that is too costly.
    notes : tuple of str
        What a reader must know: what was left out, what is degenerate.
    """

    prediction: Prediction
    names: tuple[str, ...]
    first: pd.DataFrame
    flow: pd.DataFrame
    run: training.Run
    alignment: pd.DataFrame
    shares: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def task(self) -> Task:
        return self.prediction.task

    def similarities(self, most: int = 24) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
        """Similarity matrices of the first seed's anchors, and of their signatures.

        Parameters
        ----------
        most : int
            Number of snapshots, evenly among those recorded; first and last are kept.

        Returns
        -------
        steps : list of int
        matrices : dict of arrays, shape (S, A, A), or (A, A) where nothing changes
            ``"embeddings"``, ``"order 0"`` and, if there is a higher order that was aligned, the
            highest, read with the embeddings of the step.
        """
        run, anchors = self.run, self.task.anchors
        at = np.unique(np.linspace(0, len(run.steps) - 1, most).round().astype(int))
        embeddings = run.snapshots["W_E"][at, 0].astype(np.float64)
        table: Any = signatures.label_signature(self.task, 0, sparse=True)
        matrices = {
            "embeddings": alignment.cosine_similarity(embeddings[:, anchors]),
            "order 0": alignment.cosine_similarity(
                signatures.contract(table, np.ones((self.task.vocab_size, 1)))
            ),
        }
        highest = int(np.max(self.alignment["order"].to_numpy(), initial=0))
        if highest:
            table = signatures.label_signature(self.task, highest, sparse=True)
            hidden = embeddings @ run.snapshots["W_in"][at, 0]
            matrices[f"order {highest}"] = np.stack(
                [alignment.cosine_similarity(signatures.contract(table, v)) for v in hidden]
            )
        return run.steps[at].tolist(), matrices

    def numbers(self) -> dict[str, Any]:
        """Everything in numbers, ready for JSON; None where a number is undefined."""
        p, first = self.prediction, self.first
        shares: Any = self.shares
        aligned: Any = self.alignment.groupby("order")
        return {
            "task": p.task.name,
            "sequences": len(p.task.labels),
            "length": p.task.length,
            "vocabulary": p.task.vocab_size,
            "anchors": [self.names[a] for a in p.task.anchors],
            "settings": asdict(p.settings),
            "entropy_bits": _plain(p.entropy),
            "floor_bits": _plain(p.floor),
            "best_accuracy": _plain(p.ceiling),
            "information_bits": [_plain(x) for x in p.orders["information"]],
            "first_informative_order": p.first_order,
            "first_stair": {
                "predicted_time": _plain(p.time),
                **{
                    name: _over_seeds(first[name])
                    for name in ("measured", "correlation", "shuffled", "cosine")
                },
            },
            "training": {
                "steps": int(self.run.steps[-1]),
                "chance": _plain(p.task.chance),
                "loss": _over_seeds(self.run.metric("loss").to_numpy()[-1]),
                "accuracy": _over_seeds(self.run.metric("accuracy").to_numpy()[-1]),
                "largest_alignment": [
                    _over_seeds(part.groupby("seed")["value"].max()) for _, part in aligned
                ],
                "least_share_of_order_0": _over_seeds(
                    shares[shares["order"] == 0].groupby("seed")["share"].min()
                ),
            },
            "notes": list(self.notes),
        }


def _plain(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _over_seeds(values: ArrayLike | pd.Series) -> dict[str, float | None]:
    """Median and range of the finite values."""
    x = np.asarray(values, dtype=np.float64)
    x = x[np.isfinite(x)]
    if not x.size:
        return {"median": None, "low": None, "high": None}
    return {"median": float(np.median(x)), "low": float(x.min()), "high": float(x.max())}


def shuffled(task: Task, seed: int = 0) -> Task:
    """The same sequences with their labels dealt out at random: what a prediction must not fit."""
    labels = np.random.default_rng(seed).permutation(task.labels)
    return from_arrays(
        task.tokens, labels, task.weights, task.vocab_size, task.anchors, f"{task.name}, shuffled"
    )


def sample(task: Task, rows: int, seed: int = 0) -> Task:
    """The task itself if it has at most so many sequences, or that many draws from it by weight.

    Sequences drawn more than once carry their count as weight; anchors that no drawn sequence
    holds are dropped.
    """
    if len(task.labels) <= rows:
        return task
    counts = np.random.default_rng(seed).multinomial(rows, task.weights)
    kept = np.flatnonzero(counts)
    tokens = task.tokens[kept]
    anchors = task.anchors[np.isin(task.anchors, tokens)]
    return from_arrays(
        tokens,
        task.labels[kept],
        counts[kept],
        task.vocab_size,
        anchors if anchors.size else None,
        task.name,
    )


def most_rows(task: Task, settings: Settings) -> int:
    """How many sequences can be trained on at once within a few gigabytes.

    Parameters
    ----------
    task : Task
        Its vocabulary counts, not its sequences.
    settings : Settings
        Number of seeds and width.

    Returns
    -------
    int
        At most 5000.

    Raises
    ------
    ValueError
        If the vocabulary is too large for any.
    """
    seeds, d, V = len(settings.seeds), settings.d, task.vocab_size
    rows = int(_MOST_LOGITS / (seeds * (V + 3 * d)))
    weights = seeds * (2 * V * d + d * d)
    if rows < 100 or weights > _MOST_WEIGHTS:
        raise ValueError(
            f"d, seeds: a vocabulary of {V} tokens at width {d} with {seeds} seeds is too large, "
            f"{weights:,} weights; expected at most {_MOST_WEIGHTS:,} and room for 100 sequences, "
            f"got room for {rows}. Ask for fewer seeds or a smaller width, or map rare tokens to "
            f"one."
        )
    return min(rows, 5000)


def _readable(task: Task, settings: Settings, highest: int) -> int:
    """Highest order whose signature can be read with the embeddings at every snapshot."""
    for m in range(highest, 0, -1):
        entries = len(task.labels) * math.perm(task.length, m + 1) * settings.d
        features = len(task.anchors) * len(np.unique(task.labels)) * settings.d
        looks = len(settings.seeds) * settings.snapshots
        if max(entries, features) <= _MOST_READ_AT_ONCE and entries * looks <= _MOST_READINGS:
            return m
    return 0


def _first_stair(
    prediction: Prediction, merged: Task, tell: Callable[[str], None]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Gradient flow of every seed past the first stair: tables `first` and `flow`."""
    task, settings, stair = prediction.task, prediction.settings, prediction.stair
    firsts, curves = [], []
    chance = predict(shuffled(task), settings) if stair is not None else prediction
    for number, seed in enumerate(settings.seeds if stair is not None else ()):
        model = models.EmbeddingFFN(task.vocab_size, settings.d, dtype=torch.float64)
        models.initialize_(model, settings.gamma, torch.Generator().manual_seed(seed))
        row = {"seed": seed, "predicted": prediction.time}
        row |= dict.fromkeys(("measured", "correlation", "shuffled", "cosine"), math.nan)
        firsts.append(row)
        start = math.log(task.vocab_size)
        stop = start - 2 * (start - prediction.dated)
        try:
            flow = stairs.gradient_flow(
                model, merged, 3 * prediction.time, stop_loss=stop, rtol=1e-5
            )
        except RuntimeError as error:  # the solver gave up: this seed has no stair to compare
            tell(str(error))
            continue
        curves += [
            {"seed": seed, "time": 100 * t / prediction.time, "value": loss}
            for t, loss in zip(flow.times, flow.loss, strict=True)
        ]
        row["measured"] = flow.time_at(prediction.dated)
        if math.isfinite(row["measured"]):
            at = flow.embeddings[int(np.argmax(flow.loss <= prediction.dated))]
            row["correlation"] = prediction.correlation(at)
            row["shuffled"] = chance.correlation(at)
            row["cosine"] = float(alignment.mean_cosine(at[task.anchors]))
        tell(f"first stair by gradient flow: seed {number + 1} of {len(settings.seeds)}")
    columns = ["seed", "predicted", "measured", "correlation", "shuffled", "cosine"]
    return pd.DataFrame(firsts, columns=columns), pd.DataFrame(
        curves, columns=["seed", "time", "value"]
    )


def _train(merged: Task, settings: Settings, tell: Callable[[str], None]) -> training.Run:
    """The run through the whole staircase, all seeds in one batch."""
    runs = len(settings.seeds)
    model = models.EmbeddingFFN(merged.vocab_size, settings.d, runs=runs)
    models.initialize_(model, settings.gamma, models.seeded(settings.seeds))
    bytes_each = 4 * sum(p.numel() for p in model.parameters())
    wanted = max(2, min(settings.snapshots, int(_SNAPSHOT_BYTES / bytes_each)))
    steps, seen, tenths = settings.steps, [0], [0]

    def count(*_: Any) -> None:
        seen[0] += 1
        if 10 * (seen[0] - 1) // steps > tenths[0]:
            tenths[0] = 10 * (seen[0] - 1) // steps
            tell(f"training: step {seen[0] - 1} of {steps}")

    model.register_forward_hook(count)
    every = max(1, -(-steps // wanted))
    config = training.TrainConfig(
        steps, settings.lr, "adamw", snapshot_every=every, record=("W_E", "W_in", "W_U")
    )
    return training.train(model, merged, config, seeds=settings.seeds)


def _alignment(
    task: Task, run: training.Run, highest: int, tell: Callable[[str], None]
) -> list[dict]:
    """Alignment with the signature of each order, read with the model's own embeddings."""
    tables: list[Any] = [
        signatures.label_signature(task, m, sparse=True) for m in range(highest + 1)
    ]
    wrong = np.random.default_rng(0).permutation(len(task.anchors))
    rows = []
    for index, step in enumerate(run.steps):
        embeddings = run.snapshots["W_E"][index].astype(np.float64)
        hidden = embeddings @ run.snapshots["W_in"][index]  # W^T E_x, as in Theorem 1
        similarity = alignment.cosine_similarity(embeddings[:, task.anchors])
        for seed, target, vectors in zip(run.seeds, similarity, hidden, strict=True):
            for order, table in enumerate(tables):
                given = alignment.cosine_similarity(signatures.contract(table, vectors))
                rows.append(
                    {
                        "step": int(step),
                        "seed": seed,
                        "order": order,
                        "value": alignment.pearson_offdiagonal(target, given),
                        "wrong": alignment.pearson_offdiagonal(target, given[np.ix_(wrong, wrong)]),
                    }
                )
        if index % 8 == 7:
            tell(f"alignment with signatures: step {int(step)}")
    return rows


def _shares(task: Task, merged: Task, run: training.Run, tell: Callable[[str], None]) -> list[dict]:
    """Shares of the orders in what separates the anchors' gradients, at every snapshot."""
    W = run.snapshots["W_in"]
    model = models.EmbeddingFFN(
        task.vocab_size, W.shape[-2], dtype=torch.float64, runs=len(run.seeds)
    )
    rows = []
    for index, step in enumerate(run.steps):
        training.restore_(model, run, index)
        parts = gradients.gradient_by_order(model, merged)
        shares = gradients.order_shares(parts, task.anchors, centred=len(task.anchors) > 1)
        rows += [
            {"step": int(step), "seed": seed, "order": order, "share": float(share)}
            for order, of_seeds in enumerate(shares)
            for seed, share in zip(run.seeds, of_seeds, strict=True)
        ]
        if index % 8 == 7:
            tell(f"orders in the gradient: step {int(step)}")
    return rows


def _look(
    prediction: Prediction, merged: Task, run: training.Run, tell: Callable[[str], None]
) -> tuple[list[dict], list[dict], list[str]]:
    """Alignments and gradient shares at the snapshots of a run; what was too large for them."""
    task, settings, notes = prediction.task, prediction.settings, []
    highest = len(prediction.orders) - 1
    aligned: list[dict] = []
    if len(task.anchors) >= 3:
        readable = _readable(task, settings, highest)
        if readable < highest:
            notes.append(f"Alignments up to order {readable}: higher signatures are too large.")
        aligned = _alignment(task, run, readable, tell)
    shares: list[dict] = []
    slopes = 2**task.length * task.length * len(merged.labels) * len(settings.seeds) * settings.d
    if slopes > _MOST_SLOPES:
        notes.append(
            f"The gradient is not taken apart by orders: {len(merged.labels):,} sequences of "
            f"length {task.length} have too many parts."
        )
    else:
        shares = _shares(task, merged, run, tell)
    return aligned, shares, notes


def estimate(task: Task, settings: Settings | None = None) -> float:
    """Seconds that :func:`measure` will take: each of its parts timed on little of its work.

    Parameters
    ----------
    task, settings
        As in :func:`measure`.
    """
    settings = settings or Settings()
    task = sample(task, min(len(task.labels), most_rows(task, settings)))
    few = min(20, settings.steps)
    short = replace(settings, steps=few, snapshots=2)
    started = perf_counter()
    prediction, merged = predict(task, settings), merge_permutations(task)
    _first_stair(prediction, merged, lambda _: None)
    before = perf_counter() - started
    _train(merged, replace(short, steps=1), lambda _: None)  # what the first step loads
    started = perf_counter()
    run = _train(merged, short, lambda _: None)
    of_step = (perf_counter() - started) / few
    started = perf_counter()
    _look(prediction, merged, run, lambda _: None)
    of_snapshot = (perf_counter() - started) / len(run.steps)
    spacing = max(1, settings.steps // settings.snapshots)
    snapshots = settings.snapshots + int(math.log2(spacing)) + 1  # 0, 1, 2, 4, …, then evenly
    return before + settings.steps * of_step + snapshots * of_snapshot


def measure(
    task: Task,
    settings: Settings | None = None,
    names: Sequence[str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Measurement:
    """Predict a task's stairs, train, and compare.

    Parameters
    ----------
    task : Task
    settings : Settings, optional
    names : sequence of str, optional
        Of all ``V`` tokens; default: their numbers.
    progress : callable, optional
        Told in words what has been done.

    Returns
    -------
    Measurement

    Raises
    ------
    ValueError
        If the number of names is not the vocabulary's size, or the task is too large.
    FloatingPointError
        If the training diverges.
    """
    settings = settings or Settings()
    names = tuple(map(str, range(task.vocab_size) if names is None else names))
    if len(names) != task.vocab_size:
        raise ValueError(
            f"names: expected one for each of the {task.vocab_size} tokens, got {len(names)}."
        )
    tell = progress or (lambda _: None)
    notes = []
    room = most_rows(task, settings)
    if len(task.labels) > room:
        notes.append(
            f"{len(task.labels):,} sequences are more than can be trained on at once: "
            f"{room:,} draws by weight stand for them, in signatures and training alike."
        )
        task = sample(task, room)
    prediction = predict(task, settings)
    tell("signatures and prediction")
    notes += prediction.notes
    merged = merge_permutations(task)  # exact: the model adds its tokens up
    first, flow = _first_stair(prediction, merged, tell)
    missed = int(np.isnan(first["measured"].to_numpy(dtype=float)).sum())
    if missed:
        notes.append(
            f"{missed} of {len(first)} seeds had not come to the first stair within three times "
            f"the predicted time, or the stair is lost in the random start."
        )
    run = _train(merged, settings, tell)

    aligned, shares, left_out = _look(prediction, merged, run, tell)
    notes += left_out
    return Measurement(
        prediction=prediction,
        names=names,
        first=first,
        flow=flow,
        run=run,
        alignment=pd.DataFrame(aligned, columns=["step", "seed", "order", "value", "wrong"]),
        shares=pd.DataFrame(shares, columns=["step", "seed", "order", "share"]),
        notes=tuple(notes),
    )
