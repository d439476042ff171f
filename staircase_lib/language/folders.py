"""Folders that hold results on disk: files written whole, one writer at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["FolderInUse", "locked", "write_atomically"]


class FolderInUse(Exception):
    """Another run writes to the folder."""


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Be the only one that writes to a folder; it is made if it is not there.

    The lock is the operating system's: it ends with the process, however that ends.

    Raises
    ------
    FolderInUse
        If another process has the lock; not with `wait`, which waits until it is free.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise FolderInUse(
                f"{folder}: another run is writing there; wait for it, or give another folder."
            ) from None
        yield


def write_atomically(path: Path, content: Any) -> None:
    """Write bytes in one step: whoever reads the file sees the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
