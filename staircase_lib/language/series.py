"""Checkpoints that others have published, and what can be read of them without running them.

A series is a model of the Hugging Face hub whose revisions are steps of its training (Pythia,
OLMo), or a folder with a folder for each: ``DIR/step0/config.json``, weights, ``tokenizer.json``.
The embeddings are rows of one tensor, and no more than these rows are read: ``safetensors`` files
are opened, whole or in shards, and sliced. Nothing of a series is run: no code that comes with a
model, no pickle but tensors (``weights_only``).

They are measured in :mod:`~staircase_lib.language.series_measurement`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Checkpoint",
    "SeriesError",
    "embedding_rows",
    "embedding_shape",
    "open_series",
    "step_of",
    "tokenizer_file",
]

# How the tensors of token embeddings are called, by families of models.
_EMBEDDINGS = (
    "embed_in.weight",  # GPT-NeoX: Pythia
    "embed_tokens.weight",  # Llama, OLMo, Qwen, Gemma, OPT
    "wte.weight",  # GPT-2
    "word_embeddings.weight",  # BLOOM, Falcon
    "tok_embeddings.weight",
)
_UNEMBEDDINGS = ("lm_head.weight", "embed_out.weight", "output.weight")
_WEIGHTS = (
    *("model.safetensors.index.json", "model.safetensors"),
    *("pytorch_model.bin.index.json", "pytorch_model.bin"),
)


class SeriesError(Exception):
    """A series, a revision or a file of it that is not what it should be; says which and why."""


def step_of(revision: str) -> int:
    """Training step that a revision's name tells: ``step512``, ``step1000-tokens4B``.

    Raises
    ------
    SeriesError
        If it tells none, as ``main``.
    """
    found = re.search(r"step[-_]?(\d+)", revision) or re.fullmatch(r"\D*?(\d+)", revision)
    if found is None:
        raise SeriesError(
            f"revisions: expected names that tell a step, such as step512, got {revision!r}; the "
            f"last checkpoint often has one of these names too."
        )
    return int(found[1])


@dataclass(frozen=True)
class Checkpoint:
    """One revision of a series.

    Attributes
    ----------
    name : str
        Of the series: a name of the hub, or a folder.
    revision : str
    step : int
    folder : Path or None
        Where its files are; None if they are fetched from the hub when needed.
    """

    name: str
    revision: str
    step: int
    folder: Path | None = None

    def __str__(self) -> str:
        return f"{self.name}, {self.revision}"

    def file(self, name: str) -> Path | None:
        """A file of the revision, or None if it has no such file.

        Raises
        ------
        SeriesError
            If it cannot be fetched, or there is no such model or revision.
        """
        if self.folder is not None:
            path = self.folder / name
            return path if path.is_file() else None
        from huggingface_hub import errors, hf_hub_download

        try:
            with _explained(self):
                return Path(hf_hub_download(self.name, name, revision=self.revision))
        except errors.EntryNotFoundError:
            return None

    def fetched(self, patterns: Sequence[str]) -> Path:
        """A folder with its files, of the hub's those whose names fit one of the patterns.

        Raises
        ------
        SeriesError
            As :meth:`file`.
        """
        if self.folder is not None:
            return self.folder
        from huggingface_hub import snapshot_download

        with _explained(self):
            return Path(
                snapshot_download(self.name, revision=self.revision, allow_patterns=list(patterns))
            )

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        path = self.file("config.json")
        if path is None:
            raise SeriesError(f"{self}: expected a config.json beside the weights; there is none.")
        return _read_json(path)

    @cached_property
    def weights(self) -> dict[str, Path]:
        """File of each tensor; the files are not read further than their headers."""
        unreachable = None
        for name in _WEIGHTS:
            try:
                path = self.file(name)
            except SeriesError as error:  # without a network, the other kinds may be in the cache
                unreachable = error
                continue
            if path is None:
                continue
            if not name.endswith(".json"):
                with _opened(path) as tensors:
                    return dict.fromkeys(tensors.keys(), path)
            shards = _read_json(path).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise SeriesError(f"{path}: expected a weight_map from tensors to files.")
            return {tensor: self._shard(file) for tensor, file in shards.items()}
        if unreachable is not None:
            raise unreachable
        raise SeriesError(
            f"{self}: expected weights as model.safetensors, whole or in shards with "
            f"model.safetensors.index.json, or as pytorch_model.bin; there are none."
        )

    def _shard(self, name: Any) -> Path:
        if not isinstance(name, str) or Path(name).name != name:
            raise SeriesError(f"{self}: expected shards beside their index, got {name!r}.")
        return Path(name)  # fetched when a tensor of it is wanted

    def tensor_file(self, tensor: str) -> Path:
        """The file that holds a tensor, fetched if need be."""
        path = self.weights[tensor]
        found = path if path.is_absolute() or path.is_file() else self.file(path.name)
        if found is None:
            raise SeriesError(f"{self}: its index names {path.name}, which is not there.")
        return found


def open_series(name: str, revisions: Sequence[str]) -> tuple[Checkpoint, ...]:
    """The revisions of a series, in order of their steps.

    Parameters
    ----------
    name : str
        A folder with a folder a revision; a folder of the hub's cache (``models--ORG--NAME``); or
        the name of a model on the hub, ``ORG/NAME``.
    revisions : sequence of str

    Raises
    ------
    SeriesError
        If a revision is not there, tells no step, or two tell the same.
    """
    root = Path(name)
    if not root.is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise SeriesError(
            f"model: expected a folder, or ORG/NAME as on the hub; there is no folder {name!r}."
        )
    found = []
    for revision in revisions:
        step = step_of(revision)
        folder = _local(root, revision) if root.is_dir() else None
        found.append(Checkpoint(name, revision, step, folder))
    found.sort(key=lambda checkpoint: checkpoint.step)
    for one, other in zip(found, found[1:], strict=False):
        if one.step == other.step:
            raise SeriesError(
                f"revisions: expected different steps, but {one.revision} and {other.revision} "
                f"are both step {one.step}."
            )
    return tuple(found)


def _local(root: Path, revision: str) -> Path:
    reference = root / "refs" / revision
    folder = root / revision
    if reference.is_file():  # as the hub's cache keeps it
        folder = root / "snapshots" / reference.read_text().strip()
    if not folder.is_dir():
        there = sorted(p.name for p in root.iterdir() if p.is_dir())
        told = ", ".join(there[:12]) + (", …" if len(there) > 12 else "")
        raise SeriesError(f"{root}: no revision {revision!r}; there are {told or 'none'}.")
    return folder


@contextmanager
def _explained(checkpoint: Checkpoint) -> Iterator[None]:
    """Errors of the hub, told as what to do. A missing file is left to the caller."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        raise SeriesError(
            f"{checkpoint.name}: no revision {checkpoint.revision!r} on the hub; its page lists "
            f"them under Files, as branches."
        ) from None
    except (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.HFValidationError):
        raise SeriesError(
            f"{checkpoint.name}: no such model on the hub, or one that asks for a login "
            f"(`hf auth login`)."
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise SeriesError(
            f"{checkpoint}: the hub cannot be reached and the files are not in its cache. Where "
            f"there is a network, `hf download {checkpoint.name} --revision "
            f"{checkpoint.revision} --local-dir DIR/{checkpoint.revision}` for each revision, and "
            f"then give --model DIR here."
        ) from error
    except errors.EntryNotFoundError:
        raise
    except errors.HfHubHTTPError as error:
        raise SeriesError(f"{checkpoint}: the hub answered: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SeriesError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise SeriesError(f"{path}: expected a JSON object, got {type(found).__name__}.")
    return found


# --- Embeddings ----------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Tensors of a file by name, without reading them."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as tensors:
                yield tensors
        else:
            yield _Pickled(path)
    except (SafetensorError, OSError, EOFError, RuntimeError) as error:
        raise SeriesError(
            f"{path}: cannot be read, it was cut or damaged ({error}); fetch it again."
        ) from None


class _Pickled:
    """A file of torch's as safetensors are read; refused if it holds anything but tensors."""

    def __init__(self, path: Path) -> None:
        import pickle
        import zipfile

        import torch

        mapped = zipfile.is_zipfile(path)  # torch's older format cannot be
        try:
            self.tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError:
            raise SeriesError(
                f"{path}: holds more than tensors, or is damaged; it is not read, since a pickle "
                f"can run anything. Convert it to safetensors where you trust it."
            ) from None

    def keys(self) -> list[str]:
        return list(self.tensors)

    def get_slice(self, name: str) -> Any:
        return _Slice(self.tensors[name])


class _Slice:
    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, rows: slice) -> Any:
        return self.tensor[rows]


def _shape(checkpoint: Checkpoint, tensor: str) -> tuple[int, ...]:
    with _opened(checkpoint.tensor_file(tensor)) as tensors:
        if tensor not in tensors.keys():  # noqa: SIM118  # safetensors' files have keys() only
            raise SeriesError(f"{checkpoint}: its index promises {tensor}, which is not there.")
        return tuple(tensors.get_slice(tensor).get_shape())


def _sizes(config: dict[str, Any]) -> tuple[int | None, int | None]:
    """Vocabulary and width as a configuration tells them; of the text, in a model for several."""
    inner = config.get("text_config")
    told = {**config, **inner} if isinstance(inner, dict) else config
    width = next((told[key] for key in ("hidden_size", "n_embd", "d_model") if key in told), None)
    return told.get("vocab_size"), width


def _embedding_name(checkpoint: Checkpoint, tensor: str | None) -> str:
    names = list(checkpoint.weights)
    if tensor is not None:
        if tensor not in names:
            near = [name for name in names if "emb" in name or "wte" in name][:8]
            raise SeriesError(
                f"{checkpoint}: no tensor {tensor!r}; those with a like name: "
                f"{', '.join(near) or 'none'}."
            )
        return tensor
    found = [name for name in names if name.endswith(_EMBEDDINGS)]
    if len(found) != 1:  # by shape, then; a tied matrix may be kept under the name of the other
        V, d = _sizes(checkpoint.config)
        pool = found or [n for n in names if n.endswith(".weight")]
        found = [name for name in pool if _shape(checkpoint, name) == (V, d)]
        inner = [name for name in found if not name.endswith(_UNEMBEDDINGS)]
        found = inner or found
    if len(found) != 1:
        told = ", ".join(found[:8]) or f"none of {len(names)} tensors looks like it"
        raise SeriesError(
            f"{checkpoint}: expected one matrix of token embeddings, a row a token, got {told}. "
            f"Name it with --tensor."
        )
    return found[0]


def embedding_shape(checkpoint: Checkpoint, tensor: str | None = None) -> tuple[int, int]:
    """Rows and width of the embeddings, from headers only.

    Raises
    ------
    SeriesError
        As :func:`embedding_rows`.
    """
    name = _embedding_name(checkpoint, tensor)
    shape = _shape(checkpoint, name)
    V, _ = _sizes(checkpoint.config)
    if len(shape) != 2 or (V is not None and shape[0] != V):
        raise SeriesError(
            f"{checkpoint}: {name} has shape {shape}, but config.json speaks of a vocabulary of "
            f"{V}; they are not of one model."
        )
    return shape[0], shape[1]


def embedding_rows(
    checkpoint: Checkpoint, tokens: NDArray[np.integer], tensor: str | None = None
) -> NDArray[np.float32]:
    """Embeddings of some tokens, shape (A, d); only these rows are read.

    Parameters
    ----------
    checkpoint : Checkpoint
    tokens : int array, shape (A,)
    tensor : str, optional
        Name of the matrix. Default: found by the names of known families, or by its shape.

    Raises
    ------
    SeriesError
        If there is no such matrix or more than one, a token has no row in it, it holds numbers
        that are not finite, or a file is missing or damaged.
    """
    import torch

    rows, _ = embedding_shape(checkpoint, tensor)
    name = _embedding_name(checkpoint, tensor)
    if len(tokens) and not 0 <= min(tokens) <= max(tokens) < rows:
        raise SeriesError(
            f"{checkpoint}: expected tokens in [0, {rows}), the rows of {name}, got "
            f"{int(max(tokens))}; the text was made into tokens with another tokenizer."
        )
    with _opened(checkpoint.tensor_file(name)) as tensors:
        part = tensors.get_slice(name)
        found = torch.cat([part[int(t) : int(t) + 1] for t in tokens]).float().numpy()
    if not np.isfinite(found).all():
        raise SeriesError(f"{checkpoint}: {name} holds numbers that are not finite.")
    return found


def tokenizer_file(series: Sequence[Checkpoint]) -> Path:
    """The ``tokenizer.json`` of a series: that of its first revision that has one.

    Raises
    ------
    SeriesError
        If there is none, or a revision on this disk has another.
    """
    files = [checkpoint.file("tokenizer.json") for checkpoint in series if checkpoint.folder]
    if not files:
        files = [series[-1].file("tokenizer.json")]
    root = Path(series[0].name) / "tokenizer.json"
    found = [file for file in files if file is not None] or ([root] if root.is_file() else [])
    if not found:
        raise SeriesError(
            f"{series[0].name}: expected a tokenizer.json in a revision; give one with --tokenizer."
        )
    first = found[0].read_bytes()
    for file in found[1:]:
        if file.read_bytes() != first:
            raise SeriesError(
                f"{file} is another tokenizer than {found[0]}: token numbers do not mean the same "
                f"in both revisions."
            )
    return found[0]
