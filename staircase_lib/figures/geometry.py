"""Geometry of the tokens' vectors: similarity matrices and principal components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from staircase_lib.figures import style
from staircase_lib.figures.snapshots import (
    assemble,
    at_snapshot,
    check_steps,
    label_names,
    of,
    panel_arrays,
    times,
)

_INT8 = 127
_POSITION = 1000


def similarity_heatmap(
    steps: Sequence[int],
    similarities: np.ndarray | Mapping[str, np.ndarray],
    labels: Sequence[Any] | None = None,
    *,
    title: str = "",
    panels: Sequence[str] | None = None,
    at: int | None = None,
    time_title: str = "epoch",
    value_title: str = "cosine similarity",
    axis_title: str = "token",
    clock: str = "",
) -> Any:
    """Similarity matrices on the fixed scale [-1, 1], tokens in natural order.

    Parameters
    ----------
    steps : (S,) int
        Steps of the snapshots, increasing.
    similarities : (S, n, n) or (n, n), or a mapping from panel name to such arrays
        Values in [-1, 1]. An (n, n) panel beside others stays the same at every step.
        They are sent as 8-bit integers, so a shown value is within 1/254 of the given one.
    labels : (n,), optional
        Names of the tokens; default 0, 1, ….
    title : str
        Shown above the chart, followed by the current step.
    panels : sequence of str, optional
        Which panels of the mapping to draw, in which order.
    at : int, optional
        Step at which the slider starts; default the last one.
    time_title, value_title, axis_title : str
        What a step, a cell and an axis are called.
    clock : str
        Charts of a page with the same clock share the current moment.

    Returns
    -------
    altair.Chart or altair.ConcatChart

    Raises
    ------
    ValueError
        If shapes do not fit or a value is not finite or outside [-1, 1].
    """
    steps = check_steps(steps)
    matrices = panel_arrays("similarities", similarities, steps, panels, trailing=2)
    n = next(iter(matrices.values())).shape[-1]
    for name, matrix in matrices.items():
        if matrix.shape[-2:] != (n, n):
            raise ValueError(
                f"similarities{of(name)} must be square and of one size for all panels; expected "
                f"(…, {n}, {n}), got {matrix.shape}. Pass the similarity matrix of the same tokens."
            )
        if not np.isfinite(matrix).all() or np.abs(matrix).max() > 1 + 1e-6:
            raise ValueError(
                f"similarities{of(name)} must be finite and within [-1, 1]; got values from "
                f"{matrix.min()} to {matrix.max()}. Normalise the vectors, or drop zero ones."
            )
    names = label_names(labels, n)
    side = {1: 380, 2: 256, 3: 168}.get(len(matrices), 256)
    side = side // n * n or side  # whole pixels a cell
    ticks, upright = style.tick_positions(names, side)
    axis = alt.Axis(
        values=ticks, labelExpr="names[datum.value]", ticks=False, domain=False, labelPadding=4,
        labelAngle=-90 if upright else 0, labelOverlap=True, labelLimit=110,
    )  # fmt: skip
    vertical = axis.copy()
    vertical["labelAngle"] = 0
    legend = alt.Legend(
        title=value_title, orient="bottom", offset=4,
        gradientLength=160, values=[-1, -0.5, 0, 0.5, 1], format="+.1~f", titleLimit=220,
    )  # fmt: skip

    def panel(name: str, matrix: np.ndarray, first: bool) -> Any:
        rows = [
            {"t": t, "q": np.rint(m * _INT8).astype(int).ravel().tolist()}
            for t, m in enumerate(matrix)
        ]
        chart = at_snapshot(rows, ["q"]).transform_calculate(
            i=f"floor(datum.k / {n})", j=f"datum.k % {n}", value=f"datum.q / {_INT8}",
            row="names[datum.i]", column="names[datum.j]",
        )  # fmt: skip
        domain = alt.Scale(domain=list(range(n)), paddingInner=0, paddingOuter=0)

        def across(field: str) -> Any:
            return alt.X(f"{field}:O", scale=domain, axis=axis, title=axis_title)

        def down(field: str) -> Any:
            shown = axis_title if first else None
            return alt.Y(f"{field}:O", scale=domain, axis=vertical, title=shown)

        cells = chart.mark_rect().encode(
            x=across("j"),
            y=down("i"),
            color=alt.Color(
                "value:Q", legend=legend,
                scale=alt.Scale(scheme="redblue", reverse=True, domain=[-1, 1]),
            ),
            tooltip=[
                alt.Tooltip("row:N", title=axis_title),
                alt.Tooltip("column:N", title="with"),
                alt.Tooltip("value:Q", title=value_title, format=".2f"),
            ],
        )  # fmt: skip
        marked = style.marked_lines(n, across("k"), down("k"), "names")
        return alt.layer(cells, *marked).properties(
            width=side, height=side, **({"title": name} if name else {})
        )

    charts = [panel(name, m, k == 0) for k, (name, m) in enumerate(matrices.items())]
    off = ~np.eye(n, dtype=bool)
    ranges = "; ".join(
        f"{name + ': ' if name else ''}off the diagonal {m[-1][off].min():.2f} to "
        f"{m[-1][off].max():.2f}"
        for name, m in matrices.items()
        if n > 1
    )
    description = (
        f"Heatmap of {value_title} between {n} tokens, {names[0]} to {names[-1]}, in natural "
        f"order, on a scale from -1 to 1{times(steps, time_title)}. At the last: {ranges}."
    )
    return assemble(
        charts, names, steps, moving=any(len(m) > 1 for m in matrices.values()), title=title,
        at=at, time_title=time_title, description=description, clock=clock, square=True,
        cells=n, canvas=True, token_field="row",
    )  # fmt: skip


def pca_scatter(
    steps: Sequence[int],
    points: np.ndarray | Mapping[str, np.ndarray],
    labels: Sequence[Any],
    *,
    explained: np.ndarray | Mapping[str, np.ndarray] | None = None,
    connect: bool = True,
    title: str = "",
    at: int | None = None,
    time_title: str = "epoch",
    axis_title: str = "token",
    clock: str = "",
) -> Any:
    """Two principal components of the tokens' vectors, coloured by token number.

    Each snapshot is scaled to its own largest radius, so that the picture shows shape and
    does not jump; both axes have the same scale.

    Parameters
    ----------
    steps : (S,) int
        Steps of the snapshots, increasing.
    points : (S, n, 2) or (n, 2), or a mapping from panel name to such arrays
        Centred coordinates, as a PCA gives them.
    labels : (n,)
        Names of the tokens in natural order.
    explained : (S, 2) or (2,), or a mapping as for `points`, optional
        Fractions of the variance along the two components, shown in the title.
    connect : bool
        Join the tokens by a thin line in natural order.
    title, at, time_title, axis_title, clock
        As in `similarity_heatmap`.

    Returns
    -------
    altair.LayerChart or altair.ConcatChart

    Raises
    ------
    ValueError
        If shapes do not fit or a coordinate is not finite.
    """
    steps = check_steps(steps)
    clouds = panel_arrays("points", points, steps, None, trailing=2)
    n = len(labels)
    names = label_names(labels, n)
    shares: dict[str, np.ndarray] = {}
    if explained is not None:
        shares = panel_arrays("explained", explained, steps, None, trailing=1)
        if list(shares) != list(clouds):
            raise ValueError(
                f"explained must have the panels of points; expected {list(clouds)}, got "
                f"{list(shares)}. Pass one (S, 2) array for each."
            )
    for name, cloud in clouds.items():
        if cloud.shape[-2:] != (n, 2) or not np.isfinite(cloud).all():
            raise ValueError(
                f"points{of(name)} must be finite with one row a label; expected (S, {n}, 2) or "
                f"({n}, 2), got {cloud.shape}. Keep two components of the {n} labelled tokens."
            )
    side = {1: 400, 2: 270, 3: 176}.get(len(clouds), 270)
    marked = sorted({round(k) for k in np.linspace(0, n - 1, min(n, 5))})
    params = [alt.param(name="shares", value=[np.round(s, 4).tolist() for s in shares.values()])]

    def panel(k: int, name: str, cloud: np.ndarray) -> Any:
        radius = np.sqrt((cloud**2).sum(-1)).max(-1, keepdims=True)[..., None]
        scaled = np.rint(cloud / np.where(radius > 0, radius, 1) * _POSITION).astype(int)
        rows = [
            {"t": t, "x": x.tolist(), "y": y.tolist()}
            for t, (x, y) in enumerate(scaled.transpose(0, 2, 1))
        ]
        base = at_snapshot(rows, ["x", "y"]).transform_calculate(
            u=f"datum.x / {_POSITION}", v=f"datum.y / {_POSITION}", name="names[datum.k]"
        )

        def axis(field: str, word: str) -> dict[str, Any]:
            return {
                "shorthand": f"{field}:Q",
                "title": f"{word} component (relative)",
                "scale": alt.Scale(domain=[-1.12, 1.12], nice=False),
                "axis": alt.Axis(values=[-1, -0.5, 0, 0.5, 1], format=".1~f"),
            }

        base = base.encode(x=alt.X(**axis("u", "first")), y=alt.Y(**axis("v", "second")))
        path = base.mark_line(color="#8C959F", strokeWidth=1).encode(order="k:Q")
        dots = base.mark_point(style="token-point", filled=True, size=55, opacity=1).encode(
            color=alt.Color("k:Q", scale=alt.Scale(scheme=style.TOKEN_SCHEME), legend=None),
            tooltip=[alt.Tooltip("name:N", title=axis_title)],
        )
        text = base.transform_filter(
            f"indexof({marked}, datum.k) >= 0 && datum.name !== token"
        ).encode(text="name:N", tooltip=alt.value(None))
        named = [
            text.mark_text(style=look, dx=7, dy=-7, baseline="middle")
            for look in ("text-halo", "direct-label")
        ]
        layers = [*([path] if connect else []), *named, dots, *style.marked_point(base)]
        chart = alt.layer(*layers)
        if shares:
            prefix = f"{name} · variance " if name else "variance "
            params.append(alt.param(name=f"prefix{k}", value=prefix))
            share = f"shares[{k}][{'snapshot' if len(shares[name]) > 1 else 0}]"
            text = f"prefix{k} + format({share}[0], '.0%') + ' + ' + format({share}[1], '.0%')"
            chart = chart.properties(title=alt.Title(text=alt.expr(text)))  # pyright: ignore[reportArgumentType]
        elif name:
            chart = chart.properties(title=name)
        return chart.properties(width=side, height=side)

    charts = [panel(k, name, cloud) for k, (name, cloud) in enumerate(clouds.items())]
    variance = "; ".join(
        f"{name + ': ' if name else ''}{s[-1][0]:.0%} and {s[-1][1]:.0%}"
        for name, s in shares.items()
    )
    description = (
        f"Scatter of {n} tokens, {names[0]} to {names[-1]}, on the first two principal components, "
        f"relative to the largest distance from the centre, coloured by token number"
        f"{' and joined in natural order' if connect else ''}{times(steps, time_title)}."
        + (f" Variance along the two at the last: {variance}." if variance else "")
    )
    return assemble(
        charts, names, steps, moving=any(len(c) > 1 for c in clouds.values()), title=title,
        at=at, time_title=time_title, description=description, clock=clock, square=True,
        extra=params if shares else (), token_field="name",
    )  # fmt: skip
