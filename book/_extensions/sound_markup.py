"""Roles that assistive technology does not understand, and doubled names, taken out of the pages.

Docutils writes bibliographies as a list whose entries have a role of their own, deprecated since
ARIA 1.2, and a list without list items is announced as empty. Arrows of the theme have no name.
Citations in docstrings are numbered anew in each, though they may stand on one page.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

ROLES = (' role="doc-biblioentry"', ' role="list"')
CITATION_ID = re.compile(r'(<span class="bibtex-citation") id="id\d+"')


def remove_roles(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Write citations without the roles."""
    body = context.get("body", "")
    if 'class="citation-list"' in body:
        for role in ROLES:
            body = body.replace(role, "")
        context["body"] = body


def remove_ids(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Write places that cite without an id: none leads there, and ids have to be unique."""
    if "body" in context:
        context["body"] = CITATION_ID.sub(r"\1", context["body"])


def name_toggles(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Name the arrows in the table of contents that unfold the pages below a page."""
    write = context.get("generate_toctree_html")
    if write is None:
        return

    def write_named(*given: Any, **options: Any) -> Any:
        written = write(*given, **options)  # parsed HTML
        for toggle in written("summary") if written else ():
            toggle["aria-label"] = "Pages below this page"
        return written

    context["generate_toctree_html"] = write_named


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", remove_roles)
    app.connect("html-page-context", remove_ids)
    app.connect("html-page-context", name_toggles, priority=900)  # after the theme's own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
