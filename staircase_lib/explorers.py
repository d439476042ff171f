"""Explorers: charts with controls, for a reader who asks "what if".

Each function returns an :class:`Explorer`. Shown by a frontend at which somebody sits (JupyterLab,
or the book's pages with `make live`) it is a widget: change a control, press *Run*, and the kernel
computes. Shown where nobody can press anything (the build, a headless run) it is its first result,
an ordinary chart, with a sentence that says how to get the controls; no widget is made then. The
two are told apart by the request that runs the cell: only a frontend with a person allows a cell to
ask for input.

Sizes are bounded so that a laptop answers in seconds. What is typed is checked when *Run* is
pressed; a mistake is answered by a message and leaves controls and charts as they are. Computations
are generators: the kernel looks after other messages between their slices, so that *Stop* is heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from time import monotonic
from typing import Any, Literal

import altair as alt
import ipywidgets
import numpy as np
import pandas as pd
import torch
from IPython.core.getipython import get_ipython
from numpy.typing import ArrayLike

from staircase_lib import alignment, figures, gradients, models, signatures, stairs, training
from staircase_lib.figures.style import VEGALITE_MIME
from staircase_lib.rules import task_from_rule
from staircase_lib.tasks import Task, merge_permutations

__all__ = [
    "Explorer",
    "Panel",
    "View",
    "compare_probes",
    "compare_signatures",
    "orders_at_start",
    "train_and_watch",
]

NEEDS_KERNEL = (
    "This is the first result of an explorer. Its controls need a live kernel: make live, or "
    "make lab, and run the cell."
)
_REDRAWN_EVERY = 1.0  # seconds between charts of a computation that goes on
_MOST_WORK = 2e11  # floating-point operations of a training; some ten seconds of one core
_MOST_NUMBERS = 40
_SLOPE = 0.5  # of GELU at zero
_ROUNDING = -14.5  # power of ten of what double precision keeps beside a one


@dataclass(frozen=True)
class View:
    """What a computation has to show so far.

    Attributes
    ----------
    charts : list of altair charts
        The first one is the static result.
    text : str
        A sentence in plain text.
    """

    charts: list[Any]
    text: str


Slice = tuple[float, Callable[[], View]]
"""Share of the work that is done, and how to show what there is."""


@dataclass
class Explorer:
    """Controls, a computation and its charts.

    Attributes
    ----------
    compute : callable
        From the controls' values to an iterator that does a slice of work a step and yields the
        share that is done and a function that makes a :class:`View`, called only where it is
        shown. It raises ValueError for values that it does not accept.
    controls : mapping from name to ipywidgets class and its options
        Among the options ``value``, with which the first result is computed.
    first : View
        The first result.
    """

    compute: Callable[..., Iterator[Slice]]
    controls: Mapping[str, tuple[Any, dict[str, Any]]]
    first: View = field(init=False)

    def __post_init__(self) -> None:
        defaults = {name: options["value"] for name, (_, options) in self.controls.items()}
        *_, last = self.compute(**defaults)
        self.first = last[1]()

    @cached_property
    def widget(self) -> Panel:
        """The controls with the charts below; made when first asked for."""
        return Panel(self)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget where somebody can use it, else the first chart with the sentence."""
        if somebody_is_there():
            bundle = self.widget._repr_mimebundle_()
            return (bundle, {}) if isinstance(bundle, dict) else (bundle or ({}, {}))
        bundle, metadata = _bundle(self.first.charts[0])
        bundle["text/plain"] = f"{bundle.get('text/plain', '')} {self.first.text} {NEEDS_KERNEL}"
        return bundle, {**metadata, "staircase": {"note": f"{self.first.text} {NEEDS_KERNEL}"}}


def somebody_is_there() -> bool:
    """Whether the running cell was sent by a frontend that takes input from a person.

    JupyterLab and thebe allow a cell to ask for input; papermill, nbclient and `jupyter-book build`
    do not.
    """
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin", False))


def _bundle(chart: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A chart as what a notebook displays, with its metadata."""
    shown = chart._repr_mimebundle_(None, None)
    return shown if isinstance(shown, tuple) else (shown, {})


class Panel(ipywidgets.VBox):
    """The widget of an :class:`Explorer`.

    Attributes
    ----------
    inputs : dict from name to widget
    run, stop : Button
    progress : FloatProgress
    message : HTML
        The sentence of the last result, or what was wrong with the values.
    outputs : list of Output
        One a chart.
    """

    def __init__(self, explorer: Explorer) -> None:
        wide = {"description_width": "8.5em"}
        place = ipywidgets.Layout(width="min(100%, 26em)")
        self._explorer = explorer
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self.inputs = {
            name: kind(**{"style": wide, "layout": place, "continuous_update": False, **options})
            if hasattr(kind, "continuous_update")
            else kind(**{"style": wide, "layout": place, **options})
            for name, (kind, options) in explorer.controls.items()
        }
        self.run = ipywidgets.Button(description="Run", button_style="primary", icon="play")
        self.stop = ipywidgets.Button(description="Stop", disabled=True, icon="stop")
        self.progress = ipywidgets.FloatProgress(
            min=0.0, max=1.0, layout=ipywidgets.Layout(visibility="hidden")
        )
        self.message = ipywidgets.HTML()
        self.outputs = [ipywidgets.Output() for _ in explorer.first.charts]
        self.run.on_click(lambda _: self._start())
        self.stop.on_click(lambda _: self._ask_to_stop())
        self._show(explorer.first)
        buttons = ipywidgets.HBox([self.run, self.stop, self.progress])
        super().__init__([*self.inputs.values(), buttons, self.message, *self.outputs])

    @property
    def values(self) -> dict[str, Any]:
        """What the controls are set to."""
        return {name: widget.value for name, widget in self.inputs.items()}

    def _say(self, text: str, role: str = "status") -> None:
        self.message.value = f'<div role="{role}">{escape(text)}</div>'

    def _show(self, view: View, note: str = "", *, on_the_way: bool = False) -> None:
        self._say(f"{note} {view.text}".strip())
        for output, chart in zip(self.outputs, view.charts, strict=False):
            # The picture beside the chart takes longest, and is there at the end.
            spec = {VEGALITE_MIME: chart.to_dict(validate=False)} if on_the_way else None
            data, metadata = (spec, {}) if spec else _bundle(chart)
            output.outputs = ({"output_type": "display_data", "data": data, "metadata": metadata},)
        for output in self.outputs[len(view.charts) :]:
            output.outputs = ()

    def _ask_to_stop(self) -> None:
        self._stopped = True

    def _start(self) -> None:
        """Compute; in slices where there is an event loop, which a kernel has."""
        self._stopped = False
        self.run.disabled, self.stop.disabled = True, False
        self.progress.value, self.progress.layout.visibility = 0.0, "visible"
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._compute())
        else:
            self._running = loop.create_task(self._compute())

    async def _compute(self) -> None:
        view, next_chart = None, monotonic() + _REDRAWN_EVERY
        try:
            for share, view in self._explorer.compute(**self.values):
                if self._stopped:
                    break
                self.progress.value = share
                if monotonic() > next_chart:
                    before = monotonic()
                    self._show(view(), on_the_way=True)
                    # Drawing takes a third of the time at most.
                    next_chart = monotonic() + max(_REDRAWN_EVERY, 2 * (monotonic() - before))
                await asyncio.sleep(0.001)  # other messages, among them Stop's, are handled here
            if view is not None:
                self._show(view(), "Stopped." if self._stopped else "")
        except (ValueError, TypeError, FloatingPointError) as error:
            self._say(f"{error} Nothing was changed.", "alert")
        except Exception as error:  # told, or the button would do nothing
            self._say(f"{type(error).__name__}: {error} Nothing was changed.", "alert")
        finally:
            self.run.disabled, self.stop.disabled = False, True
            self.progress.layout.visibility = "hidden"


# --- Controls that several explorers have --------------------------------------------------------


def _rule(value: str) -> tuple[Any, dict[str, Any]]:
    return ipywidgets.Text, {"value": value, "description": "rule", "placeholder": "(a + b) % 7"}


def _numbers(value: int) -> tuple[Any, dict[str, Any]]:
    return ipywidgets.IntText, {"value": value, "description": "numbers"}


def _choice(what: str, options: Sequence[Any], value: Any) -> tuple[Any, dict[str, Any]]:
    return ipywidgets.Dropdown, {"value": value, "options": list(options), "description": what}


def _gamma(value: float) -> tuple[Any, dict[str, Any]]:
    return ipywidgets.FloatSlider, {
        "value": value, "min": 0.3, "max": 1.6, "step": 0.05, "description": "rate γ",
        "readout_format": ".2f",
    }  # fmt: skip


def _seeds(value: int) -> tuple[Any, dict[str, Any]]:
    return ipywidgets.IntSlider, {"value": value, "min": 1, "max": 5, "description": "seeds"}


def _between(name: str, value: float, low: float, high: float) -> None:
    """Refuse a typed number outside its bounds."""
    if not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {value:g}.")


def _task(rule: str, numbers: int) -> Task:
    _between("numbers", numbers, 2, _MOST_NUMBERS)
    return task_from_rule(rule, numbers)


# --- The signatures of a rule --------------------------------------------------------------------


def compare_signatures(rule: str = "(a + b) % 7", numbers: int = 10) -> Explorer:
    """Which numbers look alike to order 0, and which to order 1, under a rule that is typed.

    Parameters
    ----------
    rule : str
        As for :func:`~staircase_lib.rules.task_from_rule`.
    numbers : int

    Returns
    -------
    Explorer
        Cosine similarities of both signatures, and the zeroth-order signatures of three numbers.
    """

    def compute(rule: str, numbers: int) -> Iterator[Slice]:
        task = _task(rule, numbers)
        zeroth, first = signatures.label_signature(task, 0), signatures.label_signature(task, 1)
        different = len(np.unique(zeroth.round(12), axis=0))
        bits = [signatures.information(task, order) for order in (0, 1)]

        def view() -> View:
            similar = {
                "order 0": alignment.cosine_similarity(zeroth),
                "order 1": alignment.cosine_similarity(first.reshape(numbers, -1)),
            }
            used = int(np.flatnonzero(zeroth.any(axis=0))[-1]) + 1
            rows = [
                {"token": token, "label": y, "probability": float(zeroth[token, y])}
                for token in sorted({0, numbers // 2, numbers - 1})
                for y in range(used)
            ]
            return View(
                [
                    figures.similarity_heatmap([0], similar, range(numbers), axis_title="number"),
                    figures.signature_bars(pd.DataFrame(rows)),
                ],
                f"Of {numbers} numbers, order 0 tells {different} apart. Which number it is says "
                f"{_plain(bits[0])} bits about the label when nothing else is known, and "
                f"{_plain(bits[1])} bits when one more number is.",
            )

        yield 1.0, view

    return Explorer(compute, {"rule": _rule(rule), "numbers": _numbers(numbers)})


def _plain(value: float) -> str:
    return f"{value:.2f}" if value > 1e-9 else "0"


# --- Training ------------------------------------------------------------------------------------


def train_and_watch(
    rule: str = "(a + b) % 20",
    numbers: int = 20,
    *,
    gamma: float = 1.1,
    d: int = 64,
    seeds: int = 3,
    optimizer: str = "adamw",
    lr: float = 1e-3,
    steps: int = 400,
) -> Explorer:
    """Train a small feed-forward model on a rule that is typed, and watch its embeddings.

    Parameters
    ----------
    rule, numbers
        As for :func:`compare_signatures`.
    gamma : float
        Initialization rate.
    d : int
        Width, 32, 64, 128 or 256.
    seeds : int
        1 to 5; seeds 0, 1, … are trained side by side.
    optimizer : {"sgd", "adamw"}
    lr : float
    steps : int

    Returns
    -------
    Explorer
        Curves of alignment with order 0 (where the signatures differ), mean cosine similarity and
        accuracy, with a rule at the first stair that :func:`~staircase_lib.stairs.first_stair`
        predicts for gradient descent; and each order's share in the gradient of the embeddings.
    """

    def compute(
        rule: str, numbers: int, gamma: float, d: int, seeds: int,
        optimizer: Literal["sgd", "adamw"], lr: float, steps: int,
    ) -> Iterator[Slice]:  # fmt: skip
        task = _task(rule, numbers)
        _between("steps", steps, 10, 5000)
        _between("learning rate", lr, 1e-6, 100)
        merged = merge_permutations(task)
        work = 6.0 * seeds * (len(merged.labels) + d) * d * task.vocab_size * steps
        if work > _MOST_WORK:
            raise ValueError(
                f"this would take about {work / _MOST_WORK:.1f} times as long as an explorer may; "
                f"lower numbers, width, seeds or steps."
            )
        config = training.TrainConfig(steps, lr, optimizer)
        yield from _watched(task, merged, gamma, d, seeds, config)

    return Explorer(
        compute,
        {
            "rule": _rule(rule), "numbers": _numbers(numbers), "gamma": _gamma(gamma),
            "d": _choice("width d", (32, 64, 128, 256), d), "seeds": _seeds(seeds),
            "optimizer": _choice(
                "optimizer", [("gradient descent", "sgd"), ("AdamW", "adamw")], optimizer
            ),
            "lr": (ipywidgets.FloatText, {"value": lr, "description": "learning rate"}),
            "steps": (ipywidgets.IntText, {"value": steps, "description": "steps"}),
        },
    )  # fmt: skip


def _watched(
    task: Task, merged: Task, gamma: float, d: int, seeds: int, config: training.TrainConfig,
) -> Iterator[Slice]:  # fmt: skip
    """Train, and measure at some forty moments, evenly spread in the logarithm of time."""
    model = models.EmbeddingFFN(task.vocab_size, d, runs=seeds)
    models.initialize_(model, gamma, models.seeded(range(seeds)))
    double = models.EmbeddingFFN(task.vocab_size, d, dtype=torch.float64, runs=seeds)
    zeroth = signatures.label_signature(task, 0)
    steps = config.steps
    moments = {0, steps, *np.geomspace(1, steps, 40).round().astype(int).tolist()}
    predicted = None
    if config.optimizer == "sgd":
        predicted = _predicted_step(task, d, gamma, config.lr)
    curves: list[dict[str, Any]] = []
    shares: list[dict[str, Any]] = []
    for step, measured in training.each_step(model, merged, config, moments):
        if measured is None:
            if step % 10 == 0:
                yield step / steps, partial(_training_view, curves, shares, predicted)
            continue
        embeddings = model.W_E.detach().numpy()[:, task.anchors]
        series = {
            "alignment r₀": alignment.alignment(embeddings, zeroth),
            "mean cosine": alignment.mean_cosine(embeddings),
            "accuracy": measured.accuracy,
        }
        curves += [
            {"step": step, "seed": seed, "series": name, "value": float(value)}
            for name, values in series.items()
            for seed, value in enumerate(values)
            if np.isfinite(value)
        ]
        double.load_state_dict(model.state_dict())
        parts = gradients.order_shares(
            gradients.gradient_by_order(double, merged), task.anchors, centred=False
        )
        shares += [
            {"step": step, "seed": seed, "order": order, "share": float(value)}
            for order, values in enumerate(parts)
            for seed, value in enumerate(values)
        ]
        yield step / steps, partial(_training_view, curves, shares, predicted)


def _predicted_step(task: Task, d: int, gamma: float, lr: float) -> float | None:
    """Step of gradient descent at which the first stair is due; None if order 0 drives nothing."""
    try:
        return stairs.first_stair(task).time(d, gamma, _SLOPE) / lr
    except ValueError:
        return None


def _training_view(
    curves: list[dict[str, Any]],
    shares: list[dict[str, Any]],
    predicted: float | None,
) -> View:
    table = pd.DataFrame(curves)
    last = curves[-1]["step"]
    aligned = any(row["series"].startswith("alignment") for row in curves)
    chart = figures.metric_curves(
        table, series="series", y_title=f"{'alignment, ' * aligned}mean cosine, accuracy",
        domain=(min(-0.1, *(row["value"] for row in curves)), 1.05), time_title="step",
    )  # fmt: skip
    due = ""
    if predicted is not None:
        due = f" The first stair is predicted at step {predicted:,.0f}."
        if predicted < last:
            chart.layer.append(
                alt.Chart(alt.Data(values=[{}]))
                .mark_rule(style="threshold")
                .encode(x=alt.XDatum(predicted, type="quantitative"), tooltip=alt.value(None))
            )
    end = table[table["step"] == last].groupby("series")["value"].median()
    says = ", ".join(f"{name} {value:.2f}" for name, value in end.items())
    return View(
        [chart, figures.order_shares(pd.DataFrame(shares), time_title="step")],
        f"At step {last:,}, medians of the seeds: {says}.{due}",
    )


# --- Orders of the gradient at the start ---------------------------------------------------------


_ACTIVATIONS: dict[str, models.Activation] = {
    "GELU": "gelu",
    "tanh": "tanh",
    "ReLU": "relu",
    "z + z² + z³": (1.0, 1.0, 1.0),
}


def orders_at_start(
    rule: str = "(a + b + c) % 6",
    numbers: int = 6,
    *,
    activation: str = "GELU",
    d: int = 128,
    seeds: int = 3,
) -> Explorer:
    """How large the orders of the gradient are at the start, against the initialization rate.

    Parameters
    ----------
    rule, numbers
        As for :func:`compare_signatures`.
    activation : {"GELU", "tanh", "ReLU", "z + z² + z³"}
    d : int
        Width, 32, 64, 128 or 256.
    seeds : int

    Returns
    -------
    Explorer
        Norm of each order over that of order 0, as a power of ten.
    """
    rates = np.linspace(0.4, 1.6, 9).round(2)

    def compute(rule: str, numbers: int, activation: str, d: int, seeds: int) -> Iterator[Slice]:
        task = merge_permutations(_task(rule, numbers))
        _between("numbers", numbers, 2, 12)
        sigma = _ACTIVATIONS[activation]
        unit = models.EmbeddingFFN(
            task.vocab_size, d, activation=sigma, dtype=torch.float64, runs=seeds
        )
        models.initialize_(unit, 0.0, models.seeded(range(seeds)))  # standard deviation one
        model = models.EmbeddingFFN(
            task.vocab_size, d, activation=sigma, dtype=torch.float64, runs=seeds
        )
        rows: list[dict[str, Any]] = []
        for done, rate in enumerate(rates, 1):
            with torch.no_grad():
                for target, source in zip(model.parameters(), unit.parameters(), strict=True):
                    target.copy_(source).mul_(d**-rate)
            size = torch.linalg.matrix_norm(gradients.gradient_by_order(model, task)).numpy()
            if not size[0].all():
                raise ValueError(
                    "rule: order 0 pushes nothing, because every label is equally likely after "
                    "every number and fills the vocabulary; choose another rule."
                )
            with np.errstate(divide="ignore"):
                powers = np.log10(size[1:] / size[0])
            rows += [
                {"gamma": rate, "seed": seed, "value": float(value), "series": f"order {m}"}
                for m, values in enumerate(powers, 1)
                for seed, value in enumerate(values)
            ]
            yield done / len(rates), partial(_orders_view, rows)

    return Explorer(
        compute,
        {
            "rule": _rule(rule), "numbers": _numbers(numbers),
            "activation": _choice("activation σ", list(_ACTIVATIONS), activation),
            "d": _choice("width d", (32, 64, 128, 256), d), "seeds": _seeds(seeds),
        },
    )  # fmt: skip


def _orders_view(rows: list[dict[str, Any]]) -> View:
    seen = pd.DataFrame([row for row in rows if row["value"] > _ROUNDING])
    chart = figures.onset_chart(
        seen, x="gamma", y="value", series="series", log_y=False, order_colors=True,
        x_title="initialization rate γ", y_title="size over that of order 0, power of ten",
    )  # fmt: skip
    rate = rows[-1]["gamma"]
    says = []
    for name in sorted({row["series"] for row in rows}):
        power = np.median([r["value"] for r in rows if (r["series"], r["gamma"]) == (name, rate)])
        says.append(
            f"{name}, {10**power:.0e}" if power > _ROUNDING else f"{name}, lost in the rounding"
        )
    return View([chart], f"At γ = {rate:g} the sizes over that of order 0 are: {'; '.join(says)}.")


# --- Probes --------------------------------------------------------------------------------------


def compare_probes(
    runs: Mapping[str, tuple[Sequence[int], ArrayLike]],
    by_order: Sequence[ArrayLike],
    labels: Sequence[Any],
    *,
    folds: int = 5,
) -> Explorer:
    """Read a signature out of embeddings with a probe, at a moment and from a model of choice.

    Parameters
    ----------
    runs : mapping from name to (steps, embeddings)
        Steps (S,), embeddings (S, R, n, d) of the ``n`` tokens.
    by_order : sequence of arrays
        Signatures of the tokens of order 0, 1, …, shapes (n, F), (n, F, P), ….
    labels : sequence
        Names of the tokens.
    folds : int
        With which the explorer starts.

    Returns
    -------
    Explorer
        Similarity of the embeddings beside that which the signature predicts for held-out tokens.

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    held = {name: (np.asarray(steps), np.asarray(values)) for name, (steps, values) in runs.items()}
    given = [np.asarray(signature) for signature in by_order]
    for name, (steps, values) in held.items():
        expected = (len(steps), "R", len(labels), "d")
        if values.ndim != 4 or (values.shape[0], values.shape[2]) != (len(steps), len(labels)):
            raise ValueError(f"{name}: expected embeddings {expected}, got {values.shape}.")
    first = next(iter(held))
    seeds = min(values.shape[1] for _, values in held.values())

    def compute(
        run: str, time: float, seed: int, order: int, rank: int, folds: int
    ) -> Iterator[Slice]:
        _between("folds", folds, 2, len(labels) // 2)
        steps, values = held[run]
        index = int(np.abs(steps - time / 100 * steps[-1]).argmin())
        similar = alignment.cosine_similarity(values[index, seed])
        probe = alignment.fit_probe(given[order], similar, folds=folds, rank=rank)

        def view() -> View:
            panels = {"embeddings": similar, "predicted, held out": np.clip(probe.predicted, -1, 1)}
            seen, held_out = (
                f"{r:.2f}" if np.isfinite(r) else "not defined"
                for r in (probe.fitted_correlation, probe.correlation)
            )
            return View(
                [figures.similarity_heatmap([0], panels, labels)],
                f"{run}, step {steps[index]:,}: held-out correlation {held_out}, "
                f"in sample {seen}; mean squared error {probe.mse:.2g}, of the "
                f"constant guess {probe.baseline_mse:.2g}.",
            )

        yield 1.0, view

    slider = ipywidgets.FloatSlider
    whole = ipywidgets.IntSlider
    return Explorer(
        compute,
        {
            "run": _choice("model", list(held), first),
            "time": (slider, {"value": 100.0, "min": 0.0, "max": 100.0, "step": 1.0,
                              "description": "time, % of the run", "readout_format": ".0f"}),
            "seed": _choice("seed, by position", range(seeds), 0),
            "order": _choice("order", range(len(given)), len(given) - 1),
            "rank": (whole, {"value": 1, "min": 1, "max": 3, "description": "probe vectors"}),
            "folds": (ipywidgets.IntText, {"value": folds, "description": "folds"}),
        },
    )  # fmt: skip
