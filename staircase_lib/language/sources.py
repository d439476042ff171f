r"""Languages small enough to write out: Markov and hidden Markov sources as tasks.

A sentence is :math:`x_1\dots x_{L+1}`: ``L`` tokens that a model reads and the label. Every
sentence of positive probability is a row of the :class:`~staircase_lib.tasks.Task`, weighted by its
probability, so that all expectations are exact and signatures are known in advance: with memory one
and a stationary beginning the next-token signature is the transition table itself.

A *table of memory* ``k`` has shape ``(V,)*k + (V,)``: the distribution of the next token given the
last ``k``; memory 0 is the distribution of a first token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staircase_lib.tasks import Task, from_arrays

__all__ = ["hidden_markov", "loss_floor", "markov", "random_transitions", "stationary_beginnings"]

_MOST_SENTENCES = 2_000_000


def _table(values: ArrayLike, what: str, ndim: int | None = None) -> NDArray[np.float64]:
    """Checked distributions over the last axis."""
    p = np.asarray(values, dtype=np.float64)
    if p.ndim == 0 or p.size == 0 or (ndim is not None and p.ndim != ndim):
        raise ValueError(
            f"{what}: expected {'a table' if ndim is None else f'{ndim} axes'} of distributions "
            f"over the last axis, got shape {p.shape}."
        )
    if not np.isfinite(p).all() or (p < 0).any() or np.abs(p.sum(axis=-1) - 1).max() > 1e-9:
        raise ValueError(
            f"{what}: expected non-negative rows that sum to one over the last axis; "
            f"divide by the sum, and look for NaN or rows of zeros."
        )
    return p


def _square(values: ArrayLike, what: str) -> NDArray[np.float64]:
    p = _table(values, what)
    if p.ndim < 2 or len(set(p.shape)) != 1:
        raise ValueError(
            f"{what}: expected shape (V,)*k + (V,) with a memory k of at least 1, got {p.shape}."
        )
    return p


def _check_length(length: int) -> None:
    if not isinstance(length, (int, np.integer)) or isinstance(length, bool) or length < 1:
        raise ValueError(f"length: expected a positive integer, got {length!r}.")


def _check_count(count: int) -> None:
    if count > _MOST_SENTENCES:
        raise ValueError(
            f"length: expected at most {_MOST_SENTENCES:,} sentences, got {count:,} already before "
            f"the end; take shorter sentences, fewer tokens or fewer successors."
        )


def _task(words: NDArray[np.int64], p: NDArray[np.float64], vocab_size: int, name: str) -> Task:
    return from_arrays(words[:, :-1], words[:, -1], p, vocab_size, name=name)


def random_transitions(
    vocab_size: int, memory: int, generator: np.random.Generator, successors: int | None = None
) -> NDArray[np.float64]:
    """Random table: each context has some distinct successors, with uniformly random probabilities.

    Parameters
    ----------
    vocab_size, memory : int
    generator : numpy.random.Generator
    successors : int, optional
        Possible next tokens of each context; default: all.

    Returns
    -------
    float64 array, shape (V,)*memory + (V,)
    """
    successors = vocab_size if successors is None else successors
    if not 1 <= successors <= vocab_size or memory < 0:
        raise ValueError(
            f"successors, memory: expected 1 to {vocab_size} successors and a memory not below 0, "
            f"got {successors} and {memory}."
        )
    table = np.zeros((vocab_size,) * (memory + 1))
    for context in np.ndindex((vocab_size,) * memory):
        chosen = generator.choice(vocab_size, successors, replace=False)
        table[(*context, chosen)] = generator.dirichlet(np.ones(successors))
    return table


def stationary_beginnings(transitions: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    """Tables of memory 0, ..., k - 1 with which a chain of memory k is stationary from the start.

    Parameters
    ----------
    transitions : float array, shape (V,)*k + (V,), k >= 1

    Returns
    -------
    tuple of float64 arrays

    Raises
    ------
    ValueError
        If more than one stationary distribution exists.
    """
    step = _square(transitions, "transitions")
    memory, vocab_size = step.ndim - 1, step.shape[0]
    contexts = vocab_size**memory
    # From context (x_1..x_k) to (x_2..x_k, y)
    move = np.zeros((contexts, contexts))
    flat = step.reshape(contexts, vocab_size)
    for y in range(vocab_size):
        later = (np.arange(contexts) * vocab_size + y) % contexts
        move[np.arange(contexts), later] += flat[:, y]
    system = np.vstack([move.T - np.eye(contexts), np.ones(contexts)])
    if np.linalg.matrix_rank(system) < contexts:
        raise ValueError(
            "transitions: expected a single stationary distribution, got several, as the chain "
            "falls apart; give the beginnings instead."
        )
    right = np.append(np.zeros(contexts), 1.0)
    joint = np.linalg.lstsq(system, right, rcond=None)[0]
    joint[joint < 1e-12] = 0.0  # rounding: contexts that the chain leaves for good
    joint = (joint / joint.sum()).reshape((vocab_size,) * memory)
    tables = []
    for known in range(memory):
        marginal = joint.sum(axis=tuple(range(known + 1, memory)))
        total = marginal.sum(axis=-1, keepdims=True)
        # A context that never occurs needs some row: the uniform one.
        row = np.where(total > 0, marginal, 1.0)
        tables.append(row / row.sum(axis=-1, keepdims=True))
    return tuple(tables)


def markov(
    transitions: ArrayLike,
    length: int,
    beginnings: Sequence[ArrayLike] | None = None,
    name: str = "Markov language",
) -> Task:
    r"""Every sentence of a Markov chain whose next token depends on the last ``k``.

    Parameters
    ----------
    transitions : float array, shape (V,)*k + (V,), k >= 1
    length : int
        ``L``; the label is the token after the last.
    beginnings : sequence of k float arrays, optional
        Tables of memory 0 to k - 1, for the first tokens. Default: the stationary ones, with which
        every window of a sentence has the same distribution wherever it lies.
    name : str, optional

    Returns
    -------
    Task

    Raises
    ------
    ValueError
        If a table is none, their number or vocabulary is wrong, or there are too many sentences.

    Examples
    --------
    >>> coin = markov([[0.5, 0.5], [1.0, 0.0]], length=1)
    >>> coin.tokens.ravel().tolist(), coin.labels.tolist()
    ([0, 0, 1], [0, 1, 0])
    >>> coin.weights.round(3).tolist()
    [0.333, 0.333, 0.333]
    """
    step = _square(transitions, "transitions")
    memory, vocab_size = step.ndim - 1, step.shape[0]
    _check_length(length)
    given = stationary_beginnings(step) if beginnings is None else beginnings
    if len(given) != memory:
        raise ValueError(
            f"beginnings: expected {memory}, tables of memory 0 to {memory - 1}, got {len(given)}."
        )
    tables = [_table(t, f"beginnings[{k}]", k + 1) for k, t in enumerate(given)] + [step]
    for k, table in enumerate(tables):
        if table.shape[-1] != vocab_size:
            raise ValueError(
                f"beginnings[{k}]: expected {vocab_size} tokens, as the transitions have, "
                f"got {table.shape[-1]}."
            )
    words, p = np.zeros((1, 0), dtype=np.int64), np.ones(1)
    for position in range(length + 1):
        known = min(memory, position)
        q = p[:, None] * tables[known][tuple(words[:, position - known :].T)]
        row, token = np.nonzero(q)
        _check_count(len(row))
        words, p = np.column_stack([words[row], token]), q[row, token]
    return _task(words, p, vocab_size, name)


def hidden_markov(
    transitions: ArrayLike,
    emissions: ArrayLike,
    length: int,
    start: ArrayLike | None = None,
    name: str = "hidden Markov language",
) -> Task:
    r"""Every sentence of a hidden Markov source, with its exact probability.

    .. math:: P(x_1\dots x_{L+1})=\sum_{s_1\dots s_{L+1}}\pi(s_1)\,O(x_1\mid s_1)
              \prod_l T(s_{l+1}\mid s_l)\,O(x_{l+1}\mid s_{l+1})

    Unlike in a Markov language, every token of the past may matter.

    Parameters
    ----------
    transitions : float array, shape (H, H)
        Rows :math:`T(\cdot\mid s)`.
    emissions : float array, shape (H, V)
        Rows :math:`O(\cdot\mid s)`.
    length : int
    start : float array, shape (H,), optional
        Default: the stationary distribution.
    name : str, optional

    Returns
    -------
    Task

    Raises
    ------
    ValueError
        If a table is none, shapes disagree, or there are too many sentences.
    """
    T = _square(transitions, "transitions")
    if T.ndim != 2:
        raise ValueError(f"transitions: expected shape (H, H), got {T.shape}.")
    O = _table(emissions, "emissions", 2)  # noqa: E741 (the letter of the formula)
    first = stationary_beginnings(T)[0] if start is None else _table(start, "start", 1)
    if O.shape[0] != len(T) or first.shape != (len(T),):
        raise ValueError(
            f"emissions, start: expected {len(T)} states, as the transitions have, got shapes "
            f"{O.shape} and {first.shape}."
        )
    _check_length(length)
    words, state = np.zeros((1, 0), dtype=np.int64), first[None]  # P(words, next state)
    p = np.ones(1)
    for _ in range(length + 1):
        joint = state[:, None, :] * O.T  # (n, V, H)
        q = joint.sum(axis=-1)
        row, token = np.nonzero(q)
        _check_count(len(row))
        words, p = np.column_stack([words[row], token]), q[row, token]
        state = joint[row, token] @ T
    return _task(words, p, O.shape[1], name)


def loss_floor(task: Task) -> float:
    r"""The loss that no next-token predictor can go below, every position predicting.

    .. math:: \frac{H(x_1\dots x_{L+1})-H(x_1)}L

    Parameters
    ----------
    task : Task
        Sentences may occur in several rows.

    Returns
    -------
    float
        In nats a position.
    """

    def entropy(rows: NDArray[np.int64]) -> float:
        inverse = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        p = np.bincount(inverse, weights=task.weights)
        p = p[p > 0]
        return float(-(p @ np.log(p)))

    sentences = np.column_stack([task.tokens, task.labels])
    return (entropy(sentences) - entropy(task.tokens[:, :1])) / task.length
