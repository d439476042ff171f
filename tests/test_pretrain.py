"""Pretraining: what a step reads and does, and that a killed run loses nothing."""

import errno
import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from staircase_lib import models
from staircase_lib.language import checkpoints
from staircase_lib.language import pretrain as module
from staircase_lib.language.configurations import paper_700m, unallocated
from staircase_lib.language.plan import DataOrder, PretrainConfig, cost, learning_rate
from staircase_lib.language.pretrain import pretrain
from staircase_lib.language.transformer import Transformer, next_token_loss

V, L = 40, 12
CONFIG = PretrainConfig(
    steps=10, batch=8, length=L, lr=1e-2, warmup=3, checkpoint_every=3, keep_rows=(3, 5)
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def corpus():
    steps = np.random.default_rng(0).integers(1, 4, 2000)
    return (np.cumsum(steps) % V).astype(np.uint16)  # the next token is one of three


@pytest.fixture(scope="module")
def ids():
    return corpus()


def make(gamma=0.8, runs=None, first=0, **other):
    model = Transformer(V, 16, L, 2, 2, runs=runs, **other)
    return models.initialize_(model, gamma, models.seeded(range(first, first + (runs or 1))))


def observed(step, model):
    assert not torch.is_grad_enabled()
    return [{"metric": "norm", "value": float(model.W_E.norm())}]


# --- What a step reads ---


def test_every_epoch_reads_every_sequence_once_in_another_order():
    order = DataOrder(1 + 7 * 10 + 3, 10, seed=5)
    steps = [order.starts(step, 2) for step in range(7)]  # 14 sequences: two epochs
    first, second = np.split(np.concatenate(steps), 2)
    for epoch in (first, second):
        assert (np.diff(np.sort(epoch)) == 10).all() and epoch.min() in range(4)
    assert (first - first.min()).tolist() != (second - second.min()).tolist()
    again = DataOrder(1 + 7 * 10 + 3, 10, seed=5)
    assert (again.starts(3, 2) == steps[3]).all()  # without what came before
    assert (DataOrder(74, 10, seed=6).starts(0, 7) != first).any()


def test_the_loss_falls_and_is_that_of_the_sequences_read(ids):
    model = make()
    starts = DataOrder(len(ids), L, 0).starts(0, 8)
    tokens = torch.tensor(np.stack([ids[s : s + L + 1] for s in starts]).astype(np.int64))
    with torch.no_grad():
        weights = torch.full((8,), 1 / 8)
        by_hand = next_token_loss(model.logits(tokens[:, :-1]), tokens[:, 1:], weights)
    history = pretrain(model, ids, replace(CONFIG, steps=60))
    assert history.losses[0, 0] == pytest.approx(float(by_hand), rel=1e-6)
    assert history.losses[-1, 0] < history.losses[0, 0] - 1


def test_a_step_is_that_of_adamw_with_decay_of_matrices_only(ids):
    config = replace(CONFIG, steps=2, clip=0.05, weight_decay=0.5, warmup=0, decay="constant")
    trained, twin = make(), make()
    history = pretrain(trained, ids, config)
    optimizer = torch.optim.AdamW(twin.parameters(), 1e-2, betas=(0.9, 0.95), weight_decay=0.5)
    order = DataOrder(len(ids), L, 0)
    for step in range(2):
        rows = np.stack([ids[s : s + L + 1] for s in order.starts(step, 8)]).astype(np.int64)
        optimizer.zero_grad()
        twin.loss(torch.tensor(rows)).backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        assert history.grad_norm[step, 0] == pytest.approx(float(norm), rel=1e-5)
        optimizer.step()
    assert norm > 0.05  # else nothing was clipped
    for (name, mine), other in zip(trained.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7, msg=name)


def test_gradients_of_an_interrupted_call_are_not_added(ids):
    fresh, used = make(), make()
    used.loss(torch.tensor(ids[: L + 1].astype(np.int64))[None]).backward()
    np.testing.assert_array_equal(
        pretrain(used, ids, CONFIG).grad_norm, pretrain(fresh, ids, CONFIG).grad_norm
    )


def test_vectors_do_not_decay():
    matrix, vector = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3))
    for runs, decays in ((None, {3: 0.0, 6: 0.1}), (3, {3: 0.0, 6: 0.0})):
        made = module._optimizer([matrix, vector], CONFIG, runs)
        found = {p.numel(): g["weight_decay"] for g in made.param_groups for p in g["params"]}
        assert found == decays


def test_accumulated_gradients_are_those_of_the_whole_batch(ids):
    whole = pretrain(make(), ids, CONFIG)
    parts = pretrain(make(), ids, replace(CONFIG, accumulate=4))
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
    np.testing.assert_allclose(parts.grad_norm, whole.grad_norm, rtol=1e-4)


def test_runs_at_once_are_runs_one_after_the_other(ids):
    together = pretrain(make(runs=3), ids, replace(CONFIG, seed=7, clip=0.85))
    assert together.kept.shape == (11, 3, 2, 16) and together.losses.shape == (10, 3)
    assert (together.grad_norm > 0.85).any() and (together.grad_norm < 0.85).any()
    for run in range(3):
        alone = pretrain(make(first=run), ids, replace(CONFIG, seed=7 + run, clip=0.85))
        np.testing.assert_allclose(together.losses[:, run], alone.losses[:, 0], rtol=1e-5)
        np.testing.assert_allclose(together.kept[:, run], alone.kept[:, 0], rtol=1e-3, atol=1e-5)


def test_learning_rates_rise_and_fall():
    config = replace(CONFIG, steps=11, warmup=4, lr=1.0, final_lr=0.2)
    found = {
        decay: [learning_rate(replace(config, decay=decay), step) for step in range(11)]
        for decay in ("cosine", "linear", "constant")
    }
    for rates in found.values():
        assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert found["constant"][5:] == [1.0] * 6
    np.testing.assert_allclose(found["linear"][4:], np.linspace(1, 0.2, 7))
    assert found["cosine"][-1] == pytest.approx(0.2) and found["cosine"][7] == pytest.approx(0.6)
    assert learning_rate(replace(config, final_lr=None), 10) == pytest.approx(0.1)


@pytest.mark.parametrize("compiled", [False, True])
def test_products_in_bfloat16_train_alike_and_leave_the_parameters_in_float32(
    ids, compiled, monkeypatch
):
    # Traced as by default, but no C++ is compiled.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    exact = pretrain(make(), ids, CONFIG)
    model = make()
    rough = pretrain(model, ids, replace(CONFIG, precision="bfloat16", compile=compiled))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    np.testing.assert_allclose(rough.losses, exact.losses, rtol=0.02)
    assert (rough.losses != exact.losses).any()


# --- What is kept ---


def same(one, other):
    for name in ("losses", "grad_norm", "kept", "measured", "lr"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.rows.equals(other.rows)


def test_a_finished_run_is_read_and_one_in_a_folder_is_like_one_without(ids, tmp_path):
    free = pretrain(make(), ids, CONFIG, observe=observed)
    model = make()
    kept = pretrain(model, ids, CONFIG, observe=observed, folder=tmp_path)
    same(free, kept)
    other = make()
    read = pretrain(other, ids, CONFIG, folder=tmp_path)  # nothing is measured again
    same(read, kept)
    assert read.started == 10 and np.isnan(read.tokens_per_second)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    assert kept.rows["step"].tolist() == kept.measured.tolist() == list(range(11))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000009", "step-00000010"]  # the last two


class Killed(BaseException):
    pass


def test_killed_at_any_write_the_run_goes_on_as_if_it_had_not_been(ids, tmp_path, monkeypatch):
    config = replace(CONFIG, steps=4, checkpoint_every=2, measure_at=(0, 2, 3))
    straight = pretrain(make(), ids, config, observe=observed, folder=tmp_path / "straight")
    replaced, calls = os.replace, 0

    def stops(*arguments):
        nonlocal calls, left
        calls, left = calls + 1, left - 1
        if left < 0:
            raise Killed
        replaced(*arguments)

    left = 10**6
    monkeypatch.setattr(os, "replace", stops)
    pretrain(make(), ids, config, observe=observed, folder=tmp_path / "counted")
    writes = calls
    assert writes > 15
    for moment in range(writes):
        left = moment
        with pytest.raises(Killed):
            pretrain(make(), ids, config, observe=observed, folder=tmp_path / str(moment))
        left = 10**6
        resumed = pretrain(make(), ids, config, observe=observed, folder=tmp_path / str(moment))
        same(resumed, straight)


# --- What goes wrong ---


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "steps: expected an integer of at least 1"),
        ({"lr": float("nan")}, "lr: expected a finite number"),
        ({"lr": 0}, "nothing would move"),
        ({"warmup": 11}, "warmup: expected at most steps=10"),
        ({"accumulate": 3}, "accumulate: expected a divisor of batch=8"),
        ({"final_lr": 1.0}, "final_lr: expected at most lr"),
        ({"betas": (0.9, 1.0)}, "betas: expected two numbers"),
        ({"decay": "step"}, "decay: expected one of"),
        ({"precision": "float16"}, "precision: expected one of"),
        ({"measure_at": (0, 11)}, "measure_at: expected steps up to 10"),
        ({"keep_rows": (-1,)}, "keep_rows: expected an integer of at least 0"),
        ({"keep": 0}, "keep: expected an integer of at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changed)


def test_what_cannot_be_trained_is_refused(ids):
    for given, message in [
        ((make(), ids[:L], CONFIG), "one sequence and the token after it, got 12; lower length"),
        ((make(), ids.reshape(2, -1), CONFIG), "ids: expected a row of integers"),
        ((make(), ids, replace(CONFIG, length=L + 1)), "the model's 12 positions"),
        ((make(), ids, replace(CONFIG, keep_rows=(V,))), "keep_rows: expected tokens below 40"),
        ((Transformer(V, 16, L), ids, CONFIG), "call models.initialize_ first"),
        ((make(dtype=torch.bfloat16), ids, CONFIG), "small steps are lost"),
    ]:
        with pytest.raises(ValueError, match=message):
            pretrain(*given)
    wrong = ids.copy()
    wrong[1234] = V
    with pytest.raises(ValueError, match=r"got 40 at position 1234; .* another tokenizer"):
        pretrain(make(), wrong, replace(CONFIG, steps=100))


def test_an_initialization_that_underflows_is_refused_and_a_small_one_is_noted(ids):
    for precision in ("float32", "bfloat16"):
        config = replace(CONFIG, precision=precision)
        with pytest.raises(ValueError, match=f"{precision} cannot hold the gradients .* gamma"):
            pretrain(make(gamma=11), ids, config)
        small = pretrain(make(gamma=2.5), ids, config)
        assert any("below AdamW's eps=1e-08" in note and "W_Q" in note for note in small.notes)
    assert pretrain(make(gamma=0.5), ids, CONFIG).notes == ()


def test_the_cost_of_the_papers_run():
    model = unallocated(paper_700m)
    config = PretrainConfig(steps=70_000, batch=256, length=2048, lr=3e-4, accumulate=16)
    found = cost(model, config)
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["tokens"] == 70_000 * 256 * 2048
    per_token = found["flops"] / found["tokens"]
    assert per_token == pytest.approx(3.65e9, rel=0.02)  # 6 a weight that multiplies, and attention
    assert found["state_bytes"] == 16 * found["parameters"] == pytest.approx(11.4e9, rel=0.02)


def test_a_diverging_run_stops_and_keeps_a_checkpoint_that_has_a_next_step(ids, tmp_path):
    # lr * weight_decay = 10: every step multiplies the parameters by -9.
    config = replace(CONFIG, steps=100, lr=100.0, decay="constant", warmup=0, checkpoint_every=1)
    with pytest.raises(FloatingPointError, match=r"at step \d+: loss .* lr 100\.") as caught:
        pretrain(make(), ids, config, folder=tmp_path)
    newest = checkpoints.latest(tmp_path)
    assert newest is not None and f"The last checkpoint is {newest}." in str(caught.value)
    assert f"at step {checkpoints.check(newest) + 1}:" in str(caught.value)
    model = make()
    checkpoints.load(newest, {f"model.{name}": p for name, p in model.named_parameters()})
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    with pytest.raises(FloatingPointError):  # it diverges again where it did
        pretrain(make(), ids, config, folder=tmp_path)


def test_a_diverging_run_of_several_is_named(ids, monkeypatch):
    model = make(runs=3)
    with torch.no_grad():
        model.W_E[1] *= float("inf")
    monkeypatch.setattr(module, "check_precision", lambda *_: {})  # would have refused it
    with pytest.raises(FloatingPointError, match=r"at step 0 for seeds \[1\]"):
        pretrain(model, ids, CONFIG)


def test_memory_that_is_short_is_told_with_what_to_lower(ids, monkeypatch, tmp_path):
    def too_large(self, tokens, **other):
        return torch.empty(2**50) if len(seen) > 3 else real(self, tokens, **other)

    real, seen = Transformer.loss, []
    monkeypatch.setattr(Transformer, "loss", too_large)
    with pytest.raises(MemoryError, match=r"step 4, with 8 sequences .* Raise accumulate") as error:
        pretrain(make(), ids, CONFIG, folder=tmp_path, progress=lambda *a: seen.append(a))
    assert "step-00000003" in str(error.value)
    monkeypatch.undo()
    resumed = pretrain(make(), ids, replace(CONFIG, accumulate=2), folder=tmp_path)
    assert resumed.started == 3
    np.testing.assert_allclose(resumed.losses, pretrain(make(), ids, CONFIG).losses, rtol=1e-5)


def test_a_full_disk_stops_the_run_and_takes_no_checkpoint_with_it(ids, tmp_path, monkeypatch):
    real, sizes = os.fsync, []

    def full(descriptor):
        sizes.append(descriptor)
        if len(sizes) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)  # called by torch for each file, and by us
    with pytest.raises(OSError, match="No space left"):
        pretrain(make(), ids, CONFIG, folder=tmp_path)
    assert not (tmp_path / "checkpoints/.writing").exists()
    newest = checkpoints.latest(tmp_path)
    assert newest is not None and 0 < checkpoints.check(newest) < 10
    monkeypatch.undo()
    resumed = pretrain(make(), ids, CONFIG, folder=tmp_path)
    np.testing.assert_array_equal(resumed.losses, pretrain(make(), ids, CONFIG).losses)


@pytest.fixture
def begun(ids, tmp_path):
    pretrain(make(), ids, CONFIG, folder=tmp_path, vocabulary="one")
    return tmp_path


def test_another_run_does_not_go_on_from_a_checkpoint(ids, begun):
    rotary = Transformer(V, 16, L, 2, 2, positions="rotary")
    models.initialize_(rotary, 0.8, models.seeded([0]))
    larger = Transformer(V + 1, 16, L, 2, 2)
    models.initialize_(larger, 0.8, models.seeded([0]))
    for model, data, config, vocabulary, message in [
        (make(), ids, replace(CONFIG, lr=2e-2), "one", r"config.lr: 0.01 there, 0.02 here"),
        (rotary, ids, CONFIG, "one", "another configuration: .*model.positions"),
        (larger, ids, CONFIG, "one", "another vocabulary: .*model.vocab_size: 40 there, 41 here"),
        (make(), ids, CONFIG, "two", "another vocabulary: vocabulary: 'one' there, 'two' here"),
        (make(), ids[:-1], CONFIG, "one", "another corpus: ids.length: 2000 there, 1999 here"),
        (make(), ids[::-1], CONFIG, "one", "another corpus: ids.sha256"),
        (make(gamma=0.9), ids, CONFIG, "one", "another initialization: start.W_E"),
        (make(first=1), ids, CONFIG, "one", "another initialization: start"),
    ]:
        with pytest.raises(checkpoints.CheckpointError, match=message):
            pretrain(model, data, config, folder=begun, vocabulary=vocabulary)
    slower = replace(CONFIG, checkpoint_every=2, keep=None, accumulate=2, loss_chunk=7)
    assert pretrain(make(), ids, slower, folder=begun, vocabulary="one").started == 10


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_taken(ids, begun):
    newest = checkpoints.latest(begun)
    assert newest is not None
    file = next(newest.glob("*.safetensors"))
    content = file.read_bytes()

    def refused(message):
        with pytest.raises(checkpoints.CheckpointError, match=message) as error:
            pretrain(make(), ids, CONFIG, folder=begun, vocabulary="one")
        return str(error.value)

    file.write_bytes(content[:-7])
    told = refused(f"expected {len(content)} bytes, got {len(content) - 7}; the file was cut")
    assert f"Remove {newest} to go on from an older checkpoint" in told
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused("SHA-256 differs")
    file.write_bytes(content)
    (newest / "more.safetensors").write_bytes(content)
    refused("expected the files")
    (newest / "more.safetensors").unlink()
    header = newest / "header.json"
    text = header.read_text()
    for broken in (text[:50], "[]", '{"step": 1}', json.dumps({**json.loads(text), "step": "x"})):
        header.write_text(broken)
        refused("header")
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    again = pretrain(make(), ids, CONFIG, folder=begun, vocabulary="one")
    assert again.started == 9
    np.testing.assert_array_equal(again.losses, pretrain(make(), ids, CONFIG).losses)


def test_nothing_in_a_run_folder_is_a_pickle(begun):
    kinds = {path.suffix for path in begun.rglob("*") if path.is_file() and path.name != ".lock"}
    assert kinds == {".safetensors", ".parquet", ".json"}
