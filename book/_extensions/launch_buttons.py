"""Buttons that lead to the repository: source, issues, and the page's notebook on Binder and Colab.

They need the repository's address, ``repository: url`` in ``_config.yml``, and are absent without.
Binder and Colab open executed notebooks on the branch that ``_config.yml`` names, where the
workflow puts them (``python -m staircase_lib notebooks``); a plain ``jupyter-book build .`` has no
executed notebooks, and its pages no such buttons.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from library_reference import NO_REPOSITORY
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError


def choose_buttons(app: Sphinx, config: Config) -> None:
    """Switch buttons on for a repository with an address, off without one.

    Issues are known of GitHub and GitLab; Binder and Colab open notebooks of GitHub.
    """
    options = config.html_theme_options
    url = options.get("repository_url")
    known = url not in (None, "", NO_REPOSITORY)
    host = ""
    if known:
        url = str(url).removesuffix("/").removesuffix(".git")
        found = re.fullmatch(r"https://([\w.-]+)(/\w[\w.-]*){2,}", url)
        if not found:
            raise ConfigError(
                f"_config.yml: repository: url: expected https://HOST/OWNER/NAME, got {url!r}"
            )
        options["repository_url"], host = url, found[1]
    options["use_repository_button"] = known
    options["use_issues_button"] = host in ("github.com", "gitlab.com")
    if host != "github.com" or not (Path(app.srcdir) / "runs.json").is_file():
        options["launch_buttons"] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", choose_buttons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
