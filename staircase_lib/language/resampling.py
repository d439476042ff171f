r"""Counts of chosen tokens block by block, so that a corpus is resampled without counting again.

Text is not a sample of independent tokens: what a speech or a chapter says, it says again. So a
bootstrap draws *blocks* of consecutive tokens :cite:`kunsch1989jackknife`. The counts of a corpus
are the sum of those of its blocks; a drawn corpus has them with integer weights.

Shapes: ``n`` ids, ``V`` vocabulary, ``A`` asked tokens, ``B`` blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.language.counting import Direction, Form, corpus_signature, count_signatures

__all__ = [
    "BlockCounts",
    "as_table",
    "count_blocks",
    "from_table",
    "shuffled",
    "signature_rows",
    "thinned",
]


@dataclass(frozen=True)
class BlockCounts:
    """Order-0 counts of asked tokens in every block of a corpus.

    Attributes
    ----------
    tokens : int64 array, shape (A,)
    vocab_size : int
    pairs : int64 array, shape (K,)
        Distinct pairs that occur, ``row * V + label``, increasing.
    asked : scipy.sparse.csr_array, shape (B, K), int64
        How often each occurs in each block.
    labels : scipy.sparse.csr_array, shape (B, V), int64
        How often each token occurs in each block: the labels that there are to be had.
    positions : int
        At how many distances a label counts: one for the next token, eight for four on each side.
    """

    tokens: NDArray[np.int64]
    vocab_size: int
    pairs: NDArray[np.int64]
    asked: Any
    labels: Any
    positions: int

    @property
    def blocks(self) -> int:
        """Number of blocks, ``B``."""
        return self.asked.shape[0]

    def among(self, blocks: Sequence[int] | slice | NDArray[np.integer]) -> BlockCounts:
        """The counts of some of the blocks, for instance those kept for a search."""
        chosen = np.arange(self.blocks)[blocks]
        return replace(self, asked=self.asked[chosen], labels=self.labels[chosen])

    def of(self, tokens: ArrayLike) -> BlockCounts:
        """The counts of some of the asked tokens, a row each in the order given."""
        rows = np.asarray(tokens, dtype=np.int64)
        row_of = np.full(self.vocab_size, -1)
        row_of[rows] = np.arange(len(rows))
        missing = np.setdiff1d(rows, self.tokens)
        if len(missing):
            raise ValueError(f"tokens: {missing.tolist()} were not asked for when it was counted.")
        old, label = np.divmod(self.pairs, self.vocab_size)
        new = row_of[self.tokens[old]]
        kept = np.flatnonzero(new >= 0)
        pairs = new[kept] * self.vocab_size + label[kept]
        order = np.argsort(pairs)
        return replace(self, tokens=rows, pairs=pairs[order], asked=self.asked[:, kept[order]])

    def total(self, weights: ArrayLike | None = None) -> Any:
        """Counts of the corpus, or of one in which each block stands as often as its weight says.

        Parameters
        ----------
        weights : array of int, shape (B,), optional
            Default: every block once.

        Returns
        -------
        scipy.sparse.csr_array, shape (A + 1, V), int64
            A row for each asked token. The last one stands for all other tokens: with it, each
            column adds up to how often its label occurs, times the positions, so that label shares
            are those of the whole text.
        """
        w = np.ones(self.blocks, np.int64) if weights is None else np.asarray(weights)
        if w.shape != (self.blocks,) or not np.issubdtype(w.dtype, np.integer) or (w < 0).any():
            raise ValueError(
                f"weights: expected {self.blocks} whole numbers, none negative, one for each "
                f"block; got shape {w.shape} of {w.dtype}."
            )
        rows, labels = np.divmod(self.pairs, self.vocab_size)
        shape = (len(self.tokens), self.vocab_size)
        asked = sparse.csr_array((w @ self.asked, (rows, labels)), shape=shape)
        asked.eliminate_zeros()
        rest = self.positions * (w @ self.labels) - asked.sum(axis=0)
        return sparse.csr_array(sparse.vstack([asked, rest[None, :]]))

    def resampled(self, seed: int) -> Any:
        """Counts of a corpus of as many blocks, drawn with replacement: as :meth:`total`."""
        draws = np.random.default_rng(seed).integers(self.blocks, size=self.blocks)
        return self.total(np.bincount(draws, minlength=self.blocks))


def count_blocks(
    ids: NDArray[np.integer],
    vocab_size: int,
    tokens: ArrayLike,
    blocks: int,
    *,
    window: int = 1,
    direction: Direction = "next",
    separator: int | None = None,
) -> BlockCounts:
    """Count pairs once, block by block.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    vocab_size : int
    tokens : array of int, shape (A,)
        Tokens whose signatures are asked for.
    blocks : int
        ``B``, the number of stretches of consecutive ids, equally long up to one id. No pair is
        counted across the ``B - 1`` cuts.
    window, direction, separator
        As in :func:`staircase_lib.language.counting.count_signatures`, order 0.

    Returns
    -------
    BlockCounts

    Raises
    ------
    ValueError
        If there are not at least two ids a block, or as ``count_signatures`` raises.
    """
    if not 1 <= blocks <= len(ids) // 2:
        raise ValueError(
            f"blocks: expected between 1 and {len(ids) // 2} for {len(ids)} ids, got {blocks}."
        )
    rows = np.asarray(tokens, dtype=np.int64)
    keys, sizes, counts, labels = [], [0], [], []
    for block in np.array_split(np.asarray(ids), blocks):
        found = count_signatures(
            block, vocab_size, 0, rows, window=window, direction=direction, separator=separator
        ).tocoo()
        keys.append(found.row.astype(np.int64) * vocab_size + found.col)
        counts.append(found.data)
        sizes.append(len(found.data))
        there = np.bincount(block, minlength=vocab_size)
        if separator is not None:
            there[separator] = 0
        labels.append(sparse.csr_array(there[None, :]))
    pairs, columns = np.unique(np.concatenate(keys), return_inverse=True)
    asked = sparse.csr_array(
        (np.concatenate(counts), columns, np.cumsum(sizes)), shape=(blocks, len(pairs))
    )
    positions = window * (2 if direction == "both" else 1)
    return BlockCounts(
        rows, vocab_size, pairs, asked, sparse.csr_array(sparse.vstack(labels)), positions
    )


def as_table(counts: Mapping[str, BlockCounts]) -> pd.DataFrame:
    """Counts of one text with several windows as one tidy table, to be kept.

    Parameters
    ----------
    counts : mapping from a window's name to BlockCounts
        Of the same ids, tokens and blocks.

    Returns
    -------
    DataFrame
        Columns ``window``, ``positions``, ``block``, ``token``, ``label``, ``count``. Rows with an
        empty window and token -1 say how often each label occurs in each block.
    """
    first = next(iter(counts.values()))
    every = first.labels.tocoo()
    parts = [
        {"window": "", "positions": 0, "block": every.row, "token": -1, "label": every.col}
        | {"count": every.data}
    ]
    for name, found in counts.items():
        same = np.array_equal(found.tokens, first.tokens) and found.labels.shape == every.shape
        if not same or (found.labels != first.labels).nnz:
            raise ValueError(f"counts: {name} is of other ids, tokens or blocks than the first.")
        asked = found.asked.tocoo()
        row, label = np.divmod(found.pairs[asked.col], found.vocab_size)
        parts.append(
            {"window": name, "positions": found.positions, "block": asked.row}
            | {"token": found.tokens[row], "label": label, "count": asked.data}
        )
    table = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    return table.astype({c: np.int32 for c in table if c != "window"})


def from_table(table: pd.DataFrame, tokens: ArrayLike, vocab_size: int) -> dict[str, BlockCounts]:
    """Counts that :func:`as_table` wrote.

    Parameters
    ----------
    table : DataFrame
    tokens : array of int, shape (A,)
        The asked tokens, in the order in which their rows are wanted.
    vocab_size : int

    Returns
    -------
    dict from a window's name to BlockCounts

    Raises
    ------
    ValueError
        If the table has other tokens.
    """
    rows = np.asarray(tokens, dtype=np.int64)
    row_of: Any = pd.Series(np.arange(len(rows)), index=rows)
    blocks = 1 + int(table["block"].to_numpy().max())
    whole: Any = table[table["window"] == ""]
    labels = sparse.csr_array(
        (whole["count"].to_numpy(np.int64), (whole["block"], whole["label"])),
        shape=(blocks, vocab_size),
    )
    found = {}
    for name in dict.fromkeys(table["window"]):
        if not name:
            continue
        part: Any = table[table["window"] == name]
        row = row_of.reindex(part["token"]).to_numpy()
        if np.isnan(row).any():
            raise ValueError(f"tokens: the table has others in window {name}; got {rows.tolist()}.")
        keys = row.astype(np.int64) * vocab_size + part["label"].to_numpy(np.int64)
        pairs, columns = np.unique(keys, return_inverse=True)
        asked = sparse.csr_array(
            (part["count"].to_numpy(np.int64), (part["block"], columns)),
            shape=(blocks, len(pairs)),
        )
        positions = int(part["positions"].iloc[0])
        found[name] = BlockCounts(rows, vocab_size, pairs, asked, labels, positions)
    return found


def thinned(counts: Any, seed: int, size: int | None = None) -> Any:
    """Counts in which every asked token occurs equally often.

    A frequent token has a fuller signature than a rare one, and in many orders (one, two, three, …)
    frequency falls along the order. What is left after thinning cannot be due to that.

    Parameters
    ----------
    counts : sparse array, shape (A + 1, V)
        As from :meth:`BlockCounts.total`.
    seed : int
        Of the draw without replacement from each token's pairs.
    size : int, optional
        Pairs that each token keeps. Default: as many as the rarest has.

    Returns
    -------
    scipy.sparse.csr_array, shape (A + 1, V), int64
        What a token loses is added to the last row, so that the columns keep their sums.

    Raises
    ------
    ValueError
        If a token has no pairs, or fewer than `size`.
    """
    table = sparse.csr_array(counts)
    has = np.asarray(table.sum(axis=1)).ravel()[:-1]
    size = int(has.min()) if size is None else size
    if not 1 <= size <= has.min():
        raise ValueError(
            f"size: expected between 1 and {int(has.min())}, the pairs of the rarest token (row "
            f"{int(has.argmin())}); got {size}. Leave rare tokens out."
        )
    generator = np.random.default_rng(seed)
    kept = table[:-1].astype(np.int64)
    for start, stop in zip(kept.indptr[:-1], kept.indptr[1:], strict=True):
        kept.data[start:stop] = generator.multivariate_hypergeometric(
            kept.data[start:stop], size, method="marginals"
        )
    kept.eliminate_zeros()
    rest = table.sum(axis=0) - kept.sum(axis=0)
    return sparse.csr_array(sparse.vstack([kept, rest[None, :]]))


def signature_rows(counts: Any, form: Form = "probability") -> NDArray[np.float64]:
    """Signatures of the asked tokens, against the label shares of the whole corpus.

    Parameters
    ----------
    counts : sparse array, shape (A + 1, V)
        As from :meth:`BlockCounts.total`; the last row is of all other tokens.
    form : {"probability", "centred", "root", "ppmi"}
        As in :func:`staircase_lib.language.counting.corpus_signature`.

    Returns
    -------
    float64 array, shape (A, F)
        Labels that no asked token has in any form are left out: ``F <= V``.
    """
    table = sparse.csr_array(counts)
    full = corpus_signature(table, form)
    if form == "centred":
        return full[:-1]
    rows = sparse.csc_array(full[:-1])
    return rows[:, np.diff(rows.indptr) > 0].toarray()


def shuffled(
    ids: NDArray[np.integer], seed: int, separator: int | None = None
) -> NDArray[np.integer]:
    """The same tokens in random order, documents as long as before: text without syntax or sense.

    Parameters
    ----------
    ids : integer array, shape (n,)
    seed : int
    separator : int, optional
        Stays where it is.

    Returns
    -------
    integer array, shape (n,)
    """
    mixed = np.array(ids)
    free = slice(None) if separator is None else mixed != separator
    mixed[free] = np.random.default_rng(seed).permutation(mixed[free])
    return mixed
