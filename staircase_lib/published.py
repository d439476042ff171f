"""Executed chapters as notebooks for others: for a branch that Binder and Colab open.

They are the notebooks that the pages were made from. In front stands one cell that fetches the
book and installs its library in Google Colab, which gets nothing but the notebook; elsewhere it
does nothing. The cell of parameters stays what it was, so that papermill can be called on them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from .chapters import BookError, Exit, ParameterError, parse_yaml, write_atomically

if TYPE_CHECKING:
    from nbformat import NotebookNode

FETCH = """\
# In Google Colab this cell fetches the book and installs its library. Elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    %cd -q /content
    ![ -d {name} ] || git clone --quiet --depth 1 --branch {branch} {url}
    %cd -q {name}/book
    %pip install --quiet "..[train,theory,corpus]" "altair==5.5.*" vl-convert-python jupytext"""


def repository(root: Path) -> tuple[str, str]:
    """Address of the repository and its branch with notebooks, as ``_config.yml`` has them."""
    config = parse_yaml((root / "_config.yml").read_text(encoding="utf-8"), "_config.yml") or {}
    declared = config.get("repository") or {}
    return declared.get("url") or "", declared.get("branch") or "notebooks"


def with_fetch_cell(notebook: NotebookNode, url: str, branch: str) -> NotebookNode:
    """Put the cell for Colab in front of a notebook.

    Parameters
    ----------
    notebook : NotebookNode
        It is changed.
    url : str
        Of the repository: ``https://host/owner/name``.
    branch : str
        The branch on which the notebooks are.

    Raises
    ------
    ParameterError
        If `url` is no such address, or `branch` no simple name.
    """
    import nbformat

    url = url.removesuffix("/").removesuffix(".git")
    name = r"\w[\w.-]*"  # no name of a folder above, and no option of a command
    if not re.fullmatch(rf"https://{name}(/{name}){{2,}}", url) or not re.fullmatch(name, branch):
        raise ParameterError(
            f"repository: expected https://HOST/OWNER/NAME and a branch's name, got {url!r}, "
            f"{branch!r}; `repository: url` in _config.yml or --repository gives them."
        )
    source = FETCH.format(name=url.rpartition("/")[2], branch=branch, url=url)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(source, id="fetch"))
    return notebook


def write_notebooks(root: Path, profile: str, folder: Path, url: str, branch: str) -> list[Path]:
    """Write the notebooks of the last build's pages into `folder`; returns their files.

    Raises
    ------
    BookError
        If the book was not built at `profile`, a notebook of it is damaged, or `folder` cannot be
        written.
    """
    import nbformat

    source = root / "_build" / profile / "source" / "book"
    found = sorted(source.glob("*.ipynb"))
    if not found:
        raise BookError(
            f"No executed notebooks in {source}: `make book PROFILE={profile}` makes them.",
            Exit.MISSING,
        )
    texts = {}
    for path in found:  # all, before the first is written
        notebook = with_fetch_cell(_read(path), url, branch)
        texts[folder / path.name] = nbformat.writes(notebook)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"--output {folder}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


def _read(path: Path) -> NotebookNode:
    """A notebook of the last build."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
        told = str(error).partition("\n")[0]
        problem = f"{path} is damaged ({told}); `make book` makes it anew."
        raise BookError(problem, Exit.MISSING) from None
