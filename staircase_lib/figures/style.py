"""The look that all charts share, and the renderer that shows them.

One meaning, one look: the colours, the fonts, the time axis, the slider over snapshots and
the thin rule of the current moment are defined here and nowhere else. Colours that depend
on the page (text, rules, grid) stand in named styles, which ``book/_assets/charts.js``
replaces in dark mode; data colours are readable on both grounds.
"""

from __future__ import annotations

import base64
import io
import struct
import sys
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from staircase_lib.printable import printable

VEGALITE_MIME = "application/vnd.vegalite.v5+json"
TEXT_WIDTH = 688
"""Width of the book's text column in pixels; no chart is wider."""

ORDER_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
"""Okabe–Ito blue, orange, green, purple: signature orders 0, 1, 2, 3, everywhere."""
SERIES_COLORS = ("#7A889E", "#D55E00", "#2B9AC8", "#9C6B30", "#B5467A", "#7C8A12")
"""Series that are not signature orders; none of the order colours is reused."""
DATA_COLOR, MODEL_COLOR = "#9AA6B2", "#D55E00"
TOKEN_SCHEME = alt.SchemeParams(name="viridis", extent=[0.08, 0.9])
"""Sequential colours for token numbers; points also get a thin outline in the ink colour."""

_INK, _MUTED = "#24292F", "#57606A"
_DARK_INK, _DARK_GRID, _DARK_LINE, _DARK_MUTED = "#e6edf3", "#30363d", "#6e7681", "#a8b3bf"
_DARK_GROUND = "#14181d"
DARK: dict[str, Any] = {
    "view": {"stroke": _DARK_GRID},
    "title": {"color": _DARK_INK},
    "axis": {
        "labelColor": _DARK_INK,
        "titleColor": _DARK_INK,
        "gridColor": _DARK_GRID,
        "domainColor": _DARK_LINE,
        "tickColor": _DARK_LINE,
    },
    "legend": {"labelColor": _DARK_INK, "titleColor": _DARK_INK},
    "header": {"labelColor": _DARK_INK, "titleColor": _DARK_INK},
    "style": {
        "direct-label": {"color": _DARK_INK},
        "moment": {"color": _DARK_INK},
        "token-point": {"stroke": _DARK_INK},
        "threshold": {"color": _DARK_MUTED},
        "threshold-label": {"color": _DARK_MUTED},
        "token-mark": {"color": _DARK_INK},
        "token-halo": {"color": _DARK_GROUND},
        "token-name": {"color": _DARK_INK},
        "text-halo": {"stroke": _DARK_GROUND},
    },
}
"""What differs on a dark ground; the book's ``charts.js`` has the same."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PNG_SCALE = 3.125
"""300 dots an inch on paper, where a page's pixel is 1/96 inch."""


@alt.theme.register("staircase", enable=False)
def look() -> alt.theme.ThemeConfig:
    """Fonts, sizes and named styles of every chart (light ground)."""
    # DejaVu before the generic family: it has Greek, super- and subscripts in one face.
    font = "Segoe UI, Helvetica Neue, Arial, DejaVu Sans, sans-serif"
    config = {
        "font": font,
        "background": "white",
        "view": {"stroke": "#D0D7DE"},
        "title": {"fontSize": 13, "fontWeight": 600, "anchor": "start", "color": _INK, "offset": 8},
        "axis": {
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": 400,
            "labelColor": _INK,
            "titleColor": _INK,
            "gridColor": "#E6EAEF",
            "domainColor": "#8C959F",
            "tickColor": "#8C959F",
            "titlePadding": 6,
        },
        "legend": {
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": 400,
            "labelColor": _INK,
            "titleColor": _INK,
        },
        "header": {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 11},
        "concat": {"spacing": 20},
        "style": {
            "direct-label": {"color": _INK, "fontSize": 11, "align": "left", "baseline": "middle"},
            "moment": {"color": _INK, "strokeWidth": 1},
            "threshold": {"color": _MUTED, "strokeWidth": 1.2, "strokeDash": [5, 3]},
            "threshold-label": {"color": _MUTED, "fontSize": 11, "align": "left"},
            "token-point": {"stroke": _INK, "strokeWidth": 0.6},
            "text-halo": {"stroke": "#FFFFFF", "strokeWidth": 3, "fontSize": 11, "align": "left"},
            "token-mark": {"color": _INK, "strokeWidth": 2},
            "token-halo": {"color": "#FFFFFF", "strokeWidth": 4.5},
            "token-name": {"color": _INK, "fontSize": 12, "fontWeight": 700, "align": "left"},
        },
    }
    return {"config": config}  # pyright: ignore[reportReturnType]


def enable() -> None:
    """Show charts as Vega-Lite with a PNG and a text alternative behind them.

    Every chart is displayed as ``application/vnd.vegalite.v5+json`` (JupyterLab and the book
    draw it), ``image/png`` at 300 dots an inch (print, no script) and ``text/plain`` (its
    description). In Google Colab, Altair's own ``colab`` renderer is used.

    Pictures are drawn with the fonts of the machine that runs the code: letters that none of
    these has (Chinese without a CJK font) become boxes there, though not in a reader's browser.
    """
    alt.theme.enable("staircase")
    alt.data_transformers.disable_max_rows()
    if "google.colab" in sys.modules:
        alt.renderers.enable("colab")
        return
    alt.renderers.register("staircase", _mime_bundle)
    alt.renderers.enable("staircase")


def _mime_bundle(spec: dict[str, Any], **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    import vl_convert

    png = vl_convert.vegalite_to_png(
        spec, vl_version=alt.SCHEMA_VERSION[1:].rpartition(".")[0], scale=PNG_SCALE,
        allowed_base_urls=[],
    )  # fmt: skip
    width, height = (round(side / PNG_SCALE) for side in struct.unpack(">II", png[16:24]))
    bundle = {
        VEGALITE_MIME: spec,
        "image/png": base64.b64encode(_smaller(png)).decode(),
        "text/plain": spec.get("description", "chart"),
    }
    return bundle, {"image/png": {"width": width, "height": height}}


def _smaller(png: bytes) -> bytes:
    """The picture with a palette, an eighth of its size; charts have few colours."""
    from PIL import Image

    out = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()


def finish(
    chart: Any,
    description: str,
    *,
    clock: str = "",
    steps: Sequence[int] | None = None,
    time_title: str = "epoch",
    square: bool = False,
    cells: int = 1,
    canvas: bool = False,
    token_field: str = "",
    token_names: str = "",
) -> Any:
    """Attach the text alternative and what ``charts.js`` needs to know about the chart.

    Parameters
    ----------
    chart
        Any Altair chart.
    description
        Text alternative.
    clock
        Charts of a page with the same clock share the current moment.
    steps
        Steps of the slider's snapshots, if the chart has a slider.
    time_title
        What a step is called.
    square
        Whether width and height must shrink together on a phone.
    cells
        Number of which a panel's width in pixels must stay a multiple.
    canvas
        Whether to draw on a canvas (many marks) instead of SVG.
    token_field
        Field that names a mark's token, if marks stand for tokens. Such charts of a page share the
        token that a reader points at: the parameter ``token``, a name, or empty.
    token_names
        Parameter that lists the names of the tokens; default those found in the data.
    """
    about: dict[str, Any] = {"clock": clock, "square": square, "cells": cells, "canvas": canvas}
    if steps is not None:
        about["slider"] = {"param": "snapshot", "steps": list(steps), "label": time_title}
    if token_field:
        about |= {"tokens": "token", "token_field": token_field}
        about |= {"token_names": token_names} if token_names else {}
        chart = chart.add_params(alt.param(name="token", value=""))
    return chart.properties(description=printable(description), usermeta={"staircase": about})


def marked_lines(n: int, x: Any, y: Any, names: str) -> list[Any]:
    """Frames around the row and the column of the token that a reader points at.

    Parameters
    ----------
    n
        Number of rows and of columns.
    x, y
        Channels over their positions 0, …, n - 1, in a field ``k``.
    names
        Parameter that lists the tokens' names.
    """
    base = alt.Chart(alt.sequence(0, n, as_="k")).transform_filter(f"{names}[datum.k] === token")
    frames = [base.encode(y=y), base.encode(x=x)]
    return [
        frame.mark_rect(filled=False, style=look).encode(tooltip=alt.value(None))
        for look in ("token-halo", "token-mark")
        for frame in frames
    ]


def marked_point(base: Any, size: int = 170) -> list[Any]:
    """Ring around the point of the token that a reader points at, and its name.

    Parameters
    ----------
    base
        Chart with the positions and the tokens' names in the field ``name``.
    size
        Of the ring, in square pixels.
    """
    at = base.transform_filter("datum.name === token").encode(tooltip=alt.value(None))
    ring = at.mark_point(style="token-mark", filled=False, size=size, opacity=1)
    return [ring, at.mark_text(style="token-name", dx=10, dy=-9).encode(text="name:N")]


def dimmed(name: str, names: str) -> Any:
    """Opacity that steps back when a reader points at another of the tokens `names`.

    Parameters
    ----------
    name
        Expression for the mark's token.
    names
        Parameter that lists the names of the tokens in the chart.
    """
    return alt.value(alt.expr(f"indexof({names}, token) < 0 || {name} === token ? 1 : 0.25"))


def slider_params(steps: Sequence[int], at: int | None, time_title: str) -> list[Any]:
    """Parameters ``steps`` and ``snapshot``, the latter bound to a slider if there is a choice.

    The slider moves over positions, because snapshots are not evenly spaced; the chart's
    title and the book's slider show the step itself.
    """
    position = len(steps) - 1
    if at is not None:
        if at not in steps:
            raise ValueError(
                f"`at` must be the step of a snapshot; expected one of {list(steps)}, got {at}. "
                "Choose a recorded step or record a snapshot there."
            )
        position = list(steps).index(at)
    bind: dict[str, Any] = {}
    if len(steps) > 1:
        name = f"{time_title} (snapshot) "
        bind["bind"] = alt.binding_range(min=0, max=len(steps) - 1, step=1, name=name)
    return [
        alt.param(name="steps", value=list(steps)),
        alt.param(name="snapshot", value=position, **bind),
    ]


def moment_title(title: str, time_title: str, *, moving: bool) -> tuple[Any, list[Any]]:
    """Title that names the current step, with the parameters that it reads."""
    if not moving:
        return alt.Title(title) if title else None, []
    # The texts travel as parameter values, never inside the expression.
    params = [
        alt.param(name="heading", value=f"{title} · {time_title} " if title else f"{time_title} ")
    ]
    return alt.Title(text=alt.expr("heading + format(steps[snapshot], ',')")), params  # pyright: ignore[reportArgumentType]


def moment_rule() -> Any:
    """Thin rule at the current moment, hidden until a slider of the page has been moved."""
    return (
        alt.Chart(alt.Data(values=[{}]))
        .mark_rule(style="moment", clip=True)
        .encode(
            x=alt.XDatum(alt.expr("now"), type="quantitative"),  # pyright: ignore[reportArgumentType]
            opacity=alt.value(alt.expr("now >= 0 ? 0.7 : 0")),
            tooltip=alt.value(None),
        )
    )


def now_param() -> Any:
    """The step that a slider of the page stands at; negative: none."""
    return alt.param(name="now", value=-1)


def time_axis(steps: np.ndarray, title: str, *, log: bool) -> dict[str, Any]:
    """Scale and axis for training steps; the logarithmic one has room for step 0."""
    low, high = float(np.min(steps)), float(np.max(steps))
    if high <= low:
        high = low + 1
    domain = [low, high]
    if not log:
        return {
            "title": title,
            "scale": alt.Scale(domain=domain, nice=False),
            "axis": alt.Axis(format=",d", tickCount=6, tickMinStep=1, grid=False),
        }
    kind = "log" if low > 0 else "symlog"
    values = decades(low, high)
    return {
        "title": f"{title} (log scale)",
        "scale": alt.Scale(type=kind, domain=domain, nice=False),
        "axis": alt.Axis(
            values=values, format=",d", grid=False, labelOverlap=True, labelSeparation=6
        ),
    }


def value_axis(low: float, high: float, *, log: bool) -> alt.Axis:
    """Axis of a measured value with few, plain ticks."""
    if not log:
        return alt.Axis(tickCount=6)
    ticks = decades(low, high)
    if min(ticks, default=1) >= 0.001:
        return alt.Axis(values=ticks, format=",.6~r")
    powers = [t for t in ticks if t == 0 or f"{t:.0e}".startswith("1e")]  # 10⁻⁷, not 0.0000001
    exponents = [f"10{str(round(np.log10(t))).translate(_RAISED)}" if t else "0" for t in powers]
    return alt.Axis(values=powers, labelExpr=f"{exponents}[indexof({powers}, datum.value)]")


def decades(low: float, high: float) -> list[float]:
    """Ticks 1, 10, 100, … within ``[low, high]``; also 3, 30, … (and 0) where there is room."""
    top = int(np.floor(np.log10(high))) if high > 0 else 0
    bottom = int(np.floor(np.log10(low))) if low > 0 else 0
    factors = (1, 3) if top - bottom <= 3 else (1,)
    ticks = [f * 10.0**k for k in range(bottom, top + 1) for f in factors]
    ticks = [0.0] * (low <= 0) + [t for t in ticks if low <= t <= high]
    return [int(t) if t == int(t) else t for t in ticks]


def tick_positions(labels: Sequence[str], pixels: float) -> tuple[list[int], bool]:
    """Which of `labels` fit along an axis `pixels` long, and whether they must stand upright.

    Numbers are thinned to every 2nd, 5th, 10th, …; words are kept and turned upright.
    """
    room = pixels / max(len(labels), 1)
    longest = max((len(label) for label in labels), default=1)
    words = not all(label.lstrip("-").isdigit() for label in labels)
    upright = words and longest * 6.5 + 4 > room
    needed = 12.0 if upright else longest * 6.5 + 6
    every = next(k for k in (1, 2, 5, 10, 20, 50, 100, 10**9) if k * room >= needed)
    return list(range(0, len(labels), every)), upright
