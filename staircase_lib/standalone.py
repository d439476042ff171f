"""One HTML file that needs nothing else: charts, tables and Vega inside, no request to anywhere.

What is told of a measured task (:mod:`~staircase_lib.report`) and of a counted corpus
(:mod:`~staircase_lib.corpus_report`) is put into this frame. Names in it may come from anywhere:
they are escaped here, and the page's own rules run no script but the two that are written here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from staircase_lib.figures import style
from staircase_lib.printable import printable
from staircase_lib.vega_script import VEGA_LITE, vega_script

__all__ = ["document", "figure", "number", "table", "token"]

_STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --ground: #fff; --line: #d0d7de;
  --note: #e69f00; --chip: #f0f3f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --ground: #14181d; --line: #30363d; --chip: #21272e; }
}
body { margin: 0; color: var(--ink); background: var(--ground); line-height: 1.5;
  font-family: "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 43rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 1rem 0.25rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
dt { font-weight: 600; font-size: 0.92rem; }
dd { margin: 0 0 0.5rem; font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 0.85rem;
  overflow-wrap: anywhere; }
figure { margin: 1.25rem 0; }
figcaption { font-size: 0.92rem; }
.sc-view { overflow-x: auto; overflow-y: hidden; }
.sc-view svg, .sc-view canvas { display: block; }
.sc-controls label { display: flex; align-items: center; gap: 0.6rem; font-size: 0.9rem; }
.sc-controls input { flex: 1 1 auto; min-width: 0; max-width: 24rem; height: 28px; }
.notes { border-left: 4px solid var(--note); padding-left: 1rem; overflow-wrap: anywhere; }
.token { overflow-wrap: anywhere; white-space: pre-wrap; }
bdi.token { background: var(--chip); border-radius: 4px; padding: 0 0.3em; }
code { overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; }
"""

# Draws the inert charts in the colours that the reader's system asks for, and again when it asks
# for others; a chart that is wider than the page is drawn again with narrower panels.
_SCRIPT = """
(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const merge = (base, over) => {
    const out = { ...base };
    for (const [key, value] of Object.entries(over))
      out[key] = value && typeof value === "object" ? merge(out[key] || {}, value) : value;
    return out;
  };
  const themed = (spec) => {
    const config = merge(spec.config || {}, { background: "transparent" });
    return { ...spec, config: dark.matches ? merge(config, DARK) : config };
  };
  const narrower = (spec, pixels, about) => {
    const copy = { ...spec };
    if (typeof copy.width === "number") {
      const cells = about.cells || 1;
      const width = Math.floor(Math.max(90, copy.width - pixels) / cells) * cells || 90;
      if (about.square && typeof copy.height === "number") copy.height -= copy.width - width;
      copy.width = width;
    }
    if (copy.concat) copy.concat = copy.concat.map((part) => narrower(part, pixels, about));
    if (copy.spec) copy.spec = narrower(copy.spec, pixels, about);
    return copy;
  };
  const wide = (host) => {
    const drawn = host.querySelector("svg, canvas");
    return drawn ? Math.ceil(drawn.getBoundingClientRect().width) : 0;
  };
  const results = new Map();
  const draw = async (box) => {
    const host = box.querySelector(".sc-view"), controls = box.querySelector(".sc-controls");
    let spec = JSON.parse(box.querySelector("script.sc-spec").textContent);
    const about = spec.usermeta.staircase;
    const embed = async () => {
      results.get(box)?.finalize();
      controls.replaceChildren();
      // Vega 6 runs what Vega-Lite compiled for Vega 5, but would warn of that in the console.
      const { $schema, ...compiled } = vegaLite.compile(themed(spec)).spec;
      const result = await vegaEmbed(host, compiled, {
        mode: "vega", actions: false, bind: controls,
        renderer: about.canvas ? "canvas" : "svg",
        tooltip: { theme: dark.matches ? "dark" : "light" },
        loader: { load: () => Promise.reject(new Error("charts carry their own data")) },
      });
      results.set(box, result);
      host.setAttribute("role", "img");
      host.removeAttribute("aria-roledescription");
      const input = controls.querySelector("input");
      if (input && about.slider) {
        const { param, steps, label } = about.slider, output = document.createElement("output");
        (input.closest("label") || input.parentElement).replaceChildren(label, input, output);
        input.setAttribute("aria-label", label);
        const tell = () => {
          output.textContent = steps[result.view.signal(param)].toLocaleString("en");
          input.setAttribute("aria-valuetext", label + " " + output.textContent);
        };
        tell();
        result.view.addSignalListener(param, tell);
      }
    };
    try {
      await embed();
      const room = box.clientWidth;
      if (wide(host) > room && spec.concat && spec.concat.length > 1) {
        spec = { ...spec, columns: 1 };
        await embed();
      }
      for (let attempt = 0; attempt < 2 && wide(host) > room; attempt++) {
        spec = narrower(spec, wide(host) - room, about);
        await embed();
      }
      host.style.minHeight = "";
    } catch (error) {
      console.error("chart not drawn:", error);
      host.innerHTML = box.querySelector("noscript").textContent;  // our own markup: one img
    }
  };
  const all = async () => {
    delete document.body.dataset.charts;
    for (const box of document.querySelectorAll(".sc-chart")) await draw(box);
    document.body.dataset.charts = "drawn";
  };
  dark.addEventListener("change", all);
  await all();
})();
"""


def number(value: float | None, digits: int = 3) -> str:
    """A number as a reader sees it."""
    return "undefined" if value is None else f"{value:,.{digits}g}"


def token(text: str) -> str:
    """HTML of a token: its text and nothing that the text might do."""
    return f'<bdi class="token">{escape(printable(text, 60))}</bdi>'


def table(head: Sequence[str], rows: Sequence[Sequence[str | Sequence[str]]]) -> str:
    """HTML of a table; cells are texts, or lists of tokens, and are escaped here."""

    def cell(content: str | Sequence[str]) -> str:
        if isinstance(content, str):
            return escape(printable(content))
        return " ".join(token(text) for text in content)

    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(content)}</td>" for content in row) + "</tr>" for row in rows
    )
    head_row = f"<thead><tr>{top}</tr></thead>"
    return f'<div class="scroll"><table>{head_row}<tbody>{body}</tbody></table></div>'


def figure(name: str, chart: Any, caption: str, absent: str = "") -> str:
    """HTML of a chart with its picture for readers without scripts.

    Parameters
    ----------
    name : str
        The figure's id.
    chart : altair chart or None
    caption : str
        HTML.
    absent : str
        What is said where there is no chart.
    """
    from vl_convert import vegalite_to_png

    from staircase_lib.chart_renderer import chart_html

    if chart is None:
        return f"<p><em>{escape(absent)}</em></p>"
    spec = chart.to_dict()
    png = vegalite_to_png(spec, vl_version=VEGA_LITE, scale=1.5, allowed_base_urls=[])
    description = str(spec["description"])
    before, after = chart_html(spec, description, int.from_bytes(png[20:24], "big") / 1.5)
    picture = base64.b64encode(png).decode()
    image = f'<img alt="{escape(description)}" src="data:image/png;base64,{picture}">'
    return f'<figure id="{name}">{before}{image}{after}<figcaption>{caption}</figcaption></figure>'


def document(title: str, body: Sequence[str], numbers: Mapping[str, Any]) -> str:
    """The whole page.

    Parameters
    ----------
    title : str
        Of the window; text.
    body : sequence of str
        HTML, empty parts left out.
    numbers : mapping
        Kept in the page as JSON, for programs.

    Returns
    -------
    str
    """
    from staircase_lib.chart_renderer import inert_json

    vega = vega_script().replace("</script", "<\\/script")
    constants = f"const DARK = {json.dumps(style.DARK)};"
    # A browser sees single line ends, and hashes what it sees.
    scripts = ["\n".join(code.splitlines()) for code in (vega, f"{{{constants}{_SCRIPT}}}")]
    allowed = " ".join(f"'sha256-{_hash(code)}'" for code in scripts)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:\">",
        f"<title>{escape(printable(title, 120))}</title><style>{_STYLE}</style></head>",
        "<body><main>",
        *body,
        f'<script type="application/json" id="numbers">{inert_json(numbers)}</script>',
        "</main>" + "".join(f"<script>{code}</script>" for code in scripts),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
