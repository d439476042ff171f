"""Tasks out of table files: sequences, labels and weights in CSV or Parquet.

A table has one row a sequence and names its columns:

===============  ==================================================================
``x1``, ``x2``…  the tokens, one column a position; or, instead of them,
``sequence``     all tokens of the row, with spaces between them
``label``        the label
``weight``       how often the sequence counts, optional
===============  ==================================================================

Tokens and labels are words or whole numbers; a label that is written like a token is that token. A
CSV file whose first line names none of these columns has no header: its last column is the label
and all others are tokens.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from staircase_lib.tasks import Task, from_arrays

__all__ = ["NamedTask", "TaskFileError", "read_task"]

_DELIMITERS = (",", ";", "\t")
_MISSING = ("", "nan", "<na>")
_FORMAT = "columns x1, x2, … (or one column sequence), label and, if you like, weight"
_WHOLE = re.compile(r"[+-]?\d+\.0+")


class TaskFileError(ValueError):
    """A file that is no task; the message says what was expected and what is there."""


@dataclass(frozen=True)
class NamedTask:
    """A task and how its tokens are written.

    Attributes
    ----------
    task : Task
    names : tuple of str
        One for each token of the vocabulary: numbers in their order, words in the order of
        their appearance, labels that are no tokens last.
    remarks : tuple of str
        What was decided in reading, for instance that there is no header.
    """

    task: Task
    names: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def read_task(
    path: str | Path,
    *,
    anchors: Sequence[str] | None = None,
    most_anchors: int = 40,
    by_position: bool = False,
) -> NamedTask:
    """Read a task.

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv`` or ``.parquet``.
    anchors : sequence of str, optional
        Names of the tokens to be followed. Default: all, or the most frequent if there are more
        than `most_anchors`.
    most_anchors : int
    by_position : bool
        Take the same word at different positions as different tokens, named ``word@1`` and so on,
        for a model that does not see positions.

    Returns
    -------
    NamedTask

    Raises
    ------
    TaskFileError
        With the line or row that is wrong.
    """
    path = Path(path)
    if most_anchors < 1:
        raise TaskFileError(f"anchors: expected at least one token to follow, got {most_anchors}.")
    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            header, rows, remarks = _read_csv(path)
        elif suffix in (".parquet", ".pq"):
            header, rows, remarks = _read_parquet(path)
        else:
            raise TaskFileError(
                f"{path}: expected a file that ends in .csv, .tsv or .parquet, got {suffix!r}; "
                f"a table has {_FORMAT}."
            )
    except OSError as error:
        raise TaskFileError(f"{path}: cannot be read: {error.strerror or error}.") from None
    sequences, labels, weights = _columns(path, header, rows)
    if by_position:
        sequences = [[f"{t}@{i + 1}" for i, t in enumerate(row)] for row in sequences]
    names = _vocabulary(sequences, labels)
    number = {name: k for k, name in enumerate(names)}
    tokens = np.array([[number[t] for t in row] for row in sequences])
    try:
        task = from_arrays(
            tokens, np.array([number[y] for y in labels]), weights, len(names), name=path.stem
        )
        kept = _anchors(task, names, anchors, most_anchors)
        if kept is not None:
            task = from_arrays(
                task.tokens, task.labels, task.weights, task.vocab_size, kept, path.stem
            )
    except TaskFileError:
        raise
    except ValueError as error:
        raise TaskFileError(f"{path}: {error}") from None
    if kept is not None and anchors is None:
        remarks.append(
            f"{len(np.unique(task.tokens))} tokens occur; the {len(kept)} most frequent are "
            f"followed."
        )
    return NamedTask(task, tuple(names), tuple(remarks))


# --- Tables ---------------------------------------------------------------------------------------

_Rows = Iterator[tuple[str, list[str]]]  # where a row stands, and its cells


def _read_csv(path: Path) -> tuple[list[str], _Rows, list[str]]:
    """Header, rows with their place, remarks."""
    data = path.read_bytes()
    if not data.strip():
        raise TaskFileError(f"{path}: the file is empty; expected {_FORMAT}.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskFileError(
            f"{path}, line {line}: expected UTF-8, got the byte 0x{data[error.start]:02x}; save "
            f"the table as UTF-8."
        ) from None
    first = text.lstrip().partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count) if path.suffix.lower() == ".csv" else "\t"
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)

    def lines() -> _Rows:
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield f"{path}, line {reader.line_num}", [cell.strip() for cell in cells]
        except csv.Error as error:
            raise TaskFileError(f"{path}, line {reader.line_num}: no CSV: {error}.") from None

    rows = lines()
    place, top = next(rows, ("", []))
    if not top:
        raise TaskFileError(f"{path}: the file is empty; expected {_FORMAT}.")
    header = [cell.lower() for cell in top]
    if any(_known(cell) for cell in header):
        return header, rows, []
    if len(top) < 2:
        raise TaskFileError(f"{place}: expected {_FORMAT}, got one column, {top[0]!r}.")
    made = [f"x{k + 1}" for k in range(len(top) - 1)] + ["label"]

    def all_rows() -> _Rows:
        yield place, top
        yield from rows

    remark = (
        f"The first line names no column that is known: it is read as a sequence of "
        f"{len(top) - 1} tokens and its label, {top[-1]!r}."
    )
    return made, all_rows(), [remark]


def _read_parquet(path: Path) -> tuple[list[str], _Rows, list[str]]:
    """The same from Parquet."""
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise TaskFileError(
            f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or save the table as CSV."
        ) from None
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file.")
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskFileError(f"{path}: no Parquet file: {reason}") from None
    header = [str(name).strip().lower() for name in table.column_names]
    columns = [column.to_pylist() for column in table.columns]

    def rows() -> _Rows:
        for k, cells in enumerate(zip(*columns, strict=True)):
            yield f"{path}, row {k + 1}", [_text(cell) for cell in cells]

    return header, rows(), []


def _text(cell: Any) -> str:
    if isinstance(cell, list):  # a sequence as a list of tokens
        return " ".join(map(_text, cell))
    return "" if cell is None else str(cell).strip()


def _known(name: str) -> bool:
    return name in ("label", "weight", "sequence") or re.fullmatch(r"x\d+", name) is not None


def _columns(
    path: Path, header: list[str], rows: _Rows
) -> tuple[list[list[str]], list[str], list[float] | None]:
    """Sequences, labels and weights out of a table."""
    doubles = sorted({name for name in header if _known(name) and header.count(name) > 1})
    if doubles:
        raise TaskFileError(f"{path}: the column {doubles[0]!r} stands there twice; keep one.")
    positions = sorted(
        (name for name in header if re.fullmatch(r"x\d+", name)), key=lambda x: int(x[1:])
    )
    whole = "sequence" in header
    if "label" not in header or bool(positions) == whole:
        raise TaskFileError(f"{path}: expected {_FORMAT}, got the columns {header[:12]}.")
    wanted = [f"x{k + 1}" for k in range(len(positions))]
    if positions != wanted:
        raise TaskFileError(
            f"{path}: expected the columns x1 to x{len(positions)} without a gap, got {positions}."
        )
    strange = [name for name in header if not _known(name)]
    if strange:
        raise TaskFileError(
            f"{path}: the column {strange[0]!r} is none of {_FORMAT}; drop or rename it."
        )
    place_of = {name: k for k, name in enumerate(header)}
    at = [place_of[name] for name in positions]
    sequences, labels, weights = [], [], []
    for place, cells in rows:
        if len(cells) != len(header):
            raise TaskFileError(f"{place}: expected {len(header)} cells, got {len(cells)}.")
        tokens = cells[place_of["sequence"]].split() if whole else [cells[k] for k in at]
        tokens = [_name(token, place, "token") for token in tokens]
        if sequences and len(tokens) != len(sequences[0]) or not tokens:
            expected = len(sequences[0]) if sequences else "at least 1"
            raise TaskFileError(
                f"{place}: expected {expected} tokens, as in the rows before, got {len(tokens)}; "
                f"all sequences of a task have one length."
            )
        sequences.append(tokens)
        labels.append(_name(cells[place_of["label"]], place, "label"))
        if "weight" in place_of:
            weights.append(_weight(cells[place_of["weight"]], place))
    small = [w for w in weights if 0 < w < 1e-100 * max(weights)]
    if small:
        raise TaskFileError(
            f"{path}: the weight {small[0]} vanishes beside {max(weights)}; give it zero, or drop "
            f"the row."
        )
    if not sequences:
        raise TaskFileError(f"{path}: expected at least one sequence below the header, got none.")
    return sequences, labels, weights if "weight" in place_of else None


def _name(cell: str, place: str, what: str) -> str:
    if cell.lower() in _MISSING:
        raise TaskFileError(
            f"{place}: expected a {what}, got {cell!r}; fill it in or drop the row."
        )
    if "\0" in cell:
        raise TaskFileError(f"{place}: expected a {what}, got the character zero in {cell!r}.")
    if _WHOLE.fullmatch(cell):  # whole numbers that some program wrote as 3.0
        whole = cell.partition(".")[0]
        digits = whole.lstrip("+-").lstrip("0") or "0"
        return f"-{digits}" if whole.startswith("-") and digits != "0" else digits
    return cell


def _weight(cell: str, place: str) -> float:
    try:
        weight = float(cell)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise TaskFileError(
            f"{place}: expected a weight that is a finite number, not below zero, got {cell!r}."
        )
    return weight


# --- Vocabulary -----------------------------------------------------------------------------------


def _vocabulary(sequences: list[list[str]], labels: list[str]) -> list[str]:
    names = list(dict.fromkeys(token for row in sequences for token in row))
    tokens = set(names)
    only_labels = [name for name in dict.fromkeys(labels) if name not in tokens]
    return [*_ordered(names), *_ordered(only_labels)]


def _ordered(names: list[str]) -> list[str]:
    """Numbers in their order; words, and numbers among words, as they came."""
    keys = [re.fullmatch(r"([+-]?\d{1,300})(?:@(\d+))?", name) for name in names]
    if not all(keys):
        by_position = [re.fullmatch(r".*@(\d+)", name) for name in names]
        if all(by_position):
            return sorted(names, key=lambda name: int(name.rpartition("@")[2]))
        return names
    return sorted(names, key=lambda n: (int(n.partition("@")[2] or 0), int(n.partition("@")[0])))


def _anchors(
    task: Task, names: list[str], asked: Sequence[str] | None, most: int
) -> np.ndarray | None:
    """The tokens to be followed, or None for all that occur."""
    if asked is None:
        if len(task.anchors) <= most:
            return None
        order = np.argsort(-task.token_probability(), kind="stable")[:most]
        return np.sort(task.anchors[order])
    occurring = {names[k]: int(k) for k in task.anchors}
    unknown = [name for name in asked if name not in occurring]
    if unknown:
        some = ", ".join(list(occurring)[:8])
        raise TaskFileError(f"anchors: {unknown[0]!r} is no token of the task; there are {some}, …")
    if len(set(asked)) != len(asked):
        raise TaskFileError(f"anchors: expected distinct tokens, got {list(asked)}.")
    return np.array([occurring[name] for name in asked])
