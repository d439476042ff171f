"""A build with a warning fails: a broken reference or a missing citation must not pass unseen.

``jupyter-book build .`` exits with 0 after warnings unless ``-W`` is given; this makes it exit
with 1.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def fail_after_warnings(app: Sphinx, exception: Exception | None) -> None:
    """Set the exit code of a build that ended with warnings."""
    if exception is None and app._warncount:
        app.statuscode = 1


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("build-finished", fail_after_warnings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
