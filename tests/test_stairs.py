"""The first stair in closed form: its constant, its geometry, its time, and wrong theories."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from staircase_lib import models, stairs, tasks

ADDITION = tasks.addition(6, 10)


def flow(task, d, gamma, seed=0, share=0.97, rtol=1e-7):
    model = models.EmbeddingFFN(task.vocab_size, d, dtype=torch.float64)
    models.initialize_(model, gamma, torch.Generator().manual_seed(seed))
    stop = share * np.log(task.vocab_size)
    until = 3 * stairs.first_stair(task).time(d, gamma, 0.5)
    return stairs.gradient_flow(model, task, until, stop_loss=stop - 1e-6, rtol=rtol), stop


def test_driving_matrix_is_minus_the_gradient_at_zero_logits():
    """Built from signatures, compared with the derivative of the loss in a table of logits."""
    task = tasks.from_arrays([[0, 0, 1], [1, 2, 2]], [0, 3], weights=[1, 2], vocab_size=5)
    table = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
    logits = table[torch.tensor(task.tokens)].sum(1)
    each = torch.logsumexp(logits, 1) - logits[torch.arange(2), torch.tensor(task.labels)]
    (each @ torch.tensor(task.weights)).backward()
    matrix = stairs.driving_matrix(task)
    np.testing.assert_allclose(matrix, -table.grad.numpy(), atol=1e-15)
    np.testing.assert_allclose(matrix.sum(1), 0, atol=1e-15)
    np.testing.assert_allclose(matrix[3:], 0)


def test_escape_constant_is_the_limit_of_wide_linear_networks():
    def escape(d, generator):
        a, u = generator.normal(size=(2, d)) / np.sqrt(d)
        W = generator.normal(size=(d, d)) / np.sqrt(d)

        def right(_, state):
            a, u, W = state[:d], state[d : 2 * d], state[2 * d :].reshape(d, d)
            return np.concatenate([W @ u, W.T @ a, np.outer(a, u).ravel()])

        def large(_, state):
            return np.linalg.norm(state[:d]) - 1e3

        large.terminal = True
        start = np.concatenate([a, u, W.ravel()])
        return solve_ivp(right, (0, 9), start, rtol=1e-6, events=large).t[-1]

    generator = np.random.default_rng(0)
    found = [escape(160, generator) for _ in range(12)]
    error = np.std(found) / np.sqrt(len(found))
    constant = stairs.escape_constant()
    assert abs(np.mean(found) - constant) < 4 * error + 0.01
    assert error < 0.02
    assert stairs.escape_constant(32) == pytest.approx(constant, abs=1e-9)
    # A wrong theory, three vectors aligned from the start, would escape at time one.
    assert abs(np.mean(found) - 1) > 4 * error


@pytest.mark.claim("X.2")
@pytest.mark.parametrize("gamma", [1.1, 1.5])
def test_geometry_of_the_first_stair(gamma):
    predicted = stairs.first_stair(ADDITION)
    assert predicted.multiplicity == 2
    reached, _ = flow(ADDITION, 96, gamma)
    assert predicted.overlap(reached.embeddings[-1]) > 0.99
    assert predicted.overlap(reached.embeddings[0]) < 0.9
    # Wrong theories: the space of the next singular values, the signatures of shuffled labels.
    second = stairs.FirstStair(
        predicted.values[2:], predicted.tokens[:, 2:], predicted.labels[:, 2:], 2
    )
    assert second.overlap(reached.embeddings[-1]) < 0.1
    order = np.random.default_rng(0).permutation(len(ADDITION.labels))
    shuffled = tasks.from_arrays(
        ADDITION.tokens, ADDITION.labels[order], vocab_size=ADDITION.vocab_size
    )
    assert stairs.first_stair(shuffled).overlap(reached.embeddings[-1]) < 0.9


@pytest.mark.claim("X.2")
def test_time_of_the_first_stair():
    predicted, measured, without_root = [], [], []
    for d, gamma in ((32, 1.2), (96, 1.2), (96, 1.5)):
        for seed in range(3):
            reached, stop = flow(ADDITION, d, gamma, seed)
            measured.append(reached.time_at(stop))
            predicted.append(stairs.first_stair(ADDITION).time(d, gamma, 0.5))
            without_root.append(predicted[-1] * d**0.5)
    ratio = np.array(measured) / predicted
    assert abs(ratio.mean() - 1) < 0.1
    assert np.polyfit(np.log(predicted), np.log(measured), 1)[0] == pytest.approx(1, abs=0.1)
    # A wrong theory: d^gamma in place of d^(gamma - 1/2).
    assert (np.array(measured) / without_root).max() < 0.3


def test_flow_is_accurate_and_leaves_the_model_alone():
    coarse, stop = flow(ADDITION, 16, 1.0, rtol=1e-6)
    fine, _ = flow(ADDITION, 16, 1.0, rtol=1e-10)
    assert coarse.time_at(stop * 1.001) == pytest.approx(fine.time_at(stop * 1.001), rel=1e-2)
    assert coarse.times[-1] == pytest.approx(fine.times[-1], rel=1e-5)
    assert (np.diff(fine.loss) < 0).all()
    assert np.isnan(fine.time_at(0.1))


def test_nothing_to_predict():
    """All labels equally likely whatever the token, and every token a label."""
    with pytest.raises(ValueError, match="uniform over the vocabulary"):
        stairs.first_stair(tasks.modular_addition(5, None))


def test_flow_wants_a_single_model_in_double_precision():
    for model in (
        models.EmbeddingFFN(16, 4),
        models.EmbeddingFFN(16, 4, dtype=torch.float64, runs=2),
    ):
        with pytest.raises(ValueError, match=r"single model in torch\.float64"):
            stairs.gradient_flow(model, ADDITION, 1.0)


def test_flow_wants_a_time_and_the_task_of_its_model():
    model = models.EmbeddingFFN(16, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="vocabulary of"):
        stairs.gradient_flow(model, tasks.addition(20, 30), 1.0)
    model = models.EmbeddingFFN(ADDITION.vocab_size, 4, dtype=torch.float64)
    for until in (float("nan"), -5.0, 0.0):
        with pytest.raises(ValueError, match="until: expected a finite time above zero"):
            stairs.gradient_flow(model, ADDITION, until)
