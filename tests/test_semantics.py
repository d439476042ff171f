"""Statistics of meaning on made-up geometries: the right one is accepted, wrong ones are not."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import rankdata

from staircase_lib.alignment import cosine_similarity
from staircase_lib.language import semantics


def on_circle(n, noise=0.0, seed=0):
    angle = 2 * np.pi * np.arange(n) / n
    rows = np.stack([np.cos(angle), np.sin(angle), np.full(n, 0.5)], axis=1)
    return rows + noise * np.random.default_rng(seed).standard_normal(rows.shape)


def on_arc(n):
    angle = np.linspace(0, 2, n)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def rank_correlation(order):
    return abs(np.corrcoef(rankdata(order), np.arange(len(order)))[0, 1])


@pytest.mark.claim("7.5")
def test_path():
    rows = on_arc(9) * np.random.default_rng(0).uniform(0.1, 50, (9, 1))  # lengths do not matter
    assert semantics.path_correlation(rows) == pytest.approx(1)
    assert semantics.path_correlation(rows[::-1]) == pytest.approx(1)
    order = np.random.default_rng(1).permutation(9)
    found = semantics.path_correlation(rows[order])
    assert found == pytest.approx(rank_correlation(order))
    assert found < 0.7
    assert np.isnan(semantics.path_correlation(np.ones((5, 3)) * [[1], [2], [3], [4], [5]]))
    with pytest.raises(ValueError, match="three"):
        semantics.path_correlation(on_arc(2))


def test_chance_of_a_path_is_that_of_random_orders():
    n = 7
    exact = [
        rank_correlation(p)
        for p in permutations(range(n))
        if p[0] < p[-1]  # mirrored ones have the same value
    ]
    bound = semantics.chance_correlation(n)
    assert np.mean(np.array(exact) > bound + 1e-9) <= 0.05
    assert np.mean(np.array(exact) >= bound - 1e-9) > 0.04


@pytest.mark.claim("7.5")
def test_circle_is_told_from_line_and_from_disorder():
    circle, line = cosine_similarity(on_circle(12)), cosine_similarity(on_arc(12))
    assert semantics.layout_correlation(circle, "circle") > 0.95
    assert semantics.closing(circle) > 0.4
    assert semantics.layout_correlation(line, "line") > 0.95
    assert semantics.closing(line) < -0.3  # its ends do not meet
    assert semantics.share_of_orders(circle, "circle") < 0.001
    mixed = np.random.default_rng(3).permutation(12)
    assert semantics.share_of_orders(circle[np.ix_(mixed, mixed)], "circle") > 0.05
    turned = np.roll(np.arange(12), 5)[::-1]  # where a year begins is nobody's business
    assert semantics.layout_correlation(circle[np.ix_(turned, turned)], "circle") == pytest.approx(
        semantics.layout_correlation(circle, "circle")
    )


def test_share_of_orders_is_exact_for_few_words_and_uniform_without_order():
    s = cosine_similarity(on_circle(6, noise=0.8, seed=5))
    own = semantics.layout_correlation(s, "circle")
    every = [
        semantics.layout_correlation(s[np.ix_(p, p)], "circle")
        for p in map(list, permutations(range(6)))
    ]
    exact = np.mean(np.array(every) >= own - 1e-9)
    assert semantics.share_of_orders(s, "circle", draws=6000) == pytest.approx(exact, abs=0.02)
    rng = np.random.default_rng(0)
    shares = [
        semantics.share_of_orders(
            cosine_similarity(rng.standard_normal((8, 5))), "circle", draws=200
        )
        for _ in range(200)
    ]
    assert np.mean(np.array(shares) <= 0.05) < 0.1
    assert 0.4 < np.mean(shares) < 0.6


def test_adjacent_share():
    circle = cosine_similarity(on_circle(7))
    assert semantics.adjacent_share(circle) == 1
    every_other = np.arange(7) * 2 % 7  # Monday, Wednesday, Friday, …: neighbours are two apart
    assert semantics.adjacent_share(circle[np.ix_(every_other, every_other)]) == 0


@pytest.mark.claim("7.5")
def test_categories():
    rng = np.random.default_rng(0)
    names = np.repeat(["month", "colour", "animal"], [6, 5, 4])
    centres = {name: rng.standard_normal(8) for name in set(names)}
    rows = np.stack([centres[name] for name in names]) + 0.2 * rng.standard_normal((15, 8))
    similarity = cosine_similarity(rows)
    assert semantics.neighbour_accuracy(similarity, names) == 1
    wrong = [semantics.neighbour_accuracy(similarity, rng.permutation(names)) for _ in range(300)]
    assert np.mean(wrong) == pytest.approx(semantics.chance_accuracy(names), abs=0.03)
    assert semantics.chance_accuracy(names) == pytest.approx((6 * 5 + 5 * 4 + 4 * 3) / (15 * 14))


def test_errors():
    s = np.eye(5)
    with pytest.raises(ValueError, match="line or circle"):
        semantics.layout_correlation(s, "torus")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="square"):
        semantics.closing(np.eye(3))
    with pytest.raises(ValueError, match="categories"):
        semantics.neighbour_accuracy(s, ["a"] * 4)
    assert np.isnan(semantics.share_of_orders(np.ones((5, 5)), "circle"))
