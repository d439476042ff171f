"""Inner products, cosines and correlations without centred vectors, against those written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from staircase_lib import alignment
from staircase_lib.language import similarity


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    return random.random((7, 12)) * (random.random((7, 12)) < 0.4)


def test_inner_products_less_a_share_are_those_of_the_differences(rows):
    share = np.random.default_rng(1).dirichlet(np.ones(12))
    less = rows - rows.sum(axis=1, keepdims=True) * share
    for given in (rows, sparse.csr_array(rows)):
        np.testing.assert_allclose(similarity.inner_products(given), rows @ rows.T, atol=1e-14)
        found = similarity.inner_products(given, share)
        np.testing.assert_allclose(found, less @ less.T, atol=1e-14)


def test_cosines_of_centred_vectors_and_of_one_that_vanishes(rows):
    gram = similarity.centre(rows @ rows.T)
    expected = alignment.cosine_similarity(rows - rows.mean(axis=0))
    np.testing.assert_allclose(similarity.cosines(gram), expected, atol=1e-12)
    rows[3] = 0
    found = similarity.cosines(rows @ rows.T)
    assert not found[3].any() and np.diag(found)[[0, 1, 2, 4]] == pytest.approx(1)


def test_a_correlation_with_whole_weights_is_that_of_repeated_pairs():
    x, y = np.random.default_rng(2).standard_normal((2, 6))
    times = np.array([1, 3, 2, 1, 4, 1])
    found = similarity.correlation(x, y, times / times.sum())
    assert found == pytest.approx(np.corrcoef(np.repeat(x, times), np.repeat(y, times))[0, 1])
    assert np.isnan(similarity.correlation(x, np.ones(6), times / times.sum()))


def test_values_get_an_axis_of_runs_or_are_refused():
    assert similarity.with_runs(np.ones((3, 2)), 2, "E").shape == (1, 3, 2)
    assert similarity.with_runs(np.ones((4, 3, 2)), 2, "E").shape == (4, 3, 2)
    for wrong in (np.ones(3), np.ones((0, 3, 2)), np.ones((1, 1, 3, 2))):
        with pytest.raises(ValueError, match="E: expected 2 axes, or 3 with runs first"):
            similarity.with_runs(wrong, 2, "E")
