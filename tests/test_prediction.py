"""What signatures say of a task before training: bounds, orders, directions, settings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from staircase_lib import tasks
from staircase_lib.prediction import Settings, predict

QUICK = Settings(seeds=(0, 1), d=16, steps=12, snapshots=3)
larger = tasks.from_function(max, [range(6)] * 2, name="larger of two")


def test_prediction_knows_what_a_model_without_positions_can_reach() -> None:
    p = predict(tasks.from_arrays([[0, 1], [1, 0], [2, 2]], [0, 1, 2], [1, 2, 1]), QUICK)
    assert p.ceiling == pytest.approx(0.75)
    third, rest = 1 / 3, 2 / 3
    binary = -(third * math.log2(third) + rest * math.log2(rest))
    assert p.floor == pytest.approx(0.75 * binary) and p.entropy == pytest.approx(1.5)


def test_first_order_is_where_anchors_first_differ() -> None:
    assert predict(larger, QUICK).first_order == 0
    clock = predict(tasks.modular_addition(6, None), QUICK)
    assert clock.first_order == 1 and clock.stair is None and math.isnan(clock.time)
    parity = tasks.from_function(lambda *x: sum(x) % 2, [range(2)] * 3)
    assert predict(parity, Settings(orders=1)).first_order is None


def test_correlation_knows_its_own_prediction_and_no_other() -> None:
    p = predict(tasks.from_function(lambda a, b: 8 + (a + b >= 8), [range(8)] * 2), QUICK)
    assert p.stair is not None
    own = np.outer(p.stair.tokens[:, 0], np.ones(3))
    assert p.correlation(own) == pytest.approx(1)
    assert p.correlation(-own) == pytest.approx(1)
    alternating = np.outer([(-1.0) ** k for k in range(10)], np.ones(3))
    assert p.correlation(alternating) < 0.5
    assert math.isnan(p.correlation(np.zeros((10, 3))))


@pytest.mark.parametrize(("changes", "message"), [
    ({"seeds": ()}, "seeds: expected distinct"),
    ({"seeds": (1, 1)}, "seeds: expected distinct"),
    ({"d": 0}, "d: expected a positive"),
    ({"steps": 1.5}, "steps: expected a positive"),
    ({"gamma": math.nan}, "gamma: expected a finite"),
    ({"lr": -1.0}, "lr: expected a finite"),
    ({"orders": -1}, "orders: expected a whole"),
])  # fmt: skip
def test_wrong_settings_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**changes)
