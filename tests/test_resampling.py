"""Block counts against brute force, the bootstrap against recounting, and what thinning is for."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from staircase_lib.alignment import cosine_similarity
from staircase_lib.language import resampling
from staircase_lib.language.counting import Direction, corpus_signature, count_signatures
from staircase_lib.language.semantics import chance_correlation, path_correlation

V, SEPARATOR = 12, 0
SIDES: list[tuple[str, Direction, int]] = [("next", "next", 1), ("±3", "both", 3)]


def text(seed, n=400):
    ids = np.random.default_rng(seed).integers(1, V, n).astype(np.uint16)
    ids[np.random.default_rng(seed + 1).random(n) < 0.05] = SEPARATOR
    return ids


def by_hand(pieces, tokens, steps):
    """Pairs of every piece, by walking over it."""
    found = Counter()
    for piece in pieces:
        for i, token in enumerate(piece):
            for step in steps:
                j = i + step
                between = piece[min(i, j) : max(i, j) + 1]
                if token in tokens and 0 <= j < len(piece) and SEPARATOR not in between:
                    found[tokens.index(token), int(piece[j])] += 1
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("direction", "window", "steps"),
    [("next", 1, [1]), ("previous", 2, [-1, -2]), ("both", 3, [-3, -2, -1, 1, 2, 3])],
)
def test_totals_equal_brute_force(seed, direction, window, steps):
    ids, tokens = text(seed), [3, 1, 7]
    counts = resampling.count_blocks(
        ids, V, tokens, 7, window=window, direction=direction, separator=SEPARATOR
    )
    pieces = np.array_split(ids, 7)
    weights = np.random.default_rng(seed).integers(0, 4, 7)
    drawn = [piece for piece, w in zip(pieces, weights, strict=True) for _ in range(w)]
    total = counts.total(weights).toarray()
    expected = by_hand(drawn, tokens, steps)
    assert {(a, y): total[a, y] for a, y in np.argwhere(total[:-1])} == expected
    occurs = np.bincount(np.concatenate(drawn), minlength=V)
    occurs[SEPARATOR] = 0
    assert (total.sum(axis=0) == len(steps) * occurs).all()
    assert (total >= 0).all()


def test_resampled_is_a_drawn_corpus():
    ids, tokens = text(11, 600), [2, 5]
    counts = resampling.count_blocks(ids, V, tokens, 6, separator=SEPARATOR)
    draws = np.random.default_rng(4).integers(6, size=6)
    pieces = np.array_split(ids, 6)
    drawn = np.concatenate([np.append(pieces[k], SEPARATOR) for k in draws]).astype(np.uint16)
    expected = count_signatures(drawn, V, 0, tokens, separator=SEPARATOR).toarray()
    assert (counts.resampled(4).toarray()[:-1] == expected).all()
    assert (counts.resampled(4) != counts.resampled(5)).nnz


def test_halves_and_words():
    counts = resampling.count_blocks(text(2), V, [4, 9, 1], 8, separator=SEPARATOR)
    even, odd = counts.among(slice(0, None, 2)), counts.among(slice(1, None, 2))
    assert (even.total() + odd.total() != counts.total()).nnz == 0
    some = counts.of([1, 4]).total().toarray()
    whole = counts.total().toarray()
    assert (some[:2] == whole[[2, 0]]).all()
    assert (some.sum(axis=0) == whole.sum(axis=0)).all()
    with pytest.raises(ValueError, match="were not asked for"):
        counts.of([1, 2])


def test_table_and_back():
    ids, tokens = text(3, 900), [8, 2, 3]
    counts = {
        name: resampling.count_blocks(
            ids, V, tokens, 5, window=w, direction=direction, separator=SEPARATOR
        )
        for name, direction, w in SIDES
    }
    table = resampling.as_table(counts)
    again = resampling.from_table(table, tokens, V)
    assert list(again) == ["next", "±3"]
    for name, found in counts.items():
        for seed in range(3):
            assert (again[name].resampled(seed) != found.resampled(seed)).nnz == 0
    with pytest.raises(ValueError, match="the table has others"):
        resampling.from_table(table, [8, 2], V)
    other = resampling.count_blocks(text(4, 900), V, tokens, 5, separator=SEPARATOR)
    with pytest.raises(ValueError, match="other ids"):
        resampling.as_table({**counts, "other": other})
    assert isinstance(table, pd.DataFrame)
    assert set(table["token"]) == {-1, *tokens}


def test_thinned_keeps_columns_and_equalises_rows():
    counts = resampling.count_blocks(text(5), V, [1, 2, 3], 4, separator=SEPARATOR).total()
    least = int(counts.sum(axis=1)[:-1].min())
    thin = resampling.thinned(counts, 0)
    assert (thin.sum(axis=1)[:-1] == least).all()
    assert (thin.sum(axis=0) == counts.sum(axis=0)).all()
    assert (thin.toarray()[:-1] <= counts.toarray()[:-1]).all()
    mean = np.mean([resampling.thinned(counts, s, 20).toarray()[0] for s in range(400)], axis=0)
    share = counts.toarray()[0] / counts.toarray()[0].sum()
    assert np.abs(mean / 20 - share).max() < 0.03
    with pytest.raises(ValueError, match="rarest token"):
        resampling.thinned(counts, 0, least + 1)


def test_signature_rows_use_the_shares_of_the_whole_text():
    ids = text(6, 2000)
    whole = count_signatures(ids, V, separator=SEPARATOR)
    counts = resampling.count_blocks(ids, V, [3, 6], 1, separator=SEPARATOR).total()
    for form in ("probability", "root", "ppmi"):
        expected = corpus_signature(whole, form).toarray()[[3, 6]]
        if form == "ppmi":  # shares of occurrences, not of pairs: documents' first tokens
            occurs = np.bincount(ids, minlength=V).astype(float)
            occurs[SEPARATOR] = 0
            p = corpus_signature(whole, "probability").toarray()[[3, 6]]
            with np.errstate(divide="ignore"):
                expected = np.maximum(0, np.log(p / np.where(occurs, occurs / occurs.sum(), 1)))
        found = resampling.signature_rows(counts, form)
        assert np.allclose(found, expected[:, expected.any(axis=0)])
    assert resampling.signature_rows(counts, "centred").shape == (2, V)


def test_shuffled_keeps_tokens_and_documents():
    ids = text(7)
    mixed = resampling.shuffled(ids, 1, SEPARATOR)
    assert (np.sort(mixed) == np.sort(ids)).all()
    assert (np.flatnonzero(mixed == SEPARATOR) == np.flatnonzero(ids == SEPARATOR)).all()
    assert (mixed != ids).any()


def frequencies_only(seed):
    """Text without order, whose tokens 0 to 9 are ever rarer: their meaning is their frequency."""
    rng = np.random.default_rng(seed)
    background = 1 / (3 + np.arange(990))
    p = np.append(np.geomspace(0.02, 0.0008, 10), 0.9 * background / background.sum())
    return rng.choice(1000, size=60_000, p=p / p.sum())


def test_frequency_alone_looks_like_an_order_and_thinning_tells():
    raw, thin = [], []
    for seed in range(5):
        counts = resampling.count_blocks(
            frequencies_only(seed), 1000, range(10), 4, window=10, direction="both"
        ).total()
        for found, table in ((raw, counts), (thin, resampling.thinned(counts, seed))):
            found.append(path_correlation(resampling.signature_rows(table, "root")))
    # The wrong reading takes words without any meaning for a path.
    assert np.median(raw) > chance_correlation(10) > np.max(thin)


def test_errors():
    with pytest.raises(ValueError, match="blocks"):
        resampling.count_blocks(np.arange(5), 9, [1], 3)
    counts = resampling.count_blocks(text(8), V, [1], 4)
    for weights in ([1, 2], [1.0, 1, 1, 1], [1, -1, 0, 0]):
        with pytest.raises(ValueError, match="weights"):
            counts.total(weights)
    assert sparse.issparse(counts.total())
    assert cosine_similarity(resampling.signature_rows(counts.total())).shape == (1, 1)
