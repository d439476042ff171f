"""The settings of the book's experiments, read from the chapters themselves.

Who chose a parameter stands beside it, as the comment of its line in the parameters cell::

    seeds = 10  # paper
    lr = 1e-3  # ours: small enough for the stairs to be told apart

What is built with the parameters is read from the code cells: the calls that make tasks, models and
training configurations, with the parameters' values filled in. Nothing is run.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from staircase_lib.chapters import BookError, Chapter, resolve_parameters

__all__ = ["Setting", "constructions", "parameter_settings"]

# Names under which chapters import the modules whose calls set an experiment up.
_BUILDERS = ("tasks", "models", "training", "transformer", "sources")
_SETUP = ("TrainConfig",)


@dataclass(frozen=True)
class Setting:
    """One parameter of a chapter.

    Attributes
    ----------
    name : str
    value : object
        At profile ``cpu``, that of the published book.
    smoke : object
        At profile ``smoke``.
    chosen_by : {"paper", "ours"}
    why : str
        Reason of our choice; empty where the paper states the value.
    """

    name: str
    value: Any
    smoke: Any
    chosen_by: str
    why: str


def parameter_settings(chapter: Chapter) -> list[Setting]:
    """Parameters of a chapter in order, each with who chose it and why.

    Raises
    ------
    BookError
        If a parameter's line does not end in ``# paper`` or ``# ours: reason``.
    """
    cells = [c.source for c in chapter.code if "parameters" in c.metadata.get("tags", ())]
    comments = _comments(cells[0]) if cells else {}
    published, smoke = (resolve_parameters(chapter, profile) for profile in ("cpu", "smoke"))
    found = []
    for name, value in published.items():
        chosen_by, _, why = (part.strip() for part in comments.get(name, "").partition(":"))
        if (chosen_by, bool(why)) not in (("paper", False), ("ours", True)):
            raise BookError(
                f"{chapter.name}: parameter {name}: expected a comment `# paper` or "
                f"`# ours: reason` on its line, got {comments.get(name, 'none')!r}."
            )
        found.append(Setting(name, value, smoke[name], chosen_by, why))
    return found


def constructions(chapter: Chapter) -> list[str]:
    """Calls that build tasks, models and training configurations, parameters filled in, in order.

    Names that are no parameters, arguments of functions among them, stay as they are written.
    """
    trees = [tree for cell in chapter.code if (tree := _parsed(cell.source)) is not None]
    values = resolve_parameters(chapter, "cpu")
    bound = Counter(
        node.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    # A name that is bound a second time, in a loop for instance, is not the parameter everywhere.
    values = {name: value for name, value in values.items() if bound[name] == 1}
    return list(dict.fromkeys(text for tree in trees for text in _calls(tree, values)))


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # a magic command builds nothing
        return None


def _calls(node: ast.AST, values: Mapping[str, Any]) -> Iterator[str]:
    """Building calls in the order of the text, without those inside another one."""
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        own = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        values = {name: value for name, value in values.items() if name not in own}
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _builds(child):
            yield ast.unparse(_Filled(values).visit(child))
        else:
            yield from _calls(child, values)


def _comments(source: str) -> dict[str, str]:
    """Comment at the end of the line on which the statement of each name begins or ends."""
    lines = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for statement in ast.parse(source).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        target = statement.target if isinstance(statement, ast.AnnAssign) else target
        if isinstance(target, ast.Name):
            ends = (statement.end_lineno, statement.lineno)
            found[target.id] = next((lines[line] for line in ends if line in lines), "")
    return found


def _builds(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _BUILDERS:
            builds_model = module in ("models", "transformer") and name[0].isupper()
            return module in ("tasks", "sources") or builds_model or name in _SETUP
    return False


class _Filled(ast.NodeTransformer):
    """Names of parameters replaced by their values."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self.values[node.id]) if node.id in self.values else node
