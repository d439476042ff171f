"""Faults injected into headless runs: exit code, message, and nothing lost."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from project import REPOSITORY, chapter, code, command, make_project

WAITING = code("open('started', 'w').close()\nimport time\ntime.sleep(300)")


def project_of(root: Path, *cells: str, extra: str = "") -> Path:
    """A book of one chapter, ``05_attention``."""
    return make_project(root, {"05_attention": chapter("Attention", *cells, extra=extra)})


def executed(root: Path) -> dict:
    """The notebook that a run has left in ``out/``."""
    return json.loads((root / "out/05_attention.ipynb").read_text())


def run_limited(root: Path, kilobytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where no file may become longer, as on a disk that is full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, kilobytes * 1024))

    program = [sys.executable, "-P", "-m", "staircase_lib", *arguments]
    return subprocess.run(program, cwd=root, capture_output=True, text=True, preexec_fn=limit)


@contextmanager
def started_run(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of a chapter with the cell `WAITING`, from the moment at which that cell runs."""
    (root / "book/started").unlink(missing_ok=True)
    program = [sys.executable, "-P", "-m", "staircase_lib", "run", "attention", "--output", "out"]
    with subprocess.Popen(
        program, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            while not (root / "book/started").exists():
                assert run.poll() is None, run.communicate()
                time.sleep(0.05)
            yield run
        finally:
            for process in psutil.Process().children(recursive=True):
                if run.poll() is None or process.pid != run.pid:
                    process.kill()


def descendant(run: subprocess.Popen[str], what: str) -> psutil.Process:
    """The process under `run` whose command line contains `what`."""
    processes = psutil.Process(run.pid).children(recursive=True)
    return next(p for p in processes if what in " ".join(p.cmdline()))


def kernel_of(run: subprocess.Popen[str]) -> psutil.Process:
    return descendant(run, "ipykernel")


def executing(run: subprocess.Popen[str]) -> psutil.Process:
    """The process that executes the notebook: the parent of its kernel."""
    parent = kernel_of(run).parent()
    assert parent is not None
    return parent


# --- Processes that are killed -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("victim", "told"),
    [
        pytest.param(
            *(kernel_of, "code cell 1, line 15, `open('started', 'w').close()`: the kernel died"),
            marks=pytest.mark.fault("somebody kills the kernel from outside", 4),
        ),
        pytest.param(
            *(executing, "05_attention: its process ended with exit code -9"),
            marks=pytest.mark.fault("somebody kills the process that executes the notebook", 4),
        ),
    ],
)
def test_a_killed_process_is_told_and_the_earlier_result_stays(
    tmp_path: Path, victim: Callable[[subprocess.Popen[str]], psutil.Process], told: str
):
    root = project_of(tmp_path, code("1"))
    command(root, "run", "attention", "--output", "out", check=True)
    (root / "book/05_attention.md").write_text(chapter("Attention", WAITING))
    before = executed(root)
    with started_run(root) as run:
        kernel = kernel_of(run)
        victim(run).kill()
        _, stderr = run.communicate(timeout=60)
        assert run.returncode == 4 and told in stderr
        assert psutil.wait_procs([kernel], timeout=20)[1] == []
    assert executed(root) == before
    assert "started" in (root / "out/05_attention.failed.ipynb").read_text()


@pytest.mark.fault("the run itself is killed (`SIGKILL`)", -9)
def test_after_a_killed_run_the_next_one_works_and_clears_up(tmp_path):
    root = project_of(tmp_path, WAITING)
    with started_run(root) as run:
        started = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        run.wait()
        assert psutil.wait_procs(started, timeout=20)[1] == []  # the kernel ends by itself
    (root / "out/.05_attention.999999999.ipynb").touch()  # of a process that was killed as well
    (root / "book/05_attention.md").write_text(chapter("Attention", code("1")))
    command(root, "run", "attention", "--output", "out", check=True)
    assert [path.name for path in (root / "out").iterdir()] == ["05_attention.ipynb"]


@pytest.mark.fault("the run is interrupted (Ctrl-C)", 130)
def test_an_interrupted_run_keeps_what_ran(tmp_path):
    root = project_of(tmp_path, code("'seen'"), WAITING)
    with started_run(root) as run:
        kernel = kernel_of(run)
        run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=60)[1] == "interrupted\n" and run.returncode == 130
        assert psutil.wait_procs([kernel], timeout=20)[1] == []
    assert "seen" in (root / "out/05_attention.failed.ipynb").read_text()
    assert not (root / "out/05_attention.ipynb").exists()


@pytest.mark.fault("two runs of one chapter write to one folder", 0)
def test_two_runs_at_once_leave_one_whole_result(tmp_path):
    parameters = code("seed = 0", "parameters")
    root = project_of(tmp_path, parameters, code("import time\ntime.sleep(1)\n(seed, seed)"))
    program = [sys.executable, "-P", "-m", "staircase_lib", "run", "attention", "--output", "out"]
    both = [subprocess.Popen([*program, "-p", "seed", seed], cwd=root) for seed in ("7", "8")]
    assert [run.wait() for run in both] == [0, 0]
    notebook = executed(root)
    seed = notebook["metadata"]["staircase_run"]["parameters"]["seed"]
    assert notebook["cells"][-1]["outputs"][0]["data"]["text/plain"] == [f"({seed}, {seed})"]
    assert [path.name for path in (root / "out").iterdir()] == ["05_attention.ipynb"]


# --- Kernels that do not start -------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            "/nowhere/python", marks=pytest.mark.fault("the kernel's program is missing", 7)
        ),
        pytest.param("false", marks=pytest.mark.fault("the kernel ends as it starts", 7)),
    ],
)
def test_a_kernel_that_does_not_start_is_told(tmp_path, monkeypatch, program):
    spec = tmp_path / "jupyter/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [program, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    root = project_of(tmp_path / "book", code("1"))
    done = command(root, "run", "attention", "--output", "out")
    assert done.returncode == 7, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("05_attention: ") and ("did not start" in first or "no cell" in first)
    assert not (root / "out/05_attention.ipynb").exists()


# --- Disks and folders ---------------------------------------------------------------------------


@pytest.mark.fault("the disk is full while a notebook is written", 9)
def test_a_full_disk_is_told_and_the_earlier_result_stays(tmp_path):
    root = project_of(tmp_path, code("1"))
    command(root, "run", "attention", "--output", "out", check=True)
    before = executed(root)
    (root / "book/05_attention.md").write_text(chapter("Attention", code("print('x' * 10**6)")))
    done = run_limited(root, 200, "run", "attention", "--output", "out")
    assert done.returncode == 9, done.stderr
    assert "05_attention: cannot write" in done.stderr and "File too large" in done.stderr
    assert executed(root) == before


@pytest.mark.fault("the disk is full while the ledger is recorded", 9)
def test_a_full_disk_keeps_the_recorded_ledger(tmp_path):
    root = project_of(tmp_path, code("1"))
    command(root, "book", "--profile", "cpu")  # executes; there is no configuration for pages
    recorded = root / "book/results/ledger.json"
    recorded.parent.mkdir()
    recorded.write_text("[ ]")
    done = run_limited(root, 0, "record")
    assert done.returncode == 9 and "File too large; nothing is lost" in done.stderr, done.stderr
    assert recorded.read_text() == "[ ]"
    assert [path.name for path in recorded.parent.iterdir()] == ["ledger.json"]


@pytest.mark.fault("the disk is full, and every folder for temporary files", 9)
def test_no_place_for_temporary_files_is_told(tmp_path):
    (tmp_path / "task.csv").write_text("x1,x2,label\n1,2,3\n2,1,1\n")
    done = run_limited(tmp_path, 0, "measure", "task.csv", "--estimate")
    assert done.returncode == 9 and "No usable temporary directory" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == [tmp_path / "task.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
@pytest.mark.fault("the output folder is read-only", 9)
def test_a_read_only_folder_is_told(tmp_path):
    root = project_of(tmp_path, code("1"))
    (root / "out").mkdir(mode=0o500)
    done = command(root, "run", "attention", "--output", "out")
    assert done.returncode == 9 and "--output out: cannot write there" in done.stderr


@pytest.mark.fault("the output folder disappears during the run", 9)
def test_an_output_folder_that_disappears_is_told(tmp_path):
    root = project_of(tmp_path, code("import shutil\nshutil.rmtree('../out')"), code("1"))
    done = command(root, "run", "attention", "--output", "out")
    assert done.returncode == 9 and "out: the folder is gone" in done.stderr


def test_a_folder_in_the_place_of_the_notebook_is_told_before_the_run(tmp_path):
    root = project_of(tmp_path, code("open('hit', 'w')"))
    (root / "out/05_attention.ipynb").mkdir(parents=True)
    done = command(root, "run", "attention", "--output", "out")
    assert done.returncode == 9 and "05_attention.ipynb there is a folder" in done.stderr
    assert not (root / "book/hit").exists()


# --- Data that is damaged ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "read", "told"),
    [
        pytest.param(
            *(b"PAR1 not Parquet", "import pandas\npandas.read_parquet('results/t')", "Parquet"),
            marks=pytest.mark.fault("a recorded Parquet table is damaged", 3),
        ),
        pytest.param(
            *(b'[{"id": "4.1", ', "import json\njson.load(open('results/t'))", "JSONDecodeError"),
            marks=pytest.mark.fault("a recorded JSON file is truncated", 3),
        ),
    ],
)
def test_a_damaged_result_is_told_with_the_cell_that_reads_it(tmp_path, content, read, told):
    root = project_of(tmp_path, code(read), extra="staircase:\n  reads: [results/t]\n")
    (root / "book/results").mkdir()
    (root / "book/results/t").write_bytes(content)
    done = command(root, "run", "attention", "--output", "out")
    assert done.returncode == 3 and told in done.stderr, done.stderr
    assert "05_attention, code cell 1" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('[{"id": ', marks=pytest.mark.fault("the recorded ledger is truncated", 1)),
        pytest.param('{"a": 1}', marks=pytest.mark.fault("the recorded ledger is no ledger", 1)),
    ],
)
def test_a_damaged_ledger_is_told(tmp_path, content):
    root = project_of(tmp_path, code("1"))
    (root / "book/results").mkdir()
    (root / "book/results/ledger.json").write_text(content)
    done = command(root, "claims", "--json")
    assert done.returncode == 1 and done.stdout == ""
    assert "ledger.json" in done.stderr and "Traceback" not in done.stderr


# --- Parameters are data -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param(
            "__import__('pathlib').Path('hit').touch()",
            "expects int, came \"__import__('pathlib')",
            marks=pytest.mark.fault("a parameter's value is code", 2),
        ),
        pytest.param(
            *("7.5", "expects int, came 7.5"),
            marks=pytest.mark.fault("a parameter's value has another type", 2),
        ),
        pytest.param(
            *("[7]", "expects int, came [7]"),
            marks=pytest.mark.fault("a list is given for a number", 2),
        ),
    ],
)
def test_a_value_is_read_never_run(tmp_path, value, told):
    root = project_of(tmp_path, code("seed = 0", "parameters"), code("seed"))
    done = command(root, "run", "attention", "--output", "out", "-p", "seed", value)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not list(root.rglob("hit")) and not (root / "out").exists()


@pytest.mark.fault("a text parameter holds quotes, line breaks and code", 0)
def test_text_arrives_as_it_was_given(tmp_path):
    text = "a'\"\\\nopen('hit', 'w')  # é"
    root = project_of(tmp_path, code("name = ''", "parameters"), code("name"))
    command(root, "run", "attention", "--output", "out", "-p", "name", text, check=True)
    shown = executed(root)["cells"][-1]["outputs"][0]["data"]["text/plain"]
    assert ast.literal_eval("".join(shown)) == text
    assert not list(root.rglob("hit"))


@pytest.mark.fault("a chapter's name leads out of the book", 8)
def test_a_chapter_is_named_not_addressed(tmp_path):
    root = project_of(tmp_path / "inner", code("1"))
    (tmp_path / "evil.md").write_text(chapter("Evil", code("open('hit', 'w')")))
    done = command(root, "run", "../../evil", "--output", "out")
    assert done.returncode == 8 and "No chapter '../../evil'" in done.stderr
    assert not list(tmp_path.rglob("hit"))


# --- The table of the book -----------------------------------------------------------------------


def marked_faults() -> set[tuple[str, int]]:
    """What the tests inject: text and exit code of every mark."""
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="fault"), args=[what, exit_code]):
                    try:
                        found.add((ast.literal_eval(what), ast.literal_eval(exit_code)))
                    except ValueError:  # built by a function of the same file
                        continue
                case ast.Call(func=ast.Name(id="stop"), args=[ast.Constant() as what, code, *_]):
                    found.add((ast.literal_eval(what), ast.literal_eval(code)))
                case ast.Call(func=ast.Name(id="stop"), args=[ast.Starred(value=pair), *_]):
                    found.add(ast.literal_eval(pair))
    return found


def test_the_page_lists_every_fault_and_no_other():
    page = (REPOSITORY / "book/E_running.md").read_text(encoding="utf-8")
    rows = {
        (what.strip(), int(number))
        for what, number in re.findall(r"^\| (.+?) \| (-?\d+) \|", page, re.MULTILINE)
    }
    marked = marked_faults()
    assert rows == marked
    assert len(marked) >= 40
