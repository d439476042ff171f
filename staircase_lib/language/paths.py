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

**Roles.** Attention takes a state as value, key or query. By the product rule its path is the sum
of three parts, each differentiated in one role of the last attention with the others held.

**Orders.** What a path does with the prefix :math:`x_1\dots x_t` of a predicting position is linear
in the residual: :math:`\sum_xM(x)\,r(x)`. For the token at position :math:`i`, let
:math:`\mathcal P_Q` replace all tokens but those at :math:`i` and in :math:`Q` by independent draws
from their positions' marginals. The part of :math:`M` that needs exactly :math:`m` context tokens
is

.. math:: M^{(m)}=\sum_{|Q|=m}\;\sum_{S\subseteq Q}(-1)^{m-|S|}\,\mathcal P_SM,

the Hoeffding decomposition: it is unique, the parts sum to :math:`M`, and each averages to zero
over any of its context tokens. Moved to the other factor, :math:`\mathcal P_S` sums the residual
over all tokens outside: order :math:`m` is driven by residual signatures of order :math:`m` and
below.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from staircase_lib.language.transformer import (
    ROLES,
    Block,
    Transformer,
    next_token_loss,
    next_tokens,
)
from staircase_lib.tasks import Task

__all__ = [
    "attention_path_from_signature",
    "attention_weighted_signature",
    "direct_path_from_signature",
    "embedding_gradient_by_order",
    "embedding_gradient_by_path",
    "ffn_path_from_signature",
    "next_token_signature",
]


def _check_vocabulary(model: Transformer, task: Task) -> None:
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )


def _writers(
    model: Transformer, embedded: Tensor, *, last: bool = False
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The stream that is read, and what each role of attention and each FFN has written to it;
    ``last``: at the last position only."""
    written: dict[str, list[Tensor]] = {name: [] for name in (*ROLES, "ffn")}
    stream = embedded
    for number, block in enumerate(model.blocks, start=1):
        assert isinstance(block, Block)
        end = last and number == len(model.blocks)
        for role in ROLES:
            written[role].append(block.attend(stream, only=role, last=end))
        attention = block.attend(stream, last=end)
        stream = (stream[..., -1:, :] if end else stream) + attention
        written["ffn"].append(block.feed(stream))
        stream = stream + written["ffn"][-1]
    if last:
        written = {name: [w[..., -1:, :] for w in each] for name, each in written.items()}
    return stream, written


def embedding_gradient_by_path(
    model: Transformer,
    task: Task,
    *,
    every_position: bool = True,
    by_role: bool = False,
    block: int = 4096,
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
    by_role : bool
        Split the attention path by the role in which attention took the state.
    block : int
        Sequences at a time; memory is linear in it.

    Returns
    -------
    dict of Tensor, each of shape (V, d) or (R, V, d)
        Keys ``"direct"``, ``"attention"``, ``"ffn"``; with `by_role`, ``"value"``, ``"key"`` and
        ``"query"`` in place of ``"attention"``; of a tied model also ``"unembedding"``, what
        reaches the embedding where it reads the stream. Their sum is minus the gradient of the
        weighted mean cross-entropy.

    Raises
    ------
    ValueError
        If the model's vocabulary is not the task's, or its positions are fewer.

    Notes
    -----
    Claim 6.1 of the paper. Vector-Jacobian products only: about two backward passes.
    """
    _check_vocabulary(model, task)
    W_E = model.W_E
    ways = (*ROLES, "ffn") if by_role else ("attention", "ffn")
    parts = {name: torch.zeros_like(W_E) for name in ("direct", *ways)}
    if model.tied:
        parts["unembedding"] = torch.zeros_like(W_E)
    for start in range(0, len(task.labels), block):
        rows = slice(start, start + block)
        tokens = torch.tensor(task.tokens[rows], device=W_E.device)
        labels = torch.tensor(task.labels[rows], device=W_E.device)
        weights = torch.tensor(task.weights[rows], device=W_E.device, dtype=W_E.dtype)
        with torch.enable_grad():
            embedded = model.embed(tokens).detach().requires_grad_()
            if by_role:
                stream, written = _writers(model, embedded)
            else:
                written = dict(zip(ways, model.written(embedded), strict=True))
                stream = embedded + sum(written["attention"]) + sum(written["ffn"])
            logits, targets = model.unembed(stream), next_tokens(tokens, labels)
            if not every_position:
                logits, targets = logits[..., -1:, :], targets[:, -1:]
            gain = -next_token_loss(logits, targets, weights).sum()
            (direct,) = torch.autograd.grad(gain, stream, retain_graph=True)
            back = {"direct": direct}
            for name, each in written.items():
                pulls = [direct] * len(each)
                (back[name],) = torch.autograd.grad(each, embedded, pulls, retain_graph=True)
            if model.tied:  # the embedded tokens are detached: only the unembedding is left
                parts["unembedding"] += torch.autograd.grad(gain, W_E)[0]
        for name, part in back.items():
            parts[name].index_add_(-2, tokens.reshape(-1), part.flatten(-3, -2))
    return parts


def _kept(residual: Tensor, marginals: Tensor, positions: tuple[int, ...]) -> Tensor:
    """A residual (..., V, .., V, V) of ``t`` tokens and an answer, summed over the tokens that are
    not at some positions and spread over them again by their marginals (t, V)."""
    length = len(marginals)
    for p in range(length):
        if p not in positions:
            lead = [1] * (length + 1)
            lead[p] = -1
            residual = residual.sum(p - length - 1, keepdim=True) * marginals[p].reshape(lead)
    return residual


def _by_order(residual: Tensor, marginals: Tensor) -> list[list[Tensor]]:
    """Entry ``[i][m]``: what drives the parts that need the token at ``i`` and exactly ``m`` others
    of the ``t`` tokens."""
    length = len(marginals)
    parts = []
    for i in range(length):
        others = [p for p in range(length) if p != i]
        by_size = []
        for size in range(length):
            chosen = [(i, *others) for others in combinations(others, size)]
            kept = [_kept(residual, marginals, positions) for positions in chosen]
            by_size.append(torch.stack(kept).sum(0))
        # each set of q lies in comb(t-1-q, m-q) sets of m
        weights = [
            [(-1) ** (m - q) * comb(length - 1 - q, m - q) for q in range(m + 1)]
            for m in range(length)
        ]
        parts.append(
            [
                sum(w * by_size[q] for q, w in enumerate(each[1:], 1)) + each[0] * by_size[0]
                for each in weights
            ]
        )
    return parts


def _without_positions(residual: Tensor, marginals: Tensor) -> list[list[Tensor]]:
    """As order 0 of :func:`_by_order`, the residual signature being the mean over the positions at
    which the token may stand."""
    length = len(marginals)
    at_front = [residual.movedim(i - length - 1, -length - 1) for i in range(length)]
    mean = torch.stack(at_front).mean(0)
    summed = mean.sum(list(range(-length, -1)), keepdim=True) if length > 1 else mean
    return [
        [_kept(summed.movedim(-length - 1, i - length - 1), marginals, (i,))] for i in range(length)
    ]


def _prefix_residual(
    model: Transformer, task: Task, prefixes: Tensor, predicting: int
) -> tuple[Tensor, Tensor]:
    """Residual (R, V, .., V, V) of every prefix of some length, weighted and summed over the
    sentences that begin with it, and the marginals (t, V) of the prefix's tokens."""
    V, length, like = task.vocab_size, prefixes.shape[1], model.W_E
    targets = np.column_stack([task.tokens[:, 1:], task.labels])[:, length - 1]
    joint = np.zeros((V,) * (length + 1))
    np.add.at(joint, (*task.tokens[:, :length].T, targets), task.weights)
    marginals = np.stack(
        [joint.sum(tuple(a for a in range(length + 1) if a != p)) for p in range(length)]
    )
    drawn = torch.tensor(joint / predicting, dtype=like.dtype, device=like.device)
    expected = torch.softmax(model.logits(prefixes)[..., -1, :], dim=-1)  # (R, n, V)
    residual = drawn.flatten(0, -2) - drawn.flatten(0, -2).sum(-1, keepdim=True) * expected
    return residual.unflatten(-2, (V,) * length), torch.tensor(
        marginals, dtype=like.dtype, device=like.device
    )


@torch.no_grad()
def embedding_gradient_by_order(
    model: Transformer,
    task: Task,
    *,
    every_position: bool = True,
    position_blind: bool = False,
    block: int = 64,
) -> dict[str, Tensor]:
    r"""The parts of :func:`embedding_gradient_by_path` by how many context tokens they need.

    Parameters
    ----------
    model : Transformer
        At any point of training; with or without a run axis.
    task : Task
    every_position : bool
        As in :func:`embedding_gradient_by_path`.
    position_blind : bool
        Order 0 only, and only what does not need to know where the token stands: the residual
        signature of each predicting position is replaced by its mean over the positions up to it.
    block : int
        Prefixes at a time; memory is linear in it, and small blocks stay in the cache.

    Returns
    -------
    dict of Tensor, each of shape (L, L, V, d) or (L, L, R, V, d)
        Keys ``"direct"``, ``"value"``, ``"key"``, ``"query"``, ``"ffn"``. Entry ``[m, k]`` needs
        exactly ``m`` context tokens and reaches the token from a prediction ``k`` positions later:
        ``k = 0`` is the token's own next-token prediction. The sum over ``m`` and ``k`` is the
        path's part; what a tied unembedding adds is no path of the embedded tokens and is not
        among them. With `position_blind` the first axis has one entry.

    Raises
    ------
    ValueError
        If the model's vocabulary is not the task's, or its positions are fewer.

    Notes
    -----
    Claims 6.3 and 6.4 of the paper; the definition stands in the module. All :math:`V^t` prefixes
    are run, also such as the task does not contain, with :math:`t^2` vector-Jacobian products each
    for :math:`t=1..L`: for vocabularies and lengths that can be written out.
    """
    _check_vocabulary(model, task)
    W_E, V, L = model.W_E, task.vocab_size, task.length
    orders = 1 if position_blind else L
    names = ("direct", *ROLES, "ffn")
    parts = {name: W_E.new_zeros(orders, L, *W_E.shape) for name in names}
    lengths = range(1, L + 1) if every_position else (L,)
    for length in lengths:
        prefixes = torch.cartesian_prod(*[torch.arange(V, device=W_E.device)] * length)
        prefixes = prefixes.reshape(-1, length)
        split = _without_positions if position_blind else _by_order
        drives = split(*_prefix_residual(model, task, prefixes, len(lengths)))
        drives = [[drive.flatten(-length - 1, -2) for drive in each] for each in drives]
        for start in range(0, len(prefixes), block):
            rows = slice(start, start + block)
            tokens = prefixes[rows]
            with torch.enable_grad():
                embedded = model.embed(tokens).detach().requires_grad_()
                stream, written = _writers(model, embedded, last=True)
                stream = stream[..., -1:, :]
                read = stream.detach().requires_grad_()
                logits = model.unembed(read)
            for i, each in enumerate(drives):
                for m, drive in enumerate(each):
                    given = drive[..., rows, None, :]
                    (pull,) = torch.autograd.grad(logits, read, given, retain_graph=True)
                    where = (m, length - 1 - i)
                    if i == length - 1:
                        parts["direct"][where].index_add_(-2, tokens[:, i], pull[..., 0, :])
                    for name, outputs in written.items():
                        (back,) = torch.autograd.grad(
                            outputs, embedded, [pull] * len(outputs), retain_graph=True
                        )
                        parts[name][where].index_add_(-2, tokens[:, i], back[..., i, :])
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


def attention_weighted_signature(
    task: Task, attention: ArrayLike | None = None, *, every_position: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Next-token signatures of a token that stands at one position and is heard at another.

    Parameters
    ----------
    task : Task
    attention : float array, shape (n, L, L), optional
        Attention of position ``t`` (row) on position ``i`` in each sequence. Default: uniform over
        the positions up to ``t``, what attention is at a small start.
    every_position : bool
        False: only the last position predicts.

    Returns
    -------
    mass : float64 array, shape (V, L, L)
        Entry ``[α, i, t]``: attention that :math:`\alpha` gets at position ``i`` from ``t``,
        divided by the number of predicting positions. Sums to one.
    signature : float64 array, shape (V, L, L, V)
        Distribution of the token after ``t`` given :math:`x_i=\alpha`, every sequence counted by
        that attention. Each row sums to one; zeros where there is no mass.

    Raises
    ------
    ValueError
        If the attention has another shape or is negative or not finite.

    Notes
    -----
    Claim 6.4 of the paper. For the prediction of the last position only, this is
    :func:`staircase_lib.signatures.attention_signature`.
    """
    n, L = task.tokens.shape
    if attention is None:
        a = np.broadcast_to(np.tril(np.ones((L, L))) / np.arange(1, L + 1)[:, None], (n, L, L))
    else:
        a = np.asarray(attention, dtype=np.float64)
        if a.shape != (n, L, L) or not np.isfinite(a).all() or (a < 0).any():
            raise ValueError(
                f"attention: expected finite, non-negative weights of shape {(n, L, L)}, "
                f"got shape {a.shape}; average the heads of Block.attention."
            )
    targets = np.concatenate([task.tokens[:, 1:], task.labels[:, None]], axis=1)
    joint = np.zeros((task.vocab_size, L, L, task.vocab_size))
    predicting = range(L) if every_position else (L - 1,)
    for t in predicting:
        for i in range(t + 1):
            weight = task.weights * a[:, t, i] / len(predicting)
            np.add.at(joint[:, i, t], (task.tokens[:, i], targets[:, t]), weight)
    mass = joint.sum(axis=-1)
    return mass, joint / np.where(mass > 0, mass, 1.0)[..., None]


def _back_through_norm(states: Tensor, gain: Tensor, epsilon: float, pull: Tensor) -> Tensor:
    """Transposed Jacobian of the norm at some states (..., d), applied to pulls (..., d)."""
    pull = pull * gain
    square = states.square().mean(-1, keepdim=True) + epsilon
    return (pull - (states * pull).mean(-1, keepdim=True) / square * states) / square.sqrt()


def _bare_states(model: Transformer, length: int) -> Tensor:
    """What every token's stream starts as at every position, shape (R, V, L, d)."""
    states = model.W_E.unsqueeze(-2)
    if model.W_P is None:  # rotary positions do not enter the stream
        return states.expand(*states.shape[:-2], length, -1)
    return states + model.W_P[..., None, :length, :]


def _own_pull(model: Transformer, mass: ArrayLike, signature: ArrayLike) -> tuple[Tensor, Tensor]:
    """What small logits ask of the stream where a token stands, and the bare states there; both
    (R, V, L, d)."""
    W_E = model.W_E
    p = torch.tensor(np.asarray(mass), dtype=W_E.dtype, device=W_E.device)
    drive = torch.tensor(np.asarray(signature), dtype=W_E.dtype, device=W_E.device)
    drive = p[..., None] * (drive - 1 / model.vocab_size)  # (V, L, V)
    pull = drive @ model.readout.transpose(-1, -2).unsqueeze(-3)  # (R, V, L, d)
    states = _bare_states(model, p.shape[1])
    if model.final_norm:
        pull = _back_through_norm(states, model.g_U[..., None, None, :], model.epsilon, pull)
    return pull, states


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
    pull, _ = _own_pull(model, mass, signature)
    return pull.sum(-2)


@torch.no_grad()
def ffn_path_from_signature(model: Transformer, mass: ArrayLike, signature: ArrayLike) -> Tensor:
    r"""The FFN part of the descent direction while logits are small.

    .. math:: \sum_b\sum_l P(x_l=\alpha)\,J_{\alpha,l}^{b\top}\,\tfrac12W_{in}^bW_{out}^b\,
              J_{\alpha,l}^\top\,W_U\big[P(\text{next}\mid x_l=\alpha)-\tfrac1V\mathbf 1\big]

    with :math:`J^b` and :math:`J` the Jacobians of the norm before the FFN and of the final norm at
    the bare state :math:`E_\alpha+P_l`, and one half the slope of GELU at zero: the FFN is a linear
    map of one token.

    Parameters
    ----------
    model : Transformer
    mass : float array, shape (V, L)
    signature : float array, shape (V, L, V)
        From :func:`next_token_signature`.

    Returns
    -------
    Tensor, shape (V, d) or (R, V, d)
        As ``"ffn"`` of :func:`embedding_gradient_by_path`, from which it differs relatively by the
        size of the logits and of what the blocks have written beside the embeddings.

    Raises
    ------
    ValueError
        If the FFN is SwiGLU: a product of two, it has no linear part, and its path is smaller than
        any that small logits leave.

    Notes
    -----
    Claim 6.3 of the paper.
    """
    if model.settings["ffn"] != "gelu":
        raise ValueError(
            f"model: expected an FFN with GELU, whose slope at zero is 1/2, got "
            f"{model.settings['ffn']!r}, which has no linear part; embedding_gradient_by_path "
            f"takes any."
        )
    pull, states = _own_pull(model, mass, signature)
    parts = []
    for block in model.blocks:
        assert isinstance(block, Block)
        through = 0.5 * (block.W_in @ block.W_out).transpose(-1, -2).unsqueeze(-3)
        gain = block.g_F[..., None, None, :]
        parts.append(_back_through_norm(states, gain, block.epsilon, pull @ through))
    return torch.stack(parts).sum((0, -2))


@torch.no_grad()
def attention_path_from_signature(
    model: Transformer, mass: ArrayLike, signature: ArrayLike
) -> Tensor:
    r"""Order 0 of the attention path while logits are small.

    .. math:: \sum_bJ_{\alpha,i}^\top\,W_V^bW_O^b\sum_{i\le t}A_{\alpha,i,t}\,\bar J_t^\top\,
              W_U\big[\tilde S_{\alpha,i,t}-\tfrac1V\mathbf 1\big]

    with mass :math:`A` and signature :math:`\tilde S` of :func:`attention_weighted_signature`,
    :math:`J` the Jacobian of the norm before attention at the bare state :math:`E_\alpha+P_i`, and
    :math:`\bar J_t` that of the final norm: at the own state for :math:`i=t`, for :math:`i<t`
    averaged over the tokens at :math:`t`, which order 0 does not know.

    Parameters
    ----------
    model : Transformer
    mass : float array, shape (V, L, L)
    signature : float array, shape (V, L, L, V)

    Returns
    -------
    Tensor, shape (V, d) or (R, V, d)

    Notes
    -----
    Claim 6.4 of the paper.
    """
    W_E, V = model.W_E, model.vocab_size
    p = torch.tensor(np.asarray(mass), dtype=W_E.dtype, device=W_E.device)
    L = p.shape[-1]
    drive = torch.tensor(np.asarray(signature), dtype=W_E.dtype, device=W_E.device)
    drive = p[..., None] * (drive - 1 / V)  # (V, i, t, V)
    pull = drive @ model.readout[..., None, None, :, :].transpose(-1, -2)  # (R, V, i, t, d)
    states = _bare_states(model, L)
    if model.final_norm:
        own = torch.diagonal(pull, dim1=-3, dim2=-2).transpose(-1, -2)  # (R, V, t, d)
        own = _back_through_norm(states, model.g_U[..., None, None, :], model.epsilon, own)
        square = states.square().mean(-1, keepdim=True) + model.epsilon
        here = torch.diagonal(p, dim1=-2, dim2=-1)
        here = (here / here.sum(0).clamp_min(1e-300)).unsqueeze(-1)  # marginal of the token at t
        isotropic = (here / square.sqrt()).sum(-3)  # (R, t, 1)
        outer = torch.einsum("...vtd,...vte->...tde", here * states / square**1.5, states)
        averaged = pull * model.g_U[..., None, None, None, :]
        averaged = averaged * isotropic[..., None, None, :, :] - torch.einsum(
            "...vitd,...tde->...vite", averaged, outer / model.d
        )
        diagonal = torch.eye(L, dtype=torch.bool, device=W_E.device)[:, :, None]
        pull = torch.where(diagonal, own.unsqueeze(-3), averaged)
    heard = pull.sum(-2)  # (R, V, i, d)
    parts = []
    for block in model.blocks:
        assert isinstance(block, Block)
        through = (block.W_V @ block.W_O).transpose(-1, -2).unsqueeze(-3)
        gain = block.g_A[..., None, None, :]
        parts.append(_back_through_norm(states, gain, block.epsilon, heard @ through))
    return torch.stack(parts).sum((0, -2))
