r"""Exact signature counts of a token stream, in memory or far beyond it.

A corpus is one long array of token ids; documents are told apart by a separator token, which no
pair or triple may contain or cross. For a token :math:`\alpha` at position :math:`i` with label
:math:`y=x_{i+1}`,

- order 0 counts pairs :math:`(\alpha,y)`: over all :math:`i` they give :math:`S^{(0)}_\alpha`, the
  next-token signature of section 6 of arXiv:2608.30315;
- order 1 counts triples :math:`(\alpha,x_{i-1},y)`, which give :math:`S^{(1)}_\alpha`.

A window widens what counts as the label (order 0) or as the context (order 1).

**Method.** The tokens of a pair or triple are fused into one integer, the integers of a shard are
sorted, and the runs of equal ones counted: sequential passes over memory only, all but the sort in
blocks that stay in a core's cache, and the distinct integers written over the sorted ones. A
shard's result is two sorted arrays on disk; the shards are merged by ranges of keys, each small
enough for memory, several threads each with a range of its own.
Every position belongs to one shard, and integers add up in any order: neither the shards nor the
number of workers change a count.

Shapes: ``n`` tokens, ``V`` vocabulary, ``A`` asked tokens.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.language.folders import locked, write_atomically

__all__ = ["Form", "bytes_a_position", "corpus_signature", "count_signatures"]

#: Which neighbour is counted: the next token, the previous one, or both.
Direction = Literal["next", "previous", "both"]
#: What is made of counts: probabilities, less the mean row, their roots, or PPMI.
Form = Literal["probability", "centred", "root", "ppmi"]

# Positions that are fused, and keys whose runs are counted, at once: few enough for the cache, and
# enough that threads do not wait for each other's turn in the interpreter.
_BLOCK = 1 << 18
# Keys of a shard at most, however much memory there is: the system hands out memory that was used a
# moment ago faster than fresh memory, by more than a larger shard saves in merging.
_SHARD = 1 << 26
# Entries that are added up at once: few enough that their memory is used again and again.
_MERGED = 1 << 20
# Bytes that counting needs for each key besides the key itself: the length of its run, and a
# share of what a block needs (masks, selected tokens, places of runs), at most 64 bytes a position.
_OVERHEAD = 4 + 4


@dataclass(frozen=True)
class _Plan:
    """What is counted: everything that a shard's result depends on but the ids."""

    vocab_size: int
    tokens: tuple[int, ...] | None
    offsets: tuple[tuple[int, ...], ...]  # of (token, [context,] label), one tuple a pattern
    separator: int | None

    @property
    def rows(self) -> int:
        return self.vocab_size if self.tokens is None else len(self.tokens)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *[self.vocab_size] * (len(self.offsets[0]) - 1))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest unsigned integer that holds a key."""
        size = 1
        for axis in self.shape:
            size *= axis
        if size > 2**63:
            raise ValueError(
                f"vocab_size: {self.shape} are too many combinations for 64 bits; ask for fewer "
                f"tokens."
            )
        return np.dtype(np.uint32 if size <= 2**32 else np.uint64)

    @property
    def bytes_a_position(self) -> int:
        """Memory that a position of a shard takes while it is counted."""
        return (self.dtype.itemsize + _OVERHEAD) * len(self.offsets)

    @property
    def reach(self) -> tuple[int, int]:
        """Smallest and largest offset of any pattern."""
        every = [offset for pattern in self.offsets for offset in pattern]
        return min(every), max(every)

    @cached_property
    def row_of(self) -> NDArray[np.int32] | None:
        """Row of each token of the vocabulary, -1 where it is not asked for."""
        if self.tokens is None:
            return None
        rows = np.full(self.vocab_size, -1, dtype=np.int32)
        rows[list(self.tokens)] = np.arange(len(self.tokens))
        return rows


@dataclass(frozen=True)
class _File:
    """Ids as a process of any machine with the same disk can open them."""

    path: str
    dtype: str
    offset: int
    length: int

    def open(self) -> NDArray[Any]:
        return np.memmap(self.path, self.dtype, "r", self.offset, (self.length,))


@dataclass
class _Sink:
    """The merged arrays, kept as pieces or appended to files."""

    folder: Path | None
    pieces: list[tuple[NDArray, NDArray]] = field(default_factory=list)

    def append(self, keys: NDArray, counts: NDArray[np.int64]) -> None:
        if self.folder is None:
            self.pieces.append((keys, counts))
            return
        for name, array in (("keys", keys), ("counts", counts)):
            with (self.folder / f"{name}.part").open("ab") as file:
                # tofile says nothing of a full disk
                file.write(np.ascontiguousarray(array).data)

    def arrays(self, dtype: np.dtype[Any]) -> tuple[NDArray, NDArray[np.int64]]:
        if self.folder is not None:
            found = []
            for name, kind in (("keys", dtype), ("counts", np.dtype(np.int64))):
                path = self.folder / f"{name}.part"
                empty = not path.exists() or path.stat().st_size == 0
                found.append(np.zeros(0, kind) if empty else np.memmap(path, kind, "r"))
            return found[0], found[1]
        if not self.pieces:
            return np.zeros(0, dtype), np.zeros(0, np.int64)
        if len(self.pieces) == 1:
            return self.pieces[0]
        keys, counts = zip(*self.pieces, strict=True)
        return np.concatenate(keys), np.concatenate(counts)


# --- Counting ------------------------------------------------------------------------------------


def count_signatures(
    ids: NDArray[np.integer],
    vocab_size: int,
    order: int = 0,
    tokens: ArrayLike | None = None,
    workers: int | Executor = 1,
    *,
    window: int = 1,
    direction: Direction | None = None,
    separator: int | None = None,
    memory: int = 2**30,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    r"""Exact counts of the pairs or triples of every position.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    vocab_size : int
        ``V``; every id is in ``[0, V)``.
    order : {0, 1}
    tokens : array of int, shape (A,), optional
        The tokens whose signatures are asked for, one row each, in this order. Default: all.
    workers : int or concurrent.futures.Executor
        Threads; or an executor: a process pool, or for several machines with a shared disk Dask's
        (``distributed.Client(...).get_executor()``).
    window : int
        Order 0: labels are the tokens at distance 1 to ``window``. Order 1: contexts are.
    direction : {"next", "previous", "both"}, optional
        Order 0: side of the labels, default ``"next"``. Order 1: side of the contexts, default
        ``"previous"``; those of ``"next"`` stand behind the label, which is always the token
        after :math:`\alpha`.
    separator : int, optional
        Token between documents. Nothing that contains it, or has it in between, is counted.
    memory : int
        Bytes that counting and merging may use, all workers together, besides the result.
    folder : path, optional
        Where shards and result are kept. The same call again continues where it was interrupted,
        and reads the result if it is there. Default: a temporary folder, and the result in memory.
    progress : callable, optional
        Called as ``progress(done, n)`` with tokens counted so far.

    Returns
    -------
    scipy.sparse.csr_array, shape (A, V), int64
        Order 0; entry ``(a, y)`` counts label ``y`` of token ``a``.
    scipy.sparse.coo_array, shape (A, V, V), int64
        Order 1; entry ``(a, x, y)``, sorted.

    Raises
    ------
    TypeError
        If the ids are not integers.
    ValueError
        For ids outside the vocabulary (naming the first), repeated tokens, sizes that are not
        positive, or a folder that holds other counts or damaged ones.
    FolderInUse
        If another process counts in the folder.
    OSError
        If the disk is full; finished shards stay.

    Notes
    -----
    Time is linear in ``n * window`` but for the sort of a shard's integers. Memory that the caller
    has not asked for is not taken: a shard has no more positions than ``memory`` allows.
    """
    ids = _checked_ids(ids)
    if _whole(window):  # no pair is farther apart than the ids are long
        window = min(window, max(len(ids), 1))
    plan = _plan(vocab_size, order, tokens, window, direction, separator)
    if not isinstance(workers, Executor) and not (_whole(workers) and workers >= 1):
        raise ValueError(f"workers: expected a positive integer or an executor, got {workers!r}.")
    if not (_whole(memory) and memory >= 2**20):
        raise ValueError(f"memory: expected bytes, at least {2**20} (1 MB), got {memory!r}.")
    threads = workers if isinstance(workers, int) else _size_of(workers)
    at_once = memory // (threads * plan.bytes_a_position)
    positions = max(1, min(at_once, _SHARD // len(plan.offsets)))
    turns = -(-len(ids) // (positions * threads))  # as many shards for each thread
    spans = _spans(len(ids), max(1, -(-len(ids) // max(1, turns * threads))))

    if folder is None and len(spans) == 1:  # small: no disk at all
        keys, counts = _count(ids, spans[0], plan)
        if progress:
            progress(len(ids), len(ids))
        return _as_sparse(keys, counts.astype(np.int64), plan)

    with ExitStack() as stack:
        if folder is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counts-")))
        else:
            place = Path(folder)
            stack.enter_context(locked(place))
        description = _describe(ids, plan)
        if folder is not None and _holds_result(place, description):
            return _as_sparse(*_kept(place, plan), plan)
        shards = place / "shards"
        shards.mkdir(exist_ok=True)
        _count_shards(stack, ids, spans, plan, shards, workers, progress)
        sink = _Sink(None if folder is None else place)
        for name in ("keys", "counts"):  # of a merge that was interrupted
            (place / f"{name}.part").unlink(missing_ok=True)
        files = [_shard_path(shards, span) for span in spans]
        with _explained(place):
            _merge(files, plan, memory, sink, workers if isinstance(workers, int) else 1)
            if folder is not None:
                entries = len(sink.arrays(plan.dtype)[0])
                finished = json.dumps({**description, "complete": True, "entries": entries})
                write_atomically(place / "counts.json", finished.encode())
        if folder is not None:
            shutil.rmtree(shards)
        return _as_sparse(*sink.arrays(plan.dtype), plan)


def bytes_a_position(
    vocab_size: int, order: int = 0, tokens: ArrayLike | None = None, window: int = 1
) -> int:
    """Bytes of `memory` that :func:`count_signatures` takes for a position of a shard.

    A shard has ``memory / (workers * bytes_a_position)`` positions at most.
    """
    return _plan(vocab_size, order, tokens, window, None, None).bytes_a_position


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _plan(
    vocab_size: int,
    order: int,
    tokens: ArrayLike | None,
    window: int,
    direction: Direction | None,
    separator: int | None,
) -> _Plan:
    for name, value in (("vocab_size", vocab_size), ("window", window)):
        if not (_whole(value) and value >= 1):
            raise ValueError(f"{name}: expected a positive integer, got {value!r}.")
    if order not in (0, 1) or isinstance(order, bool):
        raise ValueError(f"order: expected 0 (pairs) or 1 (triples), got {order!r}.")
    sides = {"next": (1,), "previous": (-1,), "both": (-1, 1)}
    direction = direction or ("next" if order == 0 else "previous")
    if direction not in sides:
        raise ValueError(f"direction: expected one of {list(sides)}, got {direction!r}.")
    steps = [side * k for side in sides[direction] for k in range(1, window + 1)]
    if order == 0:
        offsets = tuple((0, step) for step in steps)
    else:  # contexts on the next side stand behind the label
        offsets = tuple((0, step if step < 0 else step + 1, 1) for step in steps)
    asked = None
    if tokens is not None:
        array = np.atleast_1d(np.asarray(tokens))
        if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"tokens: expected a list of token ids, got {tokens!r}.")
        asked = tuple(int(token) for token in array)
        if len(set(asked)) != len(asked):
            raise ValueError("tokens: expected distinct ids, got some twice.")
    named = (() if asked is None else asked) + (() if separator is None else (separator,))
    outside = [token for token in named if not (_whole(token) and 0 <= token < vocab_size)]
    if outside:
        raise ValueError(
            f"tokens and separator: expected ids in [0, {vocab_size}), got {outside[:5]}."
        )
    return _Plan(int(vocab_size), asked, offsets, separator)


def _checked_ids(ids: Any) -> NDArray[np.integer]:
    array = ids if isinstance(ids, np.ndarray) else np.asarray(ids)
    if array.size == 0 and array.ndim == 1:
        return array.astype(np.uint16)
    if array.ndim != 1:
        raise ValueError(f"ids: expected one axis of token ids, got shape {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"ids: expected integers, got dtype {array.dtype}.")
    return array


def _spans(n: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, n)) for start in range(0, n, size)] or [(0, 0)]


def _size_of(executor: Executor) -> int:
    """Workers of an executor, as far as it says; Dask's have memory of their own."""
    return int(getattr(executor, "_max_workers", 1) or 1)


def _count(
    ids: NDArray[np.integer], span: tuple[int, int], plan: _Plan
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint32]]:
    """Sorted distinct keys of the positions in `span`, and how often each occurs."""
    start, stop = span
    ids = np.asarray(ids)  # a memory map's slices are slow to make
    keys = np.empty((stop - start) * len(plan.offsets), plan.dtype)
    block = _block(stop - start)
    filled = 0
    for first in range(start, stop, block):
        filled += _fuse(ids, (first, min(first + block, stop)), plan, keys[filled:])
    keys = keys[:filled]
    keys.sort()
    return _runs(keys)


def _block(n: int) -> int:
    """Length of a block of a shard of length `n`; its working memory is counted in `_OVERHEAD`."""
    return min(_BLOCK, max(256, n // 16))


def _fuse(ids: NDArray[np.integer], span: tuple[int, int], plan: _Plan, keys: NDArray[Any]) -> int:
    """Write the keys of the positions in `span` into `keys`; their number."""
    start, stop = span
    before, after = plan.reach
    low, high = max(0, start + before), min(len(ids), stop + after)
    chunk = ids[low:high]
    _check_range(chunk, low, plan.vocab_size)
    forbidden = None if plan.separator is None else chunk == plan.separator
    filled = 0
    for offsets in plan.offsets:
        # Positions of `span` for which every token of the pattern exists
        first, last = max(start, -min(offsets)), min(stop, len(ids) - max(offsets))
        if last <= first:
            continue
        there = [slice(first + o - low, last + o - low) for o in offsets]
        # A row for each position; positions that do not count are left out before anything is fused
        keep = None
        if forbidden is not None:
            between = range(min(offsets), max(offsets) + 1)
            keep = ~forbidden[first + between[0] - low : last + between[0] - low]
            for o in between[1:]:
                keep &= ~forbidden[first + o - low : last + o - low]
        token = chunk[there[0]]
        if plan.row_of is not None:
            token = plan.row_of.take(token)
            keep = token >= 0 if keep is None else keep & (token >= 0)
        if keep is not None:
            keep = np.flatnonzero(keep)  # places are taken several times faster than a mask's
            token = token.take(keep)
        fused = keys[filled : filled + len(token)]
        np.copyto(fused, token, casting="unsafe")
        for slot in there[1:]:
            fused *= plan.dtype.type(plan.vocab_size)
            other = chunk[slot]
            np.add(fused, other if keep is None else other.take(keep), out=fused, casting="unsafe")
        filled += len(token)
    return filled


def _runs(keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Distinct values of a sorted array, written over its beginning, and their numbers."""
    counts = np.empty(len(keys), np.uint32)
    block = _block(len(keys))
    found, last = 0, -1  # runs so far, and the place where the last one ended
    for start in range(0, len(keys), block):
        stop = min(start + block, len(keys))
        inner = min(stop, len(keys) - 1)  # the last key of all has no successor
        ends = np.flatnonzero(keys[start:inner] != keys[start + 1 : inner + 1])
        if inner < stop:
            ends = np.append(ends, inner - start)
        if ends.size:
            there = slice(found, found + len(ends))
            counts[there] = np.diff(ends, prepend=last - start)
            keys[there] = keys[start:stop][ends]
            found, last = there.stop, start + int(ends[-1])
    return keys[:found], counts[:found]


def _check_range(chunk: NDArray[np.integer], start: int, vocab_size: int) -> None:
    if not chunk.size or (int(chunk.max()) < vocab_size and int(chunk.min()) >= 0):
        return
    where = int(np.flatnonzero((chunk < 0) | (chunk >= vocab_size))[0])
    raise ValueError(
        f"ids: expected ids in [0, {vocab_size}), got {int(chunk[where])} at position "
        f"{start + where}; was the text encoded with another vocabulary?"
    )


# --- Shards on disk ------------------------------------------------------------------------------


def _shard_path(folder: Path, span: tuple[int, int]) -> Path:
    return folder / f"{span[0]:015d}-{span[1]:015d}"


def _count_shards(
    stack: ExitStack,
    ids: NDArray[np.integer],
    spans: Sequence[tuple[int, int]],
    plan: _Plan,
    folder: Path,
    workers: int | Executor,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Count every shard that is not there yet."""
    missing = [
        span for span in spans if not _shard_path(folder, span).with_suffix(".keys").exists()
    ]
    done = len(ids) - sum(stop - start for start, stop in missing)
    if progress and done:
        progress(done, len(ids))
    # A map is opened anew for each shard, so that the pages of earlier ones are given back.
    source: NDArray[np.integer] | _File = _file_of(ids) or ids
    if isinstance(workers, Executor):
        executor = workers
        if not isinstance(executor, ThreadPoolExecutor) and not isinstance(source, _File):
            source = _copied(ids, folder)
    else:
        executor = stack.enter_context(ThreadPoolExecutor(workers))
    jobs = {
        executor.submit(_count_to_disk, source, span, plan, str(folder)): span for span in missing
    }
    try:
        for job in as_completed(jobs):
            job.result()
            done += jobs[job][1] - jobs[job][0]
            if progress:
                progress(done, len(ids))
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


def _file_of(ids: NDArray[np.integer]) -> _File | None:
    """The file of a memory map; None for other arrays, and slices of a map."""
    if isinstance(ids, np.memmap) and not isinstance(ids.base, np.ndarray):
        return _File(str(ids.filename), ids.dtype.str, int(ids.offset), len(ids))
    return None


def _copied(ids: NDArray[np.integer], folder: Path) -> _File:
    """A copy of the ids that other processes can open."""
    path = folder / "ids"
    with _explained(folder):
        write_atomically(path, np.ascontiguousarray(ids).data)
    return _File(str(path), ids.dtype.str, 0, len(ids))


def _count_to_disk(
    source: NDArray[np.integer] | _File, span: tuple[int, int], plan: _Plan, folder: str
) -> None:
    """Count one shard; its keys are written last, so that they stand for a whole shard."""
    ids = source.open() if isinstance(source, _File) else source
    path = _shard_path(Path(folder), span)
    keys, counts = _count(ids, span, plan)
    with _explained(Path(folder)):
        write_atomically(path.with_suffix(".counts"), counts.data)
        write_atomically(path.with_suffix(".keys"), keys.data)


class _explained:
    """Says what a full disk means for the counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"no space left on the disk of {self.folder} while counting. Finished shards are "
                f"whole; free space, or give another folder, and make the same call again",
            ) from error


def _describe(ids: NDArray[np.integer], plan: _Plan) -> dict[str, Any]:
    """What the counts in a folder are of: the plan, and a fingerprint of the ids."""
    sample = np.ascontiguousarray(ids[:: max(1, len(ids) // 1024)])
    return {
        "vocab_size": plan.vocab_size,
        "tokens": None if plan.tokens is None else list(plan.tokens),
        "offsets": [list(pattern) for pattern in plan.offsets],
        "separator": plan.separator,
        "ids": [len(ids), ids.dtype.str, hashlib.sha256(sample.data).hexdigest()],
    }


def _holds_result(folder: Path, description: dict[str, Any]) -> bool:
    """Whether the folder has these counts complete; a folder with others is refused."""
    path = folder / "counts.json"
    if not path.exists():
        write_atomically(path, json.dumps({**description, "complete": False}).encode())
        return False
    try:
        found = json.loads(path.read_text())
        complete, _ = found.pop("complete"), found.pop("entries", None)
    except (ValueError, KeyError, AttributeError):
        found, complete = None, False
    if found != description:
        raise ValueError(
            f"folder: {folder} holds counts of other ids or other settings; give an empty folder."
        )
    return bool(complete)


def _kept(folder: Path, plan: _Plan) -> tuple[NDArray, NDArray[np.int64]]:
    """The result that an earlier call left; damage is refused."""
    keys, counts = _Sink(folder).arrays(plan.dtype)
    entries = json.loads((folder / "counts.json").read_text()).get("entries")
    if len(keys) != entries or len(counts) != entries:
        raise ValueError(
            f"folder: {folder} should hold {entries} entries and has {len(keys)} keys and "
            f"{len(counts)} counts; files were removed or cut. Delete it and count again."
        )
    return keys, counts


# --- Merging -------------------------------------------------------------------------------------


def _merge(files: Sequence[Path], plan: _Plan, memory: int, sink: _Sink, threads: int) -> None:
    """Add the shards up, range of keys by range of keys."""
    shards = [path for path in files if path.with_suffix(".keys").stat().st_size]
    maps = [np.memmap(path.with_suffix(".keys"), plan.dtype, "r") for path in shards]

    def merged(span: tuple[Any, Any]) -> tuple[NDArray, NDArray[np.int64]] | None:
        low, high = span
        parts = []
        for path, keys in zip(shards, maps, strict=True):
            start = 0 if low is None else int(np.searchsorted(keys, low))
            stop = len(keys) if high is None else int(np.searchsorted(keys, high))
            if stop > start:  # read, not mapped: what is merged is given back
                parts.append(
                    (
                        _read(path.with_suffix(".keys"), plan.dtype, start, stop),
                        _read(path.with_suffix(".counts"), np.dtype(np.uint32), start, stop),
                    )
                )
        return _added(parts) if parts else None

    at_once = 2 * threads  # so that none waits long for the slowest
    a_key = 2 * plan.dtype.itemsize + 24
    spans = list(_key_ranges(maps, max(1, min(memory // (at_once * a_key), _MERGED))))
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(spans), at_once):
            for piece in pool.map(merged, spans[first : first + at_once]):
                if piece is not None:
                    sink.append(*piece)


def _read(path: Path, dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
    return np.fromfile(path, dtype, stop - start, offset=start * dtype.itemsize)


def _key_ranges(keys: Sequence[NDArray], at_once: int) -> Iterator[tuple[Any, Any]]:
    """Ranges of keys that hold about `at_once` entries each, from a sample of every shard."""
    total = sum(map(len, keys))
    pieces = -(-total // at_once)
    if pieces <= 1:
        return iter([(None, None)])
    every = max(1, total // (64 * pieces))
    sample = np.sort(np.concatenate([k[::every] for k in keys]))
    cuts = np.unique(sample[np.arange(1, pieces) * len(sample) // pieces])
    return iter(pairwise([None, *cuts, None]))


def _added(parts: Iterable[tuple[NDArray, NDArray]]) -> tuple[NDArray, NDArray[np.int64]]:
    """Sum of sorted (keys, counts)."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0][0], parts[0][1].astype(np.int64)
    keys = np.concatenate([k for k, _ in parts])
    counts = np.concatenate([c for _, c in parts])
    bits = int(counts.max()).bit_length()
    if int(keys.max()).bit_length() + bits <= 64:  # one integer for both: sorted in place, fast
        packed = keys.astype(np.uint64)
        packed <<= np.uint64(bits)
        packed |= counts
        packed.sort()
        keys = (packed >> np.uint64(bits)).astype(keys.dtype)
        packed &= np.uint64((1 << bits) - 1)
        counts = packed
    else:
        by_key = np.argsort(keys, kind="stable")
        keys, counts = keys[by_key], counts[by_key]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[starts], np.add.reduceat(counts.astype(np.int64), starts)


def _as_sparse(keys: NDArray, counts: NDArray[np.int64], plan: _Plan) -> Any:
    V = plan.vocab_size
    if len(plan.shape) == 2:
        first = np.arange(plan.rows + 1, dtype=np.uint64) * np.uint64(V)
        indptr = np.searchsorted(keys, first.astype(plan.dtype) if first[-1] < 2**32 else first)
        labels = (keys % plan.dtype.type(V)).astype(np.int32)
        matrix = sparse.csr_array((counts, labels, indptr.astype(np.int64)), shape=plan.shape)
        matrix.has_sorted_indices = True
        return matrix
    pair, label = np.divmod(keys, plan.dtype.type(V))
    token, context = np.divmod(pair, plan.dtype.type(V))
    places = tuple(axis.astype(np.int32) for axis in (token, context, label))
    return sparse.coo_array((counts, places), shape=plan.shape)


# --- Signatures ----------------------------------------------------------------------------------


def corpus_signature(counts: Any, form: Form = "probability") -> Any:
    r"""Signatures from order-0 counts, one row a token.

    ===============  =========================================================================
    ``form``         entry for token :math:`\alpha` and label :math:`y`
    ===============  =========================================================================
    ``probability``  :math:`P(y\mid\alpha)`
    ``centred``      :math:`P(y\mid\alpha)-P(y)`
    ``root``         :math:`\sqrt{P(y\mid\alpha)}`; dot products are Bhattacharyya coefficients
    ``ppmi``         :math:`\max\big(0,\log P(y\mid\alpha)/P(y)\big)`, :cite:`levy2014neural`
    ===============  =========================================================================

    with :math:`P(y)` the label's share of all counts.

    Parameters
    ----------
    counts : sparse array, shape (A, V)
        From :func:`count_signatures` with order 0.
    form : {"probability", "centred", "root", "ppmi"}

    Returns
    -------
    scipy.sparse.csr_array, or for ``"centred"`` a float64 array, shape (A, V)
        A token without counts has a row of zeros.

    Raises
    ------
    ValueError
        If the form is unknown or the counts have another number of axes.
    """
    if len(counts.shape) != 2:
        raise ValueError(f"counts: expected shape (A, V), got {tuple(counts.shape)}.")
    table = sparse.csr_array(counts, dtype=np.float64, copy=True)
    of_token = np.asarray(table.sum(axis=1)).ravel()
    of_label = np.asarray(table.sum(axis=0)).ravel()
    share = of_label / max(of_label.sum(), 1.0)
    scale = np.divide(1.0, of_token, out=np.zeros_like(of_token), where=of_token > 0)
    table.data *= np.repeat(scale, np.diff(table.indptr))
    if form == "probability":
        return table
    if form == "centred":
        return np.where(of_token[:, None] > 0, table.toarray() - share, 0.0)
    if form == "root":
        table.data = np.sqrt(table.data)
        return table
    if form == "ppmi":
        table.data = np.maximum(0.0, np.log(table.data / share[table.indices]))
        table.eliminate_zeros()
        return table
    raise ValueError(f"form: expected probability, centred, root or ppmi, got {form!r}.")
