"""Chapters as notebooks: discovery, typed parameters, headless execution through papermill.

A chapter is a MyST-Markdown notebook that ``_toc.yml`` names. Its numbers stand in one cell tagged
``parameters``, flat and literal (``seeds = 10``); a profile overrides some in the front matter::

    staircase:
      profiles:
        smoke: {seeds: 2, epochs: 50}
      reads: [results/ledger.json]

Everything is checked before a kernel starts. Each chapter runs in a process of its own, with one
BLAS thread, in the folder ``book/``; it counts as executed only if its last cell ran.
"""

from __future__ import annotations

import ast
import copy
import difflib
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The packages of the extra `book` are imported where used: --help and claims do without them.
if TYPE_CHECKING:
    from nbformat import NotebookNode

PROFILES = ("smoke", "cpu", "gpu", "paper")
CELL_TIMEOUT = 3600  # seconds
SINGLE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
}


class BookError(Exception):
    """The book cannot be built or a chapter not run; the message says where and why."""


class ParameterError(BookError):
    """A parameter that the chapter does not have, or a value of another type."""


def write_atomically(path: Path, text: str) -> None:
    """Write a file in one step: whoever reads it sees the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# --- Chapters ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chapter:
    """A page of the book, as read from its source.

    Attributes
    ----------
    name : str
        File name without extension, ``04_feed_forward``.
    path : Path
        The source file.
    notebook : NotebookNode
        Its cells, without outputs.
    parameters : dict
        Names and defaults of the cell tagged ``parameters``.
    profiles : dict
        For each profile the parameters that it overrides.
    reads : tuple of str
        Result files that the code reads, relative to the chapter's folder.
    """

    name: str
    path: Path
    notebook: NotebookNode
    parameters: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    reads: tuple[str, ...]

    @property
    def code(self) -> list[NotebookNode]:
        """The code cells in order, that of the parameters included."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]


def project_root(start: Path | None = None) -> Path:
    """The folder with ``_toc.yml`` at or above `start` (default: the current folder)."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "_toc.yml").is_file():
            return folder
    raise BookError(f"No _toc.yml in {start} or above it: run this command in a clone of the book.")


def toc_pages(root: Path) -> list[str]:
    """Pages that ``_toc.yml`` names, in reading order, without extension and relative to `root`."""
    text = (root / "_toc.yml").read_text(encoding="utf-8")
    pages: list[Any] = []

    def collect(entry: Any) -> None:
        if isinstance(entry, dict):
            pages.extend(entry[key] for key in ("root", "file") if key in entry)
            for key in ("parts", "chapters", "sections", "entries", "subtrees"):
                collect(entry.get(key))
        elif isinstance(entry, list):
            for item in entry:
                collect(item)

    collect(parse_yaml(text, "_toc.yml"))
    if not pages:
        raise BookError("_toc.yml names no page; expected `root: book/introduction` at least")
    for position, page in enumerate(pages):
        if not page or not isinstance(page, str):
            problem = f"`file:` or `root:` expects a page such as book/introduction, came {page!r}"
        elif page.endswith(".md"):
            problem = f"{page}: write it without .md"
        elif page in pages[:position]:
            problem = f"{page} stands there twice; remove one"
        else:
            continue
        entry = rf"[\s-]*(?:file|root):\s*{re.escape(str(page or ''))}\s*"
        lines = [i for i, line in enumerate(text.splitlines(), 1) if re.fullmatch(entry, line)]
        raise BookError(f"_toc.yml{f', line {lines[-1]}' if lines else ''}: {problem}")
    return pages


def parse_yaml(text: str, place: str, first_line: int = 1) -> Any:
    """`text` parsed; a mistake in it is a `BookError` that names `place` and the line."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + first_line}" if mark else ""
        what = getattr(error, "problem", None) or error
        raise BookError(f"{place}{line}: not valid YAML: {what}") from None


def read_chapters(root: Path) -> list[Chapter]:
    """Read every page of the table of contents; a page without a file is an error that names it."""
    paths = [root / f"{page}.md" for page in toc_pages(root)]
    missing = [str(path.relative_to(root)) for path in paths if not path.is_file()]
    if missing:
        raise BookError(f"_toc.yml names files that do not exist: {', '.join(missing)}")
    return [read_chapter(path) for path in paths]


def read_chapter(path: Path) -> Chapter:
    """Read one chapter, with the parameters and profiles that it declares."""
    import jupytext
    import yaml

    name = path.stem
    text = path.read_text(encoding="utf-8")
    front: dict[str, Any] = {}
    header = re.match(r"---\n(.*?\n)---[ \t]*\n", text, re.DOTALL)
    if header and isinstance(found := parse_yaml(header[1], path.name, first_line=2), dict):
        front = found
    declared = _declared(name, front.pop("staircase", None))
    if header and front:  # without `staircase`: jupytext stumbles over keys that are left empty
        text = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n{text[header.end() :]}"
    try:
        notebook = jupytext.reads(text, fmt=".md")
    except Exception as error:  # whatever it is, it is about this text
        raise BookError(f"{path.name}: jupytext cannot read it: {error!r}") from None
    for index, cell in enumerate(notebook.cells):
        cell["id"] = (
            f"cell-{index}"  # jupytext draws them at random; the same text must give the same pages
        )
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    if len(cells) > 1:
        raise BookError(f"{name}: {len(cells)} cells are tagged `parameters`; expected at most one")
    parameters = {}
    if cells:
        parameters = parse_parameters(cells[0].source, name, line_of(cells[0].source, path))
    return Chapter(name, path, notebook, parameters, *declared)


def _declared(name: str, declared: Any) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Profiles and result files of the front matter's `staircase`; what is left empty is none."""
    try:
        declared = dict(declared or {})
        profiles = {
            key: dict(values or {}) for key, values in (declared.get("profiles") or {}).items()
        }
        reads = declared.get("reads") or []
        if not isinstance(reads, list) or not all(isinstance(item, str) for item in reads):
            raise TypeError
    except (AttributeError, TypeError, ValueError):
        raise BookError(
            f"{name}: `staircase` in the front matter expects\n  profiles:\n    smoke: "
            f"{{seeds: 2}}\n  reads: [results/table.json]\ncame {declared!r}"
        ) from None
    unknown = (set(declared) - {"profiles", "reads"}) | (set(profiles) - set(PROFILES))
    if unknown:
        raise BookError(
            f"{name}: `staircase` in the front matter may hold `profiles` ({', '.join(PROFILES)}) "
            f"and `reads`; came {', '.join(sorted(map(str, unknown)))}"
        )
    return profiles, tuple(reads)


def find_chapter(chapters: Sequence[Chapter], name: str) -> Chapter:
    """The chapter called `name`: ``04_feed_forward``, or ``feed_forward`` for short."""
    for chapter in chapters:
        if name in (chapter.name, chapter.name.partition("_")[2]) and chapter.code:
            return chapter
    executable = [chapter.name for chapter in chapters if chapter.code]
    near = difflib.get_close_matches(name, executable, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BookError(f"No chapter {name!r} with code; {hint}There are: {', '.join(executable)}")


# --- Parameters ----------------------------------------------------------------------------------


def parse_parameters(source: str, chapter: str, start: int | None = None) -> dict[str, Any]:
    """Names and defaults of a parameters cell, read without running it.

    `start` is the line of the chapter's file at which the cell starts, for messages.

    Raises
    ------
    BookError
        If a statement is anything but ``name = literal`` or ``name: type = literal``.
    """

    def place(line: int | None) -> str:
        return chapter if start is None or line is None else f"{chapter}, line {start + line - 1}"

    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise BookError(f"{place(error.lineno)}: the parameters cell: {error.msg}") from None
    parameters: dict[str, Any] = {}
    for statement in statements:
        target, value = None, None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        try:
            if not isinstance(target, ast.Name) or value is None or target.id in parameters:
                raise ValueError
            parameters[target.id] = ast.literal_eval(value)
        except (TypeError, ValueError):
            line = source.splitlines()[statement.lineno - 1]
            raise BookError(
                f"{place(statement.lineno)}: the parameters cell may hold only `name = literal`, "
                f"each name once; came `{line.strip()}`. Compute what follows from a parameter in "
                "the next cell."
            ) from None
    return parameters


def resolve_parameters(
    chapter: Chapter, profile: str, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Every parameter's value: the default, the profile's, or the caller's, each checked.

    Raises
    ------
    ParameterError
        For a name that the chapter does not have, or a value of another type than the default's.
    """
    values = dict(chapter.parameters)
    for name, value in {**chapter.profiles.get(profile, {}), **(overrides or {})}.items():
        if name not in values:
            near = difflib.get_close_matches(name, list(values), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ParameterError(
                f"{chapter.name}: no parameter {name!r}.{hint} {_describe(chapter.parameters)}"
            )
        try:
            values[name] = _as_type_of(chapter.parameters[name], value)
        except TypeError:
            hint = ""
            if isinstance(value, str) and re.fullmatch(r"[-+.\d]+e[-+]?\d+", value, re.IGNORECASE):
                hint = "; YAML reads 1e-3 as text, write 1.0e-3"
            raise ParameterError(
                f"{chapter.name}: parameter {name!r} expects {_kind(chapter.parameters[name])}, "
                f"came {value!r} ({_kind(value)}){hint}. {_describe(chapter.parameters)}"
            ) from None
    return values


def parse_value(chapter: Chapter, name: str, text: str) -> Any:
    """A value from the command line: text for text parameters, else a JSON or Python literal."""
    if isinstance(chapter.parameters.get(name), str):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _as_type_of(default: Any, value: Any) -> Any:
    """`value` in the type of `default`; whole numbers pass as float, truth values do not."""
    if default is None:
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        return [_as_type_of(default[0], item) for item in value] if default else list(value)
    if type(value) is not type(default):
        raise TypeError
    return value


def _kind(value: Any) -> str:
    """Type of a value in words, of lists with that of their items: ``list of float and str``."""
    if not isinstance(value, (list, tuple)):
        return type(value).__name__
    return "list" + (" of " + " and ".join(sorted(set(map(_kind, value)))) if value else "")


def _describe(parameters: Mapping[str, Any]) -> str:
    if not parameters:
        return "This chapter has no parameters."
    rows = [f"{name} ({_kind(value)}, default {value!r})" for name, value in parameters.items()]
    return "Its parameters: " + ", ".join(rows) + "."


# --- Execution -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A chapter to execute: parameters that differ from the defaults, and where to write."""

    chapter: Chapter
    parameters: dict[str, Any]
    root: Path
    output: Path
    timeout: int | None = CELL_TIMEOUT
    show: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a job; `failure` is None if the last cell ran."""

    job: Job
    seconds: float
    memory_mb: int
    failure: str | None

    @property
    def report(self) -> str:
        """The failure, and where the notebook is as far as it came."""
        output = self.job.output
        kept = f"\n  as far as it came: {os.path.relpath(output)}" if output.is_file() else ""
        return f"{self.failure}{kept}"


def execute_all(jobs: Sequence[Job], workers: int) -> Iterator[Job | Outcome]:
    """Execute jobs in up to `workers` processes; yields jobs as they start, outcomes at the end.

    Whoever stops in between, by an interrupt or otherwise, leaves no kernel behind.
    """
    # The fork server imports papermill once; each chapter starts from a process without threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["papermill", "nbclient"])
    waiting = list(jobs)
    running: dict[Connection, tuple[Job, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                yield job
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_execute, args=(job, sender))
                process.start()
                running[receiver] = (job, process)
                sender.close()
            for receiver in wait(list(running)):
                assert isinstance(receiver, Connection)
                job, process = running[receiver]
                try:
                    outcome = receiver.recv()
                    process.join()
                except EOFError:
                    process.join()
                    failure = f"its process ended with exit code {process.exitcode}"
                    outcome = Outcome(job, 0.0, 0, f"{job.chapter.name}: {failure}")
                del running[receiver]
                yield outcome
    finally:
        _stop([process.pid for _, process in running.values()])


def _stop(pids: Sequence[int]) -> None:
    """End chapters' processes, and their kernels, which stand in sessions of their own."""
    import psutil

    started = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            kernels = process.children(recursive=True)
            started += [process, *kernels]
            process.terminate()  # papermill cleans up, also after a kernel that is about to start
            for kernel in kernels:
                kernel.kill()  # at once: asked to stop, it prints a traceback
    for process in psutil.wait_procs(started, timeout=5)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _execute(job: Job, sender: Connection) -> None:
    """Run one chapter; the body of a child process."""
    import papermill
    from traitlets.config import Config

    os.environ.update(SINGLE_THREAD)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(job.root), os.environ.get("PYTHONPATH", "")])
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that papermill ends the kernel
    started = time.monotonic()
    error = None
    try:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        job.output.unlink(missing_ok=True)
        # Sockets in a folder of their own: TCP ports of kernels that start together can collide.
        with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # a short path, as sockets need
            os.environ["JUPYTER_RUNTIME_DIR"] = sockets
            papermill.execute_notebook(
                job.chapter.notebook,
                str(job.output),
                parameters=job.parameters,
                kernel_name="python3",
                cwd=str(job.chapter.path.parent),
                progress_bar=False,
                execution_timeout=job.timeout,
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
                stdout_file=sys.stdout if job.show else None,
                stderr_file=sys.stderr if job.show else None,
            )
    except KeyboardInterrupt:
        return  # the parent is interrupted as well, and says so
    except Exception as exception:  # whatever it is, it is told as the chapter's failure
        error = exception
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # kB on Linux, bytes on macOS
    memory_mb = peak // (2**20 if sys.platform == "darwin" else 2**10)
    sender.send(Outcome(job, seconds, memory_mb, find_failure(job, error)))


def find_failure(job: Job, error: Exception | None) -> str | None:
    """One line that says where and why the executed notebook of `job` stopped; None if its last
    cell ran.

    Papermill passes ``sys.exit(0)`` as success and marks the cell in which a kernel dies as
    completed, so that neither is trusted: the last code cell must have been started and no cell
    may hold an error.
    """
    import nbformat

    name = job.chapter.name
    if not job.output.is_file():
        return f"{name}: the kernel did not start: {_first_line(str(error))}"
    cells = [
        cell
        for cell in nbformat.read(job.output, as_version=4).cells
        if cell.cell_type == "code" and "injected-parameters" not in _tags(cell)
    ]
    started = [
        i for i, cell in enumerate(cells) if cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not started:
        return f"{name}: no cell ran: {_first_line(str(error))}"
    raising = [i for i in started if any(o.output_type == "error" for o in cells[i].outputs)]
    position = (raising or started[-1:])[0]
    cell = cells[position]
    raised = [output for output in cell.outputs if output.output_type == "error"]
    if type(error).__name__ == "CellTimeoutError":
        cause = f"the cell took longer than {job.timeout} s"
    elif type(error).__name__ == "DeadKernelError":
        cause = "the kernel died here (killed, out of memory, or os._exit)"
    elif raised and raised[0].ename == "SystemExit":
        cause = f"the cell ended the notebook early (sys.exit({raised[0].evalue}))"
    elif raised:
        cause = f"{raised[0].ename}: {_first_line(raised[0].evalue)}"
    elif error is not None:
        cause = f"{type(error).__name__}: {_first_line(str(error))}"
    elif position < len(cells) - 1:
        cause = "the notebook stopped after this cell"
    else:
        return None
    line = line_of(cell.source, job.chapter.path)
    place = f"code cell {position + 1}" + ("" if line is None else f", line {line}")
    return f"{name}, {place}, `{_first_line(cell.source)}`: {cause}"


def line_of(cell: str, path: Path) -> int | None:
    """Line of the source file `path` at which a cell starts; None unless it stands there once."""
    text = path.read_text(encoding="utf-8")
    if text.count(f"\n{cell}\n") != 1:
        return None
    return text[: text.index(f"\n{cell}\n")].count("\n") + 2


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].strip()


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def put_outputs_back(chapter: Chapter, executed: NotebookNode) -> NotebookNode:
    """The chapter as it is now, with the outputs of an execution of the same code.

    Prose, comments and cell tags come from the source. The cell with a profile's parameters, which
    papermill adds behind the defaults, is kept, so that a page shows the values that it was made
    with; where the ledger lies is no such value.
    """
    import nbformat

    done = [cell for cell in executed.cells if cell.cell_type == "code"]
    added = [cell for cell in done if "injected-parameters" in _tags(cell)]
    done = [cell for cell in done if "injected-parameters" not in _tags(cell)]
    notebook = copy.deepcopy(chapter.notebook)
    notebook.metadata["language_info"] = executed.metadata.get("language_info", {"name": "python"})
    if "widgets" in executed.metadata:
        notebook.metadata["widgets"] = executed.metadata["widgets"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, ran in zip(code, done, strict=True):
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    for cell in added:
        lines = [line for line in cell.source.splitlines() if not line.startswith("ledger_path =")]
        if any("=" in line for line in lines):
            after = next(i for i, c in enumerate(notebook.cells) if "parameters" in _tags(c))
            shown = nbformat.v4.new_code_cell("\n".join(lines), id="injected-parameters")
            notebook.cells.insert(after + 1, shown)
    return notebook
