r"""How distinct pairs grow with a corpus, and what a large count will need.

The number of distinct pairs (token, next token) is what the result of a count weighs. It grows
more slowly than the corpus, roughly as a power of its size with an exponent that falls slowly
:cite:`heaps1978information`. Measured on a corpus at hand, it says what a larger one of the same
kind will bring; extrapolation over many doublings is a guess with a range, and treated as such.

Shapes: ``n`` tokens, ``V`` vocabulary, ``k`` sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from staircase_lib.language.counting import bytes_a_position, count_signatures

__all__ = ["CountPlan", "Growth", "fit_growth", "growth", "new_share", "plan", "rarefied"]


def rarefied(counts: Any, shares: ArrayLike) -> NDArray[np.float64]:
    r"""Expected number of distinct pairs among a share of all, drawn at random.

    .. math:: D(p)=\sum_{\text{pairs}}\big(1-(1-p)^{c}\big)

    where a pair was counted ``c`` times and each occurrence is kept with probability ``p``. Text
    repeats itself nearby, so a corpus that is read from its start has fewer than this.

    Parameters
    ----------
    counts : sparse array
        From :func:`~staircase_lib.language.counting.count_signatures`.
    shares : array of float, shape (k,)
        In [0, 1].

    Returns
    -------
    float64 array, shape (k,)
    """
    times, pairs = np.unique(counts.data, return_counts=True)
    p = np.atleast_1d(np.asarray(shares, dtype=np.float64))
    if p.size and not (p.min() >= 0 and p.max() <= 1):
        raise ValueError(f"shares: expected numbers in [0, 1], got {p.min()} to {p.max()}.")
    with np.errstate(divide="ignore"):  # a share of one keeps everything
        left_out = np.exp(np.log1p(-p)[:, None] * times)
    return pairs.sum() - left_out @ pairs


def new_share(counts: Any) -> float:
    """Chance that the next pair of such a text is a new one: the share of pairs seen once.

    The estimate of Good and Turing, :cite:`good1953population`; ``nan`` without counts.
    """
    total = counts.sum()
    return float((counts.data == 1).sum() / total) if total else float("nan")


def growth(
    ids: NDArray[np.integer],
    vocab_size: int,
    *,
    separator: int,
    doublings: int = 6,
    block: int = 4096,
    seed: int = 0,
    order: int = 0,
    tokens: ArrayLike | None = None,
) -> pd.DataFrame:
    """Distinct pairs or triples, counted on ever larger random parts of a corpus.

    The corpus is cut into blocks that are put in random order, a separator after each: a part is
    then a fair sample of the whole, whatever the order of its texts. The pairs across the blocks'
    edges are lost.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    vocab_size : int
    separator : int
    doublings : int
        Parts are 1, 1/2, 1/4, … of the corpus, down to ``2 ** -doublings``.
    block : int
        Tokens of a block.
    seed : int
        Of the order.
    order, tokens
        As in :func:`~staircase_lib.language.counting.count_signatures`.

    Returns
    -------
    DataFrame
        Columns ``tokens``, ``counted`` (pairs or triples), ``distinct``; sizes increasing.

    Raises
    ------
    ValueError
        If the corpus has fewer blocks than there are parts to be told apart.
    """
    blocks = len(ids) // block
    if blocks < 2**doublings:
        raise ValueError(
            f"doublings: expected a corpus of {2**doublings} blocks of {block} tokens or more, got "
            f"{blocks}; take fewer doublings or smaller blocks."
        )
    where = np.random.default_rng(seed).permutation(blocks)
    mixed = np.full((blocks, block + 1), separator, dtype=ids.dtype)
    mixed[:, :block] = np.asarray(ids[: blocks * block]).reshape(blocks, block)[where]
    rows = []
    for halving in range(doublings, -1, -1):
        part = mixed[: blocks >> halving].reshape(-1)
        counts = count_signatures(part, vocab_size, order, tokens, separator=separator)
        row = {"tokens": (blocks >> halving) * block, "counted": int(counts.sum())}
        rows.append({**row, "distinct": int(counts.nnz)})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Growth:
    r"""A fitted law of growth, :math:`\log D=a+b\log n+c\,(\log n)^2` about the largest size seen.

    Attributes
    ----------
    size, distinct : float
        Largest size and its fitted number.
    exponent : float
        Slope there, ``b``.
    bend : float
        ``c``; zero for a power law.
    """

    size: float
    distinct: float
    exponent: float
    bend: float = 0.0

    def at(self, sizes: ArrayLike, most: float = np.inf) -> NDArray[np.float64]:
        """Distinct pairs at other sizes, at most `most`; a slope never turns negative."""
        steps = np.log(np.asarray(sizes, dtype=np.float64) / self.size)
        if self.bend < 0:  # beyond its top the parabola would fall: it stays there
            steps = np.minimum(steps, -self.exponent / (2 * self.bend))
        return np.minimum(
            self.distinct * np.exp(self.exponent * steps + self.bend * steps**2), most
        )


def fit_growth(sizes: ArrayLike, distinct: ArrayLike, *, bent: bool = False) -> Growth:
    """Least-squares law through measured sizes, in logarithms.

    Parameters
    ----------
    sizes, distinct : array, shape (k,)
    bent : bool
        With the slope falling linearly in the logarithm of the size, in place of a power law.

    Raises
    ------
    ValueError
        If there are fewer sizes than the law has numbers, or one is not positive.
    """
    x, y = (np.asarray(values, dtype=np.float64) for values in (sizes, distinct))
    least = 3 if bent else 2
    if x.ndim != 1 or x.shape != y.shape or len(np.unique(x)) < least:
        raise ValueError(f"sizes: expected {least} different ones or more, got {x.tolist()}.")
    if x.min() <= 0 or y.min() <= 0:
        raise ValueError("sizes and distinct: expected positive numbers.")
    largest = x.max()
    coefficients = np.polyfit(np.log(x / largest), np.log(y), least - 1)[::-1]
    a, b, c = (*coefficients, 0.0)[:3]
    return Growth(float(largest), float(np.exp(a)), float(b), float(c))


@dataclass(frozen=True)
class CountPlan:
    """What a large count needs.

    Attributes
    ----------
    id_bytes, shard_bytes, result_bytes : float
        On disk, all machines together; the shards are removed at the end.
    shards : float
    encode_hours, count_hours, read_hours : float
        Wall time of encoding the text, of counting, of reading the ids once from disk.
    machines : int
    """

    id_bytes: float
    shard_bytes: float
    result_bytes: float
    shards: float
    encode_hours: float
    count_hours: float
    read_hours: float
    machines: int

    @property
    def hours(self) -> float:
        """Encoding, then counting or reading, whichever takes longer."""
        return self.encode_hours + max(self.count_hours, self.read_hours)

    def cost(self, price_per_hour: float) -> float:
        """Price of all machines for that time."""
        return self.hours * self.machines * price_per_hour


def plan(
    tokens: float,
    vocab_size: int,
    law: Growth,
    *,
    count_rate: float,
    encode_rate: float,
    memory: float,
    disk_rate: float,
    cores: int,
    machines: int = 1,
) -> CountPlan:
    """Disk and time of an order-0 count, from rates that were measured.

    Parameters
    ----------
    tokens : float
        ``n``.
    vocab_size : int
        ``V``.
    law : Growth
        Distinct pairs against tokens.
    count_rate, encode_rate : float
        Tokens a second and core.
    memory : float
        Bytes for counting on each machine, the parameter ``memory`` of
        :func:`~staircase_lib.language.counting.count_signatures`.
    disk_rate : float
        Bytes a second that a machine reads.
    cores, machines : int
        Cores of each machine; machines.

    Returns
    -------
    CountPlan
    """
    key = 4 if vocab_size**2 <= 2**32 else 8
    most = float(vocab_size) ** 2
    in_shard = min(memory / (cores * bytes_a_position(vocab_size)), tokens / (cores * machines))
    shards = tokens / in_shard
    workers = cores * machines
    id_bytes = tokens * (2 if vocab_size <= 2**16 else 4)
    return CountPlan(
        id_bytes=id_bytes,
        shard_bytes=shards * float(law.at(in_shard, most)) * (key + 4),
        result_bytes=float(law.at(tokens, most)) * (key + 8),
        shards=shards,
        encode_hours=tokens / encode_rate / workers / 3600,
        count_hours=tokens / count_rate / workers / 3600,
        read_hours=id_bytes / disk_rate / machines / 3600,
        machines=machines,
    )
