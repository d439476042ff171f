"""A phase diagram over three settings, and the runs behind each of its points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.tables import ordered, printable_texts, require_columns, require_single
from staircase_lib.printable import printable

_CELL = 36
_THOUSANDTHS = 1000
_POINT = ["gamma", "width", "length"]
_CHOSEN = (
    "abs(datum.gamma - point.gamma[0]) < 1e-6 && datum.width == point.width[0]"
    " && datum.length == length"
)


def phase_diagram(
    table: pd.DataFrame,
    loss: pd.DataFrame,
    shares: pd.DataFrame,
    *,
    loss_times: Sequence[float],
    share_times: Sequence[float],
    start: tuple[float, int, int],
    loss_title: str,
    levels: Mapping[str, float],
    time_title: str = "time",
    width_title: str = "width d",
    first: str | None = None,
) -> Any:
    """Heatmap of a chosen quantity over γ and width, linked to the runs of the chosen point.

    A menu chooses the quantity and buttons the sequence length. A click on a cell, or the slider
    for γ with the buttons for the width, chooses a point, whose seeds' loss and whose order shares
    (medians of the seeds) stand below. Cells carry their number; brighter is more, on a scale of
    each quantity's own, the same for all lengths, logarithmic where it spans more than a factor of
    twenty.

    Parameters
    ----------
    table : DataFrame
        One row a point and quantity: ``gamma``, ``width``, ``length``, ``quantity``, ``value``
        (``nan``: undefined), and optionally ``censored`` (bool: a lower bound), ``text`` (instead
        of the number) and ``predicted`` (a time, drawn as a rule in the loss).
    loss : DataFrame
        One row a point and seed: ``gamma``, ``width``, ``length``, ``seed`` and ``value``, a list
        along `loss_times`, shorter where the run ended earlier; sent to three decimals.
    shares : DataFrame
        One row a point and order: ``gamma``, ``width``, ``length``, ``order`` (0 to 3) and
        ``value``, a list along `share_times` as above.
    loss_times, share_times : (T,) float
        Increasing, positive.
    start : (gamma, width, length)
        The point that is shown first.
    loss_title : str
        What the loss's values are.
    levels : mapping from name to value
        Dashed rules in the loss.
    time_title, width_title : str
        Names of the time and of the width.
    first : str, optional
        The quantity that is shown first; default that of the first row.

    Returns
    -------
    altair.ConcatChart

    Raises
    ------
    ValueError
        If a column is missing, a point has no detail, a list is longer than its times, or the
        first point or quantity is unknown.
    """
    require_columns(table, [*_POINT, "quantity", "value"], "phase_diagram")
    require_single(table, [*_POINT, "quantity"], "phase_diagram")
    table = printable_texts(table)
    for name, detail, key, times in (
        ("loss", loss, "seed", loss_times),
        ("shares", shares, "order", share_times),
    ):
        require_columns(detail, [*_POINT, key, "value"], f"phase_diagram ({name})")
        longest = max(map(len, detail["value"]))
        if longest > len(times):
            raise ValueError(
                f"{name}: expected lists no longer than their {len(times)} times, got {longest}."
            )
    points = set(table[_POINT].itertuples(index=False, name=None))
    bare = points - set(loss[_POINT].itertuples(index=False, name=None))
    if bare or tuple(start) not in points:
        raise ValueError(
            f"phase_diagram expects the loss of every point and a start among them; without loss: "
            f"{sorted(bare)[:3]}, start {tuple(start)}. Give each point its runs."
        )
    quantities = ordered(table, "quantity")
    shown = quantities[0] if first is None else printable(first)
    if shown not in quantities:
        raise ValueError(f"first: expected one of {quantities}, got {first!r}.")
    gammas, widths, lengths = (ordered(table, key) for key in _POINT)

    both: Any = {
        "gamma": _binding(gammas, "rate γ "),
        "width": alt.binding_radio(options=widths, name=f"{width_title} "),
    }
    choose = alt.selection_point(
        name="point", fields=["gamma", "width"], on="click", clear=False, toggle=False,
        value=[{"gamma": start[0], "width": start[1]}],
        bind=both,
    )  # fmt: skip
    params = [
        alt.param(
            name="quantity", value=shown, bind=alt.binding_select(options=quantities, name="show ")
        ),
        alt.param(name="loss_times", value=_digits(loss_times)),
        alt.param(name="share_times", value=_digits(share_times)),
        alt.param(
            name="length", value=start[2], bind=alt.binding_radio(options=lengths, name="length L ")
        ),
    ]
    room = style.TEXT_WIDTH - 90
    low, high = float(loss_times[0]), float(loss_times[-1])
    time = alt.X(
        "time:Q",
        title=f"{time_title} (log scale)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(
            values=style.decades(low, high), grid=False, labelOverlap=True,
            labelExpr="format(datum.value, datum.value < 1 ? '~r' : '~s')",
        ),
    )  # fmt: skip
    heatmap = _heatmap(table, choose, width_title, widths).properties(
        width=room // len(gammas) * len(gammas),
        height=_CELL * len(widths),
        title=alt.Title(text=alt.expr("quantity + ', L = ' + length"), limit=320),  # pyright: ignore[reportArgumentType]
    )
    where = "'γ = ' + format(point.gamma[0], '~r') + ', d = ' + point.width[0] + ', L = ' + length"
    curves = _loss(table, loss, time, loss_title, levels, time_title).properties(
        width=room, height=150,
        title=alt.Title(text=alt.expr(f"'Loss at ' + {where}")),  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    orders = _shares(shares, time).properties(
        width=room, height=110,
        title=alt.Title(text="Share of each order there"),
    )  # fmt: skip
    chart = (
        alt.concat(heatmap, curves, orders, columns=1)
        .resolve_scale(color="independent", opacity="independent")
        .add_params(*params)
    )
    at_first: Any = table[table["quantity"] == shown]
    description = (
        f"Phase diagram over γ from {gammas[0]} to {gammas[-1]}, widths "
        f"{', '.join(map(str, widths))} and lengths {', '.join(map(str, lengths))}; a menu offers "
        f"{', '.join(quantities)}. Below, the loss of the seeds and the order shares of the "
        f"chosen point. {_summary(at_first, shown, lengths)}"
    )
    return style.finish(chart, description)


def _binding(values: Sequence[float], name: str) -> Any:
    """A slider over evenly spaced numbers, a menu over others."""
    gaps = np.diff(values)
    if len(values) > 1 and np.allclose(gaps, gaps[0]):
        step = round(float(gaps[0]), 6)
        return alt.binding_range(min=values[0], max=values[-1], step=step, name=name)
    return alt.binding_select(options=list(values), name=name)


def number_text(value: float, censored: bool = False) -> str:
    """A number in few characters, as a cell shows it."""
    if not np.isfinite(value):
        return "–"
    if abs(value) >= 9_950:
        text = f"{value / 1000:.0f}k"
    elif 0.95 <= abs(value) < 1:  # two digits would hide what is short of one
        text = f"{value:.3g}"
    elif abs(value) >= 995:
        text = f"{value / 1000:.1f}k"
    else:
        text = f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.2g}"
    return f">{text}" if censored else text


def _shades(values: np.ndarray) -> np.ndarray:
    """Values on a scale from 0 to 1 of their own."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.zeros(len(values))
    if finite.min() > 0 and finite.max() > 20 * finite.min():
        values, finite = np.log(values), np.log(finite)
    span = float(finite.max() - finite.min()) or 1.0
    return np.nan_to_num((values - finite.min()) / span)


def _heatmap(table: pd.DataFrame, choose: Any, width_title: str, widths: list[Any]) -> Any:
    rows = []
    for quantity, part in table.groupby("quantity", sort=False):
        shades = _shades(part["value"].to_numpy(dtype=float))
        for record, shade in zip(part.to_dict("records"), shades, strict=True):
            censored = bool(record.get("censored", False))
            given = record.get("text")
            text = given if isinstance(given, str) else number_text(record["value"], censored)
            rows.append(
                {key: record[key] for key in _POINT}
                | {"quantity": quantity, "text": text, "shade": round(float(shade), 3)}
            )
    base = (
        alt.Chart(alt.Data(values=rows))
        .transform_filter("datum.quantity == quantity && datum.length == length")
        .encode(
            x=alt.X("gamma:O", title="initialization rate γ", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("width:O", title=width_title, sort=widths[::-1]),
        )
    )
    chosen = "abs(datum.gamma - point.gamma[0]) < 1e-6 && datum.width == point.width[0]"
    cells = (
        base.mark_rect(cursor="pointer")
        .encode(
            color=alt.Color(
                "shade:Q", legend=None,
                scale=alt.Scale(scheme=style.TOKEN_SCHEME, domain=[0, 1]),
            ),
            tooltip=[
                alt.Tooltip("text:N", title="value"),
                alt.Tooltip("gamma:Q", title="γ"),
                alt.Tooltip("width:Q", title=width_title),
            ],
        )
        .add_params(choose)
    )  # fmt: skip
    words = base.mark_text(fontSize=11).encode(
        text="text:N",
        color=alt.condition("datum.shade > 0.55", alt.value("#000000"), alt.value("#FFFFFF")),
        tooltip=alt.value(None),
    )
    frame = (
        base.transform_filter(chosen)
        .mark_rect(filled=False, stroke="#D55E00", strokeWidth=3)
        .encode(tooltip=alt.value(None))
    )
    return alt.layer(cells, words, frame)


def _digits(times: Sequence[float]) -> list[float]:
    return [float(f"{t:.4g}") for t in times]


def _tracks(table: pd.DataFrame, key: str) -> list[dict[str, Any]]:
    """One row a curve, with the list that Vega flattens, in thousandths."""
    return [
        {name: row[name] for name in (*_POINT, key)}
        | {"v": [round(float(v) * _THOUSANDTHS) if np.isfinite(v) else None for v in row["value"]]}
        for row in table.to_dict("records")
    ]


def _curve_base(table: pd.DataFrame, key: str, times: str) -> Any:
    return (
        alt.Chart(alt.Data(values=_tracks(table, key)))
        .transform_filter(_CHOSEN)
        .transform_flatten(["v"])
        .transform_window(number="row_number()", groupby=[key])
        .transform_calculate(
            time=f"{times}[datum.number - 1]",
            value=f"datum.v === null ? null : datum.v / {_THOUSANDTHS}",
        )
    )


def _loss(
    table: pd.DataFrame,
    loss: pd.DataFrame,
    time: Any,
    loss_title: str,
    levels: Mapping[str, float],
    time_title: str,
) -> Any:
    top = max(max(levels.values(), default=0), max(max(v) for v in loss["value"])) * 1.04
    y = alt.Y(
        "value:Q", title=loss_title, scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(tickCount=5),
    )  # fmt: skip
    lines = (
        _curve_base(loss, "seed", "loss_times")
        .mark_line(strokeWidth=1.2, opacity=0.7, color=style.SERIES_COLORS[2], clip=True)
        .encode(
            x=time, y=y, detail="seed:N",
            tooltip=[
                alt.Tooltip("seed:N", title="seed"),
                alt.Tooltip("time:Q", title=time_title, format=",.3~r"),
                alt.Tooltip("value:Q", title=loss_title, format=".3f"),
            ],
        )
    )  # fmt: skip
    layers: list[Any] = [lines]
    if levels:
        rows = [{"value": v, "label": name} for name, v in levels.items()]
        base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("value:Q"), tooltip=alt.value(None))
        layers.append(base.mark_rule(style="threshold"))
        layers.append(
            base.mark_text(style="threshold-label", dx=4, dy=-5, baseline="bottom").encode(
                x=alt.value(0), text="label:N"
            )
        )
    if "predicted" in table:
        once = table.drop_duplicates(_POINT).dropna(subset=["predicted"])
        rows = [
            {name: row[name] for name in _POINT} | {"time": float(f"{row['predicted']:.4g}")}
            for row in once.to_dict("records")
        ]
        moment = alt.Chart(alt.Data(values=rows)).transform_filter(_CHOSEN)
        moment = moment.encode(x=alt.X("time:Q"), tooltip=alt.value(None))
        layers.append(moment.mark_rule(style="moment", strokeDash=[2, 3], clip=True))
        layers.append(
            moment.mark_text(style="direct-label", dx=4, dy=-8, baseline="bottom").encode(
                y=alt.value(150), text=alt.value("predicted stair")
            )
        )
    return alt.layer(*layers)


def _shares(shares: pd.DataFrame, time: Any) -> Any:
    orders = ordered(shares, "order")
    named = shares.assign(order=[f"order {order}" for order in shares["order"]])
    color = alt.Color(
        "order:N",
        scale=alt.Scale(
            domain=[f"order {order}" for order in orders],
            range=[style.ORDER_COLORS[order] for order in orders],
        ),
        legend=alt.Legend(
            title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=3, columns=2
        ),
    )
    return (
        _curve_base(named, "order", "share_times")
        .mark_line(strokeWidth=2.5, clip=True)
        .encode(
            x=time, color=color,
            y=alt.Y("value:Q", title="share", scale=alt.Scale(domain=[0, 1]),
                    axis=alt.Axis(tickCount=3)),
            tooltip=[
                alt.Tooltip("order:N", title="order"),
                alt.Tooltip("time:Q", title="time", format=",.3~r"),
                alt.Tooltip("value:Q", title="share", format=".2f"),
            ],
        )
    )  # fmt: skip


def _summary(part: pd.DataFrame, quantity: str, lengths: list[Any]) -> str:
    texts = []
    for length in lengths:
        values = part.loc[part["length"] == length, "value"].to_numpy(dtype=float)
        finite = values[np.isfinite(values)]
        if len(finite):
            texts.append(
                f"length {length}: {number_text(finite.min())} to {number_text(finite.max())}"
            )
    return f"Shown at first, {quantity}: {'; '.join(texts)}."
