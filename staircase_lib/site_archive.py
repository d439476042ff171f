"""The whole site as one zip file, to be read off line: unpacked, it opens from disk."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from .pages import built_site

#: Folder that the archive unpacks to.
FOLDER = "context-staircase"
_MOMENT = (1980, 1, 1, 0, 0, 0)  # of every file, so that the same site gives the same archive
_COMPRESSED = {".png", ".jpg", ".gif", ".woff", ".woff2", ".gz", ".zip", ".pdf"}
READ_ME = """\
Context Staircase, the book, as pages to be read without a network.

Unpack this archive as a whole and open index.html in a browser. Nothing has to be installed or
served; the pages ask no other computer for anything.
"""


def write_zip(root: Path, output: Path) -> int:
    """Write the built site, with a README beside its pages; returns the number of bytes.

    Files come in the order of their names, all with the same time: the same site gives the same
    bytes.

    Raises
    ------
    BookError
        If the site is not built or older than its sources.
    """
    site = built_site(root)
    files = {str(path.relative_to(site)): path for path in site.rglob("*") if path.is_file()}
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            _add(archive, "README.txt", READ_ME.encode())
            for name in sorted(files):
                if name != "README.txt":
                    _add(archive, Path(name).as_posix(), files[name].read_bytes())
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return output.stat().st_size


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    about = zipfile.ZipInfo(f"{FOLDER}/{name}", _MOMENT)
    about.external_attr = 0o644 << 16
    packed = Path(name).suffix in _COMPRESSED
    about.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
    about.create_system = 3  # on Windows too
    archive.writestr(about, content, compresslevel=9)
