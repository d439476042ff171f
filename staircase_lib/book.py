"""The book: every chapter executed if it has to be, claims gathered in a ledger, pages built by
Jupyter Book.

Everything of a build lies under ``_build/<profile>/``:

======================  =================================================================
``executed/*.ipynb``    executed chapters; each carries its own record (see `ChapterRun`)
``failed/*.ipynb``      chapters that stopped, with the traceback
``ledger.json``         the claims that the executed chapters measured
``source/``             what Jupyter Book renders
======================  =================================================================

The site is ``_build/html/``, that of the profile built last.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import claims, estimates, freshness
from .chapters import (
    BookError,
    Chapter,
    Exit,
    read_chapters,
    resolve_parameters,
    write_atomically,
)
from .notebooks import Job, Outcome, execute_all, put_outputs_back
from .pages import render

if TYPE_CHECKING:
    from nbformat import NotebookNode

    LastRun = tuple["ChapterRun", NotebookNode]

RECORDED_LEDGER = Path("book/results/ledger.json")


def build_folder(root: Path, profile: str) -> Path:
    """Folder of a profile's build products."""
    return root / "_build" / profile


def ledger_path(root: Path, profile: str) -> Path:
    """The ledger of a profile's last build."""
    return build_folder(root, profile) / "ledger.json"


def commit(root: Path) -> str:
    """Short hash of HEAD, ``-dirty`` if tracked files differ from it; ``unknown`` outside git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short", "HEAD")
        return (
            head + ("-dirty" if head and git("status", "--porcelain", "-uno") else "") or "unknown"
        )
    except FileNotFoundError:
        return "unknown"


# --- Runs and their records ----------------------------------------------------------------------


@dataclass(frozen=True)
class ChapterRun:
    """The record of one execution, kept in the metadata of the executed notebook."""

    chapter: str
    profile: str
    parameters: dict[str, Any]
    parts: dict[str, Any]
    seconds: float
    memory_mb: int
    commit: str
    date: str
    versions: dict[str, str]
    device: str

    @property
    def key(self) -> str:
        """Execution key of the run."""
        return freshness.execution_key(self.parts)


def chapter_parts(
    root: Path, chapter: Chapter, parameters: Mapping[str, Any], ledger: Path | None = None
) -> dict[str, Any]:
    """What the outputs of a chapter depend on, see `freshness`; `ledger` is the one it reads."""
    cells = [
        cell.source for cell in chapter.code if "parameters" not in cell.metadata.get("tags", ())
    ]
    folder = chapter.path.parent
    files = [
        path
        for pattern in chapter.reads
        for path in (sorted(folder.glob(pattern)) if "*" in pattern else [folder / pattern])
    ]
    reads = {os.path.relpath(path, folder): freshness.file_digest(path) for path in files}
    if ledger is not None and reads_ledger(chapter):
        reads = {
            name: value
            for name, value in reads.items()
            if name != chapter.parameters["ledger_path"]
        }
        reads["ledger"] = freshness.file_digest(ledger)
    return {
        "cells": freshness.cells_digest(cells),
        "parameters": {name: value for name, value in parameters.items() if name != "ledger_path"},
        "modules": freshness.module_digests(root, cells),
        "claims": {
            name: freshness.digest(repr(claims.CLAIMS.get(name)))
            for name in freshness.measured_claims(cells)
        },
        "requirements": freshness.file_digest(root / "requirements.txt"),
        "reads": reads,
    }


def reads_ledger(chapter: Chapter) -> bool:
    """Whether the chapter shows the ledger and thus has to run after all others."""
    return "ledger_path" in chapter.parameters


def executed_path(root: Path, profile: str, chapter: Chapter) -> Path:
    """Where the executed chapter lies."""
    return build_folder(root, profile) / "executed" / f"{chapter.name}.ipynb"


def last_run(root: Path, profile: str, chapter: Chapter) -> LastRun | None:
    """The last execution of a chapter at a profile; None if it is absent, damaged or incomplete."""
    import nbformat

    try:
        notebook = nbformat.read(executed_path(root, profile, chapter), as_version=4)
        run = ChapterRun(**notebook.metadata["staircase_run"])
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        sources = [
            cell.source
            for cell in cells
            if not {"parameters", "injected-parameters"} & set(cell.metadata.get("tags", ()))
        ]
        complete = run.parts["cells"] == freshness.cells_digest(sources)
        f"{run.seconds:.0f} {run.versions.items()} {run.device}"  # what status prints is there
    except Exception:  # whatever is wrong with it, executing the chapter mends it
        return None
    return (run, notebook) if complete else None


def known_run(root: Path, profile: str, chapter: Chapter) -> estimates.Known | None:
    """How long a chapter took: here the last time, else, at ``cpu``, as benchmarks recorded it."""
    found = last_run(root, profile, chapter)
    if found is not None:
        run = found[0]
        source = f"the last run here, {run.date[:10]}, {run.device}"
        return estimates.Known(run.seconds, run.memory_mb, source)
    return estimates.recorded(root).get(chapter.name) if profile == "cpu" else None


def staleness(root: Path, profile: str, chapter: Chapter) -> list[str]:
    """Why a chapter has to be executed, in words; empty if it is fresh."""
    found = last_run(root, profile, chapter)
    return _changes_since(found[0] if found else None, root, profile, chapter)


def _changes_since(run: ChapterRun | None, root: Path, profile: str, chapter: Chapter) -> list[str]:
    if run is None:
        return ["never executed"]
    parameters = resolve_parameters(chapter, profile)
    return freshness.changes(
        run.parts, chapter_parts(root, chapter, parameters, ledger_path(root, profile))
    )


def make_job(
    root: Path,
    profile: str,
    chapter: Chapter,
    output: Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    **options: Any,
) -> Job:
    """A checked job for `execute_all`, with only the parameters that differ from the defaults."""
    values = resolve_parameters(chapter, profile, overrides)
    changed = {name: value for name, value in values.items() if value != chapter.parameters[name]}
    return Job(chapter, changed, root, output, **options)


def keep(outcome: Outcome, profile: str, parts: dict[str, Any], target: Path) -> None:
    """Write the executed notebook of a successful job, with its record, to `target`."""
    import nbformat

    job = outcome.job
    run = ChapterRun(
        chapter=job.chapter.name,
        profile=profile,
        parameters={**job.chapter.parameters, **job.parameters},
        parts=parts,
        seconds=round(outcome.seconds, 1),
        memory_mb=outcome.memory_mb,
        commit=commit(job.root),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"python": platform.python_version(), "torch": _version("torch")},
        device=device(),
    )
    notebook = nbformat.read(outcome.notebook, as_version=4)
    notebook.metadata["staircase_run"] = asdict(run)
    write_atomically(target, nbformat.writes(notebook))
    outcome.notebook.unlink(missing_ok=True)


def device() -> str:
    """The processors of this machine: graphics cards by name, or the number of cores.

    Cards are those that the system's driver lists, so that torch need not be imported.
    """
    cards = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8").splitlines()
        cards += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    if cards and os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip():
        return ", ".join(cards)
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def execute_chapters(
    root: Path, profile: str, chapters: Sequence[Chapter], workers: int, timeout: int
) -> dict[str, LastRun | None]:
    """Execute every stale chapter, those that read the ledger last, and write the ledger in
    between; returns by name the last run of each, as `last_run` reads it.

    Raises
    ------
    BookError
        With a line for each chapter that failed. What succeeded is kept.
    """
    executable = [chapter for chapter in chapters if chapter.code]
    first = [chapter for chapter in executable if not reads_ledger(chapter)]
    last = [chapter for chapter in executable if reads_ledger(chapter)]
    for chapter in executable:  # refuse bad parameters before anything runs
        resolve_parameters(chapter, profile)
    total = len(executable)
    runs = _execute_stale(root, profile, first, workers, timeout, done=0, total=total)
    write_ledger(root, profile, runs)
    done = len(first)
    return runs | _execute_stale(root, profile, last, workers, timeout, done=done, total=total)


def _execute_stale(
    root: Path,
    profile: str,
    chapters: Sequence[Chapter],
    workers: int,
    timeout: int,
    *,
    done: int,
    total: int,
) -> dict[str, LastRun | None]:
    folder = build_folder(root, profile)
    ledger = ledger_path(root, profile)
    jobs, parts = [], {}
    runs: dict[str, LastRun | None] = {}
    for chapter in chapters:
        found = runs[chapter.name] = last_run(root, profile, chapter)
        if not _changes_since(found[0] if found else None, root, profile, chapter):
            done += 1
            print(f"[{done}/{total}] {chapter.name}  fresh", flush=True)
            continue
        overrides = {"ledger_path": os.path.relpath(ledger, chapter.path.parent)}
        job = make_job(
            root,
            profile,
            chapter,
            folder / "failed" / f"{chapter.name}.ipynb",
            overrides=overrides if reads_ledger(chapter) else None,
            timeout=timeout,
        )
        # Taken now: a file that changes while the chapter runs makes it stale.
        parts[chapter.name] = chapter_parts(
            root, chapter, resolve_parameters(chapter, profile), ledger
        )
        jobs.append(job)
    failures, started, left = [], done, len(jobs)
    for event in execute_all(_longest_first(root, profile, jobs), workers):
        if isinstance(event, Job):
            started += 1
            print(f"[{started}/{total}] {event.chapter.name}  running…", flush=True)
            continue
        left -= 1
        chapter = event.job.chapter
        if event.failure is None:
            keep(event, profile, parts[chapter.name], executed_path(root, profile, chapter))
            runs[chapter.name] = last_run(root, profile, chapter)
            print(f"      {chapter.name}  done in {event.seconds:.0f} s, {left} left", flush=True)
        else:
            failures.append(event)
            print(
                f"      {chapter.name}  FAILED after {event.seconds:.0f} s, {left} left", flush=True
            )
    if failures:
        codes = {event.failure.code for event in failures if event.failure}
        code = codes.pop() if len(codes) == 1 else Exit.FAILED
        raise BookError("\n".join(event.report for event in failures), code)
    return runs


def _longest_first(root: Path, profile: str, jobs: Sequence[Job]) -> list[Job]:
    """Jobs in the order that leaves the fewest workers idle at the end; the unknown come last."""

    def seconds(job: Job) -> float:
        known = known_run(root, profile, job.chapter)
        return known.seconds if known else 0.0

    return sorted(jobs, key=seconds, reverse=True)


# --- Claims --------------------------------------------------------------------------------------


def claim_rows(run: ChapterRun, notebook: NotebookNode) -> list[dict[str, Any]]:
    """Ledger rows that a chapter's last execution showed, with where and how they were measured."""
    rows = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            row = output.get("data", {}).get(claims.CLAIM_MIME)
            if row is not None:
                rows.append(
                    {
                        **row,
                        "profile": run.profile,
                        "commit": run.commit,
                        "evidence": f"{run.chapter}.html#{row['evidence']}",
                        "chapter": run.chapter,
                        "key": freshness.ledger_key(run.parts),
                    }
                )
    return rows


def write_ledger(root: Path, profile: str, runs: Mapping[str, LastRun | None]) -> None:
    """Merge the claims of all chapters into the profile's ledger, sorted by id."""
    rows: dict[str, dict[str, Any]] = {}
    for found in runs.values():
        for row in claim_rows(*found) if found else ():
            if row["id"] in rows:
                raise BookError(
                    f"claim {row['id']} is measured in {rows[row['id']]['chapter']} and in "
                    f"{row['chapter']}; expected one place, remove the other"
                )
            rows[row["id"]] = row
    ordered = sorted(rows.values(), key=lambda row: _claim_order(row["id"]))
    write_atomically(
        ledger_path(root, profile), json.dumps(ordered, indent=1, ensure_ascii=False) + "\n"
    )


def _claim_order(claim: str) -> list[tuple[int, str]]:
    """Sort key that puts 4.10 behind 4.9, and letters behind numbers."""
    return [(int(part), "") if part.isdigit() else (10**6, part) for part in claim.split(".")]


def read_ledger(root: Path, profile: str | None) -> list[dict[str, Any]]:
    """The recorded ledger, or that of the last build at `profile`."""
    path = ledger_path(root, profile) if profile else root / RECORDED_LEDGER
    try:
        return claims.read_ledger(path).rows
    except (FileNotFoundError, ValueError) as error:
        raise BookError(str(error)) from None


def record(root: Path) -> int:
    """Copy the ledger of a complete, fresh ``cpu`` build to ``book/results/``; returns its size."""
    stale = [
        f"{chapter.name}: {'; '.join(reasons)}"
        for chapter in read_chapters(root)
        if chapter.code and (reasons := staleness(root, "cpu", chapter))
    ]
    if stale:
        raise BookError(
            "Not recorded, chapters are stale; run `make book` first.\n" + "\n".join(stale)
        )
    rows = read_ledger(root, "cpu")
    write_atomically(root / RECORDED_LEDGER, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return len(rows)


# --- The site -------------------------------------------------------------------------------------


@contextmanager
def build_lock(root: Path) -> Iterator[None]:
    """Keep a second build of the same clone out, where the system has file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = root / "_build" / ".lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BookError(
                f"another build is running (pid {file.read()}); wait for it or stop it",
                Exit.IN_USE,
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def build_book(root: Path, profile: str, workers: int, timeout: int) -> Path:
    """Execute what is stale and render the site; returns its first page.

    Raises
    ------
    BookError
        If a chapter fails, a page is broken or another build is running.
    """
    chapters = read_chapters(root)
    with build_lock(root):
        runs = execute_chapters(root, profile, chapters, workers, timeout)
        executed, rows = {}, []
        for chapter in chapters:
            if not chapter.code:
                continue
            found = runs[chapter.name]
            rows.append(_status_row(found[0] if found else None, root, profile, chapter))
            if found is not None:
                executed[chapter.path] = put_outputs_back(chapter, found[1])
        return render(root, profile, executed, rows)


# --- Status --------------------------------------------------------------------------------------


def status_rows(root: Path, profile: str) -> list[dict[str, Any]]:
    """For each executable chapter: fresh or why not, and how its last execution went."""
    rows = []
    for chapter in read_chapters(root):
        if chapter.code:
            found = last_run(root, profile, chapter)
            rows.append(_status_row(found[0] if found else None, root, profile, chapter))
    return rows


def _status_row(
    run: ChapterRun | None, root: Path, profile: str, chapter: Chapter
) -> dict[str, Any]:
    row = {"chapter": chapter.name, "stale": _changes_since(run, root, profile, chapter)}
    told = ("profile", "seconds", "memory_mb", "commit", "date", "versions", "device")
    return row | ({name: getattr(run, name) for name in told} if run else {})
