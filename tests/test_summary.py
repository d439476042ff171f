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


def test_strongest_contexts_are_those_that_tell_most_of_the_label():
    """Against the definition, loop by loop: shares add up to the mutual information."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 5, 3000)
    told = np.flatnonzero(ids[:-2] == 1) + 2
    ids[told] = 4  # after 1 and any token comes 4, mostly
    asked = [3, 0]
    triples = counting.count_signatures(ids, 5, order=1, tokens=asked)
    found = summary.strongest_contexts(triples, [0, 1], least=1, k=5)
    dense = triples.toarray()
    for row in (0, 1):
        joint = dense[row] / dense[row].sum()
        alone = joint.sum(axis=0)
        expected = {}
        for context in range(5):
            here = [(p, p / joint[context].sum() / alone[y]) for y, p in enumerate(joint[context])]
            expected[context] = sum(p * np.log2(ratio) for p, ratio in here if p)
        rows = found[found["row"] == row].set_index("context")
        assert list(rows.index) == sorted(expected, key=lambda x: -expected[x])
        for context, share in expected.items():
            assert rows.loc[context, "share"] == pytest.approx(share, abs=1e-12)
            assert rows.loc[context, "count"] == dense[row][context].sum()
            assert rows.loc[context, "label"] == dense[row][context].argmax()
        assert rows.index[0] == 1
    entropy = summary.predictability(dense[0], least=1).set_index("token")["bits"]
    first = found[found["row"] == 0].set_index("context")["bits"]
    assert first.to_dict() == pytest.approx(entropy.to_dict(), abs=1e-12)
    often = summary.strongest_contexts(triples, [0], least=int(dense[0].sum(axis=1).max()), k=5)
    assert len(often) == 1
    assert summary.strongest_contexts(triples, [0], least=10**9).empty
