"""Explorers and the rules that are typed into them: by their functions, and through a kernel."""

import asyncio
import queue
import time
from html import unescape

import numpy as np
import pytest
from jupyter_client.manager import start_new_kernel
from myst_nb.core.render import MimeData

from staircase_lib import chart_renderer, explorers, figures, signatures, tasks
from staircase_lib.rules import task_from_rule

VIEW = "application/vnd.jupyter.widget-view+json"
CHART = "application/vnd.vegalite.v5+json"

figures.enable()


# --- Rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "function"),
    [
        ("a + b", lambda a, b: a + b),
        ("(a + 2*b) % 5", lambda a, b: (a + 2 * b) % 5),
        ("min(a, b, 3) + max(a, b)", lambda a, b: min(a, b, 3) + max(a, b)),
        ("abs(a - b) // 2", lambda a, b: abs(a - b) // 2),
        ("a if a < b else 3 * (a == b)", lambda a, b: a if a < b else 3 * (a == b)),
        ("-a % 3 + (b >= 2)", lambda a, b: -a % 3 + (b >= 2)),
    ],
)
def test_a_rule_says_what_python_would(rule, function):
    task = task_from_rule(rule, 6)
    assert [int(function(a, b)) for a, b in task.tokens.tolist()] == task.labels.tolist()
    assert task.anchors.tolist() == list(range(6))


def test_letters_are_positions_in_alphabetical_order_and_addition_has_its_vocabulary():
    task = task_from_rule("x + 3 * q", 4)
    assert (task.labels == 3 * task.tokens[:, 0] + task.tokens[:, 1]).all()
    assert task_from_rule("a + b", 20).vocab_size == tasks.addition(20, None).vocab_size
    assert task_from_rule("(a + b) % 20", 20).vocab_size == 39


@pytest.mark.parametrize(
    ("rule", "numbers", "said"),
    [
        ("", 5, "cannot be read"),
        ("a +", 5, "cannot be read"),
        ("y = a + b", 5, "cannot be read"),
        ("a + b\x00", 5, "cannot be read"),
        ("(" * 110 + "a", 5, "cannot be read"),
        ("a" + "+b" * 90, 5, "at most 120 characters"),
        ("a", 5, "two or three different small letters"),
        ("a + b + c + d", 5, "two or three different small letters"),
        ("a + total", 5, "small letters"),
        ("__import__('os').system('true')", 5, "small letters"),
        ("a.real + b", 5, "not understood"),
        ("a + b + open('x')", 5, "not understood"),
        ("a + b * 'x'", 5, "not understood"),
        ("a ** b", 5, "not understood"),
        ("a << b", 5, "not understood"),
        ("min(*a, b)", 5, "not understood"),
        ("(lambda: a + b)()", 5, "not understood"),
        ("a + b + True", 5, "not understood"),
        ("a / b", 5, "not understood"),
        ("a % b", 5, "never zero"),
        ("a - b", 5, "got -1 for a = 0, b = 1"),
        ("a * 99 + b", 5, "expected labels from 0 to 199"),
        ("a * 999999999 * 999999999 + b", 5, "gets larger"),
        ("a + b", 1, "numbers: expected a whole number from 2"),
        ("a + b", 2.5, "numbers: expected a whole number from 2"),
        ("a + b + c", 21, "from 2 to 20 for 3 letters"),
    ],
)
def test_what_is_no_rule_is_told(rule, numbers, said):
    with pytest.raises(ValueError, match="expected|not understood") as error:
        task_from_rule(rule, numbers)
    assert said in str(error.value)


# --- Computations --------------------------------------------------------------------------------


def test_signatures_of_a_clock_are_one_at_order_zero():
    text = explorers.compare_signatures("(a + b) % 8", 8).first.text
    assert "order 0 tells 1 apart" in text and "says 0 bits" in text and "3.00 bits" in text
    assert "order 0 tells 8 apart" in explorers.compare_signatures("a + b", 8).first.text


def test_a_clock_collapses_and_addition_aligns_at_its_stair():
    clock = explorers.train_and_watch("(a + b) % 12", 12, gamma=1.2, steps=100, seeds=1).first.text
    assert float(clock.split("mean cosine ")[1].split(".")[0] + ".") in (0.0, 1.0)
    assert "alignment" not in clock  # equal signatures have no alignment
    sgd = {"optimizer": "sgd", "gamma": 0.8, "lr": 1.0, "seeds": 2}
    watched = explorers.train_and_watch("a + b", 12, steps=250, **sgd).first
    assert float(watched.text.split("alignment r₀ ")[1][:4]) > 0.9
    predicted = explorers._predicted_step(task_from_rule("a + b", 12), 64, 0.8, 1.0)
    assert predicted is not None and 20 < predicted < 250
    assert f"{predicted:,.0f}" in watched.text
    rules = [layer.mark for layer in watched.charts[0].layer if hasattr(layer, "mark")]
    assert any(getattr(mark, "style", None) == "threshold" for mark in rules)
    assert len(watched.charts) == 2


def test_orders_fall_as_proposition_one_says():
    """GELU needs one factor for order 1 and three for order 2; each is d^(1/2 - 2γ)."""
    rows = orders("GELU")
    for order, factors in (("order 1", 1), ("order 2", 3)):
        slope = (rows[order, 1.15] - rows[order, 0.85]) / 0.3
        assert slope == pytest.approx(-2 * factors * np.log10(128), rel=0.03)
    rows = orders("ReLU")  # no expansion at zero: the rate changes nothing
    assert rows["order 1", 1.6] == pytest.approx(rows["order 1", 0.85], abs=0.05)


def orders(activation):
    chart = explorers.orders_at_start(activation=activation).first.charts[0].to_dict()
    values = next(iter(find(chart, "values")))
    return {
        (name, x): float(np.median([v["y"] for v in values if (v["series"], v["x"]) == (name, x)]))
        for name, x in {(v["series"], v["x"]) for v in values}
    }


def find(tree, key):
    if isinstance(tree, dict):
        if isinstance(tree.get(key), list) and tree[key] and "series" in str(tree[key][0]):
            yield tree[key]
        for value in tree.values():
            yield from find(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from find(value, key)


@pytest.fixture(scope="module")
def probes():
    task = task_from_rule("a + b", 10)
    order_0 = signatures.label_signature(task, 0)
    noise = np.random.default_rng(0).standard_normal((2, 10, order_0.shape[1]))
    embeddings = np.stack([noise, np.broadcast_to(order_0, noise.shape)])  # noise, then signatures
    by_order = [order_0, signatures.label_signature(task, 1)]
    return explorers.compare_probes({"made": ([0, 50], embeddings)}, by_order, range(10))


def test_a_probe_reads_signatures_and_no_noise(probes):
    (_, view), *_ = probes.compute("made", 100.0, 0, 0, 1, 5)
    assert "made, step 50" in view().text and "correlation 1.00" in view().text
    (_, view), *_ = probes.compute("made", 0.0, 0, 0, 1, 5)
    assert float(view().text.split("held-out correlation ")[1].split(",")[0]) < 0.8
    with pytest.raises(ValueError, match="folds: expected a number from 2 to 5, got 9"):
        list(probes.compute("made", 0.0, 0, 0, 1, 9))
    with pytest.raises(ValueError, match="made: expected embeddings"):
        explorers.compare_probes({"made": ([0], np.zeros((2, 1, 3, 4)))}, [np.eye(3)], range(3))


def test_the_page_has_the_sentence_behind_the_chart(monkeypatch):
    bundle, metadata = explorers.compare_signatures()._repr_mimebundle_()
    output = {"data": bundle, "metadata": metadata}
    monkeypatch.setattr(chart_renderer, "_output", lambda renderer, data: output)
    monkeypatch.setattr(chart_renderer, "_picture", lambda renderer, data, text: [])
    shown = chart_renderer.ChartRenderer.handle_mime(None, MimeData(CHART, bundle[CHART]), False)
    assert shown is not None and shown[-1]["classes"] == ["sc-note"]
    assert "make live, or make lab" in shown[-1].astext()
    metadata.pop("staircase")
    shown = chart_renderer.ChartRenderer.handle_mime(None, MimeData(CHART, bundle[CHART]), False)
    assert shown is not None and not any("sc-note" in node.get("classes", []) for node in shown)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"numbers": 41}, "numbers: expected a number from 2 to 40, got 41"),
        ({"steps": 9}, "steps: expected a number from 10 to 5000"),
        ({"lr": -1.0}, "learning rate: expected a number from 1e-06 to 100, got -1"),
        ({"lr": float("nan")}, "learning rate: expected"),
        ({"rule": "a + "}, "cannot be read"),
        ({"numbers": 40, "d": 256, "seeds": 5, "steps": 5000}, "times as long as an explorer may"),
        ({"optimizer": "sgd", "lr": 100.0, "gamma": 0.3}, "lower the learning rate (now 100)"),
    ],
)
def test_bad_input_is_told_and_nothing_is_lost(changed, said):
    panel = explorers.train_and_watch("a + b", 8, d=32, steps=20, seeds=1).widget
    before = [output.outputs for output in panel.outputs]
    for name, value in changed.items():
        panel.inputs[name].value = value
    values = panel.values
    panel.run.click()
    assert said in unescape(panel.message.value) and 'role="alert"' in panel.message.value
    assert [output.outputs for output in panel.outputs] == before
    assert str(panel.values) == str(values) and not panel.run.disabled and panel.stop.disabled


def test_what_is_typed_cannot_become_html():
    panel = explorers.compare_signatures().widget
    panel.inputs["rule"].value = "a + b + <img src=x onerror=alert(1)>"
    panel.run.click()
    assert "<img" not in panel.message.value and "&lt;img" in panel.message.value


def test_stop_keeps_what_there_is():
    panel = explorers.train_and_watch("a + b", 10, d=64, steps=20).widget
    panel.inputs["steps"].value = 5000

    async def press():
        panel.run.click()
        assert panel.run.disabled and not panel.stop.disabled
        await asyncio.sleep(0.3)
        panel.stop.click()
        assert panel._running is not None
        await panel._running

    asyncio.run(press())
    said = unescape(panel.message.value)
    assert "Stopped." in said
    step = int(said.split("At step ")[1].split(",")[0].replace(".", ""))
    assert 0 < step < 5000 and panel.stop.disabled and not panel.run.disabled


# --- Through a kernel ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel()
    yield Kernel(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


class Kernel:
    """A kernel, and the state of its widgets as a frontend keeps it."""

    def __init__(self, client):
        self.client, self.models = client, {}

    def run(self, code, *, somebody):
        """The display bundles of a cell, sent by a frontend with or without a person."""
        asked = self.client.execute(code, allow_stdin=somebody)
        shown = []
        while True:
            message = self.listen(60)
            kind, content = message["msg_type"], message["content"]
            assert kind != "error", content
            if kind in ("execute_result", "display_data"):
                shown.append(content)
            ours = message["parent_header"].get("msg_id") == asked
            if ours and kind == "status" and content["execution_state"] == "idle":
                return shown

    def listen(self, seconds):
        message = self.client.get_iopub_msg(timeout=seconds)
        content = message["content"]
        if message["msg_type"] == "comm_open":
            self.models[content["comm_id"]] = dict(content["data"]["state"])
        elif message["msg_type"] == "comm_msg":
            self.models[content["comm_id"]].update(content["data"].get("state", {}))
        return message

    def find(self, **state):
        return [
            key
            for key, model in self.models.items()
            if all(model.get(name) == value for name, value in state.items())
        ]

    def send(self, comm, data):
        content = {"comm_id": comm, "data": data}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def set(self, description, value):
        (comm,) = self.find(description=description)
        state = {"value": value}
        self.send(comm, {"method": "update", "state": state, "buffer_paths": []})

    def press(self, description):
        (comm,) = self.find(description=description)
        self.send(comm, {"method": "custom", "content": {"event": "click"}})

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            try:
                self.listen(max(end - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError("the kernel did not get there") from None

    @property
    def said(self):
        (comm,) = self.find(_model_name="HTMLModel")
        return unescape(self.models[comm]["value"])


CELL = """
from staircase_lib import explorers, figures
figures.enable()
explorers.train_and_watch("a + b", 8, d=32, steps=20, seeds=1)
"""


def test_without_a_person_no_widget_is_made(kernel):
    """As papermill, nbclient and jupyter-book run a cell."""
    (shown,) = kernel.run(CELL, somebody=False)
    assert CHART in shown["data"] and "image/png" in shown["data"] and VIEW not in shown["data"]
    assert "make live" in shown["metadata"]["staircase"]["note"] and not kernel.models


def test_a_frontend_sets_controls_presses_buttons_and_reads_results(kernel):
    (shown,) = kernel.run(CELL, somebody=True)
    assert VIEW in shown["data"] and shown["data"][VIEW]["model_id"] in kernel.models
    assert "At step 20" in kernel.said
    outputs = kernel.find(_model_name="OutputModel")
    assert len(outputs) == 2
    first = kernel.models[outputs[0]]["outputs"]
    assert CHART in first[0]["data"]

    kernel.set("steps", 30)
    kernel.set("rule", "max(a, b)")
    kernel.press("Run")
    kernel.until(lambda: "At step 30" in kernel.said)
    kernel.until(lambda: kernel.models[outputs[0]]["outputs"] != first)

    kernel.set("rule", "a +")
    kernel.press("Run")
    kernel.until(lambda: "cannot be read" in kernel.said)
    (rule,) = kernel.find(description="rule")
    assert kernel.models[rule]["value"] == "a +"  # what was typed stays

    # A long run: the kernel still answers, and stops when asked.
    kernel.set("rule", "a + b")
    kernel.set("steps", 5000)
    kernel.press("Run")
    (stop,) = kernel.find(description="Stop")
    kernel.until(lambda: not kernel.models[stop]["disabled"])
    kernel.run("1 + 1", somebody=True)
    assert not kernel.models[stop]["disabled"]
    kernel.press("Stop")
    kernel.until(lambda: kernel.said.find("Stopped. At step") > 0)
