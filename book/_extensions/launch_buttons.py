"""Buttons that lead to the repository: source, issues, and the page's notebook on Binder and Colab.

They need the repository's address, ``repository: url`` in ``_config.yml``, and are absent without.
Binder and Colab open executed notebooks on the branch that ``_config.yml`` names, where the
workflow puts them (``python -m staircase_lib notebooks``); a plain ``jupyter-book build .`` has no
executed notebooks, and its pages no such buttons.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from library_reference import NO_REPOSITORY
from sphinx.application import Sphinx
from sphinx.config import Config


def choose_buttons(app: Sphinx, config: Config) -> None:
    """Switch buttons on for a repository with an address, off without one."""
    options = config.html_theme_options
    known = options.get("repository_url") not in (None, "", NO_REPOSITORY)
    options["use_repository_button"] = options["use_issues_button"] = known
    if not known or not (Path(app.srcdir) / "runs.json").is_file():
        options["launch_buttons"] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", choose_buttons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
