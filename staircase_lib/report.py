"""What was measured about a task, as charts and as one HTML file that needs nothing else.

Every chart function takes a :class:`~staircase_lib.measurement.Measurement` and returns an Altair
chart, or None where there is nothing to draw: an alignment that is undefined for every seed makes
no empty picture.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from staircase_lib import figures, signatures
from staircase_lib.measurement import Measurement

__all__ = [
    "alignment_chart",
    "information_chart",
    "shares_chart",
    "signature_chart",
    "similarity_chart",
    "stair_chart",
    "training_chart",
    "write_html",
]

_MOST_TOKENS_SHOWN = 8
_MOST_LABELS_SHOWN = 200
_MOST_IN_HEATMAP = 60
_HEATMAP_NUMBERS = 120_000
_ORDERS_SHOWN = 4


# --- Charts ---------------------------------------------------------------------------------------


def information_chart(measured: Measurement) -> Any:
    """What each order tells about the label."""
    return figures.order_bars(
        measured.prediction.orders["information"].tolist()[:_ORDERS_SHOWN],
        value_title="bits about the label in which anchor it is, given m context tokens",
    )


def signature_chart(measured: Measurement) -> Any:
    """Zeroth-order signatures of some anchors, evenly among them."""
    task, names = measured.task, measured.names
    count = min(_MOST_TOKENS_SHOWN, len(task.anchors))
    chosen = task.anchors[
        np.unique(np.linspace(0, len(task.anchors) - 1, count).round().astype(int))
    ]
    labels = np.unique(task.labels)
    if len(labels) > _MOST_LABELS_SHOWN:
        return None
    rows = signatures.label_signature(task, 0, chosen)
    numeric = all(names[y].lstrip("-").isdigit() for y in labels)
    table = pd.DataFrame(
        [
            {
                "token": names[token],
                "label": int(names[y]) if numeric else names[y],
                "probability": float(row[y]),
            }
            for token, row in zip(chosen, rows, strict=True)
            for y in labels
        ]
    )
    return figures.signature_bars(table, token_title="")


def stair_chart(measured: Measurement) -> Any:
    """Loss under gradient flow, with time in per cent of the predicted."""
    flow: Any = measured.flow
    if flow.empty:
        return None
    start = math.log(measured.task.vocab_size)
    dated = measured.prediction.dated / start
    grid = np.arange(60, min(300, max(110, math.ceil(flow["time"].max()))) + 1)
    rows = []
    for seed, own in flow.groupby("seed"):
        # A flow ends well below the stair; the picture is cut off there.
        beyond = own["value"].iloc[-1] / start if own["value"].iloc[-1] < start * dated else np.nan
        loss = np.interp(grid, own["time"], own["value"] / start, right=beyond)
        rows += [
            {"step": int(t), "value": float(v), "seed": seed}
            for t, v in zip(grid, loss, strict=True)
            if np.isfinite(v)
        ]
    table = pd.DataFrame(rows)
    return figures.metric_curves(
        table,
        y_title="loss / log V",
        log_x=False,
        time_title="time, % of the prediction",
        threshold=dated,
        threshold_label="the stair",
        domain=(2 * dated - 1, max(1.0, *table["value"].tolist()) + 0.1 * (1 - dated)),
    )


def training_chart(measured: Measurement, metric: str = "loss") -> Any:
    """Loss (with what one constant answer leaves) or accuracy (with chance) of the training."""
    metrics: Any = measured.run.metrics
    p = measured.prediction
    loss = metric == "loss"
    return figures.metric_curves(
        metrics[metrics["metric"] == metric],
        y_title="loss, nats" if loss else "accuracy",
        threshold=p.entropy * math.log(2) if loss else p.task.chance,
        threshold_label="entropy of the label" if loss else "best constant answer",
        domain=None if loss else (0.0, 1.0),
        time_title="step",
        clock="training",
    )


def shares_chart(measured: Measurement) -> Any:
    """Share of each order in what separates the anchors' gradients."""
    shares: Any = measured.shares
    shares = shares[shares["order"] < _ORDERS_SHOWN]
    if shares.empty:
        return None
    return figures.order_shares(shares, time_title="step", clock="training")


def alignment_chart(measured: Measurement) -> Any:
    """Alignment of the embeddings with the signature of each order."""
    rows = measured.alignment.dropna(subset=["value"])
    if rows.empty:
        return None
    named = rows.assign(order=[f"order {order}" for order in rows["order"]])
    return figures.metric_curves(
        named,
        y_title="alignment r_m",
        series="order",
        order_colors=True,
        time_title="step",
        clock="training",
    )


def similarity_chart(measured: Measurement) -> Any:
    """Similarities of the first seed's embeddings over time beside those of the signatures."""
    count = len(measured.task.anchors)
    if not 2 <= count <= _MOST_IN_HEATMAP:
        return None
    most = max(3, min(24, _HEATMAP_NUMBERS // (2 * count * count)))
    steps, matrices = measured.similarities(most)
    names = [measured.names[a] for a in measured.task.anchors]
    return figures.similarity_heatmap(steps, matrices, names, time_title="step", clock="training")


# --- One HTML file --------------------------------------------------------------------------------

_ABSENT = {
    "stair": "No first stair is predicted, so there is none to show.",
    "alignment": "The alignment is undefined here: the notes above say why.",
    "shares": "The gradient was not taken apart by orders.",
    "similarity": "A picture of similarities needs between 2 and 60 tokens.",
    "signatures": "There are too many labels for a picture.",
}

_STYLE = """
:root { color-scheme: light; }
body { margin: 0; color: #24292f; background: #fff; line-height: 1.5;
  font-family: "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 43rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #d0d7de; padding-bottom: 0.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
.scroll { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 1rem 0.25rem 0;
  border-bottom: 1px solid #d0d7de; }
figure { margin: 1.25rem 0; }
figcaption { font-size: 0.92rem; }
.sc-view { overflow-x: auto; overflow-y: hidden; }
.sc-view svg, .sc-view canvas { display: block; }
.sc-controls label { display: flex; align-items: center; gap: 0.6rem; font-size: 0.9rem; }
.sc-controls input { flex: 1 1 auto; min-width: 0; max-width: 24rem; height: 28px; }
.notes { border-left: 4px solid #e69f00; padding-left: 1rem; overflow-wrap: anywhere; }
.token { overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; }
"""

# Draws the inert charts; a chart that is wider than the page is drawn again with narrower panels.
_SCRIPT = """
(async () => {
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
  for (const box of document.querySelectorAll(".sc-chart")) {
    const host = box.querySelector(".sc-view"), controls = box.querySelector(".sc-controls");
    let spec = JSON.parse(box.querySelector("script.sc-spec").textContent);
    const about = spec.usermeta.staircase;
    const embed = async () => {
      controls.replaceChildren();
      const result = await vegaEmbed(host, spec, {
        mode: "vega-lite", actions: false, bind: controls,
        renderer: about.canvas ? "canvas" : "svg",
        loader: { load: () => Promise.reject(new Error("charts carry their own data")) },
      });
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
      return result;
    };
    try {
      let result = await embed();
      const room = box.clientWidth;
      if (wide(host) > room && spec.concat && spec.concat.length > 1) {
        result.finalize();
        spec = { ...spec, columns: 1 };
        result = await embed();
      }
      for (let attempt = 0; attempt < 2 && wide(host) > room; attempt++) {
        result.finalize();
        spec = narrower(spec, wide(host) - room, about);
        result = await embed();
      }
      host.style.minHeight = "";
    } catch (error) {
      console.error("chart not drawn:", error);
      box.querySelector(".sc-view").innerHTML = box.querySelector("noscript").textContent;
    }
  }
  document.body.dataset.charts = "drawn";
})();
"""


def _number(value: float | None, digits: int = 3) -> str:
    return "undefined" if value is None else f"{value:,.{digits}g}"


def _range(summary: dict[str, float | None]) -> str:
    if summary["median"] is None:
        return "undefined"
    return f"{_number(summary['median'])} ({_number(summary['low'])} to {_number(summary['high'])})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are texts, escaped here."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    head_row = f"<thead><tr>{top}</tr></thead>"
    return f'<div class="scroll"><table>{head_row}<tbody>{body}</tbody></table></div>'


def _figure(name: str, chart: Any, caption: str) -> str:
    from vl_convert import vegalite_to_png

    from staircase_lib.chart_renderer import chart_html

    if chart is None:
        return f"<p><em>{escape(_ABSENT[name])}</em></p>"
    spec = chart.to_dict()
    png = vegalite_to_png(spec, vl_version="5.20", scale=1.5, allowed_base_urls=[])
    description = str(spec["description"])
    before, after = chart_html(spec, description, int.from_bytes(png[20:24], "big") / 1.5)
    picture = base64.b64encode(png).decode()
    image = f'<img alt="{escape(description)}" src="data:image/png;base64,{picture}">'
    return f'<figure id="{name}">{before}{image}{after}<figcaption>{caption}</figcaption></figure>'


def _first_table(numbers: dict[str, Any]) -> str:
    first = numbers["first_stair"]
    return _table(
        ["at the first stair, gradient flow", "median over seeds (range)"],
        [
            ["predicted time", _number(first["predicted_time"], 4)],
            ["measured time", _range(first["measured"])],
            ["correlation with the predicted directions", _range(first["correlation"])],
            ["the same, predicted from shuffled labels", _range(first["shuffled"])],
            ["mean cosine similarity of the anchors", _range(first["cosine"])],
        ],
    )


def _training_table(numbers: dict[str, Any]) -> str:
    run = numbers["training"]
    rows = [
        ["steps", f"{run['steps']:,}"],
        ["accuracy at the end", _range(run["accuracy"])],
        ["accuracy of the best constant answer", _number(run["chance"])],
        ["best accuracy of a model that adds its tokens up", _number(numbers["best_accuracy"])],
        ["loss at the end, nats", _range(run["loss"])],
        ["least share of order 0 on the way", _range(run["least_share_of_order_0"])],
    ]
    rows += [
        [f"largest alignment with order {m}", _range(r)]
        for m, r in enumerate(run["largest_alignment"])
    ]
    return _table(["training with AdamW", "median over seeds (range)"], rows)


def _order_table(numbers: dict[str, Any]) -> str:
    entropy = numbers["entropy_bits"]
    rows = [
        [str(m), _number(bits), f"{bits / entropy:.0%}" if entropy else "undefined"]
        for m, bits in enumerate(numbers["information_bits"])
    ]
    return _table(["order", "bits", "of the label's entropy"], rows)


def write_html(measured: Measurement) -> str:
    """The report as one HTML document: charts, tables and Vega inside, no request to anywhere.

    Parameters
    ----------
    measured : Measurement

    Returns
    -------
    str
    """
    from vl_convert import javascript_bundle

    from staircase_lib.chart_renderer import inert_json

    figures.enable()
    numbers = measured.numbers()
    task, settings = measured.task, numbers["settings"]
    title = task.name or "a task"
    lead = (
        f"{numbers['sequences']:,} sequences of length {task.length}, a vocabulary of "
        f"{task.vocab_size:,}, {len(task.anchors):,} tokens followed. The label has "
        f"{_number(numbers['entropy_bits'])} bits of entropy."
    )
    first = numbers["first_informative_order"]
    expected = (
        "No order that was looked at tells the tokens apart."
        if first is None
        else f"The lowest order that tells the tokens apart is order {first}."
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in measured.notes)
    vega = javascript_bundle(vl_version="5.20").replace("</script", "<\\/script")  # pyright: ignore[reportCallIssue]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:\">",
        f"<title>{escape(title)}: signatures and stairs</title><style>{_STYLE}</style></head>",
        f'<body><main><h1 class="token">{escape(title)}</h1><p>{escape(lead)}</p>',
        f'<div class="notes"><p>Notes</p><ul>{notes}</ul></div>' if notes else "",
        "<h2>Before training: what the signatures say</h2>",
        f"<p>{escape(expected)} A bar is the information about the label in which token it is, "
        "once <i>m</i> other tokens of the sequence are known.</p>",
        _order_table(numbers),
        _figure(
            "information",
            information_chart(measured),
            "Information of each signature order. <em>What to see:</em> the first bar that is not "
            "zero is where the embeddings can begin to differ.",
        ),
        _figure(
            "signatures",
            signature_chart(measured),
            "Zeroth-order signatures, the distribution of the label given one token. <em>What to "
            "see:</em> tokens with like rows are expected to be alike early in training.",
        ),
        "<h2>The first stair</h2>",
        "<p>Predicted from the zeroth-order signatures alone: when the loss begins to fall under "
        "gradient flow, and along which directions the embeddings leave their random start.</p>",
        _first_table(numbers),
        _figure(
            "stair",
            stair_chart(measured),
            "Loss under gradient flow, seeds thin, median bold. The picture is cut "
            "off at the bottom. <em>What to see:</em> the fall should come close to 100&nbsp;% of "
            "the predicted time.",
        ),
        "<h2>Training</h2>",
        _training_table(numbers),
        _figure("loss", training_chart(measured, "loss"), "Loss. <em>What to see:</em> a stretch "
                "at the dashed line has learned how frequent labels are, and nothing else."),
        _figure("accuracy", training_chart(measured, "accuracy"), "Accuracy. <em>What to see:</em> "
                "when it leaves the dashed line."),
        _figure("shares", shares_chart(measured), "Share of each signature order in what separates "
                "the gradients of the tokens. <em>What to see:</em> which order leads, and when "
                "the next one takes over."),
        _figure("alignment", alignment_chart(measured), "Correlation of the similarities of "
                "embeddings and signatures, context slots read with the embeddings of the moment. "
                "<em>What to see:</em> which order describes the geometry best, early and late."),
        _figure("similarity", similarity_chart(measured), "Similarity of the embeddings of one "
                "seed beside that of their signatures. <em>What to see:</em> move the slider: "
                "whose pattern do the embeddings take on?"),
        "<h2>Settings and numbers</h2>",
        _table(
            ["setting", "value"],
            [
                [name, "as time allows" if value is None else str(value)]
                for name, value in settings.items()
            ],
        ),
        f'<script type="application/json" id="numbers">{inert_json(numbers)}</script>',
        f"</main><script>(function(){{{vega}\n}})();</script><script>{_SCRIPT}</script>",
        "</body></html>\n",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def numbers_json(measured: Measurement) -> str:
    """The numbers of a measurement as JSON text, undefined ones as null."""
    return json.dumps(measured.numbers(), indent=1, ensure_ascii=False, allow_nan=False)
