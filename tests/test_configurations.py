"""Sizes and costs of the models, against tensors that exist and operations that are counted."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from staircase_lib import models
from staircase_lib.language.configurations import (
    flops_per_token,
    paper_700m,
    parameter_count,
    small,
    tiny,
    unallocated,
)
from staircase_lib.language.precision import epsilon_share
from staircase_lib.language.transformer import Transformer


@pytest.mark.parametrize(
    ("settings", "billions"),
    [({}, 0.714), ({"ffn": "gelu"}, 0.613), ({"tied": True}, 0.558)],
)
def test_the_paper_s_model_has_its_parameters(settings, billions):
    """24 blocks x 1024 x 16 heads x 4096, V = 151,936: which variant comes to 0.7 billion?"""
    model = unallocated(paper_700m, **settings)
    counts = parameter_count(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert counts["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert round(counts["total"] / 1e9, 3) == billions
    # By hand, for this width and depth.
    assert counts["embedding"] == 151_936 * 1024
    assert counts["attention"] == 24 * 4 * 1024**2
    assert counts["ffn"] == 24 * (2 if "ffn" in settings else 3) * 1024 * 4096
    assert counts["unembedding"] == (0 if "tied" in settings else 151_936 * 1024)
    assert counts["positions"] == 0
    sizes = {"blocks": 24, "d": 1024, "heads": 16, "hidden": 4096}
    assert {name: model.settings[name] for name in sizes} == sizes


def test_epsilon_is_small_beside_an_embedding_at_every_size():
    """At gamma = 1; the usual 1e-6 is half of what the norm of the large model divides by."""
    for model in (unallocated(tiny, 100), unallocated(small, 100), unallocated(paper_700m)):
        assert epsilon_share(model.d**-2.0, model.epsilon) < 0.1
    assert epsilon_share(1024**-2.0, 1e-6) > 0.5 and epsilon_share(1024**-2.4, 1e-6) > 0.9


def test_cost_of_the_paper_s_run():
    each = flops_per_token(unallocated(paper_700m))
    assert round(each / 1e9, 2) == 3.65
    assert f"{36e9 * each:.2e}" == "1.31e+20"
    # A tied unembedding multiplies as well.
    assert flops_per_token(unallocated(paper_700m, tied=True)) == each


@pytest.mark.parametrize("runs", [None, 2])
@pytest.mark.parametrize(
    "settings", [{}, {"positions": "learned", "ffn": "gelu", "tied": True}, {"blocks": 3}]
)
def test_cost_is_what_is_multiplied(settings, runs):
    model = unallocated(tiny, 300, 32, runs=runs, **settings)
    n, length, runs = 3, 24, runs or 1
    tokens = torch.zeros(n, length + 1, dtype=torch.int64, device="meta")

    def counted(loss):
        with FlopCounterMode(display=False) as counter:
            loss().sum().backward()
        return counter.get_total_flops()

    stated = runs * n * length * flops_per_token(model, length)
    # torch counts all pairs of positions, of which a causal model needs half.
    pairs = 12 * runs * n * length**2 * model.d * len(model.blocks)
    whole = counted(lambda: model.unembed(model.stream(tokens[:, 1:])))
    assert whole == stated + pairs / 2
    # In chunks nothing is multiplied twice; a product that is added in place is not counted.
    in_place = 2 * runs * n * length * model.d * model.vocab_size
    assert counted(lambda: model.loss(tokens, chunk=10)) == whole - in_place


def test_small_configurations_train():
    for make in (tiny, small):
        model = make(50, 8)
        assert isinstance(model, Transformer) and model.length == 8
        models.initialize_(model, 0.5, torch.Generator().manual_seed(0))  # type: ignore
        tokens = torch.arange(36).reshape(4, 9) % 50
        first = model.loss(tokens)
        first.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore
        assert float(model.loss(tokens).detach()) < float(first.detach())
    assert parameter_count(unallocated(small, 16_384))["total"] == 14_680_064
    assert parameter_count(unallocated(tiny, 100, runs=5)) == parameter_count(tiny(100))


def test_settings_make_the_model_again():
    model = unallocated(tiny, 77, tied=True, heads=2, epsilon=1e-8, runs=3)
    again = unallocated(Transformer, **model.settings)
    assert again.settings == model.settings
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert shapes == {name: parameter.shape for name, parameter in again.named_parameters()}
