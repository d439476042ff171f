"""The staircase explorer: what is recorded is true, survives packing, and moves in a browser."""

from __future__ import annotations

import base64
import csv
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import gallery_site
import nbformat
import numpy as np
import pytest
import torch
import yaml
from playwright.sync_api import Browser
from test_browser import Visit, browser  # noqa: F401, a fixture

from staircase_lib import alignment, figures, models, recordings, signatures, tasks, training

NUMBERS = [str(k) for k in range(5)]
TITLE = "sum & <b>more</b></script>"


def sum_task() -> tasks.Task:
    return tasks.from_function(lambda a, b, c: a + b + c, [range(5)] * 3, vocab_size=13, name="sum")


def trained(task: tasks.Task, gamma: float, seeds: tuple[int, ...] = (0, 1)) -> training.Run:
    model = models.EmbeddingFFN(task.vocab_size, 12, runs=len(seeds))
    models.initialize_(model, gamma, models.seeded(seeds))
    config = training.TrainConfig(
        60, 1.0, "sgd", snapshot_every=4, record=("W_E", "W_in", "W_U")
    )  # fmt: skip
    return training.train(model, tasks.merge_permutations(task), config, seeds=seeds)


@pytest.fixture(scope="module")
def sums() -> dict[float, list[recordings.Recording]]:
    task = sum_task()
    return {
        gamma: recordings.record(task, trained(task, gamma), gamma=gamma, per_decade=8)
        for gamma in (0.4, 0.9)
    }


def documents(sums: dict[float, list[recordings.Recording]]) -> list[dict[str, Any]]:
    """Two tasks: the sum, and one whose first two orders are silent."""
    clock = tasks.modular_addition(5, 5, length=3)
    silent = recordings.record(clock, trained(clock, 0.9, (0,)), gamma=0.9, per_decade=4)
    names = NUMBERS + [f"x{k}" for k in range(8)]
    flat = [recording for group in sums.values() for recording in group]
    return [
        recordings.document(
            sum_task(), flat, key="sum", title=TITLE, rule="y = a + b + c", names=names,
            labels=[str(y) for y in range(13)],
        ),
        recordings.document(
            clock, silent, key="clock", title="clock", rule="mod 5", names=names[:10]
        ),
    ]  # fmt: skip


def decoded(packed: dict[str, Any], order: str = "<") -> np.ndarray:
    """Independent of the library: the definition of the code, in another language's terms."""
    codes = np.frombuffer(base64.b64decode(packed["codes"]), f"{order}u{packed['bits'] // 8}")
    top = (1 << packed["bits"]) - 2
    values = packed["low"] + (packed["high"] - packed["low"]) * codes.astype(float) / top
    return np.where(codes > top, np.nan, values).reshape(packed["shape"])


# --- What is recorded ----------------------------------------------------------------------------


def test_moments_are_even_in_the_logarithm_of_time():
    steps = np.array([0, 1, 2, 4, *range(8, 1001, 8)])
    chosen = steps[recordings.log_spaced(steps, 10)]
    assert chosen[0] == 0 and chosen[-1] == 1000 and (np.diff(chosen) > 0).all()
    late = chosen[chosen >= 100]
    ratios = [b / a for a, b in pairwise(late)]
    assert max(ratios) < 10**0.15 and min(ratios) > 10**0.05
    with pytest.raises(ValueError, match="per_decade"):
        recordings.log_spaced(steps, 0)


def test_a_recording_says_what_the_model_was(sums):
    """Every quantity once more, from the run itself and by another way."""
    task, run = sum_task(), trained(sum_task(), 0.9)
    recording = sums[0.9][1]
    k = len(recording.steps) // 2
    index = int(np.searchsorted(run.steps, recording.steps[k]))
    embeddings, hidden, unembedding = (
        torch.tensor(run.snapshots[name][index, 1], dtype=torch.float64)
        for name in ("W_E", "W_in", "W_U")
    )
    v = {name: values[k] for name, values in recording.values.items()}
    z = embeddings[torch.tensor(task.tokens)].sum(1) @ hidden
    logits = torch.nn.functional.gelu(z) @ unembedding
    p = torch.softmax(logits, -1).numpy()
    assert v["loss"] == pytest.approx(-np.log(p[range(len(p)), task.labels]).mean(), rel=1e-5)
    assert v["accuracy"] == pytest.approx((p.argmax(1) == task.labels).mean(), abs=1e-6)
    holds = [[(row == a).sum() for row in task.tokens] for a in task.anchors]
    answers = np.array(holds) @ p / np.sum(holds, axis=1, keepdims=True)
    np.testing.assert_allclose(v["answers"], answers, atol=1e-6)

    rows = embeddings[:5].numpy()
    cosine = alignment.cosine_similarity(rows)
    np.testing.assert_allclose(v["embeddings"], cosine[np.triu_indices(5, 1)], atol=1e-9)
    centred = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    plane = vectors[:, -2:] * np.sqrt(values[-2:])
    gram = plane @ plane.T / (rows**2).sum(1).mean()
    np.testing.assert_allclose(v["points"] @ v["points"].T, gram, atol=1e-9)
    assert v["plane"] == pytest.approx(values[-2:].sum() / values.sum())

    assert v["shares"].sum() == pytest.approx(1)
    assert recording.values["shares"][0, 0] > 0.85, "a small start: order 0 comes first"
    assert sums[0.4][1].values["shares"][0, 0] < 0.7
    images = (embeddings @ hidden).numpy()
    for m in range(3):
        read = signatures.contract(signatures.label_signature(task, m), images)
        assert v["alignment"][m] == pytest.approx(alignment.alignment(rows, read))
    assert sums[0.9][0].stair == pytest.approx(sums[0.4][0].stair * 12**0.5)


def test_the_film_does_not_jump(sums):
    """Components are turned to follow each other; as PCA gives them they would not."""
    points = sums[0.9][0].values["points"]
    jumps = np.linalg.norm(np.diff(points, axis=0), axis=(1, 2))
    flipped = np.linalg.norm(points[1:] * [1, -1] - points[:-1], axis=(1, 2))
    assert (jumps <= flipped + 1e-9).all()


def test_what_cannot_be_recorded_is_refused():
    long = tasks.addition(3, 3, length=4)
    with pytest.raises(ValueError, match="at most 3 positions"):
        recordings.record(long, trained(sum_task(), 0.9), gamma=0.9)
    run = trained(sum_task(), 0.9)
    run.snapshots.pop("W_U")
    with pytest.raises(ValueError, match=r"W_U.*record="):
        recordings.record(sum_task(), run, gamma=0.9)


def test_signatures_in_the_document_are_those_of_the_task(sums):
    first, clock = documents(sums)
    task = sum_task()
    order1 = decoded(first["signatures"]["order1"])
    assert np.abs(order1 - signatures.label_signature(task, 1)[..., :5]).max() < 1e-3
    table = first["signatures"]["order2"]
    expected = np.add.outer(np.arange(5), np.add.outer(np.arange(5), np.arange(5)))
    np.testing.assert_array_equal(table["answers"], expected)
    clock_table = clock["signatures"]["order2"]
    assert clock_table["rows"] == NUMBERS and clock_table["columns"][0] == "x0"
    with pytest.raises(ValueError, match="one for each label"):
        recordings.document(task, [], key="", title="", rule="", names=[""] * 13, labels=["0"])
    with pytest.raises(ValueError, match="expected 13"):
        recordings.document(task, [], key="", title="", rule="", names=NUMBERS)


# --- Packing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16])
def test_packing_loses_what_it_says(bits):
    values = np.random.default_rng(0).uniform(-1, 1, (7, 5))
    values[0, :3] = -1, 1, np.nan
    packed = recordings.pack(values, -1, 1, bits)
    back = decoded(packed)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(values))
    error = np.nanmax(np.abs(back - values))
    assert 0.3 * recordings.resolution(packed) < error <= recordings.resolution(packed) * 1.0001
    np.testing.assert_array_equal(decoded(recordings.pack(back, -1, 1, bits)), back)


def test_a_wrong_reading_is_noticed():
    """The comparison above tells a wrong byte order and a wrong range from the right ones."""
    values = np.random.default_rng(0).uniform(-1, 1, 50)
    packed = recordings.pack(values, -1, 1, 16)
    limit = recordings.resolution(packed)
    assert np.nanmax(np.abs(decoded(packed, ">") - values)) > 100 * limit
    assert np.abs(decoded({**packed, "low": 0.0}) - values).max() > 100 * limit


@pytest.mark.parametrize(
    ("values", "low", "high", "bits", "message"),
    [
        ([0.5, 2.0], -1, 1, 8, r"^values: .* high = 1, got 0.5 to 2\. Widen the range\.$"),
        ([0.5, -np.inf], -1, 1, 8, r"^values: expected finite .* got 1 infinite ones of 2\. Rep"),
        ([0.5], -np.inf, 1, 16, r"^low, high: expected a finite range .* got -inf and 1\. Take"),
        ([0.5], 0, np.inf, 16, "got 0 and inf"),
        ([0.5], np.nan, 1, 16, "got nan and 1"),
        ([0.5], 1, 1, 16, "with low < high, got 1 and 1"),
        ([0.5], -1e308, 1e308, 16, "a finite range"),
        ([0.5], 0, 1, 12, r"^bits: expected 8 or 16, got 12\. Take 16"),
    ],
)
def test_what_cannot_be_packed_is_refused(values, low, high, bits, message):
    with pytest.raises(ValueError, match=message):
        recordings.pack(values, low, high, bits)


def test_a_value_that_rounding_put_outside_is_packed():
    assert decoded(recordings.pack([1 + 1e-9, np.nan], -1, 1, 8))[0] == 1


def test_recordings_survive_the_document(sums):
    packed = documents(sums)[0]["runs"]
    for run, recording in zip(packed, [r for group in sums.values() for r in group], strict=True):
        assert (run["gamma"], run["seed"]) == (recording.gamma, recording.seed)
        assert run["steps"] == recording.steps.tolist()
        for name, values in recording.values.items():
            limit = recordings.resolution(run["values"][name]) * 1.0001
            np.testing.assert_allclose(decoded(run["values"][name]), values, rtol=0, atol=limit)


# --- In the page ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory, sums) -> Path:
    """A book with a small explorer alone on its page, and one beside a chart of its tokens."""
    figures.enable()
    folder = tmp_path_factory.mktemp("explorer")
    film = sums[0.9][0]
    similarity = np.zeros((len(film.steps), 5, 5))
    similarity[:, *np.triu_indices(5, 1)] = film.values["embeddings"]
    picture = figures.storyboard(
        film.steps.tolist(), film.values["loss"], similarity, film.values["points"], NUMBERS,
        moments=[0, int(film.steps[-1])], stair=film.stair, title="a sum",
    )  # fmt: skip
    output = figures.RecordedRuns(documents(sums), picture)
    bundle, metadata = output._repr_mimebundle_()
    cell = gallery_site.output_cell(bundle, metadata)
    heading = nbformat.v4.new_markdown_cell(
        '# Explorer\n\n<a id="tour" href="#task=clock&amp;gamma=0.9&amp;step=12&amp;token=2">go</a>'
    )
    similarity += similarity.swapaxes(1, 2) + np.eye(5)
    chart = figures.similarity_heatmap(film.steps.tolist(), similarity, NUMBERS, time_title="step")
    drawn, about = chart._repr_mimebundle_()
    beside = [nbformat.v4.new_markdown_cell("# Beside"), gallery_site.output_cell(drawn, about)]
    for name, cells in (("index", [heading, cell]), ("beside", [*beside, cell])):
        notebook = nbformat.v4.new_notebook(cells=cells)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, folder / f"{name}.ipynb")
    contents = "format: jb-book\nroot: index\nchapters:\n- file: beside\n"
    (folder / "_toc.yml").write_text(contents, encoding="utf-8")
    (folder / "references.bib").write_text("", encoding="utf-8")
    configuration = yaml.safe_dump(gallery_site.configuration())
    (folder / "_config.yml").write_text(configuration, encoding="utf-8")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", "-W", "--keep-going", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "_build" / "html" / "index.html"


class Explorer(Visit):
    """The page, with its explorer drawn."""

    def __init__(self, browser: Browser, page: Path, width: int = 1440, address: str = "", **more):  # noqa: F811
        super().__init__(browser, page, width, **more)
        if address:
            self.page.goto(page.as_uri() + "?" + address.replace("#", "x") + address)
        self.page.wait_for_selector(".sc-explorer[data-state=drawn]")

    def state(self) -> dict[str, str]:
        """What the address of the view says."""
        link = self.page.get_by_role("link", name="Link to this view").get_attribute("href")
        return {k: v[0] for k, v in parse_qs((link or "")[1:]).items()}

    def move(self, position: int) -> None:
        self.page.get_by_role("slider").fill(str(position))

    def parts(self) -> dict[str, Any]:
        """What moves with time, part by part, as it is drawn."""
        return self.page.evaluate("""() => {
          const all = (selector, what) => [...document.querySelectorAll(selector)].map(what);
          const panels = all('.sx-panel', (panel) => panel);
          const [plane, embeddings, signatures, signature, shares, loss, alignment] = panels;
          const cells = (panel) => [...panel.querySelectorAll('.sx-cell')];
          const fills = (panel) => cells(panel).map((cell) => cell.getAttribute('fill'));
          const rule = (panel) => panel.querySelector('.sx-moment').getAttribute('x1');
          return {
            plane: [...plane.querySelectorAll('.sx-point')].map((p) => p.style.transform),
            embeddings: fills(embeddings), signatures: fills(signatures),
            answers: signature.querySelector('.sx-answers')?.getAttribute('points'),
            shares: rule(shares), loss: rule(loss), alignment: rule(alignment),
            told: document.querySelector('.sx-told').textContent,
          };
        }""")

    def looked_at(self) -> list[int]:
        """The token that each part marks: chips, plane, row and column of both matrices, bars."""
        return self.page.evaluate("""() => {
          const nth = (nodes, test) => [...nodes].findIndex(test);
          const [plane, embeddings, signatures, signature] = document.querySelectorAll('.sx-panel');
          const side = (panel) => Number(panel.querySelector('.sx-cell').getAttribute('width'));
          const left = (panel) => Number(panel.querySelector('.sx-cell').getAttribute('x'));
          const marks = [embeddings, signatures].flatMap((panel) => {
            const [row, column] = panel.querySelectorAll('.sx-mark');
            return [Number(row.getAttribute('y')) / side(panel),
              (Number(column.getAttribute('x')) - left(panel)) / side(panel)];
          });
          return [
            nth(document.querySelectorAll('.sx-tokens .sx-pill'), (p) => p.matches('.sx-looked')),
            nth(plane.querySelectorAll('.sx-point'), (p) => p.matches('.sx-marked')),
            ...marks,
            Number(signature.querySelector('.sx-title').textContent.match(/What (\\d)/)[1]),
          ];
        }""")


@pytest.mark.browser
def test_the_page_reads_the_numbers_that_were_recorded(browser, page, sums):  # noqa: F811
    visit = Explorer(browser, page)
    packed = documents(sums)[0]["runs"]
    for group in sums.values():
        for recording in group:
            sent = packed.pop(0)["values"]
            shown = visit.page.evaluate(
                """([gamma, seed]) => {
                  const explorer = staircaseExplorers[0];
                  const run = explorer.task.runs.find((r) => r.gamma === gamma && r.seed === seed);
                  return Object.fromEntries(Object.keys(run.values).map((name) => {
                    const { shape, values } = explorer.values(name, run);
                    return [name, [shape, [...values].map((v) => Number.isNaN(v) ? null : v)]];
                  }));
                }""",
                [recording.gamma, recording.seed],
            )
            for name, values in recording.values.items():
                shape, flat = shown[name]
                drawn = np.array(flat, dtype=float).reshape(shape)
                limit = recordings.resolution(sent[name]) * 1.0001
                np.testing.assert_allclose(drawn, values, rtol=0, atol=limit)
    visit.close()


@pytest.mark.browser
def test_the_slider_moves_every_part(browser, page):  # noqa: F811
    visit = Explorer(browser, page)
    visit.page.get_by_role("radiogroup", name="signature order").get_by_label("1").check()
    visit.move(3)
    early = visit.parts()
    slider = visit.page.get_by_role("slider")
    slider.press("End")
    late = visit.parts()
    still = [name for name in early if name != "answers" and early[name] == late[name]]
    assert still == [], "every part shows the moment"
    assert slider.get_attribute("aria-valuetext") == late["told"] == "step 60"
    visit.page.get_by_role("radiogroup", name="signature order").get_by_label("0").check()
    of_zero = visit.parts()
    slider.press("ArrowLeft")
    earlier = visit.parts()
    assert of_zero["signatures"] == earlier["signatures"], "order 0 is the task's alone"
    assert of_zero["answers"] != earlier["answers"], "the model's answers are of the moment"
    visit.close()


@pytest.mark.browser
def test_a_token_is_marked_everywhere_at_once(browser, page):  # noqa: F811
    visit = Explorer(browser, page)
    pinned = visit.looked_at()
    assert pinned == [pinned[0]] * 7
    cells = visit.page.locator(".sx-panel").nth(1).locator(".sx-cell")
    cells.nth(5 * 1 + 4).hover()
    assert visit.looked_at() == [1] * 7
    assert "1 with 4: embeddings" in visit.page.locator(".sx-reading").inner_text()
    visit.page.locator(".sx-told").hover()
    assert visit.looked_at() == pinned, "pointing does not keep"
    visit.page.locator(".sx-point").nth(2).locator(".sx-dot").click(force=True)
    visit.page.locator(".sx-told").hover()
    assert visit.looked_at() == [2] * 7, "a click keeps"
    tokens = visit.page.get_by_role("radiogroup", name="token")
    assert tokens.get_by_label("2").is_checked() and visit.state()["token"] == "2"
    tokens.get_by_label("2").press("ArrowRight")
    assert visit.looked_at() == [3] * 7, "the keyboard does as well"
    visit.close()


@pytest.mark.browser
def test_charts_of_the_page_and_the_explorer_share_token_and_moment(browser, page):  # noqa: F811
    visit = Explorer(browser, page.with_name("beside.html"))
    chart = visit.page.locator(".sc-chart")
    chart.scroll_into_view_if_needed()
    visit.page.wait_for_function("b => b.dataset.state", arg=chart.element_handle())
    explorer = visit.page.locator(".sc-explorer")
    last = len(visit.page.evaluate("staircaseExplorers[0].run.steps")) - 1
    own = visit.looked_at()[0]
    assert visit.signal(chart, "token") == "", "what nobody chose is not marked elsewhere"

    explorer.get_by_role("slider").press("End")
    visit.until(chart, "snapshot", last)
    chart.get_by_role("slider").press("Home")
    assert explorer.locator(".sx-told").inner_text() == "step 0" and visit.state()["step"] == "0"

    cells = explorer.locator(".sx-panel").nth(1).locator(".sx-cell")
    cells.nth(5 * 1 + 4).hover()
    visit.until(chart, "token", "1")
    explorer.locator(".sx-told").hover()
    visit.until(chart, "token", "")
    menu = chart.get_by_role("combobox", name="mark token")
    menu.select_option("4")
    assert visit.looked_at() == [4] * 7
    cells.nth(0).hover()
    visit.until(chart, "token", "0")
    explorer.locator(".sx-told").hover()
    visit.until(chart, "token", "4")
    assert visit.looked_at() == [4] * 7, "after pointing, what was kept"
    explorer.get_by_role("radiogroup", name="token").get_by_label("2").check()
    visit.until(chart, "token", "2")
    assert menu.input_value() == "2" and visit.looked_at() == [2] * 7
    visit.page.keyboard.press("Escape")
    visit.until(chart, "token", "")
    menu.select_option("4")
    menu.select_option("")
    assert visit.looked_at() == [2] * 7 != [own] * 7, "it always has a token of its own"
    tell = "([n, d]) => document.dispatchEvent(new CustomEvent(n, { detail: d }))"
    visit.page.evaluate(tell, ["sc-token", {"group": "others", "token": "4"}])
    visit.page.evaluate(tell, ["sc-token", {"group": "token", "token": "no such"}])
    visit.page.evaluate(tell, ["sc-moment", {"clock": "another run", "step": 60}])
    assert visit.looked_at() == [2] * 7 and visit.state()["step"] == "0"
    visit.close()


@pytest.mark.browser
def test_an_address_is_a_view(browser, page):  # noqa: F811
    wanted = {"task": "sum", "gamma": "0.4", "seed": "1", "step": "8", "order": "2", "token": "4"}
    visit = Explorer(browser, page, address="#" + "&".join(f"{k}={v}" for k, v in wanted.items()))
    assert visit.state() == wanted
    assert visit.page.locator(".sx-told").inner_text() == "step 8"
    visit.page.get_by_role("radiogroup", name="seed").get_by_label("0").check()
    assert "seed=0" in visit.page.url and visit.state() == {**wanted, "seed": "0"}
    visit.page.locator("#tour").click()
    visit.page.wait_for_function("document.querySelector('.sx-rule').textContent === 'mod 5'")
    assert visit.state() == {
        "task": "clock", "gamma": "0.9", "seed": "0", "step": "12", "order": "0", "token": "2",
    }  # fmt: skip
    before = visit.state()
    for wrong in ("#explorer", "#task=nothing&step=4", "#task=%E0%A4%A"):
        visit.page.evaluate("hash => { location.hash = hash }", wrong)
        visit.page.wait_for_timeout(30)
        assert visit.state() == before, "no view of the explorer's"
    visit.page.evaluate("location.hash = '#task=sum&gamma=7&seed=99&step=-3&order=9&token=x'")
    visit.page.wait_for_function("document.querySelector('.sx-rule').textContent !== 'mod 5'")
    assert visit.state() == {
        "task": "sum", "gamma": "0.9", "seed": "0", "step": "0", "order": "2", "token": "0",
    }  # fmt: skip
    visit.close()


@pytest.mark.browser
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_it_plays_to_the_end_and_stops(browser, page, motion):  # noqa: F811
    visit = Explorer(browser, page, reduced_motion=motion)
    last = visit.page.evaluate("staircaseExplorers[0].run.steps.length - 1")
    visit.move(last - 2)
    play = visit.page.get_by_role("button", name="play")
    play.press("Enter")
    assert visit.page.get_by_role("button", name="pause").count() == 1
    moving = visit.page.locator(".sx-point").first.evaluate(
        "point => getComputedStyle(point).transitionDuration"
    )
    assert (moving == "0s") == (motion == "reduce")
    play.wait_for(timeout=5000)
    assert visit.state()["step"] == "60"
    play.click()
    visit.page.wait_for_function("document.querySelector('.sx-told').textContent === 'step 1'")
    visit.page.get_by_role("button", name="pause").click()
    visit.close()


@pytest.mark.browser
def test_undefined_alignment_is_said_and_names_are_text(browser, page):  # noqa: F811
    visit = Explorer(browser, page)
    assert visit.page.locator("select option").first.inner_text() == TITLE
    visit.page.get_by_role("combobox", name="task").select_option("clock")
    notes = visit.page.locator(".sx-panel").nth(2).locator(".sx-note")
    assert notes.inner_text() == "r₀ undefined: all pairs alike"
    rows = visit.page.evaluate("staircaseExplorers[0].table()")
    undefined = [row for row in rows if row[4:6] == ["alignment", "order 0"]]
    assert undefined and all(row[7] == "" for row in undefined)
    visit.close()


@pytest.mark.browser
def test_the_data_of_a_view_can_be_taken_along(browser, page, sums):  # noqa: F811
    visit = Explorer(browser, page, address="#task=sum&gamma=0.9&seed=1&step=60&order=1&token=3")
    with visit.page.expect_download() as started:
        visit.page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(started.value.path().read_text().splitlines()))
    assert started.value.suggested_filename == "staircase-sum-gamma-0.9-seed-1.csv"
    recording = sums[0.9][1]
    loss = [float(row["value"]) for row in rows if row["quantity"] == "loss"]
    np.testing.assert_allclose(loss, recording.values["loss"], atol=1e-4)
    cosine = [row for row in rows if row["quantity"] == "similarity of embeddings"]
    assert [(row["first"], row["second"]) for row in cosine[:2]] == [("0", "1"), ("0", "2")]
    found = [float(row["value"]) for row in cosine]
    np.testing.assert_allclose(found, recording.values["embeddings"][-1], atol=0.004)
    visit.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_every_width_and_ground(browser, page, width, scheme):  # noqa: F811
    visit = Explorer(browser, page, width, color_scheme=scheme)
    for order in "012":
        visit.page.get_by_role("radiogroup", name="signature order").get_by_label(order).check()
        visit.check()
    inside = visit.page.evaluate("""() => {
      const right = document.querySelector('.sc-explorer').getBoundingClientRect().right + 1;
      return [...document.querySelectorAll('.sc-explorer svg text')]
        .filter((text) => text.getBoundingClientRect().right > right)
        .map((text) => text.textContent);
    }""")
    assert inside == [], "texts end within the column"
    visit.close()


@pytest.mark.browser
def test_without_script_and_on_paper_there_is_a_picture(browser, page):  # noqa: F811
    plain = Visit(browser, page, java_script_enabled=False)
    picture = plain.page.locator(".sc-explorer img")
    assert picture.is_visible() and "first stair is predicted" in picture.get_attribute("alt")
    plain.context.close()  # scripts that were not asked for count as failed
    visit = Explorer(browser, page)
    assert not visit.page.locator(".sx-still img").is_visible()
    visit.page.emulate_media(media="print")
    assert visit.page.locator(".sx-still img").is_visible()
    assert not visit.page.locator(".sx-panels").is_visible()
    visit.close()


def test_a_storyboard_refuses_what_does_not_fit(sums):
    film = sums[0.9][0]
    steps = film.steps.tolist()
    similarity = np.zeros((len(steps), 5, 5))
    good = (steps, film.values["loss"], similarity, film.values["points"], NUMBERS)
    with pytest.raises(ValueError, match="moments"):
        figures.storyboard(*good, moments=[3_000_000])
    with pytest.raises(ValueError, match="expected shapes"):
        figures.storyboard(steps, film.values["loss"][1:], *good[2:], moments=[0])
