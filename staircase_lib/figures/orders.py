"""One value for each signature order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from staircase_lib.figures import style


def order_bars(values: Sequence[float], *, value_title: str, title: str = "") -> Any:
    """A bar for each signature order, in the order's colour.

    Parameters
    ----------
    values : sequence of float
        Of orders 0, 1, …; at most four, finite and not negative.
    value_title : str
        What a bar shows.
    title : str
        Shown above the chart.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    ValueError
        If there is no value, there are more than four, or one is negative or not finite.
    """
    numbers = np.asarray(values, dtype=float)
    most = len(style.ORDER_COLORS)
    if numbers.ndim != 1 or not 1 <= numbers.size <= most:
        raise ValueError(
            f"order_bars expects 1 to {most} values, one an order; got shape {numbers.shape}. "
            "Choose the orders to be shown."
        )
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError(
            f"order_bars expects finite values that are not negative; got {numbers.tolist()}."
        )
    names = [f"order {m}" for m in range(len(numbers))]
    rows = [
        {"order": name, "value": float(f"{value:.5g}"), "text": f"{value:.3g}"}
        for name, value in zip(names, numbers, strict=True)
    ]
    top = float(numbers.max()) * 1.12 or 1.0
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("order:N", sort=names, title=None, axis=alt.Axis(ticks=False, domain=False)),
        x=alt.X("value:Q", title=value_title, scale=alt.Scale(domain=[0, top], nice=False)),
        tooltip=[
            alt.Tooltip("order:N", title="signature"),
            alt.Tooltip("value:Q", title=value_title, format=".4g"),
        ],
    )
    colors = alt.Scale(domain=names, range=list(style.ORDER_COLORS[: len(names)]))
    bars = base.mark_bar().encode(color=alt.Color("order:N", scale=colors, legend=None))
    text = base.mark_text(style="direct-label", dx=6).encode(text="text:N")
    chart = alt.layer(bars, text).properties(width=style.TEXT_WIDTH - 90, height=alt.Step(30))
    described = "; ".join(f"{row['order']} {row['text']}" for row in rows)
    return style.finish(
        chart.properties(**({"title": title} if title else {})), f"{value_title}: {described}."
    )
