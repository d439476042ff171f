"""A small book, built with the real configuration, that holds every kind of chart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import yaml
from chart_gallery import HOSTILE, gallery

from staircase_lib import figures
from staircase_lib.chart_renderer import CLAIM_MIME
from staircase_lib.figures import style

ROOT = Path(__file__).resolve().parents[1]

CLAIM = """<div class="sc-claim" data-verdict="partly" id="claim-4-1">
<p class="sc-claim-head"><strong>Claim 4.1</strong> <span class="sc-verdict">partly</span></p>
<table><tr><th>statistic</th><th>value</th></tr><tr><td>median r0</td><td>0.991</td></tr></table>
</div>"""
LEDGER = """<div class="sc-scroll"><table class="sc-ledger"><tr><th>claim</th><th>statement</th>
<th>verdict</th></tr><tr><td>4.1</td><td>early geometry is that of the zeroth-order signature</td>
<td><span class="sc-verdict" data-verdict="partly">partly</span></td></tr></table></div>"""
INTRODUCTION = r"""# Gallery

{numref}`fig-heatmap` shows every token against every other, and <b class="order-0">order 0</b>.

$$
-\nabla_{E_\alpha}\mathcal L=\sum_{m=0}^{L-1}\sum_{k=m+1}^{K} k\,c_k\binom{L-1}{m}
\sum_{j_0+\dots+j_m=k-1}\frac{(k-1)!}{j_0!\cdots j_m!}\;W\Big[(W^\top E_\alpha)^{j_0}\odot
\sum_{x_1..x_m}(W^\top E_{x_1})^{j_1}\odot\cdots\odot U\,R^{(m)}_\alpha(\cdot,x_1..x_m)\Big]
$$
"""


def build(folder: Path) -> Path:
    """Build the book in `folder`; returns the folder of its pages."""
    figures.enable()
    names = list(gallery())
    pages = {"charts": names[:7], "curves": names[7:]}
    (folder / "index.md").write_text(INTRODUCTION, encoding="utf-8")
    with mock.patch.object(style, "PNG_SCALE", 1):  # quick; test_figures.py looks at their size
        for page, chosen in pages.items():
            nbformat.write(notebook(page, chosen), folder / f"{page}.ipynb")
    contents = {"format": "jb-book", "root": "index", "chapters": [{"file": p} for p in pages]}
    (folder / "_toc.yml").write_text(yaml.safe_dump(contents), encoding="utf-8")
    (folder / "references.bib").write_text("", encoding="utf-8")
    (folder / "_config.yml").write_text(yaml.safe_dump(configuration()), encoding="utf-8")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", "-W", "--keep-going", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    pages_folder = folder / "_build" / "html"
    if done.returncode or not (pages_folder / "index.html").exists():
        raise RuntimeError(
            f"the gallery does not build:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return pages_folder


def configuration() -> dict[str, Any]:
    """The book's configuration, with absolute paths and nothing to execute."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    config["execute"] = {"execute_notebooks": "off"}
    config["bibtex_bibfiles"] = ["references.bib"]
    sphinx = config["sphinx"]
    for name, path in sphinx["local_extensions"].items():
        sphinx["local_extensions"][name] = str(ROOT / path)
    assets = sphinx["config"]["html_static_path"]
    sphinx["config"]["html_static_path"] = [str(ROOT / path) for path in assets]
    return config


def notebook(title: str, names: list[str]) -> Any:
    """An executed notebook with one chart a cell, each a numbered figure."""
    charts = gallery()
    cells = [nbformat.v4.new_markdown_cell(f"# {title.title()}")]
    for name in names:
        bundle, metadata = charts[name]._repr_mimebundle_(None, None)
        cell = output_cell(dict(bundle), metadata)
        label = f"fig-{name.replace('_', '-')}"
        caption = f"The chart *{name}*. What to see: $r_0$ in natural order."
        cell.metadata["mystnb"] = {"figure": {"caption": caption, "name": label}}
        cells += [nbformat.v4.new_markdown_cell(f"{{numref}}`{label}` is below."), cell]
    row = {"id": "4.1", "statement": HOSTILE}
    if title == "charts":  # a claim has one place in a book
        bundle = {CLAIM_MIME: row, "text/html": CLAIM, "text/plain": "claim"}
        cells.append(output_cell(bundle, {}))
    cells.append(output_cell({"text/html": LEDGER, "text/plain": "ledger"}, {}))
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def output_cell(bundle: dict[str, Any], metadata: dict[str, Any]) -> Any:
    """An executed cell with one output."""
    output = nbformat.v4.new_output(
        "execute_result", data=bundle, metadata=metadata, execution_count=1
    )
    cell = nbformat.v4.new_code_cell("chart", outputs=[output], execution_count=1)
    cell.metadata["tags"] = ["hide-input"]
    return cell
