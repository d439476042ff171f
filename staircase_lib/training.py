"""Full-batch training of all seeds of an experiment as one batch.

The loop is written out: measure and save *before* each step, so that step 0 and the last step are
both there. :func:`train` runs to the end and keeps what it measures; :func:`each_step` is the same
loop for whoever looks at the model on the way. The loss is the weighted mean cross-entropy over the
whole task unless a minibatch size is asked for. Metrics are tidy rows (seed, step, metric, value).
In full-batch training a step is an epoch.

Where a run of the feed-forward model is too large for a processor's cache, its loss and gradient
come from :class:`~staircase_lib.objective.Objective`: the same numbers, sooner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from staircase_lib.models import EmbeddingFFN, FixedEmbeddingFFN, Model
from staircase_lib.objective import Objective
from staircase_lib.tasks import Task

__all__ = [
    "Measured",
    "Run",
    "TrainConfig",
    "each_step",
    "restore_",
    "snapshot_steps",
    "train",
]

#: Hidden units of a run, over all sequences, above which runs are read one by one, as Objective
#: does it, instead of as one batch: in float32 they then outgrow a core's second-level cache.
_ONE_BY_ONE = 2**18


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run.

    Attributes
    ----------
    steps : int
        Optimizer steps; epochs when full-batch.
    lr : float
        Learning rate, constant.
    optimizer : {"sgd", "adamw", "muon"}
        ``"sgd"`` with ``batch_size=None`` is gradient descent. ``"muon"`` moves the matrices named
        in ``muon`` with torch's Muon, each run's by itself, its step scaled to the root mean
        square of AdamW's, and everything else with AdamW.
    momentum, weight_decay, betas, eps
        As in torch; ``momentum`` is that of gradient descent and of Muon. AdamW's ``eps`` matters
        under small initialization, where gradients are of its size.
    muon : tuple of str
        Names of the parameters that Muon moves; the usual practice is hidden matrices only.
    batch_size : int, optional
        None: the full batch. Otherwise rows are drawn by their weights, with replacement, from a
        generator of (seed, step); each run has its own rows.
    snapshot_every : int
        Snapshots at steps 0, 1, 2, 4, ... below this spacing, then evenly, and at the end.
    measure_every : int, optional
        Spacing of the metric rows; they are taken at every snapshot too. Default: snapshots only.
    record : tuple of str
        Names of the parameters that a snapshot keeps.
    stop_accuracy : float, optional
        Stop early once every run has reached this accuracy at a measured step.
    """

    steps: int
    lr: float
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    muon: tuple[str, ...] = ()
    batch_size: int | None = None
    snapshot_every: int = 100
    measure_every: int | None = None
    record: tuple[str, ...] = ("W_E",)
    stop_accuracy: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adamw", "muon"):
            raise ValueError(
                f"optimizer: expected 'sgd', 'adamw' or 'muon', got {self.optimizer!r}."
            )
        if (self.optimizer == "muon") != bool(self.muon):
            raise ValueError(
                f"muon: expected names of parameters with optimizer='muon', for example "
                f"('W_in',), and none otherwise; got {self.muon!r} with {self.optimizer!r}."
            )
        for name in ("steps", "snapshot_every", "batch_size", "measure_every"):
            value = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if value is not None and not (whole and int(value) >= 1):
                raise ValueError(f"{name}: expected a positive integer, got {value!r}.")
        numbers = {name: getattr(self, name) for name in ("lr", "momentum", "weight_decay", "eps")}
        for name, value in numbers.items():
            if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise ValueError(f"{name}: expected a finite number not below zero, got {value!r}.")
        if self.stop_accuracy is not None and not 0 < self.stop_accuracy <= 1:
            raise ValueError(
                f"stop_accuracy: expected a share above 0, at most 1, got {self.stop_accuracy!r}."
            )


@dataclass(frozen=True)
class Run:
    """What a training run leaves behind.

    Attributes
    ----------
    config : TrainConfig
    seeds : tuple of int
        Labels of the ``R`` runs.
    metrics : DataFrame
        Tidy rows: ``seed``, ``step``, ``metric`` (``loss`` or ``accuracy``), ``value``.
    steps : int64 array, shape (S,)
        Snapshot steps.
    snapshots : dict of arrays, each of shape (S, R, ...)
        Recorded parameters before the step of the same index.
    """

    config: TrainConfig
    seeds: tuple[int, ...]
    metrics: pd.DataFrame
    steps: NDArray[np.int64]
    snapshots: dict[str, NDArray[np.floating]]

    def at(self, step: int) -> int:
        """Index of the last snapshot that is not after ``step``."""
        if step < 0:
            raise ValueError(f"step: expected a step of the run, 0 or later, got {step}.")
        return int(np.searchsorted(self.steps, step, side="right")) - 1

    def metric(self, name: str) -> pd.DataFrame:
        """One metric as a table: a row a measured step, a column a seed."""
        rows = self.metrics[self.metrics["metric"] == name]
        if rows.empty:
            raise KeyError(
                f"no metric {name!r}; this run has {sorted(self.metrics['metric'].unique())}."
            )
        table = rows.pivot(index="step", columns="seed", values="value")
        return table.reindex(columns=list(self.seeds))

    def onset(self, level: float, metric: str = "accuracy") -> pd.DataFrame:
        """First measured step at which a metric reaches a level.

        Parameters
        ----------
        level : float
        metric : str

        Returns
        -------
        DataFrame
            Columns ``seed``, ``step``, ``censored``: True where the run ended before, and then
            ``step`` is its last.
        """
        table = self.metric(metric)
        reached = (table >= level).to_numpy()
        censored = ~reached.any(axis=0)
        first = np.where(censored, len(table) - 1, reached.argmax(axis=0))
        return pd.DataFrame(
            {"seed": self.seeds, "step": table.index.to_numpy()[first], "censored": censored}
        )


@torch.no_grad()
def restore_(model: Model, run: Run, index: int) -> None:
    """Set a model's parameters to those of a snapshot.

    Parameters
    ----------
    model : EmbeddingFFN, FixedEmbeddingFFN, AttentionOnly or Transformer
        Of the run's shapes; its precision may be another one, for instance float64 to decompose
        the gradients of a float32 run exactly.
    run : Run
        Must have recorded every parameter.
    index : int
        Position in ``run.steps``.

    Raises
    ------
    ValueError
        If a parameter was not recorded or has another shape.
    """
    for name, parameter in model.named_parameters():
        if name not in run.snapshots:
            raise ValueError(
                f"{name}: not in the run's snapshots, which hold {sorted(run.snapshots)}; "
                f"add it to TrainConfig(record=...)."
            )
        stored = run.snapshots[name][index]
        stored = stored[0] if model.runs is None and len(run.seeds) == 1 else stored
        if stored.shape != tuple(parameter.shape):
            raise ValueError(
                f"{name}: expected shape {tuple(parameter.shape)}, the snapshot has {stored.shape}."
            )
        parameter.copy_(torch.tensor(stored))


def snapshot_steps(steps: int, every: int) -> NDArray[np.int64]:
    """Steps 0, 1, 2, 4, ... below ``every``, then its multiples, and the last step."""
    doubling = {0} | {2**k for k in range(every.bit_length()) if 2**k < every}
    chosen = doubling | set(range(every, steps + 1, every)) | {steps}
    return np.array(sorted(s for s in chosen if s <= steps), dtype=np.int64)


def _optimizer_step(
    named: Mapping[str, Tensor], config: TrainConfig, runs: int | None
) -> Callable[[], None]:
    """A function that moves every parameter along its gradient."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            named.values(), config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        ).step
    moves: list[Callable[[], Any]] = []
    by_adam = [parameter for name, parameter in named.items() if name not in config.muon]
    if by_adam:
        adam = torch.optim.AdamW(
            by_adam,
            config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        moves.append(adam.step)
    if config.muon:
        by_muon = [parameter for name, parameter in named.items() if name in config.muon]
        moves.append(_muon_step(by_muon, config, runs))

    def step() -> None:
        for move in moves:
            move()

    return step


def _muon_step(
    parameters: Sequence[Tensor], config: TrainConfig, runs: int | None
) -> Callable[[], None]:
    """A function that moves each run's matrices by Muon."""
    # Muon takes matrices: each run's is a view into the batch, moved in place.
    views = [
        (parameter, run, (parameter if run is None else parameter[run]).detach())
        for parameter in parameters
        for run in ([None] if runs is None else range(runs))
    ]
    muon = torch.optim.Muon(
        [view for _, _, view in views],
        config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )

    def step() -> None:
        for parameter, run, view in views:
            assert parameter.grad is not None
            view.grad = parameter.grad if run is None else parameter.grad[run]
        muon.step()

    return step


class _Batch:
    """Loss and accuracy by automatic differentiation, of all runs as one batch."""

    def __init__(self, model: Any, task: Task, every_position: bool) -> None:
        self.logits = model.logits if every_position else model  # (R, n, L, V) or (R, n, V)
        self.runs = model.runs
        first = next(model.parameters())
        self.tokens = torch.tensor(task.tokens, device=first.device)
        # Sequences that differ in their label only (a language's) are read once.
        self.distinct, self.row = torch.unique(self.tokens, dim=0, return_inverse=True)
        self.repeated = len(self.distinct) < len(self.tokens)
        self.weights = torch.tensor(task.weights, device=first.device, dtype=first.dtype)
        self.targets = torch.tensor(task.labels, device=first.device)  # (n,) or (n, L)
        if every_position:
            self.targets = torch.cat([self.tokens[:, 1:], self.targets[:, None]], dim=1)

    def __call__(self, measure: bool) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of each run over the whole task, like those of an Objective."""
        logits = self.logits(self.distinct if self.repeated else self.tokens)
        if self.repeated:
            logits = logits.index_select(0 if self.runs is None else 1, self.row)
        loss = (_cross_entropy(logits, self.targets) @ self.weights).reshape(-1)
        if not measure:
            return loss, torch.full_like(loss, math.nan)
        right = (logits.detach().argmax(-1) == self.targets).to(self.weights.dtype)
        return loss, (_by_sequence(right, self.targets) @ self.weights).reshape(-1)

    def loss_of(self, rows: Tensor) -> Tensor:
        """Mean loss (R,) over the rows (R, B) of the task, each run's own."""
        # One forward over the union of rows; each run then reads its own.
        union, position = torch.unique(rows, return_inverse=True)
        losses = _cross_entropy(self.logits(self.tokens[union]), self.targets[union])
        return losses.reshape(len(rows), -1).gather(1, position).mean(dim=1)


def _by_sequence(each: Tensor, targets: Tensor) -> Tensor:
    """Mean over the predicting positions of a sequence, shape (R, n)."""
    return each if targets.ndim == 1 else each.mean(-1)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (R, n) of each sequence; targets (n,), or (n, L) with logits (R, n, L, V)."""
    index = targets.expand(logits.shape[:-1]).unsqueeze(-1)
    return _by_sequence(logits.logsumexp(-1) - logits.gather(-1, index).squeeze(-1), targets)


def _objective(model: Model, task: Task, config: TrainConfig) -> Objective | None:
    """The loss in closed form where that is there and pays."""
    # A subclass may read its tokens in another way.
    if type(model) not in (EmbeddingFFN, FixedEmbeddingFFN) or config.batch_size is not None:
        return None
    assert isinstance(model, EmbeddingFFN | FixedEmbeddingFFN)
    large = len(task.labels) * model.hidden > _ONE_BY_ONE
    return Objective(model, task) if large and model.W_U.device.type == "cpu" else None


class Measured(NamedTuple):
    """Loss and accuracy of each run before a step, two float64 arrays of shape (R,)."""

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def train(
    model: Model,
    task: Task,
    config: TrainConfig,
    seeds: tuple[int, ...] | None = None,
    *,
    every_position: bool = False,
) -> Run:
    """Train an initialized model in place on a task.

    Parameters
    ----------
    model : EmbeddingFFN, FixedEmbeddingFFN, AttentionOnly or Transformer
        With ``runs=R``, all runs train at once; the gradient of each is that of its own loss.
    task : Task
    config : TrainConfig
    seeds : tuple of int, optional
        Labels of the runs in the tables, and the seeds of their minibatches. Default: 0, 1, ...
    every_position : bool
        A language model's loss and accuracy: every position predicts the token after it and the
        last one the label, mean over positions. For a model with logits at every position.

    Returns
    -------
    Run

    Raises
    ------
    ValueError
        If the model's vocabulary is not the task's, the model has not been initialized, or a
        recorded name, or one of ``config.muon``, is no parameter.
    TypeError
        If every position is to predict and the model reads the last one only.
    FloatingPointError
        If a loss is not finite at a measured step; names the step and the seeds.
    """
    seeds = _checked(model, task, config, seeds, every_position)
    named = dict(model.named_parameters())
    to_save = set(snapshot_steps(config.steps, config.snapshot_every).tolist())
    to_measure = set(to_save)
    if config.measure_every:
        to_measure |= set(range(0, config.steps + 1, config.measure_every))

    kept: dict[str, list[NDArray]] = {name: [] for name in config.record}
    saved_steps: list[int] = []
    rows: dict[int, Measured] = {}
    for step, measured in _steps(model, task, config, to_measure, seeds, every_position):
        reached = False
        if measured is not None:
            rows[step] = measured
            goal = config.stop_accuracy
            reached = goal is not None and bool((measured.accuracy >= goal).all())
        # A run that has reached its goal ends with a snapshot, like one that ran to the end.
        if step in to_save or reached:
            saved_steps.append(step)
            for name, values in kept.items():
                values.append(named[name].detach().cpu().numpy().copy())
        if reached:
            break

    snapshots = {name: np.stack(values) for name, values in kept.items()}
    if model.runs is None:
        snapshots = {name: values[:, None] for name, values in snapshots.items()}
    return Run(config, seeds, _tidy(rows, seeds), np.array(saved_steps), snapshots)


def each_step(
    model: Model,
    task: Task,
    config: TrainConfig,
    measure: Collection[int],
    seeds: tuple[int, ...] | None = None,
    *,
    every_position: bool = False,
) -> Iterator[tuple[int, Measured | None]]:
    """The loop of :func:`train` for whoever looks at the model, or stops, between its steps.

    Parameters
    ----------
    model, task, seeds, every_position
        As for :func:`train`.
    config : TrainConfig
        Its steps and what moves the parameters; when to measure, keep and stop is the caller's.
    measure : collection of int
        Steps before which loss and accuracy are measured.

    Yields
    ------
    step : int
        From 0, before the step is taken, to ``config.steps``, after the last one.
    measured : Measured or None

    Raises
    ------
    ValueError, TypeError, FloatingPointError
        As :func:`train` does; the first two when called.
    """
    seeds = _checked(model, task, config, seeds, every_position)
    return _steps(model, task, config, measure, seeds, every_position)


def _checked(
    model: Model,
    task: Task,
    config: TrainConfig,
    seeds: tuple[int, ...] | None,
    every_position: bool,
) -> tuple[int, ...]:
    """Refuse what cannot be trained; returns the labels of the runs."""
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )
    named = dict(model.named_parameters())
    if not any(bool(p.any()) for p in named.values()):
        raise ValueError("model: every parameter is zero; call models.initialize_ first.")
    for field, names in (("record", config.record), ("muon", config.muon)):
        unknown = [name for name in names if name not in named]
        if unknown:
            raise ValueError(f"{field}: expected names out of {sorted(named)}, got {unknown}.")
    runs = 1 if model.runs is None else model.runs
    seeds = tuple(range(runs)) if seeds is None else tuple(int(s) for s in seeds)
    if len(seeds) != runs or len(set(seeds)) != runs:
        raise ValueError(f"seeds: expected {runs} distinct ones, one a run, got {seeds}.")
    if every_position and not hasattr(model, "logits"):
        raise TypeError(
            f"every_position: expected a model with logits at every position, a "
            f"language.transformer.Transformer, got {type(model).__name__}."
        )
    return seeds


def _steps(
    model: Model,
    task: Task,
    config: TrainConfig,
    measure: Collection[int],
    seeds: tuple[int, ...],
    every_position: bool,
) -> Iterator[tuple[int, Measured | None]]:
    """See :func:`each_step`."""
    named = dict(model.named_parameters())
    move = _optimizer_step(named, config, model.runs)
    batch = _Batch(model, task, every_position)
    objective = _objective(model, task, config) or batch
    for step in range(config.steps + 1):
        last, measured, loss = step == config.steps, None, None
        if config.batch_size is None or step in measure:
            # Only the loss of the full batch is differentiated, and not where no step follows.
            with torch.set_grad_enabled(config.batch_size is None and not last):
                loss, accuracy = objective(step in measure)
            if step in measure:
                measured = Measured(*(x.detach().double().cpu().numpy() for x in (loss, accuracy)))
                _check_finite(measured.loss, seeds, step, task, config)
        yield step, measured
        if last:
            return
        if config.batch_size is not None:
            loss = batch.loss_of(_minibatches(batch.weights, config.batch_size, seeds, step))
        assert loss is not None
        for parameter in named.values():
            parameter.grad = None
        loss.sum().backward()  # runs share no parameter, so the sum keeps each run's own gradient
        move()


def _check_finite(
    loss: NDArray[np.float64], seeds: tuple[int, ...], step: int, task: Task, config: TrainConfig
) -> None:
    """Stop a run that has diverged."""
    bad = [seed for seed, value in zip(seeds, loss, strict=True) if not math.isfinite(value)]
    if bad:
        raise FloatingPointError(
            f"training of {task.name or 'the task'} diverged: loss is not finite at step {step} "
            f"for seeds {bad}; lower the learning rate (now {config.lr:g}) or the initial scale."
        )


def _minibatches(weights: Tensor, batch_size: int, seeds: tuple[int, ...], step: int) -> Tensor:
    """Rows drawn by weight from a generator of (seed, step), shape (R, B)."""
    drawn = []
    for seed in seeds:
        source = torch.Generator().manual_seed((seed << 32) + step)
        drawn.append(torch.multinomial(weights.cpu(), batch_size, True, generator=source))
    return torch.stack(drawn).to(weights.device)


def _tidy(rows: Mapping[int, Measured], seeds: tuple[int, ...]) -> pd.DataFrame:
    """Metrics of the measured steps, a row for each seed, step and metric."""
    names = Measured._fields
    return pd.DataFrame(
        {
            "seed": np.tile(seeds, len(rows) * len(names)),
            "step": np.repeat(list(rows), len(names) * len(seeds)),
            "metric": np.tile(np.repeat(names, len(seeds)), len(rows)),
            "value": np.ravel(list(rows.values())),
        }
    )
