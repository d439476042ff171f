"""Lemmas of the book by enumeration, and claims about early training in the small."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from staircase_lib import alignment, models, signatures, tasks, training

# --- Lemmas --------------------------------------------------------------------------------------


@pytest.mark.claim("7.3")
def test_order_zero_is_empty_exactly_for_moduli_that_divide():
    for numbers in range(2, 9):
        for modulus in range(2, 12):
            vocab_size = max(2 * numbers - 1, modulus)
            task = tasks.modular_addition(
                numbers, n_contexts=None, modulus=modulus, vocab_size=vocab_size
            )
            rows = signatures.label_signature(task, 0)
            alike = np.abs(rows - rows[0]).max() < 1e-12
            assert alike == (numbers % modulus == 0), (numbers, modulus)


def loss_of_parts(parts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, per sequence, of logits that are a sum of a part for each number.

    `parts` has shape (2, N, V), `labels` (N, N).
    """
    logits = parts[0][:, None] + parts[1][None]
    return -torch.log_softmax(logits, -1).gather(-1, labels[..., None]).mean()


@pytest.mark.claim("7.1")
@pytest.mark.parametrize("wraps", [True, False])
def test_parts_for_each_number_cannot_add_on_a_clock_and_can_add(wraps):
    """What a model with uniform attention can reach is bounded by sums of parts."""
    size = 5
    numbers = torch.arange(size)
    labels = numbers[:, None] + numbers[None]
    labels = labels % size if wraps else labels
    vocab_size = int(labels.max()) + 1
    uniform = torch.zeros(2, size, vocab_size, dtype=torch.float64, requires_grad=True)
    loss = loss_of_parts(uniform, labels)
    (slope,) = torch.autograd.grad(loss, uniform)
    draws = torch.randn(200, 2, size, vocab_size, dtype=torch.float64)
    draws *= 10 ** torch.linspace(-3, 1, 200, dtype=torch.float64)[:, None, None, None]
    least = min(float(loss_of_parts(parts, labels)) for parts in draws)
    if wraps:
        assert slope.abs().max() < 1e-15 and least > math.log(size) - 1e-12
    else:
        a, y = numbers[:, None], torch.arange(vocab_size)[None]
        parts = torch.stack([2 * a * y - y**2, 2 * a * y]).double()  # up to what is free of y
        assert slope.abs().max() > 1e-3
        assert loss_of_parts(20 * parts, labels) < 1e-6


@pytest.mark.claim("D.1", "D.2")
def test_each_component_of_the_first_order_is_a_circle_of_its_own():
    size = 7
    task = tasks.modular_addition(size, n_contexts=None)
    first = signatures.label_signature(task, 1)
    numbers = np.arange(size)
    apart = numbers[:, None] - numbers[None]
    circles = []
    for k in range(1, (size - 1) // 2 + 1):
        component = signatures.fourier_component(first, k, numbers)
        found = alignment.cosine_similarity(component)
        np.testing.assert_allclose(found, np.cos(2 * np.pi * k * apart / size), atol=1e-12)
        circles.append(found)
    for one, another in pairwise(circles):
        assert alignment.pearson_offdiagonal(one, another) < 0.5


# --- Early training ------------------------------------------------------------------------------


def read_off(task: tasks.Task, steps: int, lr: float, optimizer: str) -> np.ndarray:
    """Softmax of the logits of each anchor alone after some steps, (runs, anchors, V)."""
    seeds = (0, 1, 2)
    model = models.EmbeddingFFN(task.vocab_size, 256, runs=len(seeds))
    models.initialize_(model, 1.1, models.seeded(seeds))
    config = training.TrainConfig(
        steps, lr, optimizer, snapshot_every=steps, record=("W_E", "W_in", "W_U")
    )
    last = {
        name: torch.as_tensor(kept[-1])
        for name, kept in training.train(model, task, config, seeds=seeds).snapshots.items()
    }
    anchors = torch.tensor(task.anchors)
    hidden = torch.nn.functional.gelu(last["W_E"][:, anchors] @ last["W_in"])
    return torch.softmax((hidden @ last["W_U"]).double(), -1).numpy()


def likeness(answers: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Correlation over labels, mean over anchors, one a run."""
    x, y = (each - each.mean(-1, keepdims=True) for each in (answers, truth))
    over = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    return ((x * y).sum(-1) / over).mean(-1)


@pytest.mark.claim("4.2")
def test_an_early_embedding_alone_answers_its_zeroth_order_signature():
    task = tasks.addition(8, n_contexts=None)
    truth = signatures.label_signature(task, 0)
    answers = read_off(task, 12, 1e-3, "adamw")
    assert likeness(answers, truth).min() > 0.8
    assert likeness(answers, np.roll(truth, 4, axis=0)).max() < 0.3  # another token's


@pytest.mark.claim("4.3")
def test_so_does_one_of_a_prescribed_distribution():
    y = np.arange(20)
    bumps = np.stack([np.exp(-((y - at) ** 2) / 8.0) for at in (4, 9, 14)])
    bumps /= bumps.sum(-1, keepdims=True)
    task = tasks.prescribed_labels(bumps, 60, np.random.default_rng(0))
    labels = slice(0, len(y))  # that no other token is an answer, all anchors learn alike
    truth = signatures.label_signature(task, 0)[:, labels]
    answers = read_off(task, 200, 1.0, "sgd")[..., labels]
    assert likeness(answers, truth).min() > 0.8
    assert likeness(answers, np.roll(truth, 1, axis=0)).max() < 0.3
