"""Counts of a corpus and inner products of its signatures, against those written out."""

from __future__ import annotations

import numpy as np
import pytest
from markov_text import V, counted, dense, token_ids

from staircase_lib.language import corpus_counts
from staircase_lib.language.counting import corpus_signature


@pytest.fixture(scope="module")
def ids():
    return token_ids()


@pytest.fixture(scope="module")
def counts():
    return counted()


def test_counts_of_a_corpus_written_by_hand():
    counts = corpus_counts.count_corpus(np.array([1, 2, 1, 3, 2, 0, 1, 2, 3, 1]), 5, separator=0)
    assert counts.tokens.tolist() == [1, 2, 3]  # 1 three times, then by number; 4 never, 0 never
    assert counts.occurrences.tolist() == [0, 3, 2, 2, 0]
    P = np.array([[0, 0, 2 / 3, 1 / 3, 0], [0, 0.5, 0, 0.5, 0], [0, 0.5, 0.5, 0, 0]])
    share = np.array([0, 2, 3, 2, 0]) / 7
    np.testing.assert_allclose(counts.gram("centred"), (P - share) @ (P - share).T, atol=1e-15)
    found = {
        (a, x, y): n for a, x, y, n in zip(*counts.triples.coords, counts.triples.data, strict=True)
    }
    # (row, previous, next): 1 2 1 | 2 1 3 | 1 3 2 in the first document, 1 2 3 | 2 3 1 in the other
    assert found == {(1, 1, 1): 1, (0, 2, 3): 1, (2, 1, 2): 1, (1, 1, 3): 1, (2, 2, 1): 1}


@pytest.mark.parametrize("form", ["probability", "centred", "root", "ppmi"])
@pytest.mark.parametrize("side", ["next", "previous"])
def test_inner_products_are_those_of_signatures_written_out(counts, form, side):
    rows = dense(counts, form, side)
    np.testing.assert_allclose(counts.gram(form, side), rows @ rows.T, atol=1e-12)
    if side == "next" and form != "centred":  # and those of the one other place that makes them
        other = corpus_signature(counts.pairs, form).toarray()[counts.tokens]
        np.testing.assert_allclose(rows, other, atol=1e-12)


def test_two_sides_are_two_signatures_side_by_side(counts):
    rows = np.concatenate([dense(counts, "root"), dense(counts, "root", "previous")], axis=1)
    np.testing.assert_allclose(counts.gram("root", "both"), rows @ rows.T, atol=1e-12)


def test_tokens_may_be_given_or_left_out(ids, counts):
    asked = counts.tokens[[5, 0, 9]]
    given = corpus_counts.count_corpus(ids, V, tokens=asked, triples=False)
    assert given.tokens.tolist() == counts.tokens[[0, 5, 9]].tolist() and given.triples is None
    without = corpus_counts.count_corpus(ids, V, 10, exclude=[int(counts.tokens[0])], triples=False)
    assert without.tokens.tolist() == counts.tokens[1:11].tolist()
    larger = corpus_counts.count_corpus(ids, V + 5, 30, triples=False)
    assert larger.tokens.tolist() == counts.tokens.tolist()
    with pytest.raises(ValueError, match=r"that occur in the corpus, got \[42\]"):
        corpus_counts.count_corpus(ids, V + 5, tokens=[0, 1, 42])
    with pytest.raises(ValueError, match="three or more"):
        corpus_counts.count_corpus(ids[:2], V)
