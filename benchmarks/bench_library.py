"""Training, signatures and gradients of the controlled tasks; start of Python and of a kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import plain
import pytest
import torch
from conftest import row

from staircase_lib import alignment, gradients, models, signatures, tasks, training

SEEDS = range(10)
STEPS = 20  # a round


@pytest.fixture(autouse=True, params=[1])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of both sides: one, where a benchmark asks for no more."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def model_of(task: tasks.Task, d: int, hidden: int, seeds: Any = SEEDS) -> models.EmbeddingFFN:
    model = models.EmbeddingFFN(task.vocab_size, d, hidden, runs=len(seeds))
    models.initialize_(model, gamma=0.8, generator=models.seeded(list(seeds)))
    return model


TOYS = [
    ("20 × 100 sequences, d = h = 200", tasks.addition(20, 100), 200, 200),
    ("modular addition, p = 53, d = 128, h = 512", tasks.modular_addition(53, None), 128, 512),
]


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize(("what", "task", "d", "hidden"), TOYS, ids=["sum", "modular"])
def test_training(
    beside: Callable[..., None],
    threads: int,
    what: str,
    task: tasks.Task,
    d: int,
    hidden: int,
    compiled: bool,
) -> None:
    """Ten seeds beside a loop in plain PyTorch, from the same parameters to the same losses."""
    loss_of = plain.cross_entropy
    if compiled:
        if not shutil.which(os.environ.get("CXX", "g++")):
            pytest.skip("there is no C++ compiler, which torch.compile needs")
        torch.compiler.reset()
        loss_of = torch.compile(loss_of, dynamic=False)  # in the round that warms up
    model = model_of(task, d, hidden)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    starts = [{name: p[run] for name, p in start.items()} for run in SEEDS]
    config = training.TrainConfig(steps=STEPS, lr=0.5, snapshot_every=STEPS)
    losses: dict[str, Any] = {}

    def ours() -> None:
        model.load_state_dict(start)
        losses["ours"] = training.train(model, task, config).metric("loss")

    def plain_loop() -> None:
        losses["plain"] = plain.train(starts, task, STEPS, 0.5, loss_of)

    beside(
        f"training, {what}" + (", two threads" if threads == 2 else ""),
        ours,
        "plain loop, compiled" if compiled else "plain loop",
        plain_loop,
        3,
        "ten seeds, GELU" + (", without the time to compile" if compiled else ""),
        threads,
        ours_threads=threads,
        work=STEPS,
        unit="steps a second",
        n=len(task.tokens),
        vocab_size=task.vocab_size,
    )
    measured = losses["ours"]
    np.testing.assert_allclose(measured, losses["plain"][measured.index], rtol=1e-5)


def test_gradient_by_order(beside: Callable[..., None]) -> None:
    task = tasks.addition(10, 30, length=3)
    model = model_of(task, 200, 200, range(1))
    tokens, labels = torch.tensor(task.tokens), torch.tensor(task.labels)

    def one_pass() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens)[0], labels).backward()

    beside(
        "gradients, length 3",
        one_pass,
        "gradient_by_order",
        partial(gradients.gradient_by_order, model, task),
        9,
        "ours: one forward and backward pass; ratio: how many of them",
        n=len(task.tokens),
        vocab_size=task.vocab_size,
    )


def test_signatures(beside: Callable[..., None]) -> None:
    task = tasks.addition(20, 100)
    beside(
        "label signature, order 1",
        partial(signatures.label_signature, task, 1),
        "plain loop",
        partial(plain.label_signature, task),
        9,
        n=len(task.tokens),
        vocab_size=task.vocab_size,
    )


def test_probes(beside: Callable[..., None]) -> None:
    """Embeddings on a circle, with noise; the plain loop leaves out the fit to all tokens."""
    task = tasks.modular_addition(20, 100)
    signature = signatures.label_signature(task, 1)
    used = signature[:, signature.any((0, 2))][:, :, signature.any((0, 1))]
    angles = 2 * np.pi * np.arange(20) / 100
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    noise = 0.1 * np.random.default_rng(0).standard_normal(points.shape)
    similarity = alignment.cosine_similarity(points + noise)
    ours, other = (
        alignment.fit_probe(signature, similarity, iterations=5).mse,
        plain.held_out_error(used, similarity, iterations=5),
    )
    assert abs(ours / other - 1) < 1e-6
    beside(
        "probe of order 1, five folds",
        partial(alignment.fit_probe, signature, similarity),
        "plain loop",
        partial(plain.held_out_error, used, similarity),
        7,
        "scikit-learn's folds, SciPy's L-BFGS, torch's gradient",
        n=20,
        vocab_size=task.vocab_size,
    )


def repeatedly(call: Callable[[], Any], rounds: int = 5) -> list[float]:
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]  # the first reads from disk


@pytest.mark.parametrize("module", ["staircase_lib", "staircase_lib.signatures"])
def test_import(recorded: list[dict[str, Any]], module: str) -> None:
    def python(code: str) -> Callable[[], Any]:
        return partial(subprocess.run, [sys.executable, "-c", code], check=True)

    bare = sorted(repeatedly(python("pass")))[2]
    seconds = [each - bare for each in repeatedly(python(f"import {module}"))]
    note = f"beyond the {bare:.2f} s of an empty program"
    recorded.append(row("start", f"import {module}", seconds, note=note))


def test_kernel(recorded: list[dict[str, Any]]) -> None:
    """A kernel until it answers, then the imports of most chapters."""
    from jupyter_client.manager import start_new_kernel

    def start(code: str) -> None:
        manager, client = start_new_kernel(kernel_name="python3")
        try:
            client.execute_interactive(code, output_hook=lambda message: None)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)

    for what, code in (
        ("kernel", "pass"),
        ("kernel with a chapter's imports", "from staircase_lib import figures, training"),
    ):
        recorded.append(row("start", what, repeatedly(partial(start, code), 3)))
