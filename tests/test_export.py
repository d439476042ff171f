"""Exported checkpoints: the program that they are made for computes what our model does."""

import numpy as np
import pytest
import torch

from staircase_lib import models
from staircase_lib.language import attention_path, export, series, series_measurement
from staircase_lib.language.transformer import Transformer


def made(**settings):
    sizes = {"d": 16, "length": 12, "blocks": 2, "heads": 2, "hidden": 24}
    kinds = {"positions": "rotary", "ffn": "swiglu", "epsilon": 1e-5}
    model = Transformer(40, **{**sizes, **kinds, **settings})
    return models.initialize_(model, 0.6, models.seeded(range(model.runs or 1)))


@pytest.mark.parametrize("tied", [False, True])
def test_llama_computes_the_same_logits(tmp_path, tied):
    transformers = pytest.importorskip("transformers")
    model = made(tied=tied)
    folder = export.save_as_llama(model, tmp_path / "step1")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 40, (3, 12)))
    with torch.no_grad():
        ours = model.logits(tokens)
        torch.testing.assert_close(theirs(input_ids=tokens).logits, ours, rtol=1e-5, atol=1e-5)


def test_a_series_of_exports_is_read_back(tmp_path):
    pytest.importorskip("transformers")
    model = made(runs=2)
    for step in (0, 4):
        export.save_as_llama(model, tmp_path / f"step{step}", run=1)
        with torch.no_grad():
            model.W_E.add_(
                torch.randn(model.W_E.shape, generator=models.seeded([step])[0]), alpha=0.1
            )
    first, _ = read = series.open_series(str(tmp_path), ["step4", "step0"])
    assert [checkpoint.step for checkpoint in read] == [0, 4]
    start = made(runs=2)
    chosen = np.array([3, 1, 39])
    rows = series.embedding_rows(first, chosen)
    np.testing.assert_array_equal(rows, start.W_E[1, chosen].detach().numpy())
    windows = attention_path.sample_windows(np.arange(40), 12, 5)
    for ours, theirs in zip(
        attention_path.read_attention(start, *windows),
        series_measurement.read_attention(first, *windows),
        strict=True,
    ):
        np.testing.assert_allclose(theirs, ours[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "run", "message"),
    [
        ({"ffn": "gelu"}, None, "expected .*swiglu.* got .*gelu"),
        ({"positions": "learned"}, None, "got .*learned"),
        ({"final_norm": False}, None, "got .*final_norm"),
        ({"runs": 2}, None, "one of the model's 2 runs"),
        ({"runs": 2}, 2, "one of the model's 2 runs"),
        ({}, 0, "one of the model's None runs"),
    ],
)
def test_models_that_llama_is_not_are_refused(tmp_path, settings, run, message):
    with pytest.raises(ValueError, match=message):
        export.save_as_llama(made(**settings), tmp_path / "x", run=run)
    assert not (tmp_path / "x").exists()
