"""Tiny projects for the tests of the pipeline: a book with its own small library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
{extra}---
"""


def code(source: str, tags: str = "") -> str:
    """A code cell in MyST Markdown."""
    option = f":tags: [{tags}]\n" if tags else ""
    return f"\n```{{code-cell}} ipython3\n{option}{source}\n```\n"


def chapter(title: str, *cells: str, extra: str = "") -> str:
    """Text of a chapter; `extra` is front matter."""
    return HEADER.format(extra=extra) + f"\n# {title}\n" + "".join(cells)


def make_project(root: Path, pages: dict[str, str], modules: dict[str, str] | None = None) -> Path:
    """Write a project whose table of contents names `pages` in order; returns its root."""
    names = list(pages)
    toc = ["format: jb-book", f"root: book/{names[0]}"]
    if names[1:]:
        toc += ["chapters:", *(f"  - file: book/{name}" for name in names[1:])]
    (root / "book" / "_assets").mkdir(parents=True)
    (root / "_toc.yml").write_text("\n".join(toc) + "\n")
    (root / "requirements.txt").write_text("numpy==2.4.6\n")
    for name, text in pages.items():
        (root / "book" / f"{name}.md").write_text(text)
    for name, text in (modules or {}).items():
        path = root / "staircase_lib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def add_site(root: Path) -> None:
    """Give a project what rendering needs: the repository's configuration and extensions."""
    for name in ("_config.yml", "book/_extensions", "book/_assets"):
        target = root / name
        if target.is_dir():
            target.rmdir()
        target.symlink_to(REPOSITORY / name)
    (root / "book" / "references.bib").write_text(
        "@article{saxe2013exact,\n  title={Exact solutions},\n  author={Saxe, Andrew},\n"
        "  journal={arXiv},\n  year={2013}\n}\n"
    )


def command(root: Path, *arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run ``python -m staircase_lib`` in a project."""
    return run([sys.executable, "-P", "-m", "staircase_lib", *arguments], root, check)


def run(
    arguments: Sequence[str], root: Path, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program in a project, its output kept."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True, env=environment)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
