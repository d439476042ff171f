"""What epsilon and the range of floating point make of a small start."""

import math

import pytest
import torch

from staircase_lib import models
from staircase_lib.language.block import rms_norm
from staircase_lib.language.configurations import tiny
from staircase_lib.language.precision import check_precision, epsilon_share

TOKENS = torch.randint(200, (4, 17), generator=torch.Generator().manual_seed(0))


def started(gamma, runs=None, **settings):
    model = tiny(200, 16, runs=runs, **settings)
    return models.initialize_(model, gamma, models.seeded(range(runs or 1)))  # type: ignore


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.2])
def test_epsilon_s_share_is_what_the_norm_does_to_a_start(gamma):
    d, epsilon = 1024, 1e-6
    embedding = torch.randn(2000, d, generator=torch.Generator().manual_seed(1)) * d**-gamma
    after = rms_norm(embedding, torch.ones(d), epsilon).square().mean()
    share = epsilon_share(d ** (-2 * gamma), epsilon)
    assert float(after) == pytest.approx(1 - share, rel=0.01)
    assert {0.5: share < 0.002, 1.0: 0.5 < share < 0.53, 1.2: 0.93 < share < 0.95}[gamma]


@torch.no_grad()
def test_below_epsilon_the_scale_of_an_embedding_survives_and_above_it_is_lost():
    def growth(epsilon):
        """By which factor logits grow if embeddings do by ten."""
        model = started(1.0, epsilon=epsilon, dtype=torch.float64)
        before = model.logits(TOKENS[:, 1:])
        model.W_E.mul_(10)
        return float(model.logits(TOKENS[:, 1:]).norm() / before.norm())

    assert growth(1e-14) == pytest.approx(1, rel=0.02)
    assert growth(100.0) == pytest.approx(10, rel=0.02)
    assert growth(64**-2.0) == pytest.approx(math.sqrt(2), rel=0.1)


@pytest.mark.parametrize("runs", [None, 2])
def test_a_start_that_bfloat16_holds_passes_and_its_gradients_are_measured(runs):
    model = started(1.0, runs)
    sizes = check_precision(model, TOKENS)
    assert list(sizes) == [name for name, _ in model.named_parameters()]
    assert all(parameter.grad is None for parameter in model.parameters())
    model.loss(TOKENS).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        least = parameter.grad.abs().reshape(runs or 1, -1).amax(-1).min()
        assert sizes[name] == pytest.approx(float(least), rel=0.1)
    # Queries and keys are the first to vanish.
    assert sorted(sizes, key=sizes.__getitem__)[0].endswith(("W_Q", "W_K"))


def test_a_start_that_underflows_is_refused_and_float64_holds_it():
    for dtype in (torch.bfloat16, torch.float32):
        with pytest.raises(
            ValueError, match=rf"{dtype} cannot hold the gradients of .*W_[QK], .*smaller gamma"
        ):
            check_precision(started(5.0), TOKENS, dtype)
    sizes = check_precision(started(5.0, dtype=torch.float64), TOKENS, torch.float64)
    assert 0 < min(sizes.values()) < 1e-38
    one_of_two = started(1.0, 2)
    with torch.no_grad():
        for parameter in one_of_two.parameters():
            parameter[1] *= 64**-4.0
    with pytest.raises(ValueError, match="cannot hold"):
        check_precision(one_of_two, TOKENS)


def test_a_start_that_overflows_is_refused():
    model = started(0.5)
    with torch.no_grad():
        model.blocks[0].W_out.fill_(math.inf)  # type: ignore
    with pytest.raises(ValueError, match="cannot hold the gradients"):
        check_precision(model, TOKENS)
