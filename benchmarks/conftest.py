"""What benchmarks share: a measurement beside a reference, and the table that is recorded."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("numpy", "scipy", "torch", "pyarrow", "duckdb", "tokengrams", "litgpt")
Row = dict[str, Any]
ROWS = pytest.StashKey[list[Row]]()
LAWS = pytest.StashKey[list[Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write the table of this run to a JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []
    config.stash[LAWS] = []


def row(
    group: str,
    what: str,
    seconds: list[float],
    *,
    beside: list[float] | None = None,
    work: float | None = None,
    unit: str = "seconds",
    note: str = "",
    **columns: Any,
) -> Row:
    """A row of the table.

    Parameters
    ----------
    group, what : str
    seconds : list of float
        One a round.
    beside : list of float, optional
        Seconds of what it is compared with, in the same rounds: there is a ratio for each.
    work : float, optional
        How many of the `unit`, "… a second", a round does.
    **columns
        Such as ``threads``, ``n``, ``vocab_size``, ``peak_memory_mb``.
    """
    values = seconds if work is None else [work / s for s in seconds]
    ratios = [] if beside is None else [a / b for a, b in zip(seconds, beside, strict=True)]
    median, low, high = _spread(values)
    ratio, ratio_low, ratio_high = _spread(ratios)
    return {
        "group": group,
        "what": what,
        "unit": unit,
        "median": median,
        "low": low,
        "high": high,
        "ratio": ratio,
        "ratio_low": ratio_low,
        "ratio_high": ratio_high,
        "rounds": len(seconds),
        **{"threads": 1, "n": None, "vocab_size": None, "peak_memory_mb": None, **columns},
        "note": note,
    }


def _spread(values: list[float]) -> list[float | None]:
    """Median, least and greatest."""
    if not values:
        return [None] * 3
    return [float(f"{v:.4g}") for v in (statistics.median(values), min(values), max(values))]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> list[Row]:
    """The rows of this run."""
    return request.config.stash[ROWS]


@pytest.fixture
def grown(request: pytest.FixtureRequest) -> list[Row]:
    """Laws of growth of this run."""
    return request.config.stash[LAWS]


@pytest.fixture
def beside(benchmark: Any, recorded: list[Row]) -> Callable[..., None]:
    """Measure `other` beside `ours`: in each round one after the other, after a round to warm up.

    What else the machine does slows both, so their ratio is steadier than their times. (The rounds
    of pytest-benchmark are of one function: `ours` runs as their set-up.) Adds a row, whose ratio
    is above one where `other` is slower, and before it one for `ours`, if its group has none yet.
    """

    def measure(
        group: str,
        ours: Callable[[], Any],
        what: str,
        other: Callable[[], Any],
        rounds: int = 5,
        note: str = "",
        threads: int = 1,
        ours_threads: int = 1,
        **columns: Any,
    ) -> None:
        seconds: list[float] = []

        def first() -> None:
            start = time.perf_counter()
            ours()
            seconds.append(time.perf_counter() - start)

        benchmark.group = group
        benchmark.pedantic(other, setup=first, rounds=rounds, warmup_rounds=1)
        seconds = seconds[-rounds:]
        measured = list(benchmark.stats.stats.data)
        if not any(entry["group"] == group for entry in recorded):
            recorded.append(
                row(group, "ours", seconds, beside=seconds, threads=ours_threads, **columns)
            )
        recorded.append(
            row(group, what, measured, beside=seconds, note=note, threads=threads, **columns)
        )

    return measure


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for entry in config.stash[ROWS]:
        ratio = "×{ratio} ({ratio_low}–{ratio_high})" if entry["ratio"] is not None else ""
        line = "{group}: {what}: {median} ({low}–{high}) {unit} " + ratio
        terminalreporter.write_line(line.format(**entry))
    for entry in config.stash[LAWS]:
        line = "{what}, {quantity}, {varied}: {exponent} ({low}–{high}), should be {expected}"
        terminalreporter.write_line(line.format(**entry))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record the table of a run that has gone through.

    Groups that this run did not measure stay as they were recorded, with their commit and date.
    """
    path = session.config.getoption("--record")
    if path is None or exitstatus != 0:
        return
    from cpuinfo import get_cpu_info

    from staircase_lib.book import commit

    made = {"commit": commit(ROOT), "date": datetime.now(UTC).date().isoformat()}
    stashes = {"rows": ROWS, "laws": LAWS}
    measured = {
        key: [{**entry, **made} for entry in session.config.stash[stash]]
        for key, stash in stashes.items()
    }
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    table = {
        "machine": {
            "cpu": get_cpu_info().get("brand_raw", "unknown"),
            "cores": os.cpu_count(),
            "memory_gb": round(memory),
        },
        "versions": {name: version(name) for name in PACKAGES if find_spec(name)},
        **merged(before, measured),
    }
    path.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(before: dict[str, Any], measured: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Measured rows and laws, and of the recorded ones those whose group was not measured."""
    kept = {}
    for key, group in (("rows", "group"), ("laws", "what")):
        anew = {entry[group] for entry in measured[key]}
        old = [entry for entry in before.get(key, ()) if entry[group] not in anew]
        kept[key] = old + measured[key]
    return kept
