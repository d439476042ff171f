r"""A corpus counted once, for the comparison with a language model at all of its checkpoints.

The signatures of :math:`A` chosen tokens come from the counts of what stands beside them; order 1,
which only a probe needs (:mod:`~staircase_lib.language.kernel_probes`), from counts of triples.

Shapes: ``V`` vocabulary, ``A`` chosen tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.language.counting import Form, corpus_signature, count_signatures
from staircase_lib.language.similarity import inner_products

__all__ = ["CorpusCounts", "count_corpus"]

Side = Literal["next", "previous", "both"]


@dataclass(frozen=True)
class CorpusCounts:
    """What the measurements need to know of a corpus.

    Attributes
    ----------
    tokens : int64 array, shape (A,)
        The chosen tokens, most frequent first.
    pairs : sparse array, shape (V, V), int64
        Counts of (token, next), all tokens.
    triples : sparse array, shape (A, V, V), int64, or None
        Counts of (token, previous, next) of the chosen tokens.
    """

    tokens: NDArray[np.int64]
    pairs: Any
    triples: Any = None

    @property
    def vocab_size(self) -> int:
        return int(self.pairs.shape[0])

    @cached_property
    def occurrences(self) -> NDArray[np.int64]:
        """How often each token of the vocabulary has a next one, shape (V,)."""
        return np.asarray(self.pairs.sum(axis=1)).ravel()

    @cached_property
    def conditionals(self) -> dict[str, tuple[Any, NDArray[np.float64]]]:
        r"""By side, ``"next"`` and ``"previous"``: :math:`P(y\mid\alpha)` and :math:`P(y)`.

        A sparse array of shape (V, V), with a row of zeros for a token that nothing is beside, and
        an array of shape (V,).
        """
        found = {}
        for side, counts in (("next", self.pairs), ("previous", sparse.csr_array(self.pairs.T))):
            share = np.asarray(counts.sum(axis=0)).ravel()
            found[side] = corpus_signature(counts), share / max(share.sum(), 1)
        return found

    def gram(self, form: Form = "centred", side: Side = "next") -> NDArray[np.float64]:
        """Inner products of the chosen tokens' signatures, shape (A, A).

        Parameters
        ----------
        form : {"probability", "centred", "root", "ppmi"}
            As in :func:`staircase_lib.language.counting.corpus_signature`; :math:`P(y)` is that of
            the whole corpus.
        side : {"next", "previous", "both"}
            Token after or before; ``"both"``: the two signatures side by side.
        """
        if side == "both":
            return self.gram(form, "next") + self.gram(form, "previous")
        if form in ("probability", "centred"):
            rows, share = self.conditionals[side]
            return inner_products(rows[self.tokens], share if form == "centred" else None)
        counts = self.pairs if side == "next" else sparse.csr_array(self.pairs.T)
        return inner_products(corpus_signature(counts, form)[self.tokens])


def count_corpus(
    ids: NDArray[np.integer],
    vocab_size: int,
    number: int = 300,
    *,
    tokens: ArrayLike | None = None,
    exclude: Sequence[int] = (),
    separator: int | None = None,
    triples: bool = True,
    **counting: Any,
) -> CorpusCounts:
    """Count a corpus once, for the measurements at all checkpoints.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    vocab_size : int
        The model's, which may be larger than the tokenizer's.
    number : int
        ``A``: the most frequent tokens are chosen.
    tokens : array of int, optional
        Choose these instead; they are put in order of frequency.
    exclude : sequence of int
        Tokens that are not chosen by frequency, such as that of unknown words.
    separator : int, optional
        Between documents; never chosen.
    triples : bool
        Count order 1 too, which only the probe needs.
    **counting
        ``workers``, ``memory``, ``progress`` of
        :func:`staircase_lib.language.counting.count_signatures`.

    Raises
    ------
    ValueError
        If fewer than three of the tokens occur, or one that is asked for does not; and as
        ``count_signatures``.
    """
    pairs = count_signatures(ids, vocab_size, 0, separator=separator, **counting)
    often = np.asarray(pairs.sum(axis=1)).ravel()
    if tokens is None:
        often[list(exclude)] = 0
        chosen = np.argsort(-often, kind="stable")[: max(number, 0)]
        chosen = chosen[often[chosen] > 0]
    else:
        chosen = np.asarray(tokens, dtype=np.int64)
        outside = chosen[(chosen < 0) | (chosen >= vocab_size)]
        absent = outside if outside.size else chosen[often[chosen] == 0]
        if absent.size:
            raise ValueError(
                f"tokens: expected tokens that occur in the corpus, got {absent[:5].tolist()}; "
                f"leave them out or count more text."
            )
        chosen = chosen[np.argsort(-often[chosen], kind="stable")]
    if len(chosen) < 3:
        raise ValueError(
            f"tokens: expected three or more that occur, to have pairs to compare, got "
            f"{len(chosen)} in {len(ids)} ids."
        )
    found = None
    if triples:
        found = count_signatures(ids, vocab_size, 1, tokens=chosen, separator=separator, **counting)
    return CorpusCounts(chosen.astype(np.int64), pairs, found)
