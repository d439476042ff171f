"""Many tokens in the plane, named where a name fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.series import value_range
from staircase_lib.figures.tables import ordered, printable_texts, require_columns, require_finite
from staircase_lib.printable import printable

# Of the panel, from a phone's to the text column's; in steps shorter than two names, so that none
# pass through each other between two of them.
_WIDTHS = tuple(range(200, 621, 20))
_LINE = 13
_GAP = 4  # between names on one line
_LONGEST_NAME = 24


def token_scatter(
    table: pd.DataFrame,
    *,
    x_title: str,
    y_title: str,
    log_x: bool = False,
    square: bool = False,
    group_title: str = "",
    title: str = "",
) -> Any:
    """A point a token, the first tokens of the table named wherever their names do not collide.

    Names appear as the picture gets wider: a phone shows few, the text column many. The others
    are in the tooltips.

    Parameters
    ----------
    table : DataFrame
        Columns ``name``, ``x``, ``y``, optional ``group`` (at most six, colours). In the order in
        which tokens should get names.
    x_title, y_title : str
        What the axes are. Empty: the axis has no numbers, as for coordinates of a map.
    log_x : bool
        Logarithmic horizontal axis; ``x`` is positive.
    square : bool
        Width and height are equal, with one scale for both: distances mean something.
    group_title, title : str
        Of the legend; above the chart.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, or a value is not finite (not positive on a
        logarithmic axis).
    """
    require_columns(table, ["name", "x", "y"], "token_scatter")
    for column in ("x", "y"):
        require_finite(table, column, "token_scatter")
    x, y = (table[column].to_numpy(dtype=float) for column in ("x", "y"))
    if log_x and x.min() <= 0:
        raise ValueError(
            f"token_scatter expects positive x on a logarithmic axis, got {x.min():g}."
        )
    names = [printable(str(name), _LONGEST_NAME) for name in table["name"]]
    across, up = value_range(list(x), log_x), value_range(list(y), log=False)
    if square:
        across, up = _one_scale(across, up)
    share = np.stack([_shares(x, across, log_x), _shares(y, up, False)], axis=1)
    height_of = {w: w if square else max(240, round(0.62 * w)) for w in _WIDTHS}
    left, room = _placed(names, share, height_of)
    table = printable_texts(table)
    groups = [str(group) for group in ordered(table, "group")] if "group" in table else []
    rows = [
        {"name": n, "x": float(f"{a:.5g}"), "y": float(f"{b:.5g}"), "left": bool(side), "room": fit}
        for n, a, b, side, fit in zip(names, x, y, left, room, strict=True)
    ]
    if groups:
        for row, group in zip(rows, table["group"], strict=True):
            row["group"] = str(group)
    color: Any = alt.value(style.SERIES_COLORS[2])
    if groups:
        legend = alt.Legend(title=group_title or None, orient="top", columns=6)
        scale = alt.Scale(domain=groups, range=list(style.SERIES_COLORS[: len(groups)]))
        color = alt.Color("group:N", scale=scale, legend=legend)

    def channel(kind: Any, field: str, title: str, domain: tuple[float, float], log: bool) -> Any:
        axis = style.value_axis(*domain, log=log) if title else None
        if axis is not None:
            axis["labelOverlap"] = True
        scale = alt.Scale(type="log" if log else "linear", domain=list(domain), nice=False)
        return kind(f"{field}:Q", title=title or None, scale=scale, axis=axis)

    base = alt.Chart(alt.Data(values=rows)).encode(
        x=channel(alt.X, "x", x_title, across, log_x), y=channel(alt.Y, "y", y_title, up, False)
    )
    tips = [alt.Tooltip("name:N", title="token")]
    if x_title:
        tips.append(alt.Tooltip("x:Q", title=x_title, format=",.5~r"))
    if y_title:
        tips.append(alt.Tooltip("y:Q", title=y_title, format=",.4~r"))
    tips += [alt.Tooltip("group:N", title=group_title or "group")] if groups else []
    size = 30 if len(rows) <= 300 else 12
    dots = base.mark_point(filled=True, size=size, opacity=0.75).encode(color=color, tooltip=tips)
    layers = [dots]
    sides: Any = ((False, "left", 5), (True, "right", -5))
    for side, align, shift in sides:
        shown = base.transform_filter(f"datum.left === {str(side).lower()} && datum.room <= width")
        shown = shown.encode(text="name:N", tooltip=alt.value(None))
        layers += [
            shown.mark_text(style=look, align=align, baseline="middle", dx=shift)
            for look in ("text-halo", "direct-label")
        ]
    layers += style.marked_point(base, size=110)
    full = 560 if square else style.TEXT_WIDTH - 70
    chart = alt.layer(*layers).properties(
        width=full, height=full if square else max(240, round(0.62 * full))
    )
    if title:
        chart = chart.properties(title=title)
    what = " against ".join(t for t in (y_title, x_title) if t) or "Map"
    named = ", ".join(names[:5])
    spans = "".join(
        f"; {t} from {v.min():,.4g} to {v.max():,.4g}" for t, v in ((x_title, x), (y_title, y)) if t
    )
    description = f"{what} of {len(rows):,} tokens, among them {named}{spans}."
    return style.finish(
        chart, description, square=square, canvas=len(rows) > 400, token_field="name"
    )


def _one_scale(
    across: tuple[float, float], up: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both ranges as long as the longer one, about their middles."""
    half = max(across[1] - across[0], up[1] - up[0]) / 2
    middles = (sum(across) / 2, sum(up) / 2)
    return (middles[0] - half, middles[0] + half), (middles[1] - half, middles[1] + half)


def _shares(values: np.ndarray, domain: tuple[float, float], log: bool) -> np.ndarray:
    low, high = np.log(domain) if log else np.asarray(domain)
    return ((np.log(values) if log else values) - low) / (high - low)


def _placed(
    names: Sequence[str], share: np.ndarray, height_of: dict[int, int]
) -> tuple[np.ndarray, list[int]]:
    """Whether each name stands left of its point, and the least panel width at which it fits.

    Earlier names go first. A name that is shown in a narrow panel is shown in wider ones, where it
    has to fit as well: as points move apart, the name left of one can run into the name right of
    another.
    """
    length = np.array([sum(11.5 if east_asian_width(c) in "WF" else 6.9 for c in n) for n in names])
    left = share[:, 0] > 0.6
    widths = np.array(sorted(height_of))[:, None]
    heights = np.array([height_of[width] for width in widths[:, 0]])[:, None]
    x, y = share[:, 0] * widths, (1 - share[:, 1]) * heights  # (widths, names)
    start = np.where(left, x - 5 - length, x + 5)
    stop = start + length
    room = np.full(len(names), 10**6)
    for i, width in enumerate(widths[:, 0]):
        taken = np.flatnonzero(room < 10**6)
        for k in np.flatnonzero((room == 10**6) & (start[i] >= 0) & (stop[i] <= width)):
            own = (slice(i, None), [k])
            crosses = (start[i:, taken] < stop[own] + _GAP) & (stop[i:, taken] > start[own] - _GAP)
            if not (crosses & (np.abs(y[i:, taken] - y[own]) < _LINE)).any():
                room[k] = width
                taken = np.append(taken, k)
    return left, room.tolist()
