"""Results of a run that are kept with the book: tidy tables, and where they come from.

A record is a folder with one Parquet file a table and ``provenance.json``: parameters, versions,
commit, device, wall time, and the SHA-256 of every table. Nothing in it is ever run or unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from staircase_lib.language.folders import write_atomically

__all__ = ["Record", "RecordError", "keep", "read"]

_VERSIONS = ("numpy", "pandas", "torch", "tokenizers")


class RecordError(Exception):
    """A record that is incomplete, or not what its provenance says; the message names the file."""


@dataclass(frozen=True)
class Record:
    """A run that was kept.

    Attributes
    ----------
    name : str
        Of its folder.
    tables : dict of str to DataFrame
    provenance : dict
        ``parameters``, ``facts``, ``seconds``, ``device``, ``date``, ``commit``, ``python``,
        ``versions`` and ``sha256`` of the tables' files.
    """

    name: str
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]


def keep(
    folder: str | os.PathLike[str],
    tables: Mapping[str, pd.DataFrame],
    *,
    parameters: Mapping[str, Any],
    facts: Mapping[str, Any],
    seconds: float,
    device: str,
) -> Path:
    """Write the tables of a run and their provenance; what was there is replaced.

    Parameters
    ----------
    folder : path
    tables : mapping of name to DataFrame
    parameters : mapping
        Everything that the run was started with; JSON-ready.
    facts : mapping
        What a reader must know of its size, such as parameters of the model; JSON-ready.
    seconds : float
        Wall time.
    device : str
        What it ran on, in words.

    Returns
    -------
    Path
        The folder.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, table in tables.items():
        content = table.to_parquet(index=False, compression="zstd")
        write_atomically(place / f"{name}.parquet", content)
        digests[f"{name}.parquet"] = hashlib.sha256(content).hexdigest()
    provenance = {
        "parameters": dict(parameters),
        "facts": dict(facts),
        "seconds": round(seconds, 1),
        "device": device,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: found for name in _VERSIONS if (found := _version(name))},
        "sha256": digests,
    }
    content = json.dumps(provenance, indent=1, ensure_ascii=False) + "\n"
    write_atomically(place / "provenance.json", content.encode())
    return place


def read(folder: str | os.PathLike[str]) -> Record:
    """A record that :func:`keep` wrote.

    Raises
    ------
    RecordError
        If a file is missing, cannot be read, or is not the one that the provenance speaks of.
    """
    place = Path(folder)
    path = place / "provenance.json"
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
        digests = dict(provenance["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: expected the provenance of a run, got: {error!r}.") from None
    tables = {}
    for name, digest in digests.items():
        if Path(name).name != name or not name.endswith(".parquet"):
            raise RecordError(f"{path}: expected names of tables in this folder, got {name!r}.")
        try:
            content = (place / name).read_bytes()
        except OSError as error:
            raise RecordError(f"{place / name}: cannot be read: {error}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise RecordError(
                f"{place / name}: not the table that provenance.json speaks of; record the run "
                f"again."
            )
        tables[name.removesuffix(".parquet")] = pd.read_parquet(io.BytesIO(content))
    return Record(place.name, tables, provenance)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Hash of HEAD of the clone that this library is in; ``unknown`` outside git."""
    here = str(Path(__file__).parent)
    try:
        done = subprocess.run(
            ["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
