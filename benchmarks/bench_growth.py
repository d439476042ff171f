"""How time and memory grow with width, length, tokens, vocabulary, seeds and corpus.

Each law is a slope of logarithms over sizes that double. Beside it stands the slope that the count
of operations (of entries, for memory) has over the same sizes: what the algorithm should cost.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from staircase_lib import gradients, models, signatures, tasks, training
from staircase_lib.language.counting import count_signatures

Law = dict[str, Any]
BASE = {"d": 64, "hidden": 256, "contexts": 40, "length": 2, "outputs": 128, "seeds": 4}
"""Sizes of the training step that is varied; widths in which products are what costs."""
STEPS = 12  # a round
ROUNDS = 5


pytestmark = pytest.mark.usefixtures("one_thread")


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Least-squares slope of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def law(
    what: str, quantity: str, varied: str, sizes: Sequence[int], rounds: np.ndarray, expected: float
) -> Law:
    """A row of the table of laws.

    Parameters
    ----------
    rounds : array, shape (rounds, sizes)
        Seconds or megabytes.
    expected : float
        Exponent of the operations or entries over the same sizes.
    """
    slopes = [exponent(sizes, costs) for costs in rounds]
    return {
        "what": what,
        "quantity": quantity,
        "varied": varied,
        "sizes": [int(size) for size in sizes],
        "costs": [float(f"{cost:.4g}") for cost in np.median(rounds, axis=0)],
        "exponent": round(float(np.median(slopes)), 2),
        "low": round(min(slopes), 2),
        "high": round(max(slopes), 2),
        "expected": round(expected, 2),
    }


def in_turn(calls: Sequence[Callable[[], Any]], rounds: int = ROUNDS) -> np.ndarray:
    """Seconds (rounds, calls): one after the other in each round, after a round to warm up."""
    seconds = np.empty((rounds + 1, len(calls)))
    for at, k in itertools.product(range(rounds + 1), range(len(calls))):
        start = time.perf_counter()
        calls[k]()
        seconds[at, k] = time.perf_counter() - start
    return seconds[1:]


# --- A training step -----------------------------------------------------------------------------


def task_of(contexts: int, length: int, outputs: int, **_: int) -> tasks.Task:
    """Random labels; ten anchors at the first place, so that no two sequences are the same set."""
    generator = np.random.default_rng(0)
    first = np.repeat(np.arange(10), contexts)
    others = [10 + 200 * place + np.arange(10 * contexts) % 200 for place in range(length - 1)]
    tokens = np.stack([first, *others], axis=1)
    labels = generator.integers(outputs, size=len(tokens))
    return tasks.from_arrays(tokens, labels, vocab_size=max(outputs, 10 + 200 * (length - 1)))


def operations(d: int, hidden: int, contexts: int, length: int, outputs: int, seeds: int) -> float:
    """Multiplications of a step: forward, and twice as many backward.

    Embeddings of all tokens projected once, h-vectors of each sequence added, logits.
    """
    task = task_of(contexts, length, outputs)
    n, V = len(task.tokens), task.vocab_size
    return 3 * seeds * (V * d * hidden + n * length * hidden + n * hidden * V)


def step(d: int, hidden: int, seeds: int, **sizes: int) -> Callable[[], Any]:
    task = task_of(**sizes)
    model = models.EmbeddingFFN(task.vocab_size, d, hidden, runs=seeds)
    models.initialize_(model, gamma=0.8, generator=models.seeded(list(range(seeds))))
    config = training.TrainConfig(steps=STEPS, lr=0.5, snapshot_every=STEPS)
    return lambda: training.train(model, task, config)


VARIED = {
    "width d": ("d", [64, 128, 256, 512]),
    "hidden width h": ("hidden", [128, 256, 512, 1024]),
    "sequences n": ("contexts", [20, 40, 80, 160]),
    "length L": ("length", [2, 3, 4, 6]),
    "vocabulary V": ("outputs", [256, 512, 1024, 2048]),
    "seeds R": ("seeds", [2, 4, 8, 16]),
}


@pytest.mark.parametrize("varied", VARIED)
def test_step(grown: list[Law], varied: str) -> None:
    name, sizes = VARIED[varied]
    settings = [{**BASE, name: size} for size in sizes]
    rounds = in_turn([step(**setting) for setting in settings]) / STEPS
    expected = exponent(sizes, [operations(**setting) for setting in settings])
    grown.append(law("a step of training", "seconds", varied, sizes, rounds, expected))


PEAK = """import sys
sys.path.insert(0, {folder!r})
import torch, bench_growth, watching
torch.set_num_threads(1)
bench_growth.step(**{tiny!r})()  # what the first step of all loads
train = bench_growth.step(**{setting!r})
with watching.watched(0.001) as memory:
    train()
print((memory["peak"]["anonymous"] - memory["before"]["anonymous"]) / 1e6)"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read as on Linux")
@pytest.mark.parametrize("varied", ["sequences n", "seeds R"])
def test_memory_of_a_step(grown: list[Law], varied: str) -> None:
    """Megabytes that training takes beyond the imports, in a process of its own."""
    name, sizes = VARIED[varied]
    sizes = [4 * size for size in sizes]  # where they outweigh what the allocator keeps
    peaks = []
    for size in sizes:
        setting, tiny = {**BASE, name: size}, dict.fromkeys(BASE, 2)
        folder = str(Path(__file__).parent)
        program = PEAK.format(folder=folder, setting=setting, tiny=tiny)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        peaks.append(float(done.stdout))
    entries = []
    for size in sizes:  # parameters, their gradients and one more copy; integers of a sequence
        setting = {**BASE, name: size}
        task, d, h = task_of(**setting), setting["d"], setting["hidden"]
        weights = setting["seeds"] * (task.vocab_size * (d + h) + d * h)
        entries.append(3 * weights + 2 * task.tokens.size * 4)
    expected = exponent(sizes, entries)
    grown.append(law("a step of training", "megabytes", varied, sizes, np.array([peaks]), expected))


# --- Signatures, gradients, counts ---------------------------------------------------------------


def test_signature(grown: list[Law]) -> None:
    """Entries of a first-order signature grow with the square of the vocabulary, rows with n."""
    sizes = [200, 400, 800, 1600]
    found = [tasks.addition(10, size) for size in sizes]
    rounds = in_turn([lambda t=t: signatures.label_signature(t, 1) for t in found])
    expected = exponent(sizes, [10 * t.vocab_size**2 for t in found])
    grown.append(law("a first-order signature", "seconds", "vocabulary V", sizes, rounds, expected))


def test_gradient(grown: list[Law]) -> None:
    """By order: the activation's slope at the sum of every set of positions, 2^L - 1 of them.

    A slope counts as twenty multiplications, an error function's worth; residuals as two products.
    """
    sizes, n, V, d, h = [3, 4, 5, 6], 1000, 60, 32, 128
    generator = np.random.default_rng(0)
    calls, operations = [], []
    for length in sizes:
        tokens = generator.integers(V, size=(n, length))
        task = tasks.from_arrays(tokens, generator.integers(V, size=n), vocab_size=V)
        model = models.EmbeddingFFN(V, d, h)
        models.initialize_(model, gamma=0.8, generator=models.seeded([0]))
        calls.append(lambda m=model, t=task: gradients.gradient_by_order(m, t))
        operations.append(n * h * (2 * V + 20 * (2**length - 1) + length**2 * d))
    rounds, expected = in_turn(calls), exponent(sizes, operations)
    grown.append(law("the gradient by order", "seconds", "length L", sizes, rounds, expected))


def test_counting(grown: list[Law]) -> None:
    """Ids drawn by Zipf's law; the sorting of a shard costs a little more than its size."""
    sizes = [2_000_000, 4_000_000, 8_000_000, 16_000_000]
    weights = 1 / np.arange(1, 16385)
    ids = np.random.default_rng(0).choice(16384, size=sizes[-1], p=weights / weights.sum())
    ids = ids.astype(np.uint16)
    rounds = in_turn([lambda n=n: count_signatures(ids[:n], 16384) for n in sizes], 3)
    grown.append(law("counting pairs", "seconds", "tokens of the corpus", sizes, rounds, 1.0))
