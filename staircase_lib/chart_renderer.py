"""Charts in the built book: a myst-nb plugin that turns Vega-Lite outputs into inert HTML.

The executed notebook holds a chart as Vega-Lite JSON with a PNG beside it
(`staircase_lib.figures.enable`). In HTML the JSON becomes a data script, which no browser
executes and in which no text can end the script; ``_static/charts.js`` draws it when it scrolls
into view. Without scripts, and in print where it was not drawn, the PNG is shown. Other builders
use the PNG as it is. Registered in ``pyproject.toml`` under ``myst_nb.mime_renderers``.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any, ClassVar

from docutils import nodes
from myst_nb.core.render import MimeData, MimeRenderPlugin, NbElementRenderer

VEGALITE_MIME = "application/vnd.vegalite.v5+json"
CLAIM_MIME = "application/vnd.staircase.claim+json"
RECORDINGS_MIME = "application/vnd.staircase.recordings+json"
_HTML_BUILDERS = ("html", "dirhtml", "singlehtml", "readthedocs", "readthedocsdirhtml")
_HEIGHT_WITHOUT_PICTURE = 300


class ChartRenderer(MimeRenderPlugin):
    """Renders ``application/vnd.vegalite.v5+json``, before any other form of the output."""

    mime_priority_overrides: ClassVar[Any] = [
        (name, mime, 1) for name in _HTML_BUILDERS for mime in (VEGALITE_MIME, RECORDINGS_MIME)
    ]

    @staticmethod
    def handle_mime(
        renderer: NbElementRenderer, data: MimeData, inline: bool
    ) -> None | list[nodes.Element]:
        """The chart's box as docutils nodes; None for every other kind of output."""
        if data.mime_type == CLAIM_MIME:
            return []  # data for the ledger; its text/html is what a reader sees
        if data.mime_type == RECORDINGS_MIME:
            return _recordings(renderer, data)
        if data.mime_type != VEGALITE_MIME:
            return None
        spec: Any = data.content
        description = str(spec.get("description", "chart"))
        before, after = chart_html(spec, description, _picture_height(renderer, data))
        picture = _picture(renderer, data, description)
        note = _output(renderer, data).get("metadata", {}).get("staircase", {}).get("note", "")
        return [
            nodes.raw(text=before, format="html"),
            *picture,
            nodes.raw(text=after, format="html"),
            *([nodes.paragraph(note, note, classes=["sc-note"])] if note else []),
        ]


def chart_html(spec: dict[str, Any], description: str, height: float) -> tuple[str, str]:
    """HTML of a chart's box, in two parts between which the picture for ``noscript`` goes."""
    controls = 44 * sum(map(_controls, spec.get("params", [])))
    before = (
        '<div class="sc-chart">'
        f'<div class="sc-view" role="img" aria-label="{escape(description)}" '
        f'style="min-height:{height:g}px"></div>'
        f'<div class="sc-controls" style="min-height:{controls}px"></div>'
        '<div class="sc-tools"></div>'
        f'<script type="application/json" class="sc-spec">{inert_json(spec)}</script>'
        "<noscript>"
    )
    return before, "</noscript></div>"


def _recordings(renderer: NbElementRenderer, data: MimeData) -> list[nodes.Element]:
    """The box of recorded runs, which ``_static/explorer.js`` draws, and its picture."""
    described = str(_output(renderer, data).get("data", {}).get("text/plain", "recorded runs"))
    before = (
        '<div class="sc-explorer">'
        f'<script type="application/json" class="sc-recorded">{inert_json(data.content)}</script>'
        "<noscript>"
    )
    picture = _picture(renderer, data, described)
    after = nodes.raw(text="</noscript></div>", format="html")
    return [nodes.raw(text=before, format="html"), *picture, after]


def _controls(param: dict[str, Any]) -> int:
    """How many sliders, menus or rows of buttons a parameter has."""
    if "bind" not in param:
        return 0
    return len(param["bind"]) if "select" in param else 1


def inert_json(value: Any) -> str:
    r"""JSON in which no text can end a script or open a comment: ``<``, ``>``, ``&`` as ``\u…``."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _output(renderer: NbElementRenderer, data: MimeData) -> dict[str, Any]:
    """The whole output of the cell that `data` is one form of."""
    if data.cell_index is None:
        return {}
    _, outputs = renderer.renderer.nb_client.code_cell_outputs(data.cell_index)
    same = (o for o in outputs if o.get("data", {}).get(data.mime_type) == data.content)
    return next(same, {})  # pyright: ignore[reportArgumentType]


def _picture_height(renderer: NbElementRenderer, data: MimeData) -> float:
    metadata = _output(renderer, data).get("metadata", {})
    return float(metadata.get("image/png", {}).get("height", _HEIGHT_WITHOUT_PICTURE))


def _picture(renderer: NbElementRenderer, data: MimeData, description: str) -> list[nodes.Element]:
    output = _output(renderer, data)
    if "image/png" not in output.get("data", {}):
        return []
    png = MimeData(
        "image/png",
        output["data"]["image/png"],
        cell_metadata=data.cell_metadata,
        output_metadata=output.get("metadata", {}),
        line=data.line,
    )
    images = renderer.render_image(png)
    for image in images:
        image["alt"] = description
    return images
