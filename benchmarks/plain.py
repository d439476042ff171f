"""The library's work as one would write it without the library, one thing after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.model_selection import KFold
from torch import Tensor
from torch.nn import functional

from staircase_lib.tasks import Task


def cross_entropy(W_E: Tensor, W_in: Tensor, W_U: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
    """Loss of the feed-forward model: gather, then multiply."""
    logits = functional.gelu(W_E[tokens].sum(1) @ W_in) @ W_U
    return functional.cross_entropy(logits, labels)


def train(
    starts: Sequence[Mapping[str, Tensor]],
    task: Task,
    steps: int,
    lr: float,
    loss_of: Callable[..., Tensor] = cross_entropy,
) -> NDArray[np.float64]:
    """Losses (steps + 1, R) of the feed-forward model, one seed at a time.

    `starts` has ``W_E (V, d)``, ``W_in (d, h)`` and ``W_U (h, V)`` of each seed; `loss_of` is
    :func:`cross_entropy`, or that compiled.
    """
    tokens, labels = torch.tensor(task.tokens), torch.tensor(task.labels)
    losses = np.empty((steps + 1, len(starts)))
    for run, start in enumerate(starts):
        W_E, W_in, W_U = (start[name].clone().requires_grad_() for name in ("W_E", "W_in", "W_U"))
        optimizer = torch.optim.SGD([W_E, W_in, W_U], lr)
        for step in range(steps + 1):
            loss = loss_of(W_E, W_in, W_U, tokens, labels)
            losses[step, run] = loss.item()
            if step < steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return losses


def label_signature(task: Task) -> NDArray[np.float64]:
    """Label signature of order one, sequence by sequence."""
    V = task.vocab_size
    row = {int(token): place for place, token in enumerate(task.anchors)}
    signature = np.zeros((len(task.anchors), V, V))
    for sequence, label, weight in zip(task.tokens, task.labels, task.weights, strict=True):
        for i, token in enumerate(sequence):
            for j, context in enumerate(sequence):
                if i != j and int(token) in row:
                    signature[row[int(token)], label, context] += weight
    return signature / signature.sum(axis=(1, 2), keepdims=True)


def held_out_error(signature: NDArray, target: NDArray, iterations: int = 200) -> float:
    """Error of a first-order probe on held-out pairs: one fold after the other, by torch."""
    n, _, size = signature.shape
    scale = np.sqrt((signature**2).reshape(n, -1).sum(axis=1).mean())
    features, wanted = torch.tensor(signature / scale), torch.tensor(target)
    start = 1.0 + 0.1 * np.random.default_rng(0).standard_normal((size, 1))
    predicted, count = np.zeros((n, n)), np.zeros((n, n))

    def similarities(p: Tensor, rows: NDArray) -> Tensor:
        g = functional.normalize(features[rows] @ p, dim=1)
        return g @ g.T

    for train, test in KFold(5, shuffle=True, random_state=0).split(signature):
        off = ~torch.eye(len(train), dtype=torch.bool)

        def objective(p: NDArray, train: NDArray = train, off: Tensor = off) -> tuple:
            leaf = torch.tensor(p, requires_grad=True)
            error = (similarities(leaf, train) - wanted[train][:, train])[off]
            loss = error.square().mean() + 1e-4 * leaf.square().mean()
            loss.backward()
            assert leaf.grad is not None
            return loss.item(), leaf.grad.numpy()

        settings = {"maxiter": iterations}
        found = minimize(objective, start[:, 0], jac=True, method="L-BFGS-B", options=settings)
        unseen = np.isin(np.arange(n), test)
        pairs = unseen[:, None] | unseen[None, :]
        predicted += pairs * similarities(torch.tensor(found.x), np.arange(n)).numpy()
        count += pairs
    upper = np.triu_indices(n, 1)
    return float((((predicted / count) - target)[upper] ** 2).mean())
