"""How long a run of chapters will take, told from earlier runs before it starts.

What is known of a chapter is how long it took: here the last time, or on the machine of the
recorded benchmarks. Its parameters for the size of an experiment scale that: twice the seeds or the
steps are at most twice the time. Widths do so by powers that appendix A of the book lists; they are
named, not counted.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Estimate", "Known", "duration", "makespan", "recorded", "scaled"]

BENCHMARKS = Path("book") / "results" / "benchmarks.json"
_MOST = 10**100  # of anything counted; no float holds what is far beyond
_LINEAR = ("seeds", "epochs", "steps", "limit", "draws", "random_tasks")


@dataclass(frozen=True)
class Known:
    """An earlier run of a chapter.

    Attributes
    ----------
    seconds : float
    memory_mb : int
        Peak memory of its kernel.
    source : str
        Where and when.
    """

    seconds: float
    memory_mb: int
    source: str


@dataclass(frozen=True)
class Estimate:
    """Time of a chapter with other parameters.

    Attributes
    ----------
    low, high : float
        Seconds. One experiment's seeds or steps may be all of a chapter's time or none of it.
    factors : dict
        For each counted parameter by how much it multiplies the work that it governs.
    uncounted : tuple of str
        Parameters that differ and whose effect is not known.
    """

    low: float
    high: float
    factors: dict[str, float]
    uncounted: tuple[str, ...]


def recorded(root: Path) -> dict[str, Known]:
    """Chapters of the recorded benchmarks, at profile ``cpu``; empty if there are none."""
    try:
        table = json.loads((root / BENCHMARKS).read_text(encoding="utf-8"))
        machine = table["machine"]
        where = f"recorded on {machine['cores']} cores of {machine['cpu']}"
        known = {
            row["what"]: Known(
                float(row["median"]), int(row["peak_memory_mb"]), f"{where}, {row['date']}"
            )
            for row in table["rows"]
            if row["group"] == "chapters"
        }
    # absent, damaged or of another form
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}
    return known if all(0 <= row.seconds < math.inf for row in known.values()) else {}


def scaled(known: Known, usual: Mapping[str, Any], wanted: Mapping[str, Any]) -> Estimate:
    """The time of a chapter whose parameters differ from those of a known run.

    Parameters
    ----------
    usual, wanted : mapping
        Parameters of the known run and of the one to come; of the same names.
    """
    factors, uncounted = {}, []
    for name, value in wanted.items():
        before = usual[name]
        if value == before:
            continue
        factor = _factor(name, before, value)
        if factor is None:
            uncounted.append(name)
        else:
            factors[name] = factor
    low = high = known.seconds
    for factor in factors.values():
        low, high = low * min(1.0, factor), high * max(1.0, factor)
    return Estimate(low, high, factors, tuple(uncounted))


def _factor(name: str, before: Any, value: Any) -> float | None:
    """By how much a parameter multiplies the work that it governs; None if that is not known."""
    if isinstance(value, list) and isinstance(before, list):  # values that are gone through
        return len(value) / len(before) if before else None
    counted = any(name == word or name.endswith(f"_{word}") for word in _LINEAR)
    if counted and isinstance(before, int) and isinstance(value, int) and min(before, value) > 0:
        return float(value) / before if value < _MOST else None
    return None


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Time until all are done, each started in turn when one of the workers is free."""
    ends = [0.0] * max(1, min(workers, len(seconds)))
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def duration(seconds: float) -> str:
    """A time as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 1e9:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / (365.25 * 24 * 3600):.3g} years"
