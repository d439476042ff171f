"""A task from definition to comparison, the report of it, and the command that makes it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import vl_convert
from project import command

from staircase_lib import figures, measurement, prediction, report, signatures, tasks
from staircase_lib.prediction import Settings

QUICK = Settings(seeds=(0, 1), d=16, steps=12, snapshots=3)
larger = tasks.from_function(max, [range(6)] * 2, name="larger of two")


# --- What is new in signatures --------------------------------------------------------------------


def test_information_is_that_of_definition() -> None:
    """Against sums over explicit joint tables, on a task with weights and repeated tokens."""
    rng = np.random.default_rng(0)
    task = tasks.from_arrays(rng.integers(0, 3, (20, 3)), rng.integers(0, 4, 20), rng.random(20))

    def entropy(joint: np.ndarray) -> float:
        p = joint[joint > 0]
        return float(-(p * np.log2(p)).sum())

    share = task.token_probability()
    for order in range(3):
        S = signatures.label_signature(task, order)
        joint = S * (share / share.sum()).reshape(-1, *[1] * (S.ndim - 1))
        # I(y; a | x) = H(y, x) - H(x) - H(y, a, x) + H(a, x)
        expected = (
            entropy(joint.sum(0)) - entropy(joint.sum((0, 1))) - entropy(joint)
            + entropy(joint.sum(1))
        )  # fmt: skip
        assert signatures.information(task, order) == pytest.approx(expected, abs=1e-12)


def test_information_of_known_tasks() -> None:
    clock = tasks.modular_addition(8, None)
    assert signatures.information(clock, 0) == 0
    assert signatures.information(clock, 1) == pytest.approx(3)
    parity = tasks.from_function(lambda *x: sum(x) % 2, [range(2)] * 3)
    assert [round(signatures.information(parity, m), 9) for m in range(3)] == [0, 0, 1]


def test_contract_is_the_sum_of_the_definition() -> None:
    task = tasks.addition(3, None, length=3)
    z = np.random.default_rng(0).normal(size=(task.vocab_size, 2))
    S = signatures.label_signature(task, 2)
    labels = np.unique(task.labels)
    expected = np.einsum("ayuv,uh,vh->ayh", S[:, labels], z, z).reshape(len(S), -1)
    for given in (S, signatures.label_signature(task, 2, sparse=True)):
        assert signatures.contract(given, z) == pytest.approx(expected)
    S0 = signatures.label_signature(task, 0)
    assert signatures.contract(S0, z) == pytest.approx(S0[:, labels])
    with pytest.raises(ValueError, match=r"expected shapes"):
        signatures.contract(S, z[:2])


# --- Tasks made of tasks --------------------------------------------------------------------------


def test_shuffled_labels_keep_tokens_and_label_counts() -> None:
    mixed = measurement.shuffled(larger)
    assert (mixed.tokens == larger.tokens).all() and (mixed.labels != larger.labels).any()
    assert (np.bincount(mixed.labels) == np.bincount(larger.labels)).all()


def test_a_sample_is_drawn_by_weight() -> None:
    weights = np.r_[1.0, np.full(999, 1e-9)]
    rows = np.stack([np.arange(1000), np.arange(1000)[::-1]], 1)
    task = tasks.from_arrays(rows, np.zeros(1000, int), weights)
    few = measurement.sample(task, 50)
    assert len(few.labels) <= 50 and few.weights.max() > 0.99 and 0 in few.anchors
    assert measurement.sample(task, 1000) is task


# --- Measurement and report -----------------------------------------------------------------------


@pytest.mark.claim("X.4")
def test_the_first_stair_is_where_it_was_predicted_and_a_wrong_prediction_is_not() -> None:
    middle = tasks.from_function(lambda *x: sorted(x)[1], [range(8)] * 3)
    m = measurement.measure(middle, Settings(seeds=(0, 1, 2), d=64, gamma=1.4, steps=5))
    ratio = m.first["measured"] / m.first["predicted"]
    assert (ratio - 1).abs().max() < 0.15
    assert m.first["correlation"].min() > 0.95 > 0.8 > m.first["shuffled"].max()


def charts(m: measurement.Measurement) -> dict:
    return {
        "information": report.information_chart(m),
        "signatures": report.signature_chart(m),
        "stair": report.stair_chart(m),
        "loss": report.training_chart(m),
        "accuracy": report.training_chart(m, "accuracy"),
        "shares": report.shares_chart(m),
        "alignment": report.alignment_chart(m),
        "similarity": report.similarity_chart(m),
    }


DEGENERATE = {
    "one label": (tasks.from_arrays([[0, 1], [1, 2], [2, 3]], [4, 4, 4]), "same label"),
    "length one": (tasks.from_arrays([[0], [1], [2], [3]], [1, 2, 3, 0]), "one token: order 0"),
    "modulus one": (tasks.modular_addition(4, None, modulus=1), "same label"),
    "one token": (tasks.from_arrays([[0, 0]], [0]), r"1 token\(s\) are followed"),
    "no drive": (tasks.modular_addition(4, None), "order 0 drives nothing"),
    "positions matter": (tasks.from_arrays([[0, 1], [1, 0]], [0, 1]), "50.0% of cases"),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_a_degenerate_task_gets_an_answer_and_no_picture_a_nan(name: str) -> None:
    task, note = DEGENERATE[name]
    m = measurement.measure(task, QUICK)
    assert any(re.search(note, text) for text in m.notes), m.notes
    json.dumps(m.numbers(), allow_nan=False)
    for chart in charts(m).values():
        if chart is not None:
            spec = chart.to_dict()
            json.dumps(spec, allow_nan=False)
            assert not re.search(r"\bnan\b", spec["description"], re.I), spec["description"]


def test_what_is_too_large_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    long = tasks.from_function(lambda *x: sum(x) % 3, [range(3)] * 5)
    monkeypatch.setattr(prediction, "_MOST_SIGNATURE_ENTRIES", 20_000)
    monkeypatch.setattr(measurement, "_MOST_SLOPES", 1)
    monkeypatch.setattr(measurement, "_MOST_READINGS", 1)
    monkeypatch.setattr(prediction, "_MOST_TOKENS_DECOMPOSED", 2)
    m = measurement.measure(long, QUICK)
    said = " ".join(m.notes)
    for part in ("up to order 2 of 4", "not taken apart", "up to order 0", "No first stair"):
        assert part in said
    assert m.shares.empty and report.shares_chart(m) is None
    for wide in (Settings(), Settings(d=400_000)):
        with pytest.raises(ValueError, match="vocabulary of 200000 tokens at width"):
            measurement.measure(tasks.from_arrays([[0, 199_999]], [0]), wide)


def test_more_sequences_than_fit_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "most_rows", lambda *_: 20)
    m = measurement.measure(larger, QUICK)
    assert "20 draws by weight" in m.notes[0] and len(m.task.labels) <= 20


class Page(HTMLParser):
    """What a page would load or run, and its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.alternatives: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script" and given.get("type") != "application/json"
        self.handlers += [name for name in given if name.startswith("on")]
        self.links += [given[k] or "" for k in ("src", "href") if k in given]
        self.alternatives += [given[k] or "" for k in ("alt", "aria-label") if k in given]


HOSTILE = '</script><script>alert(1)</script>" onload="alert(2)'


def test_the_report_stands_alone_and_hostile_names_stay_text() -> None:
    names = [HOSTILE, "<b>", "&amp;", "c", "d", "e"]
    task = tasks.from_function(max, [range(6)] * 2, name=HOSTILE)
    html = report.write_html(measurement.measure(task, QUICK, names))
    page = Page()
    page.feed(html)
    assert page.scripts == 2 and page.handlers == []  # Vega and ours
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "default-src 'none'" in html and len(html) < 3_000_000
    assert len(page.alternatives) >= 8 and all(page.alternatives)
    numbers = re.search(r'id="numbers">(.*?)</script>', html, re.S)
    assert numbers and json.loads(numbers[1])["anchors"][0] == HOSTILE
    for spec in re.findall(r'class="sc-spec">(.*?)</script>', html, re.S):
        vl_convert.vegalite_to_vega(json.loads(spec))


def test_bars_are_in_the_colours_of_the_orders() -> None:
    spec = figures.order_bars([1.0, 0.5], value_title="bits").to_dict()
    assert "bits: order 0 1; order 1 0.5." in spec["description"]
    assert list(figures.ORDER_COLORS[:2]) == spec["layer"][0]["encoding"]["color"]["scale"]["range"]


# --- The command ----------------------------------------------------------------------------------

FAST = ["--seeds", "2", "--d", "8", "--steps", "6"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "my task.csv"
    path.write_text("x1,x2,label,weight\n" + "".join(
        f"{a},{b},{max(a, b)},{1 + a}\n" for a in range(4) for b in range(4)
    ))  # fmt: skip
    return path


def test_measure_writes_a_report_and_prints_numbers(tmp_path: Path, table: Path) -> None:
    pd.read_csv(table).to_parquet(tmp_path / "t.parquet")
    done = command(
        *(tmp_path, "measure", "t.parquet", *FAST),
        *("--anchors", "3,1,0", "--output", "r/r.html", "--json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["sequences"] == 16 and numbers["settings"]["d"] == 8
    assert numbers["anchors"] == ["3", "1", "0"]
    assert "training: step" in done.stderr and len(done.stderr.splitlines()) < 40
    text = (tmp_path / "r/r.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["r.html"]  # nothing half written


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["absent.csv"], 2, "cannot be read"),
    (["my task.csv", "--anchors", "9"], 2, "'9' is no token"),
    (["my task.csv", "--seeds", "0"], 2, "--seeds: expected distinct"),
    (["my task.csv", "--seeds", "1000000000"], 2, "expected 10,000 at most"),
    (["my task.csv", "--steps", "many"], 2, "invalid int"),
    (["my task.csv", "--output", "/proc/nope/x.html"], 9, "cannot write there"),
    (["my task.csv", "--output", "."], 9, "it is a folder"),
    (["my task.csv", "--output", "my task.csv"], 2, "that is the task itself"),
    (["my task.csv", "--gamma", "1e300"], 2, "--gamma: expected a rate from 0 to 10"),
    (["my task.csv", "--gamma", "nan"], 2, "--gamma: expected a"),
    (["my task.csv", "--lr", "1e30", *FAST], 1, "lower the learning rate"),
])  # fmt: skip
def test_measure_refuses_with_a_reason(
    tmp_path: Path, table: Path, arguments: list[str], code: int, message: str
) -> None:
    done = command(tmp_path, "measure", *arguments)
    assert done.returncode == code and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "my task.html").exists()
