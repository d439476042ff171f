"""Measurements of a language model against its corpus: exact constructions, and small cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from staircase_lib import alignment, models
from staircase_lib.language import observables as ob
from staircase_lib.language.counting import corpus_signature
from staircase_lib.language.transformer import Transformer

V = 40


@pytest.fixture(scope="module")
def ids():
    """A second-order Markov chain: the next token depends on the present and the previous one."""
    random = np.random.default_rng(0)
    table = random.dirichlet(np.full(V, 0.1), size=(V, V)).cumsum(-1)
    found = [0, 1]
    for u in random.random(30_000):
        found.append(min(int(np.searchsorted(table[found[-2], found[-1]], u)), V - 1))
    return np.array(found, np.uint16)


@pytest.fixture(scope="module")
def counts(ids):
    return ob.count_corpus(ids, V, 30)


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


# --- The corpus ----------------------------------------------------------------------------------


def test_counts_of_a_corpus_written_by_hand():
    counts = ob.count_corpus(np.array([1, 2, 1, 3, 2, 0, 1, 2, 3, 1]), 5, separator=0)
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
    given = ob.count_corpus(ids, V, tokens=asked, triples=False)
    assert given.tokens.tolist() == counts.tokens[[0, 5, 9]].tolist() and given.triples is None
    without = ob.count_corpus(ids, V, 10, exclude=[int(counts.tokens[0])], triples=False)
    assert without.tokens.tolist() == counts.tokens[1:11].tolist()
    larger = ob.count_corpus(ids, V + 5, 30, triples=False)
    assert larger.tokens.tolist() == counts.tokens.tolist()
    with pytest.raises(ValueError, match=r"that occur in the corpus, got \[42\]"):
        ob.count_corpus(ids, V + 5, tokens=[0, 1, 42])
    with pytest.raises(ValueError, match="three or more"):
        ob.count_corpus(ids[:2], V)


# --- Alignment -----------------------------------------------------------------------------------


@pytest.mark.claim("6.5")
def test_embeddings_made_of_the_signature_align_and_others_do_not(counts):
    references = ob.references(counts)
    made = project(dense(counts), 4000)
    right = values(ob.alignment_rows(made, references), variant="as defined")
    assert right[0] > 0.98
    shuffled = made[np.random.default_rng(1).permutation(len(made))]
    wrong = values(ob.alignment_rows(shuffled, references), variant="as defined")
    assert abs(wrong[0]) < 0.15
    previous = project(dense(counts, side="previous"), 4000)
    rows = ob.alignment_rows(previous, references)
    assert values(rows, signature="previous, centred")[0] > 0.98 > 0.5 > values(rows)[0]


def test_the_definition_is_the_correlation_of_cosines(counts):
    E = np.random.default_rng(3).standard_normal((30, 7)) + dense(counts)[:, :7]
    value = values(ob.alignment_rows(E, ob.references(counts)), variant="as defined")[0]
    expected = alignment.alignment(E - E.mean(0), dense(counts))
    assert value == pytest.approx(float(expected), abs=1e-12)


def test_every_variant_is_what_its_name_says(counts):
    E = np.random.default_rng(3).standard_normal((30, 7)) + 1
    often = counts.occurrences[counts.tokens]
    pairs = np.triu_indices(30, 1)
    weights = often[pairs[0]] * often[pairs[1]]
    for variant in (*ob.SENSITIVITY[:-1], ob.Variant(number=12)):
        n = variant.number or 30
        x = E[:n] - E[:n].mean(0) if variant.rows == "centred" else E[:n]
        sides = ["next", "previous"] if variant.side == "both" else [variant.side]
        s = np.concatenate([dense(counts, variant.form, side) for side in sides], axis=1)[:n]
        i, j = np.triu_indices(n, 1)
        w = weights if variant.weights == "frequency" else np.ones(len(i))
        similar = [alignment.cosine_similarity(rows)[i, j] for rows in (x, s)]
        covariance = np.cov(*similar, aweights=w)
        expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
        (row,) = ob.alignment_rows(E, ob.references(counts, [variant]))
        assert row["value"] == pytest.approx(expected, abs=1e-10), variant
    names = [variant.name for variant in ob.SENSITIVITY]
    assert names[0] == "as defined" and len(set(names)) == len(names)


def test_variants_with_too_many_tokens_are_left_out_and_runs_are_told_apart(counts):
    references = ob.references(counts)
    assert {r.variant.number for r in references} == {None}
    E = np.random.default_rng(0).standard_normal((2, 30, 5))
    rows = ob.alignment_rows(E, references)
    alone = ob.alignment_rows(E[1], references)
    assert values(rows, run=1) == values(alone) != values(rows, run=0)


def test_a_collapse_has_no_alignment_and_a_divergence_is_told(counts):
    references = ob.references(counts, [ob.Variant(rows="raw")])
    line = np.outer(np.arange(1, 31), np.ones(4))
    assert np.isnan(ob.alignment_rows(line, references)[0]["value"])
    line[0, 0] = np.nan
    with pytest.raises(ValueError, match="did it diverge"):
        ob.alignment_rows(line, references)
    with pytest.raises(ValueError, match="rows of the 30 chosen tokens, got 29"):
        ob.alignment_rows(np.ones((29, 4)), references)


# --- Probe ---------------------------------------------------------------------------------------


def unit(E):
    E = E - E.mean(0)
    return E / np.linalg.norm(E, axis=1, keepdims=True)


def test_a_probe_finds_a_linear_map_on_tokens_that_it_has_not_seen():
    random = np.random.default_rng(0)
    features = unit(random.standard_normal((200, 12)))
    Z = features @ np.linalg.qr(random.standard_normal((30, 12)))[0].T  # keeps unit vectors so
    T = Z @ Z.T
    right = ob.kernel_probe([features @ features.T]).held_out(T)
    assert right["mse"] < 0.1 * right["mean mse"] and right["correlation"] > 0.95
    other = features[random.permutation(200)]
    wrong = ob.kernel_probe([other @ other.T]).held_out(T)
    assert wrong["mse"] > 0.95 * wrong["mean mse"] and abs(wrong["correlation"]) < 0.1


def test_the_mixture_takes_the_kernel_that_helps():
    random = np.random.default_rng(0)
    first, second = random.standard_normal((2, 200, 8))
    Z = unit((first + second) @ random.standard_normal((8, 30)))
    T = Z @ Z.T
    kernels = [first @ first.T, second @ second.T]
    alone, both = ob.kernel_probe(kernels[:1]).held_out(T), ob.kernel_probe(kernels).held_out(T)
    assert both["mse"] < 0.5 * alone["mse"] and 0.2 < both["share"] < 0.8
    noise = second[random.permutation(200)]
    fooled = ob.kernel_probe([kernels[0], noise @ noise.T]).held_out(T)
    assert fooled["share"] < 0.2 and fooled["mse"] == pytest.approx(alone["mse"], rel=0.1)


def test_held_out_errors_are_those_of_ridge_regression_fold_by_fold():
    """Against scikit-learn's kernel ridge on the rows themselves, with the ridge chosen here."""
    from sklearn.kernel_ridge import KernelRidge

    random = np.random.default_rng(2)
    features = random.standard_normal((40, 6))
    Z = unit(features @ random.standard_normal((6, 5)) + random.standard_normal((40, 5)))
    probe = ob.kernel_probe([features @ features.T], folds=4)
    centred = features - features.mean(0)
    centred = centred / np.sqrt((centred**2).sum(1).mean())
    errors, baseline, with_seen = [], [], []
    for fold in probe._folds:
        x, z = centred[fold.seen], Z[fold.seen]
        found = []
        for ridge in ob._RIDGES:  # generalised cross-validation, written out
            hat = np.linalg.inv(
                np.eye(30) + ridge * np.linalg.pinv((x - x.mean(0)) @ (x - x.mean(0)).T)
            )
            model = KernelRidge(alpha=ridge).fit(x - x.mean(0), z - z.mean(0))
            left = z - z.mean(0) - model.predict(x - x.mean(0))
            K = (x - x.mean(0)) @ (x - x.mean(0)).T
            hat = K @ np.linalg.inv(K + ridge * np.eye(30))
            found.append((left**2).sum() / (30 - 1 - np.trace(hat)) ** 2)
        ridge = ob._RIDGES[int(np.argmin(found))]
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
    joint, independent = ob._first_order(counts, None)
    root = np.sqrt(S).reshape(30, -1)
    np.testing.assert_allclose(joint, root @ root.T, atol=1e-12)
    after, before = np.sqrt(S.sum(1)), np.sqrt(S.sum(2))
    np.testing.assert_allclose(independent, (after @ after.T) * (before @ before.T), atol=1e-12)
    # two contexts told apart, the rest one
    first = np.argsort(-counts.occurrences, kind="stable")[:2]
    rest = np.setdiff1d(np.arange(V), first)
    coarse = np.concatenate([S[:, first], S[:, rest].sum(1, keepdims=True)], axis=1)
    root = np.sqrt(coarse).reshape(30, -1)
    np.testing.assert_allclose(ob._first_order(counts, 2)[0], root @ root.T, atol=1e-12)


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
    counts = ob.CorpusCounts(np.arange(V), pairs, sparse.coo_array(triples[:V]))
    E = np.eye(kinds)[kind[:V]] + 0.1 * random.standard_normal((V, kinds))
    assert wide.shape == (A, V, V)
    rows = ob.probe_rows(E, ob.signature_probes(counts, folds=4))
    mse = {row["signature"]: row["value"] for row in rows if row["measure"] == "probe mse"}
    assert mse["order 1"] < 0.2 * mse["mean"]
    for control in ("order 0", "order 1, independent", "order 1, other contexts"):
        assert mse[control] > 0.8 * mse["mean"], control
    assert mse["order 1, shuffled"] > 0.8 * mse["mean"]


def test_probes_refuse_what_they_cannot_use(ids, counts):
    with pytest.raises(ValueError, match="expected triples"):
        ob.signature_probes(ob.count_corpus(ids, V, 30, triples=False))
    with pytest.raises(ValueError, match="a quarter of the 8 tokens"):
        ob.kernel_probe([np.eye(8)])
    with pytest.raises(ValueError, match=r"expected shape \(20, 20\)"):
        ob.kernel_probe([np.eye(20)]).held_out(np.eye(8))


# --- Attention path ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windows(ids):
    return ob.sample_windows(ids, 12, 60, seed=1)


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
    reference = ob.attention_reference(counts, tokens, positions)
    rows = ob.attention_rows(project(heard, 4000)[None], weights[None], reference)
    found = {row["signature"]: row["value"] for row in rows}
    assert found["attention-weighted"] > 0.98
    assert max(found["present token"], found["uniform attention"]) < 0.8
    # each token with another's signature: what is left is which windows share tokens
    assert abs(found["shuffled tokens"]) < 0.7
    other = heard[np.random.default_rng(0).permutation(60)]
    rows = ob.attention_rows(project(other, 4000)[None], weights[None], reference)
    assert all(abs(row["value"]) < 0.15 for row in rows)
    # the similarities themselves, against the definition written out
    expected = alignment.cosine_similarity(heard - heard.mean(0))[np.triu_indices(60, 1)]
    np.testing.assert_allclose(reference.similarity(weights), expected, atol=1e-4)


def test_uniform_attention_is_its_own_control(counts, windows):
    tokens, positions = windows
    reference = ob.attention_reference(counts, tokens, positions)
    uniform = (np.arange(12) <= positions[:, None]) / (positions[:, None] + 1)
    written = np.random.default_rng(0).standard_normal((1, 60, 5))
    rows = ob.attention_rows(written, uniform[None], reference)
    found = {row["signature"]: row["value"] for row in rows}
    assert found["attention-weighted"] == pytest.approx(found["uniform attention"], abs=1e-6)
    here = np.eye(12)[positions]
    rows = ob.attention_rows(written, here[None], reference)
    found = {row["signature"]: row["value"] for row in rows}
    assert found["attention-weighted"] == pytest.approx(found["present token"], abs=1e-6)


@pytest.mark.parametrize("runs", [None, 2])
def test_attention_is_read_from_the_model_block_by_block(windows, runs):
    model = Transformer(V, 8, 12, 2, 2, dtype=torch.float64, runs=runs)
    models.initialize_(model, 0.3, models.seeded(range(runs or 1)) if runs else torch.Generator())
    tokens, positions = windows
    written, attention = ob.read_attention(model, tokens, positions)
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
    reference = ob.attention_reference(counts, *windows)
    rows = ob.attention_rows(*ob.read_attention(model, *windows), reference)
    found = {row["signature"]: row["value"] for row in rows}
    # its attention is uniform, and no two tokens are alike, whatever follows them
    assert found["attention-weighted"] == pytest.approx(found["uniform attention"], abs=1e-3)


def test_windows_lie_in_the_corpus_and_positions_in_the_windows(ids):
    tokens, positions = ob.sample_windows(ids, 16, 50)
    starts = [ids[i : i + 16].tobytes() for i in range(len(ids) - 15)]
    assert all(row.astype(np.uint16).tobytes() in set(starts) for row in tokens[:5])
    assert positions.min() >= 4 and positions.max() < 16
    with pytest.raises(ValueError, match="within the 5 of the corpus"):
        ob.sample_windows(ids[:5], 16)


def test_windows_of_another_vocabulary_are_refused(counts, windows):
    with pytest.raises(ValueError, match="of another vocabulary"):
        ob.attention_reference(counts, windows[0] + V, windows[1])
    reference = ob.attention_reference(counts, *windows)
    with pytest.raises(ValueError, match="expected shapes"):
        ob.attention_rows(np.ones((1, 60, 4)), np.ones((2, 60, 12)), reference)
