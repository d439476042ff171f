"""Token ids that other programs wrote: arrays, raw files, the shards of training code.

One file of 16- or 32-bit ids is read where it lies; several, or ids of another width, are copied
once into one file. Every id is looked at before any is used.

===========================  =====================================================================
``.npy``                     NumPy, one axis of integers; nothing is unpickled
``.bin`` beside an ``.idx``  Megatron-LM: the index has the type and the ends of documents
``.bin`` with its magic      llm.c: 256 32-bit integers (magic, version, number of ids), then ids
``.bin``                     raw little-endian ids, as of nanoGPT: their type has to be given
===========================  =====================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from staircase_lib.language.corpus import CorpusError
from staircase_lib.language.folders import locked, write_atomically
from staircase_lib.language.shipped import load_tokenizer
from staircase_lib.language.tokens import (
    OTHER,
    TokenFile,
    open_tokens,
    read_json,
    write_header,
)
from staircase_lib.language.vocabulary import separator_of, vocabulary_size

__all__ = ["beginning", "holds_ids", "import_ids"]

_CHUNK = 1 << 23  # ids that are looked at, or copied, at once
_LLM_C = {20240520: "<u2", 20240801: "<u4"}  # magic of its files, and the type of their ids
_MEGATRON = b"MMIDIDX\0\0"
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


@dataclass(frozen=True)
class _Ids:
    """Where the ids of one file lie."""

    path: Path
    dtype: np.dtype[Any]
    offset: int
    length: int

    def chunks(self) -> Iterator[NDArray[np.integer]]:
        # A map of its own for each, so that the pages of earlier ones are given back.
        for start in range(0, self.length, _CHUNK):
            where = self.offset + start * self.dtype.itemsize
            shape = (min(_CHUNK, self.length - start),)
            yield np.memmap(self.path, self.dtype, "r", where, shape)


def holds_ids(source: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of ids of another program, or a folder with such files."""
    path = Path(source)
    return bool(_shards(path))


def _shards(path: Path) -> list[Path]:
    """Files of ids, those of a folder in the order of their names, in which 2 is before 10."""
    found = [path] if path.is_file() else []
    if path.is_dir():
        found = [p for p in path.iterdir() if p.is_file()]
    found = [p for p in found if p.suffix.lower() in (".npy", ".bin")]

    def natural(p: Path) -> list[Any]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", p.name)]

    return sorted(found, key=natural)


def beginning(
    source: str | os.PathLike[str], dtype: str | None = None, separator: int | None = None
) -> tuple[int, NDArray[np.integer]]:
    """How many ids there are, and a map of the first ones, of which none is looked at.

    Parameters
    ----------
    source, dtype, separator
        As in :func:`import_ids`.

    Raises
    ------
    CorpusError, ValueError
        As there, for headers and types.
    """
    files = [_opened(shard, dtype, separator or 0) for shard in _shards(Path(source))]
    first = next((chunk for ids in files for chunk in ids.chunks()), np.zeros(0, np.uint16))
    return sum(ids.length for ids in files), first


def import_ids(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    vocab_size: int | None = None,
    *,
    dtype: str | None = None,
    separator: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Token ids of another program as a :class:`~staircase_lib.language.tokens.TokenFile`.

    Parameters
    ----------
    source : path
        A file, or a folder with files, of one of the kinds above.
    folder : path
        Where the header is kept, and a copy of the ids if there has to be one.
    vocab_size : int, optional
        ``V``; every id has to be smaller. Default: the tokenizer's.
    dtype : str, optional
        Of raw files, such as ``uint16``.
    separator : int, optional
        Id between documents. Default: the tokenizer's.
    tokenizer : str or path, optional
        That made the ids, as in :func:`~staircase_lib.language.shipped.load_tokenizer`: it gives
        tokens their text, and the defaults above. Without it tokens are known by number.
    progress : callable, optional
        Called with the number of ids so far.

    Returns
    -------
    TokenFile

    Raises
    ------
    CorpusError
        If there are no ids, a header and its file do not agree, an id is outside the vocabulary
        (naming file and position), documents of an index do not end with the separator, or the
        folder holds something else.
    ValueError
        If something that no file says has not been given.
    FolderInUse
        If another process writes to the folder.
    """
    path, place = Path(source), Path(folder)
    known = None if tokenizer is None else load_tokenizer(tokenizer)
    if known is not None:
        vocab_size = vocabulary_size(known) if vocab_size is None else vocab_size
        separator = separator_of(known) if separator is None else separator
    if vocab_size is None or separator is None:
        missing = "vocab_size" if vocab_size is None else "separator"
        raise ValueError(
            f"{missing}: expected with ids of another program; they do not say it themselves. "
            f"Give it, or the tokenizer."
        )
    if not 0 <= separator < vocab_size:
        raise ValueError(f"separator: expected an id in [0, {vocab_size}), got {separator}.")
    shards = _shards(path)
    if not shards:
        raise CorpusError(f"{path}: expected files of ids that end in .npy or .bin; none found.")
    files = [_opened(shard, dtype, separator) for shard in shards]
    description = {
        "files": [
            [str(ids.path.resolve()), ids.dtype.str, ids.path.stat().st_mtime_ns] for ids in files
        ],
        "vocab_size": vocab_size,
        "separator": separator,
        "tokenizer": None if tokenizer is None else str(tokenizer),
    }
    with locked(place):
        if (place / "header.json").exists():
            if read_json(place / "header.json").get("made_from") != description:
                raise CorpusError(OTHER.format(place))
            return open_tokens(place)
        in_place = len(files) == 1 and files[0].dtype.str in ("<u2", "<u4", "<i2", "<i4")
        if in_place:
            kind = np.dtype(f"<u{files[0].dtype.itemsize}")
            length, documents = _checked(files, vocab_size, separator, None, kind, progress)
        else:
            kind = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
            with (place / "ids.bin").open("wb") as file:
                length, documents = _checked(files, vocab_size, separator, file, kind, progress)
                file.flush()
                os.fsync(file.fileno())
        if known is not None:
            write_atomically(place / "tokenizer.json", known.to_str().encode())
        found = TokenFile(place, vocab_size, separator, length, documents, kind.name)
        path, offset, changed = files[0].path.resolve(), files[0].offset, description["files"][0][2]
        where = {"file": str(path), "offset": offset, "changed": changed}
        write_header(found, description, **(where if in_place else {}))
        return open_tokens(place)


def _checked(
    files: list[_Ids],
    vocab_size: int,
    separator: int,
    copy: IO[bytes] | None,
    kind: np.dtype[Any],
    progress: Callable[[int], None] | None,
) -> tuple[int, int]:
    """Look at every id, copy it if asked to; number of ids and of documents."""
    length, documents, last = 0, 0, separator
    for ids in files:
        start = 0
        for chunk in ids.chunks():
            if int(chunk.max()) >= vocab_size or int(chunk.min()) < 0:
                at = int(np.flatnonzero((chunk >= vocab_size) | (chunk < 0))[0])
                raise CorpusError(
                    f"{ids.path}: id {int(chunk[at])} at position {start + at} is outside the "
                    f"vocabulary [0, {vocab_size}); is it larger, or the type not {ids.dtype.name}?"
                )
            if copy is not None:
                copy.write(chunk.astype(kind).data)
            documents += int(np.count_nonzero(chunk == separator))
            start, last = start + len(chunk), int(chunk[-1])
            length += len(chunk)
            if progress:
                progress(length)
    if not length:
        raise CorpusError(f"{files[0].path}: no ids in it; expected at least one.")
    return length, documents + (last != separator)


def _opened(path: Path, dtype: str | None, separator: int) -> _Ids:
    if path.suffix.lower() == ".npy":
        return _numpy_file(path)
    index = path.with_suffix(".idx")
    if index.is_file():
        return _megatron_file(path, index, separator)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12), "<i4") if size >= 1024 else np.zeros(3, "<i4")
    if int(head[0]) in _LLM_C:
        kind, length = np.dtype(_LLM_C[int(head[0])]), int(head[2])
        return _Ids(path, kind, 1024, _agreed(path, length, size - 1024, kind))
    if dtype is None:
        raise ValueError(
            f"dtype: expected with {path.name}, a file of ids without a header; uint16 if its "
            f"vocabulary has at most 65,536 tokens, most likely."
        )
    try:
        kind = np.dtype(dtype).newbyteorder("<")
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "ui":
        raise ValueError(f"dtype: expected a type of integers such as uint16, got {dtype!r}.")
    return _Ids(path, kind, 0, _agreed(path, None, size, kind))


def _agreed(path: Path, length: int | None, size: int, kind: np.dtype[Any]) -> int:
    """Number of ids that a file has, if it is the one that its header promises."""
    if size % kind.itemsize or length not in (None, size // kind.itemsize):
        promised = "whole ids" if length is None else f"{length} ids, as its header says"
        raise CorpusError(
            f"{path}: expected {promised}, of {kind.itemsize} bytes each; it has {size} bytes for "
            f"them. It was cut, or is of another type."
        )
    return size // kind.itemsize


def _numpy_file(path: Path) -> _Ids:
    try:
        ids = np.lib.format.open_memmap(path, mode="r")  # unlike load, takes nothing for a pickle
    except (OSError, ValueError, EOFError) as error:
        raise CorpusError(f"{path}: not an array of NumPy, or cut: {error}") from None
    if not isinstance(ids, np.memmap) or ids.ndim != 1 or ids.dtype.kind not in "ui":
        raise CorpusError(
            f"{path}: expected one axis of integers, got {ids.dtype} of shape {ids.shape}."
        )
    return _Ids(path, ids.dtype, int(ids.offset), len(ids))


def _megatron_file(path: Path, index: Path, separator: int) -> _Ids:
    content = index.read_bytes()
    try:
        if not content.startswith(_MEGATRON) or int.from_bytes(content[9:17], "little") != 1:
            raise ValueError("magic or version")
        kind = np.dtype(_MEGATRON_TYPES[content[17]])
        sequences, documents = (int(n) for n in np.frombuffer(content, "<u8", 2, 18))
        lengths = np.frombuffer(content, "<i4", sequences, 34)
        ends = np.frombuffer(content, "<i8", documents, 34 + 12 * sequences)[1:]
    except (ValueError, KeyError, IndexError) as error:
        raise CorpusError(f"{index}: not an index of Megatron-LM, or cut: {error}") from None
    last = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[ends] - 1
    length = _agreed(path, int(lengths.sum(dtype=np.int64)), path.stat().st_size, kind)
    if length and last.size:
        ids = np.memmap(path, kind, "r", 0, (length,))
        if (wrong := np.flatnonzero(ids[last] != separator)).size:
            raise CorpusError(
                f"{path}: document {int(wrong[0])} does not end with the separator, {separator}: "
                f"pairs would cross documents. Write the ids with --append-eod, or give its id."
            )
    return _Ids(path, kind, 0, length)
