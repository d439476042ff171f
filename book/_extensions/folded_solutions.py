"""Solutions of exercises as ``<details>``: folded, opened by key or click, without a script.

sphinx-exercise writes a solution as an admonition, which needs a script to be folded, and gives all
contents of exercises one and the same id.
"""

from __future__ import annotations

from typing import Any, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator
from sphinx_exercise.nodes import is_extension_node, solution_node


def visit_solution(translator: HTML5Translator, node: nodes.Element) -> None:
    """Open the box; its title is what folds it."""
    del node[0]  # a link to the exercise, which nobody could follow: a click folds the box
    summary = f'<summary class="admonition-title">{node["title"]}</summary>\n'
    translator.body.append(translator.starttag(node, "details", CLASS="admonition"))
    translator.body.append(summary)


def depart_solution(translator: HTML5Translator, node: nodes.Element) -> None:
    """Close the box."""
    translator.body.append("</details>\n")


def tell_contents_apart(app: Sphinx, document: nodes.document) -> None:
    """Name the content of an exercise or a solution after its label."""
    for node in document.findall(nodes.Element):
        if is_extension_node(node):
            content = cast(nodes.Element, node.children[-1])
            content["ids"] = [f"{node['label']}-content"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx; sphinx-exercise has to be loaded before."""
    app.setup_extension("sphinx_exercise")
    html = (visit_solution, depart_solution)
    app.add_node(solution_node, override=True, html=html, singlehtml=html)
    app.connect("doctree-read", tell_contents_apart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
