"""Browser libraries served by the book itself, so that no page asks another host for anything.

MathJax, the widgets and what live code needs come from npm, one archive a package without its
dependencies; its SHA-256 is checked, and it is kept in the user's cache. Vega, Vega-Lite and
Vega-Embed come out of ``vl-convert-python``. All end up in ``_static/vendor/``.

The theme writes some inline scripts into a page twice, and then the second throws; doubles are
removed here.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

from staircase_lib import registries
from staircase_lib.registries import cache_folder
from staircase_lib.vega_script import VEGA_LITE, vega_script

# Name, version and SHA-256 of each archive; what of it is kept, where it goes in vendor/.
PACKAGES = {
    "mathjax@3.2.2": (
        "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09",
        r"package/es5/(?=tex-mml-chtml\.js$|output/chtml/fonts/)",
        "mathjax/",
    ),
    "thebe@0.9.3": (  # live code; the part besides index.js shows JSON
        "4777b3f0c5dcee04b3e5a99fd918a9cf7cb91c3208159af2f1fb54b3c27d0899",
        r"package/lib/(?=((6807\.)?index\.js|thebe\.css|.*LICENSE\.txt)$)",
        "thebe/",
    ),
    "marked@18.2.1": (  # Markdown of live outputs
        "d66c5213fc203466186060105b01f51896764ba64b3797d2620d02e28e34b8ca",
        r"package/lib/marked\.umd(?=\.js$)",
        "marked",
    ),
    "requirejs@2.3.8": (  # widgets in pages without a kernel
        "777158e89275e16bd51aec3ef714fbcb5dc45789e7078659933bc814916d7dec",
        r"package/(?=require\.js$)",
        "",
    ),
    "@jupyter-widgets/html-manager@1.0.15": (
        "2b9d65cb7913e1c7d671757a10008b32c9c2448d4429513371e55c07d6107638",
        r"package/dist/(?=(embed-amd\.js|.*\.woff2)$)",
        "@jupyter-widgets/html-manager/dist/",
    ),
}
# Thebe's style for code would hold for the whole page.
PAGE_WIDE = "tt,\ncode,\nkbd,\nsamp,\npre {"
# The style of widgets looks for its fonts here as well as beside its script.
ICONS = "@jupyter-widgets"


def assets_folder() -> Path:
    """Folder that holds ``vendor/``, complete; made if it is not there yet."""
    vega = f"vega{VEGA_LITE}-{metadata.version('vl-convert-python')}-global"
    content = hashlib.sha256(repr((PACKAGES, PAGE_WIDE, ICONS)).encode()).hexdigest()[:12]
    folder = cache_folder() / f"vendor-{content}-{vega}"
    if not folder.is_dir():
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
            made = Path(temporary) / "assets"
            for package in PACKAGES:
                add_package(package, made / "vendor")
            scope_styles(made / "vendor" / "thebe" / "thebe.css")
            for font in (made / "vendor" / ICONS).rglob("*.woff2"):
                shutil.copy(font, made / "vendor" / ICONS)
            add_vega(made / "vendor")
            with contextlib.suppress(OSError):  # another build was faster
                made.rename(folder)
    return folder


def add_package(package: str, target: Path) -> None:
    """Fetch an archive of npm and keep what `PACKAGES` names."""
    sha256, kept, place = PACKAGES[package]
    try:
        path = registries.archive("npm", package, sha256)
    except registries.RegistryError as error:
        raise ExtensionError(str(error)) from None
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if re.match(kept, member.name) else None
            if content is not None:
                file = target / re.sub(kept, place, member.name, count=1)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())


def scope_styles(path: Path) -> None:
    """Let thebe's style for code hold for its outputs only."""
    text = path.read_text(encoding="utf-8")
    if PAGE_WIDE not in text:
        raise ExtensionError(f"thebe.css: expected the rule {PAGE_WIDE!r}")
    scoped = text.replace(PAGE_WIDE, ".thebe-output :is(tt, code, kbd, samp, pre) {")
    path.write_text(scoped, encoding="utf-8")


def add_vega(target: Path) -> None:
    """Write the Vega libraries as one script whose own names stay private."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "vega-embed.js").write_text(vega_script(), encoding="utf-8")


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
