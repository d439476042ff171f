"""The directive ``{run-records}``: how each chapter of this site was last executed.

The runner writes ``runs.json`` beside the pages' sources; without it, as after a plain
``jupyter-book build .``, the page says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

COLUMNS = ("chapter", "state", "profile", "commit", "date", "time", "memory", "device", "versions")


class RunRecords(SphinxDirective):
    """A table with a row for each executed chapter."""

    def run(self) -> list[nodes.Node]:
        """The table, or a sentence that says why there is none."""
        path = Path(self.env.srcdir) / "runs.json"
        if not path.is_file():
            text = "These pages were built without the runner of this project: no run is on record."
            return [nodes.paragraph(text=text)]
        self.env.note_dependency(str(path))
        rows = [_cells(row) for row in json.loads(path.read_text(encoding="utf-8"))]
        body = [_row([nodes.Text(text) for text in row]) for row in rows]
        head = _row([nodes.Text(name) for name in COLUMNS])
        group = nodes.tgroup(
            "",
            *(nodes.colspec(colwidth=1) for _ in COLUMNS),
            nodes.thead("", head),
            nodes.tbody("", *body),
            cols=len(COLUMNS),
        )
        return [nodes.container("", nodes.table("", group), classes=["wide-table"])]


def _cells(row: dict[str, Any]) -> list[str]:
    """What the table shows of a row of ``staircase_lib.book.status_rows``."""
    state = "; ".join(row["stale"]) or "fresh"
    if "date" not in row:
        return [row["chapter"], state, *[""] * (len(COLUMNS) - 2)]
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return [
        *(row["chapter"], state, row["profile"], row["commit"]),
        *(row["date"][:16].replace("T", " "), f"{row['seconds']:.0f} s", f"{row['memory_mb']} MB"),
        *(row["device"], versions),
    ]


def _row(cells: list[nodes.Text]) -> nodes.row:
    entries = [nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells]
    return nodes.row("", *cast(list[nodes.Node], entries))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("run-records", RunRecords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
