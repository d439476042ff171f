"""Browser libraries served by the book itself, so that no page asks another host for anything.

MathJax comes from npm, one archive without dependencies; its SHA-256 is checked, and it is kept in
the user's cache. Vega, Vega-Lite and Vega-Embed come out of ``vl-convert-python``. Both end up in
``_static/vendor/``.

The theme writes some inline scripts into a page twice, and then the second throws; doubles are
removed here.
"""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

from staircase_lib import registries
from staircase_lib.registries import cache_folder

MATHJAX = "mathjax@3.2.2"
MATHJAX_SHA256 = "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09"
VEGA_LITE = "5.20"  # the version that Altair 5.5 writes


def assets_folder() -> Path:
    """Folder that holds ``vendor/``, complete; made if it is not there yet."""
    versions = (
        f"{MATHJAX}-{MATHJAX_SHA256[:8]}-vega{VEGA_LITE}-{metadata.version('vl-convert-python')}"
    )
    folder = cache_folder() / versions
    if not folder.is_dir():
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
            made = Path(temporary) / "assets"
            add_mathjax(made / "vendor" / "mathjax")
            add_vega(made / "vendor")
            with contextlib.suppress(OSError):  # another build was faster
                made.rename(folder)
    return folder


def add_mathjax(target: Path) -> None:
    """Fetch MathJax and keep one combined component and its fonts."""
    try:
        path = registries.archive("npm", MATHJAX, MATHJAX_SHA256)
    except registries.RegistryError as error:
        raise ExtensionError(str(error)) from None
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = member.name.removeprefix("package/es5/")
            if file == "tex-mml-chtml.js" or file.startswith("output/chtml/fonts/"):
                content = archive.extractfile(member)
                if content is not None:
                    (target / file).parent.mkdir(parents=True, exist_ok=True)
                    (target / file).write_bytes(content.read())


def add_vega(target: Path) -> None:
    """Write the Vega libraries as one script whose own names stay private."""
    bundle = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # pyright: ignore[reportCallIssue]
    target.mkdir(parents=True, exist_ok=True)
    (target / "vega-embed.js").write_text(f"(function(){{{bundle}\n}})();", encoding="utf-8")


def serve_assets(app: Sphinx, config: Config) -> None:
    """Put the libraries on the static path."""
    config.html_static_path.append(str(assets_folder()))


def remove_doubles(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Keep the first of inline scripts with the same text."""
    seen: set[str] = set()
    kept = []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body")
        if body is None or body not in seen:
            kept.append(script)
        if body is not None:
            seen.add(body)
    context["script_files"] = kept


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", serve_assets)
    app.connect("html-page-context", remove_doubles, priority=900)  # after the theme's own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
