"""What was measured about a task, as charts and as one HTML file that needs nothing else.

Every chart function takes a :class:`~staircase_lib.measurement.Measurement` and returns an Altair
chart, or None where there is nothing to draw: an alignment that is undefined for every seed makes
no empty picture.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from staircase_lib import figures, signatures, standalone
from staircase_lib.measurement import Measurement
from staircase_lib.printable import printable, printable_json
from staircase_lib.standalone import number, table

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
        y_title="alignment rₘ",
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


def _figure(name: str, chart: Any, caption: str) -> str:
    return standalone.figure(name, chart, caption, _ABSENT.get(name, ""))


def _range(summary: dict[str, float | None]) -> str:
    if summary["median"] is None:
        return "undefined"
    return f"{number(summary['median'])} ({number(summary['low'])} to {number(summary['high'])})"


def _first_table(numbers: dict[str, Any]) -> str:
    first = numbers["first_stair"]
    return table(
        ["at the first stair, gradient flow", "median over seeds (range)"],
        [
            ["predicted time", number(first["predicted_time"], 4)],
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
        ["accuracy of the best constant answer", number(run["chance"])],
        ["best accuracy of a model that adds its tokens up", number(numbers["best_accuracy"])],
        ["loss at the end, nats", _range(run["loss"])],
        ["least share of order 0 on the way", _range(run["least_share_of_order_0"])],
    ]
    rows += [
        [f"largest alignment with order {m}", _range(r)]
        for m, r in enumerate(run["largest_alignment"])
    ]
    return table(["training with AdamW", "median over seeds (range)"], rows)


def _order_table(numbers: dict[str, Any]) -> str:
    entropy = numbers["entropy_bits"]
    rows = [
        [str(m), number(bits), f"{bits / entropy:.0%}" if entropy else "undefined"]
        for m, bits in enumerate(numbers["information_bits"])
    ]
    return table(["order", "bits", "of the label's entropy"], rows)


def write_html(measured: Measurement) -> str:
    """The report as one HTML document: charts, tables and Vega inside, no request to anywhere.

    Parameters
    ----------
    measured : Measurement

    Returns
    -------
    str
    """
    figures.enable()
    numbers = measured.numbers()
    task, settings = measured.task, numbers["settings"]
    title = task.name or "a task"
    lead = (
        f"{numbers['sequences']:,} sequences of length {task.length}, a vocabulary of "
        f"{task.vocab_size:,}, {len(task.anchors):,} tokens followed. The label has "
        f"{number(numbers['entropy_bits'])} bits of entropy."
    )
    first = numbers["first_informative_order"]
    expected = (
        "No order that was looked at tells the tokens apart."
        if first is None
        else f"The lowest order that tells the tokens apart is order {first}."
    )
    notes = "".join(f"<li>{escape(printable(note))}</li>" for note in measured.notes)
    body = [
        f'<h1 class="token">{escape(printable(title))}</h1><p>{escape(lead)}</p>',
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
        table(
            ["setting", "value"],
            [
                [name, "as time allows" if value is None else str(value)]
                for name, value in settings.items()
            ],
        ),
    ]  # fmt: skip
    return standalone.document(f"{title}: signatures and stairs", body, numbers)


def numbers_json(measured: Measurement) -> str:
    """The numbers of a measurement as JSON text, undefined ones as null."""
    return printable_json(measured.numbers())
