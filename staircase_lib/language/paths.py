r"""The embedding gradient of a Transformer by path (section 6.1 of arXiv:2608.30315).

The logits are read off :math:`s=e+\sum_bA_b+\sum_bF_b`: the embedded tokens :math:`e` and what
attention and FFN of every block have written to the residual stream. With
:math:`g=-\partial\mathcal L/\partial s`, the descent direction at the embedded tokens is

.. math:: \underbrace{g}_{\text{direct}}
          +\underbrace{\sum_bJ_{A_b}^\top g}_{\text{attention}}
          +\underbrace{\sum_bJ_{F_b}^\top g}_{\text{FFN}},

:math:`J` being total derivatives for :math:`e`. **A path is named by its last writer**: what an FFN
makes of something that attention wrote belongs to the FFN, and what a later attention reads of an
FFN's output belongs to attention. For one block this is the split of
:mod:`staircase_lib.derivations.paths`; for any number it is exact.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from staircase_lib.language.transformer import Transformer, next_token_loss, next_tokens
from staircase_lib.tasks import Task

__all__ = ["direct_path_from_signature", "embedding_gradient_by_path", "next_token_signature"]


def embedding_gradient_by_path(
    model: Transformer, task: Task, *, every_position: bool = True, block: int = 4096
) -> dict[str, Tensor]:
    r"""Direct, attention and FFN parts of :math:`-\partial\mathcal L/\partial W_E`.

    Parameters
    ----------
    model : Transformer
        At any point of training; with or without a run axis.
    task : Task
    every_position : bool
        The loss: every position predicts the token after it and the last the label, mean over
        positions; or only the last position counts.
    block : int
        Sequences at a time; memory is linear in it.

    Returns
    -------
    dict of Tensor, each of shape (V, d) or (R, V, d)
        Keys ``"direct"``, ``"attention"``, ``"ffn"``. Their sum is minus the gradient of the
        weighted mean cross-entropy.

    Raises
    ------
    ValueError
        If the model's vocabulary is not the task's, or its positions are fewer.

    Notes
    -----
    Claim 6.1 of the paper. Vector-Jacobian products only: about two backward passes.
    """
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )
    W_E = model.W_E
    parts = {name: torch.zeros_like(W_E) for name in ("direct", "attention", "ffn")}
    for start in range(0, len(task.labels), block):
        rows = slice(start, start + block)
        tokens = torch.tensor(task.tokens[rows], device=W_E.device)
        labels = torch.tensor(task.labels[rows], device=W_E.device)
        weights = torch.tensor(task.weights[rows], device=W_E.device, dtype=W_E.dtype)
        with torch.enable_grad():
            embedded = model.embed(tokens).detach().requires_grad_()
            attention, ffn = model.written(embedded)
            stream = embedded + sum(attention) + sum(ffn)
            logits, targets = model.unembed(stream), next_tokens(tokens, labels)
            if not every_position:
                logits, targets = logits[..., -1:, :], targets[:, -1:]
            gain = -next_token_loss(logits, targets, weights).sum()
            (direct,) = torch.autograd.grad(gain, stream, retain_graph=True)
            back = [direct] * len(attention)
            (by_attention,) = torch.autograd.grad(attention, embedded, back, retain_graph=True)
            (by_ffn,) = torch.autograd.grad(ffn, embedded, back)
        for name, part in zip(parts, (direct, by_attention, by_ffn), strict=True):
            parts[name].index_add_(-2, tokens.reshape(-1), part.flatten(-3, -2))
    return parts


def next_token_signature(
    task: Task, *, every_position: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Next-token signatures :math:`P(\text{next}\mid x_l=\alpha)` of all tokens, by position.

    Parameters
    ----------
    task : Task
        The label is the token after the last.
    every_position : bool
        False: only the last position predicts; the others have no mass.

    Returns
    -------
    mass : float64 array, shape (V, L)
        :math:`P(x_l=\alpha)`, divided by the number of positions that predict: with
        ``every_position`` it sums to one.
    signature : float64 array, shape (V, L, V)
        Each row sums to one; zeros where there is no mass.

    Notes
    -----
    In a language whose next token depends on the present one only, a token's rows are the same at
    every position: the paper's :math:`P(\text{next}\mid\alpha)`.
    """
    targets = np.concatenate([task.tokens[:, 1:], task.labels[:, None]], axis=1)
    joint = np.zeros((task.vocab_size, task.length, task.vocab_size))
    predicting = range(task.length) if every_position else (task.length - 1,)
    for position in predicting:
        pairs = (task.tokens[:, position], targets[:, position])
        np.add.at(joint[:, position], pairs, task.weights / len(predicting))
    mass = joint.sum(axis=-1)
    return mass, joint / np.where(mass > 0, mass, 1.0)[..., None]


@torch.no_grad()
def direct_path_from_signature(model: Transformer, mass: ArrayLike, signature: ArrayLike) -> Tensor:
    r"""The direct part of the descent direction while logits are small.

    .. math:: \sum_l P(x_l=\alpha)\,J_{\alpha,l}^\top\,
              W_U\big[P(\text{next}\mid x_l=\alpha)-\tfrac1V\mathbf 1\big]

    with :math:`J_{\alpha,l}` the Jacobian of the final norm at the bare state
    :math:`E_\alpha+P_l`, and the identity without a final norm.

    Parameters
    ----------
    model : Transformer
    mass : float array, shape (V, L)
    signature : float array, shape (V, L, V)
        From :func:`next_token_signature`.

    Returns
    -------
    Tensor, shape (V, d) or (R, V, d)
        As ``"direct"`` of :func:`embedding_gradient_by_path`, from which it differs relatively by
        the size of the logits and of what the blocks have written beside the embeddings.

    Notes
    -----
    Claim 6.2 of the paper.
    """
    W_E = model.W_E
    p = torch.tensor(np.asarray(mass), dtype=W_E.dtype, device=W_E.device)
    drive = torch.tensor(np.asarray(signature), dtype=W_E.dtype, device=W_E.device)
    drive = p[..., None] * (drive - 1 / model.vocab_size)  # (V, L, V)
    pull = drive @ model.W_U.transpose(-1, -2).unsqueeze(-3)  # (R, V, L, d)
    if model.final_norm:
        states = W_E.unsqueeze(-2) + model.W_P[..., None, : p.shape[1], :]  # (R, V, L, d)
        pull = pull * model.g_U[..., None, None, :]
        square = states.square().mean(-1, keepdim=True) + model.epsilon
        along = (states * pull).mean(-1, keepdim=True) / square
        pull = (pull - along * states) / square.sqrt()
    return pull.sum(-2)
