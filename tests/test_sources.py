"""Markov and hidden Markov languages against brute force and known signatures."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staircase_lib.language import paths, sources


def next_token(task):
    mass, signature = paths.next_token_signature(task)
    joint = (mass[..., None] * signature).sum(1)
    return joint / joint.sum(-1, keepdims=True), signature


def probabilities(task):
    """Probability of every sentence, by enumeration of the rows."""
    rows = np.column_stack([task.tokens, task.labels]).tolist()
    return {tuple(row): p for row, p in zip(rows, task.weights, strict=True)}


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(1, 2), st.integers(1, 3), st.integers(0, 10**6))
def test_a_markov_language_is_its_chain(vocab_size, memory, length, seed):
    table = sources.random_transitions(vocab_size, memory, np.random.default_rng(seed))
    task = sources.markov(table, length)
    beginnings = sources.stationary_beginnings(table)
    found = probabilities(task)
    for words in product(range(vocab_size), repeat=length + 1):
        p = 1.0
        for k, word in enumerate(words):
            known = words[max(0, k - memory) : k]
            p *= (*beginnings, table)[len(known)][(*known, word)]
        assert found.pop(words, 0.0) == pytest.approx(p, abs=1e-12)
    assert not found
    mean, by_position = next_token(task)
    np.testing.assert_allclose(by_position, np.repeat(mean[:, None], length, 1), atol=1e-9)
    if memory == 1:
        np.testing.assert_allclose(mean, table, atol=1e-9)
    else:  # the last two positions of a window see the table itself
        pairs = np.zeros_like(table)
        if length > 1:
            index = (task.tokens[:, -2], task.tokens[:, -1], task.labels)
            np.add.at(pairs, index, task.weights)
            np.testing.assert_allclose(pairs / pairs.sum(-1, keepdims=True), table, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 3), st.integers(2, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_a_hidden_markov_language_sums_over_its_states(states, vocab_size, length, seed):
    generator = np.random.default_rng(seed)
    T = sources.random_transitions(states, 1, generator)
    emit = generator.dirichlet(np.ones(vocab_size), size=states)
    task = sources.hidden_markov(T, emit, length)
    (first,) = sources.stationary_beginnings(T)
    np.testing.assert_allclose(first @ T, first, atol=1e-12)
    found = probabilities(task)
    for words in product(range(vocab_size), repeat=length + 1):
        p = 0.0
        for path in product(range(states), repeat=length + 1):
            q = first[path[0]] * emit[path[0], words[0]]
            for k in range(length):
                q *= T[path[k], path[k + 1]] * emit[path[k + 1], words[k + 1]]
            p += q
        assert found[words] == pytest.approx(p, abs=1e-14)
    joint = np.einsum("s,sa,st,tb->ab", first, emit, T, emit)
    mean, by_position = next_token(task)
    np.testing.assert_allclose(mean, joint / joint.sum(1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(by_position, np.repeat(mean[:, None], length, 1), atol=1e-12)


def test_a_hidden_state_that_shows_itself_is_a_markov_chain():
    T = sources.random_transitions(3, 1, np.random.default_rng(0))
    hidden, plain = sources.hidden_markov(T, np.eye(3), 3), sources.markov(T, 3)
    for name in ("tokens", "labels", "weights"):
        np.testing.assert_allclose(getattr(hidden, name), getattr(plain, name))


def test_given_beginnings_are_kept():
    table = sources.random_transitions(4, 2, np.random.default_rng(1), 2)
    start = np.array([0.5, 0.5, 0, 0])
    second = np.full((4, 4), 0.25)
    task = sources.markov(table, 2, (start, second))
    np.testing.assert_allclose(np.bincount(task.tokens[:, 0], task.weights, 4), start)
    assert len(task.labels) == 2 * 4 * 2
    _, signature = next_token(task)
    assert np.abs(signature[0, 0] - signature[0, 1]).max() > 0.01  # not stationary


def test_random_tables_have_the_asked_successors():
    table = sources.random_transitions(6, 2, np.random.default_rng(2), 3)
    assert table.shape == (6, 6, 6)
    np.testing.assert_array_equal((table > 0).sum(-1), 3)
    np.testing.assert_allclose(table.sum(-1), 1)


def test_tokens_that_the_chain_leaves_do_not_occur():
    task = sources.markov([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]], 3)
    assert task.anchors.tolist() == [0, 1] and task.vocab_size == 3


def test_the_floor_is_the_conditional_entropy():
    T = sources.random_transitions(4, 1, np.random.default_rng(0))
    (first,) = sources.stationary_beginnings(T)
    expected = -(first[:, None] * T * np.log(T)).sum()
    assert sources.loss_floor(sources.markov(T, 3)) == pytest.approx(expected)
    # A memory of two leaves more to be known than its next-token table says.
    task = sources.markov(sources.random_transitions(4, 2, np.random.default_rng(0)), 3)
    mass, signature = paths.next_token_signature(task)
    by_one_token = -(mass[..., None] * signature * np.log(signature)).sum()
    assert sources.loss_floor(task) < by_one_token - 0.05


def test_bad_input():
    with pytest.raises(ValueError, match="sum to one"):
        sources.markov([[0.5, 0.6], [1, 0]], 2)
    with pytest.raises(ValueError, match=r"expected shape \(V,\)\*k"):
        sources.markov([[0.5, 0.5]], 2)
    with pytest.raises(ValueError, match="single stationary distribution"):
        sources.markov(np.eye(2), 2)
    with pytest.raises(ValueError, match="expected 1, tables of memory 0 to 0, got 2"):
        sources.markov([[0.5, 0.5], [1, 0]], 2, ([1, 0], [[1, 0], [0, 1]]))
    with pytest.raises(ValueError, match="length: expected a positive integer, got 0"):
        sources.markov([[0.5, 0.5], [1, 0]], 0)
    with pytest.raises(ValueError, match="at most 2,000,000 sentences"):
        sources.markov(np.full((20, 20), 0.05), 6)
    with pytest.raises(ValueError, match="expected 2 states"):
        sources.hidden_markov([[0.5, 0.5], [1, 0]], np.eye(3), 2)
    with pytest.raises(ValueError, match="1 to 3 successors"):
        sources.random_transitions(3, 1, np.random.default_rng(0), 4)
