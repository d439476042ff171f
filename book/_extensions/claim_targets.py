"""Claims as places of the book: in its index and search, and among the labels that ``{ref}`` knows.

A claim's box is HTML from a cell's output, of which Sphinx sees no more than words. Here each box
enters the index under its number, ``4.1`` and ``claim 4.1``, so that the search finds it, and its
anchor becomes a label, ``claim-4-1``.
"""

from __future__ import annotations

import re
from typing import Any, cast

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.transforms import SphinxTransform

BOX = re.compile(
    r'<div class="sc-claim"[^>]*\sid="(?P<anchor>[^"]+)">\s*'
    r'<p class="sc-claim-head"><strong>Claim (?P<number>[^<]+)</strong>'
)


class ClaimTargets(SphinxTransform):
    """Index entries and a label for every claim on a page."""

    default_priority = 700  # before Sphinx's domains read the page, at 850

    def apply(self, **_: Any) -> None:
        """Find the boxes."""
        standard = cast(StandardDomain, self.env.get_domain("std"))
        for box in list(self.document.findall(nodes.raw)):
            found = BOX.search(box.astext())
            if found is None:
                continue
            anchor, number = found["anchor"], found["number"]
            entries = [
                ("single", text, anchor, "main", None) for text in (number, f"claim {number}")
            ]
            parent = cast(nodes.Element, box.parent)
            parent.insert(parent.index(box), addnodes.index(entries=entries))
            label = anchor.lower()
            if label not in self.document.nameids:  # or the page has named the place itself
                standard.note_hyperlink_target(label, self.env.docname, anchor, f"Claim {number}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_transform(ClaimTargets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
