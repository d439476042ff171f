"""Measured values against thresholds and settings."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.series import end_labels, ends_of, series_color, value_range
from staircase_lib.figures.tables import ordered, printable_texts, require_columns


def interval_chart(
    table: pd.DataFrame,
    *,
    value_title: str,
    threshold: float | None = None,
    threshold_label: str = "threshold",
    log: bool = False,
    domain: tuple[float, float] | None = None,
    title: str = "",
) -> Any:
    """Values with their intervals over seeds, a row each, against the threshold.

    Parameters
    ----------
    table : DataFrame
        Columns ``name``, ``median``, ``low``, ``high``, optional ``group`` (colour). A row that
        is not finite keeps its name, followed by "(undefined)", and gets no mark.
    value_title : str
        What is measured.
    threshold, threshold_label : float, str
        Dashed rule with its label.
    log : bool
        Logarithmic axis.
    domain : (low, high), optional
        Range of the axis; default that of the data and the threshold.
    title : str
        Shown above the chart.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    ValueError
        If a column is missing or an interval does not hold its median.
    """
    require_columns(table, ["name", "median", "low", "high"], "interval_chart")
    table = printable_texts(table)
    wrong = table[(table["low"] > table["median"]) | (table["median"] > table["high"])]
    if len(wrong):
        raise ValueError(
            "interval_chart expects low <= median <= high; got "
            f"{wrong.iloc[0][['name', 'low', 'median', 'high']].to_dict()}. Check the columns."
        )
    numbers = table[["median", "low", "high"]].to_numpy(dtype=float)
    defined = [bool(np.isfinite(row).all()) for row in numbers]
    names = [
        str(name) if known else f"{name} (undefined)"
        for name, known in zip(table["name"], defined, strict=True)
    ]
    low, high = domain or value_range([*table["low"], *table["high"], threshold], log)
    groups = ordered(table, "group") if "group" in table else [""]
    color = alt.Color(
        "group:N",
        scale=alt.Scale(domain=groups, range=list(style.SERIES_COLORS[: len(groups)])),
        legend=alt.Legend(title=None, orient="top") if len(groups) > 1 else None,
    )
    number = {"value": "median", "low": "low", "high": "high"}
    rows = [
        {"name": name, "group": str(r.get("group", ""))}
        | {k: float(f"{r[c]:.5g}") if known else None for k, c in number.items()}
        for name, r, known in zip(names, table.to_dict("records"), defined, strict=True)
    ]
    scale = alt.Scale(type="log" if log else "linear", domain=[low, high], nice=False)
    x = {"title": value_title, "scale": scale, "axis": style.value_axis(low, high, log=log)}
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", sort=names, title=None, scale=alt.Scale(domain=names),
                axis=alt.Axis(ticks=False, domain=False, labelLimit=280)),
        color=color,
        tooltip=[alt.Tooltip("name:N", title="name")]
        + [alt.Tooltip(f"{k}:Q", title=c, format=".4g") for k, c in number.items()],
    )  # fmt: skip
    layers: list[Any] = [
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", **x), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=alt.X("value:Q", **x)),
    ]
    if threshold is not None:
        at = alt.Chart(alt.Data(values=[{"x": threshold, "label": threshold_label}])).encode(
            x=alt.X("x:Q", **x)
        )
        layers += [
            at.mark_rule(style="threshold"),
            at.mark_text(style="threshold-label", align="center", baseline="bottom").encode(
                y=alt.value(-4), text="label:N"
            ),
        ]
    width = int(style.TEXT_WIDTH - 60 - min(6.2 * max(len(n) for n in names), 280))
    chart = alt.layer(*layers).properties(width=width, height=alt.Step(26))
    values = "; ".join(
        f"{name} {r['value']} ({r['low']} to {r['high']})" if known else name
        for name, r, known in zip(names, rows, defined, strict=True)
    )
    against = f" Threshold {threshold:g}." if threshold is not None else ""
    description = f"{value_title}, median and interval over seeds: {values}.{against}"
    return style.finish(chart.properties(**({"title": title} if title else {})), description)


def onset_chart(
    table: pd.DataFrame,
    *,
    x: str = "gamma",
    y: str = "epochs",
    series: str | None = "task",
    x_title: str = "",
    y_title: str = "",
    log_y: bool = True,
    order_colors: bool = False,
    title: str = "",
) -> Any:
    """When something is reached, against a setting: a point a seed, a line of medians a series.

    Parameters
    ----------
    table : DataFrame
        Columns named by `x`, `y`, `series`, ``seed``, optional ``censored`` (bool: not reached
        within the run; ``y`` is then the length of the run, drawn as an open triangle). The
        line stops where half of the seeds or more are censored. Rows whose `y` is not finite are
        not drawn; the description counts them.
    x, y, series : str
        Names of the columns. Texts in `x` make an ordinal axis in the table's order.
    x_title, y_title : str
        Axis titles; default the columns' names.
    log_y : bool
        Logarithmic vertical axis.
    order_colors : bool
        The series are signature orders 0 to 3 (numbers, or texts that end in one).
    title : str
        Shown above the chart.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    ValueError
        If a column is missing, or a series is not an order.
    """
    require_columns(table, [x, y, "seed", *([series] if series else [])], "onset_chart")
    undefined = ~np.isfinite(table[y].to_numpy(dtype=float))
    table = printable_texts(table).loc[~undefined]
    if table.empty:
        raise ValueError(f"onset_chart expects a finite {y!r} in one row at least, got none.")
    numeric = pd.api.types.is_numeric_dtype(table[x])
    groups = ordered(table, series) if series else [""]
    color, legend = series_color(groups, series, orders=order_colors)
    low, high = value_range(list(table[y]), log_y)
    missed = table["censored"].astype(bool) if "censored" in table else [False] * len(table)
    rows = [
        {"x": float(a) if numeric else str(a), "y": float(f"{b:.5g}"), "seed": str(s),
         "series": str(g), "censored": bool(c)}
        for a, b, s, g, c in zip(
            table[x], table[y], table["seed"], table[series] if series else [""] * len(table),
            missed, strict=True,
        )
    ]  # fmt: skip
    order = list(dict.fromkeys(str(v) for v in table[x]))
    axis: dict[str, Any] = {"title": x_title or x}
    if numeric:
        left, right = value_range(list(table[x]), log=False)
        axis["scale"] = alt.Scale(domain=[left, right], nice=False)
        edge: Any = right
        axis["axis"] = alt.Axis(tickCount=min(len(set(table[x])), 8), grid=False)
    else:
        axis |= {"sort": order, "axis": alt.Axis(labelAngle=0)}
        edge = order[-1]
    horizontal = alt.X("x:Q" if numeric else "x:N", **axis)
    vertical = {
        "title": y_title or y,
        "scale": alt.Scale(type="log" if log_y else "linear", domain=[low, high], nice=False),
        "axis": style.value_axis(low, high, log=log_y),
    }
    base = alt.Chart(alt.Data(values=rows)).encode(x=horizontal, color=color)
    tips = [
        alt.Tooltip("x", type="quantitative" if numeric else "nominal", title=x_title or x),
        alt.Tooltip("y:Q", title=y_title or y, format=",.4~r"),
        *([alt.Tooltip("series:N", title=series)] if series else []),
        alt.Tooltip("seed:N", title="seed"),
    ]
    seen = base.encode(y=alt.Y("y:Q", **vertical), tooltip=tips)
    line = (
        base.transform_joinaggregate(missing="mean(censored)", groupby=["x", "series"])
        .transform_filter("datum.missing < 0.5")
        .mark_line(strokeWidth=2.5)
        .encode(y=alt.Y("median(y):Q", **vertical))
    )
    layers = [
        seen.transform_filter("!datum.censored").mark_point(filled=True, size=22, opacity=0.5),
        seen.transform_filter("datum.censored").mark_point(
            shape="triangle-up", size=50, filled=False, strokeWidth=1.5, opacity=0.8
        ),
        line,
    ]
    room = 0.0
    if series and not legend:
        ends = ends_of(table, x, y, series)
        layers += end_labels(ends, (low, high), log_y, 280, color, edge, horizontal)
        room = 22 + 6.5 * max(len(g) for g in groups)
    chart = alt.layer(*layers).properties(width=int(style.TEXT_WIDTH - 80 - room), height=280)
    late = sum(missed)
    description = (
        f"{y_title or y} against {x_title or x} for {len(rows)} runs"
        + (f" of {', '.join(groups)}" if series else "")
        + f", from {table[y].min():,.4g} to {table[y].max():,.4g}"
        + (f"; {late} did not get there within the run" if late else "")
        + (f"; {undefined.sum()} are undefined" if undefined.any() else "")
        + "."
    )
    return style.finish(chart.properties(**({"title": title} if title else {})), description)
