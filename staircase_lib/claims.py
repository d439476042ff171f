r"""The ledger: what the paper claims, how it is measured, and what came out.

A :class:`Claim` states what is claimed and by which :class:`Check` it is judged. All are declared
in ``claims.toml``, under version control, and so are older than the run that they judge. A chapter
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
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
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

#: MIME type of a measured claim among the outputs of a cell.
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
        bound = f"{self.bound:g}"
        if bound == "1" and self.bound < 1:
            bound = f"1 − {1 - self.bound:.0e}"
        return f"{'≥' if self.relation == '>=' else '≤'} {bound}"

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


def median_interval(values: ArrayLike) -> tuple[float, float, float]:
    """Median over seeds and its bootstrap interval of 95 %, as the ledger judges it.

    Parameters
    ----------
    values : float array, shape (R,)
        Finite, one a seed.

    Returns
    -------
    median, low, high : float
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    draws = np.random.default_rng(0).choice(x, size=(4000, x.size))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(x)), float(low), float(high)


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
        value, low, high = median_interval(x)
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


# W_in, d^(1/2−2γ) and d^γ, 1e-12, as they are typed.
_SCRIPT = re.compile(
    r"(?<=\b[A-Za-z])_(?P<sub>\w+)|\^(?:\((?P<group>[^()]+)\)|(?P<sup>\w+))"
    r"|(?<![\w.])(?P<factor>\d+(?:\.\d+)?)e(?P<power>[+-]?\d+)\b"
)


def scripts(text: str) -> Iterator[tuple[Literal["", "sub", "sup"], str]]:
    """Plain text in pieces: what stands on the line, below it (``d_in``) and above (``d^(−γ)``).

    Parameters
    ----------
    text : str
        A claim's statement, statistic or threshold.

    Yields
    ------
    script : {"", "sub", "sup"}
    piece : str
        Not empty.
    """
    end = 0
    for found in _SCRIPT.finditer(text):
        factor, power = found["factor"], found["power"]
        line = text[end : found.start()]
        if power:
            line += "10" if factor == "1" else f"{factor}·10"
        if line:
            yield "", line
        if found["sub"]:
            yield "sub", found["sub"]
        else:
            yield "sup", str(int(power)) if power else found["group"] or found["sup"]
        end = found.end()
    if text[end:]:
        yield "", text[end:]


def _typeset(text: str) -> str:
    """Text as HTML, with subscripts and powers in their places."""
    pieces = [(script, html.escape(piece)) for script, piece in scripts(text)]
    return "".join(f"<{s}>{piece}</{s}>" if s else piece for s, piece in pieces)


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
        anchor = html.escape(row["evidence"])
        lines = [
            f'<div class="sc-claim" data-verdict="{row["verdict"]}" id="{anchor}">',
            f'<p class="sc-claim-head"><strong>Claim {html.escape(row["id"])}</strong>: '
            f'<span class="sc-verdict">{row["verdict"]}</span><br>'
            f"{_typeset(row['statement'])}</p>",
            "<table><thead><tr><th>statistic</th><th>value</th><th>interval</th>"
            "<th>cases</th><th>threshold</th><th>verdict</th></tr></thead><tbody>",
        ]
        for check in row["checks"]:
            lines.append(_table_row(_typeset(check["statistic"]), check, check["verdict"]))
        for control in row["controls"]:
            outcome = "rejected, as it must be" if control["rejected"] else "NOT rejected"
            label = f"<em>control: {_typeset(control['name'])}</em>"
            lines.append(_table_row(label, control, outcome))
        lines.append("</tbody></table>")
        if row["note"]:
            lines.append(f"<p>{_typeset(row['note'])}</p>")
        return "\n".join([*lines, "</div>"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {CLAIM_MIME: self.row, "text/html": self._html(), "text/plain": str(self)}

    def __str__(self) -> str:
        row = self.row
        return f"claim {row['id']}: {row['value']} ({row['threshold']}): {row['verdict']}"


def _numbers(entry: Mapping[str, Any]) -> list[str]:
    """Cells of value, interval, cases and threshold."""
    value, low, high = (
        f'<span class="sc-number">{format_number(entry[k])}</span>'
        for k in ("value", "low", "high")
    )
    return [value, f"{low} – {high}", f"{entry['seeds']:,}", _typeset(entry["threshold"])]


def _table_row(label: str, entry: Mapping[str, Any], outcome: str) -> str:
    cells = [label, *_numbers(entry)]
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
            # The check that decides: the first that was missed, or the leading one.
            shown = next((c for c in row["checks"] if c["verdict"] != "reproduced"), row)
            verdict = html.escape(row["verdict"])
            cells = [
                f'<a href="{html.escape(row["evidence"])}">{html.escape(row["id"])}</a>',
                _typeset(row["statement"]),
                _typeset(shown["statistic"]),
                *_numbers(shown),
                f'<span class="sc-verdict" data-verdict="{verdict}">{verdict}</span>',
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


_ROW_TEXTS = ("id", "statement", "statistic", "threshold", "verdict", "evidence")


def _check_row(row: Any) -> None:
    """Whether a row read from a file can be shown; raises TypeError or KeyError if not."""
    for entry in (row, *row["checks"]):
        for name in ("value", "low", "high"):
            if entry[name] is not None and not isinstance(entry[name], (int, float)):
                raise TypeError(f"{name} is {entry[name]!r}, not a number")
    for name in _ROW_TEXTS:
        if not isinstance(row[name], str):
            raise TypeError(f"{name} is {row[name]!r}, not text")


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
        if not isinstance(rows, list):
            raise TypeError("not a list")
        for row in rows:
            _check_row(row)
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: expected a list of claim rows in JSON, got: {error}.") from error
    return Ledger(rows)


def _declared() -> dict[str, Claim]:
    text = resources.files("staircase_lib").joinpath("claims.toml").read_text(encoding="utf-8")
    claims = [
        Claim(
            entry["id"],
            entry["section"],
            entry["statement"],
            tuple(Check(**check) for check in entry["check"]),
        )
        for entry in tomllib.loads(text)["claim"]
    ]
    return {claim.id: claim for claim in claims}


#: Every declared claim by its id, from ``claims.toml`` beside this module.
CLAIMS: dict[str, Claim] = _declared()
