"""Steps that our training is compared with are of equal cost, and the script for a GPU runs."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    """Modules of the folder, by name."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


def test_the_plain_step_multiplies_as_much_as_ours(benchmarks):
    steps = benchmarks("training_steps")
    shape = steps.Shape(64, 16, 12, 2, 4, 64, 3)
    with torch.device("meta"):
        model = steps.PlainGPT(**shape.sizes)
    with FlopCounterMode(display=False) as counter:
        model.loss(shape.batch().to("meta")).backward()
    # torch counts all pairs of positions, of which a causal model needs half.
    pairs = 12 * shape.sequences * shape.length**2 * shape.d * shape.blocks
    assert counter.get_total_flops() == shape.flops("GPT-2") + pairs / 2
    assert shape.flops("Llama") > shape.flops("GPT-2")


def test_steps_learn(benchmarks):
    steps = benchmarks("training_steps")
    shape = steps.Shape(64, 16, 12, 2, 4, 64, 3)
    for model in (steps.PlainGPT(**shape.sizes), shape.ours("GPT-2"), shape.ours("Llama")):
        step = steps.trainer(model, model.loss, shape.batch())
        losses = [step() for _ in range(5)]
        assert losses[-1] < losses[0]


def test_the_script_for_a_gpu(benchmarks, tmp_path, capsys):
    script = benchmarks("gpu_language")
    output = tmp_path / "out.json"
    found = script.main(["--toy", "--seconds", "0.1", "--output", str(output)])
    assert json.loads(output.read_text()) == found
    assert found["tokens_per_second"] > 0 and found["share"] > 0 and found["steps"] >= 3
    assert [row["way"] for row in found["numerics"]] == ["float32", "bfloat16"]
    assert found["numerics"][0]["gradient"] < 1e-4 < found["numerics"][1]["gradient"] < 0.05
    assert "tokens a second" in capsys.readouterr().out
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            script.main([])
        assert "no GPU was found" in capsys.readouterr().err


def test_numerics_that_are_off_are_told(benchmarks, monkeypatch):
    script = benchmarks("gpu_language")
    whole = script.Transformer.loss

    def wrong(model, tokens, **options):  # as if each position predicted itself
        return whole(model, torch.cat([tokens[:, :1], tokens[:, :-1]], 1), **options)

    monkeypatch.setattr(script.Transformer, "loss", wrong)
    with pytest.raises(ArithmeticError, match="float32: gradients differ"):
        script.numerics("cpu", compiled=False)
