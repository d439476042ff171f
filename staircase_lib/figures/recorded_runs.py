"""Recorded runs for the page that plays them, with a picture of one of them for paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from staircase_lib.figures import style
from staircase_lib.figures.snapshots import check_steps, label_names

RECORDINGS_MIME = "application/vnd.staircase.recordings+json"
_SIDE, _GAP = 112, 14
_MOST_MOMENTS = 5
_SIMILARITY = alt.Scale(scheme="redblue", reverse=True, domain=[-1, 1])


class RecordedRuns:
    """Output of a cell: recordings as data for the page, and a chart that stands for them.

    In the book, ``_assets/explorer.js`` draws the data; JupyterLab, paper and readers without
    scripts get the chart as PNG, others its description.

    Parameters
    ----------
    tasks : sequence of dict
        From :func:`staircase_lib.recordings.document`.
    picture : altair chart
        With a description.
    """

    def __init__(self, tasks: Sequence[dict[str, Any]], picture: Any) -> None:
        self.data = {"tasks": list(tasks)}
        self.picture = picture

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        drawn = self.picture._repr_mimebundle_(include, exclude)
        bundle, metadata = drawn if isinstance(drawn, tuple) else (drawn, {})
        still = {kind: bundle[kind] for kind in ("image/png", "text/plain") if kind in bundle}
        return {RECORDINGS_MIME: self.data, **still}, metadata


def storyboard(
    steps: Sequence[int],
    loss: np.ndarray,
    similarities: np.ndarray,
    points: np.ndarray,
    labels: Sequence[Any],
    *,
    moments: Sequence[int],
    stair: float | None = None,
    title: str = "",
) -> Any:
    """One run in a few pictures: its loss, and at some moments the tokens' geometry.

    Parameters
    ----------
    steps : (S,) int
        Steps of the snapshots, increasing.
    loss : (S,)
    similarities : (S, n, n)
        Cosine similarities of the embeddings.
    points : (S, n, 2)
        The embeddings in a plane.
    labels : (n,)
        Names of the tokens in natural order.
    moments : sequence of int
        Steps of the pictures, at most five, each one of `steps`.
    stair : float, optional
        Step at which the first stair is predicted, a dashed rule.
    title : str

    Returns
    -------
    altair.VConcatChart

    Raises
    ------
    ValueError
        If shapes do not fit or a moment is no step of a snapshot.
    """
    steps, moments = check_steps(steps), check_steps(moments)
    n = len(labels)
    names = label_names(labels, n)
    shapes = [(len(steps),), (len(steps), n, n), (len(steps), n, 2)]
    given = [np.shape(x) for x in (loss, similarities, points)]
    if given != shapes:
        raise ValueError(
            f"loss, similarities, points: expected shapes {shapes}, got {given}. Pass one entry a "
            f"snapshot."
        )
    absent = [step for step in moments if step not in steps]
    if absent or len(moments) > _MOST_MOMENTS:
        raise ValueError(
            f"moments: expected at most {_MOST_MOMENTS} out of {steps}, got {moments}. Choose "
            f"recorded steps."
        )
    at = [steps.index(step) for step in moments]
    width = _MOST_MOMENTS * _SIDE + (_MOST_MOMENTS - 1) * _GAP
    curve = _loss(steps, np.asarray(loss), moments, stair).properties(width=width, height=120)
    matrices = [_matrix(similarities[k], names, step) for k, step in zip(at, moments, strict=True)]
    clouds = [_cloud(points[k], names, np.abs(points[at]).max()) for k in at]
    rows = [alt.hconcat(*row, spacing=_GAP) for row in (matrices, clouds)]
    chart = alt.vconcat(curve, *rows, spacing=12).resolve_scale(color="independent")
    if title:
        chart = chart.properties(title=title)
    off = ~np.eye(n, dtype=bool)
    told = "; ".join(
        f"at step {step:,} the loss is {loss[k]:.2f} and similarities reach from "
        f"{similarities[k][off].min():.2f} to {similarities[k][off].max():.2f}"
        for k, step in zip(at, moments, strict=True)
    )
    description = (
        f"{title + ': ' if title else ''}loss over {steps[-1]:,} steps, above the cosine "
        f"similarities of {n} embeddings, {names[0]} to {names[-1]}, and their principal "
        f"components at {len(moments)} moments"
        f"{f'; the first stair is predicted at step {stair:,.0f}' if stair else ''}: {told}."
    )
    return style.finish(chart, description)


def _loss(steps: list[int], loss: np.ndarray, moments: list[int], stair: float | None) -> Any:
    rows = [{"step": max(s, 1), "loss": float(v)} for s, v in zip(steps, loss, strict=True)]
    x = alt.X("step:Q", **style.time_axis(np.maximum(steps, 1), "step", log=True))
    y = alt.Y("loss:Q", title="loss", axis=alt.Axis(tickCount=4, grid=True))
    line = alt.Chart(alt.Data(values=rows)).mark_line(color=style.SERIES_COLORS[0], strokeWidth=2.5)
    marks = [{"step": max(m, 1)} for m in moments]
    rules = alt.Chart(alt.Data(values=marks)).mark_rule(style="moment", opacity=0.5)
    layers = [line.encode(x=x, y=y), rules.encode(x=x)]
    if stair:
        predicted = alt.Chart(alt.Data(values=[{"step": stair}]))
        layers += [
            predicted.mark_rule(style="threshold").encode(x=x),
            predicted.mark_text(
                style="threshold-label", align="center", text="predicted t*"
            ).encode(x=x, y=alt.value(-8)),
        ]
    return alt.layer(*layers)


def _matrix(similarity: np.ndarray, names: list[str], step: int) -> Any:
    n = len(names)
    rows = [
        {"i": i, "j": j, "value": round(float(similarity[i, j]), 3)}
        for i in range(n)
        for j in range(n)
    ]
    axis = alt.Axis(labels=False, ticks=False, domain=False, title=None)
    return (
        alt.Chart(alt.Data(values=rows), title=f"step {step:,}")
        .mark_rect(strokeWidth=0.5)
        .encode(
            x=alt.X("j:O", axis=axis, scale=alt.Scale(padding=0)),
            y=alt.Y("i:O", axis=axis, scale=alt.Scale(padding=0)),
            color=alt.Color("value:Q", scale=_SIMILARITY, legend=None),
            stroke=alt.Stroke("value:Q", scale=_SIMILARITY, legend=None),  # no seams
        )
        .properties(width=_SIDE, height=_SIDE)
    )


def _cloud(points: np.ndarray, names: list[str], radius: float) -> Any:
    rows = [
        {"k": k, "name": name, "x": round(float(x), 4), "y": round(float(y), 4)}
        for k, (name, (x, y)) in enumerate(zip(names, points, strict=True))
    ]
    scale = alt.Scale(domain=[-1.3 * radius, 1.3 * radius], nice=False)
    axis = alt.Axis(labels=False, ticks=False, grid=False, domain=False, title=None)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:Q", scale=scale, axis=axis), y=alt.Y("y:Q", scale=scale, axis=axis)
    )
    dots = base.mark_point(style="token-point", filled=True, size=60, opacity=1).encode(
        color=alt.Color("k:Q", scale=alt.Scale(scheme=style.TOKEN_SCHEME), legend=None)
    )
    ends = base.transform_filter(f"datum.k === 0 || datum.k === {len(names) - 1}")
    text = ends.mark_text(style="direct-label", dx=-3, dy=-10).encode(text="name:N")
    path = base.mark_line(color="#8C959F", strokeWidth=1).encode(order="k:Q")
    return alt.layer(path, dots, text).properties(width=_SIDE, height=_SIDE)
