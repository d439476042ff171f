"""The library reference: a directive that documents one module from its docstrings.

``.. library-module:: staircase_lib.tasks`` gives the module's own text, a table of its public
names, and an entry for each with signature, parameters and the pages whose code uses it. Public is
what ``__all__`` lists. A public name without a docstring is a warning, which fails the build.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from staircase_lib.freshness import PACKAGE

# What Jupyter Book fills in where the configuration names no repository.
NO_REPOSITORY = "https://github.com/executablebooks/jupyter-book"

logger = logging.getLogger(__name__)


class LibraryModule(SphinxDirective):
    """Everything public of one module; to be used in reStructuredText (``{eval-rst}``)."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Entries made by autodoc, after a table made by autosummary."""
        name = self.arguments[0]
        module = importlib.import_module(name)
        listed = public_names(module)
        for missing in undocumented(module):
            logger.warning("%s.%s: public, but without a docstring", name, missing)
        lines = [f".. automodule:: {name}", "   :no-members:", ""]
        called = [entry for entry in listed if callable(getattr(module, entry))]
        called = [entry for entry in called if not _is_alias(getattr(module, entry))]
        if called:
            lines += [".. autosummary::", "   :nosignatures:", ""]
            lines += [*(f"   {entry}" for entry in called), ""]
        for entry in listed:
            lines += [f".. {_directive(getattr(module, entry))}:: {name}.{entry}"]
            if inspect.isclass(getattr(module, entry)):
                lines += ["   :members:"]
            elif not _is_function(getattr(module, entry)):
                lines += ["   :no-value:"]
            lines += [""]
        holder = nodes.container()
        source = f"library-module {name}"
        self.state.nested_parse(StringList(lines, source=source), self.content_offset, holder)
        return holder.children


def _directive(thing: Any) -> str:
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, BaseException) else "autoclass"
    return "autofunction" if _is_function(thing) else "autodata"


def _is_alias(thing: Any) -> bool:
    """Whether it only stands for types, as ``Literal["next", "previous"]`` does."""
    return typing.get_origin(thing) is not None


def _is_function(thing: Any) -> bool:
    """Whether it is one, also behind a cache."""
    return inspect.isroutine(inspect.unwrap(thing)) if callable(thing) else False


def public_names(module: ModuleType) -> list[str]:
    """Names in ``__all__``: in the order in which the module defines them, then those of others."""
    listed = list(getattr(module, "__all__", ()))
    tree = ast.parse(inspect.getsource(module))
    place = {name: node.lineno for node in tree.body for name in _defined(node)}
    return sorted(listed, key=lambda name: (place.get(name, len(place) + 10**6), name))


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def undocumented(module: ModuleType) -> list[str]:
    """Public names that nothing is said of: no docstring, or no ``#:`` comment if it is a value."""
    commented = {name for _, name in ModuleAnalyzer.for_module(module.__name__).find_attr_docs()}
    missing = []
    for name in public_names(module):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            said = _own_docstring(thing)
        elif _is_function(thing):
            said = bool(inspect.getdoc(thing))
        else:
            said = name in commented or _imported(module, name)
        if not said:
            missing.append(name)
    return missing


def _own_docstring(thing: type) -> bool:
    """Whether a class says what it is; dataclasses without a docstring repeat their fields."""
    said = thing.__dict__.get("__doc__") or ""
    return bool(said) and not said.startswith(f"{thing.__name__}(")


def _imported(module: ModuleType, name: str) -> bool:
    """Whether a value comes from another module, where its comment stands."""
    tree = ast.parse(inspect.getsource(module))
    return name not in {found for node in tree.body for found in _defined(node)}


# --- The pages whose code uses an entry ----------------------------------------------------------


def used_names(cells: Iterable[str]) -> set[str]:
    """Dotted names of the library that code cells import or reach through what they import.

    Parameters
    ----------
    cells : iterable of str
        Python, in the order of the page; a cell that is not plain Python is passed over.
    """
    known: dict[str, str] = {}  # name in the cells -> dotted name in the library
    found: set[str] = set()
    for source in cells:
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for name, dotted in _imports(tree):
            known[name] = dotted
            found.add(dotted)
        for node in ast.walk(tree):
            if dotted := _dotted(node, known):
                found.add(dotted)
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_ours(alias.name):
                    yield alias.asname or PACKAGE, alias.name if alias.asname else PACKAGE


def _is_ours(name: str | None) -> bool:
    return bool(name) and name.split(".")[0] == PACKAGE


def _dotted(node: ast.AST, known: dict[str, str]) -> str:
    """``tasks.addition`` in full, if ``tasks`` is one of the known names; empty otherwise."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, known)
        return f"{base}.{node.attr}" if base else ""
    return ""


@lru_cache
def pages_of_names(pages: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """For each dotted name the pages that use it, in the order of the book.

    Parameters
    ----------
    pages : tuple of (page, file)
        In the order of the book.
    """
    users: dict[str, list[str]] = {}
    for page, file in pages:
        used = used_names(_cells(Path(file)))
        for dotted in used | {_defined_as(name) for name in used}:
            users.setdefault(dotted, []).append(page)
    return users


def _defined_as(dotted: str) -> str:
    """Where the thing is defined that a module may only pass on; the same name if there is none."""
    module, _, name = dotted.rpartition(".")
    try:
        thing = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError):
        return dotted
    return f"{getattr(thing, '__module__', module)}.{getattr(thing, '__qualname__', name)}"


def _cells(path: Path) -> list[str]:
    """Code cells of a page: an executed notebook, or Markdown that was not executed."""
    if path.suffix == ".ipynb":
        import nbformat

        notebook = nbformat.read(path, as_version=4)
    else:
        text = path.read_text(encoding="utf-8")
        if "{code-cell}" not in text:
            return []
        import jupytext

        notebook = jupytext.reads(text, fmt="md:myst")
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def add_users(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list) -> None:
    """End a docstring with the pages whose code uses what it describes."""
    if what not in ("function", "class", "exception", "data"):
        return
    in_order = [page for page in app.config.external_site_map if page in app.env.found_docs]
    users = pages_of_names(tuple((page, str(app.env.doc2path(page))) for page in in_order))
    if used := users.get(name):
        links = "; ".join(f":doc:`/{page}`" for page in used)
        lines += ["", ".. container:: sc-used-in", "", f"   Used in: {links}.", ""]


# --- Signatures ----------------------------------------------------------------------------------


def shorten(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: Any, returned: Any
) -> tuple[Any, Any]:
    """Write arrays as the code does: ``NDArray[float64]``, not what that stands for."""
    return _short(signature), _short(returned)


def _short(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    array = r"~?(numpy\.)?ndarray\[tuple\[~?(typing\.)?Any, \.\.\.\], ~?(numpy\.)?dtype\[(.*?)\]\]"
    text = re.sub(array, r"NDArray[\4]", text)
    text = re.sub(r"\bnp\.", "~numpy.", text)
    return text.replace(
        "<factory>", "..."
    )  # otherwise the signature is no Python, and has no links


def plain_signatures(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Write the lines of a long signature as lines; Sphinx makes them a list without terms."""
    body = context.get("body") or ""
    if '<dt class="sig' in body:
        context["body"] = re.sub(r'<dt class="sig.*?</dt>', _lines, body, flags=re.DOTALL)


def _lines(signature: re.Match[str]) -> str:
    text = re.sub(r"<(/?)d[ld]>", r"<\1div>", signature[0])
    return text.replace("<div>", '<div class="sc-sig-lines">', 1)


# --- Links to the source -------------------------------------------------------------------------


def source_link(config: Config, module: str, fullname: str) -> str | None:
    """Address of the lines that define an entry; None while the repository has no address."""
    options = config.html_theme_options
    base, branch = options.get("repository_url"), options.get("repository_branch") or "main"
    if not base or base == NO_REPOSITORY or not module:
        return None
    thing: Any = importlib.import_module(module)
    for part in fullname.split("."):
        thing = getattr(thing, part, None)
    try:
        thing = inspect.unwrap(thing.fget if isinstance(thing, property) else thing)  # pyright: ignore
        lines, first = inspect.getsourcelines(thing)
        file = Path(inspect.getsourcefile(thing) or "")
    except (TypeError, OSError):  # a value, which has no lines of its own
        return None
    parts = file.parts
    path = "/".join(parts[len(parts) - 1 - parts[::-1].index(PACKAGE) :])
    return f"{base.rstrip('/')}/blob/{branch}/{path}#L{first}-L{first + len(lines) - 1}"


def resolve_source(app: Sphinx, config: Config) -> None:
    """Give sphinx.ext.linkcode its function, which a configuration in YAML cannot hold."""
    config.linkcode_resolve = (  # pyright: ignore[reportAttributeAccessIssue]
        lambda domain, info: source_link(config, info["module"], info["fullname"])
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    for name in ("autodoc", "autosummary", "linkcode"):
        app.setup_extension(f"sphinx.ext.{name}")
    app.setup_extension("numpydoc")
    app.add_directive("library-module", LibraryModule)
    app.connect("config-inited", resolve_source, priority=100)
    app.connect("html-page-context", plain_signatures)
    app.connect("autodoc-process-signature", shorten, priority=900)
    app.connect("autodoc-process-docstring", add_users, priority=900)  # after numpydoc
    return {"parallel_read_safe": True, "parallel_write_safe": True}
