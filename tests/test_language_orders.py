"""Orders and roles on the paths of a Transformer, against brute force and wrong variants."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

from staircase_lib import models, signatures, tasks
from staircase_lib.language import paths, sources
from staircase_lib.language.transformer import Transformer

F64 = torch.float64
V, L = 4, 3
TASK = sources.markov(sources.random_transitions(V, 2, np.random.default_rng(3), 3), L)
NAMES = ["direct", "value", "key", "query", "ffn"]


def transformer(seed=0, gamma=0.3, **settings):
    settings = {"d": 6, **settings}
    model = Transformer(
        V, length=L, heads=2, hidden=8, dtype=F64, **settings
    )  # ordinary scale: nothing is negligible
    with torch.no_grad():
        models.initialize_(model, gamma, torch.Generator().manual_seed(seed))
        for name, buffer in model.named_buffers():
            source = torch.Generator().manual_seed(len(name))
            buffer.copy_(1 + 0.5 * torch.rand(buffer.shape, generator=source, dtype=F64))
    return model


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("every_position", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"blocks": 2},
        {"runs": 2, "final_norm": False},
        {"d": 8, "positions": "rotary", "ffn": "swiglu", "tied": True},
    ],
)
def test_roles_and_orders_sum_to_the_paths(settings, every_position):
    model = transformer(**settings)
    whole = paths.embedding_gradient_by_path(model, TASK, every_position=every_position)
    roles = paths.embedding_gradient_by_path(
        model, TASK, every_position=every_position, by_role=True, block=7
    )
    orders = paths.embedding_gradient_by_order(model, TASK, every_position=every_position, block=9)
    assert list(orders) == NAMES and list(roles) == NAMES + ["unembedding"] * model.tied
    attention = roles["value"] + roles["key"] + roles["query"]
    assert relative(attention, whole["attention"]) < 1e-12
    for role in ("value", "key", "query"):
        assert relative(attention - roles[role], whole["attention"]) > 1e-3
    for name, part in orders.items():
        assert part.shape == (L, L, *model.W_E.shape)
        assert relative(part.sum((0, 1)), roles[name]) < 1e-12
        if name != "direct":
            assert all(
                relative(part.sum((0, 1)) - each, roles[name]) > 1e-3 for each in part.sum(1)
            )
    assert orders["direct"][:, 1:].abs().max() == 0  # nothing lies between a token and itself


def written_out(model, task, role):
    """Hoeffding parts of one path's operators, all written out, contracted with the residuals."""
    length = task.length
    found = torch.zeros(length, length, *model.W_E.shape, dtype=F64)
    targets = np.column_stack([task.tokens[:, 1:], task.labels])
    (block,) = model.blocks
    for t in range(1, length + 1):
        marginals = [
            np.bincount(task.tokens[:, p], weights=task.weights, minlength=V) for p in range(t)
        ]
        residual, operator = {}, {}
        for x in product(range(V), repeat=t):
            e = model.embed(torch.tensor([x])).detach().requires_grad_()
            attention = block.attend(e)
            split = {name: block.attend(e, only=name) for name in ("value", "key", "query")}
            u = e + attention
            split["ffn"] = block.feed(u)
            read = (u + split["ffn"]).detach().requires_grad_()
            logits = model.unembed(read)[0, -1]
            here = (task.tokens[:, :t] == x).all(1)
            p = np.bincount(targets[here, t - 1], weights=task.weights[here], minlength=V)
            p = torch.tensor(p) / length
            residual[x] = p - p.sum() * torch.softmax(logits.detach(), 0)
            columns = []
            for v in range(V):
                (pull,) = torch.autograd.grad(logits[v], read, retain_graph=True)
                (back,) = torch.autograd.grad(split[role], e, pull, retain_graph=True)
                columns.append(back[0])
            operator[x] = torch.stack(columns, -1)  # (t, d, V)

        def mean(x, fixed, t=t, marginals=marginals, operator=operator):
            total = 0.0
            for z in product(range(V), repeat=t):
                if all(z[p] == x[p] for p in fixed):
                    weight = np.prod([marginals[p][z[p]] for p in range(t) if p not in fixed])
                    total = total + weight * operator[z]
            return total

        for i in range(t):
            others = [p for p in range(t) if p != i]
            for x in residual:
                means = {S: mean(x, (i, *S)) for k in range(t) for S in combinations(others, k)}
                for m in range(t):
                    for Q in combinations(others, m):
                        part = sum(
                            (-1) ** (m - k) * means[S]
                            for k in range(m + 1)
                            for S in combinations(Q, k)
                        )
                        found[m, t - 1 - i, x[i]] += part[i] @ residual[x]
    return found


@pytest.mark.parametrize("role", ["value", "key", "query", "ffn"])
def test_orders_are_the_hoeffding_parts_of_the_operators(role):
    small = tasks.from_arrays(TASK.tokens[:, :2], TASK.labels, TASK.weights, V)
    model = transformer(d=4)
    expected = written_out(model, small, role)
    found = paths.embedding_gradient_by_order(model, small)[role]
    assert relative(found, expected) < 1e-12
    assert relative(found.flip(0), expected) > 1e-2


@pytest.mark.claim("6.3")
def test_a_path_that_needs_no_context_is_order_zero():
    """Without attention the FFN reads one token; with uniform, linear reading values need one."""
    model = transformer()
    (block,) = model.blocks
    with torch.no_grad():
        block.W_O.zero_()
    orders = paths.embedding_gradient_by_order(model, TASK)
    for name in ("direct", "ffn"):
        assert orders[name][0, 0].norm() > 1e-3
        assert orders[name][1:].abs().max() < 1e-15
        assert orders[name][:, 1:].abs().max() < 1e-15

    linear = transformer(final_norm=False)
    with torch.no_grad():
        linear.blocks[0].W_Q.zero_()  # type: ignore
        linear.blocks[0].W_out.zero_()  # type: ignore
    value = paths.embedding_gradient_by_order(linear, TASK)["value"]
    assert value[0].norm() > 1e-3 and value[1:].abs().max() < 1e-15
    blind = paths.embedding_gradient_by_order(linear, TASK, position_blind=True)["value"]
    # The norm before attention still tells positions apart; without positions nothing does.
    assert relative(blind[0].sum(0), value[0].sum(0)) > 1e-3
    with torch.no_grad():
        linear.W_P.zero_()
    value = paths.embedding_gradient_by_order(linear, TASK)["value"]
    blind = paths.embedding_gradient_by_order(linear, TASK, position_blind=True)["value"]
    assert blind.shape == (1, L, *linear.W_E.shape)
    assert relative(blind[0].sum(0), value[0].sum(0)) < 1e-12


@pytest.mark.claim("6.4")
@pytest.mark.parametrize("epsilon", [1.0, 1e-20])
def test_small_logits_leave_signatures_on_every_path(epsilon):
    """Claims 6.3 and 6.4: errors in proportion to the logits; wrong theories do not improve."""
    mass, signature = paths.next_token_signature(TASK)
    heard, by_attention = paths.attention_weighted_signature(TASK)
    at_home = heard * np.eye(L)
    sizes, errors = [], {name: [] for name in ("ffn", "attention", "wrong", "wrong 2", "home")}
    for scale in 10 ** np.linspace(-3.5, -2, 4):
        model = transformer(epsilon=epsilon)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(float(scale))
            sizes.append(float(model.logits(torch.tensor(TASK.tokens)).norm()))
        orders = paths.embedding_gradient_by_order(model, TASK)
        ffn = orders["ffn"].sum((0, 1))
        attention = (orders["value"] + orders["key"] + orders["query"])[0].sum(0)
        by_ffn, by_reading = paths.ffn_path_from_signature, paths.attention_path_from_signature
        other, others = np.roll(signature, 1, axis=0), np.roll(by_attention, 1, axis=0)
        for name, stated, truth in (
            ("ffn", by_ffn(model, mass, signature), ffn),
            ("wrong", by_ffn(model, mass, other), ffn),
            ("attention", by_reading(model, heard, by_attention), attention),
            ("wrong 2", by_reading(model, heard, others), attention),
            ("home", by_reading(model, at_home, by_attention), attention),
        ):
            errors[name].append(relative(stated, truth))
    power = {n: np.polyfit(np.log(sizes), np.log(e), 1)[0] for n, e in errors.items()}
    assert power["ffn"] == pytest.approx(1, abs=0.1)
    assert power["attention"] == pytest.approx(1, abs=0.1)
    for name in ("wrong", "wrong 2", "home"):
        assert abs(power[name]) < 0.2


def test_attention_weighted_signature_agrees_with_that_of_the_last_position():
    generator = np.random.default_rng(0)
    a = np.tril(generator.random((len(TASK.labels), L, L)))
    a /= a.sum(-1, keepdims=True)
    mass, signature = paths.attention_weighted_signature(TASK, a, every_position=False)
    expected = signatures.attention_signature(TASK, a[:, -1], np.arange(V))
    np.testing.assert_allclose(mass[:, :, -1], expected[0], atol=1e-15)
    np.testing.assert_allclose(signature[:, :, -1], expected[1], atol=1e-12)
    assert mass[:, :, :-1].max() == 0
    mass, signature = paths.attention_weighted_signature(TASK)
    assert mass.sum() == pytest.approx(1)
    here = np.arange(L)
    plain = paths.next_token_signature(TASK)[1]
    np.testing.assert_allclose(signature[:, here, here], plain, atol=1e-12)


def test_attention_rows_and_roles():
    model = transformer()
    (block,) = model.blocks
    e = model.embed(torch.tensor(TASK.tokens))
    a = block.attention(e)
    assert a.shape == (len(TASK.labels), 2, L, L)
    torch.testing.assert_close(a.sum(-1), torch.ones_like(a.sum(-1)))
    assert a.triu(1).abs().max() == 0
    torch.testing.assert_close(block.attend(e, last=True), block.attend(e)[..., -1:, :])
    torch.testing.assert_close(block.attend(e, only="key"), block.attend(e))


def test_bad_input():
    with pytest.raises(ValueError, match="vocabulary of 4, got 9"):
        paths.embedding_gradient_by_order(Transformer(9, 8, 4), TASK)
    with pytest.raises(ValueError, match="expected one of .*'head'"):
        transformer().blocks[0].attend(torch.zeros(1, 2, 6, dtype=F64), only="head")  # type: ignore
    with pytest.raises(ValueError, match="of shape"):
        paths.attention_weighted_signature(TASK, np.ones((2, 2)))
