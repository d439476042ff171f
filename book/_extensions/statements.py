"""Theorems, definitions and proofs: sphinx-proof, with the paper's numbers and sound ids.

Theorems and propositions are the paper's, and are numbered as there: their labels end in that
number, ``thm-3``. Lemmas and definitions are this book's and are counted through it.

sphinx-proof gives the contents of all statements one and the same id, and all proofs another.
"""

from __future__ import annotations

from typing import Any, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx_proof.nodes import NODE_TYPES, proof_node

PAPERS_OWN = ("theorem", "proposition")

logger = logging.getLogger(__name__)


def tell_statements_apart(app: Sphinx, document: nodes.document) -> None:
    """Name the content of a statement after its label and set the word "Proof" in italics."""
    for node in document.findall(lambda node: isinstance(node, tuple(NODE_TYPES.values()))):
        statement = cast(nodes.Element, node)
        content = cast(nodes.Element, statement.children[-1])
        content["ids"] = [f"{statement['label']}-content"]
    for number, node in enumerate(document.findall(proof_node), start=1):
        box = cast(nodes.Element, node.children[0])
        box["ids"] = [f"proof-{number}"]
        text = next(iter(box.findall(nodes.Text)))
        word, _, rest = text.astext().partition(" ")
        text.parent.replace(text, [nodes.emphasis(text=word), nodes.Text(f" {rest}")])


def number_as_the_paper(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Give theorems and propositions the number in their label, once Sphinx has counted them."""
    for label, statement in getattr(env, "proof_list", {}).items():
        kind = statement["countertype"]
        number = label.rpartition("-")[2]
        if kind in PAPERS_OWN and number.isdigit():
            env.toc_fignumbers[statement["docname"]][kind][label] = (int(number),)
        elif kind in PAPERS_OWN:
            logger.warning(
                "%s %r: expected a label that ends in the paper's number, such as thm-3; what the "
                "paper does not state is a lemma here",
                kind,
                label,
                location=statement["docname"],
            )
    return []  # no page has to be read again


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.setup_extension("sphinx_proof")
    app.connect("doctree-read", tell_statements_apart)
    app.connect("env-get-updated", number_as_the_paper, priority=900)  # after Sphinx's own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
