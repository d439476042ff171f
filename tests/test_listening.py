"""Attention shares and embedding speeds against what they must be by construction."""

import numpy as np
import pytest
import torch

from staircase_lib import gradients, listening, models, tasks, training


@pytest.fixture(scope="module")
def trained():
    task = tasks.parity(2, 3, 3)
    model = models.AttentionOnly(task.vocab_size, 8, task.length, torch.float64, runs=2)
    models.initialize_(model, 0.6, models.seeded((0, 1)))
    config = training.TrainConfig(
        6, 0.05, snapshot_every=1, record=tuple(dict(model.named_parameters()))
    )
    return task, model, training.train(model, task, config, (0, 1))


@pytest.mark.claim("5.3")
def test_attention_is_that_of_each_snapshot(trained):
    task, model, run = trained
    attention = listening.attention_through_training(model, task, run)
    assert attention.shape == (len(run.steps), 2, *task.tokens.shape)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-12)
    for index in (0, len(run.steps) - 1):
        training.restore_(model, run, index)
        expected = model.attention(torch.tensor(task.tokens)).detach().numpy()
        np.testing.assert_allclose(attention[index], expected, atol=1e-14)
    assert np.abs(attention[-1] - attention[0]).max() > 1e-4


def test_a_single_run_has_an_axis_of_one():
    task = tasks.addition(3, None)
    model = models.initialize_(
        models.AttentionOnly(task.vocab_size, 4, 2), 1.0, torch.Generator().manual_seed(0)
    )
    config = training.TrainConfig(1, 0.1, record=tuple(dict(model.named_parameters())))
    run = training.train(model, task, config)
    assert listening.attention_through_training(model, task, run).shape == (2, 1, 9, 2)


def test_share_of_uniform_attention_is_the_share_of_positions():
    task = tasks.parity(2, 3, 3)
    uniform = np.full((4, *task.tokens.shape), 1 / 3)
    # one or two anchors of three, 2·3·3·3 and 3·2·2·3 sequences
    expected = (54 * 1 / 3 + 36 * 2 / 3) / 90
    np.testing.assert_allclose(listening.attention_share(task, uniform), np.full(4, expected))
    noise = listening.attention_share(task, uniform, [2, 3, 4])
    np.testing.assert_allclose(noise, 1 - expected)


@pytest.mark.claim("5.4")
def test_share_counts_weights_and_only_sequences_with_a_choice():
    task = tasks.from_arrays([[0, 1], [1, 1], [1, 0]], [0, 0, 0], weights=[1, 5, 3], anchors=[0])
    attention = np.array([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]])
    assert listening.attention_share(task, attention) == pytest.approx((0.9 + 3 * 0.4) / 4)


def test_share_needs_a_choice_and_the_right_shape():
    everything = tasks.from_function(lambda *x: 1, [range(2)] * 3, name="parity without noise")
    with pytest.raises(ValueError, match="only asked tokens occur in each of parity without"):
        listening.attention_share(everything, np.full((8, 3), 1 / 3))
    with pytest.raises(ValueError, match="none asked"):
        listening.attention_share(tasks.parity(2, 3), np.full((125, 3), 1 / 3), [4, 5][1:])
    with pytest.raises(ValueError, match=r"\(\.\.\., 8, 3\)"):
        listening.attention_share(everything, np.ones((8, 2)))


@pytest.mark.claim("5.4")
def test_speed_under_gradient_descent_is_the_gradient(trained):
    task, model, run = trained
    steps, speed = listening.embedding_speed(run)
    assert steps[0] == 0.5 and speed.shape == (len(run.steps) - 1, 2, task.vocab_size)
    for index in range(len(speed)):
        training.restore_(model, run, index)
        parts = gradients.gradient_by_path(model, task)
        force = sum(part.sum(0) for part in parts.values())
        assert isinstance(force, torch.Tensor)
        expected = 0.05 * torch.linalg.vector_norm(force, dim=-1).numpy()
        np.testing.assert_allclose(speed[index], expected, rtol=1e-6)


def test_speed_needs_two_snapshots(trained):
    _, _, run = trained
    one = training.Run(run.config, run.seeds, run.metrics, run.steps[:1], run.snapshots)
    with pytest.raises(ValueError, match="two snapshots"):
        listening.embedding_speed(one)
