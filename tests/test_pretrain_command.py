"""The command `pretrain`, as somebody with a text of their own uses it, also under torchrun."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from project import run

from staircase_lib.__main__ import main

TEXT = "the cat saw the dog. the dog saw the cat. one two three one two three.\n" * 150
SMALL = ["my text.txt", "--vocab-size", "270", "--length", "16", "--batch", "4", "--anchors", "20"]
HELD = [*SMALL, "--held-out", "0.1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def pretrain(capfd):
    def call(*arguments):
        code = main(["pretrain", *arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return call


@pytest.fixture
def text(tmp_path):
    (tmp_path / "my text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


@pytest.mark.fault("a training run is resumed with another initialization", 1)
def test_a_text_is_trained_on_and_the_run_goes_on_in_two_processes(text, pretrain):
    first = pretrain(*HELD, "--steps", "6", "--checkpoint-every", "3")
    assert first.returncode == 0, first.stderr
    assert "parameters with a vocabulary of 270" in first.stdout and "6 of 6 steps" in first.stderr
    made = text / "my text.txt.pretrain"
    rows = pd.concat(pd.read_parquet(path) for path in sorted((made / "rows").glob("*.parquet")))
    assert rows["step"].unique().tolist() == list(range(7)) and rows["value"].notna().all()
    assert set(rows["measure"]) == {"alignment", "attention path"}
    refused = pretrain(*HELD, "--steps", "6")
    assert refused.returncode == 2 and "give --resume to go on with it" in refused.stderr
    other = pretrain(*HELD, "--steps", "6", "--resume", "--gamma", "0.9")
    assert other.returncode == 1 and "of a run with another initialization" in other.stderr
    newest = made / "checkpoints/step-00000006"
    for path in newest.iterdir():
        path.unlink()
    os.rmdir(newest)
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    resumed = ["--steps", "6", "--resume", "--checkpoint-every", "2"]
    again = run(
        [sys.executable, "-P", *several, "staircase_lib", "pretrain", *HELD, *resumed], text
    )
    assert again.returncode == 0, again.stderr
    assert "6 of 6 steps" in again.stderr
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]  # the same loss
    assert len(list(newest.glob("*.safetensors"))) == 2


def test_the_estimate_of_the_papers_run_needs_no_text(tmp_path, pretrain):
    arguments = ["none", "--size", "paper_700m", "--steps", "70000", "--batch", "256"]
    done = pretrain(*arguments, "--estimate", "--rate", "400")
    assert done.returncode == 0, done.stderr
    found = {words[1]: words[0] for words in map(str.split, done.stdout.splitlines())}
    assert found["parameters"].startswith("713,8") and found["tokens"] == "36,700,160,000"
    assert 90 < float(found["hours"]) < 96
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "expected a file, a folder, hf:NAME or one of"),
        ([*SMALL, "--steps", "0"], "steps: expected an integer of at least 1"),
        ([*SMALL, "--batch", "5", "--accumulate", "2"], "accumulate: expected a divisor"),
        ([*SMALL, "--batch", "100000"], "--batch: expected"),
        ([*SMALL, "--gamma", "nan"], "--gamma: expected a rate from 0 to 30"),
        pytest.param(
            *(["short.txt", "--vocab-size", "270", "--anchors", "0"], "take a longer text"),
            marks=pytest.mark.fault("a corpus is shorter than one sequence", 2),
        ),
        ([*SMALL, "--limit", "0"], "limit: expected a positive number of characters"),
        (["ids.npy", "--limit", "9"], "limit: expected with text only"),
        ([*SMALL, "--held-out", "0.0001"], "raise --held-out"),
        pytest.param(
            *([*SMALL, "--gamma", "20"], "cannot hold the gradients"),
            marks=pytest.mark.fault("an initialization so small that gradients underflow", 2),
        ),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(text, pretrain, arguments, message):
    (text / "short.txt").write_text("one two")
    np.save(text / "ids.npy", np.arange(200, dtype=np.uint16))
    done = pretrain(*arguments)
    assert done.returncode == 2 and message in done.stderr
