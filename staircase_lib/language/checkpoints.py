"""Checkpoints of a training run: whole or not there, and only loaded into the run they are of.

A run's folder has a folder ``checkpoints`` with ``step-00001000`` and so on in it. In each lie the
tensors, written by ``torch.distributed.checkpoint`` as safetensors, one file a process, and
``header.json``: what run they are of, and length and SHA-256 of every file. A checkpoint is written
beside its place and then renamed, so that what has the name is whole, whenever a run is killed. Any
number of processes reads what any number has written.

Nothing is pickled: torch's own format for distributed checkpoints keeps a pickle, ``.metadata``, in
the folder, and whoever loads a folder of unknown origin runs what it says. Safetensors hold numbers
only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from staircase_lib.language.folders import write_atomically
from staircase_lib.language.processes import count, on_first

__all__ = ["CheckpointError", "check", "differences", "latest", "load", "save"]

_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(Exception):
    """A checkpoint that is damaged, or of another run; says which, why and what to do."""


def differences(there: Any, here: Any, place: str = "") -> list[str]:
    """Where two descriptions differ, as ``name: value there, value here``.

    Parameters
    ----------
    there, here : dict
        Nested, of JSON values.

    Returns
    -------
    list of str
        In order of the names.
    """
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        names = sorted({*there, *here})
        return [
            line
            for name in names
            for line in differences(
                there.get(name), here.get(name), f"{place}.{name}" if place else str(name)
            )
        ]
    return [] if there == here else [f"{place}: {there!r} there, {here!r} here"]


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run's folder, or None if there is none."""
    return max(_all(folder / "checkpoints"), key=_step_of, default=None)


def _all(place: Path) -> list[Path]:
    found = place.iterdir() if place.is_dir() else ()
    return [path for path in found if _NAME.fullmatch(path.name) and path.is_dir()]


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], run: Mapping[str, Any], keep: int | None
) -> Path:
    """Write a checkpoint, then remove the oldest ones.

    Parameters
    ----------
    folder : Path
        Of the run.
    step : int
    tensors : mapping of str to Tensor
        Sharded ones (DTensor) are written by the processes that hold their parts.
    run : mapping
        JSON values that tell this run from others.
    keep : int, optional
        How many checkpoints stay; None: all.

    Returns
    -------
    Path
        Of the checkpoint.

    Raises
    ------
    OSError
        If it cannot be written, in every process; the old ones are as they were.
    """
    place = folder / "checkpoints"
    writing, target = place / ".writing", place / f"step-{step:08d}"

    def begin() -> None:
        place.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(writing, ignore_errors=True)  # of a run that was killed while it wrote
        writing.mkdir()

    def finish() -> None:
        files = sorted(writing.glob("*.safetensors"))
        with ThreadPoolExecutor(4) as pool:
            digests = list(pool.map(_digest, files))
        header = {
            "step": step,
            "run": run,
            "files": {
                file.name: {"bytes": file.stat().st_size, "sha256": digest}
                for file, digest in zip(files, digests, strict=True)
            },
        }
        write_atomically(writing / "header.json", json.dumps(header, indent=1).encode())
        for path in (*files, writing / "header.json", writing):
            _to_disk(path)
        os.replace(writing, target)
        _to_disk(place)
        for old in sorted(_all(place), key=_step_of)[: -keep if keep else 0]:
            os.replace(old, writing)  # what has the name is whole
            shutil.rmtree(writing)

    on_first(begin)
    writer = HuggingFaceStorageWriter(str(writing), save_distributed=True)
    try:
        _alone_or_not(save_tensors, {**tensors}, storage_writer=writer)
        on_first(finish)
    except OSError:
        on_first(lambda: shutil.rmtree(writing, ignore_errors=True))  # a full disk gets room again
        raise
    return target


def check(checkpoint: Path, run: Mapping[str, Any] | None = None) -> int:
    """See that a checkpoint is whole, and of the run that it is to be loaded into.

    Parameters
    ----------
    checkpoint : Path
    run : mapping, optional
        As in :func:`save`. None: of any run.

    Returns
    -------
    int
        Its step.

    Raises
    ------
    CheckpointError
    """
    header = _header(checkpoint)
    if run is not None:
        differ = differences(header["run"], json.loads(json.dumps(run)))
        if differ:
            kinds = {
                **{"vocabulary": "vocabulary", "model.vocab_size": "vocabulary"},
                **{"ids": "corpus", "config": "configuration", "model": "configuration"},
                "": "initialization",
            }
            kind = next(
                word for start, word in kinds.items() if any(d.startswith(start) for d in differ)
            )
            more = f" and {len(differ) - 8} more" if len(differ) > 8 else ""
            raise CheckpointError(
                f"{checkpoint}: of a run with another {kind}: {'; '.join(differ[:8])}{more}. "
                f"Give another folder, or the settings that this one was made with."
            )
    instead = (
        f"Remove {checkpoint} to go on from an older checkpoint, or from the start if there is none"
    )
    present = {path.name for path in checkpoint.glob("*.safetensors")}
    if present != set(header["files"]):
        raise CheckpointError(
            f"{checkpoint}: expected the files {sorted(header['files'])}, found {sorted(present)}. "
            f"{instead}."
        )
    for name, known in header["files"].items():
        came = (checkpoint / name).stat().st_size
        if came != known["bytes"]:
            raise CheckpointError(
                f"{checkpoint / name}: expected {known['bytes']} bytes, got {came}; the file was "
                f"cut. {instead}."
            )
        if _digest(checkpoint / name) != known["sha256"]:
            raise CheckpointError(
                f"{checkpoint / name}: not the content that was written (SHA-256 differs). "
                f"{instead}."
            )
    return header["step"]


def load(
    checkpoint: Path, tensors: Mapping[str, Tensor], run: Mapping[str, Any] | None = None
) -> int:
    """Read a checkpoint into tensors of the same names and shapes, sharded or not.

    Parameters
    ----------
    checkpoint : Path
    tensors : mapping of str to Tensor
        Filled in place. Those of the checkpoint that are not named here are not read.
    run : mapping, optional
        As in :func:`check`.

    Returns
    -------
    int
        Its step.

    Raises
    ------
    CheckpointError
        As :func:`check`, and if a tensor is not there or has another shape.
    """
    step = on_first(lambda: check(checkpoint, run))
    reader = HuggingFaceStorageReader(str(checkpoint))
    known = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        size = tuple(getattr(known.get(name), "size", ())) if name in known else None
        if size != tuple(tensor.shape):
            raise CheckpointError(
                f"{checkpoint}: expected {name} of shape {tuple(tensor.shape)}, "
                f"{'it is not there' if size is None else f'got {size}'}; build the model of the "
                f"run that wrote it."
            )
    _alone_or_not(load_tensors, {**tensors}, storage_reader=reader)
    return step


def _alone_or_not(work: Any, tensors: dict[str, Tensor], **storage: Any) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        # torch says that it works without other processes, as it is told to.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            work(tensors, no_dist=count() == 1, **storage)
        except CheckpointException as failed:  # what went wrong in some process, in every one
            (process, (error, _)), *_ = failed.failures.items()
            if isinstance(error, OSError | KeyboardInterrupt):
                raise error from None
            raise CheckpointError(f"process {process}: {error}") from error


def _header(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / "header.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(found["run"], dict) and type(found["step"]) is int
        for known in found["files"].values():
            whole = whole and type(known["bytes"]) is int and isinstance(known["sha256"], str)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as the header of a checkpoint ({error!r})."
        ) from None
    if not whole:
        raise CheckpointError(f"{path}: not the header of a checkpoint.")
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    """Have the operating system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
