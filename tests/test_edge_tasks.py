"""Tasks at the edge of their definition: a correct answer or a clear message, never a stray NaN."""

import numpy as np
import pytest
import torch

from staircase_lib import alignment, models, signatures, tasks, training

ONE_TOKEN = tasks.from_arrays([[0], [1], [2], [2]], [2, 0, 1, 1], name="length one")
MODULUS_ONE = tasks.modular_addition(5, 6, modulus=1, length=3)
ONE_LABEL = tasks.from_arrays([[0, 1], [1, 2], [2, 0], [1, 1]], [3, 3, 3, 3], name="one label")
DEGENERATE = {task.name: task for task in (ONE_TOKEN, MODULUS_ONE, ONE_LABEL)}


def trained(task, steps=60):
    model = models.EmbeddingFFN(task.vocab_size, 8, runs=2)
    models.initialize_(model, 0.6, models.seeded([0, 1]))
    config = training.TrainConfig(steps, 0.02, "adamw", snapshot_every=20)
    return training.train(model, task, config)


@pytest.mark.parametrize("name", DEGENERATE)
def test_signatures_of_every_order_that_exists(name):
    task = DEGENERATE[name]
    for order in range(task.length):
        s = signatures.label_signature(task, order)
        assert s.shape == (len(task.anchors),) + (task.vocab_size,) * (order + 1)
        np.testing.assert_allclose(s.reshape(len(s), -1).sum(axis=1), 1, atol=1e-12)
    with pytest.raises(ValueError, match=f"less than the sequence length L={task.length}"):
        signatures.label_signature(task, task.length)


def test_a_single_token_has_no_context_and_says_so():
    with pytest.raises(ValueError, match="only 0 others around it"):
        signatures.label_signature(ONE_TOKEN, 1)
    with pytest.raises(ValueError, match="order 0 has no slot to contract"):
        signatures.project(signatures.label_signature(ONE_TOKEN, 0), np.ones((3, 1)))
    merged = tasks.merge_permutations(ONE_TOKEN)
    np.testing.assert_allclose(merged.token_probability(), ONE_TOKEN.token_probability())


def test_one_label_is_chance_one_and_the_same_signature_for_all():
    for task in (MODULUS_ONE, ONE_LABEL):
        assert task.chance == pytest.approx(1.0)
        s = signatures.label_signature(task, 0)
        label = task.labels[0]
        assert np.array_equal(s, np.tile(np.eye(task.vocab_size)[label], (len(s), 1)))


def test_the_first_order_of_one_label_is_the_context_alone():
    """Wrong variant: with the right modulus it is not."""
    s1 = signatures.label_signature(MODULUS_ONE, 1)
    np.testing.assert_allclose(s1[:, 0], signatures.context_signature(MODULUS_ONE, 1))
    right = tasks.modular_addition(5, 6, length=3)
    s1 = signatures.label_signature(right, 1)
    assert np.abs(s1[:, 0] - signatures.context_signature(right, 1)).max() > 0.01


@pytest.mark.parametrize("name", DEGENERATE)
def test_training_ends_with_the_task_solved_and_finite_numbers(name):
    run = trained(DEGENERATE[name])
    assert np.isfinite(run.metrics["value"]).all()
    np.testing.assert_allclose(run.metric("accuracy").iloc[-1], 1, atol=1e-6)
    loss = run.metric("loss")
    assert (loss.iloc[-1] < 0.2 * loss.iloc[0]).all()
    assert not run.onset(0.95)["censored"].any()


def test_alignment_with_signatures_that_are_all_equal_is_undefined_not_a_number_of_chance():
    run = trained(MODULUS_ONE)
    embeddings = run.snapshots["W_E"][-1][:, MODULUS_ONE.anchors]
    s0 = signatures.label_signature(MODULUS_ONE, 0)
    assert np.isnan(alignment.alignment(embeddings, s0)).all()
    target = alignment.cosine_similarity(embeddings[0])
    probe = alignment.fit_probe(s0, target, folds=2)
    assert np.isnan(probe.correlation)
    assert np.isfinite([probe.mse, probe.baseline_mse]).all()
    np.testing.assert_allclose(probe.predicted, 1)


def test_embeddings_that_are_one_point_have_no_geometry():
    point = np.ones((6, 4))
    target = alignment.cosine_similarity(point)
    assert alignment.effective_dimension(point) == 0
    assert not alignment.pca(point)[0].any()
    s1 = signatures.label_signature(tasks.modular_addition(6, 5), 1)
    probe = alignment.fit_probe(s1, target, folds=3)
    assert np.isnan(probe.correlation)
    assert probe.baseline_mse == 0
    assert probe.mse >= 0


def test_two_anchors_are_too_few_for_a_correlation():
    s0 = signatures.label_signature(tasks.addition(2, 4), 0)
    with pytest.raises(ValueError, match="at least 3 by 3"):
        alignment.alignment(np.eye(2), s0)
    with pytest.raises(ValueError, match="folds: expected between 2 and"):
        alignment.fit_probe(s0, np.eye(2))


def test_a_run_that_diverges_names_step_and_seeds():
    task = tasks.modular_addition(4, 5)
    model = models.EmbeddingFFN(task.vocab_size, 8, activation=(1.0, 0.5, 0.5), runs=2)
    models.initialize_(model, 0.0, models.seeded([0, 1]))
    with pytest.raises(FloatingPointError, match=r"diverged.*step \d+ for seeds \[7"):
        training.train(model, task, training.TrainConfig(50, 1e4, snapshot_every=1), (7, 8))


def test_sizes_of_zero_are_refused_by_name():
    with pytest.raises(ValueError, match="modulus: expected a positive integer, got 0"):
        tasks.modular_addition(5, 6, modulus=0)
    with pytest.raises(ValueError, match="length: expected a positive integer, got 0"):
        tasks.addition(5, 6, length=0)
    with pytest.raises(ValueError, match="tokens: expected at least one entry"):
        tasks.from_arrays(np.zeros((3, 0), dtype=int), [0, 1, 2])


def test_length_one_addition_is_the_context_alone():
    """With a separate context range the only position is the context's, so no anchor occurs."""
    with pytest.raises(ValueError, match="never do; a signature conditions on the token"):
        tasks.modular_addition(5, 6, length=1)
    shared = tasks.modular_addition(5, None, length=1)
    assert torch.equal(torch.tensor(shared.labels), torch.tensor(shared.tokens[:, 0]))
    assert trained(shared).metric("accuracy").iloc[-1].min() == pytest.approx(1.0)
