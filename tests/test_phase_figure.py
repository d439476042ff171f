"""The phase diagram: what it sends, how it writes numbers, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from chart_gallery import phases

from staircase_lib import figures
from staircase_lib.chart_renderer import chart_html
from staircase_lib.figures import phase

TIMES = np.geomspace(1, 100, 5)
POINT = {"gamma": 0.5, "width": 16, "length": 2}


def drawn(**change: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "table": pd.DataFrame([POINT | {"quantity": "wait", "value": 3.0}]),
        "loss": pd.DataFrame([POINT | {"seed": 0, "value": np.ones(5)}]),
        "shares": pd.DataFrame([POINT | {"order": 0, "value": np.ones(5)}]),
        "loss_times": TIMES, "share_times": TIMES, "start": (0.5, 16, 2), "loss_title": "loss",
        "levels": {},
    } | change  # fmt: skip
    return figures.phase_diagram(**arguments).to_dict()


def rows_of(spec: dict[str, Any], column: str) -> list[dict[str, Any]]:
    own = [row for row in spec.get("data", {}).get("values", []) if column in row]
    parts = [*spec.get("layer", []), *spec.get("concat", [])]
    return own + [row for part in parts for row in rows_of(part, column)]


@pytest.mark.parametrize(
    ("value", "censored", "text"),
    [
        (0.9876, False, "0.988"), (3.14, False, "3.1"), (9.96, False, "10"), (994.0, False, "994"),
        (996.0, False, "1.0k"), (12_345.0, True, ">12k"), (np.nan, True, "–"),
    ],
)  # fmt: skip
def test_numbers_fit_their_cells(value: float, censored: bool, text: str) -> None:
    assert phase.number_text(value, censored) == text and len(text) <= 5


def test_every_point_has_its_seeds_and_orders_and_they_survive_the_transport() -> None:
    spec = phases().to_dict()
    loss, shares = rows_of(spec, "seed"), rows_of(spec, "order")
    assert len(loss) == 4 * 3 * 2 * 3 and len(shares) == 4 * 3 * (2 + 3)
    first = next(r for r in loss if (r["gamma"], r["width"], r["length"]) == (0.9, 32, 2))
    stair = 10 * 32**0.4 / 2
    times = next(p["value"] for p in spec["params"] if p["name"] == "loss_times")
    expected = 1 / (1 + np.array(times[:20]) / stair)
    assert np.abs(np.array(first["v"]) / 1000 - expected).max() < 1e-3
    assert [len(r["v"]) for r in loss[:3]] == [20, 21, 22]  # runs that ended earlier are shorter
    assert {r["order"] for r in shares} == {"order 0", "order 1", "order 2"}


def test_shades_share_a_scale_over_lengths_and_are_logarithmic_over_wide_ranges() -> None:
    wide = phase._shades(np.array([1.0, 10.0, 100.0, np.nan]))
    assert wide[:3] == pytest.approx([0, 0.5, 1]) and wide[3] == 0
    assert phase._shades(np.array([1.0, 1.5, 2.0])) == pytest.approx([0, 0.5, 1])
    cells = [r for r in rows_of(phases().to_dict(), "shade") if r["quantity"] == "wait"]
    shades = {(r["gamma"], r["width"], r["length"]): r["shade"] for r in cells}
    assert shades[1.1, 64, 2] == 1 and shades[0.5, 16, 3] == 0
    assert 0 < shades[1.1, 64, 3] < 1


def test_choices_are_controls_that_start_at_the_given_point() -> None:
    params = {p["name"]: p for p in phases().to_dict()["params"]}
    assert params["point"]["value"] == [{"gamma": 0.9, "width": 32}]
    assert params["point"]["bind"]["gamma"]["input"] == "range"
    assert params["length"]["value"] == 2 and params["quantity"]["bind"]["input"] == "select"
    uneven = [POINT | {"gamma": g, "quantity": "wait", "value": 1.0} for g in (0.5, 0.6, 0.9)]
    loss = [POINT | {"gamma": g, "seed": 0, "value": np.ones(5)} for g in (0.5, 0.6, 0.9)]
    spec = drawn(table=pd.DataFrame(uneven), loss=pd.DataFrame(loss))
    bind = next(p for p in spec["params"] if p["name"] == "point")["bind"]
    assert bind["gamma"]["options"] == [0.5, 0.6, 0.9]  # a slider would miss them


def test_the_page_keeps_room_for_every_control() -> None:
    assert 'class="sc-controls" style="min-height:176px"' in chart_html(drawn(), "", 100)[0]
    plain = figures.similarity_heatmap([0], np.eye(3)).to_dict()
    assert 'class="sc-controls" style="min-height:0px"' in chart_html(plain, "", 100)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": pd.DataFrame([POINT])}, "quantity"),
        ({"table": pd.DataFrame([POINT | {"quantity": "w", "value": 1.0}] * 2)}, "one row for"),
        ({"loss": pd.DataFrame([POINT | {"width": 8, "seed": 0, "value": [1.0]}])}, "its runs"),
        ({"shares": pd.DataFrame([POINT | {"order": 0, "value": np.ones(6)}])}, "their 5 times"),
        ({"start": (0.6, 16, 2)}, "a start among them"),
        ({"first": "speed"}, "first: expected one of"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawn(**change)
