r"""The feed-forward model's loss over a whole task, and its gradient in the same pass.

For :math:`f(X)=U^\top\sigma(z_X)` with :math:`z_X=\sum_lW^\top E_{x_l}`, weights :math:`w_s` and
residuals :math:`r_X=\sum_{s:\,X_s=X}w_s\big(\mathrm{softmax}f(X)-e_{y_s}\big)`,

.. math:: \nabla_U=\sum_X\sigma(z_X)\,r_X^\top,\qquad
          \Delta_x=\sum_X\#\{l:x_l=x\}\;\sigma'(z_X)\odot U\,r_X,\qquad
          \nabla_E=\Delta\,W^\top,\quad\nabla_W=E^\top\Delta.

These are the numbers of automatic differentiation, up to the order of rounding, in less time:
sequences that the model cannot tell apart are read once, with the weights of all their labels;
embeddings are projected before they are gathered, and gradients gathered before they are projected
back; everything between happens run by run, in blocks of sequences that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from staircase_lib.models import EmbeddingFFN, FixedEmbeddingFFN
from staircase_lib.tasks import Task

__all__ = ["Objective"]

#: Hidden units of a block: a megabyte in float32, a core's second-level cache.
_UNITS = 2**18


@cache
def _single_product() -> Callable[[Tensor, Tensor], Tensor]:
    """The faster product of two matrices in float32: by oneDNN, or as torch does it.

    MKL, which torch takes for float32, uses half of the width of AVX-512 on AMD's processors. What
    reaches oneDNN is no part of torch's interface and may be gone, or mean something else, in
    another version: it is tried on numbers whose product is exact.
    """

    def by_onednn(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(a, b.T, None, "none", [], "")

    if torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512":
        a, b = (torch.arange(12, dtype=torch.float32).reshape(size) for size in ((4, 3), (3, 4)))
        with suppress(AttributeError, RuntimeError, TypeError):
            if torch.equal(by_onednn(a, b), a @ b):
                return by_onednn
    return torch.mm


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two matrices, rounded as their precision does."""
    return _single_product()(a, b) if a.dtype == torch.float32 else torch.mm(a, b)


@dataclass(frozen=True)
class _Block:
    """Some distinct sequences.

    Attributes
    ----------
    tokens : Tensor, shape (b, L)
    weights : Tensor, shape (b,)
        Of each sequence, over all its labels.
    occurrences, bounds : Tensor, shapes (b L,) and (V + 1,)
        ``tokens`` the other way round: the sequences in which token 0 occurs, then token 1, …
    cells : tuple of Tensor, each of shape (c,)
        Sequence and label of each row of the task.
    cell_weights : Tensor, shape (c,)
    """

    tokens: Tensor
    weights: Tensor
    occurrences: Tensor
    bounds: Tensor
    cells: tuple[Tensor, Tensor]
    cell_weights: Tensor

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """This block's part of the loss."""
        return logits.logsumexp(-1) @ self.weights - logits[self.cells] @ self.cell_weights

    def accuracy(self, logits: Tensor) -> Tensor:
        """This block's part of the accuracy."""
        rows, labels = self.cells
        return (logits.argmax(-1)[rows] == labels).to(logits.dtype) @ self.cell_weights


def _blocks(task: Task, hidden: int, dtype: torch.dtype) -> list[_Block]:
    """A task's distinct sequences, in as few blocks as fit the cache, of about equal size."""
    # The model adds embeddings up: it reads the multiset of a sequence.
    distinct, row = np.unique(np.sort(task.tokens, axis=1), axis=0, return_inverse=True)
    row = row.ravel()  # the distinct sequence of each row of the task
    size = math.ceil(len(distinct) / math.ceil(len(distinct) * hidden / _UNITS))
    blocks = []
    for start in range(0, len(distinct), size):
        tokens = distinct[start : start + size]
        inside = (row >= start) & (row < start + size)
        rows, labels, weights = row[inside] - start, task.labels[inside], task.weights[inside]
        order = np.argsort(tokens, axis=None, kind="stable")
        bounds = np.searchsorted(tokens.ravel()[order], np.arange(task.vocab_size + 1))
        blocks.append(
            _Block(
                torch.tensor(tokens),
                torch.tensor(np.bincount(rows, weights), dtype=dtype),
                torch.tensor(order // task.length),
                torch.tensor(bounds),
                (torch.tensor(rows), torch.tensor(labels)),
                torch.tensor(weights, dtype=dtype),
            )
        )
    return blocks


class _Pass(torch.autograd.Function):
    """Loss and accuracy of each run; its gradients wait until they are asked for."""

    @staticmethod
    def forward(
        ctx: Any, E: Tensor, W: Tensor, U: Tensor, blocks: list[_Block], sigma: Any, measure: bool
    ) -> tuple[Tensor, Tensor]:
        differentiate = any(ctx.needs_input_grad)
        loss, accuracy = E.new_full((2, len(E)), 0.0 if measure else math.nan).unbind()
        d_E, d_W, d_U = (torch.empty_like(x) for x in (E, W, U))
        for run in range(len(E)):
            projected = _product(E[run], W[run])  # (V, h)
            d_projected, d_readout = torch.zeros_like(projected), torch.zeros_like(projected)
            for block in blocks:
                z = functional.embedding_bag(block.tokens, projected, mode="sum")  # (b, h)
                with torch.enable_grad():  # the activation's slope is left to torch
                    hidden = sigma(z.requires_grad_(differentiate))
                state = hidden.detach()
                logits = _product(state, U[run])  # (b, V)
                if measure:
                    loss[run] += block.cross_entropy(logits)
                    accuracy[run] += block.accuracy(logits)
                if differentiate:
                    residual = torch.softmax(logits, dim=-1, out=logits)  # w (p - e_y), in place
                    residual.mul_(block.weights[:, None])
                    residual.index_put_(block.cells, -block.cell_weights, accumulate=True)
                    d_readout += _product(residual.T, state)
                    (d_z,) = torch.autograd.grad(hidden, z, _product(residual, U[run].T))
                    d_projected += functional.embedding_bag(
                        block.occurrences, d_z, block.bounds, mode="sum", include_last_offset=True
                    )
            d_E[run] = _product(d_projected, W[run].T)
            d_W[run] = _product(E[run].T, d_projected)
            d_U[run] = d_readout.T
        ctx.save_for_backward(d_E, d_W, d_U)
        ctx.mark_non_differentiable(accuracy)
        return loss, accuracy

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        scale = upstream[0][:, None, None]
        return *(scale * gradient for gradient in ctx.saved_tensors), None, None, None


class Objective:
    """Weighted mean cross-entropy of a feed-forward model over a task.

    Parameters
    ----------
    model : EmbeddingFFN or FixedEmbeddingFFN
        On the CPU.
    task : Task
        Of the model's vocabulary.
    """

    def __init__(self, model: EmbeddingFFN | FixedEmbeddingFFN, task: Task) -> None:
        self.model = model
        self.blocks = _blocks(task, model.hidden, model.W_U.dtype)

    def __call__(self, measure: bool = True) -> tuple[Tensor, Tensor]:
        """Loss of each run, which can be differentiated, and its accuracy.

        Parameters
        ----------
        measure : bool
            False: the loss is differentiated only; its value is not computed, and both are nan.

        Returns
        -------
        loss, accuracy : Tensor, shape (R,)
        """
        model = self.model
        E = model.scale * model.table if isinstance(model, FixedEmbeddingFFN) else model.W_E
        parts = (E, model.W_in, model.W_U)
        lead = (x[None] if model.runs is None else x for x in parts)
        return _Pass.apply(*lead, self.blocks, model.sigma, measure)
