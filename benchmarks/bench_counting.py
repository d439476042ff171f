"""Counting signatures of real text, beside every way in which a reader would otherwise do it.

The default corpus as 16,384 kinds of tokens, repeated with its documents in another order each time
until there are 80 million of them: real pairs, though fewer distinct ones than so much fresh text
has. The tools for n-grams, ten times slower and more, get the corpus once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import references
from numpy.typing import NDArray

from staircase_lib.language.counting import count_signatures
from staircase_lib.language.tokens import prepared

V = 16384
LEAST = 80_000_000
MEMORY = 2**30
UNIT = "million tokens a second"
Ids = NDArray[np.uint16]


@pytest.fixture(scope="module")
def corpus() -> tuple[Ids, int]:
    """The corpus once, and its separator."""
    tokens = prepared("default", V)
    return np.array(tokens.ids), tokens.separator


@pytest.fixture(scope="module")
def ids(corpus: tuple[Ids, int]) -> Ids:
    """The corpus until it is long enough."""
    once, separator = corpus
    documents = np.split(once, np.flatnonzero(once == separator) + 1)
    rng = np.random.default_rng(0)
    times = -(-LEAST // len(once))
    return np.concatenate(
        [documents[i] for _ in range(times) for i in rng.permutation(len(documents))]
    )


def in_database(ask: Callable[[Any, int], Any], threads: int) -> Callable[[Ids], Callable]:
    return lambda ids: partial(ask, references.duckdb_input(ids, V, threads), V)


def at_once(count: Callable[..., Any], **options: Any) -> Callable[[Ids], Callable]:
    return lambda ids: partial(count, ids, V, **options)


ORDER_0 = [
    # what, how it is made ready, threads, rounds, note
    ("ours, two threads", at_once(count_signatures, workers=2, memory=MEMORY), 2, 7, ""),
    ("ours, documents kept apart", at_once(count_signatures, separator=0, memory=MEMORY), 1, 5, ""),
    ("numpy.unique", at_once(references.numpy_unique), 1, 5, "pairs as int64"),
    ("numpy.unique, 32 bits", at_once(references.numpy_unique_32), 1, 5, "pairs as uint32"),
    ("DuckDB", in_database(references.duckdb_pairs, 1), 1, 3, "two columns of its own table"),
    ("DuckDB, fused", in_database(references.duckdb_fused, 1), 1, 3, "one column, uint32"),
    ("DuckDB, fused", in_database(references.duckdb_fused, 2), 2, 3, "one column, uint32"),
    ("SciPy, COO to CSR", at_once(references.scipy_matrix), 1, 3, ""),
    ("PyArrow group_by", at_once(references.arrow_group_by), 1, 1, ""),
]


@pytest.mark.parametrize(
    ("what", "make", "threads", "rounds", "note"),
    ORDER_0,
    ids=[f"{case[0]}, {case[2]}" for case in ORDER_0],
)
def test_order_0(
    beside: Callable[..., None],
    ids: Ids,
    what: str,
    make: Callable[[Ids], Callable[[], Any]],
    threads: int,
    rounds: int,
    note: str,
) -> None:
    beside(
        "counting, order 0",
        partial(count_signatures, ids, V, memory=MEMORY),
        what,
        make(ids),
        rounds,
        note,
        threads,
        unit=UNIT,
        work=len(ids) / 1e6,
        n=len(ids),
        vocab_size=V,
    )


def test_order_1(beside: Callable[..., None], ids: Ids) -> None:
    """300 frequent tokens, each with the one before and the one after."""
    anchors = np.argsort(-np.bincount(ids, minlength=V))[:300]
    beside(
        "counting, order 1",
        partial(count_signatures, ids, V, 1, anchors, memory=MEMORY),
        "numpy.unique",
        partial(references.numpy_unique_triples, ids, V, anchors),
        3,
        "300 tokens, triples as int64",
        unit=UNIT,
        work=len(ids) / 1e6,
        n=len(ids),
        vocab_size=V,
    )


@pytest.mark.parametrize("tool", ["KenLM", "tokengrams"])
def test_tools_for_n_grams(
    beside: Callable[..., None], corpus: tuple[Ids, int], tmp_path: Path, tool: str
) -> None:
    once, separator = corpus
    if tool == "KenLM":
        program = references.kenlm()
        if program is None:
            pytest.skip("KenLM's count_ngrams is not on the path: see references.kenlm")
        text = tmp_path / "text"
        references.kenlm_input(once, separator, text)
        other = partial(references.kenlm_count, program, text)
        note = "count_ngrams of order 2, from words in a text file"
    else:
        try:
            references.tokengrams()
        except ModuleNotFoundError as error:
            pytest.skip(str(error))
        path = tmp_path / "ids.bin"
        once.tofile(path)
        other = partial(references.tokengrams_index, path, V)
        note = "its suffix array is built; reading all pairs from it is not counted"
    beside(
        "counting, order 0, tools for n-grams",
        partial(count_signatures, once, V, separator=separator, memory=MEMORY),
        tool,
        other,
        3,
        note,
        unit=UNIT,
        work=len(once) / 1e6,
        n=len(once),
        vocab_size=V,
    )
