"""Small multiples: what the pictures carry, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import vl_convert

from staircase_lib import figures
from staircase_lib.figures import style

figures.enable()


def onsets() -> pd.DataFrame:
    """Two sizes; the even moduli are slow, and one of them is given up by most seeds."""
    rows = []
    for size in (6, 8):
        for modulus in range(2, size + 1):
            for seed in range(3):
                epochs = 4000 + seed if modulus % 2 == 0 else 300 + seed
                late = modulus == 4 and seed > 0
                rows.append((size, modulus, seed, 6000 if late else epochs, late, 1 / modulus))
    return pd.DataFrame(rows, columns=["N", "M", "seed", "epochs", "censored", "drive"])


def circles(frequencies: list[int], n: int = 7) -> np.ndarray:
    angle = 2 * np.pi * np.arange(n) * np.array(frequencies)[:, None] / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def width_of(chart: Any) -> float:
    svg = vl_convert.vegalite_to_svg(chart.to_dict(), vl_version="5.20")
    return float(svg.split('width="')[1].split('"')[0])


def values(chart: Any, panel: int, layer: int) -> list[dict[str, Any]]:
    return chart.to_dict()["concat"][panel]["layer"][layer]["data"]["values"]


def test_onset_panels_hold_every_run_and_the_medians() -> None:
    table = onsets()
    chart = figures.onset_panels(table, x="M", y="epochs", panel="N", panel_title="N = ")
    assert width_of(chart) <= style.TEXT_WIDTH
    spec = chart.to_dict()
    assert [panel["title"] for panel in spec["concat"]] == ["N = 6", "N = 8"]
    assert len(values(chart, 0, 0)) == 5 * 3 and len(values(chart, 1, 0)) == 7 * 3
    medians = {row["x"]: row for row in values(chart, 1, 2)}
    assert medians[3]["y"] == 301 and not medians[3]["bound"]
    assert medians[4]["y"] == 6000 and medians[4]["bound"]  # two of three runs were given up
    assert "latest at" in spec["description"]


def test_settings_of_the_same_value_keep_their_own_medians() -> None:
    table = onsets().assign(drive=lambda t: np.where(t.M % 2, 0.1, 0.0), M=lambda t: t.M)
    merged = figures.onset_panels(table, x="drive", y="epochs", panel="N")
    apart = figures.onset_panels(table, x="drive", y="epochs", panel="N", label="M")
    assert len(values(merged, 0, 2)) == 2
    assert {row["label"] for row in values(apart, 0, 2)} == {"2", "3", "4", "5", "6"}


def test_onset_panels_name_a_missing_column() -> None:
    with pytest.raises(ValueError, match="missing"):
        figures.onset_panels(onsets().drop(columns="seed"), x="M", y="epochs", panel="N")


def test_paired_clouds_put_each_pair_in_its_own_cells() -> None:
    upper, lower = circles([1, 2, 3, 1, 2, 3, 1]), 5 * circles([1, 2, 3, 1, 2, 3, 1])
    chart = figures.paired_clouds(
        upper,
        lower,
        [f"k = {k}" for k in range(7)],
        names=("above", "below"),
        labels=list("abcdefg"),
    )
    assert width_of(chart) <= style.TEXT_WIDTH
    rows = {row["cloud"]: row for row in chart.to_dict()["layer"][0]["data"]["values"]}
    assert len(rows) == 14
    for case in range(7):
        above, below = rows[f"{case}-0"], rows[f"{case}-1"]
        column = case % 5
        assert column < min(above["x"]) and max(above["x"]) < column + 1
        assert max(above["y"]) < min(below["y"])  # the vertical axis points down
        # Scaled to the same radius: the factor of five is gone, the shape is kept.
        assert np.allclose(above["x"], below["x"], atol=2e-3)


def test_paired_clouds_refuse_what_does_not_fit() -> None:
    good = circles([1, 2])
    with pytest.raises(ValueError, match="same shape"):
        figures.paired_clouds(good, good[:, :-1], ["a", "b"], names=("x", "y"))
    with pytest.raises(ValueError, match="one for each"):
        figures.paired_clouds(good, good, ["a"], names=("x", "y"))
    with pytest.raises(ValueError, match="finite"):
        figures.paired_clouds(good * np.nan, good, ["a", "b"], names=("x", "y"))
    with pytest.raises(ValueError, match="labels"):
        figures.paired_clouds(good, good, ["a", "b"], names=("x", "y"), labels=["only one"])
