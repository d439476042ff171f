"""Models: the formula, the initialization scale, and independent runs."""

import math

import numpy as np
import pytest
import torch

from staircase_lib import models, tasks, training

F64 = torch.float64


def build(kind, runs=None, d=12):
    if kind == "ffn":
        return models.EmbeddingFFN(9, d, 7, dtype=F64, runs=runs)
    return models.AttentionOnly(9, d, 4, dtype=F64, runs=runs)


def test_ffn_is_the_paper_formula():
    model = build("ffn")
    models.initialize_(model, 0.5, torch.Generator().manual_seed(0))
    tokens = torch.tensor([[0, 1, 1], [8, 2, 5]])
    z = model.W_E[tokens].sum(1) @ model.W_in
    expected = torch.nn.functional.gelu(z) @ model.W_U
    torch.testing.assert_close(model(tokens), expected, rtol=1e-13, atol=1e-14)


def test_attention_is_the_paper_formula():
    model = build("attention")
    models.initialize_(model, 0.3, torch.Generator().manual_seed(0))
    tokens = torch.tensor([[0, 1, 1], [8, 2, 5]])
    logits = model(tokens)
    for row, sequence in enumerate(tokens):
        h = model.W_E[sequence] + model.W_P[:3]
        scores = (h[-1] @ model.W_Q) @ (h @ model.W_K).T / math.sqrt(12)
        a = torch.softmax(scores, 0)
        torch.testing.assert_close(model.attention(tokens)[row], a)
        torch.testing.assert_close(logits[row], a @ h @ model.W_V @ model.W_U)


def test_attention_sees_order_and_ffn_does_not():
    tokens = torch.tensor([[0, 1, 2], [1, 0, 2]])
    for kind, same in (("ffn", True), ("attention", False)):
        model = models.initialize_(build(kind), 0.3, torch.Generator().manual_seed(0))
        first, second = model(tokens)
        assert torch.allclose(first, second, atol=1e-12) == same


@pytest.mark.claim("3.3")
@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("kind", ["ffn", "attention"])
def test_every_tensor_starts_at_its_standard_deviation(kind, gamma):
    model = (
        models.EmbeddingFFN(150, 80, 120) if kind == "ffn" else models.AttentionOnly(150, 80, 60)
    )
    models.initialize_(model, gamma, torch.Generator().manual_seed(1))
    width = {"W_E": 80, "W_in": 80, "W_U": 120 if kind == "ffn" else 80}
    for name, parameter in model.named_parameters():
        ratio = parameter.std().item() / width.get(name, 80) ** -gamma
        # the sample standard deviation of n normal numbers spreads by 1/sqrt(2n)
        assert abs(ratio - 1) < 4 / math.sqrt(2 * parameter.numel()), name


@pytest.mark.claim("3.3")
def test_the_check_of_scale_rejects_another_width():
    """Wrong variant: d_in of the unembedding taken as the vocabulary size."""
    model = models.EmbeddingFFN(150, 80, 120)
    models.initialize_(model, 1.2, torch.Generator().manual_seed(1))
    ratio = model.W_U.std().item() / 150**-1.2
    assert abs(ratio - 1) > 4 / math.sqrt(2 * model.W_U.numel())


@pytest.mark.parametrize("kind", ["ffn", "attention"])
def test_a_batch_of_runs_is_the_runs_one_by_one(kind):
    batch = models.initialize_(build(kind, runs=3), 0.6, models.seeded([5, 6, 7]))
    tokens = torch.tensor([[0, 1, 1], [8, 2, 5]])
    for run, seed in enumerate((5, 6, 7)):
        alone = models.initialize_(build(kind), 0.6, models.seeded([seed])[0])
        torch.testing.assert_close(batch(tokens)[run], alone(tokens), rtol=1e-12, atol=1e-14)


def test_both_precisions_start_alike():
    single = models.EmbeddingFFN(9, 8)
    double = models.EmbeddingFFN(9, 8, dtype=F64)
    for model in (single, double):
        models.initialize_(model, 1.3, torch.Generator().manual_seed(3))
    torch.testing.assert_close(single.W_in.double(), double.W_in, rtol=1e-7, atol=0)


def test_fixed_embeddings_are_the_trainable_model_on_their_scaled_table():
    table = np.random.default_rng(0).normal(size=(9, 12)) * 7
    fixed = models.FixedEmbeddingFFN(table, 7, dtype=F64)
    models.initialize_(fixed, 0.8, torch.Generator().manual_seed(0))
    assert fixed.scale.item() == pytest.approx(12**-0.8)
    same = build("ffn")
    state = fixed.state_dict()
    embeddings = state["scale"] * torch.tensor(table) / np.sqrt((table**2).mean())
    same.load_state_dict({"W_E": embeddings, "W_in": state["W_in"], "W_U": state["W_U"]})
    tokens = torch.tensor([[0, 1, 1], [8, 2, 5]])
    torch.testing.assert_close(fixed(tokens), same(tokens), rtol=1e-12, atol=1e-14)


@pytest.mark.claim("7.2")
def test_fixed_embeddings_keep_their_directions_and_train_their_scale():
    task = tasks.addition(3, None)
    table = np.random.default_rng(0).normal(size=(2, task.vocab_size, 8))
    model = models.FixedEmbeddingFFN(table, runs=2)
    models.initialize_(model, 0.6, models.seeded((0, 1)))
    before = model.table.clone(), model.scale.detach().clone()
    config = training.TrainConfig(50, 0.02, "adamw", record=("scale",))
    run = training.train(model, task, config)
    assert torch.equal(model.table, before[0])
    assert bool((model.scale.detach() != before[1]).all())
    assert run.metric("loss").iloc[-1].max() < run.metric("loss").iloc[0].min()
    assert run.snapshots["scale"].shape[1:] == (2, 1, 1)


def test_polynomial_activation():
    model = models.EmbeddingFFN(5, 4, activation=[1.0, -2.0, 0.5], dtype=F64)
    z = torch.linspace(-2, 2, 9, dtype=F64)
    torch.testing.assert_close(model.sigma(z), z - 2 * z**2 + 0.5 * z**3)


def test_bad_input():
    with pytest.raises(ValueError, match="activation.*'swish'"):
        models.EmbeddingFFN(5, 4, activation="swish")
    with pytest.raises(ValueError, match="finite coefficients"):
        models.EmbeddingFFN(5, 4, activation=[1.0, float("nan")])
    with pytest.raises(ValueError, match="vocab_size"):
        models.EmbeddingFFN(0, 4)
    for table, runs in ((np.ones(3), None), (np.ones((2, 3, 4)), None), (np.ones((2, 3, 4)), 3)):
        with pytest.raises(ValueError, match=r"table: expected shape .* got \("):
            models.FixedEmbeddingFFN(table, runs=runs)
    for table in (np.zeros((3, 4)), np.full((3, 4), np.nan)):
        with pytest.raises(ValueError, match="table: expected finite entries, not all zero"):
            models.FixedEmbeddingFFN(table)
    model = build("ffn", runs=2)
    for gamma in (float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match="gamma: expected a finite number"):
            models.initialize_(model, gamma, torch.Generator())
    with pytest.raises(ValueError, match=r"one per run \(2\), got 3"):
        models.initialize_(model, 1.0, models.seeded(range(3)))
    with pytest.raises(ValueError, match=r"ids in \[0, 9\), got values from 0 to 9"):
        model(torch.tensor([[0, 9]]))
    with pytest.raises(ValueError, match="integer tensor"):
        model(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="at most 4 positions, got 5"):
        build("attention")(torch.zeros(1, 5, dtype=torch.long))


def test_projection_before_the_gather_is_what_a_plain_lookup_gives_in_training_precision():
    task = tasks.addition(5, 8)
    model = models.EmbeddingFFN(task.vocab_size, 16)
    models.initialize_(model, 0.8, torch.Generator().manual_seed(0))
    tokens = torch.tensor(task.tokens)
    plain = torch.nn.functional.gelu(model.W_E[tokens].sum(1) @ model.W_in) @ model.W_U
    np.testing.assert_allclose(
        model(tokens).detach().numpy(), plain.detach().numpy(), rtol=1e-4, atol=1e-7
    )
