"""Documents as token ids on disk.

Token ids lie in a folder: ``ids.bin``, raw little-endian uint16 or uint32, every document followed
by the separator; ``tokenizer.json``; and ``header.json``, written last, which says how many ids
there have to be. Nothing of it is run or unpickled.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from staircase_lib.freshness import code_digest
from staircase_lib.language.corpus import CorpusError, Piece, Streamed, fingerprint, pieces
from staircase_lib.language.folders import locked, write_atomically
from staircase_lib.language.shipped import load_tokenizer
from staircase_lib.language.vocabulary import (
    separator_of,
    token_texts,
    train_tokenizer,
    vocabulary_size,
    word_tokenizer,
)
from staircase_lib.registries import cache_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["TokenFile", "encode", "open_tokens", "prepare", "prepared"]

_BATCH = 4 << 20  # characters that are encoded at once
TRAINED_ON = 200_000_000  # characters of every text that a tokenizer learns from
_CHECKPOINT = 8 << 20  # tokens between two records of how far the encoding is

OTHER = (
    "{}: holds ids of another corpus or tokenizer, or of text that has changed since; give another "
    "folder, or delete it."
)


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
    file : Path, optional
        Where the ids lie if not in the folder: a file of the reader's own, read in place.
    offset : int
        Byte of that file at which they begin.
    """

    folder: Path
    vocab_size: int
    separator: int
    length: int
    documents: int
    dtype: str
    file: Path | None = None
    offset: int = 0

    @property
    def ids(self) -> NDArray[np.unsignedinteger]:
        """Memory map of the ids, shape (length,)."""
        kind = np.dtype(self.dtype).newbyteorder("<")
        if not self.length:
            return np.zeros(0, kind)
        path = self.file or self.folder / "ids.bin"
        return np.memmap(path, kind, "r", self.offset, (self.length,))

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that made the ids; None if nothing is known of it."""
        path = self.folder / "tokenizer.json"
        return load_tokenizer(path) if path.exists() else None

    def id_of(self, text: str) -> int | None:
        """Id of the token that is written so in the vocabulary; None if there is none."""
        return self.tokenizer.token_to_id(text) if self.tokenizer else None

    def texts(self, tokens: Iterable[int]) -> list[str]:
        """Text of single tokens; bytes that are no character alone appear as ``\\xNN``.

        Without a tokenizer, ``#17`` for token 17.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            return [f"#{int(token)}" for token in tokens]
        return token_texts(tokenizer, tokens)


def encode(
    corpus: str | os.PathLike[str],
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    field: str = "text",
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Write the token ids of a corpus, or take them up where an interrupted call left them.

    Parameters
    ----------
    corpus, field, limit
        As in :func:`~staircase_lib.language.corpus.pieces`.
    tokenizer : tokenizers.Tokenizer
        With a token that ends documents, such as ``<|endoftext|>``.
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
        As in :func:`~staircase_lib.language.corpus.pieces`; for a folder that holds something else.
    ValueError
        If the tokenizer has no separator.
    """
    place = Path(folder)
    separator_of(tokenizer)
    with locked(place):
        return _encode(corpus, tokenizer, place, field, limit, progress)


def _encode(
    corpus: str | os.PathLike[str],
    tokenizer: Tokenizer,
    place: Path,
    field: str,
    limit: int | None,
    progress: Callable[[int], None] | None,
) -> TokenFile:
    separator, vocab_size = separator_of(tokenizer), vocabulary_size(tokenizer)
    kind = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
    text = tokenizer.to_str()
    tokenizer.encode_special_tokens = True  # a separator that the text spells out is text
    description = {
        "corpus": os.fspath(corpus),
        "field": field,
        "limit": limit,
        "files": fingerprint(corpus),
        "tokenizer": hashlib.sha256(text.encode()).hexdigest(),
    }
    if (place / "header.json").exists():
        if read_json(place / "header.json").get("made_from") != description:
            raise CorpusError(OTHER.format(place))
        return open_tokens(place)
    state = {"made_from": description, "pieces": 0, "length": 0, "documents": 0}
    if (place / "state.json").exists():
        state = read_json(place / "state.json")
        if state.get("made_from") != description:
            raise CorpusError(OTHER.format(place))
    with (place / "ids.bin").open("ab") as file:
        recorded = state["length"] * kind.itemsize
        if file.tell() < recorded:
            raise CorpusError(
                f"{place}: expected {recorded} bytes of ids from an earlier call, there are "
                f"{file.tell()}; delete the folder and begin anew."
            )
        file.truncate(recorded)  # what came after the last record is redone
        waiting = 0
        stream, name = None, os.fspath(corpus)
        if name.startswith("hf:"):
            found = stream = Streamed(name, field, limit, state.get("position"))
        else:
            found = itertools.islice(pieces(corpus, field, limit), state["pieces"], None)
        for batch in _batches(found):
            encoded = tokenizer.encode_batch_fast([t for t, _ in batch], add_special_tokens=False)
            ids: list[int] = []
            for (_, ends), encoding in zip(batch, encoded, strict=True):
                ids += encoding.ids
                if ends:
                    ids.append(separator)
            file.write(np.array(ids, dtype=kind).data)  # tofile says nothing of a full disk
            state["pieces"] += len(batch)
            state["length"] += len(ids)
            state["documents"] += sum(ends for _, ends in batch)
            waiting += len(ids)
            if waiting >= _CHECKPOINT and (stream is None or batch[-1][1]):
                if stream:
                    state["position"] = stream.position()
                file.flush()
                os.fsync(file.fileno())
                _write_json(place / "state.json", state)
                waiting = 0
            if progress:
                progress(state["length"])
        file.flush()
        os.fsync(file.fileno())
    if not state["length"]:
        raise CorpusError(f"{corpus}: no text in it; expected at least one document.")
    write_atomically(place / "tokenizer.json", text.encode())
    made = (vocab_size, separator, state["length"], state["documents"], kind.name)
    write_header(TokenFile(place, *made), description)
    (place / "state.json").unlink(missing_ok=True)
    return open_tokens(place)


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
    vocab_size: int = 16384,
    *,
    words: bool = False,
    phrases: Sequence[str] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    field: str = "text",
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Tokens of a corpus, by default of a tokenizer trained on it; what was made is used again.

    Parameters
    ----------
    corpus, field, limit
        As in :func:`~staircase_lib.language.corpus.pieces`.
    folder : path
        Where tokenizer and ids are, or will be.
    vocab_size : int
        Of the tokenizer that is trained, on the first 200 million characters of every text.
    words : bool
        :func:`~staircase_lib.language.vocabulary.word_tokenizer` in place of
        :func:`~staircase_lib.language.vocabulary.train_tokenizer`.
    phrases : sequence of str
        With `words`: strings that are one token.
    tokenizer : str or path, optional
        One that is there, in place of training: as in
        :func:`~staircase_lib.language.shipped.load_tokenizer`.
    progress : callable, optional
        As in :func:`encode`.

    Raises
    ------
    CorpusError
        If the folder was made from something else; otherwise as :func:`encode`.
    FolderInUse
        If another process writes to the folder.
    """
    place = Path(folder)
    asked = _asked(corpus, vocab_size, words, phrases, tokenizer, field, limit)
    with locked(place):
        return _prepare(corpus, place, asked, progress)


def prepared(
    corpus: str | os.PathLike[str] = "default",
    vocab_size: int = 16384,
    *,
    words: bool = False,
    phrases: Sequence[str] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    field: str = "text",
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenFile:
    """Tokens of a corpus, made at the first call and kept in the user's cache.

    They are found again by everything that they depend on: the hashes of the named texts (names,
    sizes and times of files), the settings, the code that makes them. A second process that asks
    for the same ones waits; after an interrupted call the next one goes on. Nothing is ever removed
    from the cache, so its folder ``tokens`` may be deleted at any time. Of a data set of the hub
    only the name is known here: give :func:`prepare` a folder for it.

    Parameters
    ----------
    corpus, vocab_size, words, phrases, tokenizer, field, limit, progress
        As in :func:`prepare`.

    Returns
    -------
    TokenFile

    Raises
    ------
    CorpusError, ValueError
        As in :func:`prepare`.
    """
    path = Path(corpus)
    if path.exists():
        corpus = path.resolve()
    asked = _asked(corpus, vocab_size, words, phrases, tokenizer, field, limit)
    code = [(Path(__file__).parent / f"{name}.py").read_text("utf-8") for name in _MAKERS]
    key = [asked, version("tokenizers"), *map(code_digest, code)]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    name = "".join(c if c.isalnum() else "-" for c in path.name)[:40]
    place = cache_folder() / "tokens" / f"{name}-{vocab_size}-{digest[:16]}"
    if (place / "header.json").exists():
        return open_tokens(place)
    with locked(place, wait=True):
        return _prepare(corpus, place, asked, progress)


_MAKERS = ("corpus", "markup", "vocabulary", "shipped", "tokens")  # the modules that ids depend on


def _asked(
    corpus: str | os.PathLike[str],
    vocab_size: int,
    words: bool,
    phrases: Sequence[str],
    tokenizer: str | os.PathLike[str] | None,
    field: str,
    limit: int | None,
) -> dict[str, Any]:
    """Everything that a call asks for, as it is kept beside the tokens."""
    if tokenizer is not None and (words or phrases):
        raise ValueError("tokenizer: expected without words and phrases; it has its own tokens.")
    if phrases and not words:
        raise ValueError("phrases: expected with words=True only; a BPE has no phrases.")
    return {
        "corpus": os.fspath(corpus),
        "field": field,
        "limit": limit,
        "tokenizer": None if tokenizer is None else [str(tokenizer), _sha256(tokenizer)],
        "vocab_size": vocab_size if tokenizer is None else None,
        "words": words,
        "phrases": list(phrases),
        "files": fingerprint(corpus),
    }


def _sha256(tokenizer: str | os.PathLike[str]) -> str | None:
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _prepare(
    corpus: str | os.PathLike[str],
    place: Path,
    asked: dict[str, Any],
    progress: Callable[[int], None] | None,
) -> TokenFile:
    known, trained = place / "asked.json", place / "tokenizer.json"
    if known.exists() and (was := read_json(known)) != asked:
        differ = ", ".join(name for name in asked if was.get(name) != asked[name])
        raise CorpusError(
            f"{place}: made with other settings or from text that has changed since ({differ}); "
            f"give another folder, or delete it."
        )
    field, limit = asked["field"], asked["limit"]
    if not trained.exists():
        size, phrases = asked["vocab_size"], asked["phrases"]
        part = min(limit or TRAINED_ON, TRAINED_ON)
        if asked["tokenizer"] is not None:
            tokenizer = load_tokenizer(asked["tokenizer"][0])
        elif asked["words"]:
            tokenizer = word_tokenizer(corpus, size, phrases=phrases, field=field, limit=part)
        else:
            tokenizer = train_tokenizer(corpus, size, field=field, limit=part)
        _write_json(known, asked)
        write_atomically(trained, tokenizer.to_str().encode())
    return _encode(corpus, load_tokenizer(trained), place, field, limit, progress)


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
    found = read_json(header)
    kinds = {"vocab_size": int, "separator": int, "length": int, "documents": int, "dtype": str}
    wrong = [name for name, kind in kinds.items() if type(found.get(name)) is not kind]
    if not wrong:
        sensible = 0 <= found["separator"] < found["vocab_size"] and found["documents"] >= 0
        wrong = (
            [] if sensible and found["documents"] <= found["length"] else ["separator, documents"]
        )
    elsewhere = {"file": str, "offset": int, "changed": int}
    if "file" in found:
        wrong += [name for name, kind in elsewhere.items() if type(found.get(name)) is not kind]
    if wrong or found["dtype"] not in ("uint16", "uint32"):
        raise CorpusError(f"{header}: not the header of token ids; {wrong or ['dtype']} are wrong.")
    where = {"file": Path(found["file"]), "offset": found["offset"]} if "file" in found else {}
    path, offset = where.get("file", place / "ids.bin"), where.get("offset", 0)
    expected = found["length"] * np.dtype(found["dtype"]).itemsize
    came = path.stat().st_size - offset if path.is_file() else 0
    if came != expected:
        raise CorpusError(
            f"{path}: expected {expected} bytes, as the header says, got {came}; the file was cut "
            f"or replaced. {'Import the ids' if where else 'Encode the corpus'} again."
        )
    if where and path.stat().st_mtime_ns != found["changed"]:
        raise CorpusError(
            f"{path}: has changed since its ids were looked at; import them again, to another "
            f"folder than {place}."
        )
    return TokenFile(place, **{name: found[name] for name in kinds}, **where)


def read_json(path: Path) -> dict[str, Any]:
    """Content of a file of ours."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def write_header(found: TokenFile, made_from: dict[str, Any], **where: Any) -> None:
    """Say that the ids of a folder are whole, and what they were made from."""
    names = ("vocab_size", "separator", "length", "documents", "dtype")
    header = {name: getattr(found, name) for name in names}
    _write_json(found.folder / "header.json", {"made_from": made_from, **header, **where})


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode())
