"""Tasks from a rule that somebody types, such as ``(a + b) % 7``.

A rule is arithmetic on whole numbers. It is read into a syntax tree, of which only the parts listed
under :func:`task_from_rule` are accepted, and evaluated on arrays; nothing of it is ever executed
as Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staircase_lib.tasks import Task, from_arrays

__all__ = ["task_from_rule"]

LONGEST_RULE = 120
MOST_SEQUENCES = 8000
MOST_LABELS = 200
_LARGEST = 10**9  # of a value on the way; products of two fit in 64 bits

_BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.remainder,
}
_COMPARED: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum}
_PARTS = "letters, whole numbers, + - * // %, comparisons, min, max, abs and `x if … else y`"


def task_from_rule(rule: str, numbers: int) -> Task:
    """Task of all sequences of numbers, labelled by a rule.

    Parameters
    ----------
    rule : str
        Two or three different small letters, one for each position in alphabetical order, whole
        numbers, ``+ - * // %``, comparisons (1 if true, 0 if not), ``min``, ``max``, ``abs``,
        ``x if condition else y`` and brackets.
    numbers : int
        Every letter takes the values ``0 .. numbers-1``.

    Returns
    -------
    Task
        ``numbers**L`` sequences, uniformly weighted; all numbers are anchors. The vocabulary has
        room for the sum of the letters, so that labels seldom fill it and order 0 has something
        to teach.

    Raises
    ------
    TypeError
        If the rule is no text.
    ValueError
        If the rule cannot be read, or a label is negative or too large; says where.

    Examples
    --------
    >>> task_from_rule("(a + b) % 2", 3).labels.tolist()
    [0, 1, 0, 1, 0, 1, 0, 1, 0]
    """
    if not isinstance(rule, str):
        raise TypeError(f"rule: expected a text such as '(a + b) % 7', got {rule!r}.")
    tree = _parsed(rule)
    letters = _letters(tree)
    whole = isinstance(numbers, (int, np.integer)) and not isinstance(numbers, bool)
    most = int(MOST_SEQUENCES ** (1 / len(letters)) + 1e-9)
    if not whole or not 2 <= numbers <= most:
        raise ValueError(
            f"numbers: expected a whole number from 2 to {most} for {len(letters)} letters, "
            f"got {numbers!r}."
        )
    grids = np.meshgrid(*[np.arange(numbers)] * len(letters), indexing="ij")
    tokens = np.stack([grid.ravel() for grid in grids], axis=1)
    value = _value(tree, dict(zip(letters, tokens.T, strict=True)))
    labels = np.broadcast_to(value, len(tokens))
    wrong = np.flatnonzero((labels < 0) | (labels >= MOST_LABELS))
    if len(wrong):
        where = ", ".join(f"{x} = {v}" for x, v in zip(letters, tokens[wrong[0]], strict=True))
        raise ValueError(
            f"rule: expected labels from 0 to {MOST_LABELS - 1}, got {labels[wrong[0]]} for "
            f"{where}; add a number, or take the rest with %."
        )
    room = max(len(letters) * (numbers - 1) + 1, int(labels.max()) + 1)
    return from_arrays(tokens, labels, None, room, np.arange(numbers), rule.strip())


def _parsed(rule: str) -> ast.expr:
    if len(rule) > LONGEST_RULE:
        raise ValueError(
            f"rule: expected at most {LONGEST_RULE} characters, got {len(rule)}; shorten it."
        )
    try:
        return ast.parse(rule.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(
            f"rule: expected one formula such as (a + b) % 7, got {rule.strip()!r}, which cannot "
            f"be read; it may have {_PARTS}."
        ) from None


def _letters(tree: ast.expr) -> list[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    }
    strange = sorted(name for name in names if not (len(name) == 1 and "a" <= name <= "z"))
    if strange or not 2 <= len(names) <= 3:
        got = strange or sorted(names) or "none"
        raise ValueError(
            f"rule: expected two or three different small letters, such as a and b, got "
            f"{', '.join(got) if isinstance(got, list) else got}."
        )
    return sorted(names)


def _value(node: ast.expr, letters: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Values of a part of the rule, one a sequence, or a single one."""

    def of(part: ast.expr) -> NDArray[np.int64]:
        return _value(part, letters)

    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(number)) if abs(number) <= _LARGEST:
            return np.asarray(number)
        case ast.Name(id=name) if name in letters:
            return letters[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -of(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
            divisor = of(right)
            if isinstance(operator, (ast.FloorDiv, ast.Mod)) and not divisor.all():
                raise ValueError(
                    f"rule: expected a divisor that is never zero, but "
                    f"`{ast.unparse(right)}` sometimes is; add a number to it."
                )
            result = _BINARY[type(operator)](of(left), divisor)
            if np.abs(result).max() > _LARGEST:
                raise ValueError(
                    f"rule: expected values of at most {_LARGEST:.0e}, but `{ast.unparse(node)}` "
                    f"gets larger; use smaller numbers."
                )
            return result
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in _COMPARED
        ):
            return _COMPARED[type(operator)](of(left), of(right)).astype(np.int64)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return np.where(of(test) != 0, of(body), of(otherwise))
        case ast.Call(func=ast.Name(id="abs"), args=[only], keywords=[]):
            return np.abs(of(only))
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=[_, _, *_], keywords=[]):
            values = [of(part) for part in node.args]
            result = values[0]
            for value in values[1:]:
                result = _FUNCTIONS[name](result, value)
            return result
    raise ValueError(f"rule: `{ast.unparse(node)}` is not understood; it may have {_PARTS}.")
