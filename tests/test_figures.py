"""Charts: what they carry, what they refuse, and that no text in them can become markup."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
from chart_gallery import (
    HOSTILE,
    STEPS,
    N,
    contributions,
    curves,
    decisions,
    found,
    gallery,
    onsets,
    similarities,
    vectors,
)
from PIL import Image

from staircase_lib import figures
from staircase_lib.chart_renderer import chart_html, inert_json
from staircase_lib.figures import series as series_labels
from staircase_lib.figures import style

figures.enable()
CHARTS = gallery()


def rows_of(spec: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """All data rows of a specification that have `column`."""
    own = [row for row in spec.get("data", {}).get("values", []) if column in row]
    parts = [*spec.get("layer", []), *spec.get("concat", [])]
    return own + [row for part in parts for row in rows_of(part, column)]


def params_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {param["name"]: param for param in spec["params"]}


@pytest.mark.parametrize("name", CHARTS)
def test_chart_compiles_fits_and_describes_itself(name: str) -> None:
    spec = CHARTS[name].to_dict()
    svg = vl_convert.vegalite_to_svg(spec, vl_version="5.20")
    width = float(svg.split('width="')[1].split('"')[0])
    assert width <= style.TEXT_WIDTH
    assert len(spec["description"]) > 40 and any(c.isdigit() for c in spec["description"])


def test_enabled_renderer_gives_chart_picture_and_text() -> None:
    figures.enable()
    bundle, metadata = CHARTS["loss"]._repr_mimebundle_(None, None)
    assert set(bundle) == {style.VEGALITE_MIME, "image/png", "text/plain"}
    assert bundle["text/plain"] == bundle[style.VEGALITE_MIME]["description"]
    width = metadata["image/png"]["width"]
    assert width <= style.TEXT_WIDTH
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert abs(picture.width / (width / 96) - 300) < 1, "dots an inch, at the size on paper"
    assert picture.mode == "P" and picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


TOKEN_CHARTS = {
    "heatmap": "row", "heatmap_panels": "row", "scatter": "name", "scatter_panels": "name",
    "distributions": "token", "signature": "name_of", "tokens": "name", "token_map": "name",
    "decisions": "r",
}  # fmt: skip


@pytest.mark.parametrize("name", TOKEN_CHARTS)
def test_a_pointed_at_token_changes_the_picture(name: str) -> None:
    """The parameter ``token`` marks tokens that the chart has, and nothing for others."""
    spec = CHARTS[name].to_dict()
    about = spec["usermeta"]["staircase"]
    assert about["tokens"] == "token" and about["token_field"] == TOKEN_CHARTS[name]
    names = [r[about["token_field"]] for r in rows_of(spec, about["token_field"])]
    names += params_of(spec)[about["token_names"]]["value"] if "token_names" in about else []

    def drawn(token: str) -> str:
        params_of(spec)["token"]["value"] = token
        svg = vl_convert.vegalite_to_svg(spec, vl_version="5.20")
        return re.sub(r"(gradient|clip)_?\d+", "", svg)  # numbered anew every time

    plain = drawn("")
    assert drawn(str(names[1])) != plain and drawn("no such token") == plain


def test_charts_without_tokens_share_none() -> None:
    for name in set(CHARTS) - set(TOKEN_CHARTS) - {"heatmap_words", "token_heatmap"}:
        assert "tokens" not in CHARTS[name].to_dict()["usermeta"]["staircase"], name


def test_names_of_series_and_panels_are_printable() -> None:
    bad = "\u202edesrever\x1b[31m"
    table = curves("s", [bad, "b"]).assign(f=bad)
    rising = {"name": bad, "median": 1.0, "low": 0.5, "high": 2.0, "group": bad}
    interval = pd.DataFrame([rising])
    for chart in (
        figures.metric_curves(table, y_title="r", series="s", facet="f"),
        figures.interval_chart(interval, value_title="r"),
        figures.interval_panels(interval.assign(panel=bad, met=True), thresholds={bad: 1.0}),
        figures.onset_chart(onsets().replace({"addition": bad})),
        figures.search_map(found().assign(panel=bad, row=bad).drop_duplicates(["row", "column"])),
    ):
        text = json.dumps(chart.to_dict(), ensure_ascii=False)
        assert "\u202e" not in text and "\x1b" not in text and "u202edesrever" in text


def test_long_names_leave_small_panels_their_width() -> None:
    def parts(names: list[str]) -> tuple[int, bool]:
        table = pd.concat([curves("s", names, 1).assign(f=panel) for panel in "ab"])
        spec = figures.metric_curves(table, y_title="r", series="s", facet="f").to_dict()
        return spec["concat"][0]["width"], '"legend": null' in json.dumps(spec)

    wide, direct = parts(["attention-weighted", "present token"])
    assert wide >= 160 and not direct
    assert parts(["a", "b"])[1], "short names stand at the curves' ends"


def test_small_numbers_on_a_log_axis_are_powers_of_ten() -> None:
    axis = style.value_axis(2e-8, 0.02, log=True).to_dict()
    assert axis["values"][:2] == [1e-7, 1e-6] and "'10⁻⁷', '10⁻⁶'" in axis["labelExpr"]
    assert style.value_axis(0.01, 5, log=True).to_dict()["format"] == ",.6~r"


def test_colab_keeps_its_own_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "google.colab", object())
    figures.enable()
    assert alt.renderers.active == "colab"
    monkeypatch.undo()
    figures.enable()
    assert alt.renderers.active == "staircase"


def test_heatmap_values_survive_the_int8_encoding() -> None:
    given = similarities(1.0)
    rows = rows_of(CHARTS["heatmap"].to_dict(), "q")
    sent = np.array([row["q"] for row in rows])
    assert [row["t"] for row in rows] == list(range(len(STEPS)))
    assert sent.dtype.kind == "i" and np.abs(sent).max() <= 127
    assert np.abs(sent.reshape(given.shape) / 127 - given).max() <= 0.5 / 127 + 1e-12
    assert np.abs(sent.reshape(given.shape)[::-1] / 127 - given).max() > 0.1  # order matters


def test_scatter_is_scaled_to_its_largest_radius_at_every_step() -> None:
    for row, cloud in zip(rows_of(CHARTS["scatter"].to_dict(), "x"), vectors(1.2), strict=True):
        sent = np.stack([row["x"], row["y"]], -1) / 1000
        assert np.allclose(sent, cloud / np.linalg.norm(cloud, axis=-1).max(), atol=1e-3)


@pytest.mark.parametrize("name", ["heatmap", "heatmap_panels", "scatter", "distributions"])
def test_slider_moves_over_the_given_steps(name: str) -> None:
    spec = CHARTS[name].to_dict()
    params = params_of(spec)
    assert params["steps"]["value"] == STEPS
    assert params["snapshot"]["bind"]["max"] == len(STEPS) - 1
    assert spec["usermeta"]["staircase"]["slider"]["steps"] == STEPS
    start = params["snapshot"]["value"]
    assert STEPS[start] == (128 if name == "heatmap_panels" else STEPS[-1])


def test_single_snapshot_has_no_slider() -> None:
    spec = CHARTS["heatmap_words"].to_dict()
    assert "snapshot" not in params_of(spec) and "slider" not in spec["usermeta"]["staircase"]


def test_fixed_distribution_is_sent_once_and_fills_absent_labels_with_zero() -> None:
    table = pd.DataFrame(
        {"token": [1, 1, 1], "label": [0, 2, 1], "kind": ["data", "data", "model"],
         "probability": [0.25, 0.75, 1.0], "step": [np.nan, np.nan, 5]}
    )  # fmt: skip
    rows = rows_of(figures.distributions(table).to_dict(), "q")
    assert {row["kind"]: row["q"] for row in rows} == {
        "data": [25_000, 0, 75_000],
        "model": [0, 100_000, 0],
    }


def test_curves_send_every_seed_and_break_at_missing_values() -> None:
    table = curves("task", ["addition"])
    table.loc[3, "value"] = np.nan
    rows = rows_of(figures.metric_curves(table, y_title="r", series="task").to_dict(), "seed")
    assert [row["seed"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[0]["value"][3] is None and rows[0]["step"] == STEPS


def test_orders_have_their_colours_and_nothing_else_does() -> None:
    scale = json.dumps(CHARTS["orders"].to_dict())
    for color in figures.ORDER_COLORS[:3]:
        assert color in scale
    assert not set(figures.ORDER_COLORS) & set(figures.SERIES_COLORS)
    reordered = curves("order", [2, 0])
    spec = figures.metric_curves(
        reordered, y_title="r", series="order", order_colors=True
    ).to_dict()
    color = spec["layer"][0]["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(color["domain"], color["range"], strict=True)) == {
        0: figures.ORDER_COLORS[0],
        2: figures.ORDER_COLORS[2],
    }


def test_labels_at_the_ends_keep_apart_and_in_order() -> None:
    given = np.array([0.99, 1.0, 0.2, 0.985, 0.98])
    placed = series_labels.spread(given, 0.05)
    assert (np.diff(np.sort(placed)) >= 0.05 - 1e-12).all() and placed.max() <= 1
    assert (np.argsort(placed) == np.argsort(given)).all() and placed[2] == 0.2


def test_step_axis_has_a_place_for_zero() -> None:
    axis = style.time_axis(np.array([0, 1, 50_000]), "epoch", log=True)
    assert axis["scale"]["type"] == "symlog" and axis["axis"]["values"][:2] == [0, 1]
    assert axis["axis"]["values"][-1] == 10_000
    assert style.time_axis(np.array([1, 100]), "epoch", log=True)["scale"]["type"] == "log"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.similarity_heatmap([0, 1], similarities(1.0)), r"one entry a step \(2\)"),
        (lambda: figures.similarity_heatmap([1, 0], similarities(1.0)[:2]), "must increase"),
        (lambda: figures.similarity_heatmap([0], np.zeros((3, 4))), "square"),
        (lambda: figures.similarity_heatmap([0], 2 * np.eye(3)), r"within \[-1, 1\]"),
        (lambda: figures.similarity_heatmap([0], np.full((3, 3), np.nan)), "finite"),
        (lambda: figures.similarity_heatmap([0], np.eye(3), ["a", "b"]), "expected 3, got 2"),
        (lambda: figures.similarity_heatmap(STEPS, similarities(1.0), at=7), "got 7"),
        (
            lambda: figures.similarity_heatmap([0], {"a": np.eye(3)}, panels=["b"]),
            "Choose panels among those given",
        ),
        (lambda: figures.pca_scatter([0], np.zeros((N, 3)), range(N)), r"\(20, 2\)"),
        (lambda: figures.pca_scatter([0], np.zeros((N, 2)), range(5)), "one row a label"),
        (lambda: figures.metric_curves(onsets(), y_title="r"), "'step', 'value'"),
        (
            lambda: figures.metric_curves(
                curves("task", ["a"]), y_title="r", series="task", order_colors=True
            ),
            "signature orders are 0 to 3",
        ),
        (
            lambda: figures.metric_curves(curves("s", list("abcdefg")), y_title="r", series="s"),
            "at most 6",
        ),
        (
            lambda: figures.interval_chart(
                pd.DataFrame({"name": ["a"], "median": [2], "low": [3], "high": [4]}),
                value_title="r",
            ),
            "low <= median <= high",
        ),
        (
            lambda: figures.stacked_scores(contributions().assign(value=-1.0)),
            "no negative value",
        ),
        (
            lambda: figures.decision_table(
                decisions().head(64).assign(panel=lambda t: t["row"].astype(str))
            ),
            "at most 4 panels",
        ),
        (
            lambda: figures.decision_table(pd.concat([decisions()] * 2)),
            "one row for each",
        ),
        (
            lambda: figures.signature_bars(
                pd.DataFrame(columns=["token", "label", "probability"])  # pyright: ignore
            ),
            "at least one row",
        ),
        (
            lambda: figures.signature_bars(
                pd.DataFrame({"token": [1, 1], "label": [0, 0], "probability": [0.5, 0.5]})
            ),
            "one row for each",
        ),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_with_what_was_expected(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


class Elements(HTMLParser):
    """Elements of a piece of HTML, and the text inside its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "script":
            self.script += data


@pytest.mark.parametrize("text", [HOSTILE, "<!--<script>", "\u2028", '" onload="alert(1)'])
def test_hostile_text_stays_text(text: str) -> None:
    spec = figures.similarity_heatmap(
        [0, 1], {text: np.eye(2)}, [text, "b"], title=text, value_title=text
    ).to_dict()
    page = Elements()
    page.feed("".join(chart_html(spec, spec["description"] + text, 100)))
    assert page.tags == ["div", "div", "div", "div", "script", "noscript"]
    assert not [name for name in page.attributes if name.startswith("on")]
    assert json.loads(page.script) == spec


def test_plain_json_would_not_be_inert() -> None:
    """The check above can fail: unescaped JSON ends the script."""
    page = Elements()
    page.feed(f'<script type="application/json">{json.dumps({"a": HOSTILE})}</script>')
    assert "img" in page.tags
    assert json.loads(inert_json({"a": HOSTILE})) == {"a": HOSTILE}


def test_the_highest_sum_is_named_and_wrong_answers_are_told() -> None:
    text = figures.stacked_scores(contributions()).to_dict()["description"]
    assert "min(2, 5): 2" in text and f"{HOSTILE}: 3" in text
    text = figures.decision_table(decisions()).to_dict()["description"]
    assert "smaller: 100%" in text and "the row: 56%" in text  # 36 of 64 pairs
