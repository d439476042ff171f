"""The same small picture many times: onsets by panel, and pairs of point clouds in a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.series import value_range
from staircase_lib.figures.tables import ordered, printable_texts, require_columns

_COLUMNS = 5
_GRID_SIDE = 640


def onset_panels(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    panel: str,
    label: str | None = None,
    x_title: str = "",
    y_title: str = "",
    panel_title: str = "",
) -> Any:
    """When something is reached, against a setting, a panel for each value of another setting.

    All settings look alike: small points are seeds, a dash is their median.

    Parameters
    ----------
    table : DataFrame
        Columns named by `x`, `y` (positive, on a logarithmic axis) and `panel`, ``seed``, optional
        ``censored`` (bool: not reached within the run; drawn as an open triangle at its end). The
        median of a setting of whose seeds half or more are censored is only a lower bound.
    x, y, panel : str
        Names of the columns. Integers in `x` make an ordinal axis.
    label : str, optional
        Column that names the settings in the tooltips; settings of the same `x` are kept apart.
    x_title, y_title, panel_title : str
        Axis titles, default the columns' names; and what is put before a panel's value.

    Returns
    -------
    altair.ConcatChart
        Panels in the order of their values, all with the same vertical axis.

    Raises
    ------
    ValueError
        If a column is missing or the table is empty.
    """
    columns = [x, y, panel, "seed", *([label] if label else [])]
    require_columns(table, columns, "onset_panels")
    table = printable_texts(table)
    discrete = pd.api.types.is_integer_dtype(table[x])
    missed = table["censored"].astype(bool) if "censored" in table else [False] * len(table)
    shown = pd.DataFrame(
        {
            "x": table[x],
            "y": table[y].astype(float),
            "panel": table[panel],
            "seed": table["seed"].astype(str),
            "label": (table[label] if label else table[x]).astype(str),
            "censored": list(missed),
        }
    )
    low, high = value_range(list(shown["y"]), log=True)
    vertical = {
        "title": y_title or y,
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
        "axis": style.value_axis(low, high, log=True),
    }
    left, right = value_range(list(table[x]), log=False)
    names = ordered(shown, "panel")
    width = int((style.TEXT_WIDTH - 24) / min(len(names), 2) - 64)

    def one(name: Any) -> Any:
        part: Any = shown[shown["panel"] == name]
        if discrete:
            horizontal: dict[str, Any] = {
                "shorthand": "x:O",
                "axis": alt.Axis(labelAngle=0, labelOverlap=True, labelSeparation=3, grid=False),
            }
        else:
            horizontal = {
                "shorthand": "x:Q",
                "scale": alt.Scale(domain=[left, right], nice=False),
                "axis": alt.Axis(tickCount=5, grid=False),
            }
        across = alt.X(**horizontal, title=x_title or x)
        fields = ["x", "y", "seed", "censored"]
        rows = [
            {**r, "x": r["x"] if discrete else float(f"{r['x']:.4g}"), "y": float(f"{r['y']:.5g}")}
            for r in part[fields].to_dict("records")
        ]
        middle = [
            {"x": int(v) if discrete else float(f"{v:.4g}"), "y": float(g["y"].median()),
             "label": t, "bound": bool(g["censored"].mean() >= 0.5)}
            for (v, t), g in part.groupby(["x", "label"])
        ]  # fmt: skip
        seeds = alt.Chart(alt.Data(values=rows)).encode(
            x=across,
            y=alt.Y("y:Q", **vertical),
            color=alt.value(style.SERIES_COLORS[2]),
            tooltip=[
                alt.Tooltip("x", type="ordinal" if discrete else "quantitative", title=x_title),
                alt.Tooltip("y:Q", title=y_title or y, format=",.4~r"),
                alt.Tooltip("seed:N", title="seed"),
            ],
        )
        medians = alt.Chart(alt.Data(values=middle)).encode(
            x=across,
            y=alt.Y("y:Q", **vertical),
            color=alt.value(style.SERIES_COLORS[1]),
            tooltip=[
                alt.Tooltip("label:N", title="setting"),
                alt.Tooltip("y:Q", title="median", format=",.4~r"),
                alt.Tooltip("bound:N", title="lower bound only"),
            ],
        )
        layers = [
            seeds.transform_filter("!datum.censored").mark_point(
                filled=True, size=14, opacity=0.45
            ),
            seeds.transform_filter("datum.censored").mark_point(
                shape="triangle-up", size=30, filled=False, strokeWidth=1.2, opacity=0.7
            ),
            medians.mark_tick(orient="horizontal", thickness=3, size=9, opacity=1),
        ]
        return alt.layer(*layers).properties(
            width=width, height=190, title=f"{panel_title}{_plain(name)}"
        )

    charts = [one(name) for name in names]
    chart = charts[0] if len(charts) == 1 else alt.concat(*charts, columns=2)
    parts = []
    for name in names:
        part: Any = shown[shown["panel"] == name]
        medians: Any = part.groupby("x")["y"].median()
        longest = medians.sort_values(ascending=False).index[:3]
        parts.append(
            f"{panel_title}{name}: {len(medians)} settings, medians from {medians.min():,.4g} to "
            f"{medians.max():,.4g}, latest at {', '.join(f'{v:.3g}' for v in longest)}"
        )
    description = f"{y_title or y} against {x_title or x}. {'; '.join(parts)}."
    return style.finish(chart, description)


def _plain(value: Any) -> str:
    return str(value.item() if isinstance(value, np.generic) else value)


def paired_clouds(
    upper: np.ndarray,
    lower: np.ndarray,
    titles: Sequence[str],
    *,
    names: tuple[str, str],
    labels: Sequence[Any] | None = None,
    axis_title: str = "token",
) -> Any:
    """Pairs of point clouds in a grid, one above the other, tokens joined in natural order.

    Parameters
    ----------
    upper, lower : float array, shape (S, n, 2)
        Two clouds of the same ``n`` tokens for each of ``S`` cases (at most 20), each scaled to
        its largest distance from the origin.
    titles : sequence of str, length S
        Put above each pair; short, in at most two lines (``"\\n"``).
    names : (str, str)
        What the upper and the lower cloud are, for the tooltips and the description.
    labels : (n,), optional
        Names of the tokens; default 0, 1, ….
    axis_title : str
        What a point is.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    ValueError
        If shapes do not fit, a value is not finite, or there are too many cases.
    """
    above, below = np.asarray(upper, dtype=float), np.asarray(lower, dtype=float)
    cases = len(titles)
    if above.ndim != 3 or above.shape[2] != 2 or above.shape != below.shape:
        raise ValueError(
            f"upper, lower: expected two arrays of the same shape (S, n, 2), got {above.shape} and "
            f"{below.shape}; keep two components of the same tokens."
        )
    if len(above) != cases or not 1 <= cases <= 20:
        raise ValueError(
            f"titles: expected one for each of 1 to 20 pairs, got {cases} for {len(above)} pairs."
        )
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        raise ValueError("upper, lower: expected finite points; did a run diverge?")
    n = above.shape[1]
    token = [str(k) for k in range(n)] if labels is None else [str(v) for v in labels]
    if len(token) != n:
        raise ValueError(f"labels: expected {n}, one a token, got {len(token)}.")
    columns = min(_COLUMNS, cases)
    bands = -(-cases // columns)
    tall = 2.5  # cells of a band: two clouds and the title above them

    rows, headings = [], []
    for case in range(cases):
        across, down = case % columns + 0.5, (case // columns) * tall
        for which, cloud in enumerate((above[case], below[case])):
            radius = np.linalg.norm(cloud, axis=1).max()
            scaled = 0.42 * cloud / (radius if radius > 0 else 1.0)
            x = across + scaled[:, 0]
            y = down + 0.92 + 1.03 * which - scaled[:, 1]  # the vertical axis points down
            rows.append(
                {"cloud": f"{case}-{which}", "what": names[which], "case": case,
                 "x": np.round(x, 3).tolist(), "y": np.round(y, 3).tolist()}
            )  # fmt: skip
        for line, text in enumerate(str(titles[case]).split("\n")[:2]):
            headings.append({"x": across, "y": down + 0.14 + 0.16 * line, "text": text})

    plain: dict[str, Any] = {"axis": None, "title": None}
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, columns], nice=False), **plain)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, bands * tall], nice=False, reverse=True), **plain)
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_flatten(["x", "y"])
        .transform_window(number="row_number()", groupby=["cloud"])
        .transform_calculate(k="datum.number - 1", name="names[datum.k]")
        .encode(x=x, y=y)
    )
    path = base.mark_line(color="#8C959F", strokeWidth=0.7, opacity=0.8).encode(
        order="k:Q", detail="cloud:N"
    )
    dots = base.mark_point(style="token-point", filled=True, size=22, opacity=1).encode(
        color=alt.Color("k:Q", scale=alt.Scale(scheme=style.TOKEN_SCHEME), legend=None),
        tooltip=[alt.Tooltip("what:N", title="picture"), alt.Tooltip("name:N", title=axis_title)],
    )
    text = (
        alt.Chart(alt.Data(values=headings))
        .mark_text(style="direct-label", align="center")
        .encode(x=x, y=y, text="text:N", tooltip=alt.value(None))
    )
    width = int(_GRID_SIDE * columns / _COLUMNS)
    marked = style.marked_point(base, size=70)[:1]  # no room for names
    chart = (
        alt.layer(path, dots, text, *marked)
        .properties(width=width, height=int(_GRID_SIDE / _COLUMNS * tall * bands))
        .add_params(alt.param(name="names", value=token))
    )
    shown = "; ".join(str(title).replace("\n", ", ") for title in titles)
    description = (
        f"{cases} pairs of pictures of {n} {axis_title}s, {names[0]} above {names[1]}, on two "
        f"principal components each, coloured by {axis_title} and joined in natural order: {shown}."
    )
    return style.finish(chart, description, square=True, token_field="name", token_names="names")
