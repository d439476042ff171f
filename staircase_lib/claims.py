r"""The ledger: what the paper claims, how it is measured, and what came out.

A :class:`Claim` states what is claimed and by which :class:`Check` it is judged; its thresholds
stand here, under version control, and so are older than the run that they judge. A chapter
measures one with :func:`measure` and shows the :class:`ClaimRow`; the runner collects the rows of
a build out of the executed chapters (MIME type :data:`CLAIM_MIME`) into the ledger.

How a check is judged. A check has one value per seed (or per random task, for identities).
``median`` checks report the median over seeds with a 95 % bootstrap interval of it; the claim is
*reproduced* if the whole interval meets the threshold, *partly* if only the median does. ``worst``
checks report the worst value, and the range as interval. A control is a deliberately wrong
variant measured with the same check: it has to fail it, or the check has no force and the claim
is at most *partly* reproduced.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "CLAIMS",
    "CLAIM_MIME",
    "Check",
    "Claim",
    "ClaimRow",
    "Ledger",
    "judge",
    "measure",
    "read_ledger",
]

CLAIM_MIME = "application/vnd.staircase.claim+json"

Verdict = Literal["reproduced", "partly", "not reproduced"]


@dataclass(frozen=True)
class Check:
    """One measured statistic and the threshold that it must meet.

    Attributes
    ----------
    name : str
        Key of its values in :func:`measure`.
    statistic : str
        What is measured, in words.
    relation : {">=", "<="}
    bound : float
    why : str
        Where the threshold comes from.
    aggregate : {"median", "worst"}
    """

    name: str
    statistic: str
    relation: Literal[">=", "<="]
    bound: float
    why: str
    aggregate: Literal["median", "worst"] = "median"

    @property
    def threshold(self) -> str:
        """The threshold as a reader sees it, for example ``≥ 0.98``."""
        return f"{'≥' if self.relation == '>=' else '≤'} {self.bound:g}"

    def met_by(self, value: float) -> bool:
        """Whether a number meets the threshold; ``nan`` never does."""
        return value >= self.bound if self.relation == ">=" else value <= self.bound


@dataclass(frozen=True)
class Claim:
    """A statement of the paper (or of ours) and how it is judged; the first check leads its row."""

    id: str
    section: str
    statement: str
    checks: tuple[Check, ...]


def _summary(check: Check, values: ArrayLike) -> dict[str, Any]:
    x = np.atleast_1d(np.asarray(values, dtype=np.float64)).ravel()
    if x.size == 0:
        raise ValueError(f"{check.name}: expected at least one value, got none.")
    if np.isnan(x).any():
        value = low = high = math.nan
    elif check.aggregate == "worst":
        value = x.min() if check.relation == ">=" else x.max()
        low, high = x.min(), x.max()
    else:
        value = np.median(x)
        draws = np.random.default_rng(0).choice(x, size=(4000, x.size))
        low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return {"value": float(value), "low": float(low), "high": float(high), "seeds": int(x.size)}


def judge(check: Check, value: float, low: float, high: float) -> Verdict:
    """Verdict of one check from its value and interval."""
    if not check.met_by(value):
        return "not reproduced"
    if check.aggregate == "median" and not (check.met_by(low) and check.met_by(high)):
        return "partly"
    return "reproduced"


def _overall(verdicts: Sequence[str], controls_rejected: bool) -> Verdict:
    if all(v == "not reproduced" for v in verdicts):
        return "not reproduced"
    if all(v == "reproduced" for v in verdicts) and controls_rejected:
        return "reproduced"
    return "partly"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def format_number(value: float | None) -> str:
    """Three significant digits; powers of ten where decimals would not be read."""
    if value is None or not math.isfinite(value):
        return "undefined"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}·10<sup>{int(exponent)}</sup>"
    # A value that is not quite one is not shown as one.
    if 0.9985 <= abs(value) < 1:
        return f"{math.copysign(math.floor(abs(value) * 1e4) / 1e4, value):.4f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}"


@dataclass(frozen=True)
class ClaimRow:
    """A measured claim, shown as a box in the chapter that measured it.

    ``row`` is the ledger's row: ``id, statement, statistic, value, low, high, seeds, threshold,
    verdict, evidence`` of the leading check, all ``checks``, the ``controls`` and a ``note``; the
    runner adds ``profile``, ``commit``, ``chapter`` and ``key``.
    """

    row: dict[str, Any]

    @property
    def verdict(self) -> str:
        return self.row["verdict"]

    def _html(self) -> str:
        row = self.row
        lines = [
            f'<div class="sc-claim" data-verdict="{row["verdict"]}" id="{row["evidence"]}">',
            f'<p class="sc-claim-head"><strong>Claim {row["id"]}</strong>: '
            f'<span class="sc-verdict">{row["verdict"]}</span><br>'
            f"{html.escape(row['statement'])}</p>",
            "<table><thead><tr><th>statistic</th><th>value</th><th>interval</th>"
            "<th>cases</th><th>threshold</th><th>verdict</th></tr></thead><tbody>",
        ]
        for check in row["checks"]:
            lines.append(_table_row(html.escape(check["statistic"]), check, check["verdict"]))
        for control in row["controls"]:
            outcome = "rejected, as it must be" if control["rejected"] else "NOT rejected"
            label = f"<em>control: {html.escape(control['name'])}</em>"
            lines.append(_table_row(label, control, outcome))
        lines.append("</tbody></table>")
        if row["note"]:
            lines.append(f"<p>{html.escape(row['note'])}</p>")
        return "\n".join([*lines, "</div>"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {CLAIM_MIME: self.row, "text/html": self._html(), "text/plain": str(self)}

    def __str__(self) -> str:
        row = self.row
        return f"claim {row['id']}: {row['value']} ({row['threshold']}): {row['verdict']}"


def _table_row(label: str, entry: Mapping[str, Any], outcome: str) -> str:
    interval = f"{format_number(entry['low'])} – {format_number(entry['high'])}"
    cells = [label, format_number(entry["value"]), interval, entry["seeds"], entry["threshold"]]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in [*cells, outcome]) + "</tr>"


def measure(
    claim: str,
    values: Mapping[str, ArrayLike],
    *,
    controls: Mapping[str, tuple[str, ArrayLike]] | None = None,
    note: str = "",
    evidence: str = "",
) -> ClaimRow:
    """Judge a claim by measured values.

    Parameters
    ----------
    claim : str
        Its id in :data:`CLAIMS`.
    values : mapping of check name to array
        One value per seed (or random task) for every check of the claim.
    controls : mapping of a control's name to (check name, values), optional
        Wrong variants, which must fail the named check.
    note : str
        What a reader must know beside the numbers; for a verdict other than *reproduced*, what was
        tried.
    evidence : str
        Anchor on the page; default ``claim-`` and the id with dashes.

    Returns
    -------
    ClaimRow

    Raises
    ------
    KeyError
        If the claim is not declared.
    ValueError
        If values are missing, left over or empty.
    """
    if claim not in CLAIMS:
        raise KeyError(f"claim {claim!r} is not declared; declared are {sorted(CLAIMS)}.")
    declared = CLAIMS[claim]
    checks = {check.name: check for check in declared.checks}
    if set(values) != set(checks):
        raise ValueError(
            f"claim {claim}: expected values for {sorted(checks)}, got {sorted(values)}."
        )
    judged = []
    for name, check in checks.items():
        s = _summary(check, values[name])
        verdict = judge(check, s["value"], s["low"], s["high"])
        judged.append({**_described(check, s), "name": name, "verdict": verdict})
    rejected = []
    for label, (name, wrong) in (controls or {}).items():
        if name not in checks:
            raise ValueError(
                f"control {label!r}: expected a check of {sorted(checks)}, got {name!r}."
            )
        s = _summary(checks[name], wrong)
        failed = not checks[name].met_by(s["value"])
        rejected.append(
            {**_described(checks[name], s), "name": label, "check": name, "rejected": failed}
        )
    lead = judged[0]
    row = {
        "id": claim,
        "statement": declared.statement,
        **{k: lead[k] for k in ("statistic", "value", "low", "high", "seeds", "threshold")},
        "verdict": _overall([c["verdict"] for c in judged], all(c["rejected"] for c in rejected)),
        "evidence": evidence or "claim-" + claim.replace(".", "-"),
        "checks": judged,
        "controls": rejected,
        "note": note,
    }
    return ClaimRow(row)


def _described(check: Check, summary: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {k: _finite(summary[k]) for k in ("value", "low", "high")}
    return {
        "statistic": check.statistic,
        **numbers,
        "seeds": summary["seeds"],
        "threshold": check.threshold,
    }


@dataclass(frozen=True)
class Ledger:
    """Rows of one build; shown as a table whose rows link to their evidence."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def _repr_html_(self) -> str:
        head = "<tr><th>claim</th><th>statement</th><th>statistic</th><th>value</th>"
        head += "<th>interval</th><th>cases</th><th>threshold</th><th>verdict</th></tr>"
        body = []
        for row in self.rows:
            link = f'<a href="{html.escape(row["evidence"], quote=True)}">{row["id"]}</a>'
            interval = f"{format_number(row['low'])} – {format_number(row['high'])}"
            cells = [
                link,
                html.escape(row["statement"]),
                html.escape(row["statistic"]),
                format_number(row["value"]),
                interval,
                row["seeds"],
                row["threshold"],
                f'<span class="sc-verdict" data-verdict="{row["verdict"]}">{row["verdict"]}</span>',
            ]
            body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return (
            f'<div class="sc-scroll"><table class="sc-ledger"><thead>{head}</thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def __repr__(self) -> str:
        return "\n".join(f"{r['id']:>5}  {r['verdict']:<15} {r['statement']}" for r in self.rows)

    def count(self, verdict: str) -> int:
        """Number of rows with a verdict."""
        return sum(row["verdict"] == verdict for row in self.rows)


def read_ledger(path: str | Path) -> Ledger:
    """Ledger from its JSON file.

    Raises
    ------
    FileNotFoundError
        With what to run to make it.
    ValueError
        If the file is not a list of rows.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no ledger there; `make book` measures the claims, `make record` keeps them."
        )
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list) or not all(isinstance(row["id"], str) for row in rows):
            raise TypeError("not a list of rows with ids")
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: expected a list of claim rows in JSON, got: {error}.") from error
    return Ledger(rows)


def _declared(*claims: Claim) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


_EXACT = "an identity: rounding of float64 sums only"
_ISSUE = "set with the project's plan, before any run"
_SEARCH = "set after a search on other seeds (0 to 5), before the published run (seeds from 100)"

#: Every declared claim by its id.
CLAIMS: dict[str, Claim] = _declared(
    Claim(
        "3.1",
        "3.2",
        "Signatures are non-negative and sum to one, and summing out a context slot gives the "
        "signature of one order less.",
        (
            Check("sum", "largest |sum − 1| of a row", "<=", 1e-12, _EXACT, "worst"),
            Check("negative", "smallest entry", ">=", 0.0, _EXACT, "worst"),
            Check(
                "marginal",
                "largest difference between a summed-out slot and the order below",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
        ),
    ),
    Claim(
        "3.2",
        "3.2",
        "The norm of a signature does not grow with its order.",
        (
            Check(
                "growth",
                "largest increase of the Euclidean norm from one order to the next",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
        ),
    ),
    Claim(
        "3.3",
        "3.3",
        "Small initialization: every weight tensor starts at standard deviation d_in^(−γ).",
        (
            Check(
                "deviation",
                "largest deviation of a tensor's measured standard deviation, in standard errors",
                "<=",
                4.5,
                "one false alarm in 1,000 builds for 120 independent normal tensors",
                "worst",
            ),
        ),
    ),
    Claim(
        "4.1",
        "4.1",
        "Addition: the early embedding geometry is that of the zeroth-order signature.",
        (
            Check("r0", "alignment r₀ at the early checkpoint", ">=", 0.98, _ISSUE),
            Check("early", "share of the loss already gone there", "<=", 0.01, _SEARCH),
            Check(
                "order",
                "rank correlation of the first principal component with the number",
                ">=",
                0.98,
                _SEARCH,
            ),
        ),
    ),
    Claim(
        "4.2",
        "4.1",
        "Early, the distribution that the model reads off one token's embedding alone resembles "
        "P(y | α).",
        (
            Check(
                "correlation",
                "correlation of the read-off distribution with P(y | α), mean over tokens",
                ">=",
                0.85,
                _SEARCH,
            ),
        ),
    ),
    Claim(
        "4.3",
        "4.1",
        "The same holds for prescribed label distributions: uniform, normal, Poisson and "
        "exponential.",
        (
            Check(
                "correlation",
                "correlation with P(y | α) when the loss reaches the zeroth-order entropy, "
                "least of the four distributions",
                ">=",
                0.8,
                _SEARCH,
            ),
            Check(
                "distance",
                "total variation distance to P(y | α) there, mean over the four",
                "<=",
                0.25,
                _SEARCH,
            ),
        ),
    ),
    Claim(
        "4.4",
        "4.1",
        "Modular addition: the zeroth-order signature is the same for all anchors, the embeddings "
        "collapse onto one direction early, and nothing is learned meanwhile.",
        (
            Check("cosine", "mean cosine similarity of the anchors", ">=", 0.99, _ISSUE),
            Check(
                "accuracy",
                "accuracy above chance while collapsed",
                "<=",
                0.02,
                "a few of 400 sequences, right by accident of an argmax among equals",
            ),
            Check(
                "signature",
                "largest difference of zeroth-order signatures between anchors",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
        ),
    ),
    Claim(
        "4.5",
        "4.2",
        "Later, the alignment with the zeroth-order signature weakens and the first-order "
        "signature predicts the geometry better.",
        (
            Check(
                "decline",
                "fall of r₀ from its peak to the end, AdamW with weight decay",
                ">=",
                0.1,
                _SEARCH,
            ),
            Check(
                "advantage",
                "held-out error of the zeroth-order probe over that of the first-order probe, "
                "same run, end",
                ">=",
                2.0,
                _SEARCH,
            ),
            Check(
                "decline_flow",
                "fall of r₀ from its peak to the end, gradient descent with small steps",
                ">=",
                0.1,
                "the same as with weight decay",
            ),
            Check(
                "advantage_flow",
                "ratio of the probes' held-out errors, gradient descent with small steps, end",
                ">=",
                2.0,
                "the same as with weight decay",
            ),
        ),
    ),
    Claim(
        "4.6",
        "4.2",
        "Modular addition: the optimized first-order signature reaches high correlation and low "
        "held-out error; the zeroth-order signature cannot.",
        (
            Check(
                "correlation", "held-out correlation of the first-order probe", ">=", 0.9, _SEARCH
            ),
            Check(
                "error",
                "held-out error of the first-order probe, relative to predicting the mean",
                "<=",
                0.2,
                _SEARCH,
            ),
            Check(
                "zeroth",
                "held-out error of the zeroth-order probe, relative to predicting the mean",
                ">=",
                1.0,
                "not better than no signature at all",
            ),
        ),
    ),
    Claim(
        "4.7",
        "4.3",
        "Theorem 1: the embedding gradient is a sum of contractions of label signatures of order "
        "0 to L − 1.",
        (
            Check(
                "sum",
                "largest relative difference between the sum of the orders and automatic "
                "differentiation",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
            Check(
                "slope",
                "signatures in place of residuals: largest deviation of the error's power in the "
                "initial scale from 3 (all weights) and 1 (embeddings alone)",
                "<=",
                0.1,
                _ISSUE,
            ),
        ),
    ),
    Claim(
        "4.8",
        "4.3",
        "Proposition 1: at initialization the order-m term is smaller than order 0 by a factor "
        "d^(1/2−2γ) for each of the m small embeddings that it multiplies.",
        (
            Check(
                "slope",
                "largest deviation of the measured power of d from the derived one, orders 1 and 2",
                "<=",
                0.1,
                _ISSUE,
            ),
            Check(
                "ordered",
                "least ratio of an order to the next, d = 128 and more",
                ">=",
                10.0,
                "an order of magnitude, so that the sequence does not rest on a constant",
            ),
        ),
    ),
    Claim(
        "4.9",
        "4.3",
        "Proposition 2: at large embedding scale all orders share one power of the scale, and for "
        "large degree K the highest order is largest.",
        (
            Check(
                "slope",
                "largest deviation of an order's power of the embedding scale from K − 1",
                "<=",
                0.1,
                _ISSUE,
            ),
            Check(
                "highest",
                "highest order over the largest other, length 3, K = 16",
                ">=",
                1.0,
                "the definition of largest",
            ),
        ),
    ),
    Claim(
        "4.10",
        "4.4",
        "The zero-frequency part of a signature over a context slot is the signature of one order "
        "less; the other frequencies hold the new structure.",
        (
            Check(
                "identity",
                "largest difference between the zero-frequency part and the order below",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
            Check(
                "structure",
                "modular addition: share of the difference between anchors outside frequency zero",
                ">=",
                1 - 1e-12,
                _EXACT,
                "worst",
            ),
        ),
    ),
    Claim(
        "4.11",
        "4.5",
        "The order of learning is no promise of speed: where low orders carry nothing, smaller "
        "initialization delays learning.",
        (
            Check(
                "delay",
                "modular addition: epochs to 95 % accuracy at γ = 1.1 over those at γ = 0.7",
                ">=",
                3.0,
                _SEARCH,
            ),
        ),
    ),
    Claim(
        "5.1",
        "5.1",
        "Theorem 3: with self-attention the embedding gradient is a sum of value, key and query "
        "parts, each weighted by attention.",
        (
            Check(
                "sum",
                "largest relative difference between the sum of the parts and automatic "
                "differentiation",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
            Check(
                "slope",
                "largest deviation from 4 of the power of the initial scale by which key and "
                "query parts fall behind the value part",
                "<=",
                0.1,
                _ISSUE,
            ),
        ),
    ),
    Claim(
        "5.2",
        "5.1",
        "The value part is the position-specific label signature, reweighted by the attention mass "
        "on the token.",
        (
            Check(
                "identity",
                "largest relative difference between the value part and the attention-weighted "
                "residual signature",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
            Check(
                "slope",
                "label signature in place of the residual: largest deviation of the error's power "
                "in the initial scale from 3",
                "<=",
                0.1,
                _ISSUE,
            ),
        ),
    ),
    Claim(
        "X.1",
        "4.3",
        "The staircase itself: the shares of the signature orders in the true gradient, followed "
        "through training, pass from order 0 to higher orders.",
        (
            Check(
                "sum",
                "largest difference between the sum of the orders and the gradient at any snapshot, "
                "relative to what the shares are shares of",
                "<=",
                1e-12,
                _EXACT,
                "worst",
            ),
            Check(
                "start",
                "share of order 0 at the start, least over tasks and smooth activations",
                ">=",
                0.95,
                _SEARCH,
            ),
            Check(
                "handover",
                "least share of order 0 later on, largest over tasks and smooth activations",
                "<=",
                0.5,
                "the other orders together outweigh it",
            ),
            Check(
                "sequence",
                "length three: epoch at which order 2 first holds a tenth over that of order 1, "
                "least over smooth activations",
                ">=",
                1.2,
                _SEARCH,
            ),
        ),
    ),
    Claim(
        "X.2",
        "4.3",
        "The first stair in closed form: singular vectors and values of the centred zeroth-order "
        "signatures give its geometry and its time.",
        (
            Check(
                "overlap",
                "overlap of the embeddings' leading direction with the predicted space at the "
                "stair, least over tasks, widths and γ",
                ">=",
                0.99,
                _ISSUE,
            ),
            Check(
                "time",
                "relative error of the predicted time, mean over tasks, widths and γ",
                "<=",
                0.1,
                _SEARCH,
            ),
            Check(
                "slope",
                "deviation from 1 of the power that relates measured to predicted times",
                "<=",
                0.1,
                _ISSUE,
            ),
        ),
    ),
    Claim(
        "X.7",
        "4.3",
        "Every check of a theorem rejects the wrong theories that it is given.",
        (
            Check(
                "accepted",
                "wrong theories that their check accepts",
                "<=",
                0.0,
                "a check that accepts a wrong theory says nothing about the right one",
                "worst",
            ),
        ),
    ),
)
