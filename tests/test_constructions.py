"""What signatures give without training: embeddings and the additive rule."""

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from staircase_lib import alignment, constructions, models, signatures, tasks
from staircase_lib.derivations import min_max


def exact_accuracy(task, table):
    margins = constructions.margins(constructions.additive_scores(task, table), task.labels)
    return task.weights[margins > 1e-12].sum()


def test_scores_are_sums_of_what_each_token_says():
    task = tasks.from_arrays([[0, 0, 2], [1, 2, 0]], [1, 0], weights=[1, 3], vocab_size=4)
    table = constructions.signature_table(task)
    assert np.array_equal(table[3], np.zeros(4))  # never occurs
    expected = [
        sum(signatures.label_signature(task, 0, [token])[0] for token in row) for row in task.tokens
    ]
    np.testing.assert_allclose(constructions.additive_scores(task, table), expected, atol=1e-15)
    doubled = constructions.additive_scores(task, table * np.array([2, 1, 1, 1])[:, None])
    np.testing.assert_allclose(doubled - expected, table[0] * [[2], [1]], atol=1e-15)


def test_margins_tell_right_from_tied_and_wrong():
    scores = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 5.0, 1.0]])
    assert constructions.margins(scores, [0, 0, 2]).tolist() == [1.0, 0.0, -4.0]
    assert constructions.margins(np.stack([scores, -scores]), [0, 0, 2]).shape == (2, 3)


@pytest.mark.claim("7.4")
@pytest.mark.parametrize("n_numbers", [2, 3, 4, 7, 12])
def test_min_max_is_solved_by_adding_with_the_derived_margin(n_numbers):
    task = tasks.min_max(n_numbers)
    table = constructions.signature_table(task)
    margins = constructions.margins(constructions.additive_scores(task, table), task.labels)
    assert abs(margins.min() - 2 / n_numbers**2) < 1e-12
    assert exact_accuracy(task, table) == pytest.approx(1)
    # Below the limit of the operator's weight every answer is right, above it one at least fails.
    limit = float(min_max.weight_limit(n_numbers))
    weights = np.ones((task.vocab_size, 1))
    for factor, right in ((0.98, True), (1.02, False)):
        weights[n_numbers:] = factor * limit
        assert (exact_accuracy(task, weights * table) > 1 - 1e-9) == right


def test_wrong_tables_and_other_tasks_are_rejected():
    task = tasks.min_max(8)
    table = constructions.signature_table(task)
    exchanged = table.copy()
    exchanged[[8, 9]] = table[[9, 8]]
    assert exact_accuracy(task, exchanged) == pytest.approx(1 / 8)  # equal numbers only
    moved = table.copy()
    moved[:8] = np.roll(table[:8], 1, axis=0)
    assert exact_accuracy(task, moved) < 0.2
    for other in (tasks.addition(8, None), tasks.modular_addition(8, None)):
        assert exact_accuracy(other, constructions.signature_table(other)) < 0.05


def test_symbolic_signatures_are_those_of_the_task():
    n = 6
    table = constructions.signature_table(tasks.min_max(n))
    level, spike = (float(x.subs(min_max.N, n)) for x in min_max.number_signature())
    np.testing.assert_allclose(table[:n, :n], level + spike * np.eye(n), atol=1e-15)
    for row, operator in enumerate(("min", "max")):
        values = [
            float(min_max.operator_signature(operator).subs({min_max.N: n, min_max.Y: y}))
            for y in range(n)
        ]
        np.testing.assert_allclose(table[n + row, :n], values, atol=1e-15)


@pytest.mark.claim("7.4")
@pytest.mark.parametrize("n_numbers", [2, 3, 5, 6])
@pytest.mark.parametrize("weight", [Fraction(1, 3), 1, Fraction(7, 4)])
def test_least_margin_by_enumeration_in_fractions(n_numbers, weight):
    symbolic = [
        margin.subs({min_max.N: n_numbers, min_max.weight: sp.Rational(weight)})
        for name, margin in min_max.least_margin().items()
        if n_numbers > 2 or name != "third label"
    ]
    exact = min(min_max.margins_by_enumeration(n_numbers, weight).values())
    assert Fraction(str(min(symbolic))) == exact
    assert (exact > 0) == (weight < min_max.weight_limit(n_numbers))


def test_every_least_margin_is_positive_for_equal_weights():
    shifted = sp.Symbol("n", nonnegative=True)  # N = n + 2
    for name, margin in min_max.least_margin().items():
        numerator = sp.numer(sp.together(margin.subs(min_max.weight, 1)))
        at = sp.expand(numerator.subs(min_max.N, shifted + 2))
        assert at.is_positive or at.subs(shifted, 0) > 0, name
        assert not [r for r in sp.real_roots(sp.Poly(at + 0 * shifted, shifted)) if r >= 0], name


@pytest.mark.claim("7.2")
def test_first_order_embeddings_keep_the_angles_of_the_signatures():
    task = tasks.modular_addition(12, None, modulus=4)
    generators = [np.random.default_rng(seed) for seed in (0, 1)]
    table = constructions.signature_embeddings(task, 1, 4000, generators)
    assert table.shape == (2, 12, 4000)
    assert not np.allclose(table[0], table[1])
    signature = signatures.label_signature(task, 1).reshape(12, -1)
    kept = alignment.cosine_similarity(table)
    np.testing.assert_allclose(
        kept, np.broadcast_to(alignment.cosine_similarity(signature), kept.shape), atol=0.08
    )
    # Numbers of one residue class are one and the same token to it; others share nothing.
    assert np.allclose(table[:, 0], table[:, 4])
    models.FixedEmbeddingFFN(table, runs=2)


def test_bad_input():
    task = tasks.min_max(3)
    with pytest.raises(ValueError, match="one row a token"):
        constructions.additive_scores(task, np.zeros((3, 3)))
    with pytest.raises(ValueError, match="expected shapes"):
        constructions.margins(np.zeros((2, 3)), [0])
    with pytest.raises(ValueError, match=r"ids in \[0, 3\)"):
        constructions.margins(np.zeros((1, 3)), [3])
    with pytest.raises(ValueError, match="positive width"):
        constructions.signature_embeddings(task, 1, 0, [np.random.default_rng(0)])
    with pytest.raises(ValueError, match="'min' or 'max'"):
        min_max.operator_signature("mean")
    with pytest.raises(ValueError, match="at least 2"):
        min_max.weight_limit(1)
