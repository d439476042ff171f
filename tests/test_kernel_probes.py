"""Probes of signatures: exact constructions, and ridge regression written out."""

from __future__ import annotations

import numpy as np
import pytest
from markov_text import V, counted, token_ids
from scipy import sparse

from staircase_lib.language import corpus_counts, kernel_probes


@pytest.fixture(scope="module")
def ids():
    return token_ids()


@pytest.fixture(scope="module")
def counts():
    return counted()


def unit(E):
    E = E - E.mean(0)
    return E / np.linalg.norm(E, axis=1, keepdims=True)


def test_a_probe_finds_a_linear_map_on_tokens_that_it_has_not_seen():
    random = np.random.default_rng(0)
    features = unit(random.standard_normal((200, 12)))
    Z = features @ np.linalg.qr(random.standard_normal((30, 12)))[0].T  # keeps unit vectors so
    T = Z @ Z.T
    right = kernel_probes.kernel_probe([features @ features.T]).held_out(T)
    assert right["mse"] < 0.1 * right["mean mse"] and right["correlation"] > 0.95
    other = features[random.permutation(200)]
    wrong = kernel_probes.kernel_probe([other @ other.T]).held_out(T)
    assert wrong["mse"] > 0.95 * wrong["mean mse"] and abs(wrong["correlation"]) < 0.1


def test_the_mixture_takes_the_kernel_that_helps():
    random = np.random.default_rng(0)
    first, second = random.standard_normal((2, 200, 8))
    Z = unit((first + second) @ random.standard_normal((8, 30)))
    T = Z @ Z.T
    kernels = [first @ first.T, second @ second.T]
    alone, both = (
        kernel_probes.kernel_probe(kernels[:1]).held_out(T),
        kernel_probes.kernel_probe(kernels).held_out(T),
    )
    assert both["mse"] < 0.5 * alone["mse"] and 0.2 < both["share"] < 0.8
    noise = second[random.permutation(200)]
    fooled = kernel_probes.kernel_probe([kernels[0], noise @ noise.T]).held_out(T)
    assert fooled["share"] < 0.2 and fooled["mse"] == pytest.approx(alone["mse"], rel=0.1)


def test_held_out_errors_are_those_of_ridge_regression_fold_by_fold():
    """Against scikit-learn's kernel ridge on the rows themselves, with the ridge chosen here."""
    from sklearn.kernel_ridge import KernelRidge

    random = np.random.default_rng(2)
    features = random.standard_normal((40, 6))
    Z = unit(features @ random.standard_normal((6, 5)) + random.standard_normal((40, 5)))
    probe = kernel_probes.kernel_probe([features @ features.T], folds=4)
    centred = features - features.mean(0)
    centred = centred / np.sqrt((centred**2).sum(1).mean())
    errors, baseline, with_seen = [], [], []
    for fold in probe._folds:
        x, z = centred[fold.seen], Z[fold.seen]
        found = []
        for ridge in kernel_probes._RIDGES:  # generalised cross-validation, written out
            hat = np.linalg.inv(
                np.eye(30) + ridge * np.linalg.pinv((x - x.mean(0)) @ (x - x.mean(0)).T)
            )
            model = KernelRidge(alpha=ridge).fit(x - x.mean(0), z - z.mean(0))
            left = z - z.mean(0) - model.predict(x - x.mean(0))
            K = (x - x.mean(0)) @ (x - x.mean(0)).T
            hat = K @ np.linalg.inv(K + ridge * np.eye(30))
            found.append((left**2).sum() / (30 - 1 - np.trace(hat)) ** 2)
        ridge = kernel_probes._RIDGES[int(np.argmin(found))]
        model = KernelRidge(alpha=ridge).fit(x - x.mean(0), z - z.mean(0))
        guess = z.mean(0) + model.predict(centred[fold.unseen] - x.mean(0))
        pairs = np.triu_indices(10, 1)
        truth = Z[fold.unseen] @ Z[fold.unseen].T
        errors.append((guess @ guess.T - truth)[pairs] ** 2)
        baseline.append((truth[pairs] - (z @ z.T)[np.triu_indices(30, 1)].mean()) ** 2)
        with_seen.append((guess @ z.T - Z[fold.unseen] @ z.T) ** 2)
    found = probe.held_out(Z @ Z.T)
    assert found["mse"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert found["mean mse"] == pytest.approx(np.mean(baseline), rel=1e-9)
    assert found["mse with seen"] == pytest.approx(np.mean(with_seen), rel=1e-9)


def test_first_order_kernels_are_those_of_signatures_written_out(counts):
    table = counts.triples.toarray().astype(float)  # (A, previous, next)
    S = table / table.sum((1, 2), keepdims=True)
    joint, independent = kernel_probes._first_order(counts, None)
    root = np.sqrt(S).reshape(30, -1)
    np.testing.assert_allclose(joint, root @ root.T, atol=1e-12)
    after, before = np.sqrt(S.sum(1)), np.sqrt(S.sum(2))
    np.testing.assert_allclose(independent, (after @ after.T) * (before @ before.T), atol=1e-12)
    # two contexts told apart, the rest one
    first = np.argsort(-counts.occurrences, kind="stable")[:2]
    rest = np.setdiff1d(np.arange(V), first)
    coarse = np.concatenate([S[:, first], S[:, rest].sum(1, keepdims=True)], axis=1)
    root = np.sqrt(coarse).reshape(30, -1)
    np.testing.assert_allclose(kernel_probes._first_order(counts, 2)[0], root @ root.T, atol=1e-12)


@pytest.mark.claim("6.6")
def test_embeddings_of_first_order_are_predicted_by_it_and_not_by_order_0():
    """Tokens whose next token tells nothing alone: it depends on the previous one, by class."""
    random = np.random.default_rng(0)
    A, kinds = 80, 4
    kind = random.integers(kinds, size=A)
    triples = np.zeros((A, V, V), np.int64)
    for a in range(A):
        previous = random.integers(V, size=3000)
        np.add.at(triples[a], (previous, (previous + 5 * kind[a]) % V), 1)
    wide = sparse.coo_array(triples)
    pairs = sparse.csr_array(np.vstack([triples.sum(1), np.zeros((0, V), np.int64)])[:V])
    counts = corpus_counts.CorpusCounts(np.arange(V), pairs, sparse.coo_array(triples[:V]))
    E = np.eye(kinds)[kind[:V]] + 0.1 * random.standard_normal((V, kinds))
    assert wide.shape == (A, V, V)
    rows = kernel_probes.probe_rows(E, kernel_probes.signature_probes(counts, folds=4))
    mse = {row["signature"]: row["value"] for row in rows if row["measure"] == "probe mse"}
    assert mse["order 1"] < 0.2 * mse["mean"]
    for control in ("order 0", "order 1, independent", "order 1, other contexts"):
        assert mse[control] > 0.8 * mse["mean"], control
    assert mse["order 1, shuffled"] > 0.8 * mse["mean"]


def test_probes_refuse_what_they_cannot_use(ids, counts):
    with pytest.raises(ValueError, match="expected triples"):
        kernel_probes.signature_probes(corpus_counts.count_corpus(ids, V, 30, triples=False))
    with pytest.raises(ValueError, match="a quarter of the 8 tokens"):
        kernel_probes.kernel_probe([np.eye(8)])
    with pytest.raises(ValueError, match=r"expected shape \(20, 20\)"):
        kernel_probes.kernel_probe([np.eye(20)]).held_out(np.eye(8))
