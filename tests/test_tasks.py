"""Tasks: what they contain, and what they refuse."""

import numpy as np
import pytest

from staircase_lib import tasks


def test_addition_is_every_pair_with_its_sum():
    task = tasks.addition(3, 5)
    expected = {(a, 3 + x, a + x) for a in range(3) for x in range(5)}
    rows = zip(*task.tokens.T, task.labels, strict=True)
    assert {tuple(map(int, row)) for row in rows} == expected
    assert len(task.labels) == 15
    assert task.weights.sum() == pytest.approx(1, abs=1e-15)


def test_length_three_modular_addition():
    task = tasks.modular_addition(4, 6, length=3)
    values = task.tokens - np.array([0, 0, 4])
    assert len(task.labels) == 4 * 4 * 6
    assert (task.labels == values.sum(axis=1) % 6).all()


def test_shared_tokens_and_modulus():
    task = tasks.modular_addition(6, None, modulus=4)
    assert (task.labels == task.tokens.sum(axis=1) % 4).all()
    assert task.tokens.max() == 5
    assert task.vocab_size == 6


def test_modulus_one_is_a_task_with_one_label():
    task = tasks.modular_addition(3, 4, modulus=1)
    assert set(task.labels.tolist()) == {0}
    assert task.chance == 1.0


def test_parity_counts_anchor_tokens():
    task = tasks.parity(2, 3, length=3)
    assert len(task.labels) == 5**3
    assert (task.labels == (task.tokens < 2).sum(axis=1) % 2).all()


def test_min_max_follows_its_operator():
    task = tasks.min_max(5)
    op, a, b = task.tokens.T
    assert (task.labels == np.where(op == 5, np.minimum(a, b), np.maximum(a, b))).all()


def test_prescribed_labels_are_fixed_draws_of_the_distribution():
    p = np.array([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]])
    task = tasks.prescribed_labels(p, 4000, np.random.default_rng(0))
    for anchor, row in enumerate(p):
        mine = task.labels[task.tokens[:, 0] == anchor]
        histogram = np.bincount(mine, minlength=3) / len(mine)
        assert np.abs(histogram - row).max() < 4 * np.sqrt(0.25 / 4000)
        assert (histogram[row == 0] == 0).all()


def test_token_probability_counts_repeats_twice():
    task = tasks.from_arrays([[0, 0], [0, 1]], [0, 1], weights=[1, 3])
    assert task.token_probability([0, 1]) == pytest.approx([0.25 + 0.375, 0.375])


def test_merge_permutations_keeps_the_distribution_of_multisets():
    task = tasks.addition(5, None)
    merged = tasks.merge_permutations(task)
    assert len(merged.labels) == 15
    assert merged.weights.sum() == pytest.approx(1)
    assert merged.token_probability() == pytest.approx(task.token_probability())


def test_merge_permutations_keeps_sequences_apart_that_differ_in_label():
    task = tasks.from_arrays([[0, 1], [1, 0]], [0, 1])
    assert len(tasks.merge_permutations(task).labels) == 2


def test_extreme_weights_keep_their_ratios():
    task = tasks.from_arrays([[0], [1]], [0, 0], weights=[1e308, 1e308])
    assert task.weights.tolist() == [0.5, 0.5]


def test_arrays_cannot_be_changed_behind_the_task():
    source = np.array([[0, 1]])
    task = tasks.from_arrays(source, [0])
    source[0, 0] = 1
    assert task.tokens[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        task.tokens[0, 0] = 1


PAIR = [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"tokens": [[0, 7]], "labels": [0], "vocab_size": 3}, ValueError, r"\[0, 3\).*0 to 7"),
        ({"tokens": [[-1, 0]], "labels": [0]}, ValueError, "from -1"),
        ({"tokens": PAIR, "labels": [0, 9], "vocab_size": 3}, ValueError, "labels"),
        ({"tokens": PAIR, "labels": [0]}, ValueError, "one per sequence, that is 2, got 1"),
        ({"tokens": [[0, 1], [2]], "labels": [0, 1]}, ValueError, "rows of different lengths"),
        ({"tokens": PAIR, "labels": [0, 1], "vocab_size": True}, ValueError, "positive integer"),
        ({"tokens": [0, 1], "labels": [0, 1]}, ValueError, r"shape \(n, L\)"),
        ({"tokens": [[0.5, 1.0]], "labels": [0]}, TypeError, "integers, got dtype float64"),
        ({"tokens": PAIR, "labels": [0, 1], "weights": [1, -1]}, ValueError, "non-negative.*row 1"),
        ({"tokens": PAIR, "labels": [0, 1], "weights": [1, np.nan]}, ValueError, "finite.*row 1"),
        ({"tokens": PAIR, "labels": [0, 1], "weights": [np.inf, 1]}, ValueError, "finite.*row 0"),
        ({"tokens": PAIR, "labels": [0, 1], "weights": [0, 0]}, ValueError, "positive sum"),
        ({"tokens": PAIR, "labels": [0, 1], "weights": [1]}, ValueError, r"shape \(2,\)"),
        ({"tokens": np.zeros((0, 2), int), "labels": []}, ValueError, "at least one"),
        ({"tokens": np.zeros((2, 0), int), "labels": [0, 0]}, ValueError, "at least one"),
        ({"tokens": PAIR, "labels": [0, 1], "anchors": [5], "vocab_size": 9}, ValueError, "never"),
        ({"tokens": PAIR, "labels": [0, 1], "anchors": [0, 0]}, ValueError, "distinct"),
        ({"tokens": PAIR, "labels": [0, 1], "vocab_size": 0}, ValueError, "positive integer"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(arguments, error, words):
    with pytest.raises(error, match=words):
        tasks.from_arrays(**arguments)


def test_a_function_must_return_integers():
    with pytest.raises(TypeError, match=r"integer label, got 0\.5"):
        tasks.from_function(lambda a, b: (a + b) / 2, [[0], [1]])
    with pytest.raises(ValueError, match="at least one token"):
        tasks.from_function(lambda a, b: 0, [[0], []])


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="modulus: expected a positive integer, got 0"):
        tasks.modular_addition(3, 3, modulus=0)
    with pytest.raises(ValueError, match="n_anchors"):
        tasks.addition(0, 3)
