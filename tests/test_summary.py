"""Summaries of counts: entropies and neighbours against plain definitions."""

import numpy as np
import pytest
from scipy import sparse

from staircase_lib.language import counting, summary

TABLE = np.array([[8, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [2, 2, 0, 0], [16, 1, 0, 0]])


def test_entropy_is_that_of_the_definition():
    found = summary.predictability(sparse.csr_array(TABLE), least=1)
    assert found["token"].tolist() == [0, 4, 3, 1]  # token 2 never occurs
    p = 16 / 17
    expected = [0.0, -p * np.log2(p) - (1 - p) * np.log2(1 - p), 1.0, 2.0]
    np.testing.assert_allclose(found["bits"], expected, atol=1e-12)
    assert found["labels"].tolist() == [1, 2, 2, 4]
    assert summary.predictability(sparse.csr_array(TABLE), least=8)["token"].tolist() == [0, 4]


@pytest.mark.parametrize("form", ["probability", "centred", "root", "ppmi"])
def test_neighbours_are_those_of_the_cosine_matrix(form):
    rng = np.random.default_rng(0)
    counts = sparse.csr_array(rng.poisson(0.7, (30, 12)) * (rng.random((30, 1)) < 0.9))
    signature = counting.corpus_signature(counts, form)
    dense = signature if form == "centred" else signature.toarray()
    norm = np.linalg.norm(dense, axis=1, keepdims=True)
    unit = dense / np.where(norm > 0, norm, 1)
    among = np.arange(0, 30, 2)
    neighbours, similarity = summary.nearest_neighbours(signature, [3, 4], 5, among)
    for token, row, values in zip((3, 4), neighbours, similarity, strict=True):
        others = [a for a in among if a != token]
        best = sorted(unit[others] @ unit[token], reverse=True)[:5]
        np.testing.assert_allclose(values, best, atol=1e-12)
        np.testing.assert_allclose(unit[row] @ unit[token], best, atol=1e-12)
        assert token not in row


def test_bad_input_and_small_tables():
    counts = sparse.csr_array(TABLE)
    with pytest.raises(ValueError, match=r"tokens: expected rows in \[0, 5\), got \[5\]"):
        summary.nearest_neighbours(counts, 5)
    with pytest.raises(ValueError, match="k: expected a positive integer, got 0"):
        summary.nearest_neighbours(counts, 1, 0)
    neighbours, _ = summary.nearest_neighbours(counts, [0], 50)
    assert neighbours.shape == (1, 4)
