"""Series in curves: their colours, the labels at their ends, thresholds and value ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures.style import ORDER_COLORS, SERIES_COLORS

_MOST_LABELLED = 4
_LINE_HEIGHT = 14


def series_color(
    groups: Sequence[Any], name: str | None, *, orders: bool, room: float = np.inf
) -> tuple[Any, bool]:
    """Colour channel for the field ``series``, and whether it needs a legend titled `name`.

    It does if there are many series, or if their names need more pixels than `room`.
    Signature orders have their own colours, numbers sequential ones, texts `SERIES_COLORS`.
    """
    numeric = all(isinstance(g, (int, float, np.number)) for g in groups)
    if orders:
        colors = [ORDER_COLORS[_order(group)] for group in groups]
        scale = alt.Scale(domain=_plain(groups), range=colors)
    elif numeric and len(groups) > 1:
        extent = alt.SchemeParams(name="viridis", extent=[0.1, 0.85])
        scale = alt.Scale(domain=_plain(groups), scheme=extent)
    elif len(groups) > len(SERIES_COLORS):
        raise ValueError(
            f"at most {len(SERIES_COLORS)} named series can be told apart, got {len(groups)}: "
            f"{list(groups)}. Choose some, or use a facet."
        )
    else:
        scale = alt.Scale(domain=_plain(groups), range=list(SERIES_COLORS[: len(groups)]))
    wide = label_room(groups) > room
    legend = name is not None and (len(groups) > _MOST_LABELLED or wide)
    guide = alt.Legend(
        title=name, orient="top", columns=6, symbolType="stroke", symbolStrokeWidth=3,
        symbolOpacity=1,
    )  # fmt: skip
    kind = "ordinal" if numeric else "nominal"
    return alt.Color("series", type=kind, scale=scale, legend=guide if legend else None), legend


def label_room(groups: Sequence[Any]) -> float:
    """Pixels that the names at the ends of curves need."""
    return 22 + 6.5 * max(len(str(g)) for g in groups)


def _order(group: Any) -> int:
    digit = str(group)[-1:]
    if not digit.isdigit() or int(digit) >= len(ORDER_COLORS):
        raise ValueError(
            f"signature orders are 0 to {len(ORDER_COLORS) - 1}, or texts that end in one; got "
            f"{group!r}. Drop `order_colors` for series that are not orders."
        )
    return int(digit)


def _plain(groups: Sequence[Any]) -> list[Any]:
    return [g.item() if isinstance(g, np.generic) else g for g in groups]


def ends_of(table: pd.DataFrame, x: str, y: str, series: str) -> pd.DataFrame:
    """Where each series ends: columns ``series`` and ``y`` (median over seeds there)."""
    rows = []
    for group, part in table.dropna(subset=[y]).groupby(series, sort=False):
        last = part[x].max() if pd.api.types.is_numeric_dtype(part[x]) else part[x].iloc[-1]
        rows.append({"series": group, "y": part.loc[part[x] == last, y].median()})
    return pd.DataFrame(rows, columns=["series", "y"])


def end_labels(
    ends: pd.DataFrame,
    domain: tuple[float, float],
    log: bool,
    height: int,
    color: Any,
    edge: Any,
    x: Any,
) -> list[Any]:
    """Each series' name to the right of where it ends, after a dot of its colour, kept apart.

    Parameters
    ----------
    ends
        As `ends_of` gives it.
    domain, log, height
        Range of the vertical axis, whether it is logarithmic, and its pixels.
    color
        Colour channel of the series.
    edge
        Rightmost value of the horizontal axis, where the names stand.
    x
        Horizontal channel definition of the chart (for its field type and scale).
    """
    low, high = (np.log(v) for v in domain) if log else domain
    y = np.log(ends["y"].to_numpy()) if log else ends["y"].to_numpy()
    place = spread(np.clip((y - low) / (high - low), 0, 1), _LINE_HEIGHT / height)
    at = low + place * (high - low)
    at = np.exp(at) if log else at
    rows = [
        {"series": group, "edge": edge, "at": float(f"{value:.5g}"), "text": str(group)}
        for group, value in zip(_plain(list(ends["series"])), at, strict=True)
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(tooltip=alt.value(None))
    base = base.encode(x=_with_field(x, "edge"), y="at:Q")
    dots = base.mark_point(filled=True, size=42, opacity=1, xOffset=10).encode(color=color)
    text = base.mark_text(style="direct-label", dx=17).encode(text="text:N")
    return [dots, text]


def _with_field(channel: Any, field: str) -> Any:
    copy = channel.copy()
    kind = str(channel["shorthand"]).rpartition(":")[2]
    copy["shorthand"] = f"{field}:{kind}"
    return copy


def spread(positions: np.ndarray, gap: float) -> np.ndarray:
    """Move `positions` in [0, 1] as little as needed to be `gap` apart, keeping their order."""
    order = np.argsort(positions, kind="stable")
    placed = np.asarray(positions, dtype=float)[order]
    for k in range(1, len(placed)):
        placed[k] = max(placed[k], placed[k - 1] + gap)
    if len(placed):
        placed[-1] = min(placed[-1], max(1.0, gap * (len(placed) - 1)))
    for k in range(len(placed) - 2, -1, -1):
        placed[k] = min(placed[k], placed[k + 1] - gap)
    result = np.empty_like(placed)
    result[order] = placed
    return result


def threshold_rule(value: float, label: str, domain: tuple[float, float], y: Any) -> list[Any]:
    """Dashed horizontal rule with its label at the left, on the side where there is room."""
    upper = (value - domain[0]) > 0.9 * (domain[1] - domain[0])
    base = alt.Chart(alt.Data(values=[{"y": value, "label": label}])).encode(
        y=_with_field(y, "y"), tooltip=alt.value(None)
    )
    texts = [
        base.mark_text(
            style=look, dx=6, dy=5 if upper else -5, baseline="top" if upper else "bottom"
        ).encode(x=alt.value(0), text="label:N")
        for look in ("text-halo", "threshold-label")  # curves may pass there
    ]
    return [base.mark_rule(style="threshold"), *(texts if label else [])]


def value_range(values: Sequence[float | None], log: bool) -> tuple[float, float]:
    """Range of an axis that holds all finite values, with a little room around them."""
    finite = np.array([v for v in values if v is not None and np.isfinite(v)], dtype=float)
    if log:
        finite = finite[finite > 0]
    if not len(finite):
        raise ValueError(
            f"expected at least one finite{' positive' if log else ''} value, got none. "
            "Check the table, or use a linear axis."
        )
    low, high = float(finite.min()), float(finite.max())
    if log:
        return low / 1.15, high * 1.15
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin
