"""Gradient flow of a batch against the flow of one run to many digits, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staircase_lib import flows, models, stairs, tasks

TASK = tasks.merge_permutations(tasks.modular_addition(5, None, vocab_size=10))
SEEDS = (0, 1, 2)


def started(gamma: float, d: int = 16, dtype: torch.dtype = torch.float32) -> models.EmbeddingFFN:
    model = models.EmbeddingFFN(TASK.vocab_size, d, dtype=dtype, runs=len(SEEDS))
    return models.initialize_(model, gamma, models.seeded(SEEDS))


def times_of_one_run(seed: int, gamma: float, until: float, levels: list[float]) -> list[float]:
    model = models.EmbeddingFFN(TASK.vocab_size, 16, dtype=torch.float64)
    models.initialize_(model, gamma, torch.Generator().manual_seed(seed))
    flow = stairs.gradient_flow(model, TASK, until, stop_loss=0.99 * levels[-1], rtol=1e-6)
    return [flow.time_at(level) for level in levels]


@pytest.mark.parametrize(("gamma", "until"), [(0.5, 60), (1.1, 80)])
def test_times_are_those_of_the_exact_flow(gamma: float, until: float) -> None:
    levels = [2.2, 2.0] if gamma > 1 else [2.0, 1.2]
    run = flows.follow(started(gamma), TASK, until)
    ours = np.array([run.time_below(level) for level in levels])
    exact = np.array([times_of_one_run(seed, gamma, until, levels) for seed in SEEDS]).T
    assert np.isfinite(exact).all()
    assert np.abs(ours / exact - 1).max() < 0.03
    # A wrong variant: the same seeds from another scale are told apart.
    other = flows.follow(started(gamma + 0.1), TASK, until).time_below(levels[0])
    assert (np.abs(other / exact[0] - 1) > 0.05).all()


def test_a_plateau_costs_far_less_than_its_length() -> None:
    """Plain steps must stay below 2 / curvature; the plateau is thousands of them long."""
    run = flows.follow(started(1.1), TASK, 1000.0)
    assert run.times[-1].max() >= 1000 and run.evaluations < 2000
    assert run.loss[-1] == pytest.approx(np.log(5), rel=0.03)


def test_runs_do_not_depend_on_their_company() -> None:
    together = flows.follow(started(0.7), TASK, 40.0)
    model = models.EmbeddingFFN(TASK.vocab_size, 16, runs=1)
    models.initialize_(model, 0.7, models.seeded(SEEDS[1:2]))
    alone = flows.follow(model, TASK, 40.0)
    level = 1.9
    assert alone.time_below(level)[0] == pytest.approx(together.time_below(level)[1], rel=0.02)


def test_the_loss_falls_and_a_run_that_ended_stands_still() -> None:
    run = flows.follow(started(0.5), TASK, np.array([1.0, 30.0, 200.0]), stop_accuracy=0.9)
    assert (np.diff(run.loss, axis=0) <= 1e-4).all() and (np.diff(run.times, axis=0) >= 0).all()
    assert run.times[-1, 0] == pytest.approx(1.0, rel=1e-4) and not run.ended[0]
    over = int((run.times[:, 0] >= 1.0).argmax())
    assert (run.embeddings[over:, 0] == run.embeddings[over, 0]).all()
    assert run.ended[2] and run.accuracy[-1, 2] >= 0.9


def test_marks_keep_the_whole_state_at_their_time() -> None:
    model = started(0.7)
    before = [p.detach().clone() for p in model.parameters()]
    marks = np.array([[1.0] * 3, [10.0] * 3, [900.0] * 3])
    run = flows.follow(model, TASK, 20.0, marks=marks)
    assert (run.mark_times[:2] >= marks[:2]).all() and np.isnan(run.mark_times[2]).all()
    at = int((run.times[:, 1] >= marks[1, 1]).argmax())
    assert run.mark_times[1, 1] == run.times[at, 1]
    assert (run.states["W_E"][1, 1] == run.embeddings[at, 1]).all()
    with torch.no_grad():  # the kept parameters are a state of that loss, and no other
        again = models.EmbeddingFFN(TASK.vocab_size, 16)
        for name, parameter in again.named_parameters():
            parameter.copy_(torch.tensor(run.states[name][1, 1]))
        logits = again(torch.tensor(TASK.tokens))
        each = torch.nn.functional.cross_entropy(
            logits, torch.tensor(TASK.labels), reduction="none"
        )
        loss = float(each.double() @ torch.tensor(TASK.weights))
    assert loss == pytest.approx(run.loss[at, 1], abs=1e-5)
    assert abs(loss - run.loss[at - 3, 1]) > 1e-4
    assert all((p == q).all() for p, q in zip(before, model.parameters(), strict=True))


def test_time_below_interpolates_and_says_what_it_does_not_know() -> None:
    run = flows.follow(started(0.9), TASK, 5.0)
    assert np.isnan(run.time_below(0.1)).all()
    assert (run.time_below(99.0) == 0).all()
    level = float(run.loss[3:5, 0].mean())
    assert run.times[3, 0] < run.time_below(level)[0] < run.times[4, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": models.EmbeddingFFN(TASK.vocab_size, 16)}, "batch of runs"),
        ({"model": models.EmbeddingFFN(TASK.vocab_size, 16, runs=2)}, "initialize_"),
        ({"model": models.EmbeddingFFN(7, 16, runs=2)}, "vocabulary of 10"),
        ({"until": 0.0}, "finite times above zero"),
        ({"until": np.inf}, "finite times above zero"),
        ({"marks": [[2.0] * 3, [1.0] * 3]}, "increasing times"),
        ({"marks": [1.0, 2.0]}, "increasing times"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    arguments = {"model": started(0.7), "task": TASK, "until": 5.0} | change
    with pytest.raises(ValueError, match=message):
        flows.follow(**arguments)
