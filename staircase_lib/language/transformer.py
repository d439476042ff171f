r"""A pre-norm, decoder-only Transformer (section 6 of arXiv:2608.30315).

With states :math:`h_t=E_{x_t}+P_t`, every block adds twice to the residual stream,

.. math:: u=h+A(N(h)),\qquad h\leftarrow u+F(N(u)),\qquad F(x)=W_{out}^\top\sigma(W_{in}^\top x),

:math:`A` causal self-attention with several heads, :math:`\sigma` GELU, no biases; the logits are
:math:`W_U^\top N(h)`, or :math:`W_U^\top h` without the final norm. The unembedding is not tied to
the embedding.

**Normalisation.** :math:`N(x)=g\odot x/\sqrt{\tfrac1d\lVert x\rVert^2+\epsilon}`. Under small
initialization :math:`\epsilon` is no detail. States far above :math:`\sqrt\epsilon` lose their
scale in the norm, however small they start; far below, the norm is the linear map
:math:`x/\sqrt\epsilon` and the scale stays. So :math:`\epsilon` is an argument here.

Shapes: ``R`` runs, ``n`` sequences, ``L`` positions, ``V`` vocabulary, ``d`` width, ``H`` heads,
``h`` hidden width of the FFN. As in :mod:`staircase_lib.models`, every parameter has a leading
axis of runs if ``runs`` is given.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from staircase_lib.models import check_sizes, check_tokens

__all__ = ["ROLES", "Block", "Transformer", "next_token_loss", "next_tokens"]

#: The roles in which attention takes a state: what is read, what is asked, who asks.
ROLES = ("value", "key", "query")


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square normalisation of the last axis; x (R, n, L, d), gain (R, d)."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return x * scale * gain[..., None, None, :]


class Block(nn.Module):
    """One block: what attention and what the FFN write to the residual stream.

    Parameters
    ----------
    d, hidden, heads : int
    epsilon : float
    dtype : torch.dtype
    runs : int, optional

    Attributes
    ----------
    W_Q, W_K, W_V, W_O : Parameter, shape (d, d)
        Head ``i`` has the columns ``i*d/H .. (i+1)*d/H`` of the first three, and those rows of
        ``W_O``.
    W_in : Parameter, shape (d, h)
    W_out : Parameter, shape (h, d)
    g_A, g_F : buffer, shape (d,)
        Gains of the norms before attention and before the FFN.
    """

    g_A: Tensor
    g_F: Tensor

    def __init__(
        self,
        d: int,
        hidden: int,
        heads: int,
        epsilon: float,
        dtype: torch.dtype = torch.float32,
        *,
        runs: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.epsilon = heads, epsilon
        lead = () if runs is None else (runs,)
        self.W_Q = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_K = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_V = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_O = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_in = nn.Parameter(torch.zeros(*lead, d, hidden, dtype=dtype))
        self.W_out = nn.Parameter(torch.zeros(*lead, hidden, d, dtype=dtype))
        self.register_buffer("g_A", torch.ones(*lead, d, dtype=dtype))
        self.register_buffer("g_F", torch.ones(*lead, d, dtype=dtype))

    def _by_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """States (R, n, L, d) times a weight, as (R, n, H, L, d/H)."""
        return (x @ weight.unsqueeze(-3)).unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def attend(self, stream: Tensor, *, only: str | None = None, last: bool = False) -> Tensor:
        """What attention writes, given the stream (R, n, L, d).

        Parameters
        ----------
        stream : Tensor, shape (R, n, L, d)
        only : {"value", "key", "query"}, optional
            The output is the same, but gradients pass through the stream in this role only. By
            the product rule those of the three roles add up to the whole gradient.
        last : bool
            At the last position only.

        Returns
        -------
        Tensor, shape (R, n, L, d), or (R, n, 1, d)
        """
        if only is not None and only not in ROLES:
            raise ValueError(f"only: expected one of {ROLES}, got {only!r}.")
        x = rms_norm(stream, self.g_A, self.epsilon)
        kept = x.detach() if only else x
        read, asked, asking = (x if only == role else kept for role in ROLES)
        weights = self._attention(asking[..., -1:, :] if last else asking, asked)
        mixed = (weights @ self._by_head(read, self.W_V)).transpose(-3, -2).flatten(-2)
        return mixed @ self.W_O.unsqueeze(-3)

    def _attention(self, asking: Tensor, asked: Tensor) -> Tensor:
        """Attention (R, n, H, l, L) of the last l positions, given normalised states."""
        query, key = self._by_head(asking, self.W_Q), self._by_head(asked, self.W_K)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        rows, columns = scores.shape[-2:]
        later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device)
        return torch.softmax(scores.masked_fill(later.triu(1 + columns - rows), -math.inf), dim=-1)

    def attention(self, stream: Tensor) -> Tensor:
        """Attention (R, n, H, L, L) of each position (rows) on each, given the stream."""
        x = rms_norm(stream, self.g_A, self.epsilon)
        return self._attention(x, x)

    def feed(self, stream: Tensor) -> Tensor:
        """What the FFN writes, shape (R, n, L, d), given the stream of that shape."""
        x = rms_norm(stream, self.g_F, self.epsilon)
        return functional.gelu(x @ self.W_in.unsqueeze(-3)) @ self.W_out.unsqueeze(-3)


class Transformer(nn.Module):
    """Pre-norm decoder-only Transformer; see the module for its formulas.

    Parameters
    ----------
    vocab_size, d, length : int
        ``length`` is the number of learned positions, the longest sequence accepted.
    blocks, heads : int
        ``heads`` divides ``d``.
    hidden : int, optional
        ``h``; default ``4 * d``.
    epsilon : float
        Of every norm.
    final_norm : bool
        Normalise the stream before it is read.
    dtype : torch.dtype
    runs : int, optional
        As in :class:`~staircase_lib.models.EmbeddingFFN`.

    Attributes
    ----------
    W_E : Parameter, shape (V, d)
    W_P : Parameter, shape (length, d)
    blocks : ModuleList of :class:`Block`
    W_U : Parameter, shape (d, V)
    g_U : buffer, shape (d,)
        Gain of the final norm.

    Raises
    ------
    ValueError
        If a size is not positive, the heads do not divide the width or epsilon is not positive.

    Notes
    -----
    Parameters are zero until :func:`staircase_lib.models.initialize_` fills them. Gains are buffers
    at one: they are neither drawn nor trained. Nothing is lost, since a gain multiplies the rows of
    the weight that reads the normalised state.
    """

    g_U: Tensor

    def __init__(
        self,
        vocab_size: int,
        d: int,
        length: int,
        blocks: int = 1,
        heads: int = 1,
        hidden: int | None = None,
        *,
        epsilon: float = 1e-5,
        final_norm: bool = True,
        dtype: torch.dtype = torch.float32,
        runs: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, d=d, length=length, blocks=blocks, heads=heads)
        check_sizes(hidden=hidden, runs=runs)
        if d % heads:
            raise ValueError(f"heads: expected a divisor of the width d={d}, got {heads}.")
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(
                f"epsilon: expected a positive number, got {epsilon!r}; it keeps the norm of a "
                f"zero state finite."
            )
        self.vocab_size, self.d, self.length, self.runs = vocab_size, d, length, runs
        self.hidden = hidden or 4 * d
        self.epsilon, self.final_norm = epsilon, final_norm
        lead = () if runs is None else (runs,)
        self.W_E = nn.Parameter(torch.zeros(*lead, vocab_size, d, dtype=dtype))
        self.W_P = nn.Parameter(torch.zeros(*lead, length, d, dtype=dtype))
        self.blocks = nn.ModuleList(
            Block(d, self.hidden, heads, epsilon, dtype, runs=runs) for _ in range(blocks)
        )
        self.W_U = nn.Parameter(torch.zeros(*lead, d, vocab_size, dtype=dtype))
        self.register_buffer("g_U", torch.ones(*lead, d, dtype=dtype))

    def fan_in(self) -> dict[str, int]:
        """Input width :math:`d_{in}` of each parameter."""
        return {
            name: self.hidden if name.endswith("W_out") else self.d
            for name, _ in self.named_parameters()
        }

    def embed(self, tokens: Tensor) -> Tensor:
        """The stream as it starts, :math:`E_{x_t}+P_t`, shape (R, n, L, d)."""
        check_tokens(tokens, self.vocab_size)
        n, length = tokens.shape
        if length > self.length:
            raise ValueError(
                f"tokens: expected at most {self.length} positions, got {length}; "
                f"build the model with a larger length."
            )
        rows = self.W_E.index_select(-2, tokens.reshape(-1)).unflatten(-2, (n, length))
        return rows + self.W_P[..., None, :length, :]

    def unembed(self, stream: Tensor) -> Tensor:
        """Logits (R, n, L, V) read off the stream (R, n, L, d)."""
        if self.final_norm:
            stream = rms_norm(stream, self.g_U, self.epsilon)
        return stream @ self.W_U.unsqueeze(-3)

    def written(self, stream: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What attention and what the FFN of each block add to a stream (R, n, L, d).

        The stream itself plus everything in the two lists is what the logits are read off.
        """
        attention, ffn = [], []
        for block in self.blocks:
            assert isinstance(block, Block)
            attention.append(block.attend(stream))
            stream = stream + attention[-1]
            ffn.append(block.feed(stream))
            stream = stream + ffn[-1]
        return attention, ffn

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits at every position, (n, L, V) or (R, n, L, V), from tokens of shape (n, L)."""
        stream = self.embed(tokens)
        attention, ffn = self.written(stream)
        return self.unembed(stream + sum(attention) + sum(ffn))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at the last position, (n, V) or (R, n, V): the answer to a labelled task."""
        return self.logits(tokens)[..., -1, :]


def next_tokens(tokens: Tensor, labels: Tensor) -> Tensor:
    """What each position predicts: the token after it, and the label at the last; shape (n, L)."""
    return torch.cat([tokens[:, 1:], labels[:, None]], dim=1)


def next_token_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy, mean over positions and weighted mean over sequences.

    Parameters
    ----------
    logits : Tensor, shape (n, L, V) or (R, n, L, V)
    targets : int Tensor, shape (n, L)
    weights : Tensor, shape (n,)
        Summing to one.

    Returns
    -------
    Tensor, shape () or (R,)
    """
    index = targets.expand(logits.shape[:-1]).unsqueeze(-1)
    each = logits.logsumexp(-1) - logits.gather(-1, index).squeeze(-1)
    return each.mean(-1) @ weights
