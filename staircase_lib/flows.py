r"""Gradient flow of many runs at once, over times that grow by orders of magnitude.

:math:`\dot\theta=-\nabla\mathcal L(\theta)` of the feed-forward model. Under small initialization
the flow waits on plateaus for thousands of time constants of its fastest directions: it is stiff,
and with plain steps, or a general-purpose solver, waiting would cost as much as moving. The
eigenvalues of its Jacobian, minus the Hessian, are real, so an explicit method with a long real
interval of stability serves: the Runge–Kutta–Chebyshev method of second order (B. P. Sommeijer,
L. F. Shampine and J. G. Verwer, *RKC: an explicit solver for parabolic PDEs*, 1997), whose stable
step grows with the square of its number of stages. All runs of a model advance side by side, each
at its own step size and time. :func:`staircase_lib.stairs.gradient_flow` integrates one run to
many more digits; the tests hold this module against it.

Shapes: ``R`` runs, ``S`` steps of the solver, ``K`` marks, ``V`` vocabulary, ``d`` width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import ceil, sqrt

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from staircase_lib.models import EmbeddingFFN
from staircase_lib.tasks import Task

__all__ = ["FlowRuns", "follow"]

_NAMES = ("W_E", "W_in", "W_U")
_MOST_STAGES = 200
_GROWTH = 0.2  # of the elapsed time, the longest step: growth too small to be seen is not skipped


@dataclass(frozen=True)
class FlowRuns:
    """Gradient flows at the solver's own times. A run that has ended repeats its last state.

    Attributes
    ----------
    times : float64 array, shape (S, R)
    loss, accuracy : float64 array, shape (S, R)
    embeddings : float32 array, shape (S, R, V, d)
    ended : bool array, shape (R,)
        Whether the run reached the accuracy asked for, rather than the last time.
    mark_times : float64 array, shape (K, R)
        When the states kept at the marks were taken; ``nan`` where the run ended before.
    states : dict of float32 arrays, each of shape (K, R, ...)
        Every parameter there.
    evaluations : int
        Gradients that it took, of the whole batch.
    """

    times: NDArray[np.float64]
    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    embeddings: NDArray[np.float32]
    ended: NDArray[np.bool_]
    mark_times: NDArray[np.float64]
    states: dict[str, NDArray[np.float32]]
    evaluations: int

    def time_below(self, loss: float) -> NDArray[np.float64]:
        """Time at which each run's loss first reaches a value from above, interpolated; ``nan``
        where it does not, zero where it starts there."""
        reached = self.loss <= loss
        out = np.full(self.loss.shape[1], np.nan)
        for run in np.flatnonzero(reached.any(axis=0)):
            i = int(reached[:, run].argmax())
            if i == 0:
                out[run] = 0.0
                continue
            before, after = self.loss[i - 1, run], self.loss[i, run]
            share = (before - loss) / (before - after)
            start, stop = self.times[i - 1, run], self.times[i, run]
            out[run] = start + share * (stop - start)
        return out


@cache
def _chebyshev(stages: int) -> tuple[NDArray[np.float64], ...]:
    """Coefficients of the method: first weight, then mu, nu, mu~ and gamma~ by stage."""
    w0 = 1 + (2 / 13) / stages**2
    value, first, second = np.ones(stages + 1), np.zeros(stages + 1), np.zeros(stages + 1)
    value[1], first[1] = w0, 1.0
    for j in range(2, stages + 1):
        value[j] = 2 * w0 * value[j - 1] - value[j - 2]
        first[j] = 2 * value[j - 1] + 2 * w0 * first[j - 1] - first[j - 2]
        second[j] = 4 * first[j - 1] + 2 * w0 * second[j - 1] - second[j - 2]
    w1 = first[-1] / second[-1]
    b = np.ones(stages + 1)
    b[2:] = second[2:] / first[2:] ** 2
    b[:2] = b[2]
    a = 1 - b * value
    mu, nu, tilde, shift = (np.zeros(stages + 1) for _ in range(4))
    mu[2:] = 2 * b[2:] * w0 / b[1:-1]
    nu[2:] = -b[2:] / b[:-2]
    tilde[2:] = 2 * b[2:] * w1 / b[1:-1]
    tilde[1] = b[1] * w1
    shift[2:] = -a[1:-1] * tilde[2:]
    return mu, nu, tilde, shift


@dataclass
class _Batch:
    """The runs that are still on their way, and the flow's right-hand side for them."""

    sigma: Callable[[Tensor], Tensor]
    counts: Tensor  # (n, V): how often a token occurs in a sequence
    labels: Tensor
    weights: Tensor
    shapes: list[torch.Size]  # of one run's parameters
    evaluations: int = field(default=0)

    def unpack(self, theta: Tensor) -> list[Tensor]:
        """Views of the flat parameters (R, P)."""
        pieces = theta.split([s.numel() for s in self.shapes], dim=1)
        return [p.unflatten(1, s) for p, s in zip(pieces, self.shapes, strict=True)]

    def descent(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Minus the gradient (R, P), loss (R,) and accuracy (R,)."""
        self.evaluations += 1
        theta = theta.detach().requires_grad_()
        W_E, W_in, W_U = self.unpack(theta)
        logits = self.sigma(self.counts @ (W_E @ W_in)) @ W_U  # (R, n, V)
        right = logits[:, torch.arange(len(self.labels)), self.labels]
        loss = (logits.logsumexp(-1) - right) @ self.weights
        (gradient,) = torch.autograd.grad(loss.sum(), theta)
        hit = (logits.detach().argmax(-1) == self.labels).to(theta.dtype) @ self.weights
        return -gradient, loss.detach(), hit

    def size(self, theta: Tensor) -> Tensor:
        """Root mean square of each parameter, (R, 3)."""
        return torch.stack([p.square().mean((1, 2)).sqrt() for p in self.unpack(theta)], 1)

    def advance(self, theta: Tensor, slope: Tensor, step: Tensor, stages: int) -> Tensor:
        """One Runge–Kutta–Chebyshev step of every run, each with its own step size."""
        mu, nu, tilde, shift = (c.tolist() for c in _chebyshev(stages))
        h = step[:, None]
        drift = h * slope
        before, now = theta, theta.add(drift, alpha=tilde[1])
        for j in range(2, stages + 1):
            after = (h * self.descent(now)[0]).mul_(tilde[j])
            after.add_(drift, alpha=shift[j]).add_(theta, alpha=1 - mu[j] - nu[j])
            after.add_(now, alpha=mu[j]).add_(before, alpha=nu[j])
            before, now = now, after
        return now

    def curvature(self, theta: Tensor, slope: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """One turn of the power method: size of the slope's change along a unit direction, and
        the direction of that change."""
        length = 1e-3 * theta.norm(dim=1, keepdim=True)
        change = (self.descent(theta + length * along)[0] - slope) / length
        size = change.norm(dim=1)
        return size, change / size.clamp_min(1e-30)[:, None]


def _prepare(model: EmbeddingFFN, task: Task) -> tuple[_Batch, Tensor]:
    if model.runs is None:
        raise ValueError("model: expected a batch of runs, EmbeddingFFN(..., runs=R).")
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )
    parameters = [getattr(model, name).detach() for name in _NAMES]
    theta = torch.cat([p.flatten(1) for p in parameters], dim=1).clone()
    if not bool(theta.any(1).all()):
        raise ValueError("model: every parameter of a run is zero; call models.initialize_ first.")
    n = len(task.labels)
    counts = torch.zeros(n, task.vocab_size, dtype=theta.dtype)
    for column in torch.tensor(task.tokens).T:
        counts[torch.arange(n), column] += 1
    weights = torch.tensor(task.weights, dtype=theta.dtype)
    shapes = [p.shape[1:] for p in parameters]
    return _Batch(model.sigma, counts, torch.tensor(task.labels), weights, shapes), theta


def follow(
    model: EmbeddingFFN,
    task: Task,
    until: ArrayLike,
    *,
    stop_accuracy: float = 1.0,
    marks: ArrayLike | None = None,
    rtol: float = 1e-2,
) -> FlowRuns:
    """Follow the gradient flow of every run until it knows the task, or its time is over.

    Parameters
    ----------
    model : EmbeddingFFN
        Initialized, with ``runs``; left as it is. Its precision is that of the integration.
    task : Task
    until : float, or float array of shape (R,)
        Last time of the runs.
    stop_accuracy : float
        A run ends once it has this accuracy.
    marks : float array, shape (K, R), optional
        Increasing times; the whole state of the first step at or after each is kept.
    rtol : float
        Error of a step relative to each parameter's root mean square.

    Returns
    -------
    FlowRuns

    Raises
    ------
    ValueError
        If the model has no run axis, another vocabulary or no initial weights, or a time is not
        positive.
    FloatingPointError
        If no step is small enough for a run.
    """
    batch, theta = _prepare(model, task)
    runs = len(theta)
    last = np.broadcast_to(np.asarray(until, dtype=np.float64), (runs,)).copy()
    if not ((last > 0) & np.isfinite(last)).all():
        raise ValueError(f"until: expected finite times above zero, got {until!r}.")
    at = np.empty((0, runs)) if marks is None else np.asarray(marks, dtype=np.float64)
    if at.ndim != 2 or at.shape[1] != runs or (np.diff(at, axis=0) <= 0).any():
        raise ValueError(f"marks: expected increasing times of shape (K, {runs}), got {at.shape}.")
    rows: dict[str, list[NDArray]] = {k: [] for k in ("times", "loss", "accuracy", "embeddings")}
    mark_times = np.full(at.shape, np.nan)
    states = {
        n: np.zeros((len(at), runs, *s), dtype=np.float32)
        for n, s in zip(_NAMES, batch.shapes, strict=True)
    }

    live = np.arange(runs)
    time = torch.zeros(runs, dtype=torch.float64)
    slope, loss, accuracy = batch.descent(theta)
    now = {
        "times": np.zeros(runs),
        "loss": loss.double().numpy().copy(),
        "accuracy": accuracy.double().numpy().copy(),
        "embeddings": batch.unpack(theta)[0].float().numpy().copy(),
    }
    step = 0.01 * theta.norm(dim=1) / slope.norm(dim=1)
    along = slope / slope.norm(dim=1, keepdim=True)
    radius = torch.zeros(runs, dtype=theta.dtype)
    for _ in range(8):
        radius, along = batch.curvature(theta, slope, along)
    while True:
        for name, values in rows.items():
            values.append(now[name].copy())
        going = torch.tensor(
            (now["accuracy"][live] < stop_accuracy) & (now["times"][live] < last[live])
        )
        if not bool(going.any()):
            break
        if not bool(going.all()):
            live = live[going.numpy()]
            theta, slope, along = theta[going], slope[going], along[going]
            time, step, radius = time[going], step[going], radius[going]
        size, along = batch.curvature(theta, slope, along)
        radius = torch.maximum(size, 0.9 * radius)
        remaining = torch.tensor(last[live]) - time
        step = torch.minimum(step, remaining.to(step.dtype).clamp_min(0) * (1 + 1e-6))
        step = torch.minimum(step, (0.66 * _MOST_STAGES**2) / (1.2 * radius))
        stages = max(2, ceil(sqrt(1 + 1.54 * 1.2 * float((step * radius).max()))))
        new = batch.advance(theta, slope, step, stages)
        new_slope, new_loss, new_accuracy = batch.descent(new)
        wrong = 0.8 * (theta - new) + 0.4 * step[:, None] * (slope + new_slope)
        error = (batch.size(wrong) / (rtol * batch.size(new))).amax(1)
        error = torch.nan_to_num(error, nan=1e9, posinf=1e9)
        good = (error <= 1) & torch.isfinite(new_loss)
        theta = torch.where(good[:, None], new, theta)
        slope = torch.where(good[:, None], new_slope, slope)
        time = time + torch.where(good, step, 0.0).double()
        step = step * (0.8 * error.clamp_min(1e-6) ** (-1 / 3)).clamp(0.1, 3.0)
        step = torch.minimum(
            step, torch.where(time > 0, _GROWTH * time, torch.inf).to(step.dtype).clamp_min(1e-30)
        )
        if float((step / (time + step)).min()) < 1e-9:
            raise FloatingPointError(
                f"the flow of {task.name or 'the task'} cannot be followed past time "
                f"{float(time.min()):.3g}; raise rtol (now {rtol:g}) or use a model in float64."
            )
        moved = live[good.numpy()]
        now["times"][moved] = time[good].numpy()
        now["loss"][moved] = new_loss[good].double().numpy()
        now["accuracy"][moved] = new_accuracy[good].double().numpy()
        pieces = [p[good].float().numpy() for p in batch.unpack(theta)]
        now["embeddings"][moved] = pieces[0]
        for k, run in enumerate(moved):
            for mark in np.flatnonzero(
                np.isnan(mark_times[:, run]) & (at[:, run] <= now["times"][run])
            ):
                mark_times[mark, run] = now["times"][run]
                for name, piece in zip(_NAMES, pieces, strict=True):
                    states[name][mark, run] = piece[k]
    history = {name: np.stack(values) for name, values in rows.items()}
    return FlowRuns(
        **history, ended=now["accuracy"] >= stop_accuracy, mark_times=mark_times, states=states,
        evaluations=batch.evaluations,
    )  # fmt: skip
