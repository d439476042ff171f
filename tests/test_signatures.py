"""Signatures against the definition read literally, and what they must satisfy."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staircase_lib import signatures, tasks


def literal(task, order, token, with_label=True):
    """The definition, word by word: a sequence, a position, then m others in random order."""
    joint = np.zeros((task.vocab_size,) * (order + with_label))
    condition = 0.0
    for x, y, w in zip(task.tokens, task.labels, task.weights, strict=True):
        for i in range(task.length):
            if x[i] != token:
                continue
            condition += w / task.length
            others = list(permutations([j for j in range(task.length) if j != i], order))
            for drawn in others:
                index = ((y,) if with_label else ()) + tuple(x[j] for j in drawn)
                joint[index] += w / task.length / len(others)
    return joint / condition


@st.composite
def small_tasks(draw):
    length = draw(st.integers(1, 4))
    vocab = draw(st.integers(1, 4))
    n = draw(st.integers(1, 8))
    ids = st.integers(0, vocab - 1)
    rows = draw(st.lists(st.lists(ids, min_size=length, max_size=length), min_size=n, max_size=n))
    labels = draw(st.lists(ids, min_size=n, max_size=n))
    weights = draw(st.lists(st.floats(0.01, 10), min_size=n, max_size=n))
    return tasks.from_arrays(rows, labels, weights, vocab_size=vocab)


@settings(max_examples=150, deadline=None)
@given(small_tasks(), st.data())
def test_equal_to_the_definition(task, data):
    order = data.draw(st.integers(0, task.length - 1))
    label = signatures.label_signature(task, order)
    context = signatures.context_signature(task, order)
    assert label.shape == (len(task.anchors),) + (task.vocab_size,) * (order + 1)
    for row, token in enumerate(task.anchors):
        np.testing.assert_allclose(label[row], literal(task, order, token), atol=1e-14)
        np.testing.assert_allclose(context[row], literal(task, order, token, False), atol=1e-14)


@pytest.mark.claim("3.1", "3.2")
@settings(max_examples=100, deadline=None)
@given(small_tasks())
def test_normalised_and_consistent_and_norms_fall(task):
    """Claims 3.1 and 3.2 on arbitrary weighted tasks with repeated tokens."""
    for signature in (signatures.label_signature, signatures.context_signature):
        lower = None
        for order in range(task.length):
            s = signature(task, order)
            assert (s >= 0).all()
            np.testing.assert_allclose(s.reshape(len(s), -1).sum(axis=1), 1, atol=1e-14)
            if lower is not None:
                for slot in range(s.ndim - order, s.ndim):
                    np.testing.assert_allclose(s.sum(axis=slot), lower, atol=1e-14)
                norm, before = (np.linalg.norm(a.reshape(len(a), -1), axis=1) for a in (s, lower))
                assert (norm <= before + 1e-14).all()
            lower = s


@pytest.mark.claim("3.1")
def test_a_conditional_distribution_is_no_signature():
    """Wrong variant of 3.1: normalised within each context, slots no longer sum to order 0."""
    task = tasks.from_arrays([[0, 1], [0, 2], [0, 2]], [0, 1, 2])
    s = signatures.label_signature(task, 1, [0])
    mass = s.sum(axis=1, keepdims=True)
    wrong = np.divide(s, mass, out=np.zeros_like(s), where=mass > 0)
    assert np.abs(s.sum(axis=2) - signatures.label_signature(task, 0, [0])).max() < 1e-15
    assert np.abs(wrong.sum(axis=2) - signatures.label_signature(task, 0, [0])).max() > 0.1


def test_repeated_tokens_count_twice():
    task = tasks.from_arrays([[0, 0, 1], [0, 1, 1]], [0, 1])
    # token 0 stands twice with label 0, once with label 1
    np.testing.assert_allclose(signatures.label_signature(task, 0, [0])[0], [2 / 3, 1 / 3])


@pytest.mark.claim("4.4")
def test_zeroth_order_of_modular_addition_is_the_same_for_all():
    s = signatures.label_signature(tasks.modular_addition(7, 12), 0)
    assert np.ptp(s, axis=0).max() == 0
    assert np.ptp(signatures.label_signature(tasks.addition(7, 12), 0), axis=0).max() > 0.05


def test_sparse_equals_dense():
    task = tasks.modular_addition(4, 6, length=3)
    for order in range(3):
        packed = signatures.label_signature(task, order, sparse=True)
        np.testing.assert_array_equal(packed.todense(), signatures.label_signature(task, order))


def test_zero_weight_rows_leave_no_trace():
    with_row = tasks.from_arrays([[0, 1], [0, 2]], [0, 1], [1, 0], vocab_size=3)
    assert with_row.anchors.tolist() == [0, 1]
    np.testing.assert_array_equal(signatures.label_signature(with_row, 0, [0])[0], [1, 0, 0])


@pytest.mark.claim("4.10")
def test_zero_frequency_is_one_order_less():
    task = tasks.modular_addition(5, 8, length=3)
    everyone = np.arange(task.vocab_size)
    for order in (1, 2):
        s = signatures.label_signature(task, order)
        lower = signatures.label_signature(task, order - 1)
        zero = signatures.fourier_component(s, 0, everyone)
        np.testing.assert_allclose(zero, lower, atol=1e-15)
        one = signatures.fourier_component(s, 1, everyone)
        assert np.abs(one - lower).max() > 0.01


def test_one_probe_of_ones_is_order_zero_and_slots_multiply():
    task = tasks.modular_addition(5, 8, length=3)
    s2 = signatures.label_signature(task, 2)
    ones = np.ones((task.vocab_size, 1))
    np.testing.assert_allclose(
        signatures.project(s2, ones), signatures.label_signature(task, 0), atol=1e-15
    )
    p = np.random.default_rng(0).standard_normal((task.vocab_size, 3))
    by_hand = np.einsum("ayuv,ui,vj->ayij", s2, p, p).reshape(5, -1)
    np.testing.assert_allclose(signatures.project(s2, p), by_hand, atol=1e-14)


def test_bad_input():
    task = tasks.addition(3, 4)
    with pytest.raises(ValueError, match="less than the sequence length L=2, got 2"):
        signatures.label_signature(task, 2)
    with pytest.raises(ValueError, match="non-negative integer"):
        signatures.context_signature(task, -1)
    with pytest.raises(ValueError, match=r"\[99\].*|ids in \[0, 7\)"):
        signatures.label_signature(task, 0, [99])
    unused = tasks.from_arrays([[0, 1]], [0], vocab_size=4)
    with pytest.raises(ValueError, match=r"\[3\] never occur"):
        signatures.label_signature(unused, 0, [3])
    with pytest.raises(MemoryError, match="sparse=True"):
        big = tasks.from_arrays([[0, 1, 2]], [0], vocab_size=2000)
        signatures.label_signature(big, 2)
    with pytest.raises(ValueError, match="at least one context slot"):
        signatures.project(signatures.label_signature(task, 0), np.ones((7, 1)))


@settings(max_examples=60, deadline=None)
@given(small_tasks(), st.integers(0, 10**6))
def test_attention_signature_is_the_weighted_count(task, seed):
    attention = np.random.default_rng(seed).random(task.tokens.shape)
    mass, signature = signatures.attention_signature(task, attention)
    for row, token in enumerate(task.anchors):
        for position in range(task.length):
            here = task.tokens[:, position] == token
            weight = task.weights * attention[:, position] * here
            assert mass[row, position] == pytest.approx(weight.sum())
            joint = np.bincount(task.labels, weights=weight, minlength=task.vocab_size)
            np.testing.assert_allclose(mass[row, position] * signature[row, position], joint)
    # Uniform attention, positions put together again: the zeroth-order signature.
    mass, signature = signatures.attention_signature(task, np.ones(task.tokens.shape))
    together = (mass[..., None] * signature).sum(1) / mass.sum(1)[:, None]
    np.testing.assert_allclose(together, signatures.label_signature(task, 0), atol=1e-14)


def test_attention_must_fit_the_task():
    task = tasks.addition(2, 3)
    with pytest.raises(ValueError, match=r"shape \(6, 2\).*got shape \(6, 3\)"):
        signatures.attention_signature(task, np.ones((6, 3)))
    with pytest.raises(ValueError, match="non-negative"):
        signatures.attention_signature(task, -np.ones((6, 2)))
