"""Alignment with the next-token signature: exact constructions, and each variant written out."""

from __future__ import annotations

import numpy as np
import pytest
from markov_text import counted, dense, project, values

from staircase_lib import alignment
from staircase_lib.language import next_token_alignment


@pytest.fixture(scope="module")
def counts():
    return counted()


@pytest.mark.claim("6.5")
def test_embeddings_made_of_the_signature_align_and_others_do_not(counts):
    references = next_token_alignment.references(counts)
    made = project(dense(counts), 4000)
    right = values(next_token_alignment.alignment_rows(made, references), variant="as defined")
    assert right[0] > 0.98
    shuffled = made[np.random.default_rng(1).permutation(len(made))]
    wrong = values(next_token_alignment.alignment_rows(shuffled, references), variant="as defined")
    assert abs(wrong[0]) < 0.15
    previous = project(dense(counts, side="previous"), 4000)
    rows = next_token_alignment.alignment_rows(previous, references)
    assert values(rows, signature="previous, centred")[0] > 0.98 > 0.5 > values(rows)[0]


def test_the_definition_is_the_correlation_of_cosines(counts):
    E = np.random.default_rng(3).standard_normal((30, 7)) + dense(counts)[:, :7]
    value = values(
        next_token_alignment.alignment_rows(E, next_token_alignment.references(counts)),
        variant="as defined",
    )[0]
    expected = alignment.alignment(E - E.mean(0), dense(counts))
    assert value == pytest.approx(float(expected), abs=1e-12)


def test_every_variant_is_what_its_name_says(counts):
    E = np.random.default_rng(3).standard_normal((30, 7)) + 1
    often = counts.occurrences[counts.tokens]
    pairs = np.triu_indices(30, 1)
    weights = often[pairs[0]] * often[pairs[1]]
    for variant in (
        *next_token_alignment.SENSITIVITY[:-1],
        next_token_alignment.Variant(number=12),
    ):
        n = variant.number or 30
        x = E[:n] - E[:n].mean(0) if variant.rows == "centred" else E[:n]
        sides = ["next", "previous"] if variant.side == "both" else [variant.side]
        s = np.concatenate([dense(counts, variant.form, side) for side in sides], axis=1)[:n]
        i, j = np.triu_indices(n, 1)
        w = weights if variant.weights == "frequency" else np.ones(len(i))
        similar = [alignment.cosine_similarity(rows)[i, j] for rows in (x, s)]
        covariance = np.cov(*similar, aweights=w)
        expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
        (row,) = next_token_alignment.alignment_rows(
            E, next_token_alignment.references(counts, [variant])
        )
        assert row["value"] == pytest.approx(expected, abs=1e-10), variant
    names = [variant.name for variant in next_token_alignment.SENSITIVITY]
    assert names[0] == "as defined" and len(set(names)) == len(names)


def test_variants_with_too_many_tokens_are_left_out_and_runs_are_told_apart(counts):
    references = next_token_alignment.references(counts)
    assert {r.variant.number for r in references} == {None}
    E = np.random.default_rng(0).standard_normal((2, 30, 5))
    rows = next_token_alignment.alignment_rows(E, references)
    alone = next_token_alignment.alignment_rows(E[1], references)
    assert values(rows, run=1) == values(alone) != values(rows, run=0)


def test_a_collapse_has_no_alignment_and_a_divergence_is_told(counts):
    references = next_token_alignment.references(counts, [next_token_alignment.Variant(rows="raw")])
    line = np.outer(np.arange(1, 31), np.ones(4))
    assert np.isnan(next_token_alignment.alignment_rows(line, references)[0]["value"])
    line[0, 0] = np.nan
    with pytest.raises(ValueError, match="did it diverge"):
        next_token_alignment.alignment_rows(line, references)
    with pytest.raises(ValueError, match="rows of the 30 chosen tokens, got 29"):
        next_token_alignment.alignment_rows(np.ones((29, 4)), references)
