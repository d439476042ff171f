"""Nothing to measure is an answer: what is undefined never puts a NaN into a picture."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from staircase_lib import alignment, figures, gradients, models, stairs, tasks, training

TASKS = {
    "one label": tasks.from_arrays([[0, 1], [1, 2], [2, 3]], [4, 4, 4]),
    "length one": tasks.from_arrays([[0], [1], [2], [3]], [1, 2, 3, 0]),
    "modulus one": tasks.modular_addition(4, None, modulus=1),
    "one token": tasks.from_arrays([[0, 0]], [0]),
}


@pytest.mark.parametrize("name", TASKS)
def test_gradient_by_order_and_pictures_of_a_degenerate_task_are_finite(name: str) -> None:
    task = TASKS[name]
    model = models.EmbeddingFFN(task.vocab_size, 8, runs=2)
    models.initialize_(model, 1.1, models.seeded((0, 1)))
    run = training.train(model, task, training.TrainConfig(20, 0.01, "adamw", snapshot_every=10))
    assert np.isfinite(run.metrics["value"]).all()
    parts = gradients.gradient_by_order(model, task)
    assert len(parts) == task.length
    assert bool(gradients.order_shares(parts, task.anchors).isfinite().all())
    similarity = alignment.cosine_similarity(run.snapshots["W_E"][:, 0][:, task.anchors])
    spec = figures.similarity_heatmap(run.steps, similarity).to_dict()
    json.dumps(spec, allow_nan=False)
    assert "nan" not in spec["description"]


def test_undefined_alignments_leave_gaps_not_numbers() -> None:
    constant = alignment.alignment(np.random.default_rng(0).normal(size=(4, 3)), np.ones((4, 2)))
    assert np.isnan(constant)
    table = pd.DataFrame({"step": [0, 1], "seed": 0, "value": [float(constant), 0.5]})
    assert "null" in json.dumps(
        figures.metric_curves(table, y_title="r").to_dict(), allow_nan=False
    )
    nothing = table.assign(value=np.nan, order="order 0")
    chart = figures.metric_curves(
        nothing, y_title="r", series="order", order_colors=True, domain=(-1, 1)
    )
    json.dumps(chart.to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match="at least one finite"):
        figures.metric_curves(nothing, y_title="r")


def test_zero_embeddings_are_like_nothing_but_themselves() -> None:
    assert (alignment.cosine_similarity(np.zeros((3, 4))) == np.eye(3)).all()
    assert not np.isnan(alignment.pca(np.zeros((3, 4)))[1]).any()


def test_no_drive_no_stair() -> None:
    with pytest.raises(ValueError, match="there is no first stair to predict"):
        stairs.first_stair(tasks.modular_addition(5, None))


def test_shares_of_a_vanishing_gradient_are_zero() -> None:
    assert gradients.order_shares(torch.zeros(2, 5, 3), np.arange(5)).tolist() == [0.0, 0.0]


def test_undefined_intervals_are_named_and_not_drawn() -> None:
    table = pd.DataFrame(
        {"name": ["a", "b"], "median": [1.0, np.nan], "low": [0.5, np.nan], "high": [2, np.nan]}
    )
    spec = figures.interval_chart(table, value_title="r").to_dict()
    assert "b (undefined)" in json.dumps(spec, allow_nan=False)
    assert "nan" not in spec["description"].lower()


def test_undefined_onsets_are_counted_and_not_drawn() -> None:
    table = pd.DataFrame({"gamma": 1.0, "epochs": [10.0, np.nan], "task": "t", "seed": [0, 1]})
    spec = figures.onset_chart(table).to_dict()
    json.dumps(spec, allow_nan=False)
    assert "1 are undefined" in spec["description"]
    with pytest.raises(ValueError, match="finite 'epochs'"):
        figures.onset_chart(table.assign(epochs=np.nan))


@pytest.mark.parametrize("chart", ["signature_bars", "distributions"])
def test_an_undefined_probability_is_refused(chart: str) -> None:
    table: Any = pd.DataFrame(
        {"token": [0, 0], "label": [0, 1], "kind": "k", "probability": [1, np.nan]}
    )
    with pytest.raises(ValueError, match="1 that are not"):
        getattr(figures, chart)(table)


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [-1.0], [1.0] * 5])
def test_order_bars_take_up_to_four_finite_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="order_bars expects"):
        figures.order_bars(values, value_title="bits")
    assert figures.order_bars([0.0, 0.0], value_title="bits").to_dict()
