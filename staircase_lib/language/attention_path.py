r"""What attention writes, beside the signatures of the tokens that it looks at (claim 6.7).

Correlation, over pairs of positions :math:`i` in the text, of the cosines of what a block's
attention writes there and of :math:`\sum_ja_{ij}\,[P(y\mid x_j)-P(y)]`, with :math:`a` the
attention averaged over heads, both centred over the positions. Controls: the present token's own
signature; uniform attention; and each token with another token's signature, which leaves the
similarity of positions that hear the same tokens: random embeddings have that much.

Shapes: ``V`` vocabulary, ``d`` width, ``N`` positions in windows of ``L`` tokens, ``B`` blocks,
``R`` runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.alignment import cosine_similarity
from staircase_lib.language.corpus_counts import CorpusCounts
from staircase_lib.language.similarity import (
    centre,
    correlation,
    cosines,
    inner_products,
    tidy_row,
    with_runs,
)

if TYPE_CHECKING:
    from staircase_lib.language.transformer import Transformer

__all__ = [
    "AttentionReference",
    "attention_reference",
    "attention_rows",
    "read_attention",
    "sample_windows",
]


def sample_windows(
    ids: NDArray[np.integer], length: int, number: int = 300, *, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random windows of a corpus and one position to look at in each.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    length : int
        ``L``.
    number : int
        ``N``.
    seed : int

    Returns
    -------
    tokens : int64 array, shape (N, L)
    positions : int64 array, shape (N,)
        From the second quarter of the window on, where attention has something to choose from.

    Raises
    ------
    ValueError
        If the corpus is shorter than a window or there are fewer than three positions.
    """
    if length < 2 or len(ids) < length or number < 3:
        raise ValueError(
            f"length, number: expected a window of 2 tokens or more within the {len(ids)} of the "
            f"corpus, and 3 positions or more; got {length} and {number}."
        )
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(ids) - length + 1, number)
    tokens = np.stack([np.asarray(ids[start : start + length], np.int64) for start in starts])
    return tokens, random.integers(max(1, length // 4), length, number)


def read_attention(
    model: Transformer, tokens: ArrayLike, positions: ArrayLike
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What attention writes and where it looks, at one position of each window.

    Parameters
    ----------
    model : Transformer
    tokens : int array, shape (N, L)
    positions : int array, shape (N,)

    Returns
    -------
    written : float32 array, shape (B, N, d) or (R, B, N, d)
    attention : float32 array, shape (B, N, L) or (R, B, N, L)
        Averaged over heads.
    """
    import torch

    from staircase_lib.language.transformer import Record

    device = model.W_E.device
    where = torch.as_tensor(np.asarray(positions), device=device)
    rows = torch.arange(len(where), device=device)
    written, attention = [], []
    with torch.no_grad():
        stream = model.embed(torch.as_tensor(np.asarray(tokens), device=device))
        for block in model.blocks:  # one record a block: attention of all would be large
            record = Record(with_weights=True)
            stream = block(stream, record)
            written.append(record.attention[0][..., rows, where, :].float().cpu())
            heads = record.weights[0].float().mean(dim=-3)
            attention.append(heads[..., rows, where, :].cpu())
    axis = 0 if model.runs is None else 1
    return torch.stack(written, axis).numpy(), torch.stack(attention, axis).numpy()


@dataclass(frozen=True)
class AttentionReference:
    """The corpus' side of the attention measurement.

    Attributes
    ----------
    tokens : int64 array, shape (N, L)
    positions : int64 array, shape (N,)
    signature : sparse array, shape (D, V)
        :math:`P(y\\mid x)` of the distinct tokens of the windows; zeros where there are no counts.
    share : float32 array, shape (V,)
        :math:`P(y)`.
    index : int64 array, shape (N, L)
        Row of `signature` of each token.
    shuffled : int64 array, shape (D,)
        Another row for each.
    fixed : dict of str to float64 array, shape (pairs,)
        Similarities of the controls that do not depend on the model.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    signature: Any
    share: NDArray[np.float32]
    index: NDArray[np.int64]
    shuffled: NDArray[np.int64]
    fixed: dict[str, NDArray[np.float64]]

    def similarity(self, attention: ArrayLike, *, shuffled: bool = False) -> NDArray[np.float64]:
        """Cosines, over the pairs of positions, of the attention-weighted signatures.

        Parameters
        ----------
        attention : float array, shape (N, L)
        shuffled : bool
            Each token with another token's signature.
        """
        index = self.shuffled[self.index] if shuffled else self.index
        N, L = index.shape
        where = (np.repeat(np.arange(N), L), index.ravel())
        weights: Any = sparse.coo_array(
            (np.asarray(attention, np.float32).ravel(), where), shape=(N, self.signature.shape[0])
        )
        heard = (weights.tocsr() @ self.signature).toarray()
        return cosines(centre(inner_products(heard, self.share)))[np.triu_indices(N, 1)]


def attention_reference(
    counts: CorpusCounts, tokens: ArrayLike, positions: ArrayLike, *, seed: int = 0
) -> AttentionReference:
    """Signatures of the tokens in some windows, made once for all checkpoints.

    Parameters
    ----------
    counts : CorpusCounts
    tokens : int array, shape (N, L)
    positions : int array, shape (N,)
        From :func:`sample_windows`.
    seed : int
        Of the shuffled control.

    Raises
    ------
    ValueError
        If a token is outside the vocabulary or a position outside its window.
    """
    x, at = np.asarray(tokens, dtype=np.int64), np.asarray(positions, dtype=np.int64)
    if x.ndim != 2 or at.shape != x.shape[:1] or len(x) < 3:
        raise ValueError(
            f"tokens, positions: expected shapes (N, L) and (N,), N at least 3, got {x.shape} and "
            f"{at.shape}."
        )
    if x.min() < 0 or x.max() >= counts.vocab_size or at.min() < 0 or at.max() >= x.shape[1]:
        raise ValueError(
            f"tokens, positions: expected ids in [0, {counts.vocab_size}) and positions in "
            f"[0, {x.shape[1]}); the windows are of another vocabulary?"
        )
    distinct, index = np.unique(x, return_inverse=True)
    rows, share = counts.conditionals["next"]
    made = AttentionReference(
        x,
        at,
        sparse.csr_array(rows[distinct], dtype=np.float32),
        share.astype(np.float32),
        index.reshape(x.shape),
        np.random.default_rng(seed).permutation(len(distinct)),
        {},
    )
    here = np.zeros(x.shape)
    here[np.arange(len(at)), at] = 1.0
    uniform = np.arange(x.shape[1]) <= at[:, None]
    made.fixed["present token"] = made.similarity(here)
    made.fixed["uniform attention"] = made.similarity(uniform / (at[:, None] + 1))
    return made


def attention_rows(
    written: ArrayLike, attention: ArrayLike, reference: AttentionReference
) -> list[dict[str, Any]]:
    """Attention paths against attention-weighted signatures at a checkpoint (claim 6.7).

    Parameters
    ----------
    written : float array, shape (B, N, d) or (R, B, N, d)
        What each block's attention writes at the positions.
    attention : float array, shape (B, N, L) or (R, B, N, L)
        Its weights there, averaged over heads.
    reference : AttentionReference

    Returns
    -------
    list of dict
        ``measure`` is ``"attention path"``; ``signature`` is ``"attention-weighted"``, or the
        control: ``"present token"``, ``"uniform attention"``, ``"shuffled tokens"``.
    """
    paths = with_runs(written, 3, "written")
    weights = with_runs(attention, 3, "attention")
    N, L = reference.tokens.shape
    if paths.shape[:3] != weights.shape[:3] or weights.shape[2:] != (N, L):
        raise ValueError(
            f"written, attention: expected shapes ([R,] B, {N}, d) and ([R,] B, {N}, {L}), got "
            f"{np.shape(written)} and {np.shape(attention)}."
        )
    pairs = np.triu_indices(N, 1)
    equal = np.full(len(pairs[0]), 1 / len(pairs[0]))
    rows = []
    for run in range(len(paths)):
        for block in range(paths.shape[1]):
            x = paths[run, block]
            seen = cosine_similarity(x - x.mean(axis=0))[pairs]
            a = weights[run, block]
            against = {
                "attention-weighted": reference.similarity(a),
                **reference.fixed,
                "shuffled tokens": reference.similarity(a, shuffled=True),
            }
            rows += [
                tidy_row(
                    "attention path",
                    name,
                    "as defined",
                    run,
                    block,
                    correlation(seen, similarity, equal),
                )
                for name, similarity in against.items()
            ]
    return rows
