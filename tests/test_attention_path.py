"""What attention writes against attention-weighted signatures: exact constructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from markov_text import V, counted, project, token_ids

from staircase_lib import alignment, models
from staircase_lib.language import attention_path
from staircase_lib.language.transformer import Transformer


@pytest.fixture(scope="module")
def ids():
    return token_ids()


@pytest.fixture(scope="module")
def counts():
    return counted()


@pytest.fixture(scope="module")
def windows(ids):
    return attention_path.sample_windows(ids, 12, 60, seed=1)


def mixtures(counts, windows, attention):
    P = counts.pairs.toarray() / counts.pairs.sum(1)[:, None].clip(1)
    S = P - counts.pairs.sum(0) / counts.pairs.sum()
    return np.einsum("nl,nlv->nv", attention, S[windows[0]])


@pytest.mark.claim("6.7")
def test_paths_made_of_attention_weighted_signatures_are_told_from_the_controls(counts, windows):
    tokens, positions = windows
    random = np.random.default_rng(4)
    weights = random.dirichlet(np.full(12, 0.3), size=60)
    weights = weights * (np.arange(12) <= positions[:, None])
    weights = weights / weights.sum(1, keepdims=True)
    heard = mixtures(counts, windows, weights)
    reference = attention_path.attention_reference(counts, tokens, positions)
    rows = attention_path.attention_rows(project(heard, 4000)[None], weights[None], reference)
    found = {row["signature"]: row["value"] for row in rows}
    assert found["attention-weighted"] > 0.98
    assert max(found["present token"], found["uniform attention"]) < 0.8
    # each token with another's signature: what is left is which windows share tokens
    assert abs(found["shuffled tokens"]) < 0.7
    other = heard[np.random.default_rng(0).permutation(60)]
    rows = attention_path.attention_rows(project(other, 4000)[None], weights[None], reference)
    assert all(abs(row["value"]) < 0.15 for row in rows)
    # the similarities themselves, against the definition written out
    expected = alignment.cosine_similarity(heard - heard.mean(0))[np.triu_indices(60, 1)]
    np.testing.assert_allclose(reference.similarity(weights), expected, atol=1e-4)


def test_uniform_attention_is_its_own_control(counts, windows):
    tokens, positions = windows
    reference = attention_path.attention_reference(counts, tokens, positions)
    uniform = (np.arange(12) <= positions[:, None]) / (positions[:, None] + 1)
    written = np.random.default_rng(0).standard_normal((1, 60, 5))
    rows = attention_path.attention_rows(written, uniform[None], reference)
    found = {row["signature"]: row["value"] for row in rows}
    assert found["attention-weighted"] == pytest.approx(found["uniform attention"], abs=1e-6)
    here = np.eye(12)[positions]
    rows = attention_path.attention_rows(written, here[None], reference)
    found = {row["signature"]: row["value"] for row in rows}
    assert found["attention-weighted"] == pytest.approx(found["present token"], abs=1e-6)


@pytest.mark.parametrize("runs", [None, 2])
def test_attention_is_read_from_the_model_block_by_block(windows, runs):
    model = Transformer(V, 8, 12, 2, 2, dtype=torch.float64, runs=runs)
    models.initialize_(model, 0.3, models.seeded(range(runs or 1)) if runs else torch.Generator())
    tokens, positions = windows
    written, attention = attention_path.read_attention(model, tokens, positions)
    lead = () if runs is None else (runs,)
    assert written.shape == (*lead, 2, 60, 8) and attention.shape == (*lead, 2, 60, 12)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-6)
    later = np.arange(12) > positions[:, None]
    assert not attention[..., later].any()
    stream = model.embed(torch.tensor(tokens))
    paths, _ = model.written(stream)
    rows = np.arange(60)
    for block, path in enumerate(paths):
        expected = path.detach().numpy()[..., rows, positions, :]
        np.testing.assert_allclose(written[..., block, :, :], expected, rtol=1e-5, atol=1e-6)
    expected = model.blocks[0].attention(stream).detach().numpy().mean(-3)[..., rows, positions, :]
    np.testing.assert_allclose(attention[..., 0, :, :], expected, rtol=1e-5, atol=1e-6)


def test_an_untrained_model_hears_all_alike(counts, windows):
    model = Transformer(V, 64, 12, 1, 2)
    models.initialize_(model, 1.5, models.seeded([0])[0])
    reference = attention_path.attention_reference(counts, *windows)
    rows = attention_path.attention_rows(*attention_path.read_attention(model, *windows), reference)
    found = {row["signature"]: row["value"] for row in rows}
    # its attention is uniform, and no two tokens are alike, whatever follows them
    assert found["attention-weighted"] == pytest.approx(found["uniform attention"], abs=1e-3)


def test_windows_lie_in_the_corpus_and_positions_in_the_windows(ids):
    tokens, positions = attention_path.sample_windows(ids, 16, 50)
    starts = [ids[i : i + 16].tobytes() for i in range(len(ids) - 15)]
    assert all(row.astype(np.uint16).tobytes() in set(starts) for row in tokens[:5])
    assert positions.min() >= 4 and positions.max() < 16
    with pytest.raises(ValueError, match="within the 5 of the corpus"):
        attention_path.sample_windows(ids[:5], 16)


def test_windows_of_another_vocabulary_are_refused(counts, windows):
    with pytest.raises(ValueError, match="of another vocabulary"):
        attention_path.attention_reference(counts, windows[0] + V, windows[1])
    reference = attention_path.attention_reference(counts, *windows)
    with pytest.raises(ValueError, match="expected shapes"):
        attention_path.attention_rows(np.ones((1, 60, 4)), np.ones((2, 60, 12)), reference)
