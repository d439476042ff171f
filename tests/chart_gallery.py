"""Every kind of chart, on made-up data of realistic size; used by the tests of the figures."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from staircase_lib import figures

HOSTILE = "</script><img src=x onerror=alert(1)>"
HOSTILE_TOKENS = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=2>",
    "<!--",
    "{{constructor.constructor('window.hacked=3')()}}",
    "\u202edesrever",
    "\u2066\u200f\x1b[31m\x07",
    "\u05e9\u05dc\u05d5\u05dd",
    "=LINK('\"&amp;\\u003c')",
    "datum.x')+alert(1)+('",
    "x" * 300,
]
STEPS = [0, *(2**k for k in range(9)), *range(300, 3200, 100)]
N = 20


def curves(series: str, names: list[Any], seeds: int = 5) -> pd.DataFrame:
    """Tidy table of rising curves, one series later than the other."""
    rng = np.random.default_rng(0)
    steps = np.array(STEPS)
    rows = []
    for k, name in enumerate(names):
        for seed in range(seeds):
            onset = 60 * 3**k * np.exp(0.2 * rng.normal())
            value = 1 / (1 + (onset / (steps + 1)) ** 2) + 0.01 * rng.normal(size=len(steps))
            rows.append(
                pd.DataFrame(
                    {"step": steps, "value": np.clip(value, 0, 1), "seed": seed, series: name}
                )
            )
    return pd.concat(rows, ignore_index=True)


def vectors(frequency: float) -> np.ndarray:
    """Token vectors (S, N, 2) that turn from a line into an arc."""
    angle = np.linspace(0, np.pi * frequency, N)
    bend = np.linspace(0.05, 1, len(STEPS))[:, None]
    x = np.broadcast_to(np.cos(angle), (len(STEPS), N))
    return np.stack([x, bend * np.sin(angle)], -1) * (1 + np.arange(len(STEPS)))[:, None, None]


def similarities(frequency: float) -> np.ndarray:
    """Cosine similarities (S, N, N) of `vectors`."""
    points = vectors(frequency) + 1e-9
    unit = points / np.linalg.norm(points, axis=-1, keepdims=True)
    return np.clip(unit @ unit.transpose(0, 2, 1), -1, 1)


def label_distributions(tokens: list[int]) -> pd.DataFrame:
    """A fixed P(y | α) and a model that approaches it."""
    labels = np.arange(60)
    rows = []
    for token in tokens:
        truth = np.exp(-(((labels - 2 * token - 10) / 9) ** 2))
        truth /= truth.sum()
        rows.append(pd.DataFrame({"label": labels, "probability": truth, "kind": "P(y | α)"}))
        rows[-1]["token"] = token
        for k, step in enumerate(STEPS):
            share = k / (len(STEPS) - 1)
            model = pd.DataFrame({"label": labels, "kind": "model", "step": step, "token": token})
            rows.append(model.assign(probability=share * truth + (1 - share) / len(labels)))
    return pd.concat(rows, ignore_index=True)


def onsets() -> pd.DataFrame:
    """Epochs until a task is learned, against γ; some runs do not get there."""
    rng = np.random.default_rng(1)
    rows = [
        (gamma, task, seed, min(8000.0, base * np.exp(rate * (gamma - 0.5) + 0.15 * rng.normal())))
        for gamma in (0.5, 0.7, 0.9, 1.1, 1.3, 1.5)
        for task, base, rate in (("addition", 120, 1.0), ("modular addition", 200, 4.2))
        for seed in range(5)
    ]
    table = pd.DataFrame(rows, columns=["gamma", "task", "seed", "epochs"])
    return table.assign(censored=table["epochs"] >= 8000)


def intervals() -> pd.DataFrame:
    """A claim's statistic and its controls."""
    return pd.DataFrame(
        {
            "name": ["addition, S⁰", "uniform labels", "shuffled labels (control)", HOSTILE],
            "median": [0.991, 0.985, 0.12, 0.4],
            "low": [0.985, 0.97, 0.02, 0.3],
            "high": [0.996, 0.992, 0.25, 0.5],
            "group": ["claim", "claim", "control", "control"],
        }
    )


def decisions() -> pd.DataFrame:
    """Answers of a right rule and of one that always answers the row."""
    pairs = [(a, b) for a in range(8) for b in range(8)]
    rows = [("smaller", a, b, min(a, b), True) for a, b in pairs]
    rows += [("the row", a, b, a, a == min(a, b)) for a, b in pairs]
    return pd.DataFrame(rows, columns=["panel", "row", "column", "answer", "right"])


def contributions() -> pd.DataFrame:
    """Scores of eight labels in three parts, for two sequences."""
    rows = [
        (name, part, y, (8 - y) / 64 if part == "operator" else 1 / 16 + (y == spike) / 2)
        for name, first, second in (("min(2, 5)", 2, 5), (HOSTILE, 3, 3))
        for part, spike in (("operator", None), ("first", first), ("second", second))
        for y in range(8)
    ]
    return pd.DataFrame(rows, columns=["sequence", "part", "label", "value"])


def phases() -> Any:
    """A map of two quantities over 4 rates, 3 widths and 2 lengths, and three runs a point."""
    time = np.geomspace(0.5, 20_000, 30)
    cells, loss, shares = [], [], []
    for gamma, width, length in product((0.5, 0.7, 0.9, 1.1), (16, 32, 64), (2, 3)):
        stair = 10 * width ** (gamma - 0.5) / length
        point = {"gamma": gamma, "width": width, "length": length}
        wait = {"quantity": "wait", "value": stair * 40, "censored": stair > 40}
        text = {"quantity": HOSTILE, "value": gamma, "text": HOSTILE[:3]}
        cells += [point | wait | {"predicted": stair}, point | text | {"predicted": stair}]
        for seed in range(3):
            value = 1 / (1 + time / stair / (1 + 0.1 * seed))
            loss.append(point | {"seed": seed, "value": value[: 20 + seed]})
        share = 1 / (1 + time / stair)
        for order in range(length):
            value = share if order == 0 else (1 - share) / (length - 1)
            shares.append(point | {"order": order, "value": value})
    return figures.phase_diagram(
        pd.DataFrame(cells), pd.DataFrame(loss), pd.DataFrame(shares), loss_times=time,
        share_times=time, start=(0.9, 32, 2),
        loss_title="loss", levels={"order 0": 0.7},
    )  # fmt: skip


def named_tokens() -> pd.DataFrame:
    """Tokens of a corpus that mean harm, among some that do not."""
    rng = np.random.default_rng(2)
    names = [*HOSTILE_TOKENS, *(f"word{k}" for k in range(60))]
    count = 10 ** rng.uniform(2, 5, len(names))
    kind = ["hostile"] * len(HOSTILE_TOKENS) + ["word"] * 60
    y = rng.uniform(0, 9, len(names))
    return pd.DataFrame({"name": names, "x": count, "y": y, "group": kind})


def found() -> pd.DataFrame:
    """A search: two panels, one with an empty cell, whose texts would do harm if they were HTML."""
    cells = [
        {"panel": panel, "row": row, "column": column, "value": value, "good": value > 0.5}
        for panel in ("一 … 十", "<b>two</b> … ten")
        for row, value in (("root", 0.9), ("ppmi", 0.321))
        for column in ("next", "±1", "±10")
        if (panel[0], column) != ("<", "±10")
    ]
    return pd.DataFrame(cells)


def gallery() -> dict[str, Any]:
    """Charts by name: every function, alone and in its variants."""
    shares = np.stack([np.linspace(0.97, 0.6, len(STEPS)), np.linspace(0.02, 0.3, len(STEPS))], 1)
    orders = curves("order", [0, 1, 2]).rename(columns={"value": "share"})
    orders["share"] = np.where(orders["order"] == 0, 1 - orders["share"], orders["share"] / 2)
    points = {"embedding": vectors(1.0), "signature S⁰": vectors(0.5)[0]}
    halves = np.array([0.7, 0.2])
    bars: Any = label_distributions([0, 4, 8, 12, 16]).query("kind != 'model'")
    many = curves("γ", [0.5, 0.7, 0.9, 1.1, 1.3], 3)
    facets = pd.concat([curves("task", ["a", "b"]).assign(γ=g) for g in ("γ = 1.1", "γ = 1.3")])
    words = [HOSTILE, "Monday", "Tuesday", "Wednesday"]
    return {
        "heatmap": figures.similarity_heatmap(STEPS, similarities(1.0), range(1, N + 1)),
        "heatmap_panels": figures.similarity_heatmap(
            STEPS,
            {"embeddings": similarities(1.0), "signature S⁰": similarities(0.5)[0]},
            title="Addition",
            at=128,
        ),
        "heatmap_words": figures.similarity_heatmap(
            [100], similarities(1.0)[-1][:4, :4], words, title=HOSTILE
        ),
        "scatter": figures.pca_scatter(STEPS, vectors(1.2), range(N), explained=shares),
        "scatter_panels": figures.pca_scatter(
            STEPS, points, range(N), explained={"embedding": shares, "signature S⁰": halves}
        ),
        "distributions": figures.distributions(label_distributions([1, 7, 13, 19])),
        "accuracy": figures.metric_curves(
            curves("task", ["addition", "modular addition"]),
            y_title="accuracy",
            series="task",
            threshold=0.05,
            threshold_label="chance",
        ),
        "alignment": figures.metric_curves(
            curves("signature", ["r₀", "r_1", "r_2"]).replace({"r₀": "r_0"}),
            y_title="alignment r",
            series="signature",
            order_colors=True,
            threshold=0.98,
            threshold_label="threshold 0.98",
        ),
        "loss": figures.metric_curves(
            curves("γ", [1.3]).assign(value=lambda t: 4 * np.exp(-t["value"] * 6)),
            y_title="loss",
            log_y=True,
        ),
        "gammas": figures.metric_curves(many, y_title="accuracy", series="γ", title="Five rates"),
        "facets": figures.metric_curves(facets, y_title="accuracy", series="task", facet="γ"),
        "orders": figures.order_shares(orders),
        "signature": figures.signature_bars(bars),
        "decisions": figures.decision_table(decisions()),
        "contributions": figures.stacked_scores(contributions()),
        "intervals": figures.interval_chart(
            intervals(), value_title="alignment r₀", threshold=0.98, threshold_label="0.98"
        ),
        "onset": figures.onset_chart(
            onsets(), x_title="initialization rate γ", y_title="epochs to 95 % accuracy"
        ),
        "phase": phases(),
        "search": figures.search_map(found(), value_title="correlation", good_title="above chance"),
        "tokens": figures.token_scatter(
            named_tokens(), x_title="occurrences (log scale)", y_title="bits", log_x=True
        ),
        "token_map": figures.token_scatter(
            named_tokens().drop(columns="group"), x_title="", y_title="", square=True
        ),
        "token_heatmap": figures.similarity_heatmap(
            [0], similarities(1.0)[-1][:10, :10], HOSTILE_TOKENS
        ),
    }
