"""Corpora: reading, tokens on disk, and what goes wrong with real files."""

import gzip
import hashlib
import json

import pandas as pd
import pytest

from staircase_lib import registries
from staircase_lib.language import corpus, vocabulary
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
