"""Corpora: reading, tokens on disk, and what goes wrong with real files."""

import gzip
import hashlib
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from staircase_lib import registries
from staircase_lib.language import corpus, tokens, vocabulary
from staircase_lib.language.corpus import CorpusError

TEXTS = [
    "Monday and Tuesday, 1 2 305.",
    "春夏秋冬，一二三",
    "<script>alert(1)</script> \u202ereversed",
]


def documents(found):
    """Whole documents from pieces."""
    whole, open_document = [], ""
    for text, ends in found:
        open_document += text
        if ends:
            whole.append(open_document)
            open_document = ""
    assert open_document == ""
    return whole


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("\n".join(TEXTS * 20), encoding="utf-8")
    return vocabulary.train_tokenizer(path, 400)


def test_every_kind_of_file_gives_the_same_documents(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in zip("abc", TEXTS, strict=True):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": t}) for t in TEXTS) + "\n\n", encoding="utf-8")
    pd.DataFrame({"body": TEXTS}).to_parquet(tmp_path / "rows.parquet")
    assert documents(corpus.pieces(folder)) == TEXTS
    assert documents(corpus.pieces(rows)) == TEXTS
    assert documents(corpus.pieces(tmp_path / "rows.parquet", field="body")) == TEXTS


def test_a_streamed_data_set_gives_the_same_documents(tmp_path):
    """The code path of a Hugging Face data set, on local files."""
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in TEXTS), encoding="utf-8")
    rows = datasets.load_dataset(
        "json", data_files=str(path), split="train", streaming=True, cache_dir=str(tmp_path)
    )
    assert documents(corpus.documents_of(rows, "text", "local")) == TEXTS


@pytest.mark.parametrize("kind", ["words", "one line", "no space", "wide spaces"])
def test_long_documents_come_in_pieces_and_lose_nothing(tmp_path, monkeypatch, tokenizer, kind):
    monkeypatch.setattr(corpus, "_PIECE", 500)
    text = {
        "words": "\n".join(f"line {i} of many, 春夏" for i in range(300)),
        "one line": " ".join(f"word{i}" for i in range(1200)),
        "no space": "春夏秋冬" * 1500,
        "wide spaces": "a  \n  b    c\n\n" * 400,
    }[kind]
    path = tmp_path / "long.txt"
    path.write_text("\ufeff" + text, encoding="utf-8")
    rows = tmp_path / "long.jsonl"
    rows.write_text(json.dumps({"text": text}))
    for source in (path, rows):
        found = list(corpus.pieces(source))
        assert "".join(t for t, _ in found) == text
        assert [ends for _, ends in found] == [False] * (len(found) - 1) + [True]
        assert len(found) > 3 and max(len(t) for t, _ in found) <= 1000
        if kind != "no space":  # words are not cut, so the tokens are those of the whole text
            ids = [i for t, _ in found for i in tokenizer.encode(t).ids]
            assert ids == tokenizer.encode(text).ids


@pytest.mark.parametrize("kind", [vocabulary.train_tokenizer, vocabulary.word_tokenizer])
@pytest.mark.parametrize("text", ["x" * 200_000, "=" * 200_000, "1" * 200_000, " " * 200_000 + "x"])
def test_a_word_without_an_end_is_cut(tmp_path, kind, text):
    path = tmp_path / "a.txt"
    path.write_text(text)
    tokenizer = kind(path, 300)
    found = tokens.encode(path, tokenizer, tmp_path / "ids")
    longest = max(tokenizer.get_vocab(), key=lambda t: 0 if t.startswith("<|") else len(t))
    assert len(longest) <= 64
    if kind is vocabulary.train_tokenizer:
        assert tokenizer.decode(found.ids[:-1].tolist()) == text


def test_tokens_on_disk_are_the_text(tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in TEXTS), encoding="utf-8")
    seen = []
    found = tokens.encode(path, tokenizer, tmp_path / "ids", progress=seen.append)
    assert (found.documents, found.dtype, seen[-1]) == (3, "uint16", found.length)
    ends = np.flatnonzero(found.ids == found.separator)
    assert len(ends) == 3 and ends[-1] == found.length - 1
    for text, ids in zip(TEXTS, np.split(np.asarray(found.ids), ends[:-1] + 1), strict=True):
        assert tokenizer.decode(ids[:-1].tolist()) == text
    assert tokens.open_tokens(tmp_path / "ids") == found
    assert "".join(found.texts(found.ids[: ends[0]])) == TEXTS[0]


def test_text_that_looks_like_the_separator_is_text(tmp_path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("one <|endoftext|> two")
    found = tokens.encode(path, tokenizer, tmp_path / "ids")
    assert (found.ids == found.separator).sum() == 1 == found.documents


def test_numbers_and_single_bytes_can_be_named(tmp_path, tokenizer):
    ids = tokenizer.encode("305").ids
    found = tokens.encode(tmp_path / "train.txt", tokenizer, tmp_path / "ids")
    assert len(ids) == 1 and found.texts(ids) == ["305"]
    byte = tokenizer.token_to_id("è")  # the byte E8, with which many Chinese characters begin
    assert found.texts([byte]) == ["\\xe8"]


def test_words_phrases_and_characters(tmp_path):
    path = tmp_path / "a.txt"
    text = "The King's men, the king: 1865 na\u00efve! 十二月 十一月二三 二月 春夏"
    path.write_text(text * 3 + " once", encoding="utf-8")
    words = vocabulary.word_tokenizer(path, 40, phrases=["二月", "十二月"])
    assert words.encode(text).tokens == [
        *("the", "king's", "men", ",", "the", "king", ":", "1865", "na\u00efve", "!"),
        *("十二月", "十", "一", "月", "二", "三", "二月", "春", "夏"),
    ]
    found = tokens.encode(path, words, tmp_path / "ids")
    assert found.texts(words.encode("na\u00efve 春").ids) == ["na\u00efve", "春"]
    assert words.encode("unseen").tokens == [vocabulary.UNKNOWN]
    # Wrong variant: without phrases the name of a month is not one token.
    assert "十二月" not in vocabulary.word_tokenizer(path, 40).encode(text).tokens
    with pytest.raises(ValueError, match="vocab_size: expected at least 2"):
        vocabulary.word_tokenizer(path, 1)


def test_an_interrupted_encoding_continues_and_gives_the_same_ids(tmp_path, monkeypatch, tokenizer):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": f"{i} {TEXTS[i % 3]}"}) for i in range(200)))
    whole = tokens.encode(rows, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(tokens, "_BATCH", 100)
    monkeypatch.setattr(tokens, "_CHECKPOINT", 300)
    calls = []

    def stop(length):
        calls.append(length)
        if len(calls) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens.encode(rows, tokenizer, tmp_path / "ids", progress=stop)
    with pytest.raises(CorpusError, match="interrupted encoding: make the same call again"):
        tokens.open_tokens(tmp_path / "ids")
    first = []
    found = tokens.encode(rows, tokenizer, tmp_path / "ids", progress=first.append)
    assert 0 < first[0] <= calls[-1] + 200  # it did not begin anew
    np.testing.assert_array_equal(found.ids, whole.ids)
    assert found.documents == 200
    other = tmp_path / "other.txt"
    other.write_text("other")
    with pytest.raises(CorpusError, match="holds ids of another corpus or tokenizer"):
        tokens.encode(other, tokenizer, tmp_path / "ids")


def test_text_that_has_changed_is_not_taken_for_what_it_was(tmp_path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("one two")
    tokens.encode(path, tokenizer, tmp_path / "ids")
    tokens.prepare(path, tmp_path / "both", 300)
    path.write_text("one two three")
    with pytest.raises(CorpusError, match="or of text that has changed since"):
        tokens.encode(path, tokenizer, tmp_path / "ids")
    with pytest.raises(CorpusError, match=r"text that has changed since \(files\)"):
        tokens.prepare(path, tmp_path / "both", 300)


def test_training_can_be_interrupted(tmp_path):
    """A signal ends the program while the tokenizer is trained, not afterwards."""
    (tmp_path / "a.txt").write_text(" ".join(f"w{i * i}x{i}" for i in range(400_000)))
    program = """
import signal, sys
from staircase_lib.language import vocabulary
signal.signal(signal.SIGALRM, lambda *a: sys.exit(7))
signal.alarm(1)
vocabulary.train_tokenizer(sys.argv[1], 60_000)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.txt")], timeout=60)
    assert done.returncode == 7


def test_token_files_that_were_damaged_are_refused(tmp_path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("some text " * 50)
    tokens.encode(path, tokenizer, tmp_path / "ids")
    ids, header = tmp_path / "ids/ids.bin", tmp_path / "ids/header.json"
    content, right = ids.read_bytes(), header.read_text()
    ids.write_bytes(content[:-3])
    with pytest.raises(
        CorpusError, match=rf"expected {len(content)} bytes.* got {len(content) - 3}"
    ):
        tokens.open_tokens(tmp_path / "ids")
    ids.write_bytes(content)
    for wrong in (
        "",
        "[]",
        "{",
        right.replace('"uint16"', '"object"'),
        right.replace("vocab", "v"),
    ):
        header.write_text(wrong)
        with pytest.raises(CorpusError, match=r"header\.json: (cannot be read|not the header)"):
            tokens.open_tokens(tmp_path / "ids")
    header.unlink()
    with pytest.raises(CorpusError, match=r"expected token ids with a header\.json"):
        tokens.open_tokens(tmp_path / "ids")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\xff\xfe", r"a\.txt: not UTF-8 at byte 4; convert"),
        ("a.txt", b"abc\xe6", r"not UTF-8 at byte 3"),
        ("a.txt", b"PK\x03\x04\x00\x01", r"byte 4 is zero: this is a binary file"),
        ("a.txt", gzip.compress(b"text"), r"binary file|not UTF-8"),
        ("a.txt", b"", r"a\.txt: no text in it"),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"text": 3}\n',
            r"line 2: expected text under 'text', got 'text' of type int",
        ),
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', r"line 2: .* got \['body'\]"),
        ("a.jsonl", b'{"text": "x"\n', r"line 1: not JSON"),
        ("a.jsonl", b'"x"\n', r"line 1: .* got str"),
        ("a.jsonl", b'{"text": "\\ud800 x"}\n', r"line 1: character 0 is half a surrogate pair"),
        ("a.txt", b" \n\t \n", r"no text in it"),
        ("a.parquet", b"no parquet", r"not a Parquet file"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        list(corpus.pieces(tmp_path / name))


def test_an_error_beyond_the_first_block_names_its_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_PIECE", 100)
    content = "é".encode() * 333 + b"\xff" + b"more" * 50
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(CorpusError, match="not UTF-8 at byte 666;"):
        list(corpus.pieces(tmp_path / "a.txt"))


def test_a_row_that_memory_could_not_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_LONGEST_ROW", 1000)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 2000}))
    with pytest.raises(CorpusError, match="line 1: longer than 1000 bytes"):
        list(corpus.pieces(tmp_path / "a.jsonl"))


def test_what_is_not_there(tmp_path):
    with pytest.raises(
        CorpusError, match=r"expected a file, a folder, hf:NAME or one of .*default"
    ):
        list(corpus.pieces("no such thing"))
    with pytest.raises(CorpusError, match="expected files that end in"):
        list(corpus.pieces(tmp_path))
    with pytest.raises(ValueError, match="vocab_size: expected at least 257"):
        vocabulary.train_tokenizer(tmp_path, 100)


def test_archives_are_checked_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    content, asked = b"an archive", []

    def give(package, folder):
        asked.append(package)
        (tmp_path / folder / "file").write_bytes(content)
        return ""

    monkeypatch.setattr(registries, "_download_pypi", give)
    right = hashlib.sha256(content).hexdigest()
    for _ in range(2):
        assert registries.archive("pypi", "p==1", right).read_bytes() == content
    assert asked == ["p==1"]
    registries.archive("pypi", "p==1", right).write_bytes(b"damaged in the cache")
    assert registries.archive("pypi", "p==1", right).read_bytes() == content
    with pytest.raises(registries.RegistryError, match="expected an archive with SHA-256 0000"):
        registries.archive("pypi", "p==1", "0" * 64)
    monkeypatch.setattr(registries, "_download_pypi", lambda package, folder: "no network")
    with pytest.raises(registries.RegistryError, match="did not give q==1; .* It said: no network"):
        registries.archive("pypi", "q==1", "1" * 64)


def test_every_named_text_says_where_it_is_from():
    known, named = corpus.sources(), corpus.corpora()
    for parts in named.values():
        assert parts and set(parts) <= set(known)
    for source in known.values():
        assert source.licence and source.address.startswith("https://")
        assert source.registry in ("pypi", "npm", "debian") and len(source.sha256) == 64
    # Chapters need these: public domain, and from registries that keep every version.
    for name in ("default", "english", "chinese", "large"):
        for source in map(known.__getitem__, named[name]):
            assert "public domain" in source.licence and source.registry != "debian"
    assert {known[name].language for name in named["default"]} == {"en", "zh"}
