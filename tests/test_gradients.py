"""Decompositions by order and by path against automatic differentiation and the formulas."""

from itertools import product
from math import factorial

import numpy as np
import pytest
import torch

from staircase_lib import gradients, models, signatures, tasks, training

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


def power(scales, values):
    """Slope of the straight line through a log–log plot."""
    return float(np.polyfit(np.log(scales), np.log(values), 1)[0])


def scaled(model, scale, names=None):
    """Multiply some parameters, default all, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if names is None or name in names:
                parameter.mul_(scale)
    return model


@pytest.mark.claim("4.7")
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


@pytest.mark.claim("4.8")
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


@pytest.mark.claim("X.1")
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


@pytest.mark.parametrize("name", ["length three", "repeats and weights", "length one"])
def test_formula_and_inclusion_exclusion_agree(name):
    """Both routes to the same orders; a sixth power is no match for a fifth."""
    task, coefficients = TASKS[name], [1.0, 0.7, -0.3, 0.2, 0.5]
    model = models.EmbeddingFFN(task.vocab_size, 5, 6, coefficients, F64)
    models.initialize_(model, 0.3, torch.Generator().manual_seed(1))
    projected = (model.W_E @ model.W_in).detach()
    z = [projected[column] for column in torch.tensor(task.tokens).T]
    one = gradients._slopes_by_inclusion(model, z)
    other = gradients._slopes_by_formula(coefficients, z)
    wrong = gradients._slopes_by_formula([*coefficients, 1.0], z)
    for i, m in product(range(task.length), repeat=2):
        torch.testing.assert_close(one[i][m], other[i][m], rtol=1e-11, atol=1e-13)
        assert not torch.allclose(one[i][m], wrong[i][m], rtol=1e-6)


def test_the_slope_is_evaluated_once_for_each_set_of_positions():
    task = TASKS["repeats and weights"]  # length four
    model = models.EmbeddingFFN(task.vocab_size, 5, dtype=F64)
    models.initialize_(model, 0.5, torch.Generator().manual_seed(0))
    calls, sigma = [], model.sigma

    def counting(z):
        calls.append(z.shape)
        return sigma(z)

    model.sigma = counting
    gradients.gradient_by_order(model, task)
    assert len(calls) == 2**4 - 1 + 1  # the sets, and the logits
    calls.clear()
    gradients.gradient_by_order(model, task, block=2)
    assert {shape[0] for shape in calls} == {1, 2}  # three rows; never more than a block at once


def test_high_orders_of_a_polynomial_survive_a_small_start():
    """Order 2 is 1e-20 of order 0 here; by inclusion–exclusion it would be rounding."""
    task = TASKS["length three"]
    model = models.EmbeddingFFN(task.vocab_size, 16, activation=(1.0, 0.7, -0.3), dtype=F64)
    models.initialize_(model, 0.5, torch.Generator().manual_seed(0))
    reference = gradients.gradient_by_order(scaled(model, 1e-2), task)
    parts = gradients.gradient_by_order(scaled(model, 1e-3), task)
    # E, W and U each a thousand times smaller: W U of order 0, and (W E)^2 more of order 2.
    assert parts[2].norm() / reference[2].norm() == pytest.approx(1e-18, rel=1e-3)
    assert parts[2].norm() < 1e-15 * parts[0].norm()


NOT_EXCHANGEABLE = tasks.from_function(
    lambda a, b, c: (3 * a + b) % 4 + c // 9, [range(3), range(2, 5), range(5, 9)], vocab_size=9
)


@pytest.mark.claim("4.7")
@pytest.mark.parametrize("task", [*TASKS.values(), NOT_EXCHANGEABLE], ids=lambda t: t.name)
def test_signatures_give_the_gradient_up_to_the_size_of_the_logits(task):
    """Theorem 1 and the order of its error, whether positions are exchangeable or not."""
    scales = 10 ** np.linspace(-2.5, -0.5, 5)

    def errors(names, activation=(1.0, 0.7, -0.3, 0.2), order=None, data=task):
        found = []
        for scale in scales:
            model = models.EmbeddingFFN(task.vocab_size, 16, 12, (1.0, 0.7, -0.3, 0.2), F64)
            models.initialize_(model, 0.5, torch.Generator().manual_seed(3))
            exact = gradients.gradient_by_order(scaled(model, scale, names), task)
            theory = models.EmbeddingFFN(task.vocab_size, 16, 12, activation, F64)
            theory.load_state_dict(model.state_dict())
            stated = gradients.gradient_from_signatures(theory, data, block=7)
            assert stated.shape == exact.shape
            pick = slice(None) if order is None else order
            found.append(relative(stated[pick], exact[pick]))
        return power(scales, found)

    assert errors(None) == pytest.approx(3, abs=0.1)
    assert errors(["W_E"]) == pytest.approx(1, abs=0.1)
    for order in range(min(task.length, 4)):
        assert errors(None, order=order) == pytest.approx(3, abs=0.1)
    # Wrong theories keep a constant error: a coefficient off by one, shuffled labels.
    assert abs(errors(None, activation=(2.0, 0.7, -0.3, 0.2))) < 0.1
    shuffled = tasks.from_arrays(
        task.tokens, np.roll(task.labels, 1), task.weights, task.vocab_size, task.anchors
    )
    assert abs(errors(None, data=shuffled)) < 0.1


def test_runs_of_a_batch_have_their_own_parts():
    task = TASKS["repeats and weights"]
    batch = models.EmbeddingFFN(task.vocab_size, 6, activation=(1.0, 0.5), dtype=F64, runs=2)
    models.initialize_(batch, 0.5, models.seeded((4, 5)))
    together = gradients.gradient_from_signatures(batch, task)
    for run, seed in enumerate((4, 5)):
        single = models.EmbeddingFFN(task.vocab_size, 6, activation=(1.0, 0.5), dtype=F64)
        models.initialize_(single, 0.5, torch.Generator().manual_seed(seed))
        alone = gradients.gradient_from_signatures(single, task)
        torch.testing.assert_close(together[:, run], alone, rtol=1e-12, atol=0)


def attention_model(task, gamma=0.5, runs=None, length=None, d=6):
    model = models.AttentionOnly(task.vocab_size, d, length or task.length, F64, runs=runs)
    return models.initialize_(model, gamma, models.seeded(range(runs or 1)))


@pytest.mark.claim("5.1")
@pytest.mark.parametrize("name", TASKS)
def test_paths_sum_to_the_gradient(name):
    task = TASKS[name]
    for runs, steps in ((None, 0), (2, 0), (2, 15)):
        model = attention_model(task, runs=runs, length=task.length + 1)
        if steps:
            training.train(model, task, training.TrainConfig(steps, 0.02, "adamw"))
        parts = gradients.gradient_by_path(model, task, block=5)
        assert set(parts) == {"value", "key", "query"}
        assert all(part.shape == (task.length, *model.W_E.shape) for part in parts.values())
        total = torch.stack(list(parts.values())).sum((0, 1))
        assert relative(total, descent(model, task)) < 1e-12


@pytest.mark.claim("5.2")
def test_value_part_is_the_attention_weighted_signature():
    """Claim 5.2, and a theory that ignores attention, which it must reject."""
    task = TASKS["repeats and weights"]

    def error(scale, uniform=False):
        model = scaled(attention_model(task, gamma=0.0), scale)
        value = gradients.gradient_by_path(model, task)["value"]
        attention = model.attention(torch.tensor(task.tokens)).detach().numpy()
        if uniform:
            attention = np.full_like(attention, 1 / task.length)
        mass, signature = signatures.attention_signature(task, attention)
        drive = mass[..., None] * (signature - 1 / task.vocab_size)
        readout = (model.W_V @ model.W_U).T.detach()
        stated = torch.tensor(drive).transpose(0, 1) @ readout
        return relative(stated, value[:, torch.tensor(task.anchors)])

    scales = 10 ** np.linspace(-2.5, -0.5, 5)
    assert power(scales, [error(s) for s in scales]) == pytest.approx(3, abs=0.1)
    # Where attention is not uniform it matters.
    assert error(1.0, uniform=True) > 0.1


@pytest.mark.claim("5.1")
def test_key_and_query_are_not_interchangeable():
    task = TASKS["length three"]
    model = attention_model(task)
    parts = gradients.gradient_by_path(model, task)
    swapped = attention_model(task)
    with torch.no_grad():
        swapped.W_Q.copy_(model.W_K)
        swapped.W_K.copy_(model.W_Q)
    wrong = gradients.gradient_by_path(swapped, task)
    for name in ("key", "query"):
        assert relative(wrong[name], parts[name]) > 0.1
    assert relative(parts["value"].sum(0), descent(model, task)) > 1e-6
    assert parts["query"][:-1].abs().max() == 0


def test_bad_input():
    with pytest.raises(TypeError, match="EmbeddingFFN, got AttentionOnly"):
        gradients.gradient_by_order(models.AttentionOnly(7, 4, 2), TASKS["length two"])  # type: ignore
    with pytest.raises(ValueError, match="vocabulary of 7, got 9"):
        gradients.gradient_by_order(models.EmbeddingFFN(9, 4), TASKS["length two"])
    with pytest.raises(TypeError, match="AttentionOnly, which tells positions apart"):
        gradients.gradient_from_signatures(models.AttentionOnly(7, 4, 2), TASKS["length two"])  # type: ignore
    with pytest.raises(ValueError, match="polynomial activation c_1..c_K, got 'relu'"):
        gradients.gradient_from_signatures(
            models.EmbeddingFFN(7, 4, activation="relu"), TASKS["length two"]
        )
    with pytest.raises(TypeError, match="AttentionOnly, got EmbeddingFFN"):
        gradients.gradient_by_path(models.EmbeddingFFN(7, 4), TASKS["length two"])  # type: ignore
