"""How each page of this site was made: a line at its end, and all runs in one table.

The runner writes ``runs.json`` beside the pages' sources. Without it, as after a plain
``jupyter-book build .``, pages have no such line, and the directive ``{run-records}`` says so.
"""

from __future__ import annotations

import json
import posixpath
from html import escape
from pathlib import Path
from typing import Any, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

COLUMNS = ("chapter", "state", "profile", "commit", "date", "time", "memory", "device", "versions")


def read_records(source: str | Path) -> list[dict[str, Any]]:
    """Rows of ``staircase_lib.book.status_rows`` beside the sources; none without the file."""
    path = Path(source) / "runs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


class RunRecords(SphinxDirective):
    """A table with a row for each executed chapter, and under it what all runs have in common."""

    def run(self) -> list[nodes.Node]:
        """The table, or a sentence that says why there is none."""
        records = read_records(self.env.srcdir)
        if not records:
            text = "These pages were built without the runner of this project: no run is on record."
            return [nodes.paragraph(text=text)]
        cells = [_cells(row) for row in records]
        # What is the same in every run is said once: so the table fits the column.
        shared = {cell[-2:] for cell in cells if any(cell[-2:])}
        names = COLUMNS[: -2 if len(shared) == 1 else None]
        body = [_row([nodes.Text(text) for text in cell[: len(names)]]) for cell in cells]
        head = _row([nodes.Text(name) for name in names])
        group = nodes.tgroup(
            "",
            *(nodes.colspec(colwidth=1) for _ in names),
            nodes.thead("", head),
            nodes.tbody("", *body),
            cols=len(names),
        )
        table = nodes.container("", nodes.table("", group), classes=["wide-table"])
        if len(shared) != 1:
            return [table]
        device, versions = shared.pop()
        return [table, nodes.paragraph(text=f"Every run was on {device}, with {versions}.")]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """What the table shows of a row of ``staircase_lib.book.status_rows``."""
    state = "; ".join(row["stale"]) or "fresh"
    if "date" not in row:
        return (row["chapter"], state, *[""] * (len(COLUMNS) - 2))
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return (
        *(row["chapter"], state, row["profile"], row["commit"]),
        *(row["date"][:16].replace("T", " "), f"{row['seconds']:.0f} s", f"{row['memory_mb']} MB"),
        *(row["device"], versions),
    )


def _row(cells: list[nodes.Text]) -> nodes.row:
    entries = [nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells]
    return nodes.row("", *cast(list[nodes.Node], entries))


def add_line(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Say at the end of a page when and how it was made, and how to do it again."""
    runs = [row for row in read_records(app.srcdir) if "date" in row]
    if not runs or "body" not in context or pagename not in app.env.found_docs:
        return
    name = posixpath.basename(pagename)
    own = [row for row in runs if row["chapter"] == name]
    row = own[0] if own else max(runs, key=lambda row: row["date"])
    shown = {key: escape(str(value)) for key, value in row.items()}
    moment = f"{shown['date'][:16].replace('T', ' ')} UTC"
    setting = f"at profile {shown['profile']}, commit {shown['commit']}"
    listed = "book/E_running"
    where = "All runs"
    if listed in app.env.found_docs:
        where = f'<a href="{context["pathto"](listed)}">All runs</a>'
    if own:
        command = f"python -m staircase_lib run {shown['chapter']} --profile {shown['profile']}"
        made = (
            f"Executed {moment} {setting}, in {row['seconds']:.0f} s on {shown['device']}. "
            f"To execute it yourself: <code>{command}</code>; to change and run its code in this "
            f"page, on your own machine: <code>make live</code>"
        )
    else:
        made = (
            f"Nothing is executed on this page. The last chapter of its book was executed {moment} "
            f"{setting}. To build it yourself: <code>make book PROFILE={shown['profile']}</code>"
        )
    context["body"] += f'<p class="sc-made">{made}. {where}.</p>'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_line)
    app.add_directive("run-records", RunRecords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
