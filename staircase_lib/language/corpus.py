"""Text as documents, and documents as token ids on disk.

A corpus is named (``corpora.toml``), or a path of the reader's own: text files, JSON lines,
Parquet, a folder of these, or a Hugging Face data set that is streamed. It is read in pieces of
bounded size: neither a file of many gigabytes nor a line of one is ever in memory whole.

Named texts come from the package registries as archives that are not installed. Their SHA-256 is
checked, and they are kept in the user's cache.

Token ids lie in a folder: ``ids.bin``, raw little-endian uint16 or uint32, every document followed
by the separator; ``tokenizer.json``; and ``header.json``, written last, which says how many ids
there have to be. Everything in a corpus is data: nothing of it is run or unpickled.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from staircase_lib.language.folders import locked, write_atomically
from staircase_lib.registries import RegistryError, archive

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "CorpusError",
    "Source",
    "TokenFile",
    "corpora",
    "encode",
    "open_tokens",
    "pieces",
    "prepare",
    "sources",
    "train_tokenizer",
    "word_tokenizer",
]

SEPARATOR = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
_PIECE = 1 << 20  # characters of a document that are in memory at once
_LONGEST_ROW = 1 << 28  # bytes of a JSON line
_BATCH = 4 << 20  # characters that are encoded at once
_CHECKPOINT = 8 << 20  # tokens between two records of how far the encoding is

_OTHER = (
    "{}: holds ids of another corpus or tokenizer, or of text that has changed since; give another "
    "folder, or delete it."
)

Piece = tuple[str, bool]  # text, and whether a document ends with it


class CorpusError(Exception):
    """A text, a token file or a registry that does not give what it should; says which and why."""


# --- Texts with a name ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A text of the package registries.

    Attributes
    ----------
    name, title, language, licence, address : str
    registry : {"pypi", "npm"}
    package : str
        With its version, as the registry's tool takes it.
    sha256 : str
        Of the archive.
    members : tuple of str
        Patterns of the files in the archive that hold the text.
    format : {"text", "json", "poems", "python"}
        A document a file; a JSON list of documents; a JSON list of poems with ``paragraphs``; the
        longest string of a Python module, read without running it.
    """

    name: str
    title: str
    language: str
    licence: str
    address: str
    registry: str
    package: str
    sha256: str
    members: tuple[str, ...]
    format: str


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
        text = _decoded(content, f"{source.name}: {name}")
        if source.format == "text":
            documents: Iterable[str] = [text]
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


def _members(path: Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as bundle:
            for name in sorted(filter(wanted, bundle.namelist())):
                yield name, bundle.read(name)
        return
    with tarfile.open(path) as bundle:
        for member in sorted(bundle.getmembers(), key=lambda m: m.name):
            if member.isfile() and wanted(member.name):
                file = bundle.extractfile(member)
                assert file is not None
                yield member.name, file.read()


# --- Pieces of text ------------------------------------------------------------------------------


def pieces(corpus: str | os.PathLike[str], field: str = "text") -> Iterator[Piece]:
    """Text of a corpus, document by document, in pieces of bounded size.

    Parameters
    ----------
    corpus : str or path
        A name of :func:`corpora`; a text file (one document); JSON lines (``.jsonl``) or Parquet
        (a document a row); a folder, whose files of these kinds are read in order of their
        names; or ``hf:NAME`` for a Hugging Face data set, streamed (``hf:NAME:CONFIGURATION``).
    field : str
        Column or key that holds the text of a row.

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
    if name.startswith("hf:"):
        found = _streamed(name.removeprefix("hf:"), field)
    elif path.is_dir():
        found = itertools.chain.from_iterable(_file(p, field) for p in _texts_in(path))
    elif path.is_file():
        found = _file(path, field)
    elif name in corpora():
        found = itertools.chain.from_iterable(_archived(sources()[s]) for s in corpora()[name])
    else:
        raise CorpusError(
            f"corpus: expected a file, a folder, hf:NAME or one of {', '.join(corpora())}; there "
            f"is no {name!r}."
        )
    something = False
    for text, ends in found:
        something = something or not text.isspace() and bool(text)
        yield text, ends
    if not something:
        raise CorpusError(f"{name}: no text in it; expected at least one document.")


_KINDS = (".txt", ".md", ".jsonl", ".ndjson", ".parquet")


def _texts_in(folder: Path) -> list[Path]:
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
            except ValueError as error:
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


def _streamed(name: str, field: str) -> Iterator[Piece]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise CorpusError(
            f"hf:{name} needs the package datasets; install it with `pip install datasets`."
        ) from None
    path, _, configuration = name.partition(":")
    rows = load_dataset(path, configuration or None, split="train", streaming=True)
    yield from documents_of(rows, field, f"hf:{name}")


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


# --- Tokens --------------------------------------------------------------------------------------


def train_tokenizer(
    corpus: str | os.PathLike[str],
    vocab_size: int,
    *,
    field: str = "text",
    limit: int | None = None,
) -> Tokenizer:
    r"""Byte-level BPE, trained on a corpus.

    Numbers of up to three digits and single Chinese characters are kept together before merges are
    sought, so that 1 to 999 can be tokens of their own.

    Parameters
    ----------
    corpus, field
        As in :func:`pieces`.
    vocab_size : int
        ``V``, at least 257: the bytes and the separator, which has id 0.
    limit : int, optional
        Characters to train on, from the start of the corpus. Default: all.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    ValueError
        If the vocabulary cannot hold the bytes.
    CorpusError
        As in :func:`pieces`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise ValueError(f"vocab_size: expected at least 257 (bytes, separator), got {vocab_size}.")
    tokenizer = Tokenizer(models.BPE())
    # Words have an end even where a text has none: merges within one cost its length squared.
    words = Regex(r"\p{N}{1,3}| ?\p{L}{1,64}| ?[^\s\p{L}\p{N}]{1,64}|\s{1,64}")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    _interruptibly(lambda: tokenizer.train_from_iterator(_texts(corpus, field, limit), trainer))
    return tokenizer


def word_tokenizer(
    corpus: str | os.PathLike[str],
    vocab_size: int,
    *,
    phrases: Sequence[str] = (),
    field: str = "text",
    limit: int | None = None,
) -> Tokenizer:
    r"""Whole words as tokens: for questions about words, not for a language model.

    Text is lower-cased; a token is a word, a number, a punctuation mark or one Chinese character.
    Rare ones share the token ``<|unknown|>``, id 1.

    Parameters
    ----------
    corpus, field, limit
        As in :func:`train_tokenizer`.
    vocab_size : int
        ``V``, at least 2: separator, unknown, then the most frequent.
    phrases : sequence of str
        Strings that are one token wherever they stand as such, longer ones first, for example
        Chinese names of months.

    Returns
    -------
    tokenizers.Tokenizer
    """
    import re

    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    if vocab_size < 2:
        raise ValueError(f"vocab_size: expected at least 2 (separator, unknown), got {vocab_size}.")
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    named = [re.escape(phrase.lower()) for phrase in sorted(phrases, key=len, reverse=True)]
    letter = r"[\p{L}&&[^\p{Han}]]"
    word = rf"{letter}{{1,64}}(?:['\u2019]{letter}{{1,64}})*"
    kinds = [r"\p{Han}", word, r"\p{N}{1,64}", r"[^\s\p{L}\p{N}]"]
    words = Regex("|".join([*named, *kinds]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, behavior="removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=[SEPARATOR, UNKNOWN], show_progress=False
    )
    _interruptibly(lambda: tokenizer.train_from_iterator(_texts(corpus, field, limit), trainer))
    return tokenizer


def _interruptibly(work: Callable[[], None]) -> None:
    """Do work that holds no Python for minutes so that signals still end the program."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if failed:
        raise failed[0]


def _texts(corpus: str | os.PathLike[str], field: str, limit: int | None) -> Iterator[str]:
    seen = 0
    for text, _ in pieces(corpus, field):
        seen += len(text)
        yield text
        if limit is not None and seen >= limit:
            return


@dataclass(frozen=True)
class TokenFile:
    """Token ids on disk.

    Attributes
    ----------
    folder : Path
    vocab_size : int
    separator : int
        Id after every document.
    length : int
        Number of ids, separators included.
    documents : int
    dtype : {"uint16", "uint32"}
    """

    folder: Path
    vocab_size: int
    separator: int
    length: int
    documents: int
    dtype: str

    @property
    def ids(self) -> NDArray[np.unsignedinteger]:
        """Memory map of the ids, shape (length,)."""
        kind = np.dtype(self.dtype).newbyteorder("<")
        if not self.length:
            return np.zeros(0, kind)
        return np.memmap(self.folder / "ids.bin", kind, "r", shape=(self.length,))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def texts(self, tokens: Iterable[int]) -> list[str]:
        """Text of single tokens; bytes that are no character alone appear as ``\\xNN``."""
        tokenizer = self.tokenizer
        found = [tokenizer.id_to_token(int(token)) or "" for token in tokens]
        if tokenizer.decoder is None:  # words
            return found
        alphabet = _byte_of()
        return [
            bytes(alphabet[c] for c in piece).decode("utf-8", errors="backslashreplace")
            if all(character in alphabet for character in piece)
            else piece
            for piece in found
        ]


@cache
def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def encode(
    corpus: str | os.PathLike[str],
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    field: str = "text",
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Write the token ids of a corpus, or take them up where an interrupted call left them.

    Parameters
    ----------
    corpus, field
        As in :func:`pieces`.
    tokenizer : tokenizers.Tokenizer
        With a token ``<|endoftext|>``, the separator.
    folder : path
        Made if it is not there; refused if it holds ids of something else.
    progress : callable, optional
        Called with the number of ids so far.

    Returns
    -------
    TokenFile

    Raises
    ------
    CorpusError
        As in :func:`pieces`, or for a folder that holds something else.
    ValueError
        If the tokenizer has no separator.
    """
    place = Path(folder)
    separator = tokenizer.token_to_id(SEPARATOR)
    if separator is None:
        raise ValueError(f"tokenizer: expected a token {SEPARATOR}, the separator of documents.")
    vocab_size = tokenizer.get_vocab_size()
    dtype = "uint16" if vocab_size <= 2**16 else "uint32"
    kind = np.dtype(dtype).newbyteorder("<")
    text = tokenizer.to_str()
    tokenizer.encode_special_tokens = True  # a separator that the text spells out is text
    description = {
        "corpus": os.fspath(corpus),
        "field": field,
        "files": _fingerprint(corpus),
        "tokenizer": hashlib.sha256(text.encode()).hexdigest(),
    }
    with locked(place):
        return _encode(corpus, tokenizer, place, field, description, kind, progress)


def _encode(
    corpus: str | os.PathLike[str],
    tokenizer: Tokenizer,
    place: Path,
    field: str,
    description: dict[str, Any],
    kind: np.dtype[Any],
    progress: Callable[[int], None] | None,
) -> TokenFile:
    text, separator = tokenizer.to_str(), tokenizer.token_to_id(SEPARATOR)
    assert separator is not None  # encode has looked
    if (place / "header.json").exists():
        if _read_json(place / "header.json").get("made_from") != description:
            raise CorpusError(_OTHER.format(place))
        return open_tokens(place)
    state = {"made_from": description, "pieces": 0, "length": 0, "documents": 0}
    if (place / "state.json").exists():
        found = _read_json(place / "state.json")
        if found.get("made_from") != description:
            raise CorpusError(_OTHER.format(place))
        state = found
    with (place / "ids.bin").open("ab") as file:
        file.truncate(state["length"] * kind.itemsize)  # what came after the last record is redone
        file.seek(0, os.SEEK_END)
        waiting = 0
        for batch in _batches(itertools.islice(pieces(corpus, field), state["pieces"], None)):
            encoded = tokenizer.encode_batch_fast([t for t, _ in batch], add_special_tokens=False)
            ids: list[int] = []
            for (_, ends), encoding in zip(batch, encoded, strict=True):
                ids += encoding.ids
                if ends:
                    ids.append(separator)
            np.array(ids, dtype=kind).tofile(file)
            state["pieces"] += len(batch)
            state["length"] += len(ids)
            state["documents"] += sum(ends for _, ends in batch)
            waiting += len(ids)
            if waiting >= _CHECKPOINT:
                file.flush()
                os.fsync(file.fileno())
                _write_json(place / "state.json", state)
                waiting = 0
            if progress:
                progress(state["length"])
    write_atomically(place / "tokenizer.json", text.encode())
    _write_json(
        place / "header.json",
        {
            "made_from": description,
            "vocab_size": tokenizer.get_vocab_size(),
            "separator": separator,
            "length": state["length"],
            "documents": state["documents"],
            "dtype": kind.name,
        },
    )
    (place / "state.json").unlink(missing_ok=True)
    return open_tokens(place)


def _fingerprint(corpus: str | os.PathLike[str]) -> str:
    """Names, sizes and times of a corpus' own files; empty for named and streamed ones."""
    path = Path(corpus)
    files = _texts_in(path) if path.is_dir() else [path] if path.is_file() else []
    seen = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(repr(seen).encode()).hexdigest() if seen else ""


def _batches(found: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch, size = [], 0
    for piece in found:
        batch.append(piece)
        size += len(piece[0])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def prepare(
    corpus: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    vocab_size: int,
    *,
    words: bool = False,
    field: str = "text",
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Tokens of a corpus with a tokenizer of its own; what an earlier call made is used again.

    Parameters
    ----------
    corpus, field
        As in :func:`pieces`.
    folder : path
        Where tokenizer and ids are, or will be.
    vocab_size : int
    words : bool
        :func:`word_tokenizer` in place of :func:`train_tokenizer`.
    progress : callable, optional
        As in :func:`encode`.

    Raises
    ------
    CorpusError
        If the folder was made from something else; otherwise as :func:`encode`.
    """
    from tokenizers import Tokenizer

    place = Path(folder)
    asked = {
        "corpus": os.fspath(corpus),
        "field": field,
        "vocab_size": vocab_size,
        "words": words,
        "files": _fingerprint(corpus),
    }
    known, trained = place / "asked.json", place / "tokenizer.json"
    if known.exists() and _read_json(known) != asked:
        was = _read_json(known)
        differ = ", ".join(name for name in asked if was.get(name) != asked[name])
        raise CorpusError(
            f"{place}: made with other settings or from text that has changed since ({differ}); "
            f"give another folder, or delete it."
        )
    if not trained.exists():
        train = word_tokenizer if words else train_tokenizer
        tokenizer = train(corpus, vocab_size, field=field)
        place.mkdir(parents=True, exist_ok=True)
        _write_json(known, asked)
        write_atomically(trained, tokenizer.to_str().encode())
    return encode(corpus, Tokenizer.from_file(str(trained)), place, field=field, progress=progress)


def open_tokens(folder: str | os.PathLike[str]) -> TokenFile:
    """Token ids that :func:`encode` wrote.

    Raises
    ------
    CorpusError
        If the header is missing, is none, or speaks of other ids than there are.
    """
    place = Path(folder)
    header = place / "header.json"
    if not header.is_file():
        unfinished = " (an interrupted encoding: make the same call again)"
        raise CorpusError(
            f"{place}: expected token ids with a header.json; there is none"
            f"{unfinished if (place / 'state.json').exists() else ''}."
        )
    found = _read_json(header)
    kinds = {"vocab_size": int, "separator": int, "length": int, "documents": int, "dtype": str}
    wrong = [name for name, kind in kinds.items() if type(found.get(name)) is not kind]
    if not wrong:
        sensible = 0 <= found["separator"] < found["vocab_size"] and found["documents"] >= 0
        wrong = (
            [] if sensible and found["documents"] <= found["length"] else ["separator, documents"]
        )
    if wrong or found["dtype"] not in ("uint16", "uint32"):
        raise CorpusError(f"{header}: not the header of token ids; {wrong or ['dtype']} are wrong.")
    path = place / "ids.bin"
    expected = found["length"] * np.dtype(found["dtype"]).itemsize
    came = path.stat().st_size if path.is_file() else 0
    if came != expected:
        raise CorpusError(
            f"{path}: expected {expected} bytes, as the header says, got {came}; the file was cut "
            f"or replaced. Encode the corpus again."
        )
    return TokenFile(place, **{name: found[name] for name in kinds})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode())
