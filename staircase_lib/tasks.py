r"""Tasks: weighted sets of token sequences with a label.

A task is the whole training distribution, written out: ``n`` sequences
:math:`X=(x_1,\dots,x_L)\in\mathcal V^L`, each with a label :math:`y\in\mathcal V` and a weight, the
weights summing to one. Labels are tokens of the same vocabulary as the inputs (section 3.1 of
arXiv:2608.30315). Everything that the book computes about data is an exact weighted sum over
these rows; nothing is sampled.

Shapes: ``n`` sequences, ``L`` positions, ``V`` vocabulary, ``A`` anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Task",
    "addition",
    "from_arrays",
    "from_function",
    "merge_permutations",
    "min_max",
    "modular_addition",
    "parity",
    "prescribed_labels",
]


@dataclass(frozen=True, eq=False)
class Task:
    """A weighted, labelled set of token sequences. Build one with a function of this module.

    Attributes
    ----------
    tokens : int64 array, shape (n, L)
    labels : int64 array, shape (n,)
    weights : float64 array, shape (n,)
        Non-negative, summing to one.
    vocab_size : int
        ``V``; every token and label is in ``[0, V)``.
    anchors : int64 array, shape (A,)
        The tokens whose embeddings are followed.
    name : str

    Notes
    -----
    The arrays are read-only, so that a task can be shared without being copied.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    vocab_size: int
    anchors: NDArray[np.int64]
    name: str = ""

    @property
    def length(self) -> int:
        """Sequence length ``L``."""
        return self.tokens.shape[1]

    @property
    def chance(self) -> float:
        """Accuracy of the best constant answer: the largest label probability."""
        return float(np.bincount(self.labels, weights=self.weights).max())

    def token_probability(self, tokens: ArrayLike | None = None) -> NDArray[np.float64]:
        r"""Probability that a uniformly drawn position holds each token, :math:`P(\alpha)`.

        Parameters
        ----------
        tokens : array of int, optional
            The asked tokens; default: the anchors.

        Returns
        -------
        float64 array, one entry per asked token
        """
        per_position = np.repeat(self.weights / self.length, self.length)
        p = np.bincount(self.tokens.ravel(), weights=per_position, minlength=self.vocab_size)
        p = p.astype(np.float64)
        return p[self.anchors if tokens is None else np.asarray(tokens, dtype=np.int64)]

    def __repr__(self) -> str:
        n, length = self.tokens.shape
        return (
            f"Task({self.name!r}: {n} sequences of length {length}, "
            f"V={self.vocab_size}, {len(self.anchors)} anchors)"
        )


def _integers(values: ArrayLike, what: str, ndim: int) -> NDArray[np.int64]:
    shape = "(n, L)" if ndim == 2 else "(n,)"
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{what}: expected an integer array of shape {shape}, got rows of different lengths; "
            f"all must have the same number of tokens."
        ) from None
    if array.ndim != ndim:
        raise ValueError(
            f"{what}: expected an integer array of shape {shape}, got shape {array.shape}."
        )
    if array.size == 0:
        raise ValueError(f"{what}: expected at least one entry, got shape {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(
            f"{what}: expected integers, got dtype {array.dtype}; map your symbols to token ids "
            f"0..V-1 first, for example with numpy.unique(..., return_inverse=True)."
        )
    return array.astype(np.int64)


def _in_vocabulary(array: NDArray[np.int64], what: str, vocab_size: int) -> None:
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{what}: expected ids in [0, {vocab_size}), got values from {low} to {high}; "
            f"raise vocab_size or remap the ids."
        )


def _normalised(weights: ArrayLike, n: int) -> NDArray[np.float64]:
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (n,):
        raise ValueError(f"weights: expected one per sequence, shape ({n},), got shape {w.shape}.")
    if not np.isfinite(w).all():
        bad = int(np.flatnonzero(~np.isfinite(w))[0])
        raise ValueError(
            f"weights: expected finite numbers, got {w[bad]} at row {bad}; drop or mend that row."
        )
    if (w < 0).any():
        bad = int(np.flatnonzero(w < 0)[0])
        raise ValueError(f"weights: expected non-negative numbers, got {w[bad]} at row {bad}.")
    # Divided by the largest first: neither huge nor subnormal weights lose the sum.
    largest = w.max()
    if largest == 0:
        raise ValueError("weights: expected a positive sum, got only zeros; omit them instead.")
    w = w / largest
    return w / w.sum()


def from_arrays(
    tokens: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    vocab_size: int | None = None,
    anchors: ArrayLike | None = None,
    name: str = "",
) -> Task:
    """Task from arrays of sequences and labels.

    Parameters
    ----------
    tokens : int array, shape (n, L)
    labels : int array, shape (n,)
    weights : float array, shape (n,), optional
        Non-negative, finite, not all zero; normalised to sum one. Default: uniform.
    vocab_size : int, optional
        Default: one more than the largest token or label.
    anchors : int array, shape (A,), optional
        Distinct tokens, each occurring with positive weight. Default: every token that does.
    name : str, optional

    Returns
    -------
    Task

    Raises
    ------
    TypeError
        If tokens, labels or anchors are not integers.
    ValueError
        If shapes disagree, the task is empty, ids leave the vocabulary, weights are negative, not
        finite or sum to zero, or an anchor never occurs.
    """
    tokens = _integers(tokens, "tokens", 2)
    labels = _integers(labels, "labels", 1)
    n = len(tokens)
    if len(labels) != n:
        raise ValueError(
            f"labels: expected one per sequence, that is {n}, got {len(labels)}; "
            f"tokens has shape {tokens.shape}."
        )
    if vocab_size is None:
        vocab_size = int(max(tokens.max(), labels.max())) + 1
    else:
        _positive(vocab_size=vocab_size)
    vocab_size = int(vocab_size)
    _in_vocabulary(tokens, "tokens", vocab_size)
    _in_vocabulary(labels, "labels", vocab_size)

    probability = np.full(n, 1.0 / n) if weights is None else _normalised(weights, n)

    occurring = np.unique(tokens[probability > 0])
    if anchors is None:
        followed = occurring
    else:
        followed = _integers(anchors, "anchors", 1)
        _in_vocabulary(followed, "anchors", vocab_size)
        if len(np.unique(followed)) != len(followed):
            raise ValueError(f"anchors: expected distinct tokens, got {followed.tolist()}.")
        absent = np.setdiff1d(followed, occurring)
        if absent.size:
            raise ValueError(
                f"anchors: expected tokens that occur with positive weight, but "
                f"{absent.tolist()} never do; a signature conditions on the token occurring."
            )
    for array in (tokens, labels, probability, followed):
        array.setflags(write=False)
    return Task(tokens, labels, probability, vocab_size, followed, name)


def from_function(
    function: Callable[..., int],
    slots: Sequence[Iterable[int]],
    vocab_size: int | None = None,
    anchors: ArrayLike | None = None,
    name: str = "",
) -> Task:
    """Task of every sequence that the slots allow, labelled by a function, uniformly weighted.

    Parameters
    ----------
    function : callable
        Called as ``function(x_1, ..., x_L)`` with Python ints; returns the label as an int.
    slots : sequence of iterables of int
        For each position the token ids that it takes; all combinations are enumerated.
    vocab_size, anchors, name
        As in :func:`from_arrays`.

    Returns
    -------
    Task

    Raises
    ------
    TypeError
        If the function returns anything but an integer.
    ValueError
        If there is no slot or a slot is empty; otherwise as :func:`from_arrays`.

    Examples
    --------
    >>> larger = from_function(max, [range(3), range(3)], name="larger of two")
    >>> larger.labels.tolist()
    [0, 1, 2, 1, 1, 2, 2, 2, 2]
    """
    alphabets = [list(slot) for slot in slots]
    if not alphabets or not all(alphabets):
        raise ValueError(
            f"slots: expected at least one position, each with at least one token, "
            f"got sizes {[len(a) for a in alphabets]}."
        )
    sequences = list(product(*alphabets))
    labels = [function(*sequence) for sequence in sequences]
    for sequence, label in zip(sequences, labels, strict=True):
        if isinstance(label, (bool, np.bool_)) or not isinstance(label, (int, np.integer)):
            raise TypeError(
                f"function: expected an integer label, got {label!r} for sequence {sequence}; "
                f"return int(...)."
            )
    return from_arrays(
        np.array(sequences), np.array(labels, dtype=np.int64), None, vocab_size, anchors, name
    )


def _positive(**values: int | None) -> None:
    for key, value in values.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{key}: expected a positive integer, got {value!r}.")


def _number_slots(n_anchors: int, n_contexts: int | None, length: int) -> list[range]:
    _positive(n_anchors=n_anchors, length=length)
    if n_contexts is None:
        return [range(n_anchors)] * length
    _positive(n_contexts=n_contexts)
    return [range(n_anchors)] * (length - 1) + [range(n_anchors, n_anchors + n_contexts)]


def _sums(slots: list[range], offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    grids = np.meshgrid(*[np.arange(s.start, s.stop) for s in slots], indexing="ij")
    tokens = np.stack([g.ravel() for g in grids], axis=1)
    return tokens, tokens.sum(axis=1) - offset


def addition(n_anchors: int = 20, n_contexts: int | None = 100, length: int = 2) -> Task:
    r"""Addition :math:`y=a_1+\dots+a_{L-1}+x` over all sequences (section 4 of the paper).

    Anchors are the tokens ``0 .. n_anchors-1`` with those values; the last position holds one of
    ``n_contexts`` context tokens of the disjoint range ``n_anchors .. n_anchors+n_contexts-1``
    with values ``0 .. n_contexts-1``. The label is the token whose id is the sum.

    Parameters
    ----------
    n_anchors : int
    n_contexts : int or None
        None: no separate range, every position holds one of the ``n_anchors`` numbers.
    length : int

    Returns
    -------
    Task
        ``n_anchors**(length-1) * n_contexts`` sequences, uniformly weighted.
    """
    slots = _number_slots(n_anchors, n_contexts, length)
    tokens, labels = _sums(slots, 0 if n_contexts is None else n_anchors)
    return from_arrays(tokens, labels, anchors=np.arange(n_anchors), name="addition")


def modular_addition(
    n_anchors: int = 20,
    n_contexts: int | None = 100,
    modulus: int | None = None,
    length: int = 2,
    vocab_size: int | None = None,
) -> Task:
    r"""Modular addition :math:`y=(a_1+\dots+a_{L-1}+x)\bmod M` (section 4 of the paper).

    Tokens as in :func:`addition`. With the default modulus, the number of values that the last
    position takes, :math:`S^{(0)}_\alpha` is the same for every anchor.

    Parameters
    ----------
    n_anchors : int
    n_contexts : int or None
        None: shared tokens, every position holds one of the ``n_anchors`` numbers.
    modulus : int, optional
        Default: ``n_contexts``, or ``n_anchors`` for shared tokens.
    length : int
    vocab_size : int, optional
        Default: the smallest that holds all tokens. With every token a label and all labels
        equally likely, an untrained model's uniform output is already the zeroth-order answer,
        and order zero has nothing to drive.

    Returns
    -------
    Task
    """
    if modulus is None:
        modulus = n_anchors if n_contexts is None else n_contexts
    _positive(modulus=modulus)
    slots = _number_slots(n_anchors, n_contexts, length)
    tokens, sums = _sums(slots, 0 if n_contexts is None else n_anchors)
    return from_arrays(
        tokens,
        sums % modulus,
        vocab_size=vocab_size,
        anchors=np.arange(n_anchors),
        name=f"modular addition, M={modulus}",
    )


def parity(n_anchors: int = 2, n_noise: int = 3, length: int = 3) -> Task:
    """Parity of the number of anchor tokens among all sequences of anchor and noise tokens.

    Anchors are tokens ``0 .. n_anchors-1``, noise tokens follow; the label is token 0 or 1.

    Parameters
    ----------
    n_anchors, n_noise, length : int

    Returns
    -------
    Task
        ``(n_anchors + n_noise)**length`` sequences; ``anchors`` holds the anchor tokens only.
    """
    _positive(n_anchors=n_anchors, n_noise=n_noise, length=length)
    return from_function(
        lambda *x: sum(token < n_anchors for token in x) % 2,
        [range(n_anchors + n_noise)] * length,
        vocab_size=max(n_anchors + n_noise, 2),
        anchors=np.arange(n_anchors),
        name="parity",
    )


def min_max(n_numbers: int = 20) -> Task:
    """Smaller or larger of two numbers, as an operator token says: sequences (operator, a, b).

    Numbers are tokens ``0 .. n_numbers-1``, *min* is ``n_numbers``, *max* is ``n_numbers + 1``.

    Parameters
    ----------
    n_numbers : int

    Returns
    -------
    Task
        ``2 * n_numbers**2`` sequences; anchors are the numbers.
    """
    _positive(n_numbers=n_numbers)
    return from_function(
        lambda op, a, b: min(a, b) if op == n_numbers else max(a, b),
        [(n_numbers, n_numbers + 1), range(n_numbers), range(n_numbers)],
        anchors=np.arange(n_numbers),
        name="min-max",
    )


def prescribed_labels(
    probabilities: ArrayLike, n_contexts: int, generator: np.random.Generator, name: str = ""
) -> Task:
    """Labels drawn once from a prescribed distribution of each anchor, then fixed.

    Sequences are all pairs (anchor, context). Each pair's label is one draw from its anchor's
    distribution, so a context says nothing about the label, and the anchor's exact zeroth-order
    signature is the histogram of its draws (appendix A.1.2 of the paper).

    Parameters
    ----------
    probabilities : float array, shape (n_anchors, n_labels)
        Non-negative rows; each is normalised to sum one.
    n_contexts : int
    generator : numpy.random.Generator
    name : str, optional

    Returns
    -------
    Task
        Anchors are tokens ``0 .. n_anchors-1``, contexts follow, labels are ``0 .. n_labels-1``.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.size == 0:
        raise ValueError(f"probabilities: expected shape (n_anchors, n_labels), got {p.shape}.")
    if not np.isfinite(p).all() or (p < 0).any() or (p.sum(axis=1) == 0).any():
        raise ValueError(
            "probabilities: expected finite non-negative rows with a positive sum; "
            "look for NaN, negative entries or rows of zeros."
        )
    _positive(n_contexts=n_contexts)
    p = p / p.sum(axis=1, keepdims=True)
    n_anchors, n_labels = p.shape
    labels = np.stack([generator.choice(n_labels, size=n_contexts, p=row) for row in p])
    anchor, context = np.meshgrid(np.arange(n_anchors), np.arange(n_contexts), indexing="ij")
    return from_arrays(
        np.stack([anchor.ravel(), n_anchors + context.ravel()], axis=1),
        labels.ravel(),
        vocab_size=max(n_anchors + n_contexts, n_labels),
        anchors=np.arange(n_anchors),
        name=name or "prescribed labels",
    )


def merge_permutations(task: Task) -> Task:
    """The same task for a model that ignores order: equal multisets with equal label, merged.

    Exact for :class:`~staircase_lib.models.EmbeddingFFN`, whose loss then has fewer rows; not for
    models with positions.

    Parameters
    ----------
    task : Task

    Returns
    -------
    Task
        Rows sorted within and between sequences, weights added up; anchors and vocabulary kept.
    """
    rows = np.concatenate([np.sort(task.tokens, axis=1), task.labels[:, None]], axis=1)
    merged, inverse = np.unique(rows, axis=0, return_inverse=True)
    weights = np.bincount(inverse.ravel(), weights=task.weights)
    return from_arrays(
        merged[:, :-1], merged[:, -1], weights, task.vocab_size, task.anchors, task.name
    )
