r"""Next-token cross-entropy whose logits never exist as a whole.

The logits of ``N`` positions take ``N*V`` numbers: 20 GB in float32 for 16 sequences of 2048
tokens of a vocabulary of 152 thousand. But the gradient at one position needs its own logits only,

.. math:: \frac{\partial\ell}{\partial f}=\mathrm{softmax}(f)-e_y,

so both gradients, at the states and at the unembedding, are summed up while the chunks of logits
pass by, in the forward pass. Nothing is computed twice, and what is kept for the backward pass has
the size of the states and of the unembedding.

Shapes: ``R`` runs, ``N`` positions, ``d`` width, ``V`` vocabulary; without runs the first axis is
not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from staircase_lib.models import check_sizes

__all__ = ["chunked_cross_entropy", "take_residual"]

#: Turns logits into losses and residuals; :func:`take_residual`, or that compiled.
TakeResidual = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def take_residual(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    r"""Cross-entropy and residual of some logits, which are overwritten.

    Parameters
    ----------
    logits : Tensor, shape (R, c, V)
    targets : int64 Tensor, shape (R, c)

    Returns
    -------
    loss : Tensor, shape (R, c)
        In float32 at least.
    residual : Tensor, shape (R, c, V)
        :math:`\mathrm{softmax}(f)-e_y`, in the type of the logits.
    """
    dtype, targets = logits.dtype, targets.unsqueeze(-1)
    f = logits.to(torch.promote_types(dtype, torch.float32))
    f = f.sub_(f.amax(-1, keepdim=True))
    own = f.gather(-1, targets)
    f = f.exp_()
    sums = f.sum(-1, keepdim=True)
    loss = sums.log() - own
    residual = f.div_(sums).to(dtype)
    # P(y) - 1 without cancellation, also where P(y) is rounded to one.
    residual = residual.scatter_(-1, targets, torch.expm1(-loss).to(dtype))
    return loss.squeeze(-1), residual


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy (R,) of states (R, N, d) read by (R, d, V), targets (R, N)."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        readout: Tensor,
        targets: Tensor,
        chunk: int,
        dtype: torch.dtype,
        with_gradient: bool,
        residual_of: TakeResidual,
    ) -> Tensor:
        positions = states.shape[-2]
        wide = torch.promote_types(dtype, torch.float32)
        x, W = states.to(dtype), readout.to(dtype)
        total = torch.zeros(len(states), dtype=wide, device=states.device)
        if with_gradient:
            at_states = torch.empty_like(states)
            at_readout = torch.zeros_like(readout, dtype=wide)
        for start in range(0, positions, chunk):
            rows = slice(start, start + chunk)
            part = x[:, rows]
            losses, residual = residual_of(part @ W, targets[:, rows])
            total += losses.sum(-1)
            if not with_gradient:
                continue
            at_states[:, rows] = residual @ W.mT
            if dtype == wide:
                at_readout.baddbmm_(part.mT, residual)
            else:
                at_readout += part.mT @ residual
        if with_gradient:
            ctx.save_for_backward(at_states, at_readout)
        return total / positions

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor | None, ...]:
        at_states, at_readout = ctx.saved_tensors
        pull = (pull / at_states.shape[-2])[:, None, None]
        states = at_states * pull.to(at_states.dtype)
        return states, at_readout * pull, None, None, None, None, None


def chunked_cross_entropy(
    states: Tensor,
    readout: Tensor,
    targets: Tensor,
    chunk: int = 512,
    *,
    residual_of: TakeResidual = take_residual,
) -> Tensor:
    """Mean cross-entropy of the logits ``states @ readout``, and its gradients, chunk by chunk.

    Parameters
    ----------
    states : Tensor, shape (N, d) or (R, N, d)
        Normalised already.
    readout : Tensor, shape (d, V) or (R, d, V)
    targets : int64 Tensor, shape (N,) or (R, N)
        One for all runs, or one for each.
    chunk : int
        Positions at a time; memory for logits is ``2*R*chunk*V`` numbers. A processor is fastest
        with logits of about the size of its cache, a GPU with thousands of positions.
    residual_of : callable
        :func:`take_residual`, or that compiled: on a GPU it then reads and writes the logits a few
        times less.

    Returns
    -------
    Tensor, shape () or (R,)
        In float32 at least. Under autocast the products are in its type, and all else in float32.

    Raises
    ------
    ValueError
        If there are no positions, or as many states as targets there are not.

    Notes
    -----
    Differentiable once, in states and readout.
    """
    check_sizes(chunk=chunk)
    if states.shape[-2] != targets.shape[-1] or not targets.shape[-1]:
        raise ValueError(
            f"targets: expected one for each of {states.shape[-2]} states, at least one, "
            f"got {targets.shape[-1]}."
        )
    device, dtype = states.device.type, states.dtype
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    with_gradient = torch.is_grad_enabled() and (states.requires_grad or readout.requires_grad)
    runs = states.ndim == 3
    targets = targets.expand(states.shape[:-1])
    if not runs:
        states, readout, targets = states[None], readout[None], targets[None]
    losses = _ChunkedCrossEntropy.apply(
        states, readout, targets, chunk, dtype, with_gradient, residual_of
    )
    return losses if runs else losses.squeeze(0)
