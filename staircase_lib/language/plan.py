"""What a training run is: its settings, learning rate, order of the data and cost.

**Order of the data.** The ids are cut into sequences of ``length`` inputs and the token after each,
documents following each other with their separators as they are. Every epoch takes all sequences
once, in an order of (seed, epoch) alone. So what step ``s`` reads follows from (seed, s), however
many processes share it and wherever the run was taken up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from staircase_lib.language.configurations import flops_per_token, parameter_count
from staircase_lib.language.transformer import Transformer
from staircase_lib.training import snapshot_steps

__all__ = ["FREE", "DataOrder", "PretrainConfig", "cost", "learning_rate"]

#: Settings that change how a run is computed or kept, but not what it computes.
FREE = ("accumulate", "compile", "loss_chunk", "checkpoint_every", "keep")


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of a training run.

    Attributes
    ----------
    steps : int
    batch : int
        Sequences a step, of all processes together.
    length : int
        Tokens that a sequence predicts.
    lr : float
        Highest learning rate, reached after the warm-up.
    warmup : int
        Steps in which the learning rate rises linearly.
    decay : {"cosine", "linear", "constant"}
        How it falls after them.
    final_lr : float, optional
        Learning rate that it falls to. Default: a tenth of ``lr``.
    weight_decay : float
        Of matrices, tables of embeddings among them; gains of norms do not decay.
    betas, eps
        Of AdamW. Under small initialization gradients start far below the usual scale; where they
        are below ``eps`` AdamW moves less than the learning rate says.
    clip : float, optional
        Largest norm of the gradient, of each run by itself. None: not clipped.
    seed : int
        Of the order of the data; run ``r`` of a batch of runs has ``seed + r``.
    accumulate : int
        Parts in which a batch is computed, one after the other; saves memory, changes nothing else.
    precision : {"float32", "bfloat16"}
        Of the products of matrices. Parameters and AdamW's averages stay in float32.
    compile : bool
        Compile every block, and the softmax of the loss, with ``torch.compile``.
    loss_chunk : int
        Positions whose logits exist at a time.
    checkpoint_every : int
        Checkpoints at steps 1, 2, 4, ... below this spacing, then evenly, and at the end.
    keep : int, optional
        Checkpoints that stay; None: all.
    measure_every : int, optional
        Measured are steps 0, 1, 2, 4, ... below this spacing, then its multiples, and the last.
        Default: a twentieth of the steps.
    measure_at : tuple of int, optional
        The measured steps themselves, instead.
    keep_rows : tuple of int
        Tokens whose embeddings are kept at every measured step.
    """

    steps: int
    batch: int
    length: int
    lr: float
    warmup: int = 0
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    final_lr: float | None = None
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float | None = 1.0
    seed: int = 0
    accumulate: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    loss_chunk: int = 1024
    checkpoint_every: int = 1000
    keep: int | None = 2
    measure_every: int | None = None
    measure_at: tuple[int, ...] | None = None
    keep_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("decay", "precision"):
            choices = {
                "decay": ("cosine", "linear", "constant"),
                "precision": ("float32", "bfloat16"),
            }[name]
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: expected one of {choices}, got {getattr(self, name)!r}.")
        least = dict.fromkeys(("steps", "batch", "length", "accumulate", "checkpoint_every"), 1)
        least |= {"keep": 1, "measure_every": 1, "loss_chunk": 1, "warmup": 0, "seed": 0}
        for name, low in least.items():
            _check_whole(name, getattr(self, name), low)
        for name in ("lr", "final_lr", "weight_decay", "eps", "clip"):
            value = getattr(self, name)
            number = isinstance(value, Real) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= float(value) < math.inf):
                raise ValueError(f"{name}: expected a finite number not below zero, got {value!r}.")
        if self.lr == 0 or self.clip == 0:
            raise ValueError("lr, clip: expected numbers above zero; nothing would move.")
        if self.final_lr is not None and self.final_lr > self.lr:
            raise ValueError(f"final_lr: expected at most lr={self.lr}, got {self.final_lr}.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: expected two numbers in [0, 1), got {self.betas!r}.")
        if self.warmup > self.steps:
            raise ValueError(f"warmup: expected at most steps={self.steps}, got {self.warmup}.")
        if self.batch % self.accumulate:
            raise ValueError(
                f"accumulate: expected a divisor of batch={self.batch}, got {self.accumulate}."
            )
        for name in ("measure_at", "keep_rows"):
            for value in getattr(self, name) or ():
                _check_whole(name, value, 0)
        if self.measure_at and max(self.measure_at) > self.steps:
            raise ValueError(
                f"measure_at: expected steps up to {self.steps}, got {max(self.measure_at)}."
            )

    def measured_steps(self) -> NDArray[np.int64]:
        """Steps at which the run is measured, ascending."""
        if self.measure_at is not None:
            return np.unique(np.array(self.measure_at, dtype=np.int64))
        return snapshot_steps(self.steps, self.measure_every or max(self.steps // 20, 1))


def _check_whole(name: str, value: Any, least: int) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is not None and not (whole and int(value) >= least):
        raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}.")


def learning_rate(config: PretrainConfig, step: int) -> float:
    """Learning rate of a step: linear warm-up, then decay down to the last step's."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.decay == "constant":
        return config.lr
    final = config.lr / 10 if config.final_lr is None else config.final_lr
    share = (step - config.warmup) / max(config.steps - 1 - config.warmup, 1)
    left = 1 - share if config.decay == "linear" else (1 + math.cos(math.pi * share)) / 2
    return final + (config.lr - final) * left


def cost(model: Transformer, config: PretrainConfig) -> dict[str, float]:
    """What a run takes.

    Parameters
    ----------
    model : Transformer
        May be :func:`~staircase_lib.language.configurations.unallocated`.
    config : PretrainConfig

    Returns
    -------
    dict
        ``parameters``; ``tokens`` and ``flops`` of the whole run; ``state_bytes``, of parameters,
        gradients and AdamW's averages in all processes together, to which the stream of a part of
        the batch comes; ``checkpoint_bytes``.
    """
    runs = model.runs or 1
    parameters = parameter_count(model)["total"] * runs
    tokens = config.steps * config.batch * config.length * runs
    return {
        "parameters": parameters,
        "tokens": tokens,
        "flops": flops_per_token(model, config.length) * tokens,
        "state_bytes": 16 * parameters,
        "checkpoint_bytes": 12 * parameters,
    }


class DataOrder:
    """Which sequences of a corpus a step reads.

    Parameters
    ----------
    ids : int
        Number of ids.
    length : int
        Tokens that a sequence predicts; it reads ``length + 1``.
    seed : int

    Raises
    ------
    ValueError
        If there are not enough ids for one sequence.
    """

    def __init__(self, ids: int, length: int, seed: int) -> None:
        if ids < length + 1:
            raise ValueError(
                f"ids: expected at least length + 1 = {length + 1}, one sequence and the token "
                f"after it, got {ids}; lower length, or take a longer text."
            )
        self.sequences = (ids - 1) // length
        self.length, self.seed = length, seed
        self.slack = ids - 1 - self.sequences * length
        self._epoch: tuple[int, NDArray[np.int64]] | None = None

    def starts(self, step: int, batch: int) -> NDArray[np.int64]:
        """Positions at which the sequences of a step start, shape (batch,)."""
        epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), self.sequences)
        parts = [self._starts_of(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def _starts_of(self, epoch: int) -> NDArray[np.int64]:
        if self._epoch is None or self._epoch[0] != epoch:
            source = np.random.default_rng([self.seed, int(epoch)])
            # What is left over of the text stands at its start or its end, another part each time.
            first = source.integers(self.slack + 1)
            self._epoch = epoch, first + self.length * source.permutation(self.sequences)
        return self._epoch[1]
