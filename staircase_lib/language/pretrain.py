r"""Next-token training of a Transformer, from a laptop's minute to a cluster's day.

The loop is written out, as in :mod:`staircase_lib.training`: measure and save *before* each step,
so that step 0 and the last are both there. AdamW moves the parameters, with decay of the matrices
only; the learning rate warms up and decays; gradients are accumulated and clipped.

Settings, learning rate, order of the data and cost are in :mod:`staircase_lib.language.plan`.

**Resuming.** With a folder, the same call goes on from the last checkpoint. In one process the
losses are those of a run that was never interrupted, bit for bit, on the same machine and number of
threads; with another number of processes sums are taken in another order, and losses agree to
about 1e-5 of their value over tens of steps in float32 (in long runs they drift apart slowly, as
two such runs do).

**Several processes.** Under ``torchrun`` every block of the model is sharded by FSDP2, and each
process reads its share of the batch; see :mod:`staircase_lib.language.processes`. Measured is a
whole copy of the model in the first process, which the others wait for.

Shapes: ``R`` runs, ``T`` steps, ``S`` measured steps, ``A`` chosen tokens, ``d`` width.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from staircase_lib.language import checkpoints
from staircase_lib.language.folders import locked, write_atomically
from staircase_lib.language.plan import FREE, DataOrder, PretrainConfig, learning_rate
from staircase_lib.language.precision import check_precision
from staircase_lib.language.processes import count, on_first, rank
from staircase_lib.language.tokens import TokenFile
from staircase_lib.language.transformer import Transformer
from staircase_lib.training import snapshot_steps

__all__ = ["History", "PretrainConfig", "pretrain", "tokenizer_hash"]

Observe = Callable[[int, Transformer], Iterable[Mapping[str, Any]]]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class History:
    """What a training run leaves behind.

    Attributes
    ----------
    config : PretrainConfig
    losses : float64 array, shape (T, R)
        Mean cross-entropy of the batch of each step, in nats, before the step.
    grad_norm : float64 array, shape (T, R)
        Norm of the gradient before it was clipped.
    lr : float64 array, shape (T,)
    rows : DataFrame
        What ``observe`` returned, with a column ``step``. In the first process only.
    measured : int64 array, shape (S,)
    kept : float32 array, shape (S, R, A, d)
        Embeddings of ``config.keep_rows`` at the measured steps. In the first process only.
    started : int
        Step at which this call took the run up; 0 if it began it.
    tokens_per_second : float
        Of this call's steps, without measuring and saving; NaN if there were none.
    notes : tuple of str
        What a reader of the numbers should know.
    """

    config: PretrainConfig
    losses: NDArray[np.float64]
    grad_norm: NDArray[np.float64]
    lr: NDArray[np.float64]
    rows: pd.DataFrame
    measured: NDArray[np.int64]
    kept: NDArray[np.float32]
    started: int
    tokens_per_second: float
    notes: tuple[str, ...]


def pretrain(
    model: Transformer,
    ids: NDArray[np.integer],
    config: PretrainConfig,
    *,
    folder: Path | str | None = None,
    observe: Observe | None = None,
    progress: Progress | None = None,
    vocabulary: str = "",
) -> History:
    """Train an initialized Transformer in place on the ids of a corpus, or go on with that.

    To go on, make the same call again, with the model as it was initialized.

    Parameters
    ----------
    model : Transformer
        With ``runs=R``, all runs train at once, each with an order of the data and a gradient of
        its own. In several processes it is sharded, and stays so.
    ids : int array, shape (N,)
        May be a memory map; separators of documents are tokens like others.
    config : PretrainConfig
    folder : path, optional
        Where checkpoints, losses and rows are kept. If there is a checkpoint of the same run, the
        run goes on from it; a run that has reached its end is read.
    observe : callable, optional
        Called as ``observe(step, model)`` at every measured step, in the first process and without
        gradients; returns tidy rows. The model is whole also where it is trained in parts.
    progress : callable, optional
        Called in the first process as ``progress(done, steps, text)``.
    vocabulary : str
        What tells the vocabulary from others of the same size, such as a hash of the tokenizer.

    Returns
    -------
    History

    Raises
    ------
    ValueError
        If the model was not initialized or is so small that products underflow, the corpus is
        shorter than a sequence, an id is beyond the vocabulary, or processes do not divide the
        batch.
    CheckpointError
        If the checkpoint in the folder is damaged, or of another configuration, vocabulary, corpus
        or start.
    FolderInUse
        If another run writes to the folder.
    FloatingPointError
        If a loss or a gradient is not finite; says where, and what the last checkpoint is.
    MemoryError
        If memory is short; says what to lower.
    """
    run = _Run(model, ids, config, Path(folder) if folder else None, vocabulary)
    with run.writing():
        return run.train(observe, progress)


class _Run:
    """State of a run: model, optimizer, order of the data, and what has been recorded."""

    def __init__(
        self,
        model: Transformer,
        ids: NDArray[np.integer],
        config: PretrainConfig,
        folder: Path | None,
        vocabulary: str,
    ) -> None:
        _check(model, ids, config)
        self.config, self.folder, self.ids = config, folder, ids
        self.runs = 1 if model.runs is None else model.runs
        self.order = [
            DataOrder(len(ids), config.length, config.seed + run) for run in range(self.runs)
        ]
        self.made_by = {
            "config": {name: value for name, value in asdict(config).items() if name not in FREE},
            "model": _description(model),
            "vocabulary": vocabulary,
            "ids": _fingerprint(ids),
            "start": _scales(model),
        }
        self.model = model
        self.notes: list[str] = []
        self.losses: list[NDArray[np.float64]] = []
        self.norms: list[NDArray[np.float64]] = []
        self.tables: dict[int, pd.DataFrame] = {}
        self.kept: dict[int, NDArray[np.float32]] = {}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only run that writes to the folder."""
        lock = nullcontext()
        if self.folder is not None and rank() == 0:
            lock = locked(self.folder)
        on_first(lock.__enter__)
        try:
            yield
        finally:
            if rank() == 0:
                lock.__exit__(None, None, None)

    # --- The loop ---

    def train(self, observe: Observe | None, progress: Progress | None) -> History:
        """Train from the last checkpoint, or the start, to the end."""
        config, self.saved = self.config, 0
        with self.explained(0):
            on_first(lambda: None if self.newest() else self.check_start())
        self.whole = copy.deepcopy(self.model) if count() > 1 and rank() == 0 and observe else None
        self.device = _spread(self.model) if count() > 1 else _device(self.model)
        if config.compile:
            self.model.compile_parts()
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = _optimizer(self.parameters.values(), config, self.model.runs)
        start = self.resume()
        measured = config.measured_steps()
        save = snapshot_steps(config.steps, config.checkpoint_every)
        self.optimizer.zero_grad()  # of a call that was interrupted
        seconds = 0.0
        for step in range(start, config.steps + 1):
            with self.explained(step):
                if step in measured and step not in self.tables:
                    self.measure(step, observe)
                begun = time.perf_counter()
                if step < config.steps:
                    self.gradients(step)
                spent = time.perf_counter() - begun
                # Saved is what has a finite gradient: a run that has diverged leaves no checkpoint.
                if step in save and step > start and self.folder is not None:
                    self.save(step)
                if step == config.steps:
                    break
                begun = time.perf_counter()
                self.move(step)
                seconds += spent + time.perf_counter() - begun
            done = step + 1 - start
            rate = done * config.batch * config.length * self.runs / seconds
            if progress and rank() == 0:
                loss = ", ".join(f"{value:.4f}" for value in self.losses[-1])
                progress(step + 1, config.steps, f"steps; loss {loss}; {rate:,.0f} tokens/s")
        return self.history(start, rate if start < config.steps else math.nan)

    def gradients(self, step: int) -> None:
        """Loss and clipped gradient of a step's batch."""
        config = self.config
        loss = torch.zeros(self.runs, dtype=torch.float64, device=self.device)
        batches = self.batches(step)
        for part, tokens in enumerate(batches):
            if count() > 1:  # gradients are summed over the processes once a step
                assert isinstance(self.model, FSDPModule)
                self.model.set_requires_gradient_sync(part == len(batches) - 1)
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"
            ):
                losses = self.model.loss(tokens, chunk=config.loss_chunk) / len(batches)
            losses.sum().backward()  # runs share no parameter: each has its own gradient
            loss += losses.detach().double().reshape(self.runs)
        if count() > 1:
            distributed.all_reduce(loss)
            loss /= count()
        norm = _clip_(self.parameters.values(), config.clip, self.model.runs)
        found = torch.stack([loss, norm.double().reshape(self.runs)]).cpu().numpy()
        if not np.isfinite(found).all():
            self.diverged(step, found)
        self.losses.append(found[0])
        self.norms.append(found[1])

    def move(self, step: int) -> None:
        """Move the parameters along the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def batches(self, step: int) -> list[Tensor]:
        """This process' share of a step's sequences, in parts."""
        share = self.config.batch // count()
        tokens = self.tokens(step, slice(rank() * share, (rank() + 1) * share))
        if self.device.type == "cuda":
            tokens = tokens.pin_memory().to(self.device, non_blocking=True)
        return list(tokens.chunk(self.config.accumulate, dim=-2))

    def tokens(self, step: int, chosen: slice) -> Tensor:
        """Sequences of a step's batch, shape (n, length + 1), or with runs (R, n, length + 1)."""
        config, size = self.config, self.model.vocab_size
        starts = np.stack([order.starts(step, config.batch)[chosen] for order in self.order])
        tokens = np.asarray(self.ids[starts[..., None] + np.arange(config.length + 1)], np.int64)
        if tokens.max() >= size or tokens.min() < 0:
            where = np.argwhere((tokens >= size) | (tokens < 0))[0]
            place = starts[tuple(where[:2])] + where[2]
            raise ValueError(
                f"ids: expected ids in [0, {size}), the model's vocabulary, got {self.ids[place]} "
                f"at position {place}; these are ids of another tokenizer."
            )
        return torch.from_numpy(tokens if self.model.runs is not None else tokens[0])

    # --- What is recorded ---

    @torch.no_grad()
    def measure(self, step: int, observe: Observe | None) -> None:
        """Have the model observed; keep the rows of chosen tokens."""
        model: Transformer | None = self.model
        if count() > 1:
            model = self.gathered() if observe else None
        rows: list[dict[str, Any]] = []
        if observe and rank() == 0:
            assert model is not None
            rows = [{"step": step, **row} for row in observe(step, model)]
        table = pd.DataFrame(rows, columns=None if rows else ["step"])
        embeddings = _full(self.parameters["W_E"])
        chosen = embeddings[..., list(self.config.keep_rows), :].float().cpu()
        self.tables[step] = table
        self.kept[step] = chosen.reshape(self.runs, -1, chosen.shape[-1]).numpy()
        if self.folder is not None and rank() == 0:
            from safetensors.numpy import save

            self.part("rows", step, "safetensors", save({"W_E": self.kept[step]}))
            self.part("rows", step, "parquet", table.to_parquet(index=False))

    def gathered(self) -> Transformer | None:
        """The whole model in the first process; None in the others."""
        for name, parameter in self.parameters.items():
            full = _full(parameter)
            if self.whole is not None:
                self.whole.get_parameter(name).copy_(full)
        return self.whole

    def save(self, step: int) -> None:
        """Write the losses since the last checkpoint, then a checkpoint."""
        assert self.folder is not None
        if rank() == 0:
            self.save_losses(step)
        checkpoints.save(self.folder, step, self.tensors(), self.made_by, self.config.keep)
        self.saved = step

    def save_losses(self, step: int) -> None:
        """Write the losses since the last checkpoint."""
        steps = np.arange(self.saved, step)
        table = pd.DataFrame(
            {
                "step": np.repeat(steps, self.runs),
                "run": np.tile(np.arange(self.runs), len(steps)),
                "loss": np.ravel(self.losses[self.saved : step]),
                "grad_norm": np.ravel(self.norms[self.saved : step]),
            }
        )
        self.part("losses", self.saved, "parquet", table.to_parquet(index=False))

    def part(self, kind: str, step: int, suffix: str, content: bytes) -> None:
        """Append a part to a table of the run: a file of its own, there whole or not at all."""
        assert self.folder is not None
        (self.folder / kind).mkdir(exist_ok=True)
        write_atomically(self.folder / kind / f"step-{step:08d}.{suffix}", content)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and AdamW's averages, by name."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            state = self.optimizer.state[parameter]
            found[f"model.{name}"] = parameter.detach()
            found[f"mean.{name}"] = state["exp_avg"]
            found[f"square.{name}"] = state["exp_avg_sq"]
        return found

    def newest(self) -> Path | None:
        """The last checkpoint, if there is one."""
        return None if self.folder is None else checkpoints.latest(self.folder)

    def resume(self) -> int:
        """Take the run up from its last checkpoint; returns the step."""
        if self.folder is None:
            return 0
        checkpoint = on_first(self.newest)
        step = 0
        if checkpoint is not None:
            step = checkpoints.load(checkpoint, self.tensors(), self.made_by)
            for parameter in self.parameters.values():
                self.optimizer.state[parameter]["step"].fill_(step)
        self.saved = step
        # Rows and losses of steps after the checkpoint are made again.
        for kind, least in (("rows", step + 1), ("losses", step)):
            for path in sorted((self.folder / kind).glob("step-*")):
                if int(path.stem.removeprefix("step-")) >= least and rank() == 0:
                    path.unlink()
        on_first(lambda: None)
        self.read(self.folder, step)
        return step

    def read(self, folder: Path, step: int) -> None:
        """Read losses and rows of the steps before the checkpoint."""
        from safetensors.numpy import load_file

        parts = sorted((folder / "losses").glob("step-*.parquet"))
        if parts:
            table = pd.concat([pd.read_parquet(part) for part in parts])
            by_step = table.sort_values(["step", "run"])
            self.losses = list(by_step["loss"].to_numpy().reshape(-1, self.runs))
            self.norms = list(by_step["grad_norm"].to_numpy().reshape(-1, self.runs))
        if len(self.losses) != step:
            raise checkpoints.CheckpointError(
                f"{folder / 'losses'}: expected the losses of {step} steps, found "
                f"{len(self.losses)}; files are missing. Give another folder, or delete it."
            )
        for part in sorted((folder / "rows").glob("step-*.parquet")):
            measured = int(part.stem.removeprefix("step-"))
            self.tables[measured] = pd.read_parquet(part)
            self.kept[measured] = load_file(part.with_suffix(".safetensors"))["W_E"]

    def history(self, start: int, rate: float) -> History:
        """What has been recorded, as arrays and one table."""
        steps = sorted(self.tables)
        empty = np.zeros((0, self.runs, len(self.config.keep_rows), self.model.d), np.float32)
        tables = [self.tables[step] for step in steps if len(self.tables[step])]
        shape = (len(self.losses), self.runs)
        return History(
            self.config,
            np.array(self.losses, np.float64).reshape(shape),
            np.array(self.norms, np.float64).reshape(shape),
            np.array([learning_rate(self.config, step) for step in range(len(self.losses))]),
            pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"step": []}),
            np.array(steps, np.int64),
            np.stack([self.kept[step] for step in steps]) if steps else empty,
            start,
            rate,
            tuple(self.notes),
        )

    # --- What goes wrong ---

    def check_start(self) -> None:
        """Refuse a start that underflows; note the tensors that AdamW moves less than it means."""
        dtype = next(iter(self.model.parameters())).dtype
        dtype = torch.bfloat16 if self.config.precision == "bfloat16" else dtype
        few = min(2, self.config.batch // self.config.accumulate)
        tokens = self.tokens(0, slice(few)).to(_device(self.model))
        largest = check_precision(self.model, tokens, dtype)
        small = [name for name, value in largest.items() if value < self.config.eps]
        if small:
            self.notes.append(
                f"gradient below AdamW's eps={self.config.eps:g} at the first step, so that it "
                f"moves by less than lr: {', '.join(small)}"
            )

    def last_good(self) -> str:
        """A sentence on what is left of the run."""
        if self.folder is None:
            return "There is no checkpoint, since no folder was given."
        newest = self.newest()
        return f"The last checkpoint is {newest}." if newest else "There is no checkpoint yet."

    def diverged(self, step: int, found: NDArray[np.float64]) -> None:
        """Stop a run whose loss or gradient is not finite, with what led there written."""
        config = self.config
        bad = [config.seed + int(run) for run in np.flatnonzero(~np.isfinite(found).all(axis=0))]
        of = f" for seeds {bad}" if self.runs > 1 else ""
        if self.folder is not None and rank() == 0:
            self.save_losses(step)
        lowest = ""
        if self.losses:
            means = np.mean(self.losses, axis=1)
            lowest = f"The loss was lowest at step {means.argmin()}, {means.min():.4g}. "
        raise FloatingPointError(
            f"training diverged at step {step}{of}: loss {found[0].tolist()}, norm of the gradient "
            f"{found[1].tolist()}, lr {learning_rate(config, step):.3g}. {lowest}Lower lr (now "
            f"{config.lr:g}), warm up longer (now {config.warmup} steps) or lower the initial "
            f"scale. {self.last_good()}"
        )

    @contextmanager
    def explained(self, step: int) -> Iterator[None]:
        """Say what to lower when memory is short."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            short = isinstance(error, (torch.OutOfMemoryError, MemoryError))
            if not short and "can't allocate memory" not in str(error):
                raise
            config = self.config
            at_once = config.batch // config.accumulate // count()
            raise MemoryError(
                f"out of memory at step {step}, with {at_once} sequences of {config.length} tokens "
                f"at once ({str(error).splitlines()[0][:120]}). Raise accumulate (now "
                f"{config.accumulate}): the run stays the same; then lower loss_chunk, length or "
                f"the model, or use more processes. {self.last_good()}"
            ) from error


# --- Before a run --------------------------------------------------------------------------------


def _check(model: Transformer, ids: NDArray[np.integer], config: PretrainConfig) -> None:
    """Refuse what cannot be trained."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"ids: expected a row of integers, got {ids.dtype} of shape {ids.shape}.")
    if config.length > model.length:
        raise ValueError(
            f"length: expected at most the model's {model.length} positions, got {config.length}."
        )
    if config.keep_rows and max(config.keep_rows) >= model.vocab_size:
        raise ValueError(
            f"keep_rows: expected tokens below {model.vocab_size}, got {max(config.keep_rows)}."
        )
    parts = count() * config.accumulate
    if config.batch % parts:
        raise ValueError(
            f"batch: expected a multiple of {count()} processes × accumulate={config.accumulate}, "
            f"got {config.batch}."
        )
    if count() > 1 and model.runs is not None:
        raise ValueError(
            "model: several runs at once train in one process; start one run with several."
        )
    parameters = dict(model.named_parameters())
    if not any(bool(p.any()) for p in parameters.values()):
        raise ValueError("model: every parameter is zero; call models.initialize_ first.")
    for name, parameter in parameters.items():
        if torch.finfo(parameter.dtype).eps > 1e-3:
            raise ValueError(
                f"{name}: expected parameters in float32, got {parameter.dtype}, in which small "
                f"steps are lost; precision='bfloat16' is for the products alone."
            )


def _description(model: Transformer) -> dict[str, Any]:
    """What tells a model from others: its settings, and the shapes of its parameters."""
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    return {**model.settings, "parameters": shapes}


def _scales(model: Transformer) -> dict[str, str]:
    """Root mean square of each parameter, to four digits: tells gammas and seeds apart."""
    named = model.named_parameters()
    return {name: f"{float(p.detach().double().square().mean().sqrt()):.3e}" for name, p in named}


def _fingerprint(ids: NDArray[np.integer]) -> dict[str, Any]:
    """Number of the ids, and a hash of 64 stretches of them."""
    digest = hashlib.sha256()
    for start in np.linspace(0, max(len(ids) - 4096, 0), 64).astype(np.int64):
        digest.update(np.asarray(ids[start : start + 4096], dtype="<u4").tobytes())
    return {"length": len(ids), "sha256": digest.hexdigest()}


def tokenizer_hash(tokens: TokenFile) -> str:
    """What tells a vocabulary from others: the hash of its tokenizer, empty if there is none."""
    tokenizer = tokens.tokenizer
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest() if tokenizer else ""


def _device(model: Transformer) -> torch.device:
    return next(iter(model.parameters())).device


def _spread(model: Transformer) -> torch.device:
    """Shard every block of a model over the processes, and the rest of it."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(kind, (count(),))
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else _device(model)
    model.to(device)
    with torch.no_grad():
        for parameter in model.parameters():  # the same start everywhere, whoever drew it
            distributed.broadcast(parameter.data, src=0)
    # Products are cast by autocast, as in one process: the same rounding however many there are.
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")
    return device


def _full(tensor: Any) -> Tensor:
    """A whole tensor, whether it is sharded or not."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()


def _optimizer(
    parameters: Iterable[Tensor], config: PretrainConfig, runs: int | None
) -> torch.optim.AdamW:
    """AdamW with its averages at zero; matrices decay."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter in parameters:
        groups[parameter.ndim - (runs is not None) >= 2].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": members, "weight_decay": config.weight_decay if matrices else 0.0}
            for matrices, members in groups.items()
            if members
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def _clip_(parameters: Iterable[Tensor], clip: float | None, runs: int | None) -> Tensor:
    """Scale gradients down to a norm; returns the norms before, shape () or (R,)."""
    moved = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in moved if p.grad is not None]
    if runs is None:
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = _full(norm)
        if clip is not None:
            torch.nn.utils.clip_grads_with_norm_(moved, clip, norm)
        return norm
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
    norm = torch.stack(squares).sum(0).sqrt()
    if clip is not None:
        scale = (clip / (norm + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(scale.reshape(-1, *[1] * (gradient.ndim - 1)))
    return norm
