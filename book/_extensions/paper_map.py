"""The map from the paper to this book: ``{paper-map}``, a row for each part of the paper and claim.

``book/paper.toml`` says what the paper consists of, which claims belong to a part and where the
book treats it. The rest is looked up: statements in ``claims.toml``, verdicts in the ledger of this
build (or the recorded one), tests by their mark ``@pytest.mark.claim("4.1")``.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from staircase_lib import claims

TESTS = Path(__file__).resolve().parents[2] / "tests"
FIRST_COLUMN = {"beyond": "beyond the paper"}  # of the other tables: in the paper
COLUMNS = ("in this book", "claim", "verdict", "tests")
UNMEASURED = "not measured"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """A section, statement, figure or appendix of the paper, or one of this book's own additions.

    Attributes
    ----------
    number : str
        As the paper counts it, or the claim's number beyond the paper.
    about : str
        What it is about, in our words.
    book : str
        Where the book treats it: MyST with roles.
    claims : tuple of str
        Claims of the ledger that stand there.
    """

    number: str
    about: str
    book: str
    claims: tuple[str, ...]


def read_parts(text: str) -> dict[str, list[Part]]:
    """Tables of the map by name, each with its parts in order.

    Raises
    ------
    ValueError
        If a part lacks a field or has one that is not known.
    """
    tables = {}
    for name, rows in tomllib.loads(text).items():
        for row in rows:
            if row.keys() - {"claims"} != {"number", "about", "book"}:
                raise ValueError(
                    f"paper.toml, {name} {row.get('number', '')}: expected number, about, book and "
                    f"perhaps claims, got {', '.join(row)}."
                )
        tables[name] = [Part(**{**row, "claims": tuple(row.get("claims", ()))}) for row in rows]
    return tables


def tests_of_claims(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """For each claim, file and name of the tests that are marked with it.

    A mark is ``@pytest.mark.claim("4.1", "4.2")`` above the test, with numbers written out.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(folder.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "pytest.mark.claim(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claim":
                    for number in map(ast.literal_eval, mark.args):
                        found.setdefault(number, []).append((path.name, node.name))  # pyright: ignore[reportAttributeAccessIssue]
    return found


def gaps(
    parts: Iterable[Part], declared: Iterable[str], tests: Mapping[str, Sequence[Any]]
) -> list[str]:
    """What is wrong with the map: claims in no part or in two, not declared, or without a test."""
    places: dict[str, list[str]] = {number: [] for number in declared}
    told = []
    for part in parts:
        for number in part.claims:
            if number in places:
                places[number].append(part.number)
            else:
                told.append(f"{part.number}: claim {number} is not declared in claims.toml")
    for number, where in places.items():
        if len(where) != 1:
            told.append(f"claim {number}: expected in one part, is in {', '.join(where) or 'none'}")
        if not tests.get(number):
            told.append(f'claim {number}: no test is marked @pytest.mark.claim("{number}")')
    strange = sorted(set(tests) - set(places))
    return told + [f"claim {number}: marked at a test, not declared" for number in strange]


def ledger_rows(source: Path) -> dict[str, dict[str, Any]]:
    """The ledger of this build, which lies beside its sources, or the recorded one."""
    for path in (source.parent / "ledger.json", source / "book" / "results" / "ledger.json"):
        if path.is_file():
            return {row["id"]: row for row in claims.read_ledger(path).rows}
    return {}


class PaperMap(SphinxDirective):
    """One table of the map; the argument is its name in ``paper.toml``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table; what is wrong with the map is told as warnings."""
        path = Path(self.env.srcdir) / "book" / "paper.toml"
        self.env.note_dependency(str(path))
        tables = read_parts(path.read_text(encoding="utf-8"))
        name = self.arguments[0]
        if name not in tables:
            raise self.error(f"paper-map: expected one of {list(tables)}, got {name!r}")
        tests = tests_of_claims(TESTS)
        everything = [part for parts in tables.values() for part in parts]
        for problem in gaps(everything, claims.CLAIMS, tests):
            logger.warning("paper-map: %s", problem, location=self.get_location())
        ledger = ledger_rows(Path(self.env.srcdir))
        rows = [row for part in tables[name] for row in self._rows(part, ledger, tests)]
        columns = (FIRST_COLUMN.get(name, "in the paper"), *COLUMNS)
        head = nodes.row("", *(_entry(nodes.Text(column)) for column in columns))
        group = nodes.tgroup(
            "",
            *(nodes.colspec(colwidth=1) for _ in columns),
            nodes.thead("", head),
            nodes.tbody("", *rows),
            cols=len(columns),
        )
        return [nodes.table("", group, classes=["paper-map"])]

    def _rows(
        self,
        part: Part,
        ledger: Mapping[str, Mapping[str, Any]],
        tests: Mapping[str, Sequence[tuple[str, str]]],
    ) -> list[nodes.row]:
        """A row for each claim of the part, or one without."""
        span = {"morerows": len(part.claims) - 1} if len(part.claims) > 1 else {}
        lead = [
            _entry(nodes.strong(text=part.number), *self._inline(f" {part.about}"), **span),
            _entry(*self._inline(part.book), **span),
        ]
        if not part.claims:
            return [nodes.row("", *lead, _entry(), _entry(), _entry())]
        rows = []
        for number in part.claims:
            link = self._inline(f"{{ref}}`{number} <claim-{number.replace('.', '-').lower()}>`")
            statement = claims.CLAIMS[number].statement if number in claims.CLAIMS else ""
            verdict = escape(ledger.get(number, {}).get("verdict", UNMEASURED))
            shown = f'<span class="sc-verdict" data-verdict="{verdict}">{verdict}</span>'
            cells = [
                _entry(*link, nodes.Text(" "), *_scripts(statement)),
                _entry(nodes.raw(text=shown, format="html")),
                _entry(*_listed(tests.get(number, ()))),
            ]
            rows.append(nodes.row("", *lead, *cells))
            lead = []
        return rows

    def _inline(self, text: str) -> list[nodes.Node]:
        return self.state.inline_text(text, self.lineno)[0]


def _scripts(statement: str) -> list[nodes.Node]:
    """A claim's statement with its powers and subscripts in their places."""
    raised = {"sub": nodes.subscript, "sup": nodes.superscript}
    pieces = claims.scripts(statement)
    return [raised[s](text=piece) if s else nodes.Text(piece) for s, piece in pieces]


def _listed(tests: Sequence[tuple[str, str]]) -> list[nodes.Node]:
    """Tests by file."""
    files: dict[str, list[str]] = {}
    for file, test in tests:
        files.setdefault(file, []).append(test)
    shown: list[nodes.Node] = []
    for file, names in files.items():
        shown += [
            nodes.Text("; " if shown else ""),
            nodes.literal(text=file.removesuffix(".py")),
            nodes.Text(": "),
        ]
        for i, test in enumerate(names):
            words = test.removeprefix("test_").replace("_", " ")
            shown.append(nodes.Text(f"{', ' if i else ''}{words}"))
    return shown


def _entry(*children: nodes.Node, **attributes: Any) -> nodes.entry:
    return nodes.entry("", nodes.paragraph("", "", *children), **attributes)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("paper-map", PaperMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
