"""Freshness keys: a chapter is executed again only when something that it computes from has
changed.

What a chapter computes from is described by its *parts*, a dictionary of digests and values:

==============  =========================================================================
``cells``       its code cells, the parameters cell excepted
``parameters``  the values that they run with
``modules``     the modules of the library that they import, directly or through others
``requirements``  ``requirements.txt``
``claims``      the declarations of the claims that they measure: statistics and thresholds
``reads``       the result files that the chapter declares
==============  =========================================================================

The *execution key* is the digest of all parts. The *ledger key*, which recorded claims carry,
leaves out requirements and results, so that it is the same on every machine.

Code counts by its syntax tree: comments, formatting and docstrings change no key, and the keys are
the same under Python 3.11, 3.12 and 3.13. Imports are read from the tree as well, those inside
functions included; names that a program puts together at run time are not seen.

What is read from a text depends on the text alone and is kept for the life of the process: chapters
import the same modules, and a build asks about each more than once.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "staircase_lib"


def digest(content: str | bytes) -> str:
    """SHA-256 of `content`, shortened to 16 hexadecimal digits."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Digest of a file's bytes, or ``"absent"``."""
    return digest(path.read_bytes()) if path.is_file() else "absent"


def execution_key(parts: Mapping[str, Any]) -> str:
    """Digest of everything that the outputs of a chapter depend on."""
    return digest(json.dumps(parts, sort_keys=True))


def ledger_key(parts: Mapping[str, Any]) -> str:
    """Digest of what a claim's value and verdict depend on: cells, parameters, modules, claims."""
    kept = ("cells", "parameters", "modules", "claims")
    return execution_key({name: parts[name] for name in kept})


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions of a chapter, in words."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            differing = [
                k for k in sorted(before.keys() | after.keys()) if before.get(k) != after.get(k)
            ]
            found.append(f"{name} changed: {', '.join(differing)}")
        else:
            found.append(f"{name} changed")
    return found


# --- Code ----------------------------------------------------------------------------------------


@cache
def code_digest(source: str) -> str:
    """Digest of a module's code without comments, formatting and docstrings."""
    return digest(_canonical(ast.parse(source)))


def cells_digest(cells: Iterable[str]) -> str:
    """Digest of code cells, without comments, formatting and the docstrings of their functions.

    A cell that is not plain Python (``%magic``, ``!command``) counts by its text. A semicolon at
    the end counts: it keeps a cell from showing its value.
    """
    return digest("\n".join(_cell_text(source) for source in cells))


@cache
def _cell_text(source: str) -> str:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    if not tree.body:
        return ""
    last = tree.body[-1]
    assert last.end_lineno is not None  # set by every parser
    after = source.encode().splitlines()[last.end_lineno - 1][last.end_col_offset :]
    return "".join(_canonical(node) for node in tree.body) + (
        ";" if after.lstrip().startswith(b";") else ""
    )


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _canonical(node: Any) -> str:
    """Write a syntax tree as text: class names and the fields that are not empty, in order.

    Positions, the ``u`` of string literals and fields that only some Python versions have (empty
    ``type_params``) are left out; so are docstrings.
    """
    if isinstance(node, list):
        return "[" + ",".join(map(_canonical, node)) + "]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    fields = []
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            value = node.body[1:]
        if isinstance(node, ast.JoinedStr):  # Python 3.12.0 adds empty pieces to f-strings
            value = [v for v in node.values if not (isinstance(v, ast.Constant) and v.value == "")]
        empty = value is None or value == [] or name in ("kind", "type_comment", "ctx")
        if not empty or (isinstance(node, ast.Constant) and name == "value"):
            fields.append(f"{name}={_canonical(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def measured_claims(cells: Iterable[str]) -> list[str]:
    """Ids of the claims that the cells measure: literal first arguments of ``….measure(…)``."""
    return sorted({name for source in cells for name in _measured_names(source)})


@cache
def _measured_names(source: str) -> frozenset[str]:
    found = set()
    for node in _statements(source):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="measure"), args=[ast.Constant(value=str(name)), *_]
            ):
                found.add(name)
    return frozenset(found)


# --- Imports -------------------------------------------------------------------------------------


def module_digests(root: Path, cells: Iterable[str]) -> dict[str, str]:
    """Digest of each library module under `root` that the cells import, directly or not."""
    waiting = [name for source in cells for name in imported_names(source)]
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = module_path(root, name)
        if path is None or name in found:
            continue
        source = path.read_text(encoding="utf-8")
        found[name] = code_digest(source)
        waiting.append(name.rpartition(".")[0])  # importing a.b runs a first
        waiting.extend(imported_names(source, name, is_package=path.name == "__init__.py"))
    return dict(sorted(found.items()))


def module_path(root: Path, name: str) -> Path | None:
    """File of the library module `name` under `root`; None for other packages and attributes."""
    if name.split(".")[0] != PACKAGE:
        return None
    path = root.joinpath(*name.split("."))
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


@cache
def imported_names(source: str, module: str = "", is_package: bool = False) -> frozenset[str]:
    """Dotted names that `source` may import, wherever in it the statement stands.

    ``from a import b`` gives both ``a`` and ``a.b``, which may be a module or an attribute.
    Relative imports are resolved from `module`. In a cell that is not plain Python, lines are read
    one by one.
    """
    names: set[str] = set()
    for node in _statements(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                parents = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*parents, base] if base else parents)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    return frozenset(names)


def _statements(source: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(source))
    except SyntaxError:
        for line in source.splitlines():
            try:
                yield from ast.walk(ast.parse(line.strip()))
            except SyntaxError:
                continue
