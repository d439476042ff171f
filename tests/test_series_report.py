"""The command that measures a series of checkpoints, and its report."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from staircase_lib import models, series_report
from staircase_lib.__main__ import main
from staircase_lib.language.export import save_as_llama
from staircase_lib.language.tokens import prepare
from staircase_lib.language.transformer import Transformer
from staircase_lib.language.vocabulary import train_tokenizer

V, STEPS = 300, (0, 4, 32)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, and three checkpoints in the hub's layout."""
    root = tmp_path_factory.mktemp("series")
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefghij"), 3)) for _ in range(60)]
    (root / "text.txt").write_text(" ".join(random.choice(words, 5000)))
    tokenizer = train_tokenizer(root / "text.txt", V)
    for step in STEPS:
        model = Transformer(V, 16, 32, 2, 2, positions="rotary", ffn="swiglu")
        models.initialize_(model, 0.5, models.seeded([step])[0])
        save_as_llama(model, root / "run" / f"step{step}", tokenizer=tokenizer)
    return root


@pytest.fixture
def measure(place, monkeypatch, capsys):
    """Runs the command; returns its exit code and what it printed."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.setattr("signal.signal", lambda *arguments: None)

    def run(*arguments):
        return main(["measure", *arguments]), capsys.readouterr()

    return run


SERIES = ("--model", "run", "--revisions", "step32", "step0", "step4", "--corpus", "text.txt")


def test_a_series_is_measured_and_reported(place, measure):
    code, printed = measure(
        *SERIES, "--tokens", "40", "--attention", "--windows", "20", "--length", "16", "--json"
    )
    assert code == 0, printed.err
    found = json.loads(printed.out)
    rows = pd.DataFrame(found["rows"])
    assert sorted(rows["step"].unique()) == list(STEPS)
    assert set(rows["measure"]) == {
        *("alignment", "probe mse", "probe mse with seen", "probe correlation", "probe share"),
        "attention path",
    }
    assert set(rows.loc[rows["measure"] == "attention path", "block"]) == {0, 1}
    page = (place / "run.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    charts = re.findall(r'<figure id="(\w+)"', page)
    assert charts == ["alignment", "probe", "attention"]
    inside = re.search(r'id="numbers">(.*?)</script>', page, re.S)
    assert inside and json.loads(inside[1])["rows"] == found["rows"]
    assert "step0, step4, step32" in page and "40, each" in page


def test_token_ids_that_are_there_are_read_and_those_of_another_vocabulary_refused(place, measure):
    own = prepare(place / "text.txt", place / "own", 0, tokenizer=place / "run" / "step0")
    few = (*SERIES[:-1], str(own.folder), "--tokens", "30", "--output", "ids.html")
    assert measure(*few)[0] == 0
    prepare(place / "text.txt", place / "words", 120, words=True)
    code, printed = measure(*SERIES[:-1], str(place / "words"))
    assert code == 8 and "it is another model's" in printed.err, printed.err


def test_embeddings_alone_and_one_revision_make_a_report_too(place, measure):
    code, printed = measure(
        *("--model", "run", "--revisions", "step4", "--corpus", "text.txt", "--tokens", "30"),
        *("--output", "one.html", "--limit", "9000", "--tensor", "model.embed_tokens.weight"),
    )
    assert code == 0 and "The report: " in printed.out, printed.err
    assert 'id="attention"' not in (place / "one.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "either TASK, a file, or --model"),
        (("task.csv", *SERIES), 2, "either TASK, a file, or --model"),
        (("task.csv", "--corpus", "text.txt"), 2, "--corpus: not for a task"),
        ((*SERIES, "--seeds", "3"), 2, "--seeds: not for a series of checkpoints"),
        ((*SERIES, "--most-anchors", "3"), 2, "--most-anchors: not for a series"),
        (("--model", "run"), 2, "--revisions: expected names"),
        ((*SERIES, "--windows", "9"), 2, "--windows: only with --attention"),
        ((*SERIES, "--tokens", "3"), 2, "--tokens: expected 20 or more"),
        ((*SERIES, "--length", "1", "--attention"), 2, "--length: expected 2 or more"),
        pytest.param(
            *(
                ("--model", "run", "--revisions", "step7"),
                8,
                "no revision 'step7'; there are step0",
            ),
            marks=pytest.mark.fault("a published series has no such revision", 8),
        ),
        (("--model", "absent", "--revisions", "step7"), 8, "no folder 'absent'"),
        (("--model", "run", "--revisions", "main"), 8, "tell a step"),
        ((*SERIES, "--tensor", "nope"), 8, "no tensor 'nope'"),
        ((*SERIES[:-1], "absent.txt"), 2, "there is no 'absent.txt'"),
        ((*SERIES, "--output", "/proc/nope/x.html"), 9, "cannot write there"),
    ],
)
def test_the_command_refuses_with_a_reason(place, measure, arguments, code, message):
    (place / "run.html").unlink(missing_ok=True)
    came, printed = measure(*arguments)
    assert came == code and message in printed.err, printed.err
    assert not (place / "run.html").exists()


@pytest.mark.fault("a published checkpoint is truncated", 8)
def test_damaged_checkpoints_stop_it_before_the_text_is_read(place, measure):
    shutil.copytree(place / "run", place / "cut")
    file = place / "cut" / "step4" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    code, printed = measure("--model", "cut", *SERIES[2:])
    assert code == 8 and "it was cut or damaged" in printed.err and "counting" not in printed.err
    shutil.rmtree(place / "cut")


def test_without_its_packages_it_says_which(measure, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        "staircase_lib.commands.terminal.find_spec",
        lambda name: None if name == "transformers" else real(name),
    )
    code, printed = measure(*SERIES, "--attention")
    assert code == 8 and "transformers, which context-staircase[series] brings" in printed.err


def rows_of(**columns):
    base = {"measure": "alignment", "signature": "next, centred", "variant": "as defined"}
    return pd.DataFrame({**base, "run": 0, "block": None, **columns})


def test_the_sensitivity_table_finds_peak_and_fall_by_hand():
    course = rows_of(step=[0, 1, 2, 0, 1, 2], run=[0, 0, 0, 1, 1, 1],
                     value=[0.1, 0.7, 0.4, 0.3, 0.5, 0.2])  # fmt: skip
    rising = rows_of(variant="raw", step=[0, 1, 2], value=[0.1, 0.2, 0.3])
    found = series_report.sensitivity(pd.concat([course, rising]))
    expected = [("as defined", 0.6, 1, 0.3, 0.3), ("raw", 0.3, 2, 0.3, 0.0)]
    for row, wanted in zip(found.itertuples(index=False), expected, strict=True):
        assert row.variant == wanted[0] and row.step == wanted[2]
        np.testing.assert_allclose([row.peak, row.last, row.fall], [*wanted[1:2], *wanted[3:]])


def test_nothing_measured_makes_no_empty_picture():
    empty = rows_of(step=[0, 1], value=[np.nan, np.nan])
    for chart in ("alignment_chart", "probe_chart", "attention_chart"):
        assert getattr(series_report, chart)(empty) is None


def test_probe_errors_are_shown_as_shares_of_the_mean():
    rows = rows_of(measure="probe mse", step=[0, 0, 0, 1, 1, 1],
                   signature=["order 0", "order 1", "mean"] * 2,
                   value=[0.2, 0.1, 0.4, 0.3, 0.1, 0.5])  # fmt: skip
    text = json.dumps(series_report.probe_chart(rows).to_dict())
    assert "0.25" in text and "0.6" in text and "0.5" in text


def test_many_blocks_are_told_apart_by_colour_and_few_by_panels():
    names = ["attention-weighted", "present token"]
    for blocks, panels in ((3, 3), (12, 2)):
        table = [
            {"step": step, "block": block, "signature": name, "value": 0.1 * block}
            for step in (0, 1) for block in range(blocks) for name in names
        ]  # fmt: skip
        rows = pd.DataFrame(table).assign(measure="attention path", variant="as defined", run=0)
        assert len(series_report.attention_chart(rows).to_dict()["concat"]) == panels
