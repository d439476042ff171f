"""Counting: equal to brute force, whatever the shards, workers and interruptions."""

import errno
import tracemalloc
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staircase_lib import tasks
from staircase_lib.language import counting, folders
from staircase_lib.language.folders import FolderInUse, locked
from staircase_lib.language.paths import next_token_signature

SMALL = 2**20  # the least memory that may be asked for


def brute(ids, order, tokens, window, direction, separator):
    """One position, one step, one dictionary entry at a time."""
    side = {"next": [1], "previous": [-1], "both": [-1, 1]}[direction]
    found = Counter()
    for i in range(len(ids)):
        for s in side:
            for k in range(1, window + 1):
                places = [i, i + s * k]
                if order == 1:
                    places = [i, i - k if s < 0 else i + 1 + k, i + 1]
                if min(places) < 0 or max(places) >= len(ids):
                    continue
                if separator in [int(t) for t in ids[min(places) : max(places) + 1]]:
                    continue
                if tokens is None or ids[i] in tokens:
                    row = int(ids[i]) if tokens is None else list(tokens).index(ids[i])
                    found[(row, *(int(ids[p]) for p in places[1:]))] += 1
    return found


def as_counter(counts):
    coo = counts.tocoo()
    return Counter(
        {tuple(map(int, k)): int(c) for *k, c in zip(*coo.coords, coo.data, strict=True)}
    )


@st.composite
def questions(draw):
    vocab_size = draw(st.integers(1, 6))
    ids = np.array(draw(st.lists(st.integers(0, vocab_size - 1), max_size=40)), dtype=np.uint16)
    tokens = draw(st.none() | st.sets(st.integers(0, vocab_size - 1), min_size=1).map(list))
    return (
        ids,
        vocab_size,
        {
            "order": draw(st.sampled_from([0, 1])),
            "tokens": tokens,
            "window": draw(st.integers(1, 3)),
            "direction": draw(st.sampled_from(["next", "previous", "both"])),
            "separator": draw(st.none() | st.integers(0, vocab_size - 1)),
        },
    )


@pytest.mark.claim("X.5")
@settings(max_examples=1500, deadline=None)
@given(questions())
def test_counts_are_those_of_brute_force(question):
    ids, vocab_size, options = question
    counts = counting.count_signatures(ids, vocab_size, **options)
    assert counts.dtype == np.int64
    assert as_counter(counts) == brute(ids, **options)


@pytest.mark.claim("X.5")
@settings(max_examples=60, deadline=None)
@given(questions(), st.integers(1, 7), st.integers(1, 5), st.integers(1, 3))
def test_no_sharding_and_no_merging_changes_a_count(
    tmp_path_factory, question, size, at_once, threads
):
    """Shards of one position and up, merged a few entries at a time."""
    ids, vocab_size, options = question
    plan = counting._plan(
        vocab_size,
        *(options[k] for k in ("order", "tokens", "window")),
        options["direction"],
        options["separator"],
    )
    folder = tmp_path_factory.mktemp("shards")
    spans = counting._spans(len(ids), size)
    for span in spans:
        counting._count_to_disk(ids, span, plan, str(folder))
    sink = counting._Sink(None)
    files = [counting._shard_path(folder, span) for span in spans]
    memory = at_once * 2 * threads * (2 * plan.dtype.itemsize + 24)
    counting._merge(files, plan, memory, sink, threads)
    merged = counting._as_sparse(*sink.arrays(plan.dtype), plan)
    assert as_counter(merged) == brute(ids, **options)


def zipf(n, vocab_size, seed=0):
    weights = 1 / np.arange(1, vocab_size + 1)
    rng = np.random.default_rng(seed)
    return rng.choice(vocab_size, size=n, p=weights / weights.sum()).astype(np.uint16)


@pytest.mark.parametrize("order", [0, 1])
def test_workers_memory_and_place_do_not_matter(tmp_path, order):
    ids = zipf(300_000, 300)
    whole = counting.count_signatures(ids, 300, order, separator=7)
    path = tmp_path / "ids.bin"
    ids.tofile(path)
    on_disk = np.memmap(path, np.uint16, "r")
    processes = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with processes:
        for workers, source in ((2, ids), (processes, on_disk), (processes, on_disk[:])):
            seen = []
            counts = counting.count_signatures(
                source,
                300,
                order,
                None,
                workers,
                separator=7,
                memory=SMALL,
                progress=lambda done, n: seen.append((done, n)),  # noqa: B023
            )
            assert abs(counts - whole).sum() == 0
            assert len(seen) > 3 and seen[-1] == (len(ids), len(ids))
    folder = tmp_path / "kept"
    first = counting.count_signatures(ids, 300, order, separator=7, memory=SMALL, folder=folder)
    again = counting.count_signatures(ids, 300, order, separator=7, memory=SMALL, folder=folder)
    assert abs(first - whole).sum() == 0 and abs(again - whole).sum() == 0
    assert not (folder / "shards").exists()


def test_dask_runs_the_same_code(tmp_path):
    distributed = pytest.importorskip("distributed")
    ids = zipf(100_000, 200)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        counts = counting.count_signatures(
            ids, 200, workers=client.get_executor(), memory=SMALL, folder=tmp_path / "c"
        )
    assert abs(counts - counting.count_signatures(ids, 200)).sum() == 0


def test_large_vocabularies_use_wide_keys_and_refuse_what_does_not_fit():
    ids = np.array([0, 69_999, 3, 69_999, 3], dtype=np.uint32)
    counts = counting.count_signatures(ids, 70_000)
    assert as_counter(counts) == Counter({(69_999, 3): 2, (0, 69_999): 1, (3, 69_999): 1})
    triples = counting.count_signatures(ids, 70_000, 1, tokens=[69_999])
    assert as_counter(triples) == Counter({(0, 0, 3): 1, (0, 3, 3): 1})
    with pytest.raises(ValueError, match="too many combinations for 64 bits; ask for fewer"):
        counting.count_signatures(ids.astype(np.int64), 3_000_000, 1)


def test_the_signature_is_that_of_the_language_model_task():
    """Sentences written out one after the other give the exact signature of the task."""
    task = tasks.from_arrays([[0, 1, 2], [2, 2, 1], [1, 0, 0]], [3, 0, 2])
    separator = task.vocab_size
    text = np.column_stack([task.tokens, task.labels, np.full(3, separator)]).ravel()
    counts = counting.count_signatures(text, separator + 1, separator=separator)
    mass, signature = next_token_signature(task)
    expected = (mass[..., None] * signature).sum(axis=1)
    expected /= np.maximum(expected.sum(axis=1, keepdims=True), 1e-300)
    found = counting.corpus_signature(counts).toarray()[:separator, :separator]
    np.testing.assert_allclose(found, expected, atol=1e-15)
    # Wrong variant: sentences run into each other.
    crossing = counting.count_signatures(text[text != separator], separator)
    assert np.abs(counting.corpus_signature(crossing).toarray() - expected).max() > 0.05


def test_forms():
    ids = zipf(5_000, 12)
    counts = counting.count_signatures(ids, 13)  # token 12 never occurs
    p = counts.toarray() / np.maximum(counts.toarray().sum(1, keepdims=True), 1)
    share = counts.toarray().sum(0) / counts.sum()
    found = {f: counting.corpus_signature(counts, f) for f in ("probability", "root", "ppmi")}
    np.testing.assert_allclose(found["probability"].toarray(), p, atol=1e-15)
    np.testing.assert_allclose(found["root"].toarray(), np.sqrt(p), atol=1e-15)
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.nan_to_num(np.log(p / share), nan=0.0, neginf=0.0)
    np.testing.assert_allclose(found["ppmi"].toarray(), np.maximum(pmi, 0), atol=1e-12)
    centred = counting.corpus_signature(counts, "centred")
    np.testing.assert_allclose(centred[:12], (p - share)[:12], atol=1e-15)
    assert (centred[12] == 0).all()
    with pytest.raises(ValueError, match="form: expected probability"):
        counting.corpus_signature(counts, "pmi")


def test_an_interrupted_count_continues_where_it_was(tmp_path, monkeypatch):
    ids = zipf(400_000, 100)
    expected = counting.count_signatures(ids, 100)
    real, counted = counting._count, []

    def stopped_after_three(*arguments):
        counted.append(arguments[1])
        if len(counted) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(counting, "_count", stopped_after_three)
    with pytest.raises(KeyboardInterrupt):
        counting.count_signatures(ids, 100, memory=SMALL, folder=tmp_path)
    before = len(counted) - 1
    counted.clear()
    monkeypatch.setattr(counting, "_count", lambda *a: counted.append(a[1]) or real(*a))
    resumed = counting.count_signatures(ids, 100, memory=SMALL, folder=tmp_path)
    total = len(counting._spans(len(ids), SMALL // counting.bytes_a_position(100)))
    assert len(counted) == total - before
    assert abs(resumed - expected).sum() == 0


def test_a_full_disk_is_said_and_leaves_no_half_shard(tmp_path, monkeypatch):
    ids = zipf(400_000, 100)
    real = folders.os.replace

    def full(source, target):
        if Path(target).suffix == ".keys" and len(list(tmp_path.glob("shards/*.keys"))) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(folders.os, "replace", full)
    with pytest.raises(OSError, match="no space left .* make the same call again"):
        counting.count_signatures(ids, 100, memory=SMALL, folder=tmp_path)
    assert len(list(tmp_path.glob("shards/*.keys"))) == 2
    assert not list(tmp_path.glob("shards/.*"))
    monkeypatch.undo()
    counts = counting.count_signatures(ids, 100, memory=SMALL, folder=tmp_path)
    assert abs(counts - counting.count_signatures(ids, 100)).sum() == 0


def test_a_killed_worker_is_an_error_and_the_next_call_continues(tmp_path):
    ids = zipf(200_000, 100)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pid = pool.submit(counting.os.getpid).result()
        counting.os.kill(pid, 9)
        with pytest.raises(Exception, match="terminated abruptly|not usable"):
            counting.count_signatures(ids, 100, workers=pool, memory=SMALL, folder=tmp_path)
    counts = counting.count_signatures(ids, 100, memory=SMALL, folder=tmp_path)
    assert abs(counts - counting.count_signatures(ids, 100)).sum() == 0


def test_a_folder_of_other_counts_is_refused(tmp_path):
    ids = zipf(1_000, 10)
    counting.count_signatures(ids, 10, folder=tmp_path)
    for other, options in ((ids[::-1].copy(), {}), (ids, {"window": 2}), (ids, {"separator": 3})):
        with pytest.raises(ValueError, match="holds counts of other ids or other settings"):
            counting.count_signatures(other, 10, folder=tmp_path, **options)
    kept = (tmp_path / "counts.part").read_bytes()
    (tmp_path / "counts.part").write_bytes(kept[:-8])
    with pytest.raises(ValueError, match="should hold .* entries and has .* Delete it"):
        counting.count_signatures(ids, 10, folder=tmp_path)
    (tmp_path / "counts.part").write_bytes(kept)
    with locked(tmp_path), pytest.raises(FolderInUse, match="another run is writing there"):
        counting.count_signatures(ids, 10, folder=tmp_path)
    assert counting.count_signatures(ids, 10, folder=tmp_path).sum() == len(ids) - 1
    (tmp_path / "counts.json").write_text("[1")
    with pytest.raises(ValueError, match="holds counts of other"):
        counting.count_signatures(ids, 10, folder=tmp_path)


def test_memory_is_kept(tmp_path):
    """Peak of what is allocated while counting and merging; the ids alone would take more."""
    path = tmp_path / "ids.bin"
    zipf(4_000_000, 2_000).tofile(path)
    ids = np.memmap(path, np.uint16, "r")
    result = counting.count_signatures(ids, 2_000)
    beside = 3 * (result.data.nbytes + result.indices.nbytes)
    peaks = {}
    for memory in (2**21, 2**27):
        tracemalloc.start()
        counting.count_signatures(ids, 2_000, memory=memory, folder=tmp_path / str(memory))
        peaks[memory] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peaks[memory] < memory + beside
    # Wrong variant: without the limit the keys are all there at once.
    assert peaks[2**27] > 4 * len(ids) > peaks[2**21]


def test_bad_input():
    ids = np.array([0, 1, 2])
    bad = [
        ((ids, 0), ValueError, "vocab_size: expected a positive integer, got 0"),
        ((ids, 2), ValueError, r"ids in \[0, 2\), got 2 at position 2; was the text encoded"),
        ((ids - 1, 3), ValueError, r"got -1 at position 0"),
        ((ids.astype(float), 3), TypeError, "ids: expected integers, got dtype float64"),
        ((ids[None], 3), ValueError, r"one axis of token ids, got shape \(1, 3\)"),
        ((ids, 3, 2), ValueError, "order: expected 0 .pairs. or 1"),
        ((ids, 3, 0, [1, 1]), ValueError, "tokens: expected distinct ids"),
        ((ids, 3, 0, [3]), ValueError, r"tokens and separator: expected ids in \[0, 3\), got \[3"),
        ((ids, 3, 0, []), ValueError, "tokens: expected a list of token ids"),
        ((ids, 3, 0, None, 0), ValueError, "workers: expected a positive integer or an executor"),
    ]
    for arguments, error, message in bad:
        with pytest.raises(error, match=message):
            counting.count_signatures(*arguments)
    for options, message in (
        ({"window": 0}, "window: expected a positive integer"),
        ({"direction": "up"}, "direction: expected one of"),
        ({"separator": 3}, "tokens and separator"),
        ({"memory": 10}, "memory: expected bytes, at least"),
    ):
        with pytest.raises(ValueError, match=message):
            counting.count_signatures(ids, 3, **options)
    assert counting.count_signatures(np.array([], dtype=np.uint16), 3).nnz == 0
    assert counting.count_signatures([1], 3).nnz == 0
    assert counting.count_signatures(ids, 3, window=10**9).sum() == 3  # as far as the ids go
