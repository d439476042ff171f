"""Vocabularies, and token ids on disk."""

import json
import subprocess
import sys

import numpy as np
import pytest

from staircase_lib.language import tokens, vocabulary
from staircase_lib.language.corpus import CorpusError

TEXTS = [
    "Monday and Tuesday, 1 2 305.",
    "春夏秋冬，一二三",
    "<script>alert(1)</script> \u202ereversed",
]


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("\n".join(TEXTS * 20), encoding="utf-8")
    return vocabulary.train_tokenizer(path, 400)


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
