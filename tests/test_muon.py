"""Muon: every run of a batch moves as it would alone, by torch's own optimizer."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from staircase_lib import models, tasks, training

TASK = tasks.from_arrays(
    [[0, 1, 1], [1, 2, 0], [2, 2, 3], [3, 0, 1]], [0, 1, 2, 3], weights=[1, 2, 3, 4]
)
EVERYTHING = ("W_E", "W_in", "W_U")
SEEDS = (3, 4)
LR, MOMENTUM, DECAY = 0.02, 0.9, 0.1


def model(seeds):
    """No two of the three matrices have the same shape, and none is square."""
    m = models.EmbeddingFFN(TASK.vocab_size, 8, 6, dtype=torch.float64, runs=len(seeds))
    return models.initialize_(m, 0.7, models.seeded(seeds))


def trained(seeds, muon, steps=25, optimizer="muon"):
    """Weights after training, each with its axis of runs."""
    m = model(seeds)
    config = training.TrainConfig(
        steps, LR, optimizer, momentum=MOMENTUM, weight_decay=DECAY, muon=muon
    )
    training.train(m, TASK, config, seeds=seeds)
    return {name: p.detach().numpy() for name, p in m.named_parameters()}


def textbook(seed, muon, steps=25, **wrong):
    """One seed, matrices only: torch's Muon for some, torch's AdamW for the others."""
    m = models.EmbeddingFFN(TASK.vocab_size, 8, 6, dtype=torch.float64)
    models.initialize_(m, 0.7, models.seeded([seed])[0])
    tokens, labels = torch.tensor(TASK.tokens), torch.tensor(TASK.labels)
    chosen = [p for name, p in m.named_parameters() if name in muon]
    others = [p for name, p in m.named_parameters() if name not in muon]
    settings = {"momentum": MOMENTUM, "weight_decay": DECAY, "adjust_lr_fn": "match_rms_adamw"}
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Muon(chosen, LR, **settings | wrong)]
    if others:
        optimizers.append(torch.optim.AdamW(others, LR, weight_decay=DECAY))
    for _ in range(steps):
        logits = functional.gelu(m.W_E[tokens].sum(1) @ m.W_in) @ m.W_U
        each = functional.cross_entropy(logits, labels, reduction="none")
        m.zero_grad()
        (each * torch.tensor(TASK.weights)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return {name: p.detach().numpy() for name, p in m.named_parameters()}


def one(weights, run):
    return {name: values[run] for name, values in weights.items()}


def difference(found, expected):
    """Largest difference of an entry, relative to the largest entry of its matrix."""
    return max(np.abs(found[n] - expected[n]).max() / np.abs(expected[n]).max() for n in expected)


@pytest.mark.parametrize("muon", [("W_in",), EVERYTHING])
def test_a_batch_of_runs_is_each_run_alone_and_the_plain_loop(muon):
    both = trained(SEEDS, muon)
    for run, seed in enumerate(SEEDS):
        assert difference(one(both, run), one(trained((seed,), muon), 0)) < 1e-10
        assert difference(one(both, run), textbook(seed, muon)) < 1e-10


@pytest.mark.parametrize(
    "wrong",
    [
        {"adjust_lr_fn": "original"},
        {"nesterov": False},
        {"momentum": 0.8},
        {"weight_decay": 0.0},
        {"ns_steps": 1},
    ],
)
def test_other_settings_of_muon_are_told_apart(wrong):
    right = one(trained(SEEDS, ("W_in",)), 0)
    assert difference(right, textbook(SEEDS[0], ("W_in",), **wrong)) > 1e-3


def test_other_matrices_and_other_optimizers_are_told_apart():
    right = one(trained(SEEDS, ("W_in",)), 0)
    for muon in (("W_E",), EVERYTHING):
        assert difference(right, textbook(SEEDS[0], muon)) > 0.1
    assert difference(right, one(trained(SEEDS, (), optimizer="adamw"), 0)) > 0.1


def test_runs_are_not_one_stacked_matrix():
    """Orthogonalising the runs' matrices as one would let them see each other."""
    after = trained(SEEDS, ("W_in",), steps=1)["W_in"]
    m = model(SEEDS)
    logits = m(torch.tensor(TASK.tokens))
    labels = torch.tensor(TASK.labels).expand(2, -1)
    each = functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
    (each @ torch.tensor(TASK.weights)).sum().backward()
    assert m.W_in.grad is not None
    stacked = m.W_in.detach().reshape(16, 6)
    stacked.grad = m.W_in.grad.reshape(16, 6)
    torch.optim.Muon(
        [stacked], LR, momentum=MOMENTUM, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"
    ).step()
    moved = np.abs(after - model(SEEDS).W_in.detach().numpy()).max()
    assert np.abs(stacked.reshape(2, 8, 6).numpy() - after).max() > 0.1 * moved


def test_every_direction_moves_alike():
    """What Muon is for: the singular values of its step lie together, those of the gradient's do
    not, so that a weak direction grows as fast as a strong one."""
    seeds = (0, 1)
    before = model(seeds).W_in.detach().numpy()
    spread = {}
    for optimizer, muon in (("muon", ("W_in",)), ("sgd", ())):
        m = model(seeds)
        training.train(m, TASK, training.TrainConfig(1, LR, optimizer, muon=muon), seeds=seeds)
        values = np.linalg.svd(m.W_in.detach().numpy() - before, compute_uv=False)[:, :3]
        spread[optimizer] = values[:, 0] / values[:, -1]
    assert (spread["muon"] < 2).all()
    assert (spread["sgd"] > 3).all()


def test_bad_input():
    with pytest.raises(ValueError, match="muon: expected names of parameters with optimizer='m"):
        training.TrainConfig(10, 0.1, "muon")
    with pytest.raises(ValueError, match="none otherwise; got .* with 'adamw'"):
        training.TrainConfig(10, 0.1, "adamw", muon=("W_in",))
    with pytest.raises(ValueError, match=r"muon: expected names out of .*'W_in'.*got \['W'\]"):
        config = training.TrainConfig(10, 0.1, "muon", muon=("W",))
        training.train(model((0,)), TASK, config)
