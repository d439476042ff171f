"""Every equation of the theory against its derivation, and wrong equations against the check."""

# SymPy's annotations reject much of its own arithmetic.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import ast
import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
import torch

from staircase_lib import gradients, models, signatures, tasks
from staircase_lib.derivations import attention as att
from staircase_lib.derivations import (
    counting,
    feed_forward,
    joint,
    magnitudes,
    notation,
    paths,
    softmax,
)
from staircase_lib.derivations.identities import agree_at, rational_point, value_at, vanishes
from staircase_lib.derivations.notation import LETTERS, coefficient, entry, residual_entry
from staircase_lib.derivations.typesetting import numbered

ROOT = Path(__file__).resolve().parents[1]
BOOK, LIBRARY = ROOT / "book", ROOT / "staircase_lib"
DERIVATIONS = LIBRARY / "derivations"
CELL = re.compile(r"^```\{code-cell\}.*?^```$", re.DOTALL | re.MULTILINE)
F64 = torch.float64
# Sequences with and without repeated tokens; the followed token 0 also stands twice.
ROWS = {
    1: [((0,), 1), ((1,), 0)],
    2: [((0, 1), 2), ((0, 0), 1), ((2, 0), 0)],
    3: [((0, 1, 2), 2), ((0, 0, 1), 1), ((2, 0, 2), 0)],
    4: [((0, 1, 2, 1), 2), ((0, 0, 1, 0), 1)],
}


def total(parts, rows):
    return sum(parts, sp.zeros(rows, 1))


# --- Softmax -------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 2])
def test_the_residual_is_one_hot_minus_softmax(label):
    f = sp.symbols("f_:3", real=True)
    for v, r in enumerate(softmax.residual(3, label)):
        assert vanishes(r - (int(v == label) - softmax.softmax(f)[v]))
        assert not vanishes(r + (int(v == label) - softmax.softmax(f)[v]))  # the other sign


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_the_expansion_is_the_taylor_series(vocab_size):
    f, lam = sp.symbols(f"f_:{vocab_size}", real=True), LETTERS.scale
    kappa = softmax.uniform_cumulants(f, 4)
    put = {LETTERS.V: vocab_size, LETTERS.deviation: f[0] - sp.Add(*f) / vocab_size, **kappa}
    exact = softmax.softmax([lam * each for each in f])[0]
    for n, term in enumerate(softmax.expansion(4)):
        taylor = sp.diff(exact, lam, n).subs(lam, 0) / sp.factorial(n) * lam**n
        assert vanishes(taylor - term.subs(put))
    assert not vanishes(
        taylor - term.subs({**put, softmax.cumulant(2): -kappa[softmax.cumulant(2)]})
    )


def test_the_remainder_is_bounded_and_has_the_claimed_order():
    logits = np.array([1.0, -0.4, 0.3, 0.2])
    kappa = softmax.uniform_cumulants(list(map(Fraction, logits)), 4)
    for order in range(4):
        terms = softmax.expansion(order)
        put = {LETTERS.V: 4, LETTERS.deviation: sp.Rational(logits[0] - logits.mean()), **kappa}
        bound = sp.lambdify(LETTERS.scale, softmax.remainder_bound(order).subs(LETTERS.spread, 1.4))
        series = sp.lambdify(LETTERS.scale, sp.Add(*terms).subs(put))
        scales, left = np.array([0.01, 0.1, 1.0]), []
        for lam in scales:
            e = np.exp(lam * logits)
            left.append(abs(e[0] / e.sum() - series(lam)))
            assert 0 < left[-1] <= bound(lam)
        slope = np.log10(left[1] / left[0])
        assert slope == pytest.approx(order + 1, abs=0.1)
        assert slope != pytest.approx(order, abs=0.1)
    assert [softmax.ordered_bell(n) for n in range(6)] == [1, 1, 3, 13, 75, 541]


# --- Signatures ----------------------------------------------------------------------------------


def same(a, b):
    return set(a) == set(b) and all(sp.expand(a[key] - b[key]) == 0 for key in a)


@pytest.mark.claim("3.1")
@pytest.mark.parametrize(("length", "vocab_size"), [(2, 3), (3, 2)])
def test_summing_out_a_slot_gives_the_order_below(length, vocab_size):
    generic = joint.Joint(length, vocab_size)
    for order in range(1, length):
        high = joint.label_signature(generic, 0, order)
        low = joint.label_signature(generic, 0, order - 1)
        for slot in range(1, order + 1):
            assert same(joint.marginal(high, slot), low)
        assert same(joint.marginal(high, 0), joint.context_signature(generic, 0, order))
        # Every coefficient is positive, and everything adds up to P(alpha).
        assert all(c > 0 for value in high.values() for c in value.as_coefficients_dict().values())
        everything = sp.Add(*high.values()) - joint.token_probability(generic, 0)
        assert sp.expand(everything) == 0
        fall = joint.squared_norm(low) - joint.squared_norm(high)
        assert sp.expand(fall - joint.norm_gap(high)) == 0
        assert sp.expand(fall + joint.norm_gap(high)) != 0


def test_context_in_reading_order_is_not_consistent(monkeypatch):
    """Draws that keep the order of the text have other marginals: the random order matters."""
    generic = joint.Joint(3, 2)
    low = joint.label_signature(generic, 0, 1)
    monkeypatch.setattr(joint, "permutations", lambda items, m: [tuple(items)[:m]])
    assert not same(joint.marginal(joint.label_signature(generic, 0, 2)), low)


def test_symbolic_signatures_are_those_of_the_library():
    generic = joint.Joint(3, 2)
    outcomes = list(generic.outcomes())
    weights = np.arange(1, len(outcomes) + 1, dtype=float)
    tokens, labels = [o[0] for o in outcomes], [o[1] for o in outcomes]
    task = tasks.from_arrays(tokens, labels, weights, 2)
    put = dict(zip([o[2] for o in outcomes], task.weights, strict=True))
    for order in range(3):
        expected = signatures.label_signature(task, order, [0])[0] * task.token_probability([0])
        for key, value in joint.label_signature(generic, 0, order).items():
            assert float(value.subs(put)) == pytest.approx(expected[key], abs=1e-14)


@pytest.mark.claim("3.2")
def test_slot_gap():
    square, squares, pairs = joint.slot_gap(4)
    assert vanishes(square - squares - pairs) and not vanishes(square - squares - pairs / 2)


# --- Theorem 1 -----------------------------------------------------------------------------------


@pytest.mark.claim("4.7")
@pytest.mark.parametrize(
    ("length", "degree"), [(n, k) for n, k in product(range(1, 5), range(1, 6)) if n + k < 9]
)
def test_theorem_1_is_what_differentiation_gives(length, degree):
    model = feed_forward.FeedForward(3, 2, 1, degree)
    data = feed_forward.examples(*ROWS[length])
    derived = feed_forward.derived_orders(model, data, 0)
    stated = feed_forward.theorem_1(model, data, 0)
    for order in range(length):
        assert vanishes(derived[order] - stated[order])
        if order >= degree:  # too few factors for so many tokens
            assert derived[order] == sp.zeros(2, 1)


@pytest.mark.claim("4.7")
@pytest.mark.parametrize(("length", "degree"), [(2, 3), (3, 2)])
def test_theorem_1_at_rational_points_of_the_true_gradient(length, degree):
    """Residuals put in, the sum over orders is the derivative of the loss, to 60 digits."""
    model = feed_forward.FeedForward(3, 2, 2, degree)
    data = feed_forward.examples(*ROWS[length])
    true = feed_forward.descent(model, data, 0)
    residuals = feed_forward.residual_values(model, data)
    stated = total(feed_forward.theorem_1(model, data, 0), 2).xreplace(residuals)
    for seed in range(3):
        point = rational_point(true.free_symbols | stated.free_symbols, seed)
        assert agree_at(true, stated, point)
        assert not agree_at(true, -stated, point)  # sign of the residual
        point_off = {**point, coefficient(2): point[coefficient(2)] + 1}  # one coefficient off
        assert not agree_at(true.xreplace(point), stated.xreplace(point_off), point)


@pytest.mark.claim("X.7")
def test_wrong_theories_of_theorem_1_are_rejected(monkeypatch):
    model = feed_forward.FeedForward(3, 1, 1, 4)
    data = feed_forward.examples(*ROWS[3])
    derived = feed_forward.derived_orders(model, data, 0)
    stated = feed_forward.theorem_1(model, data, 0)
    assert not vanishes(derived[1] - stated[2]) and not vanishes(derived[2] - stated[1])
    c = coefficient(2)
    assert not vanishes(derived[1] - stated[1].subs(c, c + 1))
    flipped = {residual_entry(0, v): -residual_entry(0, v) for v in range(3)}
    assert not vanishes(derived[0] - stated[0].subs(flipped))
    # One binomial off: L instead of L - 1 positions to choose from.
    binomial = sp.binomial
    monkeypatch.setattr(feed_forward.sp, "binomial", lambda n, m: binomial(n + 1, m))
    assert not vanishes(derived[1] - feed_forward.theorem_1(model, data, 0)[1])


def test_a_model_that_knows_positions_is_outside_theorem_1():
    data = feed_forward.examples(*ROWS[2])
    omega = sp.symbols("omega_1:3", positive=True)
    model = feed_forward.FeedForward(3, 1, 1, 3, omega)
    derived = feed_forward.derived_orders(model, data, 0)
    stated = feed_forward.theorem_1(model, data, 0)
    for order in range(2):
        assert not vanishes(derived[order] - stated[order])
        equal = derived[order].subs(dict.fromkeys(omega, 1))
        assert vanishes(equal - stated[order])


def test_steps_of_theorem_1():
    z = [entry("z", i) for i in range(4)]
    for power, order in product(range(1, 5), range(4)):
        step = feed_forward.multinomial_step(power, z[: order + 1])
        assert vanishes(step.lhs - step.rhs)
        if power > 1 and 0 < order <= power:
            # Slots that may stay empty are another theory.
            everything = sp.Add(*z[: order + 1]) ** power
            assert not vanishes(step.lhs - everything)
    for length, order in [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)]:
        step = feed_forward.symmetrization_step(length, order, 4)
        assert vanishes(step.lhs - step.rhs)
        assert not vanishes(step.lhs - 2 * step.rhs)


def test_theorem_1_in_numbers_is_gradient_by_order():
    coefficients = (1.0, 0.7, -0.3)
    task = tasks.from_arrays(*zip(*ROWS[3], strict=True), weights=[1, 2, 5], vocab_size=3)
    net = models.EmbeddingFFN(3, 2, 2, coefficients, F64)
    models.initialize_(net, 0.3, torch.Generator().manual_seed(4))
    model = feed_forward.FeedForward(3, 2, 2, 3)
    data = feed_forward.examples(*ROWS[3])
    point = {coefficient(k): c for k, c in enumerate(coefficients, 1)}
    point |= {s.weight: w for s, w in zip(data, task.weights, strict=True)}
    for matrix, parameter in ((model.E, net.W_E), (model.W, net.W_in), (model.U, net.W_U)):
        point |= dict(zip(matrix, parameter.detach().flatten().tolist(), strict=True))
    r = -torch.softmax(net(torch.tensor(task.tokens)).detach(), -1)
    r[torch.arange(3), torch.tensor(task.labels)] += 1
    point |= {residual_entry(s, v): float(r[s, v]) for s in range(3) for v in range(3)}
    expected = gradients.gradient_by_order(net, task)[:, 0]
    for order, part in enumerate(feed_forward.theorem_1(model, data, 0)):
        numbers = [float(x) for x in part.subs(point)]
        assert numbers == pytest.approx(expected[order].tolist(), rel=1e-11)


# --- Propositions 1 and 2 ------------------------------------------------------------------------


@pytest.mark.claim("4.8")
@pytest.mark.parametrize(
    ("powers", "d", "h"),
    [([], 2, 2), ([1], 3, 2), ([1, 1], 2, 1), ([2], 2, 2), ([2, 1], 2, 1), ([1, 1, 1], 2, 1)],
)
def test_variance_at_initialization_by_brute_force(powers, d, h):
    term = magnitudes.term_entry(d, h, powers, labels=2)
    deviation = {
        x: {"W": LETTERS.d, "E": LETTERS.d, "U": LETTERS.h}[x.name[0]] ** -LETTERS.gamma
        for x in term.free_symbols
        if x.name[0] != "R"
    }
    norm = {LETTERS.signal: sp.sqrt(entry("R", 0) ** 2 + entry("R", 1) ** 2)}
    exact = magnitudes.gaussian_mean(term**2, deviation)
    stated = magnitudes.term_variance(powers).subs(norm)
    widths = {LETTERS.d: d, LETTERS.h: h}
    assert magnitudes.gaussian_mean(term, deviation) == 0
    assert vanishes((exact - stated).subs(widths))
    # Independent factors, d^n for the chi-squared moment, would be wrong at finite width.
    if powers:
        naive = (
            stated / sp.Mul(*((d + 2 * i) for i in range(1, sum(powers) + 1))) * d ** sum(powers)
        )
        assert not vanishes((exact - naive).subs(widths))


@pytest.mark.claim("4.8")
@pytest.mark.parametrize("order", [1, 2, 3])
def test_ratio_of_orders_at_initialization_as_a_power_of_d(order):
    power = magnitudes.power_of_d(magnitudes.order_ratio(order))
    assert vanishes(power - order * (sp.Rational(1, 2) - 2 * LETTERS.gamma))
    assert not vanishes(power + order * LETTERS.gamma)  # a bare d^(-gamma) per order is too large


@pytest.mark.claim("4.9")
def test_number_of_terms_and_the_crossing():
    for degree, order in product(range(1, 7), range(5)):
        count = counting.factor_maps(degree, order)
        assert count == counting.by_enumeration(degree, order)
        ones = feed_forward.order_slope(degree, [sp.S.One] * (order + 1))
        assert ones.coeff(coefficient(degree)) == degree * count  # k from the derivative
    for length, degree in product(range(2, 6), range(1, 8)):
        counts = [counting.prefactor(length, degree, m) for m in range(length)]
        assert sum(counts) == length ** (degree - 1)
        for m in range(1, min(length, degree)):
            assert sp.Rational(counts[m], counts[m - 1]) == counting.ratio(length, degree, m)
    # Leaving out the inclusion-exclusion counts maps that miss a slot.
    assert counting.factor_maps(4, 2) != 3**3
    for length in range(2, 7):
        first = counting.highest_order_wins_from(length)
        for degree in range(1, first + 8):
            counts = [counting.prefactor(length, degree, m) for m in range(length)]
            assert (counts[-1] > max(counts[:-1])) == (degree >= first)
    with pytest.raises(ValueError, match="at least 2"):
        counting.highest_order_wins_from(1)


# --- Theorem 3 -----------------------------------------------------------------------------------

ATTENTION_ROWS = {2: [((0, 1), 1), ((0, 0), 0), ((1, 0), 1)], 3: [((0, 1, 0), 1), ((1, 0, 0), 0)]}


@pytest.mark.claim("5.1")
@pytest.mark.parametrize("length", [2, 3])
def test_theorem_3_is_what_differentiation_gives(length):
    model = att.Attention(2, 1, length)
    data = feed_forward.examples(*ATTENTION_ROWS[length])
    derived, stated = att.derived_parts(model, data, 0), att.theorem_3(model, data, 0)
    for role in att.ROLES:
        assert vanishes(derived[role] - stated[role])
    point = rational_point(derived["key"].free_symbols | stated["query"].free_symbols, 3)
    assert not agree_at(derived["key"], stated["query"], point)


@pytest.mark.claim("5.1")
@pytest.mark.parametrize(("length", "d"), [(2, 2), (3, 1)])
def test_theorem_3_at_rational_points(length, d):
    model = att.Attention(2, d, length)
    data = feed_forward.examples(*ATTENTION_ROWS[length][:2])
    derived, stated = att.derived_parts(model, data, 0), att.theorem_3(model, data, 0)
    true = att.descent(model, data, 0)
    summed = total(stated.values(), d)
    point = rational_point(true.free_symbols | summed.free_symbols, 7)
    for role in att.ROLES:
        assert agree_at(derived[role], stated[role], point)
    assert agree_at(true, summed, point)
    assert not agree_at(true, summed - 2 * stated["query"], point)  # one sign wrong
    assert not agree_at(true, stated["value"], point)  # attention taken as a constant
    by_position = [att.value_signature(model, data, 0, i) for i in range(length)]
    value = model.V * model.U * total(by_position, 2)
    assert agree_at(value, stated["value"], point)
    assert not agree_at(model.V * model.U * by_position[0], stated["value"], point)


def test_theorem_3_in_numbers_is_automatic_differentiation():
    rows = ATTENTION_ROWS[2]
    net = models.AttentionOnly(2, 2, 2, F64)
    models.initialize_(net, 0.2, torch.Generator().manual_seed(1))
    weights = [0.25, 0.5, 0.25]
    model, data = att.Attention(2, 2, 2), feed_forward.examples(*rows)
    logits = net(torch.tensor([tokens for tokens, _ in rows]))
    labels = torch.tensor([label for _, label in rows])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    (gradient,) = torch.autograd.grad(losses @ torch.tensor(weights, dtype=F64), net.W_E)
    point = dict(zip((s.weight for s in data), weights, strict=True))
    tables = ((model.E, net.W_E), (model.P, net.W_P), (model.Q, net.W_Q), (model.K, net.W_K))
    for matrix, parameter in (*tables, (model.V, net.W_V), (model.U, net.W_U)):
        point |= dict(zip(matrix, parameter.detach().flatten().tolist(), strict=True))
    stated = total(att.theorem_3(model, data, 0).values(), 2)
    stated = stated.xreplace(att.residual_values(model, data))
    assert [float(value_at(x, point)) for x in stated] == pytest.approx(
        (-gradient[0]).tolist(), rel=1e-11
    )


# --- Paths ---------------------------------------------------------------------------------------


def test_the_chain_rule_at_the_stream():
    gradient, parts = paths.scalar_chain()
    assert vanishes(gradient - sp.Add(*parts.values()))
    assert not vanishes(gradient - parts["direct"] - parts["attention"])


@pytest.mark.claim("6.1")
@pytest.mark.parametrize("tokens", [(0, 1), (1, 0), (0, 0)])
def test_paths_of_a_block_sum_to_its_gradient(tokens):
    block = paths.Block(2, 1, 1, 2)
    parts, derived = paths.path_parts(block, tokens, 0), paths.derived_parts(block, tokens, 0)
    true = paths.descent(block, tokens, 0)
    point = rational_point(true.free_symbols | derived["direct"].free_symbols, 2)
    for path in paths.PATHS:
        assert agree_at(parts[path], derived[path], point)
    assert agree_at(true, total(parts.values(), 1), point)
    # The FFN reads what attention wrote; a path that forgets this is no path of this block.
    short = parts["direct"] + parts["attention"]
    assert not agree_at(true, short, point)


def test_paths_in_numbers_are_automatic_differentiation():
    block, tokens, d = paths.Block(2, 2, 1, 2), (1, 0), 2
    parts = paths.path_parts(block, tokens, 0)
    true_symbols = set().union(*(part.free_symbols for part in parts.values()))
    point = rational_point(true_symbols, 5)
    number = {symbol.name: float(value) for symbol, value in point.items()}

    def tensor(letter, rows, columns):
        names = [[entry(letter, a, b).name for b in range(columns)] for a in range(rows)]
        return torch.tensor([[number[n] for n in row] for row in names], dtype=F64)

    def norm(x):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + number["epsilon"])

    table = tensor("E", 2, d).requires_grad_()
    Q, K, V = (tensor(letter, d, d) for letter in "QKV")
    W, Z, U = tensor("W", d, 1), tensor("Z", 1, d), tensor("U", d, 2)
    states = norm(table[list(tokens)])
    scores = (states @ K) @ (states[-1] @ Q) / d**0.5
    attended = torch.softmax(scores, -1) @ states @ V
    middle = table[tokens[-1]] + attended
    z = norm(middle) @ W
    stream = middle + (number["c_1"] * z + number["c_2"] * z**2) @ Z
    residual = torch.tensor([number["r_{0}"], number["r_{1}"]], dtype=F64)
    back = norm(stream) @ U @ residual
    (gradient,) = torch.autograd.grad(back, table)
    summed = [float(value_at(x, point)) for x in total(parts.values(), d)]
    assert summed == pytest.approx(gradient[0].tolist(), rel=1e-11)


# --- Presentation and checks ---------------------------------------------------------------------


def test_checks_can_fail_and_say_what_is_missing():
    x, y = sp.symbols("x y", real=True)
    assert vanishes((x + y) ** 2 - x**2 - 2 * x * y - y**2)
    assert not vanishes((x + y) ** 2 - x**2 - y**2)
    assert vanishes(sp.exp(x + y) - sp.exp(x) * sp.exp(y))
    point = rational_point([x, y], 0)
    assert point == rational_point([y, x], 0) != rational_point([x, y], 1)
    assert agree_at(sp.sin(x + y), sp.sin(x) * sp.cos(y) + sp.cos(x) * sp.sin(y), point)
    assert not agree_at(sp.exp(x), sp.exp(x) + sp.Rational(1, 10**55), point)
    with pytest.raises(ValueError, match=r"none for \['y'\]"):
        agree_at(x, y, {x: sp.S.One})


def test_displays_are_numbered_and_broken():
    x = sp.symbols("x_0:30")
    shown = numbered("eq-sum", "y", sp.Add(*x))._repr_markdown_()
    assert shown.startswith("$$\n") and shown.endswith("$$ (eq-sum)")
    assert "\n\n" not in shown  # a blank line would end the display
    assert shown.count(r"\\") == 1
    kept = numbered("eq-kept", "y", ["b", " + a"], "c").latex
    assert kept.index("b") < kept.index("a") and kept.count("&=") == 2
    with pytest.raises(ValueError, match="at least one right side"):
        numbered("eq-none", "y")


def letters_used(path):
    """Calls of SymPy in a file that make a symbol or an open function, as ``line: call``."""
    makers = {"Symbol", "symbols", "Function", "IndexedBase", "MatrixSymbol", "Wild"}
    return [
        f"{path.name}, line {node.lineno}: sp.{node.func.attr}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in makers
    ]


def test_symbols_are_made_in_one_place_which_explains_each(tmp_path):
    modules = sorted(DERIVATIONS.glob("*.py"))
    assert len(modules) > 8
    others = [module for module in modules if module.name != "notation.py"]
    assert [use for module in others for use in letters_used(module)] == []
    pages = [page.read_text(encoding="utf-8") for page in BOOK.glob("*.md")]
    proofs = [page for page in pages if "staircase_lib.derivations.notation" in page]
    cells = [cell for page in proofs for cell in CELL.findall(page)]
    assert len(cells) > 30
    assert [cell for cell in cells if re.search(r"sp\.(Symbol|symbols|Function)\(", cell)] == []
    stray = tmp_path / "stray.py"
    stray.write_text('import sympy as sp\nx = sp.symbols("x y")\n')
    assert letters_used(stray) == ["stray.py, line 2: sp.symbols"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: notation.symbol("q"),
        lambda: entry("q", 0),
        lambda: entry("c", 0, 1),  # c is explained, but as a list of numbers
        lambda: notation.indexed("q", range(2)),
        lambda: notation.unknown("B"),
    ],
)
def test_a_letter_without_a_meaning_is_refused(make):
    with pytest.raises(ValueError, match="expected one of notation.toml, which says what each"):
        make()


def test_letters_are_explained_in_full_and_once():
    whole = {"key": "q", "group": "data", "latex": "q", "name": "queue", "meaning": "a line"}
    whole |= {"shape": "$n$", "first": "{eq}`eq-ffn`"}
    assert notation.read_signs([whole])["q"].name == "queue"
    for part in whole:
        with pytest.raises(ValueError, match=f"its {part} is missing"):
            notation.read_signs([{**whole, part: " "}])
    with pytest.raises(ValueError, match="'colour' is none of"):
        notation.read_signs([{**whole, "colour": "red"}])
    with pytest.raises(ValueError, match="expected a group of .* got 'music'"):
        notation.read_signs([{**whole, "group": "music"}])
    with pytest.raises(ValueError, match="letter 'q' in notation.toml: explained twice"):
        notation.read_signs([whole, whole])


def test_the_page_of_notation_shows_every_letter():
    page = "\n".join(map(notation.table, notation.GROUPS))
    rows = [line for line in page.splitlines() if line.startswith("| $")]
    assert len(rows) == len(notation.SIGNS) > 60
    assert all(row.count(" | ") == 4 for row in rows)  # no bar inside a cell
    for sign in notation.SIGNS.values():
        assert sum(f"| ${sign.latex}$ |" in row and sign.meaning in row for row in rows) == 1
    shown = (BOOK / "notation.md").read_text(encoding="utf-8")
    assert [group for group in notation.GROUPS if f'notation.table("{group}")' not in shown] == []
    with pytest.raises(KeyError, match="expected one of"):
        notation.table("music")


def test_names_in_code_are_names_of_the_library():
    text = "\n".join(path.read_text(encoding="utf-8") for path in LIBRARY.rglob("*.py"))
    words = set(re.findall(r"\w+", text))
    assert {sign.code for sign in notation.SIGNS.values() if sign.code} <= words


def test_bad_input():
    with pytest.raises(ValueError, match="expected 0 to 1, got 2"):
        joint.label_signature(joint.Joint(2, 2), 0, 2)
