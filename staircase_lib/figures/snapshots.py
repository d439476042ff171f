"""Charts over snapshots: compact data, one row a snapshot, and the slider that picks one.

A row holds a list of integers that Vega flattens after the slider has picked the row, so that
a hundred snapshots of a 40 × 40 matrix cost half a megabyte and a step of the slider is quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from staircase_lib.figures import style
from staircase_lib.printable import printable

_LONGEST_NAME = 40


def check_steps(steps: Sequence[int]) -> list[int]:
    """The steps as a list of integers; raise unless they increase."""
    array = np.atleast_1d(np.asarray(steps))
    if array.ndim != 1 or array.size == 0 or not np.array_equal(array, array.astype(int)):
        raise ValueError(f"steps must be (S,) integers, got {steps!r}. Pass the snapshots' steps.")
    if (np.diff(array) <= 0).any():
        raise ValueError(
            f"steps must increase, got {array.tolist()}. Sort the snapshots and drop repeats."
        )
    return array.astype(int).tolist()


def panel_arrays(
    argument: str,
    value: Any,
    steps: Sequence[int],
    chosen: Sequence[str] | None,
    *,
    trailing: int,
) -> dict[str, np.ndarray]:
    """Arrays by panel name (``""`` if there is one only), each with a leading snapshot axis.

    That axis has length S, or 1 if the panel stays the same at every step.
    """
    named = dict(value) if isinstance(value, Mapping) else {"": value}
    wanted = list(named) if chosen is None else list(chosen)
    absent = [name for name in wanted if name not in named]
    if absent or not 1 <= len(wanted) <= 4:
        raise ValueError(
            f"{argument} must give 1 to 4 panels; asked for {wanted}, got {list(named)}. "
            "Choose panels among those given."
        )
    arrays = {}
    for name in wanted:
        array = np.asarray(named[name], dtype=float)
        array = array[None] if array.ndim == trailing else array
        if array.ndim != trailing + 1 or len(array) not in (1, len(steps)) or array.size == 0:
            raise ValueError(
                f"{argument}{of(name)} must have {trailing} axes, or {trailing + 1} with one entry "
                f"a step ({len(steps)}); got shape {np.shape(named[name])}. Check the steps."
            )
        arrays[str(name)] = array
    return arrays


def of(name: str) -> str:
    """How an error message names a panel."""
    return f"[{name!r}]" if name else ""


def label_names(labels: Sequence[Any] | None, n: int) -> list[str]:
    """The labels as texts; raise unless there are `n`."""
    if labels is None:
        return [str(k) for k in range(n)]
    if len(labels) != n:
        raise ValueError(
            f"labels must name every token; expected {n}, got {len(labels)}. Pass one a token."
        )
    return [printable(str(label), _LONGEST_NAME) for label in labels]


def at_snapshot(
    rows: list[dict[str, Any]], lists: list[Any], carry: Sequence[str] = ()
) -> alt.Chart:
    """Chart over the row that the slider picks: `lists` flattened, their position in ``k``.

    A single row is shown at every position of the slider.
    """
    fields = [{key: row[key] for key in ("t", *lists, *carry)} for row in rows]
    chart = alt.Chart(alt.Data(values=fields))
    if len(rows) > 1:
        chart = chart.transform_filter("datum.t == snapshot")
    return (
        chart.transform_flatten(lists)
        .transform_window(number="row_number()")
        .transform_calculate(k="datum.number - 1")
    )


def times(steps: Sequence[int], time_title: str) -> str:
    """The part of a description that tells the snapshots; a single one may go without a name."""
    if len(steps) == 1:
        return f", at {time_title} {steps[0]:,}" if time_title else ""
    return f", at {len(steps)} {time_title}s from {steps[0]:,} to {steps[-1]:,} (slider)"


def assemble(
    charts: list[Any],
    names: list[str],
    steps: Sequence[int],
    *,
    moving: bool,
    title: str,
    at: int | None,
    time_title: str,
    description: str,
    clock: str,
    square: bool,
    cells: int = 1,
    canvas: bool = False,
    extra: Sequence[Any] = (),
    token_field: str = "",
    token_names: str = "names",
) -> Any:
    """Panels side by side (two by two if four) under one slider and one title."""
    columns = 3 if len(charts) == 3 and square else 2
    heading, params = style.moment_title(title, time_title, moving=moving)
    if len(charts) == 1 and charts[0].title is alt.Undefined:
        chart = charts[0]
    else:
        chart = alt.concat(*charts, columns=columns)
    if heading is not None:
        chart = chart.properties(title=heading)
    chart = chart.add_params(
        alt.param(name="names", value=names),
        *(style.slider_params(steps, at, time_title) if moving else ()),
        *params,
        *extra,
    )
    return style.finish(
        chart, description, clock=clock, steps=steps if moving else None, time_title=time_title,
        square=square, cells=cells, canvas=canvas, token_field=token_field,
        token_names=token_names,
    )  # fmt: skip
