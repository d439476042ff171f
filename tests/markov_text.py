"""A text whose next token depends on two, and what its comparison with a model is tested with."""

from __future__ import annotations

from functools import cache

import numpy as np

from staircase_lib.language.corpus_counts import CorpusCounts, count_corpus

V = 40


@cache
def token_ids() -> np.ndarray:
    """A second-order Markov chain: the next token depends on the present and the previous one."""
    random = np.random.default_rng(0)
    table = random.dirichlet(np.full(V, 0.1), size=(V, V)).cumsum(-1)
    found = [0, 1]
    for u in random.random(30_000):
        found.append(min(int(np.searchsorted(table[found[-2], found[-1]], u)), V - 1))
    return np.array(found, np.uint16)


@cache
def counted() -> CorpusCounts:
    """Its counts, for the 30 most frequent tokens."""
    return count_corpus(token_ids(), V, 30)


def dense(counts, form="centred", side="next"):
    """Signatures of the chosen tokens, written out."""
    pairs = counts.pairs.toarray().astype(float)
    if side == "previous":
        pairs = pairs.T
    P = pairs / pairs.sum(1, keepdims=True).clip(1)
    share = pairs.sum(0) / pairs.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        forms = {
            "probability": P,
            "centred": P - share,
            "root": np.sqrt(P),
            "ppmi": np.where(P > 0, np.maximum(np.log(P / share), 0), 0),
        }
    return forms[form][counts.tokens]


def project(features, d, seed=0):
    """Rows (A, d) whose inner products are those of the features, up to chance."""
    random = np.random.default_rng(seed)
    return features @ random.standard_normal((features.shape[1], d)) / np.sqrt(d)


def values(rows, **fixed):
    return [row["value"] for row in rows if all(row[k] == v for k, v in fixed.items())]
