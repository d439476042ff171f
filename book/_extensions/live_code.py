"""What a page must know so that its code can run in it: for ``_assets/live.js``.

Each page with code cells carries its place, the parameters of profile ``smoke`` as Python, and how
long it took at its own profile. It is data in the page, not a request.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import yaml
from run_records import read_records
from sphinx.application import Sphinx

from staircase_lib.chart_renderer import inert_json


def front_matter(path: Path) -> dict[str, Any]:
    """Metadata of a page: of a notebook, or what stands on top of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return json.loads(text)["metadata"]
    head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    return (yaml.safe_load(head[1]) if head else None) or {}


def describe_page(path: Path, pagename: str, record: dict[str, Any]) -> dict[str, Any]:
    """What `live.js` reads.

    Parameters
    ----------
    path : Path
        Source of the page.
    pagename : str
        Its name in the site.
    record : dict
        Its row of ``runs.json``; empty if there is none.
    """
    profiles = (front_matter(path).get("staircase") or {}).get("profiles") or {}
    at_full_size = record.get("profile", "cpu") != "smoke"
    small = profiles.get("smoke", {}) if at_full_size else {}
    return {
        "page": pagename,
        "small": "\n".join(f"{name} = {value!r}" for name, value in small.items()),
        "seconds": record.get("seconds"),
    }


def add_description(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Put the description at the end of a page that has code cells."""
    if '<div class="cell ' not in context.get("body", ""):
        return
    name = posixpath.basename(pagename)
    records = (row for row in read_records(app.srcdir) if row["chapter"] == name and "date" in row)
    about = describe_page(Path(app.env.doc2path(pagename)), pagename, next(records, {}))
    context["body"] += (
        f'<script type="application/json" id="sc-live-page">{inert_json(about)}</script>'
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_description)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
