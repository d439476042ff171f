r"""One block of a Transformer: a norm and attention, a norm and an FFN, added to the stream.

Formulas and variants stand in :mod:`staircase_lib.language.transformer`. Shapes: ``R`` runs, ``n``
sequences, ``L`` positions, ``d`` width, ``H`` heads, ``h`` hidden width; without runs the first
axis is not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ROLES", "ROTARY_BASE", "Block", "Record", "rms_norm", "rotate", "times"]

#: The roles in which attention takes a state: what is read, what is asked, who asks.
ROLES = ("value", "key", "query")
#: Slowest of the rotary angles: one turn in about six times as many positions.
ROTARY_BASE = 10_000.0


@dataclass
class Record:
    """What one forward pass through a Transformer has written, in the order of its blocks.

    Attributes
    ----------
    with_weights : bool
        Keep the attention weights too. They are then computed one by one, which is slower and
        takes memory of the order of ``n*H*L*L``.
    embedded : Tensor, shape (R, n, L, d)
        The stream as it starts.
    attention, ffn : list of Tensor, shape (R, n, L, d)
        With `embedded`, they sum to the stream that is read.
    weights : list of Tensor, shape (R, n, H, L, L)
    """

    with_weights: bool = False
    embedded: Tensor | None = None
    attention: list[Tensor] = field(default_factory=list)
    ffn: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square normalisation of the last axis; x (R, n, L, d), gain (R, d)."""
    gain = gain.to(x.dtype)  # a stream in bfloat16 stays in it
    if gain.ndim == 1:
        return functional.rms_norm(x, x.shape[-1:], gain, epsilon)
    return functional.rms_norm(x, x.shape[-1:], eps=epsilon) * gain[..., None, None, :]


def times(x: Tensor, weight: Tensor) -> Tensor:
    """States (R, n, L, d) times a weight (R, d, k), as one large product a run."""
    if weight.ndim == 2:
        return x @ weight
    return (x.flatten(-3, -2) @ weight).unflatten(-2, x.shape[-3:-1])


def rotate(x: Tensor, first: int = 0) -> Tensor:
    """Queries or keys (..., L, d/H), turned by their positions, which begin at ``first``.

    Entry ``i`` and entry ``i + d/2H`` are a plane, turned by the position times
    ``ROTARY_BASE**(-2iH/d)``: scores then depend on the distance of two positions only.
    """
    half = x.shape[-1] // 2
    rates = ROTARY_BASE ** (torch.arange(half, device=x.device, dtype=torch.float64) / -half)
    turns = torch.arange(first, first + x.shape[-2], device=x.device, dtype=torch.float64)
    angles = turns[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    cos, sin = torch.cat([cos, cos], -1).to(x.dtype), torch.cat([-sin, sin], -1).to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([right, left], -1), sin)


class Block(nn.Module):
    """One block: what attention and what the FFN write to the residual stream.

    Parameters
    ----------
    d, hidden, heads : int
    epsilon : float
    dtype : torch.dtype
    rotary : bool
        Turn queries and keys by their positions.
    ffn : {"gelu", "swiglu"}
    runs : int, optional

    Attributes
    ----------
    W_Q, W_K, W_V, W_O : Parameter, shape (d, d)
        Head ``i`` has the columns ``i*d/H .. (i+1)*d/H`` of the first three, and those rows of
        ``W_O``.
    W_in : Parameter, shape (d, h)
    W_gate : Parameter, shape (d, h)
        With SwiGLU only.
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
        rotary: bool = False,
        ffn: str = "gelu",
        runs: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.epsilon, self.rotary, self.ffn = heads, epsilon, rotary, ffn
        lead = () if runs is None else (runs,)
        self.W_Q = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_K = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_V = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_O = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_in = nn.Parameter(torch.zeros(*lead, d, hidden, dtype=dtype))
        if ffn == "swiglu":
            self.W_gate = nn.Parameter(torch.zeros(*lead, d, hidden, dtype=dtype))
        self.W_out = nn.Parameter(torch.zeros(*lead, hidden, d, dtype=dtype))
        self.register_buffer("g_A", torch.ones(*lead, d, dtype=dtype))
        self.register_buffer("g_F", torch.ones(*lead, d, dtype=dtype))

    def forward(self, stream: Tensor, record: Record | None = None) -> Tensor:
        """The stream (R, n, L, d) with what this block adds; a record keeps that apart too."""
        weights = None
        if record is not None and record.with_weights:
            weights = self.attention(stream)
            record.weights.append(weights)
        attention = self.attend(stream, weights=weights)
        stream = stream + attention
        ffn = self.feed(stream)
        if record is not None:
            record.attention.append(attention)
            record.ffn.append(ffn)
        return stream + ffn

    def _by_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """States (R, n, L, d) times a weight, as (R, n, H, L, d/H)."""
        return times(x, weight).unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def attend(
        self,
        stream: Tensor,
        *,
        only: str | None = None,
        last: bool = False,
        weights: Tensor | None = None,
    ) -> Tensor:
        """What attention writes, given the stream (R, n, L, d).

        Parameters
        ----------
        stream : Tensor, shape (R, n, L, d)
        only : {"value", "key", "query"}, optional
            The output is the same, but gradients pass through the stream in this role only. By
            the product rule those of the three roles add up to the whole gradient.
        last : bool
            At the last position only.
        weights : Tensor, shape (R, n, H, L, L), optional
            Attention that :meth:`attention` has computed already.

        Returns
        -------
        Tensor, shape (R, n, L, d), or (R, n, 1, d)
        """
        if only is not None and only not in ROLES:
            raise ValueError(f"only: expected one of {ROLES}, got {only!r}.")
        x = rms_norm(stream, self.g_A, self.epsilon)
        if only is None and not last and weights is None:
            mixed = self._mixed(x)
        else:
            kept = x.detach() if only else x
            read, asked, asking = (x if only == role else kept for role in ROLES)
            if weights is None:
                weights = self._attention(asking[..., -1:, :] if last else asking, asked)
            mixed = weights @ self._by_head(read, self.W_V)
        return times(mixed.transpose(-3, -2).flatten(-2), self.W_O)

    def _mixed(self, x: Tensor) -> Tensor:
        """What every head hears (R, n, H, L, d/H), by torch's kernel that never holds weights."""
        query, key, value = (self._by_head(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        if self.rotary:
            query, key = rotate(query), rotate(key)
        lead = query.shape[:-3]
        query, key, value = (part.flatten(0, -4) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.unflatten(0, lead)

    def _attention(self, asking: Tensor, asked: Tensor) -> Tensor:
        """Attention (R, n, H, l, L) of the last l positions, given normalised states."""
        query, key = self._by_head(asking, self.W_Q), self._by_head(asked, self.W_K)
        rows, columns = query.shape[-2], key.shape[-2]
        if self.rotary:
            query, key = rotate(query, columns - rows), rotate(key)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device)
        return torch.softmax(scores.masked_fill(later.triu(1 + columns - rows), -math.inf), dim=-1)

    def attention(self, stream: Tensor) -> Tensor:
        """Attention (R, n, H, L, L) of each position (rows) on each, given the stream."""
        x = rms_norm(stream, self.g_A, self.epsilon)
        return self._attention(x, x)

    def feed(self, stream: Tensor) -> Tensor:
        """What the FFN writes, shape (R, n, L, d), given the stream of that shape."""
        x = rms_norm(stream, self.g_F, self.epsilon)
        if self.ffn == "swiglu":
            z = functional.silu(times(x, self.W_gate)) * times(x, self.W_in)
        else:
            z = functional.gelu(times(x, self.W_in))
        return times(z, self.W_out)
