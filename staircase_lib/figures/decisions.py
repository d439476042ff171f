"""What a rule answers, and which parts its scores are made of."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.tables import ordered, printable_texts, require_columns, require_single


def stacked_scores(
    table: pd.DataFrame, *, score_title: str = "score", label_title: str = "label", title: str = ""
) -> Any:
    """Scores of every label as stacked contributions, a panel a sequence, the highest marked.

    Parameters
    ----------
    table : DataFrame
        Columns ``sequence`` (at most four), ``part`` (at most four, stacked from the bottom),
        ``label``, ``value`` (non-negative).
    score_title, label_title, title : str
        Titles of the axes and of the chart.

    Returns
    -------
    altair.ConcatChart

    Raises
    ------
    ValueError
        If a column is missing, there are too many sequences or parts, a value is given twice or
        negative.
    """
    require_columns(table, ["sequence", "part", "label", "value"], "stacked_scores")
    require_single(table, ["sequence", "part", "label"], "stacked_scores")
    table = printable_texts(table)
    data: Any = table  # pandas' own annotations know too little of columns
    sequences, parts = list(data["sequence"].unique()), list(data["part"].unique())
    if len(sequences) > 4 or len(parts) > 4 or (data["value"] < 0).any():
        raise ValueError(
            f"stacked_scores expects at most 4 sequences, 4 parts and no negative value; got "
            f"{len(sequences)}, {len(parts)} and a least value of {data['value'].min()}. Select "
            f"the rows to be shown."
        )
    total: Any = data.groupby(["sequence", "label"])["value"].sum()
    top = float(total.max()) * 1.15
    labels = ordered(table, "label")
    color = alt.Color(
        "part:N",
        scale=alt.Scale(domain=parts, range=list(style.SERIES_COLORS[1 : 1 + len(parts)])),
        legend=alt.Legend(title=None, orient="top", columns=2),
    )

    def panel(sequence: Any) -> Any:
        part = data[data["sequence"] == sequence]
        rows = [
            {"label": str(v), "part": str(p), "value": float(f"{x:.5g}"), "place": parts.index(p)}
            for v, p, x in zip(part["label"], part["part"], part["value"], strict=True)
        ]
        x = alt.X("label:N", sort=[str(v) for v in labels], title=label_title,
                  axis=alt.Axis(labelAngle=0, ticks=False))  # fmt: skip
        y = alt.Scale(domain=[0, top], nice=False)
        bars = (
            alt.Chart(alt.Data(values=rows))
            .mark_bar()
            .encode(
                x=x,
                y=alt.Y("value:Q", title=score_title, scale=y, axis=alt.Axis(tickCount=4)),
                color=color,
                order=alt.Order("place:Q"),
                tooltip=[
                    alt.Tooltip("label:N", title=label_title),
                    alt.Tooltip("part:N", title="part"),
                    alt.Tooltip("value:Q", title="contribution", format=".4f"),
                ],
            )
        )
        best = total[sequence].idxmax()
        answer = [{"label": str(best), "value": float(total[sequence][best]), "text": "answer"}]
        mark = (
            alt.Chart(alt.Data(values=answer))
            .mark_text(style="direct-label", align="center", baseline="bottom", dy=-3)
            .encode(x=x, y=alt.Y("value:Q", scale=y), text="text:N")
        )
        return alt.layer(bars, mark).properties(
            width=268 if len(sequences) > 1 else 560, height=150, title=str(sequence)
        )

    chart = alt.concat(*[panel(sequence) for sequence in sequences], columns=2)
    answers = ", ".join(f"{s}: {total[s].idxmax()}" for s in sequences)
    description = (
        f"Stacked bars of the {score_title} of {len(labels)} labels from the parts "
        f"{', '.join(map(str, parts))}. The highest: {answers}."
    )
    return style.finish(chart.properties(**({"title": title} if title else {})), description)


def decision_table(
    table: pd.DataFrame,
    *,
    row_title: str = "a",
    column_title: str = "b",
    title: str = "",
) -> Any:
    """What a rule answers for every pair of tokens, a panel a rule; wrong answers stand out.

    Parameters
    ----------
    table : DataFrame
        Columns ``panel`` (at most four), ``row``, ``column``, ``answer``, ``right`` (bool).
    row_title, column_title, title : str
        Titles of the axes and of the chart.

    Returns
    -------
    altair.ConcatChart

    Raises
    ------
    ValueError
        If a column is missing, there are too many panels, or a pair is given twice.
    """
    require_columns(table, ["panel", "row", "column", "answer", "right"], "decision_table")
    require_single(table, ["panel", "row", "column"], "decision_table")
    table = printable_texts(table)
    data: Any = table
    panels = list(data["panel"].unique())
    if len(panels) > 4:
        raise ValueError(
            f"decision_table expects at most 4 panels, got {len(panels)}. Choose some of them."
        )
    rows, columns = ordered(table, "row"), ordered(table, "column")
    side = 252 // max(len(rows), len(columns)) * max(len(rows), len(columns))
    lowest, highest = float(data["answer"].min()), float(data["answer"].max())

    def ink(answer: Any, right: Any) -> str:
        """Colour of a number that is read on its cell."""
        if not right:
            return "#D55E00"
        return "#24292F" if answer > lowest + 0.6 * (highest - lowest) else "#FFFFFF"

    def panel(name: Any) -> Any:
        part = data[data["panel"] == name]
        cells = [
            {"r": str(r), "c": str(c), "answer": int(a), "right": bool(ok),
             "ink": ink(a, ok)}
            for r, c, a, ok in zip(
                part["row"], part["column"], part["answer"], part["right"], strict=True
            )
        ]  # fmt: skip
        axis = alt.Axis(ticks=False, domain=False, labelAngle=0)
        x = alt.X("c:N", sort=[str(c) for c in columns], title=column_title, axis=axis)
        y = alt.Y("r:N", sort=[str(r) for r in rows], title=row_title, axis=axis)
        base = alt.Chart(alt.Data(values=cells)).encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("r:N", title=row_title),
                alt.Tooltip("c:N", title=column_title),
                alt.Tooltip("answer:Q", title="answer"),
                alt.Tooltip("right:N", title="right"),
            ],
        )
        fill = base.mark_rect(stroke="#8C959F", strokeWidth=0.5).encode(
            color=alt.condition(
                "datum.right",
                alt.Color(
                    "answer:Q",
                    scale=alt.Scale(scheme=style.TOKEN_SCHEME, domain=[lowest, highest]),
                    legend=None,
                ),
                alt.value("transparent"),
            )
        )
        texts = [
            base.transform_filter(f"datum.ink === '{color}'")
            .mark_text(fontSize=11, color=color)
            .encode(text="answer:Q")
            for color in dict.fromkeys(cell["ink"] for cell in cells)
        ]
        wrong = base.transform_filter("!datum.right").mark_text(
            text="✗", fontSize=9, color="#D55E00", dx=10, dy=-6
        )
        marked = base.transform_filter("datum.r === token || datum.c === token").mark_rect(
            filled=False, style="token-mark"
        )
        return alt.layer(fill, *texts, wrong, marked).properties(
            width=side, height=side, title=str(name)
        )

    chart = alt.concat(*[panel(name) for name in panels], columns=2)
    shares = "; ".join(
        f"{name}: {data[data['panel'] == name]['right'].mean():.0%}" for name in panels
    )
    description = (
        f"Answers for every pair of {len(rows)} by {len(columns)} tokens. Right answers: {shares}."
    )
    chart = chart.properties(**({"title": title} if title else {}))
    return style.finish(
        chart, description, square=True, cells=max(len(rows), len(columns)), token_field="r"
    )
