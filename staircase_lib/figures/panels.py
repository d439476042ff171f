"""Many settings under several criteria at once: an interval a setting in a panel a criterion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.series import value_range
from staircase_lib.figures.tables import ordered, printable_texts, require_columns
from staircase_lib.printable import printable

_ROW_HEIGHT = 15


def interval_panels(
    table: pd.DataFrame,
    *,
    thresholds: Mapping[str, float],
    domains: Mapping[str, tuple[float, float]] | None = None,
) -> Any:
    """Medians with their intervals, a row a setting and a panel a criterion.

    Parameters
    ----------
    table : DataFrame
        Columns ``name`` (the setting), ``panel`` (the criterion), ``median``, ``low``, ``high``,
        ``met`` (bool: drawn filled, else open) and ``group`` (colour).
    thresholds : mapping of panel to float
        The panels, in their order, each with the dashed rule drawn in it.
    domains : mapping of panel to (low, high), optional
        Range of a panel's axis; default that of its data and threshold. What lies outside is drawn
        at the edge.

    Returns
    -------
    altair.ConcatChart
        Two panels side by side where there is room, one below the other on a phone.

    Raises
    ------
    ValueError
        If a column is missing, a panel has no row, or an interval does not hold its median.
    """
    require_columns(
        table, ["name", "panel", "median", "low", "high", "met", "group"], "interval_panels"
    )
    table = printable_texts(table)
    thresholds = {printable(title): value for title, value in thresholds.items()}
    domains = {printable(title): span for title, span in (domains or {}).items()}
    wrong = table[(table["low"] > table["median"]) | (table["median"] > table["high"])]
    if len(wrong):
        raise ValueError(
            "interval_panels expects low <= median <= high; got "
            f"{wrong.iloc[0][['name', 'panel', 'low', 'median', 'high']].to_dict()}."
        )
    absent = [panel for panel in thresholds if panel not in set(table["panel"])]
    if absent:
        raise ValueError(
            f"interval_panels expects a row for each panel; {absent} have none, the table has "
            f"{ordered(table, 'panel')}. Name the thresholds after the panels."
        )
    names = [str(name) for name in ordered(table, "name")]
    groups = ordered(table, "group")
    color = alt.Color(
        "group:N",
        scale=alt.Scale(domain=groups, range=list(style.SERIES_COLORS[: len(groups)])),
        legend=alt.Legend(title=None, orient="top", columns=2),
    )
    room = 6.2 * max(len(name) for name in names)
    width = int((style.TEXT_WIDTH - 20) / min(len(thresholds), 2) - room - 24)

    def panel(title: str, threshold: float) -> Any:
        part: Any = table[table["panel"] == title]
        given = domains.get(title)
        low, high = given or value_range([*part["low"], *part["high"], threshold], log=False)
        rows = [
            {
                "name": str(r["name"]),
                "group": str(r["group"]),
                "met": bool(r["met"]),
                **{k: float(f"{r[k]:.4g}") for k in ("median", "low", "high")},
            }
            for r in part.to_dict("records")
        ]
        scale = alt.Scale(domain=[low, high], nice=False, clamp=True)
        x = {"title": None, "scale": scale, "axis": alt.Axis(tickCount=5)}
        axis = alt.Axis(ticks=False, domain=False, labelLimit=280, grid=True)
        base = alt.Chart(alt.Data(values=rows)).encode(
            y=alt.Y("name:N", sort=names, scale=alt.Scale(domain=names), title=None, axis=axis),
            color=color,
            tooltip=[alt.Tooltip("name:N", title="setting")]
            + [alt.Tooltip(f"{k}:Q", title=k, format=".3g") for k in ("median", "low", "high")],
        )
        points = base.encode(x=alt.X("median:Q", **x))
        at = alt.Chart(alt.Data(values=[{"x": threshold}])).encode(
            x=alt.X("x:Q", **x), tooltip=alt.value(None)
        )
        return alt.layer(
            at.mark_rule(style="threshold"),
            base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", **x), x2="high:Q"),
            points.transform_filter("datum.met").mark_point(filled=True, size=55, opacity=1),
            points.transform_filter("!datum.met").mark_point(size=45, opacity=1, strokeWidth=1.8),
        ).properties(width=width, height=_ROW_HEIGHT * len(names), title=title)

    charts = [panel(title, threshold) for title, threshold in thresholds.items()]
    missed: dict[str, list[str]] = {title: [] for title in thresholds}
    for row in table.to_dict("records"):
        if row["panel"] in missed and not row["met"]:
            missed[row["panel"]].append(str(row["name"]))
    described = "; ".join(
        f"{title}, threshold {threshold:g}: "
        + (f"missed by {', '.join(missed[title])}" if missed[title] else "met by all")
        for title, threshold in thresholds.items()
    )
    description = (
        f"Median and interval over seeds of {len(names)} settings under {len(charts)} criteria. "
        f"{described}."
    )
    return style.finish(alt.concat(*charts, columns=2), description)
