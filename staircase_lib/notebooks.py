"""Notebooks: headless execution of chapters through papermill.

Each chapter runs in a process of its own, with one BLAS thread, in the folder ``book/``; it counts
as executed only if its last cell ran.
"""

from __future__ import annotations

import copy
import errno
import logging
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chapters import Chapter, Exit, line_of
from .printable import printable

# The packages of the extra `book` are imported where used: --help and claims do without them.
if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_TIMEOUT = 3600  # seconds
# What the system says of a place that takes no (more) files.
CANNOT_WRITE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
# In a kernel, exit() and quit() only ask the frontend to close, and what follows would run.
EXIT_RAISES = (
    "type(get_ipython().exiter).__call__ = lambda self, *status: __import__('sys').exit(*status)"
)
SINGLE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
}


@dataclass(frozen=True)
class Job:
    """A chapter to execute: parameters that differ from the defaults, and where the notebook goes
    if it stops on the way."""

    chapter: Chapter
    parameters: dict[str, Any]
    root: Path
    output: Path
    timeout: int | None = CELL_TIMEOUT
    log_output: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a chapter stopped: one line that names chapter, cell and cause, and the exit code."""

    text: str
    code: Exit


@dataclass(frozen=True)
class Outcome:
    """What became of a job; `failure` is None if the last cell ran."""

    job: Job
    seconds: float
    memory_mb: int
    failure: Failure | None
    notebook: Path  # as it was executed, or as far as it came

    @property
    def report(self) -> str:
        """The failure, and where the notebook is as far as it came."""
        assert self.failure is not None
        path = self.notebook
        kept = f"\n  as far as it came: {os.path.relpath(path)}" if path.is_file() else ""
        return f"{self.failure.text}{kept}"


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
                    cause = f"its process ended with exit code {process.exitcode}"
                    failure = Failure(f"{job.chapter.name}: {cause}", Exit.KERNEL)
                    kept = _keep_partial(job, _partial(job, process.pid))
                    outcome = Outcome(job, 0.0, 0, failure, kept)
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

    logging.disable(logging.CRITICAL)  # what matters is told once, as the failure
    os.environ.update(SINGLE_THREAD)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(job.root), os.environ.get("PYTHONPATH", "")])
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that papermill ends the kernel
    threading.Thread(target=_end_with_parent, daemon=True).start()
    started = time.monotonic()
    error = None
    partial = _partial(job, os.getpid())
    try:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        _clear(job)
        # Sockets in a folder of their own: TCP ports of kernels that start together can collide.
        with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # a short path, as sockets need
            os.environ["JUPYTER_RUNTIME_DIR"] = sockets
            papermill.execute_notebook(
                job.chapter.notebook,
                str(partial),
                parameters=job.parameters,
                kernel_name="python3",
                cwd=str(job.chapter.path.parent),
                progress_bar=False,
                execution_timeout=job.timeout,
                config=Config(
                    {
                        "KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"},
                        # At the end the kernel is interrupted before it is shut down, and says so.
                        "NotebookClient": {
                            "extra_arguments": [
                                "--IPKernelApp.log_level=50",
                                f"--IPKernelApp.exec_lines={EXIT_RAISES}",
                            ]
                        },
                    }
                ),
                stdout_file=sys.stdout if job.log_output else None,
                stderr_file=sys.stderr if job.log_output else None,
            )
    except KeyboardInterrupt:
        _keep_partial(job, partial)
        return  # the parent is interrupted as well, and says so
    except Exception as exception:  # whatever it is, it is told as the chapter's failure
        error = exception
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # kB on Linux, bytes on macOS
    memory_mb = peak // (2**20 if sys.platform == "darwin" else 2**10)
    failure = find_failure(job, partial, error)
    notebook = partial if failure is None else _keep_partial(job, partial)
    sender.send(Outcome(job, seconds, memory_mb, failure, notebook))


def _end_with_parent() -> None:
    """End this process as on request once the command is gone: nobody waits for the chapter."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _partial(job: Job, pid: int) -> Path:
    """Where the process `pid` writes the notebook while it runs: two runs never share a file."""
    return job.output.with_name(f".{job.chapter.name}.{pid}.ipynb")


def _keep_partial(job: Job, partial: Path) -> Path:
    """Put a notebook that stopped on the way where the job says; returns where it is."""
    with suppress(FileNotFoundError):
        os.replace(partial, job.output)
    return job.output


def _clear(job: Job) -> None:
    """Remove what earlier runs left: the last failure, and notebooks of processes that are gone."""
    import psutil

    job.output.unlink(missing_ok=True)
    for path in job.output.parent.glob(f".{job.chapter.name}.*.ipynb"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)


def find_failure(job: Job, notebook: Path, error: Exception | None) -> Failure | None:
    """Where and why an executed notebook of `job` stopped; None if its last cell ran.

    Papermill passes ``sys.exit(0)`` as success and marks the cell in which a kernel dies as
    completed, so that neither is trusted: the last code cell must have been started and no cell
    may hold an error.
    """
    import nbformat

    name = job.chapter.name
    if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
        place = error.filename or notebook.parent
        return Failure(f"{name}: cannot write {place}: {error.strerror}", Exit.CANNOT_WRITE)
    if not notebook.parent.is_dir():
        problem = f"{name}: cannot write {notebook.parent}: the folder is gone"
        return Failure(problem, Exit.CANNOT_WRITE)
    if not notebook.is_file():
        cause = f"the kernel did not start: {_first_line(str(error))}"
        return Failure(f"{name}: {cause}", Exit.NO_KERNEL)
    try:
        executed = nbformat.read(notebook, as_version=4)
    except Exception as damage:  # written in part, or overwritten by somebody
        cause = f"the executed notebook cannot be read: {_first_line(str(damage))}"
        return Failure(f"{name}: {cause}", Exit.CANNOT_WRITE)
    cells = [
        cell
        for cell in executed.cells
        if cell.cell_type == "code" and "injected-parameters" not in _tags(cell)
    ]
    started = [
        i for i, cell in enumerate(cells) if cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not started:
        return Failure(f"{name}: no cell ran: {_first_line(str(error))}", Exit.NO_KERNEL)
    raising = [i for i in started if any(o.output_type == "error" for o in cells[i].outputs)]
    position = (raising or started[-1:])[0]
    cell = cells[position]
    raised = [output for output in cell.outputs if output.output_type == "error"]
    if type(error).__name__ == "CellTimeoutError":
        code, cause = Exit.TIMEOUT, f"the cell took longer than {job.timeout} s"
    elif type(error).__name__ == "DeadKernelError":
        code, cause = Exit.KERNEL, "the kernel died here (killed, out of memory, or os._exit)"
    elif raised and raised[0].ename == "SystemExit":
        code = Exit.EARLY
        cause = f"the cell ended the notebook early (sys.exit({_first_line(raised[0].evalue)}))"
    elif raised:
        code, cause = Exit.CELL, f"{raised[0].ename}: {_first_line(raised[0].evalue)}"
    elif type(error).__name__ == "PapermillExecutionError":  # without a traceback in the notebook
        told = [output.text for output in cell.outputs if output.get("name") == "stderr"]
        cause = _first_line((told or ["the cell failed, and its error could not be shown"])[-1])
        code = Exit.CELL
    elif error is not None:
        code, cause = Exit.FAILED, f"{type(error).__name__}: {_first_line(str(error))}"
    elif position < len(cells) - 1:
        code, cause = Exit.EARLY, "the notebook stopped after this cell"
    else:
        return None
    line = line_of(cell.source, job.chapter.path)
    place = f"code cell {position + 1}" + ("" if line is None else f", line {line}")
    return Failure(f"{name}, {place}, `{_first_line(cell.source)}`: {cause}", code)


def _first_line(text: str) -> str:
    """The first line of a text of unknown origin, as a terminal can show it."""
    return printable((text.strip().splitlines() or [""])[0].strip(), longest=300)


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
