"""Cross-entropy in chunks against the whole, and what it keeps in memory."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from staircase_lib.language.cross_entropy import chunked_cross_entropy, take_residual

F64 = torch.float64


def drawn(runs=(), positions=23, d=6, vocab_size=11, dtype=F64):
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(*runs, positions, d, generator=generator, dtype=dtype)
    readout = torch.randn(*runs, d, vocab_size, generator=generator, dtype=dtype)
    targets = torch.randint(vocab_size, (*runs, positions), generator=generator)
    return states.requires_grad_(), readout.requires_grad_(), targets


@pytest.mark.parametrize("runs", [(), (1,), (3,)])
@pytest.mark.parametrize("chunk", [1, 7, 23, 1000])
def test_value_and_gradients_are_those_of_the_whole(chunk, runs):
    states, readout, targets = drawn(runs)
    value = chunked_cross_entropy(states, readout, targets, chunk)
    each = torch.log_softmax(states @ readout, -1).gather(-1, targets[..., None])
    whole = -each.mean((-2, -1))
    torch.testing.assert_close(value, whole)
    pull = torch.arange(1.0, 1.0 + whole.numel(), dtype=F64).reshape(whole.shape)
    got = torch.autograd.grad(value, (states, readout), pull)
    torch.testing.assert_close(got, torch.autograd.grad(whole, (states, readout), pull))


def test_targets_of_all_runs_and_what_is_not_differentiated():
    states, readout, targets = drawn((2,))
    shared = chunked_cross_entropy(states, readout, targets[0], 5)
    torch.testing.assert_close(
        shared, chunked_cross_entropy(states, readout, targets[:1].expand(2, -1), 5)
    )
    with torch.no_grad():
        assert not chunked_cross_entropy(states, readout, targets).requires_grad
    fixed = chunked_cross_entropy(states, readout.detach(), targets, 5)
    (gradient,) = torch.autograd.grad(fixed.sum(), states)
    assert gradient.abs().min() > 0


def test_logits_of_any_size_and_of_a_single_label_stay_finite():
    states, readout, targets = drawn()
    for scale in (1e4, 1e-200):
        value = chunked_cross_entropy(states * scale, readout, targets, 4)
        gradients = torch.autograd.grad(value, (states, readout))
        assert bool(value.isfinite()) and all(bool(g.isfinite().all()) for g in gradients)
    single = chunked_cross_entropy(states, readout[:, :1], torch.zeros_like(targets))
    assert float(single.detach()) == 0


def test_no_logits_are_kept():
    positions, d, vocab_size, chunk = 512, 4, 300, 64
    states, readout, targets = drawn(positions=positions, d=d, vocab_size=vocab_size)
    kept = []

    def size(tensor):
        kept.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(size, lambda tensor: tensor):
        chunked_cross_entropy(states, readout, targets, chunk)
    assert sum(kept) == positions * d + d * vocab_size
    # Nor do they all exist at any moment; twice a chunk of them does, with the gradients.
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.autograd.grad(chunked_cross_entropy(states, readout, targets, chunk), states)
    now = peak = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore
        if event.name() == "[memory]":
            now += event.nbytes()  # type: ignore
            peak = max(peak, now)
    assert 8 * chunk * vocab_size < peak < 8 * positions * vocab_size / 2


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    states, readout, targets = drawn(positions=400, d=32, vocab_size=50, dtype=torch.float32)
    full = chunked_cross_entropy(states, readout, targets, 64)
    expected = torch.autograd.grad(full, (states, readout))
    with torch.autocast("cpu", torch.bfloat16):
        value = chunked_cross_entropy(states, readout, targets, 64)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, full, rtol=1e-2, atol=0)
    for got, want in zip(torch.autograd.grad(value, (states, readout)), expected, strict=True):
        assert got.dtype == torch.float32
        assert 1e-5 < float((got - want).norm() / want.norm()) < 2e-2


def test_bad_input():
    states, readout, targets = drawn()
    with pytest.raises(ValueError, match="one for each of 23 states, at least one, got 22"):
        chunked_cross_entropy(states, readout, targets[1:])
    with pytest.raises(ValueError, match="at least one, got 0"):
        chunked_cross_entropy(states[:0], readout, targets[:0])
    with pytest.raises(ValueError, match="chunk: expected a positive integer, got 0"):
        chunked_cross_entropy(states, readout, targets, 0)


def test_a_confident_prediction_keeps_its_residual_in_bfloat16():
    logits = torch.zeros(1, 1, 3, dtype=torch.bfloat16)
    logits[..., 0] = 10.0
    loss, residual = take_residual(logits.clone(), torch.tensor([[0]]))
    exact = torch.softmax(logits.double(), -1)[0, 0]
    assert loss.dtype == torch.float32 and residual.dtype == torch.bfloat16
    assert float(loss) == pytest.approx(-float(exact[0].log()), rel=1e-3)
    # 1 - P(y) is 9e-5; rounded first, P(y) would be one and the residual zero.
    assert float(residual[0, 0, 0]) == pytest.approx(float(exact[0]) - 1, rel=0.01)


def test_compiled_residuals_are_the_same():
    """Traced and made functional, without the machine code, which takes a minute to make."""
    states, readout, targets = drawn((2,))
    compiled = torch.compile(take_residual, backend="aot_eager")
    expected = chunked_cross_entropy(states, readout, targets, 8)
    value = chunked_cross_entropy(states, readout, targets, 8, residual_of=compiled)
    torch.testing.assert_close(value, expected)
    got, want = (torch.autograd.grad(each.sum(), (states, readout)) for each in (value, expected))
    torch.testing.assert_close(got, want)
