"""Alignment statistics against independent computations, and probes that can fail."""

import numpy as np
import pytest

from staircase_lib import alignment, signatures, tasks

RNG = np.random.default_rng(0)


def test_cosine_similarity_is_the_definition():
    x = RNG.standard_normal((5, 7))
    s = alignment.cosine_similarity(x)
    for i in range(5):
        for j in range(5):
            expected = x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])
            assert s[i, j] == pytest.approx(expected)


def test_cosine_similarity_of_tiny_zero_and_complex_rows():
    x = RNG.standard_normal((4, 3))
    np.testing.assert_allclose(
        alignment.cosine_similarity(1e-200 * x), alignment.cosine_similarity(x), atol=1e-14
    )
    assert alignment.cosine_similarity([[0, 0], [1, 0], [0, 0]])[0].tolist() == [1, 0, 0]
    z = x + 1j * RNG.standard_normal((4, 3))
    stacked = np.concatenate([z.real, z.imag], axis=1)
    np.testing.assert_allclose(
        alignment.cosine_similarity(z), alignment.cosine_similarity(stacked), atol=1e-14
    )


@pytest.mark.claim("4.1")
def test_pearson_over_pairs_is_corrcoef_and_ignores_the_diagonal():
    a, b = RNG.standard_normal((2, 6, 6))
    a, b = a + a.T, b + b.T
    upper = np.triu_indices(6, 1)
    expected = np.corrcoef(a[upper], b[upper])[0, 1]
    assert alignment.pearson_offdiagonal(a, b) == pytest.approx(expected)
    assert alignment.pearson_offdiagonal(a + 100 * np.eye(6), b) == pytest.approx(expected)


def test_pearson_of_a_constant_geometry_is_undefined():
    s0 = signatures.label_signature(tasks.modular_addition(6, 10), 0)
    r = alignment.alignment(RNG.standard_normal((6, 4)), s0)
    assert np.isnan(r)


def test_leading_axes_are_carried():
    x, y = RNG.standard_normal((3, 2, 5, 4)), RNG.standard_normal((5, 9))
    r = alignment.alignment(x, y)
    assert r.shape == (3, 2)
    assert r[1, 1] == pytest.approx(float(alignment.alignment(x[1, 1], y)))


def test_pca_spans_and_signs():
    line = np.outer(np.arange(6.0), [-3, 0, 4]) + 7
    points, explained = alignment.pca(line, 2)
    np.testing.assert_allclose(explained, [1, 0], atol=1e-12)
    np.testing.assert_allclose(points[:, 0], 5 * (np.arange(6) - 2.5), atol=1e-12)
    _, none = alignment.pca(np.ones((4, 3)), 2)
    assert none.tolist() == [0, 0]


@pytest.mark.claim("C.1")
def test_effective_dimension_of_known_shapes():
    line = np.outer(np.arange(6.0), [3.0, 0, 4]) + 7
    corners = np.eye(5)  # a regular simplex: four equal variances
    shapes = {"line": (line, 1), "circle": (circle(20, 1), 2), "simplex": (corners, 4)}
    for name, (x, expected) in shapes.items():
        assert alignment.effective_dimension(x) == pytest.approx(expected), name
    assert alignment.effective_dimension(np.ones((4, 3))) == 0
    assert alignment.effective_dimension(RNG.standard_normal((2, 3, 5, 4))).shape == (2, 3)


def circle(n=20, frequency=3, modulus=20):
    angle = 2 * np.pi * frequency * np.arange(n) / modulus
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


@pytest.mark.claim("4.6")
def test_probe_finds_a_frequency_in_first_order_and_not_in_zeroth():
    """Modular addition: a circle of any frequency is a contraction of order 1, none of order 0."""
    task = tasks.modular_addition(20, 20)
    target = alignment.cosine_similarity(circle())
    first = alignment.fit_probe(signatures.label_signature(task, 1), target)
    assert first.correlation > 0.99
    assert first.mse < 0.02 * first.baseline_mse
    zeroth = alignment.fit_probe(signatures.label_signature(task, 0), target)
    assert np.isnan(zeroth.correlation)
    assert zeroth.mse > first.baseline_mse
    # Wrong variant: signatures handed to the wrong tokens.
    mixed = np.random.default_rng(1).permutation(20)
    shuffled = alignment.fit_probe(signatures.label_signature(task, 1)[mixed], target)
    assert shuffled.correlation < 0.5
    assert shuffled.mse > 0.5 * shuffled.baseline_mse


@pytest.mark.claim("4.5", "5.3")
def test_held_out_predictions_never_saw_their_token():
    """A target of pure noise is fitted in sample and not predicted out of it."""
    task = tasks.modular_addition(20, 20)
    noise = alignment.cosine_similarity(np.random.default_rng(2).standard_normal((20, 30)))
    probe = alignment.fit_probe(
        signatures.label_signature(task, 1)[np.random.default_rng(3).permutation(20)], noise
    )
    assert probe.correlation < 0.3
    assert probe.mse > 0.9 * probe.baseline_mse


def test_probe_gradient_is_the_derivative():
    features = RNG.random((5, 4, 3))
    target = alignment.cosine_similarity(RNG.standard_normal((5, 2)))
    start = RNG.standard_normal((3, 2))

    def loss(p):
        g = (features @ p).reshape(5, -1)
        e = alignment.cosine_similarity(g) - target
        return (e**2).sum() / 20 + 1e-3 * (p**2).mean()

    fitted = alignment._fit(features, target, start, 1e-3, 500)
    step = 1e-5 * RNG.standard_normal(fitted.shape)
    assert loss(fitted) < loss(start)
    assert abs(loss(fitted + step) - loss(fitted)) < 1e-7


@pytest.mark.parametrize("order", [0, 1, 2])
def test_zeros_of_a_signature_are_left_out_without_a_difference(order, monkeypatch):
    signature = signatures.label_signature(tasks.modular_addition(6, 8, length=3), order)
    target = alignment.cosine_similarity(circle(6, 1) + RNG.standard_normal((6, 2)))
    fits = []
    for share in (0.0, 2.0):  # all multiplied; none of the zeros
        monkeypatch.setattr(alignment, "_SPARSE", share)
        # A few steps: later ones magnify rounding.
        fits.append(alignment.fit_probe(signature, target, folds=3, rank=2, iterations=4))
    np.testing.assert_allclose(fits[1].probe, fits[0].probe, rtol=1e-9)
    np.testing.assert_allclose(fits[1].predicted, fits[0].predicted, rtol=1e-9)


@pytest.mark.claim("C.2")
def test_only_order_two_knows_even_frequencies():
    """The contexts of order 1 see a window of half a circle, which has no even frequency."""
    task = tasks.modular_addition(10, 20, length=3)
    first, second = (signatures.label_signature(task, m) for m in (1, 2))
    wrong = second[np.random.default_rng(1).permutation(10)]
    for frequency in (2, 4):
        target = alignment.cosine_similarity(circle(10, frequency))
        found = alignment.fit_probe(second, target)
        assert found.correlation > 0.99
        assert found.mse < 0.05 * alignment.fit_probe(first, target).mse
        assert found.mse < 0.05 * alignment.fit_probe(wrong, target).mse
    target = alignment.cosine_similarity(circle(10, 3))
    assert alignment.fit_probe(first, target).correlation > 0.99


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_probe_of_any_order_is_the_contraction_of_every_slot(slots):
    """Stationary for the loss written out anew; symmetric or not, the slots are interchangeable."""
    rng = np.random.default_rng(slots)
    signature = rng.random((6, 3) + (4,) * slots)
    target = alignment.cosine_similarity(rng.standard_normal((6, 2)))
    fitted = alignment.fit_probe(signature, target, folds=2, ridge=0.0, iterations=2000).probe

    def loss(p):
        g = signatures.project(signature, p[:, None])
        e = (alignment.cosine_similarity(g) - target)[np.triu_indices(6, 1)]
        return (e**2).mean()

    assert loss(fitted) < 0.9 * loss(np.ones(4))
    for direction in rng.standard_normal((5, 4)):
        step = 1e-3 * np.linalg.norm(fitted) * direction
        assert loss(fitted) <= loss(fitted + step) + 1e-9
    turned = alignment.fit_probe(
        np.swapaxes(signature, 2, -1), target, folds=2, ridge=0.0, iterations=2000
    ).probe
    np.testing.assert_allclose(turned, fitted, rtol=1e-6)


def test_bad_input():
    with pytest.raises(ValueError, match="finite numbers, got 1"):
        alignment.cosine_similarity([[1.0, np.nan], [0, 1]])
    with pytest.raises(ValueError, match=r"shape \(\.\.\., n, F\)"):
        alignment.cosine_similarity([1.0, 2.0])
    with pytest.raises(ValueError, match="at least 3 by 3"):
        alignment.pearson_offdiagonal(np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="k: expected between 1 and 2, got 3"):
        alignment.pca(np.zeros((2, 4)), 3)
    with pytest.raises(ValueError, match="expected shapes"):
        alignment.fit_probe(np.ones((6, 3, 4, 5)), np.eye(6), folds=2)
    with pytest.raises(ValueError, match="folds: expected between 2 and"):
        alignment.fit_probe(np.ones((6, 3)), np.eye(6), folds=5)


def test_mean_cosine_is_the_mean_over_pairs():
    rows = np.random.default_rng(0).normal(size=(2, 4, 3))
    unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    expected = [np.mean([x[i] @ x[j] for i in range(4) for j in range(i)]) for x in unit]
    np.testing.assert_allclose(alignment.mean_cosine(rows), expected, rtol=1e-12)
    assert alignment.mean_cosine(np.ones((5, 2))) == pytest.approx(1.0)
    assert np.isnan(alignment.mean_cosine(np.ones((1, 2))))
