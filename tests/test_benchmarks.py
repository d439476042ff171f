"""What the benchmarks compare with computes the same, or their ratios would mean nothing."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from staircase_lib import models, signatures, tasks, training
from staircase_lib.language.counting import count_signatures

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
V = 50


@pytest.fixture(scope="module")
def benchmarks():
    """Modules of the folder, by name."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def references(benchmarks):
    return benchmarks("references")


@pytest.fixture(scope="module")
def ids():
    """A few documents; token 0 ends each."""
    return np.random.default_rng(0).integers(0, V, 4_000).astype(np.uint16) // 2 * 2


def equal(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "name", ["numpy_unique", "numpy_unique_32", "scipy_matrix", "arrow_group_by"]
)
def test_arrays(references, ids, name):
    found = getattr(references, name)(ids, V)
    assert equal(found, references.of_matrix(count_signatures(ids, V)))
    # Wrong variant: document boundaries make a difference, so the two are not to be compared.
    assert not equal(found, references.of_matrix(count_signatures(ids, V, separator=0)))


def test_triples(references, ids):
    anchors = np.array([4, 2, 30])
    pairs, times = references.numpy_unique_triples(ids, V, anchors)
    found = count_signatures(ids, V, 1, anchors)
    token, before, after = found.coords
    assert np.array_equal(pairs, (token.astype(np.int64) * V + before) * V + after)
    assert np.array_equal(times, found.data)


@pytest.mark.parametrize("name", ["duckdb_pairs", "duckdb_fused"])
def test_database(references, ids, name):
    pytest.importorskip("duckdb")
    with references.duckdb_input(ids, V, threads=1) as base:
        found = getattr(references, name)(base, V)
    assert equal(found, references.of_matrix(count_signatures(ids, V)))


def test_tokengrams(references, ids, tmp_path):
    try:
        references.tokengrams()
    except ModuleNotFoundError:
        pytest.skip("tokengrams is not installed")
    path = tmp_path / "ids.bin"
    ids.tofile(path)
    found = references.tokengrams_pairs(path, V)
    assert equal(found, references.of_matrix(count_signatures(ids, V)))


def test_kenlm(references, ids, tmp_path):
    program = references.kenlm()
    if program is None:
        pytest.skip("KenLM's count_ngrams is not here")
    text = tmp_path / "text"
    references.kenlm_input(ids, 0, text)
    found = references.kenlm_pairs(program, text, V)
    assert equal(found, references.of_matrix(count_signatures(ids, V, separator=0)))


def test_plain_training_and_signatures(benchmarks):
    """Ours gives the losses of the plain loop to float32 accuracy, merged sequences included."""
    plain = benchmarks("plain")
    task = tasks.modular_addition(7, None)
    model = models.EmbeddingFFN(task.vocab_size, 16, 24, runs=3)
    models.initialize_(model, gamma=0.5, generator=models.seeded([0, 1, 2]))
    starts = [{k: p.detach()[r].clone() for k, p in model.named_parameters()} for r in range(3)]
    losses = plain.train(starts, task, 30, 0.5)
    config = training.TrainConfig(30, 0.5, measure_every=1)
    run = training.train(model, tasks.merge_permutations(task), config)
    np.testing.assert_allclose(run.metric("loss").to_numpy(), losses, rtol=2e-5)
    # Wrong variant: another learning rate is seen.
    assert np.abs(plain.train(starts, task, 30, 0.45) - losses).max() > 1e-3
    sums = tasks.addition(4, 6)
    np.testing.assert_allclose(
        plain.label_signature(sums), signatures.label_signature(sums, 1), atol=1e-15
    )


def test_laws_of_growth(benchmarks):
    """The slope of an exact law, and of the operations that a step is held to."""
    growth = benchmarks("bench_growth")
    sizes = [10, 20, 40]
    law = growth.law("it", "seconds", "n", sizes, np.array([[1, 4, 16], [3, 12, 48]]), 2.0)
    assert (law["exponent"], law["low"], law["high"], law["costs"]) == (2.0, 2.0, 2.0, [2, 8, 32])
    # Wrong variant: a cost with a constant part has a smaller slope, and is not taken for a square.
    assert growth.exponent(sizes, [11, 14, 26]) < 1
    steps = [growth.operations(**{**growth.BASE, "seeds": seeds}) for seeds in (2, 4)]
    assert steps[1] == 2 * steps[0]


WATCHED = """
import threading, numpy, watching
with watching.watched(0.001) as found:
    block = numpy.ones({size} // 8)
    threading.Event().wait(0.05)
print(found["peak"]["anonymous"] - found["before"]["anonymous"])
"""


def test_memory_is_watched():
    """In a process of its own: other tests' memory may be given back meanwhile."""
    for size in (40_000_000, 160_000_000):
        program = [sys.executable, "-c", WATCHED.format(size=size)]
        done = subprocess.run(program, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
        assert 0.9 * size < int(done.stdout) < 1.5 * size


def test_what_was_not_measured_anew_stays_on_record(benchmarks):
    conftest = benchmarks("conftest")
    old = {"group": "counting", "what": "ours", "commit": "aaa"}
    gone = {"group": "pages", "what": "a page that is no more", "commit": "aaa"}
    law = {"what": "a step", "varied": "d", "commit": "aaa"}
    new = {"group": "pages", "what": "a page", "commit": "bbb"}
    before = {"rows": [old, gone], "laws": [law]}
    assert conftest.merged(before, {"rows": [new], "laws": []}) == {
        "rows": [old, new],
        "laws": [law],
    }
    assert conftest.merged({}, {"rows": [new], "laws": []}) == {"rows": [new], "laws": []}
