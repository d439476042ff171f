"""A full disk, a process that is killed, a line of a gigabyte: nothing is lost or half taken."""

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from staircase_lib.language import corpus, counting, tokens, vocabulary
from staircase_lib.language.corpus import CorpusError

ENCODE = """
import os, resource, signal, sys
from staircase_lib.language import tokens
from staircase_lib.language.shipped import load_tokenizer
text, folder, limit, steps = sys.argv[1:5]
tokens._BATCH, tokens._CHECKPOINT = 2000, 1000
if int(limit):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
seen = []
def tell(length):
    print(length)
    seen.append(length)
    if len(seen) == int(steps):
        os.kill(os.getpid(), signal.SIGKILL)
try:
    tokens.encode(text, load_tokenizer(text + "/.."), folder, progress=tell)
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""
COUNT = """
import os, resource, signal, sys
import numpy as np
from staircase_lib.language import counting
ids, folder, limit, steps = sys.argv[1:5]
if int(limit):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
seen = []
def tell(done, total):
    seen.append(done)
    if len(seen) == int(steps):
        os.kill(os.getpid(), signal.SIGKILL)
try:
    counting.count_signatures(
        np.load(ids, mmap_mode="r"), 2000, memory=2 << 20, folder=folder, progress=tell
    )
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


@pytest.fixture
def texts(tmp_path):
    """A folder with rows of text, and a tokenizer beside it."""
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = [json.dumps({"text": f"row {i} of many; {i * i} 春夏秋冬"}) for i in range(4000)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    vocabulary.train_tokenizer(folder, 400).save(str(tmp_path / "tokenizer.json"))
    return folder


def ended(program, *arguments, limit=0, kill=0):
    """A process that may write files of `limit` bytes, or is killed at a step of its progress."""
    command = [sys.executable, "-c", program, *map(str, arguments), str(limit), str(kill)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if kill:
        assert done.returncode == -signal.SIGKILL, done.stderr
    return done


def whole(texts):
    """The ids of an encoding that nothing disturbed."""
    from staircase_lib.language.shipped import load_tokenizer

    return tokens.encode(texts, load_tokenizer(texts.parent), texts.parent / "whole").ids


@pytest.mark.parametrize("how", ["killed", "full"])
def test_an_encoding_that_ends_badly_is_no_encoding_and_is_taken_up(texts, how):
    wanted, folder = whole(texts), texts.parent / "ids"
    if how == "killed":
        ended(ENCODE, texts, folder, kill=25)
    else:
        done = ended(ENCODE, texts, folder, limit=40_000)
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    assert (folder / "ids.bin").stat().st_size > 20_000
    with pytest.raises(CorpusError, match=r"header\.json.*make the same call again"):
        tokens.open_tokens(folder)
    recorded = json.loads((folder / "state.json").read_text())["length"]
    done = ended(ENCODE, texts, folder)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > recorded > 0  # not from the beginning
    np.testing.assert_array_equal(tokens.open_tokens(folder).ids, wanted)


@pytest.mark.fault("a file of ids is shorter than its record", 1)
def test_ids_that_were_lost_behind_a_record_are_missed(texts):
    folder = texts.parent / "ids"
    ended(ENCODE, texts, folder, kill=12)
    with (folder / "ids.bin").open("r+b") as file:
        file.truncate(10)
    done = ended(ENCODE, texts, folder)
    assert done.returncode == 1 and "delete the folder and begin anew" in done.stderr


@pytest.mark.parametrize("how", ["killed", "full"])
def test_a_count_that_ends_badly_leaves_no_half_shard_and_is_taken_up(tmp_path, how):
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.2, 1_500_000) % 2000
    np.save(tmp_path / "ids.npy", ids.astype("uint16"))
    wanted = counting.count_signatures(ids, 2000)
    if how == "killed":
        ended(COUNT, tmp_path / "ids.npy", tmp_path / "counts", kill=3)
    else:
        done = ended(COUNT, tmp_path / "ids.npy", tmp_path / "counts", limit=300_000)
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    seen = []
    found = counting.count_signatures(
        np.load(tmp_path / "ids.npy", mmap_mode="r"),
        2000,
        memory=2 << 20,
        folder=tmp_path / "counts",
        progress=lambda done, total: seen.append(done),
    )
    assert abs(found - wanted).sum() == 0 and seen[-1] == len(ids)
    if how == "killed":
        assert len(seen) > 2 and seen[0] >= len(ids) // 10  # what was there was kept


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("length", [10, 100_000])  # within the file's buffer, and beyond it
def test_a_disk_that_is_full_while_shards_are_merged(tmp_path, length):
    (tmp_path / "counts.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        counting._Sink(tmp_path).append(np.arange(length), np.arange(length))


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_disk_that_is_full_in_the_middle_of_an_encoding(texts):
    disk = texts.parent / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        done = ended(ENCODE, texts, disk / "ids")
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
        with pytest.raises(CorpusError, match=r"header\.json"):
            tokens.open_tokens(disk / "ids")
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        assert ended(ENCODE, texts, disk / "ids").returncode == 0
        found = np.array(tokens.open_tokens(disk / "ids").ids)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    np.testing.assert_array_equal(found, whole(texts))


class _Line:
    """A file of one line that exists only as it is read."""

    def __init__(self, size, text):
        self.left, self.block = size, text * (1 << 20)

    def read(self, size):
        size = min(size, self.left)
        self.left -= size
        return self.block[:size]


@pytest.mark.parametrize("text", [b"word ", b"x"])
def test_a_line_of_a_gigabyte_is_read_within_megabytes(text):
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece, _ in corpus._text(_Line(1 << 30, text), Path("line.txt")))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 1 << 30 and peak < 32 << 20


def test_a_row_of_a_gigabyte_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "')
        file.truncate(1 << 30)  # a hole: it takes no room
    with pytest.raises(CorpusError, match="line 1: longer than"):
        list(corpus.pieces(path))
