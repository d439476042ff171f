"""Checks of the tables that chart functions take, and the order of their categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from staircase_lib.printable import printable


def require_columns(table: pd.DataFrame, columns: Sequence[str], function: str) -> None:
    """Raise if `table` is empty or lacks one of `columns`."""
    missing = [column for column in columns if column not in table]
    if missing:
        raise ValueError(
            f"{function} expects the columns {list(columns)}; {missing} are missing, got "
            f"{list(table.columns)}. Rename or add the columns."
        )
    if table.empty:
        raise ValueError(f"{function} expects at least one row, got an empty table.")


def require_single(table: pd.DataFrame, keys: Sequence[str], function: str) -> None:
    """Raise if two rows have the same values in the columns `keys`."""
    present = [key for key in keys if key in table]
    doubles = table[table.duplicated(present)]
    if len(doubles):
        raise ValueError(
            f"{function} expects one row for each {present}; got several for "
            f"{doubles.iloc[0][present].to_dict()}. Choose a seed, or average over seeds."
        )


def require_finite(table: pd.DataFrame, column: str, function: str) -> None:
    """Raise if a value of the column is missing or not finite."""
    bad = ~np.isfinite(table[column].to_numpy(dtype=float))
    if bad.any():
        raise ValueError(
            f"{function} expects finite values in {column!r}; got {int(bad.sum())} that are not, "
            f"the first in {table[bad].iloc[0].to_dict()}. Drop or mend those rows."
        )


def printable_texts(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its texts fit to be shown: names may come from a user's data."""

    def shown(value: Any) -> Any:
        return printable(value) if isinstance(value, str) else value

    texts = [c for c in table if not pd.api.types.is_numeric_dtype(table[c])]
    return table.assign(**{str(column): table[column].map(shown) for column in texts})


def ordered(table: pd.DataFrame, column: str) -> list[Any]:
    """Distinct values of a column: numbers increasing, texts in order of appearance."""
    values: Any = table[column]
    distinct = list(values.unique())
    return sorted(distinct) if pd.api.types.is_numeric_dtype(values) else distinct
