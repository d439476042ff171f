"""The Transformer against its formulas, and the paths of its embedding gradient."""

import math

import numpy as np
import pytest
import torch

from staircase_lib import models, tasks, training
from staircase_lib.language import paths
from staircase_lib.language.transformer import (
    Block,
    Record,
    Transformer,
    next_token_loss,
    next_tokens,
)

F64 = torch.float64
TASK = tasks.from_arrays(
    [[0, 0, 1, 0], [1, 2, 2, 0], [3, 3, 3, 3], [0, 1, 2, 4]], [0, 1, 2, 5], weights=[1, 2, 5, 1]
)
TOKENS, LABELS = torch.tensor(TASK.tokens), torch.tensor(TASK.labels)
WEIGHTS = torch.tensor(TASK.weights)


def transformer(gamma=0.5, runs=None, **settings):
    settings = {"blocks": 1, "heads": 2, "hidden": 12, "dtype": F64, **settings}
    model = Transformer(TASK.vocab_size, 8, 5, runs=runs, **settings)
    return models.initialize_(model, gamma, models.seeded(range(runs or 1)))  # type: ignore


def loss(model, every_position=True, labels=LABELS):
    logits, targets = model.logits(TOKENS), next_tokens(TOKENS, labels)
    if not every_position:
        logits, targets = logits[..., -1:, :], targets[:, -1:]
    return next_token_loss(logits, targets, WEIGHTS)


def descent(model, every_position=True):
    return -torch.autograd.grad(loss(model, every_position).sum(), model.W_E)[0]


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), 0.02, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).sum().backward()
        optimizer.step()


def relative(a, b):
    return float(((a - b).norm() / b.norm()).detach())


def set_gains(model):
    """Gains away from one, so that a forgotten one is seen."""
    generator = torch.Generator().manual_seed(9)
    for _, gain in model.named_buffers():
        gain.copy_(1 + 0.3 * torch.randn(gain.shape, generator=generator, dtype=F64))


def turned(x, t):
    """A query or key at position ``t``, its two halves being real and imaginary parts."""
    half = len(x) // 2
    turn = np.exp(1j * t * 10_000.0 ** (-np.arange(half) / half))
    z = (x[:half].numpy() + 1j * x[half:].numpy()) * turn
    return torch.tensor(np.concatenate([z.real, z.imag]))


def written_out(model, tokens, causal=True, turned=turned):
    """Logits of one sequence, position by position and head by head, without tensors of heads."""

    def norm(x, gain):
        return gain * x / math.sqrt(float((x @ x) / len(x)) + model.epsilon)

    def at(x, t):
        return turned(x, t) if model.settings["positions"] == "rotary" else x

    def sigma(x, block):
        z = x @ block.W_in
        if model.settings["ffn"] == "swiglu":
            gate = x @ block.W_gate
            return gate / (1 + torch.exp(-gate)) * z
        return z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))

    stream = [model.W_E[x] for x in tokens]
    if model.settings["positions"] == "learned":
        stream = [h + model.W_P[t] for t, h in enumerate(stream)]
    for block in model.blocks:
        normed = [norm(h, block.g_A) for h in stream]
        after = []
        for t, h in enumerate(stream):
            out = torch.zeros_like(h)
            size = model.d // block.heads
            for head in range(block.heads):
                own = slice(head * size, (head + 1) * size)
                seen = normed[: t + 1] if causal else normed
                query = at(normed[t] @ block.W_Q[:, own], t)
                keys = [at(x @ block.W_K[:, own], i) for i, x in enumerate(seen)]
                scores = torch.stack([query @ key for key in keys])
                weights = torch.exp(scores / math.sqrt(size))
                weights = weights / weights.sum()
                mixed = sum(a * (x @ block.W_V[:, own]) for a, x in zip(weights, seen, strict=True))
                out = out + mixed @ block.W_O[own]
            after.append(h + out)
        stream = [u + sigma(norm(u, block.g_F), block) @ block.W_out for u in after]
    if model.final_norm:
        stream = [norm(h, model.g_U) for h in stream]
    return torch.stack([h @ (model.W_E.T if model.tied else model.W_U) for h in stream])


VARIANTS = {
    "as it was": {},
    "no final norm": {"final_norm": False},
    "rotary": {"positions": "rotary"},
    "SwiGLU": {"ffn": "swiglu"},
    "tied": {"tied": True},
    "all three": {"positions": "rotary", "ffn": "swiglu", "tied": True},
}


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_logits_are_those_of_the_formula(name):
    model = transformer(blocks=2, epsilon=1e-2, **VARIANTS[name])
    set_gains(model)
    logits = model.logits(TOKENS)
    for row, tokens in zip(logits, TASK.tokens, strict=True):
        torch.testing.assert_close(row, written_out(model, tokens), rtol=1e-12, atol=1e-13)
        # A model that sees the future has the same last row only, unless there is but one state.
        if len(set(tokens)) > 1 or model.W_P is not None:
            assert relative(written_out(model, tokens, causal=False)[:-1], row[:-1]) > 1e-4
    torch.testing.assert_close(model(TOKENS), logits[:, -1])


@torch.no_grad()
def test_rotary_scores_know_the_distance_of_two_positions_and_nothing_else_of_them():
    model = transformer(positions="rotary")
    (block,) = model.blocks
    assert model.W_P is None and isinstance(block, Block)
    stream = torch.randn(1, 5, 8, dtype=F64, generator=torch.Generator().manual_seed(3))
    repeated = stream[:, [1, 2, 1, 2, 1]]
    log = block.attention(repeated).log()  # a row's normaliser cancels in differences
    torch.testing.assert_close(log[..., 2, 0] - log[..., 2, 2], log[..., 4, 2] - log[..., 4, 4])
    near, far = log[..., 4, 2] - log[..., 4, 4], log[..., 4, 0] - log[..., 4, 4]
    assert (near - far).abs().min() > 1e-3
    # Not turned, or turned the same way at every position: other logits.
    tokens, right = TASK.tokens[0], model.logits(TOKENS)[0]
    torch.testing.assert_close(written_out(model, tokens), right)
    still = written_out(model, tokens, turned=lambda x, t: x)
    backwards = written_out(model, tokens, turned=lambda x, t: turned(x, -t))
    assert relative(still, right) > 1e-4 and relative(backwards, right) > 1e-4


@pytest.mark.parametrize("runs", [None, 2])
@pytest.mark.parametrize("name", VARIANTS)
def test_one_forward_pass_is_recorded(name, runs):
    model = transformer(blocks=2, runs=runs, **VARIANTS[name])
    set_gains(model)
    plain, seen = Record(), Record(with_weights=True)
    stream = model.stream(TOKENS, plain)
    assert torch.equal(stream, model.stream(TOKENS)) and not plain.weights
    torch.testing.assert_close(stream, model.stream(TOKENS, seen))
    assert plain.embedded is not None and torch.equal(plain.embedded, model.embed(TOKENS))
    torch.testing.assert_close(plain.embedded + sum(plain.attention) + sum(plain.ffn), stream)
    attention, ffn = model.written(model.embed(TOKENS))
    torch.testing.assert_close([attention, ffn], [plain.attention, plain.ffn])
    # Block by block: what is heard is read through these weights, and they are causal.
    state = plain.embedded
    for number, block in enumerate(model.blocks):
        weights = seen.weights[number]
        assert weights.shape == ((runs,) if runs else ()) + (4, 2, 4, 4)
        torch.testing.assert_close(weights, block.attention(state))  # type: ignore
        assert weights.triu(1).abs().max() == 0
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        # The kernel that never holds the weights writes the same.
        explicit = block.attend(state, weights=weights)  # type: ignore
        torch.testing.assert_close(explicit, block.attend(state))  # type: ignore
        state = state + plain.attention[number] + plain.ffn[number]
    # What is recorded is the pass itself: gradients flow through it.
    record = Record()
    value = model.loss(TOKENS, record=record)
    assert len(torch.autograd.grad(value.sum(), record.attention)) == 2


@pytest.mark.parametrize("runs", [None, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_loss_in_chunks_is_that_of_all_logits(name, runs):
    model = transformer(blocks=2, runs=runs, **VARIANTS[name])
    tokens = TOKENS if runs is None else torch.stack([TOKENS.roll(r, 1) for r in range(runs)])
    value = model.loss(tokens, chunk=5)
    logits = torch.log_softmax(model.logits(tokens[..., :-1]), -1)
    whole = -logits.gather(-1, tokens[..., 1:, None]).mean((-3, -2, -1))
    torch.testing.assert_close(value, whole)
    parameters = list(model.parameters())
    pull = torch.ones_like(value) if runs is None else torch.tensor([1.0, 2.0, -3.0], dtype=F64)
    got = torch.autograd.grad(value, parameters, pull)
    torch.testing.assert_close(got, torch.autograd.grad(whole, parameters, pull))
    if runs:  # each run its own tokens; one batch for all is that batch three times
        each = [model.loss(t)[r] for r, t in enumerate(tokens)]
        torch.testing.assert_close(value, torch.stack(each))
    moved = tokens.clone()
    moved[..., -1] = (moved[..., -1] + 1) % TASK.vocab_size
    assert (model.loss(moved) - value).abs().min() > 1e-3  # the last token is predicted


def test_future_tokens_change_no_earlier_logits():
    model = transformer(blocks=2)
    changed = TOKENS.clone()
    changed[:, 2] = (changed[:, 2] + 1) % TASK.vocab_size
    before, after = model.logits(TOKENS), model.logits(changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert (before[:, 2:] != after[:, 2:]).any(-1).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_initialization_leaves_gains_at_one_and_gives_weights_their_scale(name):
    d, hidden, gamma = 64, 100, 1.2
    model = Transformer(60, d, 50, blocks=2, heads=4, hidden=hidden, **VARIANTS[name])  # type: ignore
    models.initialize_(model, gamma, torch.Generator().manual_seed(0))  # type: ignore
    names = [name for name, _ in model.named_parameters()]
    swiglu, rotary = "ffn" in VARIANTS[name], "positions" in VARIANTS[name]
    assert len(names) == 3 - rotary - model.tied + 2 * (6 + swiglu)
    for weight, parameter in model.named_parameters():
        fan_in = hidden if weight.endswith("W_out") else d
        error = 1 / math.sqrt(2 * parameter.numel())
        assert float(parameter.detach().std()) / fan_in**-gamma == pytest.approx(1, abs=4.5 * error)
    assert all((gain == 1).all() for _, gain in model.named_buffers())


def test_runs_are_independent_and_train_on_a_labelled_task():
    batch = transformer(runs=2)
    run = training.train(batch, TASK, training.TrainConfig(5, 0.02, "adamw"))  # type: ignore
    assert run.metric("loss").shape[1] == 2
    for seed in range(2):
        single = transformer(dtype=F64)
        models.initialize_(single, 0.5, models.seeded([seed]))  # type: ignore
        training.train(single, TASK, training.TrainConfig(5, 0.02, "adamw"))  # type: ignore
        torch.testing.assert_close(batch.W_E[seed], single.W_E, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(batch(TOKENS), batch.logits(TOKENS)[..., -1, :])


def test_every_position_predicts_the_token_after_it():
    assert next_tokens(TOKENS, LABELS)[1].tolist() == [2, 2, 0, 1]
    model = transformer(runs=2)
    log_p = torch.log_softmax(model.logits(TOKENS), -1).detach()
    expected = torch.zeros(2, dtype=F64)
    for s in range(4):
        sentence = [*TASK.tokens[s], TASK.labels[s]]
        for t in range(4):
            expected -= WEIGHTS[s] * log_p[:, s, t, sentence[t + 1]] / 4
    torch.testing.assert_close(loss(model).detach(), expected)


SETTINGS = {
    "one block": {},
    "two blocks": {"blocks": 2},
    "no final norm": {"final_norm": False},
    "runs": {"runs": 3, "blocks": 2},
    "rotary": {"positions": "rotary", "blocks": 2},
    "rotary, SwiGLU, tied": {**VARIANTS["all three"], "blocks": 2, "runs": 2},
}


@pytest.mark.claim("6.1")
@pytest.mark.parametrize("every_position", [True, False])
@pytest.mark.parametrize("steps", [0, 12])
@pytest.mark.parametrize("name", SETTINGS)
def test_paths_sum_to_the_gradient(name, steps, every_position):
    model = transformer(**SETTINGS[name])
    set_gains(model)
    train(model, steps)
    parts = paths.embedding_gradient_by_path(model, TASK, every_position=every_position, block=3)
    truth = descent(model, every_position)
    assert list(parts) == ["direct", "attention", "ffn"] + ["unembedding"] * model.tied
    assert all(part.shape == model.W_E.shape for part in parts.values())
    assert relative(sum(parts.values()), truth) < 1e-12
    # Wrong sums: a path left out, or the labels shuffled.
    for part in parts.values():
        assert relative(sum(parts.values()) - part, truth) > 1e-3
    shuffled = tasks.from_arrays(TASK.tokens, np.roll(TASK.labels, 1), TASK.weights)
    other = paths.embedding_gradient_by_path(model, shuffled, every_position=every_position)
    assert relative(sum(other.values()), truth) > 1e-2


def by_copies(model):
    """Paths of one block, one copy of the embeddings for each writer, as in appendix B."""
    copies = [model.W_E.detach().clone().requires_grad_() for _ in range(3)]
    (block,) = model.blocks
    e = [copy[TOKENS] + model.W_P[: TOKENS.shape[1]].detach() for copy in copies]
    inside = e[2] + block.attend(e[2])
    stream = e[0] + block.attend(e[1]) + block.feed(inside)
    value = next_token_loss(model.unembed(stream), next_tokens(TOKENS, LABELS), WEIGHTS)
    return [-g for g in torch.autograd.grad(value, copies)]


def attention_with_all_that_reads_it(model):
    """Attention's path together with the FFN behind it, which belongs to the FFN path."""
    (block,) = model.blocks
    table = model.W_E.detach().clone().requires_grad_()
    e = table[TOKENS] + model.W_P[: TOKENS.shape[1]].detach()
    u = e.detach() + block.attend(e)
    logits = model.unembed(u + block.feed(u))
    value = next_token_loss(logits, next_tokens(TOKENS, LABELS), WEIGHTS)
    return -torch.autograd.grad(value, table)[0]


def test_paths_are_those_of_their_last_writer():
    model = transformer()
    parts = paths.embedding_gradient_by_path(model, TASK)
    for part, expected in zip(parts.values(), by_copies(model), strict=True):
        assert relative(part, expected) < 1e-12
    twice = attention_with_all_that_reads_it(model)
    assert relative(twice, parts["attention"]) > 1e-2
    assert relative(parts["direct"] + twice + parts["ffn"], descent(model)) > 1e-2


def test_a_silent_module_has_no_path():
    model = transformer(blocks=2)
    with torch.no_grad():
        for block in model.blocks:
            block.W_O.zero_()  # type: ignore
    parts = paths.embedding_gradient_by_path(model, TASK)
    assert parts["attention"].abs().max() == 0
    assert relative(parts["direct"] + parts["ffn"], descent(model)) < 1e-12


@pytest.mark.parametrize("every_position", [True, False])
def test_next_token_signature_counts_what_follows(every_position):
    mass, signature = paths.next_token_signature(TASK, every_position=every_position)
    assert mass.shape == (6, 4) and signature.shape == (6, 4, 6)
    assert mass.sum() == pytest.approx(1)
    np.testing.assert_allclose(signature.sum(-1), mass > 0)
    # Token 0 stands first in rows 0 and 3 (weights 1 and 1 of 9) and last in rows 0 and 1.
    np.testing.assert_allclose(signature[0, 3], [1 / 3, 2 / 3, 0, 0, 0, 0])
    assert mass[0, 3] == pytest.approx(3 / 9 / (4 if every_position else 1))
    if every_position:
        np.testing.assert_allclose(signature[0, 0], [1 / 2, 1 / 2, 0, 0, 0, 0])
    else:
        assert mass[:, :3].max() == 0


@pytest.mark.claim("6.2")
@pytest.mark.parametrize("every_position", [True, False])
@pytest.mark.parametrize("norm", ["none", "far below", "far above", "rotary", "tied"])
def test_direct_path_is_the_next_token_signature(norm, every_position):
    """Claim 6.2: an error in proportion to the logits, whatever the norm does to their scale."""
    options = {
        "none": {"final_norm": False},
        "far below": {"epsilon": 1.0},
        "far above": {"epsilon": 1e-20},
        "rotary": {"epsilon": 1e-20, **VARIANTS["rotary"], "ffn": "swiglu"},
        "tied": {"epsilon": 1.0, **VARIANTS["tied"]},
    }[norm]
    mass, signature = paths.next_token_signature(TASK, every_position=every_position)
    averaged = (mass[..., None] * signature).sum(1, keepdims=True)
    averaged = np.broadcast_to(
        averaged / np.maximum(averaged.sum(-1, keepdims=True), 1e-300), signature.shape
    )

    def power(given):
        sizes, errors = [], []
        for scale in 10 ** np.linspace(-3.5, -1.5, 5):
            model = transformer(**options)
            set_gains(model)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(float(scale))
                sizes.append(float(model.logits(TOKENS).norm()))
            direct = paths.embedding_gradient_by_path(model, TASK, every_position=every_position)
            stated = paths.direct_path_from_signature(model, mass, given)
            errors.append(relative(stated, direct["direct"]))
        return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])

    assert power(signature) == pytest.approx(1, abs=0.1)
    # Wrong theories: another token's signature; where the norm tells positions apart, one for all.
    assert abs(power(np.roll(signature, 1, axis=0))) < 0.1
    if every_position and norm == "far above":
        assert abs(power(averaged)) < 0.1


def test_bad_input():
    with pytest.raises(ValueError, match="divisor of the width d=8, got 3"):
        Transformer(5, 8, 4, heads=3)
    with pytest.raises(ValueError, match=r"epsilon: expected a positive number, got 0\.0"):
        Transformer(5, 8, 4, epsilon=0.0)
    with pytest.raises(ValueError, match="blocks: expected a positive integer, got 0"):
        Transformer(5, 8, 4, blocks=0)
    with pytest.raises(ValueError, match="at most 3 positions, got 4"):
        Transformer(6, 8, 3)(TOKENS)
    with pytest.raises(ValueError, match=r"positions: expected one of .*'rotary'.*, got 'sine'"):
        Transformer(5, 8, 4, positions="sine")
    with pytest.raises(ValueError, match="ffn: expected one of .*'gelu', 'swiglu'.*, got 'relu'"):
        Transformer(5, 8, 4, ffn="relu")
    with pytest.raises(ValueError, match=r"even width for each head, got d/heads = 3"):
        Transformer(5, 6, 4, heads=2, positions="rotary")
    with pytest.raises(
        ValueError, match=r"integers of shape \(n, L\), got torch.int64 of shape \(4,\)"
    ):
        transformer().stream(TOKENS[0])
    with pytest.raises(ValueError, match=r"\(n, L\) or \(2, n, L\), got .* \(3, 4, 4\)"):
        transformer(runs=2).stream(TOKENS.expand(3, 4, 4))
    with pytest.raises(ValueError, match="at least two a sequence, .* got 1"):
        transformer().loss(TOKENS[:, :1])
    mass, signature = paths.next_token_signature(TASK)
    with pytest.raises(ValueError, match="expected an FFN with GELU, .* got 'swiglu'"):
        paths.ffn_path_from_signature(transformer(ffn="swiglu"), mass, signature)
    with pytest.raises(ValueError, match="vocabulary of 6, got 9"):
        paths.embedding_gradient_by_path(Transformer(9, 8, 4), TASK)
