"""Which variant of a measurement finds what: a number a cell, and those that stand out."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from staircase_lib.figures import style
from staircase_lib.figures.tables import (
    ordered,
    printable_texts,
    require_columns,
    require_finite,
    require_single,
)

_CELL, _ROW = 40, 24


def search_map(
    table: pd.DataFrame,
    *,
    row_title: str = "",
    column_title: str = "",
    value_title: str = "",
    good_title: str = "",
    format: str = ".2f",
) -> Any:
    """A table of numbers in panels, with the cells that stand out filled.

    Parameters
    ----------
    table : DataFrame
        Columns ``panel``, ``row``, ``column``, ``value``, ``good`` (bool: filled). Panels, rows and
        columns appear in the order of the table; cells without a row stay empty.
    row_title, column_title, value_title : str
        What they are.
    good_title : str
        What a filled cell means, for the tooltip and the text alternative.
    format : str
        Of the numbers, d3's.

    Returns
    -------
    altair.ConcatChart
        Two panels side by side where there is room, one below the other on a phone.

    Raises
    ------
    ValueError
        If a column is missing, a cell occurs twice, or a value is not finite.
    """
    require_columns(table, ["panel", "row", "column", "value", "good"], "search_map")
    require_single(table, ["panel", "row", "column"], "search_map")
    require_finite(table, "value", "search_map")
    table = printable_texts(table)
    rows, columns = ordered(table, "row"), ordered(table, "column")
    fill = alt.Color(
        "good:N",
        scale=alt.Scale(domain=[True, False], range=[style.SERIES_COLORS[2], "#AFB8C1"]),
        legend=None,
    )

    def panel(name: str) -> Any:
        part: Any = table[table["panel"] == name]
        values = [
            {
                "row": str(r["row"]),
                "column": str(r["column"]),
                "value": float(f"{r['value']:.4g}"),
                "good": bool(r["good"]),
            }
            for r in part.to_dict("records")
        ]
        plain = {"ticks": False, "domain": False, "labelPadding": 4}
        base = alt.Chart(alt.Data(values=values)).encode(
            x=alt.X(
                "column:N",
                scale=alt.Scale(domain=[str(c) for c in columns]),
                axis=alt.Axis(orient="top", labelAngle=0, **plain),
                title=column_title or None,
            ),
            y=alt.Y(
                "row:N",
                scale=alt.Scale(domain=[str(r) for r in rows]),
                axis=alt.Axis(**plain),
                title=None,
            ),
            tooltip=[
                alt.Tooltip("row:N", title=row_title or "row"),
                alt.Tooltip("column:N", title=column_title or "column"),
                alt.Tooltip("value:Q", title=value_title or "value", format=format),
                alt.Tooltip("good:N", title=good_title or "stands out"),
            ],
        )
        cells = base.mark_rect(stroke=None).encode(
            color=fill, opacity=alt.condition("datum.good", alt.value(0.55), alt.value(0.12))
        )
        text = base.mark_text(style="direct-label", align="center").encode(
            text=alt.Text("value:Q", format=format)
        )
        return alt.layer(cells, text).properties(
            width=_CELL * len(columns), height=_ROW * len(rows), title=str(name)
        )

    panels = ordered(table, "panel")
    counts = "; ".join(
        f"{name}: {int(table[table['panel'] == name]['good'].sum())} of "  # pyright: ignore[reportArgumentType]
        f"{int((table['panel'] == name).sum())}"
        for name in panels
    )
    description = (
        f"{value_title or 'Values'} for {len(rows)} rows ({', '.join(map(str, rows))}) and "
        f"{len(columns)} columns ({', '.join(map(str, columns))}). "
        f"{good_title or 'Standing out'}: {counts}."
    )
    return style.finish(alt.concat(*map(panel, panels), columns=2), description)
