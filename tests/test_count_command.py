"""The command `count`, as somebody with a text of their own uses it."""

import json
import sys
from pathlib import Path

import pytest
from project import run

TEXT = "the cat saw the dog. the dog saw the cat. one two three one two three. \u202eevil\n" * 120


def count(folder, *arguments):
    return run([sys.executable, "-P", "-m", "staircase_lib", "count", *arguments], folder)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "my text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_a_text_becomes_a_report_and_is_not_counted_twice(text):
    first = count(text, "my text.txt", "--words", "--vocab-size", "50", "--tokens", "cat,one")
    assert first.returncode == 0, first.stderr
    assert "tokens counted" in first.stderr and "nearest by signature" in first.stdout
    assert "\\u202e" in first.stdout and "\u202e" not in first.stdout  # a mark is shown, not obeyed
    made = text / "my text.txt.counts"
    ids = (made / "tokens/ids.bin").stat().st_mtime_ns
    again = count(text, "my text.txt", "--words", "--vocab-size", "50", "--json")
    assert again.returncode == 0, again.stderr
    assert "counted" not in again.stderr and (made / "tokens/ids.bin").stat().st_mtime_ns == ids
    found = json.loads(again.stdout)
    assert found["documents"] == 1 and found["pairs"] == found["tokens"] - 2
    assert found["vocab_size"] == 10 + 2
    best = {row["text"]: row["bits"] for row in found["most_predictable"]}
    assert best["one"] == best["two"] == 0.0
    nearest = {row["text"]: row["nearest"] for row in found["neighbours"]}
    assert nearest["cat"][0] == "dog"


def test_ids_that_are_there_are_counted_without_the_text(text):
    assert count(text, "my text.txt", "--vocab-size", "300").returncode == 0
    (text / "my text.txt").unlink()
    ids = "my text.txt.counts/tokens"
    found = count(text, ids, "--folder", "other", "--order", "1", "--tokens", "cat", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["triples"] == TEXT.count("cat")


def test_triples_tell_what_the_context_adds(text):
    arguments = ("my text.txt", "--words", "--vocab-size", "50", "--order", "1")
    done = count(text, *arguments, "--tokens", "saw,the,one", "--least", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    bits = {row["text"]: row["bits"] for row in found["most_predictable"]}
    # After "the" comes one of two animals, evenly often.
    assert bits == {"saw": 0.0, "one": 0.0, "the": 1.0}
    contexts = {row["text"]: row["contexts"] for row in found["contexts"]}
    assert list(contexts) == ["saw", "the", "one"] and contexts["one"][0]["label"] == "two"
    assert {c["text"]: (c["bits"], c["label"]) for c in contexts["the"]}["evil"] == (0.0, "cat")
    told = count(text, *arguments, "--tokens", "saw,the,one")
    assert told.returncode == 0 and "strongest contexts" in told.stdout
    assert "bits of the next token, triples, token" in told.stdout


def test_ids_of_other_programs_are_counted(text):
    assert count(text, "my text.txt", "--vocab-size", "270", "--json").returncode == 0
    made = text / "my text.txt.counts/tokens"
    (text / "shards").mkdir()
    ids = (made / "ids.bin").read_bytes()
    (text / "shards/1.bin").write_bytes(ids[:1000])
    (text / "shards/2.bin").write_bytes(ids[1000:])
    own = count(text, str(made), "--folder", "own", "--json")
    plain = ("shards", "--vocab-size", "270", "--dtype", "uint16", "--separator", "0", "--json")
    other = count(text, *plain, "--tokens", "9,#10")
    assert other.returncode == 0, other.stderr
    numbers = ("tokens", "documents", "vocab_size", "pairs", "distinct")
    first, second = json.loads(own.stdout), json.loads(other.stdout)
    assert [first[name] for name in numbers] == [second[name] for name in numbers]
    assert [row["text"] for row in second["neighbours"]] == ["#9", "#10"]
    named = ("shards", "--tokenizer", str(made), "--dtype", "uint16", "--folder", "n", "--json")
    third = count(text, *named)
    assert json.loads(third.stdout) == first, third.stderr


def test_a_vocabulary_that_is_there_is_taken(text):
    assert count(text, "my text.txt", "--vocab-size", "270", "--json").returncode == 0
    (text / "b.txt").write_text("the cat saw one dog. " * 200)
    made = str(text / "my text.txt.counts/tokens/tokenizer.json")
    found = count(text, "b.txt", "--tokenizer", made, "--tokens", "the", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["vocab_size"] == 270


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            *(["missing.txt"], "expected a file, a folder, hf:NAME or one of"),
            marks=pytest.mark.fault("a text to count does not exist", 2),
        ),
        (["/dev/null"], "that is no ordinary file"),
        (["hf:"], "expected the name of a data set after hf:"),
        (["my text.txt", "--vocab-size", "10"], "vocab_size: expected at least 257"),
        (["my text.txt", "--vocab-size", "0"], "expected 1 or more, got 0"),
        (["deep.jsonl"], "deep.jsonl, line 1: not JSON: maximum recursion depth"),
        (
            ["my text.txt", "--vocab-size", "300", "--tokens", "zebra"],
            "expected single tokens, but",
        ),
        (["my text.txt", "--vocab-size", "300", "--window", "0"], "window: expected a positive"),
        pytest.param(
            *(["binary.txt"], "this is a binary file"),
            marks=pytest.mark.fault("a text to count is a binary file", 2),
        ),
        pytest.param(
            *(["empty.txt"], "no text in it"),
            marks=pytest.mark.fault("a text to count is empty", 2),
        ),
        pytest.param(
            *(["latin.txt"], "not UTF-8"),
            marks=pytest.mark.fault("a text to count is not UTF-8", 2),
        ),
        (["one.txt", "--words"], "nothing to count"),
        (["my text.txt", "--tokenizer", "nothing"], "expected a tokenizer.json, a folder with one"),
        (["my text.txt", "--tokenizer", "x", "--words"], "tokenizer: expected without words"),
        (["my text.txt", "--separator", "0"], "separator: expected with ids in .npy or .bin only"),
        (["ids.bin"], "vocab_size: expected with ids of another program"),
        (["ids.bin", "--vocab-size", "9", "--separator", "0"], "dtype: expected with ids.bin"),
        pytest.param(
            *(
                ["ids.bin", "--vocab-size", "9", "--separator", "0", "--dtype", "uint16"],
                "id 12 at position 2 is outside the vocabulary [0, 9)",
            ),
            marks=pytest.mark.fault("an id lies outside the vocabulary", 2),
        ),
    ],
)
def test_what_cannot_be_counted_is_said_in_one_line(text, arguments, message):
    (text / "binary.txt").write_bytes(b"\x00\x01")
    (text / "empty.txt").touch()
    (text / "latin.txt").write_bytes("é".encode("latin-1") * 99)
    (text / "ids.bin").write_bytes(b"\3\0\4\0\x0c\0")
    (text / "one.txt").write_text("a")
    (text / "deep.jsonl").write_text("[" * 100_000)
    done = count(text, *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (text / "missing.txt.counts").exists()


@pytest.mark.fault("a folder holds counts of other settings", 2)
def test_other_settings_do_not_mix(text):
    assert count(text, "my text.txt", "--words", "--vocab-size", "50").returncode == 0
    done = count(text, "my text.txt", "--words", "--vocab-size", "40")
    assert done.returncode == 2 and "give another" in done.stderr


@pytest.mark.parametrize("option", ["--window", "--workers", "--vocab-size", "--memory", "--least"])
def test_a_number_that_is_far_too_large_is_refused_at_once(text, option):
    done = count(text, "my text.txt", option, "9" * 20)
    assert done.returncode == 2 and f"argument {option}: expected" in done.stderr
    assert not (text / "my text.txt.counts").exists()


@pytest.mark.fault("a report would replace a device, or a file that is no report", 9)
def test_a_report_replaces_only_a_report(text):
    (text / "notes.md").write_text("# Notes")
    (text / "pipe").symlink_to("/dev/null")
    for output, code, told in (("notes.md", 2, "no HTML page"), ("pipe", 9, "no ordinary file")):
        done = count(text, "my text.txt", "--words", "--output", output)
        assert done.returncode == code and told in done.stderr, done.stderr
    assert (text / "notes.md").read_text() == "# Notes" and (text / "pipe").is_symlink()
    assert not Path("/dev/null").is_file()


def test_a_link_is_followed_and_an_older_report_replaced(text):
    (text / "old.html").write_text("<!doctype html><title>Old</title>")
    (text / "link.html").symlink_to("old.html")
    done = count(text, "my text.txt", "--words", "--vocab-size", "50", "--output", "link.html")
    assert done.returncode == 0, done.stderr
    assert (text / "link.html").is_symlink() and "Old" not in (text / "old.html").read_text()


def test_a_count_in_a_window_is_not_called_occurrences(text):
    done = count(text, "my text.txt", "--words", "--vocab-size", "50", "--window", "3")
    assert done.returncode == 0, done.stderr
    assert "within 3 of it, pairs" in done.stdout and "occurrences" not in done.stdout
