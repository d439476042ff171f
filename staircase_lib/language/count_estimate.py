"""What a count will take, told beforehand: its parts run on an excerpt, and scaled.

The excerpt is the beginning of the reader's own text (or ids). On it everything is done that
`count` does, with the machine and the threads that it will have, and timed. Time then grows in
proportion to the text, that of training a tokenizer with a measured power of it, since merging
depends on the distinct words alone. The number of distinct pairs, which governs disk and the
report, follows a law that is fitted to the excerpt (:mod:`staircase_lib.language.scale`), once with
its slope kept, which is too much for any text, and once with the slope falling as it does within
the excerpt; both are told.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from staircase_lib.language import summary
from staircase_lib.language.corpus import corpora, pieces, sources, texts_in
from staircase_lib.language.counting import bytes_a_position, count_signatures
from staircase_lib.language.id_files import beginning, import_ids
from staircase_lib.language.scale import fit_growth, rarefied
from staircase_lib.language.shipped import load_tokenizer
from staircase_lib.language.tokens import TRAINED_ON, TokenFile, encode
from staircase_lib.language.vocabulary import train_tokenizer, word_tokenizer
from staircase_lib.registries import is_kept

__all__ = [
    "CountEstimate",
    "Text",
    "estimate_counting",
    "estimate_ids",
    "estimate_tokens",
    "look_at",
]

_EXCERPT = 2_000_000  # characters
_IDS = 4_000_000
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the excerpt, for the law of growth
# Bytes in memory for each distinct pair or triple: its place and count, and copies as floats.
_RESULT = 48
_PYTHON = 150e6  # bytes of the interpreter with NumPy, SciPy and pandas
# Bytes for each character that a tokenizer learns from, whose distinct words it keeps, and for each
# of those that are encoded at once: as measured on English, rounded up.
_LEARNT, _ENCODED = 8, 128
_BATCH = 4 << 20  # characters, as in the module tokens


@dataclass(frozen=True)
class Text:
    """A corpus as far as it can be told without reading it whole.

    Attributes
    ----------
    characters : float or None
        None for a streamed data set without a limit, whose size is not known here.
    trained_on : float or None
        Of these, what a tokenizer learns from.
    missing : tuple of str
        Named texts that have to be fetched first.
    excerpt : str
        Its beginning; of named texts, that of each. Where it is not here yet, text of the library
        itself, so that this machine's pace can be told.
    own : bool
        Whether the excerpt is of the corpus.
    opened : float
        Seconds until the excerpt was read.
    """

    characters: float | None
    trained_on: float | None
    missing: tuple[str, ...]
    excerpt: str
    own: bool
    opened: float

    def memory(self, learning: bool = True) -> float:
        """Bytes that encoding takes, with or without learning a tokenizer before."""
        assert self.characters is not None and self.trained_on is not None
        return _ENCODED * min(self.characters, _BATCH) + learning * _LEARNT * self.trained_on


@dataclass(frozen=True)
class CountEstimate:
    """Seconds and bytes of a count.

    Attributes
    ----------
    tokens : float
    train, encode, count, report : float
        Seconds: learning the tokenizer, writing ids, counting them, telling about them.
    memory : float
        Bytes at most, all threads together.
    disk : tuple of float
        Bytes at the end, by either law of growth.
    shards : float
        Bytes besides, until the end.
    """

    tokens: float
    train: float
    encode: float
    count: float
    report: float
    memory: float
    disk: tuple[float, float]
    shards: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.train + self.encode + self.count + self.report


def look_at(corpus: str, field: str = "text", limit: int | None = None) -> Text:
    """Size and beginning of a corpus; nothing is fetched.

    Parameters
    ----------
    corpus, field, limit
        As in :func:`staircase_lib.language.corpus.pieces`.

    Raises
    ------
    CorpusError, ValueError
        As there.
    """
    started, path = perf_counter(), Path(corpus)
    named = [] if path.exists() else corpora().get(corpus, [])
    missing = tuple(name for name in named if not is_kept(sources()[name].sha256))
    own = not missing and not corpus.startswith("hf:")
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected a positive number of characters, got {limit!r}.")
    if own:
        part = max(1, _EXCERPT // max(len(named), 1))
        part = part if limit is None else min(limit, part)
        found: Iterable[str] = (text for text, _ in pieces(corpus, field, part))
    else:
        found = (p.read_text("utf-8") for p in sorted(Path(__file__).parents[1].rglob("*.py")))
    excerpt = "".join(found)[:_EXCERPT]
    opened = perf_counter() - started
    most = math.inf if limit is None else limit
    if named:
        lengths = [min(sources()[name].characters, most) for name in named]
        whole, trained_on = sum(lengths), sum(min(n, TRAINED_ON) for n in lengths)
        return Text(whole, trained_on, missing, excerpt, own, opened)
    if corpus.startswith("hf:"):
        return Text(limit, limit and min(limit, TRAINED_ON), (), excerpt, own, opened)
    a_byte = len(excerpt) / max(len(excerpt.encode()), 1)
    files = texts_in(path) if path.is_dir() else [path]
    whole = min(most, sum(_bytes(p, field) for p in files) * a_byte)
    return Text(whole, min(whole, TRAINED_ON), (), excerpt, own, opened)


def _bytes(file: Path, field: str) -> float:
    """Bytes of text in a file: of its column in a Parquet file, else all, which may be too many."""
    if file.suffix.lower() != ".parquet":
        return file.stat().st_size
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as table:
        groups = (table.metadata.row_group(i) for i in range(table.metadata.num_row_groups))
        columns = (group.column(i) for group in groups for i in range(group.num_columns))
        return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == field)


def estimate_tokens(
    text: Text,
    vocab_size: int,
    folder: Path,
    *,
    words: bool = False,
    tokenizer: str | None = None,
    clock: Callable[[], float] = perf_counter,
) -> tuple[TokenFile, float, float, float]:
    """Ids of the excerpt, and what those of the whole will take.

    Parameters
    ----------
    text : Text
        Of known size.
    vocab_size, words, tokenizer
        As in :func:`staircase_lib.language.tokens.prepare`.
    folder : Path
        Empty; the excerpt and its ids are written there.

    Returns
    -------
    excerpt : TokenFile
    tokens : float
        Ids of the whole.
    train, encode : float
        Seconds for the whole.
    """
    assert text.characters is not None and text.trained_on is not None
    whole, part = folder / "excerpt.txt", folder / "quarter.txt"
    whole.write_text(text.excerpt, encoding="utf-8")
    part.write_text(text.excerpt[: len(text.excerpt) // 4 + 1], encoding="utf-8")
    learn = word_tokenizer if words else train_tokenizer

    def timed(work: Callable[[], Any]) -> tuple[Any, float]:
        started = clock()
        return work(), clock() - started

    size, train = max(len(text.excerpt), 1), 0.0
    if tokenizer is not None:
        learnt = load_tokenizer(tokenizer)
    else:
        _, short = timed(lambda: learn(part, vocab_size))
        learnt, long = timed(lambda: learn(whole, vocab_size))
        power = math.log(max(long, 1e-9) / max(short, 1e-9), 4)
        train = long * (text.trained_on / size) ** min(max(power, 0.5), 1.0)
    ids, wrote = timed(lambda: encode(whole, learnt, folder / "tokens"))
    scale = text.characters / size
    return ids, ids.length * scale, train + text.opened, wrote * scale + text.opened


def estimate_ids(
    source: str,
    folder: Path,
    vocab_size: int | None = None,
    dtype: str | None = None,
    separator: int | None = None,
    tokenizer: str | None = None,
    clock: Callable[[], float] = perf_counter,
) -> tuple[TokenFile, float, float]:
    """The beginning of ids of another program, how many there are, and seconds to look at all.

    Parameters
    ----------
    source, vocab_size, dtype, separator, tokenizer
        As in :func:`staircase_lib.language.id_files.import_ids`.
    folder : Path
        Empty; the beginning is written there.

    Raises
    ------
    CorpusError, ValueError
        As there.
    """
    length, first = beginning(source, dtype, separator)
    np.save(folder / "excerpt.npy", first[:_IDS])
    started = clock()
    excerpt = import_ids(
        folder / "excerpt.npy",
        folder / "tokens",
        vocab_size,
        separator=separator,
        tokenizer=tokenizer,
    )
    return excerpt, float(length), (clock() - started) * length / max(excerpt.length, 1)


def estimate_counting(
    excerpt: TokenFile,
    tokens: float,
    *,
    order: int = 0,
    asked: list[int] | None = None,
    window: int = 1,
    direction: Any = None,
    workers: int = 1,
    memory: int = 2**30,
    form: Any = "ppmi",
    least: int = 100,
    before: tuple[float, float] = (0.0, 0.0),
    encoding: float = 0.0,
    clock: Callable[[], float] = perf_counter,
) -> CountEstimate:
    """What counting will take, from a count of the beginning of the ids.

    Parameters
    ----------
    excerpt : TokenFile
    tokens : float
        Ids of the whole.
    order, asked, window, direction, workers, memory
        As in :func:`staircase_lib.language.counting.count_signatures`; `asked` are its ``tokens``.
    form, least
        As in :func:`staircase_lib.language.summary.report`.
    before : tuple of float
        Seconds of training a tokenizer and of encoding.
    encoding : float
        Bytes of memory that these two took.
    """
    ids, size = excerpt.ids[:_IDS], min(excerpt.length, _IDS)
    rows = asked if order else None
    wanted = {"order": order, "tokens": rows, "window": window, "direction": direction}
    with tempfile.TemporaryDirectory() as folder:
        started = clock()
        counts = count_signatures(
            np.array(ids),
            excerpt.vocab_size,
            **wanted,
            separator=excerpt.separator,
            workers=workers,
            memory=memory,
            folder=folder,
        )
        counted = clock() - started
        started = clock()
        if order:
            summary.report_of_triples(excerpt, counts, asked=asked, least=least)
        else:
            summary.report(excerpt, counts, asked=asked, form=form, least=least)
        told = clock() - started
        entries = int(counts.nnz)
        shares = np.array(_SHARES)
        distinct = np.maximum(rarefied(counts, shares), 1e-9)
    most = float(len(rows or range(excerpt.vocab_size))) * float(excerpt.vocab_size) ** (1 + order)
    laws = [fit_growth(shares * size, distinct, bent=bent) for bent in (True, False)]
    low, high = sorted(float(law.at(tokens, most)) for law in laws)
    key = 4 if most <= 2**32 else 8
    a_position = bytes_a_position(excerpt.vocab_size, order, rows, window)
    in_shard = min(max(memory / (workers * a_position), 1.0), max(tokens / workers, 1.0))
    shards = tokens / in_shard * float(laws[1].at(in_shard, most)) * (key + 4)
    id_bytes = tokens * (2 if excerpt.dtype == "uint16" else 4)
    at_work = min(float(memory), tokens * a_position)
    return CountEstimate(
        tokens=tokens,
        train=before[0],
        encode=before[1],
        count=counted * tokens / max(size, 1),
        report=told * max(1.0, high / max(entries, 1)),
        memory=_PYTHON + max(encoding, at_work, high * _RESULT),
        disk=(id_bytes + low * (key + 8), id_bytes + high * (key + 8)),
        shards=shards,
    )
