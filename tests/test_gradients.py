"""The decomposition by order against automatic differentiation and against the formula."""

from itertools import product
from math import factorial

import pytest
import torch

from staircase_lib import gradients, models, tasks, training

F64 = torch.float64
TASKS = {
    "length two": tasks.addition(3, 4),
    "length three": tasks.modular_addition(3, 4, length=3),
    "repeats and weights": tasks.from_arrays(
        [[0, 0, 1, 0], [1, 2, 2, 0], [3, 3, 3, 3]], [0, 1, 2], weights=[1, 2, 5]
    ),
    "length one": tasks.from_arrays([[0], [1]], [1, 0]),
}


def descent(model, task):
    logits = model(torch.tensor(task.tokens))
    each = training._cross_entropy(logits, torch.tensor(task.labels))
    (gradient,) = torch.autograd.grad((each @ torch.tensor(task.weights)).sum(), model.W_E)
    return -gradient


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh", (1.0, 0.7, -0.3, 0.2)])
@pytest.mark.parametrize("name", TASKS)
def test_orders_sum_to_the_gradient(name, activation):
    task = TASKS[name]
    for runs, gamma, steps in ((None, 1.3, 0), (2, 0.6, 0), (2, 0.6, 12)):
        model = models.EmbeddingFFN(task.vocab_size, 8, 6, activation, F64, runs=runs)
        models.initialize_(model, gamma, models.seeded(range(runs or 1)))
        if steps:
            training.train(model, task, training.TrainConfig(steps, 0.01, "adamw"))
        parts = gradients.gradient_by_order(model, task, block=5)
        assert parts.shape == (task.length, *model.W_E.shape)
        assert relative(parts.sum(0), descent(model, task)) < 1e-12


def by_formula(model, task, coefficients):
    """The sum of Theorem 1 with the exact residual, monomial by monomial."""
    W_E, W_in, W_U = (p.detach() for p in (model.W_E, model.W_in, model.W_U))
    parts = torch.zeros(task.length, *W_E.shape, dtype=F64)
    z = W_E @ W_in
    residuals = -torch.softmax(model(torch.tensor(task.tokens)).detach(), -1)
    for s, (x, y, w) in enumerate(zip(task.tokens, task.labels, task.weights, strict=True)):
        residuals[s, y] += 1
        back = W_U @ residuals[s] * w
        for i in range(task.length):
            others = [j for j in range(task.length) if j != i]
            for k, c in enumerate(coefficients, start=1):
                for powers in product(range(k), repeat=task.length):
                    if sum(powers) != k - 1:
                        continue
                    multinomial = factorial(k - 1)
                    term = torch.ones(W_in.shape[1], dtype=F64)
                    for j, power in zip([i, *others], powers, strict=True):
                        multinomial //= factorial(power)
                        term = term * z[x[j]] ** power
                    order = sum(p > 0 for p in powers[1:])
                    parts[order, x[i]] += W_in @ (k * c * multinomial * term * back)
    return parts


@pytest.mark.parametrize("name", ["length two", "length three", "repeats and weights"])
def test_polynomial_orders_are_those_of_the_theorem(name):
    task, coefficients = TASKS[name], (1.0, 0.7, -0.3, 0.2)
    model = models.EmbeddingFFN(task.vocab_size, 5, 6, coefficients, F64)
    models.initialize_(model, 0.4, torch.Generator().manual_seed(2))
    parts = gradients.gradient_by_order(model, task)
    expected = by_formula(model, task, coefficients)
    for order in range(task.length):
        assert relative(parts[order], expected[order]) < 1e-11
    # Wrong theories: a coefficient off by one, two orders swapped.
    wrong = by_formula(model, task, (1.0, 1.7, -0.3, 0.2))
    assert relative(wrong.sum(0), parts.sum(0)) > 1e-2
    assert relative(expected[[1, 0]], parts[:2]) > 1e-2


def test_a_linear_model_has_order_zero_only():
    task = TASKS["length three"]
    model = models.EmbeddingFFN(task.vocab_size, 5, activation="identity", dtype=F64)
    models.initialize_(model, 0.5, torch.Generator().manual_seed(0))
    parts = gradients.gradient_by_order(model, task)
    assert parts[1:].abs().max() == 0
    assert parts[0].abs().max() > 0


def test_small_initialization_orders_the_orders():
    """0 > 1 > 2, each by about a factor of the embedding scale (Proposition 1)."""
    task = TASKS["length three"]
    norms = []
    for gamma in (1.0, 1.5):
        model = models.EmbeddingFFN(task.vocab_size, 64, dtype=F64)
        models.initialize_(model, gamma, torch.Generator().manual_seed(0))
        norms.append(gradients.gradient_by_order(model, task).flatten(1).norm(dim=1))
    for norm in norms:
        assert norm[0] > 10 * norm[1] > 100 * norm[2]
    # The smaller start suppresses order 1 against order 0 more.
    assert norms[1][1] / norms[1][0] < norms[0][1] / norms[0][0] / 10


def test_shares_sum_to_one_and_centring_removes_what_tokens_share():
    task = TASKS["length three"]  # its zeroth-order signature is the same for all anchors
    model = models.EmbeddingFFN(task.vocab_size, 64, dtype=F64, runs=2)
    models.initialize_(model, 1.3, models.seeded((0, 1)))
    parts = gradients.gradient_by_order(model, task)
    raw = gradients.order_shares(parts, task.anchors, centred=False)
    centred = gradients.order_shares(parts, task.anchors)
    for shares in (raw, centred):
        assert shares.shape == (3, 2)
        torch.testing.assert_close(shares.sum(0), torch.ones(2, dtype=F64))
    assert (centred[0] < raw[0]).all()
    nothing = gradients.order_shares(torch.zeros(3, 4, 5), [0, 1])
    assert nothing.tolist() == [0, 0, 0]


def test_bad_input():
    with pytest.raises(TypeError, match="EmbeddingFFN, got AttentionOnly"):
        gradients.gradient_by_order(models.AttentionOnly(7, 4, 2), TASKS["length two"])  # type: ignore
    with pytest.raises(ValueError, match="vocabulary of 7, got 9"):
        gradients.gradient_by_order(models.EmbeddingFFN(9, 4), TASKS["length two"])
