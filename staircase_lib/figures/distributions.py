"""Distributions of the label: data against model, and what a signature is."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.snapshots import (
    assemble,
    at_snapshot,
    label_names,
    times,
)
from staircase_lib.figures.tables import require_columns, require_finite, require_single
from staircase_lib.printable import printable

_PROBABILITY = 100_000


def distributions(
    table: pd.DataFrame,
    *,
    title: str = "",
    at: int | None = None,
    time_title: str = "epoch",
    token_title: str = "α = ",
    label_title: str = "label",
    clock: str = "",
) -> Any:
    """Distribution against distribution: small multiples by token, data as bars, model as line.

    Parameters
    ----------
    table : DataFrame
        Columns ``token`` (at most six), ``label``, ``kind`` (at most three; the first is drawn
        as bars, the others as lines), ``probability``, optional ``step``. A kind that does not
        change may leave ``step`` missing. Labels without a row have probability 0.
    title, at, time_title, clock
        As in `similarity_heatmap`.
    token_title : str
        Put before the token in the panel's title.
    label_title : str
        What the horizontal axis shows.

    Returns
    -------
    altair.ConcatChart

    Raises
    ------
    ValueError
        If a column is missing, there are too many tokens or kinds, or a value is given twice.
    """
    require_columns(table, ["token", "label", "kind", "probability"], "distributions")
    require_single(table, ["token", "label", "kind", "step"], "distributions")
    require_finite(table, "probability", "distributions")
    tokens, kinds = list(table["token"].unique()), [str(k) for k in table["kind"].unique()]
    if not 1 <= len(tokens) <= 6 or not 1 <= len(kinds) <= 3:
        raise ValueError(
            "distributions expects 1 to 6 tokens and 1 to 3 kinds; got "
            f"{len(tokens)} tokens and {len(kinds)} kinds. Select the rows to be shown."
        )
    labels = sorted(table["label"].unique())
    place = {label: k for k, label in enumerate(labels)}
    names = label_names(labels, len(labels))
    stepped = "step" in table and bool(table["step"].notna().any())
    steps = sorted(int(s) for s in table["step"].dropna().unique()) if stepped else [0]
    values = table["probability"].to_numpy(dtype=float)
    low, top = min(0.0, float(values.min())) * 1.05, float(values.max()) * 1.05
    width = 274 if len(tokens) > 1 else 560
    ticks, upright = style.tick_positions(names, width)
    colors = [style.DATA_COLOR, style.MODEL_COLOR, "#2B9AC8"][: len(kinds)]
    scale = alt.Scale(domain=kinds, range=colors)

    def row(t: int, kind: str, part: pd.DataFrame) -> dict[str, Any]:
        p = np.zeros(len(labels), dtype=int)
        p[[place[label] for label in part["label"]]] = np.rint(part["probability"] * _PROBABILITY)
        return {"t": t, "kind": kind, "q": p.tolist()}

    def rows(part: Any, kind: str) -> list[dict[str, Any]]:
        if not stepped or part["step"].isna().all():
            return [row(0, kind, part)]
        by_step = dict(iter(part.groupby("step")))
        return [row(t, kind, by_step[s]) for t, s in enumerate(steps) if s in by_step]

    shown = [printable(str(token)) for token in tokens]

    def panel(number: int, token: Any, last: bool) -> Any:
        layers = []
        for k, kind in enumerate(kinds):
            part: Any = table[(table["token"] == token) & (table["kind"].astype(str) == kind)]
            if part.empty:
                continue
            base = (
                at_snapshot(rows(part, kind), ["q"], carry=["kind"])
                .transform_calculate(
                    p=f"datum.q / {_PROBABILITY}", name="names[datum.k]", token=f"tokens[{number}]"
                )
                .encode(
                    x=alt.X(
                        "k:O", title=label_title if last else None,
                        scale=alt.Scale(domain=list(range(len(labels))), paddingInner=0.1),
                        axis=alt.Axis(
                            values=ticks, labelExpr="names[datum.value]", labelOverlap=True,
                            labelAngle=-90 if upright else 0,
                        ),
                    ),
                    y=alt.Y(
                        "p:Q", title="probability", axis=alt.Axis(tickCount=4),
                        scale=alt.Scale(domain=[low, top], nice=False),
                    ),
                    color=alt.Color(
                        "kind:N", scale=scale, legend=alt.Legend(title=None, orient="top")
                    ),
                    opacity=style.dimmed(f"tokens[{number}]", "tokens"),
                    tooltip=[
                        alt.Tooltip("kind:N", title="distribution"),
                        alt.Tooltip("name:N", title=label_title),
                        alt.Tooltip("p:Q", title="probability", format=".4f"),
                    ],
                )
            )  # fmt: skip
            dots = {"filled": True, "size": 14} if len(labels) <= 60 else False
            line = base.mark_line(point=dots, strokeWidth=1.6)
            layers.append(base.mark_bar() if k == 0 else line)
        chart = alt.layer(*layers).properties(width=width, height=130)
        return chart.properties(title=token_title + shown[number])

    charts = [panel(k, token, k >= len(tokens) - 2) for k, token in enumerate(tokens)]
    description = (
        f"Distributions of the {label_title} for {token_title}{', '.join(map(str, tokens))}: "
        f"{' against '.join(kinds)}, over {len(labels)} values, {names[0]} to {names[-1]}, largest "
        f"probability {table['probability'].max():.3g}{times(steps, time_title)}."
    )
    return assemble(
        charts, names, steps, moving=len(steps) > 1, title=title, at=at, time_title=time_title,
        description=description, clock=clock, square=False, token_field="token",
        token_names="tokens", extra=[alt.param(name="tokens", value=shown)],
    )  # fmt: skip


def signature_bars(
    table: pd.DataFrame, *, title: str = "", label_title: str = "label", token_title: str = "α = "
) -> Any:
    """What a signature is: the distribution of the label for chosen tokens, one row each.

    Parameters
    ----------
    table : DataFrame
        Columns ``token`` (at most twelve), ``label``, ``probability``.
    title, label_title, token_title : str
        Titles of the chart, of the horizontal axis, and put before each token.

    Returns
    -------
    altair.FacetChart

    Raises
    ------
    ValueError
        If a column is missing, there are too many tokens, or a value is given twice.
    """
    require_columns(table, ["token", "label", "probability"], "signature_bars")
    require_single(table, ["token", "label"], "signature_bars")
    require_finite(table, "probability", "signature_bars")
    tokens, labels = list(table["token"].unique()), sorted(table["label"].unique())
    if len(tokens) > 12:
        raise ValueError(
            f"signature_bars expects at most 12 tokens, got {len(tokens)}. Choose some of them."
        )
    names = label_names(labels, len(labels))
    shown = label_names(tokens, len(tokens))
    titles = [token_title + name for name in shown]
    ticks, upright = style.tick_positions(names, 580)
    rows = [
        {"token": tokens.index(t), "k": labels.index(v), "p": float(f"{p:.4g}")}
        for t, v, p in zip(table["token"], table["label"], table["probability"], strict=True)
    ]
    for row in rows:
        row["name"] = names[row["k"]]
    chart = (
        alt.Chart(alt.Data(values=rows), width=580, height=42)
        .transform_calculate(name_of="tokens[datum.token]")
        .mark_bar()
        .encode(
            x=alt.X(
                "k:O", title=label_title,
                scale=alt.Scale(domain=list(range(len(labels))), paddingInner=0.1),
                axis=alt.Axis(
                    values=ticks, labelExpr="names[datum.value]", labelOverlap=True,
                    labelAngle=-90 if upright else 0,
                ),
            ),
            y=alt.Y("p:Q", title=None, axis=alt.Axis(tickCount=2, grid=False)),
            color=alt.Color("token:O", scale=alt.Scale(scheme=style.TOKEN_SCHEME), legend=None),
            row=alt.Row(
                "token:O", title=None, spacing=14,
                header=alt.Header(
                    labelExpr="titles[datum.value]", labelAngle=0, labelAlign="left",
                    labelOrient="left", labelPadding=6,
                ),
            ),
            opacity=style.dimmed("datum.name_of", "tokens"),
            tooltip=[
                alt.Tooltip("name_of:N", title="token"),
                alt.Tooltip("name:N", title=label_title),
                alt.Tooltip("p:Q", title="probability", format=".4f"),
            ],
        )
        .add_params(
            alt.param(name="names", value=names),
            alt.param(name="tokens", value=shown),
            alt.param(name="titles", value=titles),
        )
    )  # fmt: skip
    description = (
        f"Distribution of the {label_title} for each of {token_title}"
        f"{', '.join(map(str, tokens))} over {len(labels)} values, {names[0]} to {names[-1]}; "
        f"largest probability {table['probability'].max():.3g}."
    )
    chart = chart.properties(**({"title": title} if title else {}))
    return style.finish(chart, description, token_field="name_of", token_names="tokens")
