"""A measured checkpoint series as charts and as one HTML file.

The chart functions take rows as :func:`~staircase_lib.language.similarity.tidy_row` makes them,
with a column ``step``, whoever trained the model, and return an Altair chart, or None where nothing
was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from staircase_lib import figures, standalone
from staircase_lib.language.series_measurement import Measured
from staircase_lib.printable import printable

__all__ = [
    "alignment_chart",
    "attention_chart",
    "plain_rows",
    "probe_chart",
    "sensitivity",
    "write_html",
]

_MOST_PANELS = 6


def _chosen(rows: pd.DataFrame, measure: str) -> Any:
    """Rows of a measure whose value is defined, with runs as seeds."""
    found: Any = rows[(rows["measure"] == measure) & rows["value"].notna()]
    return found.assign(seed=found["run"])


def alignment_chart(rows: pd.DataFrame, variants: tuple[str, ...] = ("as defined",)) -> Any:
    """Next-token alignment over the steps, in one or more variants."""
    found = _chosen(rows, "alignment")
    found = found[found["variant"].isin(variants)]
    if found.empty:
        return None
    several = len(variants) > 1
    return figures.metric_curves(
        found,
        y_title="correlation with next-token signature",
        series="variant" if several else None,
        time_title="step",
    )


def probe_chart(rows: pd.DataFrame) -> Any:
    """Error of the probes on pairs of unseen tokens, as a share of the mean predictor's."""
    found = _chosen(rows, "probe mse")
    at = ["step", "run"]
    mean = found[found["signature"] == "mean"].set_index(at)["value"].rename("mean")
    found = found[found["signature"].isin(["order 0", "order 1"])].join(mean, on=at)
    found = found[found["mean"] > 0]
    if found.empty:
        return None
    return figures.metric_curves(
        found.assign(value=found["value"] / found["mean"]),
        y_title="error on unseen tokens / that of the mean",
        series="signature",
        order_colors=True,
        threshold=1.0,
        threshold_label="predicting the mean",
        time_title="step",
    )


def _probe_table(rows: pd.DataFrame) -> list[list[str]]:
    """Errors of every probe at the last step, median over runs."""
    found = _chosen(rows, "probe mse")
    last = found[found["step"] == found["step"].max()]
    medians = last.groupby("signature", sort=False)["value"].median()
    return [[str(name), f"{value:.4f}"] for name, value in medians.items()]


def attention_chart(rows: pd.DataFrame) -> Any:
    """Attention paths against attention-weighted signatures, block by block."""
    found = _chosen(rows, "attention path")
    if found.empty:
        return None
    blocks = found["block"].astype(int)
    few = blocks.nunique() <= _MOST_PANELS
    found = found.assign(block=[f"block {b}" for b in blocks] if few else blocks)
    return figures.metric_curves(
        found,
        y_title="correlation, pairs of positions",
        series="signature" if few else "block",
        facet="block" if few else "signature",
        time_title="step",
    )


def sensitivity(rows: pd.DataFrame) -> pd.DataFrame:
    """How far the alignment's course depends on how it is measured.

    Returns
    -------
    DataFrame
        A row a variant: ``variant``, ``peak`` (highest value, median over runs), ``step`` of it,
        ``last`` and ``fall``, the peak less the last.
    """
    found = _chosen(rows, "alignment")
    table = []
    for variant, part in found.groupby("variant", sort=False):
        course = part.groupby("step")["value"].median()
        peak, last = float(course.max()), float(course.iloc[-1])
        table.append(
            {
                "variant": variant,
                "peak": peak,
                "step": int(course.idxmax()),
                "last": last,
                "fall": peak - last,
            }
        )
    return pd.DataFrame(table, columns=["variant", "peak", "step", "last", "fall"])


def plain_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows for JSON, undefined values as None."""
    table: Any = rows.astype(object)
    return table.where(rows.notna(), None).to_dict("records")


def write_html(measured: Measured, made: Mapping[str, str]) -> str:
    """The report as one HTML document.

    Parameters
    ----------
    measured : Measured
    made : mapping of str to str
        How it was made: command, versions.

    Returns
    -------
    str
    """
    figures.enable()
    rows = measured.rows
    name = measured.facts["series"]
    body = [
        f'<h1 class="token">{escape(printable(name))}</h1>',
        "<p>Do the embeddings of this model take the shape of its text's signatures, and when? "
        "Measured at every revision, against exact counts of the text.</p>",
        standalone.table(["", ""], [[key, value] for key, value in measured.facts.items()]),
        "<h2>Next-token alignment</h2>",
        standalone.figure(
            "alignment",
            alignment_chart(rows),
            "Correlation, over pairs of tokens, of the cosines of their centred embeddings and of "
            "their signatures <i>P</i>(next | token) − <i>P</i>(next). <em>What to see:</em> "
            "whether it peaks early and then falls to a value above zero.",
            "Undefined at every step: all pairs of tokens are equally similar.",
        ),
        "<p>The same with each choice of that definition varied alone. A course that is there in "
        "one row only is a property of the measure, not of the model.</p>",
        standalone.table(
            ["variant", "peak", "at step", "last", "fall"],
            [
                [
                    str(row["variant"]),
                    f"{row['peak']:.3f}",
                    f"{row['step']:,}",
                    f"{row['last']:.3f}",
                    f"{row['fall']:.3f}",
                ]
                for row in sensitivity(rows).to_dict("records")
            ],
        ),
        "<h2>Tokens that the probe has not seen</h2>",
        standalone.figure(
            "probe",
            probe_chart(rows),
            "Error with which the similarity of two unseen tokens is predicted from their "
            "signatures. Order 0 knows the next token, order 1 also the previous one. "
            "<em>What to see:</em> both below one, and by how much order 1 is below order 0.",
            "Undefined at every step.",
        ),
        "<p>Mean squared errors at the last step, with the controls: next and previous token as if "
        "they were independent, the previous token of another token's signature, and the whole "
        "signature of another token.</p>",
        standalone.table(["predicted from", "error"], _probe_table(rows)),
        *_attention(rows),
        "<h2>Tokens compared</h2>",
        standalone.table(["most frequent first"], [[measured.tokens[:60]]]),
        "<h2>How this was made</h2>",
        standalone.table(["", ""], [[key, value] for key, value in made.items()]),
    ]
    numbers = {**measured.facts, "made": dict(made), "rows": plain_rows(rows)}
    return standalone.document(f"{name}: signatures over training", body, numbers)


def _attention(rows: pd.DataFrame) -> list[str]:
    chart = attention_chart(rows)
    if chart is None:
        return []
    return [
        "<h2>What attention writes</h2>",
        standalone.figure(
            "attention",
            chart,
            "Correlation, over pairs of positions, of what a block's attention writes and of the "
            "attention-weighted signatures of the tokens it looks at. <em>What to see:</em> the "
            "attention-weighted curve above the three controls; shuffled tokens show what hearing "
            "the same tokens is worth alone.",
        ),
    ]
