"""The feed-forward loss in closed form: equal to automatic differentiation, and when it is used."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from staircase_lib import models, objective, tasks, training

F64 = torch.float64
#: Repeated tokens, permutations, several labels of one sequence, a weight of zero, unused tokens.
TASK = tasks.from_arrays(
    [[0, 1, 1], [1, 0, 1], [2, 2, 2], [3, 0, 1], [0, 1, 1], [5, 4, 3], [4, 4, 0]],
    [0, 0, 1, 6, 3, 2, 1],
    weights=[1, 2, 3, 4, 5, 0, 6],
    vocab_size=8,
)
KINDS = ["gelu", "relu", "tanh", "identity", (0.5, -0.4, 0.1)]


def build(activation="gelu", runs=2, dtype=F64, task=TASK, fixed=False):
    seeds = models.seeded(range(runs or 1))
    if fixed:
        table = np.random.default_rng(0).normal(size=(task.vocab_size, 6))
        model = models.FixedEmbeddingFFN(table, 10, activation, dtype, runs=runs)
    else:
        model = models.EmbeddingFFN(task.vocab_size, 6, 10, activation, dtype, runs=runs)
    return models.initialize_(model, 0.3, seeds)


def by_differentiation(model, task):
    """Loss, accuracy and gradients as one writes them down."""
    tokens, labels = torch.tensor(task.tokens), torch.tensor(task.labels)
    weights = torch.tensor(task.weights, dtype=model.W_U.dtype)
    logits = model(tokens)
    logits = logits[None] if model.runs is None else logits
    p = logits.softmax(-1)[:, torch.arange(len(labels)), labels]
    loss = -p.log() @ weights
    accuracy = (logits.argmax(-1) == labels).to(weights.dtype) @ weights
    return loss, accuracy, torch.autograd.grad(loss.sum(), list(model.parameters()))


def in_closed_form(model, task, *, measure=True):
    loss, accuracy = objective.Objective(model, task)(measure)
    return loss, accuracy, torch.autograd.grad(loss.sum(), list(model.parameters()))


def off(ours, reference):
    """Largest difference, relative to the largest entry."""
    pairs = zip(ours, reference, strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("runs", [None, 2])
@pytest.mark.parametrize("activation", KINDS)
def test_it_is_automatic_differentiation(activation, runs, fixed, monkeypatch):
    model = build(activation, runs, fixed=fixed)
    loss, accuracy, gradients = by_differentiation(model, TASK)
    for units in (2**18, 25):  # one block; blocks of two sequences and a rest
        monkeypatch.setattr(objective, "_UNITS", units)
        ours = in_closed_form(model, TASK)
        assert off(ours[:1], [loss]) < 1e-13
        torch.testing.assert_close(ours[1], accuracy)
        assert off(ours[2], gradients) < 1e-12
    # Only the gradient: the same one.
    loss, accuracy, gradients = in_closed_form(model, TASK, measure=False)
    assert all(torch.equal(a, b) for a, b in zip(gradients, ours[2], strict=True))
    assert bool(loss.isnan().all()) and bool(accuracy.isnan().all())


@pytest.mark.parametrize("wrong", ["counts", "weights", "labels"])
def test_the_check_rejects_wrong_merging(wrong):
    """Wrong variants: a token's repetitions dropped, sequences weighted alike, a label lost."""
    model = build()
    block = objective.Objective(model, TASK).blocks[0]
    if wrong == "counts":
        bounds = block.bounds.clone()
        bounds[2:] -= 1  # the last occurrence of token 1 goes to token 2
        parts = {"bounds": bounds}
    elif wrong == "weights":
        parts = {"weights": torch.full_like(block.weights, 1 / len(block.weights))}
    else:
        rows, labels = block.cells
        parts = {"cells": (rows[1:], labels[1:]), "cell_weights": block.cell_weights[1:]}
    changed = objective.Objective(model, TASK)
    changed.blocks = [type(block)(**{**block.__dict__, **parts})]
    gradients = torch.autograd.grad(changed()[0].sum(), list(model.parameters()))
    assert off(gradients, by_differentiation(model, TASK)[2]) > 1e-2


def test_in_training_precision_it_rounds_as_automatic_differentiation_does():
    task = tasks.addition(8, 30)
    exact, single = (build(dtype=dtype, task=task) for dtype in (F64, torch.float32))
    reference = by_differentiation(exact, task)[2]
    ours, usual = (f(single, task)[2] for f in (in_closed_form, by_differentiation))
    assert off([x.double() for x in ours], reference) < 1e-5
    assert off([x.double() for x in ours], reference) < 10 * off(
        [x.double() for x in usual], reference
    )


def gone(*_):
    raise RuntimeError("_linear_pointwise() is missing value for argument")


@pytest.mark.parametrize(
    "operations",
    [
        SimpleNamespace(),
        SimpleNamespace(_linear_pointwise=gone),
        SimpleNamespace(_linear_pointwise=lambda a, b: a @ b),
        SimpleNamespace(_linear_pointwise=lambda a, b, *_: a @ b.T + 1),
        SimpleNamespace(_linear_pointwise=lambda a, b, *_: (a @ b.T).tolist()),
    ],
    ids=["not there", "refuses", "other signature", "other meaning", "other type"],
)
def test_without_the_private_product_training_is_the_same(operations, monkeypatch):
    """In float32, on a processor for which it would be chosen."""
    task = tasks.addition(8, 30)
    reference = by_differentiation(build(task=task), task)
    usual = in_closed_form(build(dtype=torch.float32, task=task), task)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.ops, "mkldnn", operations)
    objective._single_product.cache_clear()
    try:
        assert objective._single_product() is torch.mm
        without = in_closed_form(build(dtype=torch.float32, task=task), task)
    finally:
        objective._single_product.cache_clear()
    torch.testing.assert_close(without[0], usual[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(without[1], usual[1])
    assert off([x.double() for x in without[2]], reference[2]) < 1e-5
    assert off(without[2], usual[2]) < 1e-5


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_comes_out_the_same(optimizer, monkeypatch):
    config = training.TrainConfig(40, 0.05, optimizer, measure_every=1)
    used = []
    monkeypatch.setattr(training, "Objective", lambda *a: used.append(a) or objective.Objective(*a))
    runs = []
    for largest in (2**15, 0):  # as one batch; run by run
        monkeypatch.setattr(training, "_ONE_BY_ONE", largest)
        runs.append(training.train(build(), TASK, config))
    assert len(used) == 1
    batch, one_by_one = runs
    np.testing.assert_allclose(one_by_one.metric("loss"), batch.metric("loss"), rtol=1e-10)
    np.testing.assert_allclose(one_by_one.metric("accuracy"), batch.metric("accuracy"))
    np.testing.assert_allclose(
        one_by_one.snapshots["W_E"], batch.snapshots["W_E"], rtol=1e-8, atol=1e-12
    )


class Other(models.EmbeddingFFN):
    """Reads its tokens in another way."""


def test_it_is_used_where_it_is_right_and_pays(monkeypatch):
    chosen = training._objective
    full = training.TrainConfig(1, 0.1)
    assert chosen(build(), TASK, full) is None  # too small
    monkeypatch.setattr(training, "_ONE_BY_ONE", 0)
    for fixed in (False, True):
        assert isinstance(chosen(build(fixed=fixed), TASK, full), objective.Objective)
    assert chosen(build(), TASK, training.TrainConfig(1, 0.1, batch_size=2)) is None
    assert chosen(Other(8, 6, runs=2), TASK, full) is None
    assert chosen(models.AttentionOnly(8, 6, 3, runs=2), TASK, full) is None
