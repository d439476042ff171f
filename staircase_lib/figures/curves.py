"""Metrics against time, one thin line a seed and a bold median a series."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.series import (
    end_labels,
    ends_of,
    label_room,
    series_color,
    threshold_rule,
    value_range,
)
from staircase_lib.figures.tables import ordered, printable_texts, require_columns

_NARROWEST_PANEL = 160


def metric_curves(
    table: pd.DataFrame,
    *,
    y_title: str,
    series: str | None = None,
    threshold: float | None = None,
    threshold_label: str = "",
    log_x: bool = True,
    facet: str | None = None,
    domain: tuple[float, float] | None = None,
    order_colors: bool = False,
    log_y: bool = False,
    time_title: str = "epoch",
    title: str = "",
    clock: str = "",
) -> Any:
    """A metric against time: a thin line a seed, a bold median a series.

    Parameters
    ----------
    table : DataFrame
        Columns ``step``, ``value``, ``seed`` and those named by `series` and `facet`.
    y_title : str
        What ``value`` is.
    series : str, optional
        Column that tells the curves apart. Up to four are labelled at their ends; more, or long
        names in small panels, get a legend. Numbers get sequential colours.
    threshold, threshold_label : float, str
        Dashed rule with its label.
    log_x, log_y : bool
        Logarithmic axes; step 0 has its place.
    facet : str, optional
        Column that makes panels.
    domain : (low, high), optional
        Range of the vertical axis; default that of the data and the threshold.
    order_colors : bool
        The series are signature orders 0 to 3 (numbers, or texts that end in one).
    time_title, title, clock
        As in `similarity_heatmap`.

    Returns
    -------
    altair.LayerChart or altair.ConcatChart

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, or a series is not an order.
    """
    require_columns(
        table, ["step", "value", "seed", *(c for c in (series, facet) if c)], "metric_curves"
    )
    table = printable_texts(table)
    groups = ordered(table, series) if series else [""]
    facets = ordered(table, facet) if facet else [""]
    full = int((style.TEXT_WIDTH - 24) / min(len(facets), 2) - 62)
    color, legend = series_color(groups, series, orders=order_colors, room=full - _NARROWEST_PANEL)
    low, high = span = domain or value_range([*table["value"], threshold], log_y)
    width = int(full - (label_room(groups) if series and not legend else 0))
    height = 260 if len(facets) == 1 else 170
    x = style.time_axis(table["step"].to_numpy(), time_title, log=log_x)
    scale = alt.Scale(type="log" if log_y else "linear", domain=[low, high], nice=False)
    y = {"title": y_title, "scale": scale, "axis": style.value_axis(low, high, log=log_y)}
    horizontal = alt.X("step:Q", **x)

    def panel(name: Any) -> Any:
        part: Any = table[table[facet] == name] if facet else table
        base = (
            alt.Chart(alt.Data(values=tracks(part, series)))
            .transform_flatten(["step", "value"])
            .encode(x=horizontal, color=color)
        )
        tips = [alt.Tooltip("step:Q", title=time_title, format=",d")]
        tips += [alt.Tooltip("series:N", title=series)] if series else []
        thin = base.mark_line(strokeWidth=1, opacity=0.45, clip=True).encode(
            y=alt.Y("value:Q", **y), detail="seed:N"
        )
        bold = base.mark_line(strokeWidth=2.5, clip=True).encode(
            y=alt.Y("median(value):Q", **y),
            tooltip=[*tips, alt.Tooltip("median(value):Q", title="median", format=".3g")],
        )
        layers = [alt.layer(thin, bold), style.moment_rule()]
        if threshold is not None:
            layers += threshold_rule(threshold, threshold_label, span, alt.Y("value:Q", **y))
        if series and not legend:
            ends = ends_of(part, "step", "value", series)
            layers += end_labels(
                ends, span, log_y, height, color, _category(table["step"].max()), horizontal
            )
        chart = alt.layer(*layers).properties(width=width, height=height)
        return chart.properties(title=str(name)) if facet else chart

    charts = [panel(name) for name in facets]
    chart = charts[0] if len(charts) == 1 else alt.concat(*charts, columns=2)
    if title:
        chart = chart.properties(title=title)
    description = _curve_text(table, y_title, series, facet, time_title, threshold)
    return style.finish(chart.add_params(style.now_param()), description, clock=clock)


def order_shares(
    table: pd.DataFrame,
    *,
    facet: str | None = None,
    log_x: bool = True,
    time_title: str = "epoch",
    title: str = "",
    clock: str = "",
) -> Any:
    """Share of each signature order in the gradient through training.

    Parameters
    ----------
    table : DataFrame
        Columns ``step``, ``order`` (0 to 3), ``share`` (in [0, 1]), ``seed`` and `facet`.
    facet, log_x, time_title, title, clock
        As in `metric_curves`.

    Returns
    -------
    altair.LayerChart or altair.ConcatChart
    """
    require_columns(
        table, ["step", "order", "share", "seed", *([facet] if facet else [])], "order_shares"
    )
    named = table.rename(columns={"share": "value"}).assign(
        order=[f"order {order}" for order in table["order"]]
    )
    return metric_curves(
        named, y_title="share of the gradient", series="order", facet=facet, domain=(0.0, 1.0),
        order_colors=True, log_x=log_x, time_title=time_title, title=title, clock=clock,
    )  # fmt: skip


def tracks(table: pd.DataFrame, series: str | None) -> list[dict[str, Any]]:
    """One row a seed and series, with the lists ``step`` and ``value`` that Vega flattens."""
    keys = [series, "seed"] if series else ["seed"]
    rows = []
    for key, part in table.sort_values(["seed", "step"]).groupby(keys, sort=False):
        key = key if isinstance(key, tuple) else (key,)
        rows.append(
            {
                "series": _category(key[0]) if series else "",
                "seed": str(key[-1]),
                "step": [int(s) if s == int(s) else float(s) for s in part["step"]],
                "value": [float(f"{v:.5g}") if np.isfinite(v) else None for v in part["value"]],
            }
        )
    return rows


def _category(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _curve_text(
    table: pd.DataFrame,
    y_title: str,
    series: str | None,
    facet: str | None,
    time_title: str,
    threshold: float | None,
) -> str:
    keys = [key for key in (facet, series) if key]
    parts = []
    for key, part in table.groupby(keys, sort=False) if keys else [((), table)]:
        middle = part.groupby("step")["value"].median().dropna()
        name = ", ".join(map(str, key if isinstance(key, tuple) else (key,)))
        if len(middle):
            parts.append(
                f"{name + ': ' if name else ''}{middle.iloc[0]:.3g} at first, "
                f"{middle.iloc[-1]:.3g} at last"
            )
    against = f" Threshold {threshold:g}." if threshold is not None else ""
    return (
        f"{y_title} against {time_title}, {table['step'].min():,} to {table['step'].max():,}; "
        f"{table['seed'].nunique()} seeds as thin lines, their median bold. Medians: "
        f"{'; '.join(parts)}.{against}"
    )
