"""What a staircase is: each criterion on runs made up to have it or not, and on trained ones."""

import numpy as np
import pandas as pd
import pytest

from staircase_lib import criteria, models, signatures, tasks, training

ALL = ("W_E", "W_in", "W_U")
ADDITION = tasks.addition(6, None, length=3)
MODULAR = tasks.modular_addition(4, 6, length=3)


def made_up(task, embeddings, loss, accuracy):
    """A run of one seed from its embeddings (T, V, d) and its metrics at snapshots 0, 1, 2, ..."""
    steps = np.arange(len(loss))
    tables = [
        pd.DataFrame({"seed": 0, "step": steps, "metric": name, "value": values})
        for name, values in (("loss", loss), ("accuracy", accuracy))
    ]
    snapshots = {"W_E": np.asarray(embeddings, dtype=float)[:, None]}
    return training.Run(training.TrainConfig(3, 0.1), (0,), pd.concat(tables), steps, snapshots)


def trained(task, gamma, activation="gelu", seeds=(0, 1)):
    merged = tasks.merge_permutations(task)
    m = models.EmbeddingFFN(task.vocab_size, 48, 40, activation, runs=len(seeds))
    models.initialize_(m, gamma, models.seeded(seeds))
    config = training.TrainConfig(120, 2e-3, "adamw", snapshot_every=10, record=ALL)
    return training.train(m, merged, config, seeds)


@pytest.mark.claim("4.1")
def test_early_alignment_is_read_before_the_loss_falls():
    S0 = signatures.label_signature(ADDITION, 0)
    table = np.zeros((3, ADDITION.vocab_size, S0.shape[1]))
    wrong = np.random.default_rng(0).permutation(S0)
    table[:, ADDITION.anchors] = [wrong, S0, wrong]
    run = made_up(ADDITION, table, [2.0, 1.96, 1.8], [0, 0, 1])
    assert criteria.early_alignment(run, ADDITION) == pytest.approx([1.0])
    # Read a snapshot too late or too early, it is another geometry.
    assert criteria.early_alignment(run, ADDITION, gone=0.01) < 0.9
    assert criteria.early_alignment(run, ADDITION, gone=0.5) < 0.9


@pytest.mark.claim("4.4", "C.1")
def test_collapse_counts_only_while_nothing_is_learned():
    spread, one = np.eye(MODULAR.vocab_size), np.ones((MODULAR.vocab_size,) * 2)
    chance = MODULAR.chance
    during = made_up(MODULAR, [spread, one, spread], [2, 1, 0], [chance, chance, 1])
    after = made_up(MODULAR, [spread, one, spread], [2, 1, 0], [chance, 0.9, 1])
    assert criteria.collapse(during, MODULAR) == pytest.approx([1.0])
    assert criteria.collapse(after, MODULAR) == pytest.approx([0.0])
    never = made_up(MODULAR, [one], [2], [1.0])
    assert np.isnan(criteria.collapse(never, MODULAR)).all()


@pytest.mark.claim("X.8")
def test_shares_of_a_made_up_staircase_and_of_the_same_in_reverse():
    shares = np.array([[0.98, 0.7, 0.3, 0.1], [0.02, 0.28, 0.5, 0.3], [0.0, 0.02, 0.2, 0.6]]).T
    shares = shares[:, :, None]
    assert criteria.start(shares) == pytest.approx([0.98])
    assert criteria.handover(shares) == pytest.approx([0.1])
    assert criteria.sequence(shares) == pytest.approx([0.28 / 0.30])
    assert criteria.start(shares[::-1]) == pytest.approx([0.1])
    assert criteria.sequence(shares[::-1]) == pytest.approx([0.3 / 0.9])
    assert criteria.sequence(shares[:, [0, 2, 1]]) == pytest.approx([0.2 / 0.7])
    only_zero = np.zeros((4, 3, 1))
    only_zero[:, 0] = 1.0
    assert criteria.handover(only_zero) == 1.0
    assert criteria.sequence(only_zero) == 0.0


@pytest.mark.claim("X.1", "X.3")
def test_a_small_start_has_a_staircase_and_an_ordinary_one_has_not():
    """The real thing, at a size that trains in a second."""
    runs = {gamma: trained(ADDITION, gamma) for gamma in (0.5, 1.2)}
    r0 = {gamma: criteria.early_alignment(run, ADDITION) for gamma, run in runs.items()}
    assert (r0[1.2] > 0.8).all() and (r0[0.5] < 0.6).all()
    shares = {gamma: criteria.shares_along(run, ADDITION)[1] for gamma, run in runs.items()}
    assert (criteria.start(shares[1.2]) > 0.99).all() and (criteria.start(shares[0.5]) < 0.9).all()
    assert (criteria.handover(shares[1.2]) < 0.5).all()
    assert (criteria.sequence(shares[1.2]) > 2 / 3).all()
    clock = {gamma: criteria.collapse(trained(MODULAR, gamma), MODULAR) for gamma in (0.5, 1.2)}
    assert (clock[1.2] > 0.95).all() and (clock[0.5] < 0.6).all()


def test_shares_along_a_run():
    run = trained(MODULAR, 1.2, "identity")
    steps, shares = criteria.shares_along(run, MODULAR, "identity", points=8)
    assert steps[0] == 0 and steps[-1] == run.steps[-1] and (np.diff(steps) > 0).all()
    assert shares.shape == (len(steps), 3, 2)
    np.testing.assert_allclose(shares[:, 0], 1.0)  # a linear layer has nothing but order 0
    gelu = criteria.shares_along(run, MODULAR, points=8)[1]
    np.testing.assert_allclose(gelu.sum(axis=1), 1.0)
    assert (gelu[-1, 1:] > 0).all()
    merged = tasks.merge_permutations(MODULAR)
    np.testing.assert_allclose(criteria.shares_along(run, merged, points=8)[1], gelu, atol=1e-12)
    without = training.Run(run.config, run.seeds, run.metrics, run.steps, {"W_E": steps})
    with pytest.raises(ValueError, match=r"without \['W_in', 'W_U'\]; train with TrainConfig"):
        criteria.shares_along(without, MODULAR)
