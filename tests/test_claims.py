"""The ledger's judgement: what passes, what only partly does, and what a control is for."""

import json
import math

import pytest

from staircase_lib import claims


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    at_least = claims.Check("r", "correlation", ">=", 0.9, "for the test")
    exact = claims.Check("e", "error", "<=", 1e-12, "for the test", "worst")
    monkeypatch.setitem(
        claims.CLAIMS, "0.1", claims.Claim("0.1", "0", "One <thing>", (at_least, exact))
    )


GOOD, BAD, MIXED = [0.95] * 10, [0.5] * 10, [0.95] * 6 + [0.1] * 4


def verdict(r, e, **kw):
    return claims.measure("0.1", {"r": r, "e": e}, **kw).verdict


def test_verdicts():
    assert verdict(GOOD, [1e-15]) == "reproduced"
    assert verdict(BAD, [1]) == "not reproduced"
    assert verdict(GOOD, [1]) == "partly"
    assert verdict(MIXED, [1e-15]) == "partly"
    assert verdict([math.nan] * 3, [1e-15]) == "partly"
    assert verdict([math.nan] * 3, [math.nan]) == "not reproduced"


def test_one_bad_case_breaks_an_identity():
    assert verdict(GOOD, [0.0] * 999 + [1e-3]) == "partly"


def test_a_control_that_passes_takes_the_claim_down():
    wrong = claims.measure("0.1", {"r": GOOD, "e": [0]}, controls={"shuffled": ("r", BAD)})
    assert wrong.verdict == "reproduced"
    assert wrong.row["controls"][0]["rejected"]
    toothless = claims.measure("0.1", {"r": GOOD, "e": [0]}, controls={"shuffled": ("r", GOOD)})
    assert toothless.verdict == "partly"
    assert "NOT rejected" in toothless._html()


def test_row_is_strict_json_and_escaped():
    row = claims.measure("0.1", {"r": [math.nan], "e": [0]}, note="<script>")
    json.dumps(row.row, allow_nan=False)
    page = row._repr_mimebundle_()["text/html"]
    assert "<script>" not in page
    assert "One &lt;thing&gt;" in page
    assert row.row["evidence"] == "claim-0-1"


def test_the_ledger_shows_the_check_that_was_missed_and_is_inert():
    row = claims.measure("0.1", {"r": GOOD, "e": [1]}, evidence='"><script>').row
    page = claims.Ledger([{**row, "id": "<script>"}])._repr_html_()
    assert "error" in page
    assert "correlation" not in page
    assert "<script>" not in page
    assert "<script>" not in claims.ClaimRow(row)._html()


def test_a_bound_close_to_one_is_not_shown_as_one():
    check = claims.Check("s", "share", ">=", 1 - 1e-12, "for the test")
    assert check.threshold == "≥ 1 − 1e-12"


def test_interval_holds_the_median():
    row = claims.measure("0.1", {"r": [0.9, 0.92, 0.95, 0.97, 0.99], "e": [0]}).row
    assert row["low"] <= row["value"] == 0.95 <= row["high"]
    assert row["seeds"] == 5


def test_values_must_be_those_of_the_checks():
    with pytest.raises(ValueError, match=r"expected values for \['e', 'r'\], got \['r'\]"):
        claims.measure("0.1", {"r": GOOD})
    with pytest.raises(KeyError, match="claim '9.9' is not declared"):
        claims.measure("9.9", {})
    with pytest.raises(ValueError, match="at least one value"):
        claims.measure("0.1", {"r": [], "e": [0]})
    with pytest.raises(ValueError, match="expected a check of"):
        claims.measure("0.1", {"r": GOOD, "e": [0]}, controls={"c": ("x", BAD)})


def test_reading_a_ledger(tmp_path):
    with pytest.raises(FileNotFoundError, match="make book"):
        claims.read_ledger(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    row = claims.measure("0.1", {"r": GOOD, "e": [0]}).row
    for text in ('[{"id"', '{"id": "4.1"}', '[{"id": "4.1"}]', json.dumps([{**row, "value": "x"}])):
        broken.write_text(text)
        with pytest.raises(ValueError, match="expected a list of claim rows"):
            claims.read_ledger(broken)
    good = tmp_path / "good.json"
    good.write_text(json.dumps([row]))
    ledger = claims.read_ledger(good)
    assert ledger.count("reproduced") == 1
    assert 'href="claim-0-1"' in ledger._repr_html_()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9999, "0.9999"), (0.99999, "0.9999"), (1.0, "1"), (0.98765, "0.988"), (3.14159, "3.14"),
     (1234.5, "1,234"), (2e-13, "2.0·10<sup>-13</sup>"), (None, "undefined"), (0.0, "0.000")],
)  # fmt: skip
def test_numbers_are_rounded_for_reading_never_up_to_one(value, text):
    assert claims.format_number(value) == text


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("starts at d_in^(−γ).", "starts at d<sub>in</sub><sup>−γ</sup>."),
        ("d^γ in place of d^(γ − 1/2)", "d<sup>γ</sup> in place of d<sup>γ − 1/2</sup>"),
        ("≥ 1 − 1e-12", "≥ 1 − 10<sup>-12</sup>"),
        ("2.5e-07", "2.5·10<sup>-7</sup>"),
        ("group_by, 04b_x, f_0(x) < 3e", "group_by, 04b_x, f<sub>0</sub>(x) &lt; 3e"),
    ],
)  # fmt: skip
def test_powers_and_subscripts_are_typeset_and_the_rest_left_alone(typed, shown):
    row = claims.measure("0.1", {"r": GOOD, "e": [0]}, controls={typed: ("r", BAD)}, note=typed)
    row.row["statement"] = row.row["threshold"] = typed
    assert row._html().count(shown) == 3
    assert claims.Ledger([row.row])._repr_html_().count(shown) == 2
    assert typed in repr(claims.Ledger([row.row])), "a terminal has one line"


def test_declared_claims_are_well_formed():
    for key, claim in claims.CLAIMS.items():
        assert key == claim.id
        assert claim.checks
        assert len({c.name for c in claim.checks}) == len(claim.checks)
        assert all(c.why for c in claim.checks)
