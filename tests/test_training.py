"""Training: the loop against a plain one, runs against single runs, and a stored trajectory."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from staircase_lib import models, tasks, training
from staircase_lib.language.transformer import Transformer

F64 = torch.float64
TASK = tasks.from_arrays(
    [[0, 1, 1], [1, 2, 0], [2, 2, 3], [3, 0, 1]], [0, 1, 2, 3], weights=[1, 2, 3, 4]
)


def model(seeds, gamma=0.7, task=TASK):
    m = models.EmbeddingFFN(task.vocab_size, 8, dtype=F64, runs=len(seeds))
    return models.initialize_(m, gamma, models.seeded(seeds))


def plain_loop(seed, steps, make_optimizer, weights=TASK.weights):
    """One seed, textbook style: gather, multiply, cross-entropy, step."""
    m = models.EmbeddingFFN(TASK.vocab_size, 8, dtype=F64)
    models.initialize_(m, 0.7, models.seeded([seed])[0])
    tokens, labels = torch.tensor(TASK.tokens), torch.tensor(TASK.labels)
    optimizer, losses = make_optimizer(m.parameters()), []
    for _ in range(steps + 1):
        logits = functional.gelu(m.W_E[tokens].sum(1) @ m.W_in) @ m.W_U
        each = functional.cross_entropy(logits, labels, reduction="none")
        loss = (each * torch.tensor(weights)).sum()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (training.TrainConfig(20, 0.5), lambda p: torch.optim.SGD(p, 0.5)),
        (
            training.TrainConfig(20, 0.01, "adamw", weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        ),
    ],
)
def test_every_run_of_a_batch_is_the_plain_loop(config, make):
    config = training.TrainConfig(**{**config.__dict__, "measure_every": 1})
    run = training.train(model((3, 4)), TASK, config, seeds=(3, 4))
    for seed in (3, 4):
        losses = run.metric("loss")[seed].to_numpy()
        np.testing.assert_allclose(losses, plain_loop(seed, 20, make), rtol=1e-10)
    # Wrong variant: weights ignored.
    uniform = plain_loop(3, 20, make, weights=np.full(4, 0.25))
    assert np.abs(run.metric("loss")[3].to_numpy() - uniform).max() > 1e-3


def test_merged_permutations_train_the_same():
    task = tasks.modular_addition(6, None, modulus=4)
    config = training.TrainConfig(30, 0.01, "adamw", measure_every=1)
    whole = training.train(model((0,), task=task), task, config)
    merged = tasks.merge_permutations(task)
    less = training.train(model((0,), task=task), merged, config)
    assert len(merged.labels) < len(task.labels)
    np.testing.assert_allclose(less.metric("loss"), whole.metric("loss"), rtol=1e-10)


def test_the_same_seed_gives_the_same_numbers():
    config = training.TrainConfig(25, 0.02, "adamw", batch_size=3)
    first, second = (training.train(model((7, 8)), TASK, config, seeds=(7, 8)) for _ in "ab")
    np.testing.assert_array_equal(first.snapshots["W_E"], second.snapshots["W_E"])
    assert first.metrics.equals(second.metrics)


def test_minibatches_depend_on_the_seed_not_on_the_batch():
    config = training.TrainConfig(10, 0.02, batch_size=2)
    both = training.train(model((7, 8)), TASK, config, seeds=(7, 8))
    alone = training.train(model((8,)), TASK, config, seeds=(8,))
    np.testing.assert_allclose(both.snapshots["W_E"][:, 1], alone.snapshots["W_E"][:, 0], rtol=1e-9)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_position_of_a_transformer_is_trained_as_the_plain_loop_does(batch_size):
    def transformer(seeds):
        m = Transformer(4, 8, 3, dtype=F64, runs=len(seeds))
        return models.initialize_(m, 0.6, models.seeded(seeds))

    config = training.TrainConfig(6, 0.02, "adamw", batch_size=batch_size, measure_every=1)
    run = training.train(transformer((3, 4)), TASK, config, seeds=(3, 4), every_position=True)
    plain = transformer((4,))
    optimizer = torch.optim.AdamW(plain.parameters(), 0.02, weight_decay=0.0)
    weights, labels = torch.tensor(TASK.weights), torch.tensor(TASK.labels)
    losses = []
    for step in range(7):
        rows = torch.arange(4)
        if batch_size:
            source = torch.Generator().manual_seed((4 << 32) + step)
            rows = torch.multinomial(weights, batch_size, True, generator=source)
        each = []
        for row in range(4):
            sequence = torch.tensor(TASK.tokens[row])
            target = torch.cat([sequence[1:], labels[row : row + 1]])
            logits = plain.logits(sequence[None])[0, 0]
            each.append(functional.cross_entropy(logits, target))
        each = torch.stack(each)
        losses.append((each @ weights).item())
        optimizer.zero_grad()
        (each[rows].mean() if batch_size else each @ weights).backward()
        optimizer.step()
    np.testing.assert_allclose(run.metric("loss")[4], losses, rtol=1e-9)
    # Wrong variant: only the last position counts.
    ends = training.train(transformer((4,)), TASK, config, seeds=(4,))
    assert np.abs(ends.metric("loss")[4].to_numpy() - losses).max() > 1e-3


def test_snapshots_double_then_are_even_and_hold_the_state_before_the_step():
    assert training.snapshot_steps(25, 10).tolist() == [0, 1, 2, 4, 8, 10, 20, 25]
    assert training.snapshot_steps(3, 100).tolist() == [0, 1, 2, 3]
    start = model((0,))
    initial = start.W_E.detach().numpy().copy()
    run = training.train(start, TASK, training.TrainConfig(5, 0.1, record=("W_E", "W_U")))
    np.testing.assert_array_equal(run.snapshots["W_E"][0], initial)
    np.testing.assert_array_equal(run.snapshots["W_E"][-1], start.W_E.detach().numpy())
    assert run.at(3) == 2
    assert run.steps[run.at(3)] == 2


@pytest.mark.parametrize("batch_size", [None, 3])
def test_each_step_is_the_loop_of_train_seen_from_within(batch_size):
    settings = {"optimizer": "adamw", "batch_size": batch_size}
    config = training.TrainConfig(9, 0.02, **settings, snapshot_every=1)
    run = training.train(model((3, 4)), TASK, config, seeds=(3, 4))
    watched, seen = model((3, 4)), []
    for step, measured in training.each_step(watched, TASK, config, {0, 4, 9}, (3, 4)):
        np.testing.assert_array_equal(watched.W_E.detach(), run.snapshots["W_E"][step])
        seen.append(step)
        if step not in (0, 4, 9):
            assert measured is None
            continue
        assert measured is not None
        for name, values in measured._asdict().items():
            np.testing.assert_array_equal(values, run.metric(name).loc[step])
    assert seen == list(range(10))
    # Whoever looks may stop: the model stays as it is, also if the rest is never asked for.
    stopped = model((3, 4))
    for step, _ in training.each_step(stopped, TASK, config, (), (3, 4)):
        if step == 5:
            break
    np.testing.assert_array_equal(stopped.W_E.detach(), run.snapshots["W_E"][5])
    with pytest.raises(ValueError, match="seeds: expected 2 distinct"):  # before a step is asked
        training.each_step(stopped, TASK, config, (), (3, 3))


@pytest.mark.claim("4.11", "7.3")
def test_onset_and_early_stop():
    config = training.TrainConfig(2000, 0.02, "adamw", measure_every=5, stop_accuracy=1.0)
    run = training.train(model((0, 1)), TASK, config)
    onset = run.onset(1.0)
    assert not onset["censored"].any()
    last = run.metric("accuracy").index[-1]
    assert last == onset["step"].max() < 2000
    assert run.steps[-1] == last
    never = run.onset(2.0)
    assert never["censored"].all()
    assert (never["step"] == last).all()


def test_stored_trajectory():
    """A seeded short run reproduces numbers saved when the loop was first right."""
    stored = json.loads((Path(__file__).parent / "trajectory.json").read_text())
    task = tasks.modular_addition(5, 7)
    m = models.EmbeddingFFN(task.vocab_size, 10, dtype=F64, runs=2)
    models.initialize_(m, 0.9, models.seeded((0, 1)))
    config = training.TrainConfig(60, 0.01, "adamw", snapshot_every=20)
    run = training.train(m, task, config)
    np.testing.assert_allclose(run.metric("loss").to_numpy(), stored["loss"], rtol=1e-9)
    np.testing.assert_allclose(run.snapshots["W_E"].std(axis=(2, 3)), stored["std_W_E"], rtol=1e-9)


def test_a_snapshot_is_restored_in_another_precision():
    config = training.TrainConfig(4, 0.1, record=("W_E", "W_in", "W_U"))
    run = training.train(model((0, 1)), TASK, config)
    double = models.EmbeddingFFN(TASK.vocab_size, 8, runs=2)
    training.restore_(double, run, -1)
    np.testing.assert_allclose(double.W_E.detach(), run.snapshots["W_E"][-1], rtol=1e-6)
    only_embeddings = training.train(model((0, 1)), TASK, training.TrainConfig(1, 0.1))
    with pytest.raises(ValueError, match="W_in: not in the run's snapshots"):
        training.restore_(double, only_embeddings, -1)
    with pytest.raises(ValueError, match="expected shape"):
        training.restore_(models.EmbeddingFFN(TASK.vocab_size, 9, runs=2), run, -1)


def test_divergence_is_named_not_plotted():
    with pytest.raises(FloatingPointError, match=r"at step \d+ for seeds \[0\]; lower the le"):
        training.train(model((0,), gamma=0.0), TASK, training.TrainConfig(200, 1e6, "sgd"))


def test_one_label_only_is_learnt_at_once():
    task = tasks.modular_addition(3, 4, modulus=1)
    m = models.initialize_(models.EmbeddingFFN(task.vocab_size, 8, runs=1), 1.0, models.seeded([0]))
    run = training.train(m, task, training.TrainConfig(200, 0.01, "adamw"))
    assert run.metric("accuracy").iloc[-1, 0] == 1.0
    assert np.isfinite(run.metrics["value"]).all()


def test_length_one():
    task = tasks.from_arrays([[0], [1]], [1, 0])
    m = models.initialize_(models.EmbeddingFFN(2, 8, runs=1), 0.6, models.seeded([0]))
    run = training.train(m, task, training.TrainConfig(200, 0.05, "adamw"))
    assert run.metric("accuracy").iloc[-1, 0] == 1.0


def test_bad_input():
    with pytest.raises(
        ValueError, match="optimizer: expected 'sgd', 'adamw' or 'muon', got 'adam'"
    ):
        training.TrainConfig(10, 0.1, "adam")  # type: ignore[arg-type]
    for name, matrices in (("adamw", ("W_in",)), ("muon", ())):
        with pytest.raises(ValueError, match="muon: expected names of parameters"):
            training.TrainConfig(10, 0.1, name, muon=matrices)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"muon: expected names out of .*W_X"):
        config = training.TrainConfig(1, 0.1, "muon", muon=("W_X",))
        training.train(model((0,)), TASK, config)
    with pytest.raises(TypeError, match="every_position: .* got EmbeddingFFN"):
        training.train(model((0,)), TASK, training.TrainConfig(1, 0.1), every_position=True)
    with pytest.raises(ValueError, match="steps: expected a positive integer, got 0"):
        training.TrainConfig(0, 0.1)
    with pytest.raises(ValueError, match="lr: expected a finite number"):
        training.TrainConfig(10, float("nan"))
    for wrong in ("0.1", -1, np.float32(-1)):
        with pytest.raises(ValueError, match="lr: expected a finite number"):
            training.TrainConfig(10, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps: expected a positive integer, got True"):
        training.TrainConfig(True, 0.1)
    with pytest.raises(ValueError, match="stop_accuracy: expected a share"):
        training.TrainConfig(10, 0.1, stop_accuracy=95)
    with pytest.raises(ValueError, match="zero.*initialize_"):
        blank = models.EmbeddingFFN(TASK.vocab_size, 8, dtype=F64)
        training.train(blank, TASK, training.TrainConfig(10, 0.1))
    with pytest.raises(ValueError, match=r"record: expected names out of .*W_X"):
        training.train(model((0,)), TASK, training.TrainConfig(1, 0.1, record=("W_X",)))
    with pytest.raises(ValueError, match="vocabulary of 12, got 4"):
        training.train(model((0,)), tasks.addition(5, 7), training.TrainConfig(1, 0.1))
    with pytest.raises(ValueError, match="seeds: expected 2 distinct"):
        training.train(model((0, 1)), TASK, training.TrainConfig(1, 0.1), seeds=(1, 1))
    with pytest.raises(KeyError, match="no metric 'los'"):
        training.train(model((0,)), TASK, training.TrainConfig(1, 0.1)).metric("los")
