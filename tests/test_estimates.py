"""Estimates before a run: from what is on record, scaled by what governs the work."""

import json
import math

import pytest
from project import chapter, code, command, make_project

from staircase_lib import estimates, measurement, prediction, tasks

KNOWN = estimates.Known(100.0, 500, "somewhere")
ROW = (
    '{"machine": {"cores": 2, "cpu": "A CPU"}, "date": "2026-01-01", "rows": '
    '[{"group": "chapters", "what": "04_feed_forward", "median": %s, "peak_memory_mb": %s}]}'
)
USUAL = {"seeds": 10, "first_seed": 100, "epochs": 400, "flow_steps": 50, "gammas": [1, 2], "d": 64}


def test_what_governs_the_work_scales_it_within_bounds():
    same = estimates.scaled(KNOWN, USUAL, USUAL)
    assert (same.low, same.high, same.factors, same.uncounted) == (100.0, 100.0, {}, ())
    more = estimates.scaled(KNOWN, USUAL, {**USUAL, "seeds": 20, "gammas": [1, 2, 3], "d": 128})
    # Widths grow by laws of their own, and are told, not guessed.
    assert more.factors == {"seeds": 2.0, "gammas": 1.5} and more.uncounted == ("d",)
    assert (more.low, more.high) == (100.0, 300.0)
    mixed = estimates.scaled(KNOWN, USUAL, {**USUAL, "epochs": 100, "flow_steps": 100})
    assert (mixed.low, mixed.high) == (25.0, 200.0)
    # What no computer counts to is not counted here either.
    assert estimates.scaled(KNOWN, USUAL, {**USUAL, "seeds": 10**400}).uncounted == ("seeds",)
    # The number of a seed is no amount of work.
    assert estimates.scaled(KNOWN, USUAL, {**USUAL, "first_seed": 200}).factors == {}


def test_the_span_is_that_of_workers_who_take_what_is_next():
    assert estimates.makespan([], 2) == 0
    assert estimates.makespan([5, 4, 3, 3], 2) == 8
    assert estimates.makespan([3, 3, 4, 5], 2) == 8 and estimates.makespan([1, 1, 8], 2) == 9
    assert estimates.makespan([8, 1, 1], 2) == 8  # the longest first leaves nobody idle
    assert estimates.makespan([8, 1], 10**18) == 8


@pytest.mark.parametrize(
    "seconds, said",
    [(3.2, "3 s"), (89, "89 s"), (150, "2 min"), (1e4, "2.8 h"), (1e12, "3.17e+04 years")],
)
def test_durations_in_words(seconds, said):
    assert estimates.duration(seconds) == said


@pytest.fixture
def project(tmp_path):
    cells = code("seeds = 10\nd = 4", "parameters"), code("open('ran', 'w')")
    extra = "staircase:\n  profiles:\n    smoke: {seeds: 2}\n"
    root = make_project(tmp_path, {"04_feed_forward": chapter("F", *cells, extra=extra)})
    results = root / "book/results"
    results.mkdir()
    row = {"group": "chapters", "what": "04_feed_forward", "median": 120.0, "peak_memory_mb": 700}
    row["date"] = "2026-01-01"
    machine = {"cpu": "A CPU", "cores": 2}
    table = {"machine": machine, "rows": [row, {**row, "group": "start"}]}
    (results / "benchmarks.json").write_text(json.dumps(table))
    return root


def test_a_chapter_is_estimated_and_not_run(project):
    done = command(project, "run", "feed_forward", "--estimate", "-p", "seeds", "40", check=True)
    assert "120 s" not in done.stdout and "2 min to 8 min, 700 MB" in done.stdout
    assert "recorded on 2 cores of A CPU" in done.stdout and "4 times the work" in done.stdout
    told = command(project, "run", "feed_forward", "--estimate", "--profile", "smoke", check=True)
    assert "not known" in told.stdout  # what is recorded is profile cpu
    assert not (project / "book/ran").exists() and not (project / "_build").exists()


def test_a_build_is_estimated_from_its_own_runs_first(project):
    told = command(project, "book", "--estimate", check=True).stdout
    assert "1 chapters" in told and "about 2 min" in told and "recorded" in told
    command(project, "book", "--profile", "smoke")  # executes; no configuration to render with
    fresh = command(project, "book", "--estimate", "--profile", "smoke", check=True).stdout
    assert fresh.startswith("every chapter is fresh")
    (project / "requirements.txt").write_text("numpy==2.4.7\n")
    told = command(project, "book", "--estimate", "--profile", "smoke", check=True).stdout
    assert "the last run here" in told


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        '{"rows": [{"group": "chapters"}]}',
        "[" * 100_000,
        ROW % ("NaN", "1"),
        ROW % ("-5", "1"),
        ROW % ("5", "1e999"),
        None,
    ],
)
def test_without_a_whole_record_nothing_is_known(project, damage):
    file = project / estimates.BENCHMARKS
    file.unlink() if damage is None else file.write_text(damage)
    assert estimates.recorded(project) == {}
    assert "not known: 04_feed_forward" in command(project, "book", "--estimate", check=True).stdout


def test_a_measurement_is_estimated_from_its_parts(monkeypatch):
    """With parts of known length the estimate is their sum: steps and snapshots are multiplied."""
    now = [0.0]
    monkeypatch.setattr(measurement, "perf_counter", lambda: now[0])
    parts = {name: getattr(measurement, name) for name in ("_first_stair", "_train", "_look")}

    def lasting(name, seconds):
        def part(*arguments):
            now[0] += seconds(*arguments)
            return parts[name](*arguments)

        monkeypatch.setattr(measurement, name, part)

    lasting("_first_stair", lambda *_: 50.0)
    lasting("_train", lambda merged, settings, tell: 2.0 * settings.steps)
    lasting("_look", lambda prediction, merged, run, tell: 3.0 * len(run.steps))
    settings = prediction.Settings(seeds=(0,), d=8, steps=480, snapshots=12)
    found = measurement.estimate(tasks.addition(4, 5), settings)
    snapshots = 12 + int(math.log2(480 // 12)) + 1
    assert found == 50 + 480 * 2.0 + snapshots * 3.0
    run = measurement._train(tasks.addition(4, 5), settings, lambda _: None)
    assert len(run.steps) == snapshots + 1  # step 0, which the estimate leaves out
