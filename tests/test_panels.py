"""Many settings under several criteria: what the chart carries and refuses."""

import pandas as pd
import pytest
import vl_convert

from staircase_lib import figures
from staircase_lib.figures import style

TABLE = pd.DataFrame(
    {"name": name, "panel": panel, "group": group, "median": m, "low": m - 0.1, "high": m + 0.1,
     "met": m > 0.5}
    for name, group, values in (
        ("AdamW, GELU", "base", (0.9, 0.8)), ("gradient descent", "optimizer", (0.7, 0.2))
    )
    for panel, m in zip(("geometry", "collapse"), values, strict=True)
)  # fmt: skip
THRESHOLDS = {"geometry": 0.5, "collapse": 0.6}


def test_a_row_a_setting_and_a_panel_a_criterion():
    spec = figures.interval_panels(TABLE, thresholds=THRESHOLDS).to_dict()
    assert [panel["title"] for panel in spec["concat"]] == ["geometry", "collapse"]
    for panel, threshold in zip(spec["concat"], THRESHOLDS.values(), strict=True):
        rule, interval, *points = panel["layer"]
        assert rule["data"]["values"] == [{"x": threshold}]
        assert [r["name"] for r in interval["data"]["values"]] == list(TABLE["name"].unique())
        # Met and missed are drawn apart, and every row is drawn once.
        filters = [p["transform"][0]["filter"] for p in points]
        assert filters == ["datum.met", "!datum.met"]
    assert "collapse, threshold 0.6: missed by gradient descent" in spec["description"]
    assert "geometry, threshold 0.5: met by all" in spec["description"]
    svg = vl_convert.vegalite_to_svg(spec, vl_version="5.20")
    assert float(svg.split('width="')[1].split('"')[0]) <= style.TEXT_WIDTH


def test_bad_tables_are_named():
    with pytest.raises(ValueError, match=r"a row for each panel; \['start'\] have none"):
        figures.interval_panels(TABLE, thresholds={**THRESHOLDS, "start": 0.9})
    with pytest.raises(ValueError, match="low <= median <= high"):
        figures.interval_panels(TABLE.assign(low=2.0), thresholds=THRESHOLDS)
    with pytest.raises(ValueError, match=r"\['met'\] are missing"):
        figures.interval_panels(TABLE.drop(columns="met"), thresholds=THRESHOLDS)
