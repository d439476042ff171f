"""Counting pairs of neighbouring tokens as a reader would do it without this library.

Every function returns the same: the distinct pairs as sorted integers ``token * V + next``, and
how often each occurs. What a tool needs beforehand (a table in its own format, a text file) is made
by a function ``…_input``, whose time is not counted.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Pairs = tuple[NDArray[Any], NDArray[Any]]


def of_matrix(counts: Any) -> Pairs:
    """The pairs of a CSR matrix with sorted indices, such as :func:`count_signatures` returns."""
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    return rows * counts.shape[1] + counts.indices, counts.data


# --- NumPy, SciPy, Arrow -------------------------------------------------------------------------


def numpy_unique(ids: NDArray[np.uint16], V: int) -> Pairs:
    """As one writes it: pairs as NumPy's default integers."""
    return np.unique(ids[:-1].astype(np.int64) * V + ids[1:], return_counts=True)


def numpy_unique_32(ids: NDArray[np.uint16], V: int) -> Pairs:
    """As fast as it gets: the smallest integers that hold a pair, when V is at most 65536."""
    return np.unique(ids[:-1].astype(np.uint32) * np.uint32(V) + ids[1:], return_counts=True)


def numpy_unique_triples(ids: NDArray[np.uint16], V: int, tokens: NDArray[Any]) -> Pairs:
    """Order 1: (row of the token, token before, token after), fused."""
    row = np.full(V, -1)
    row[tokens] = np.arange(len(tokens))
    at = np.flatnonzero(row[ids[1:-1]] >= 0) + 1
    return np.unique((row[ids[at]] * V + ids[at - 1]) * V + ids[at + 1], return_counts=True)


def scipy_matrix(ids: NDArray[np.uint16], V: int) -> Pairs:
    """COO entries of one, summed on their way to CSR."""
    places = ids[:-1].astype(np.int32), ids[1:].astype(np.int32)
    counts = sparse.coo_array((np.ones(len(ids) - 1, np.int32), places), (V, V)).tocsr()
    counts.sort_indices()
    return of_matrix(counts)


def arrow_group_by(ids: NDArray[np.uint16], V: int, threads: bool = False) -> Pairs:
    import pyarrow as pa

    pairs = pa.table({"token": ids[:-1], "next": ids[1:]})
    grouped = pairs.group_by(["token", "next"], use_threads=threads).aggregate([([], "count_all")])
    grouped = grouped.sort_by([("token", "ascending"), ("next", "ascending")])
    token, label, counts = (grouped[name].to_numpy() for name in ("token", "next", "count_all"))
    return token.astype(np.int64) * V + label, counts


# --- DuckDB --------------------------------------------------------------------------------------


def duckdb_input(ids: NDArray[np.uint16], V: int, threads: int) -> Any:
    """A database in memory, in DuckDB's own format, with the pairs apart and fused."""
    import duckdb

    base = duckdb.connect()
    base.execute(f"SET threads = {threads}")
    base.register("arrays", {"token": ids[:-1], "next": ids[1:]})
    base.execute(
        "CREATE TABLE pairs AS SELECT token, next, "
        f"(token::UINTEGER * {V} + next)::UINTEGER AS pair FROM arrays"
    )
    base.unregister("arrays")
    return base


def duckdb_pairs(base: Any, V: int) -> Pairs:
    """As one writes it: two columns."""
    found = base.sql(
        "SELECT token, next, count(*) AS times FROM pairs GROUP BY ALL ORDER BY token, next"
    ).fetchnumpy()
    return found["token"].astype(np.int64) * V + found["next"], found["times"]


def duckdb_fused(base: Any, V: int) -> Pairs:
    """One column that holds the pair."""
    found = base.sql(
        "SELECT pair, count(*) AS times FROM pairs GROUP BY pair ORDER BY pair"
    ).fetchnumpy()
    return found["pair"].astype(np.int64), found["times"]


# --- Tools for n-grams ---------------------------------------------------------------------------


def tokengrams() -> ModuleType:
    """The compiled part of tokengrams; its Python part would import Transformers.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed.
    """
    package = importlib.util.find_spec("tokengrams")
    found = [] if package is None else list(Path(package.origin or "").parent.glob("tokengrams.*"))
    compiled = [path for path in found if path.suffix in (".so", ".pyd")]
    if not compiled:
        raise ModuleNotFoundError("tokengrams: `make bench` installs it on Python 3.11")
    spec = importlib.util.spec_from_file_location("tokengrams.tokengrams", compiled[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokengrams_index(path: Path, V: int) -> Any:
    """The suffix array of a token file, from which any n-gram is counted."""
    return tokengrams().InMemoryIndex.from_token_file(str(path), None, V, False)


def tokengrams_pairs(path: Path, V: int) -> Pairs:
    """What follows each token, asked of the suffix array in one batch."""
    index = tokengrams_index(path, V)
    dense = np.array(index.batch_count_next([[token] for token in range(V)]))
    token, label = np.nonzero(dense)
    return token * V + label, dense[token, label]


def kenlm() -> str | None:
    """KenLM's program ``count_ngrams``, on the path or named by ``KENLM_COUNT_NGRAMS``, if any.

    PyPI's `kenlm` has its source: ``pip download --no-binary :all: kenlm``, unpack, then
    ``cmake -B build . && make -C build count_ngrams`` with Boost and zlib installed.
    """
    return os.environ.get("KENLM_COUNT_NGRAMS") or shutil.which("count_ngrams")


def kenlm_input(ids: NDArray[np.uint16], separator: int, path: Path) -> None:
    """A line a document, a word a token."""
    words = np.char.mod("%d", np.arange(int(ids.max()) + 1)).tolist()
    with path.open("w") as file:
        for document in np.split(ids, np.flatnonzero(ids == separator) + 1):
            file.write(" ".join(words[i] for i in document.tolist() if i != separator) + "\n")


def kenlm_count(program: str, text: Path, memory: str = "1G") -> tuple[Path, Path]:
    """Pairs sorted and summed by KenLM: its records, and the words that they name by number."""
    names, records = text.with_suffix(".words"), text.with_suffix(".counts")
    order = ["-o", "2", "-S", memory, "-T", f"{text.parent}/", "--write_vocab_list", names]
    with text.open("rb") as source, records.open("wb") as target:
        subprocess.run(
            [program, *order], stdin=source, stdout=target, stderr=subprocess.DEVNULL, check=True
        )
    return records, names


def kenlm_pairs(program: str, text: Path, V: int) -> Pairs:
    """The records read: two word numbers and a count each. Marks of sentences are left out."""
    records, names = kenlm_count(program, text)
    marks = (b"<unk>", b"<s>", b"</s>")
    words = names.read_bytes().split(b"\0")[:-1]
    ids = np.array([-1 if word in marks else int(word) for word in words])
    found = np.fromfile(records, np.dtype([("words", np.uint32, 2), ("times", np.uint64)]))
    first, second = ids[found["words"][:, 0]], ids[found["words"][:, 1]]
    inside = (first >= 0) & (second >= 0)
    pairs, times = (first * V + second)[inside], found["times"][inside].astype(np.int64)
    by_pair = np.argsort(pairs)
    return pairs[by_pair], times[by_pair]
